/* DeepSpeed's JSON: data parallelism alone. */
#include "sim/config/config_reader.h"

#include "sim/base/error.h"

static const Meaning optimizers[] = {
    {"AdamW", OPTIMIZER_ADAMW},
    {"Adam", OPTIMIZER_ADAMW},
    {"SGD", OPTIMIZER_SGD},
    {NULL, 0},
};

/* Its stages keep bf16 parameters and an fp32 master, as recipe zero does, and gradients in bf16 as
 * long as no type is said. */
static gboolean read_precision(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    const gboolean said = flat_find(reader->flat, "bf16.enabled") != NULL ||
                          flat_find(reader->flat, "fp16.enabled") != NULL;
    gboolean bf16, fp16;

    if (!reader_flag(reader, "bf16.enabled", &bf16, error) ||
        !reader_flag(reader, "fp16.enabled", &fp16, error))
        return FALSE;
    if (said)
        config->recipe = bf16 || fp16 ? &recipe_zero : &recipe_fp32;
    if (fp16)
        config->recipe = recipe_with_precision(&recipe_zero, DTYPE_FP16);
    return reader_gradients(reader, "grad_accum_dtype", "communication_data_type", error);
}

gboolean config_read_deepspeed(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    gboolean experts;

    config->axis[AXIS_DP_REPLICATE] = config->axis[AXIS_CP] = 1;
    config->axis[AXIS_TP] = config->axis[AXIS_PP] = 1;
    config->strategy = STRATEGY_NO_SHARD;
    if (!reader_word(reader, "zero_optimization.stage", reader_zero_stages, &config->strategy,
                     error) ||
        !reader_word(reader, "optimizer.type", optimizers, &config->optimizer, error) ||
        !reader_uint(reader, "train_batch_size", &config->global_batch, error) ||
        !reader_uint(reader, "train_micro_batch_size_per_gpu", &config->micro_batch, error) ||
        !reader_uint(reader, "gradient_accumulation_steps", &config->micro_batches, error) ||
        !reader_uint(reader, "mics_shard_size", &config->axis[AXIS_DP_SHARD], error) ||
        !reader_tier(reader, "offload_optimizer.device", &config->offload.optimizer, error) ||
        !reader_tier(reader, "offload_param.device", &config->offload.parameters, error) ||
        !read_precision(reader, error))
        return FALSE;
    if (flat_find(reader->flat, "mics_shard_size") != NULL) /* shards within groups of that size */
        config->axis[AXIS_DP_REPLICATE] = 0;
    if (!reader_flag(reader, "expert_parallel.enabled", &experts, error) ||
        (experts && !reader_experts(reader, "expert_parallel.autoep_size", error)))
        return FALSE;
    reader_note(reader, "zero_hpz_partition_size", "1", "priced without a second copy of shards");
    reader_note(reader, "zero_quantized_weights", "false", "priced with whole weights");
    reader_note(reader, "tensor_parallel.autotp_size", "1", "priced without it");
    return TRUE;
}
