/* axolotl's YAML: FSDP and DDP, with tensor and context parallelism. */
#include "sim/config/config_reader.h"

#include "sim/base/error.h"

/* optimizer: transformers' names */
static const Meaning optimizers[] = {
    {"adamw_torch_fused", OPTIMIZER_ADAMW},
    {"adamw_torch", OPTIMIZER_ADAMW},
    {"adamw_torch_8bit", OPTIMIZER_ADAM8BIT},
    {"adamw_bnb_8bit", OPTIMIZER_ADAM8BIT},
    {"adamw_8bit", OPTIMIZER_ADAM8BIT},
    {"sgd", OPTIMIZER_SGD},
    {NULL, 0},
};

enum { BF16_OFF, BF16_ON };
static const Meaning bf16s[] = {
    {"true", BF16_ON}, {"full", BF16_ON}, {"false", BF16_OFF}, {NULL, 0}};

static gboolean has_mapping(const Reader *reader, const char *prefix)
{
    for (guint i = 0; i < reader->flat->entries->len; i++)
        if (g_str_has_prefix(g_array_index(reader->flat->entries, FlatEntry, i).path, prefix))
            return TRUE;
    return FALSE;
}

static gboolean read_strategy(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    const FlatEntry *deepspeed = flat_find(reader->flat, "deepspeed");
    gboolean reshard, checkpointing;

    if (deepspeed != NULL)
        return flat_refuse(reader->flat, deepspeed, "given itself: its choices stand there", error);
    if (!reader_flag(reader, "reshard_after_forward", &reshard, error) ||
        !reader_offload_all(reader, "offload_params", error) ||
        !reader_flag(reader, "gradient_checkpointing", &checkpointing, error))
        return FALSE;
    config->strategy = !has_mapping(reader, "fsdp_config.") ? STRATEGY_NO_SHARD
                       : reshard || flat_find(reader->flat, "reshard_after_forward") == NULL
                           ? STRATEGY_FULL_SHARD
                           : STRATEGY_SHARD_GRAD_OP;
    if (!checkpointing && !reader_flag(reader, "activation_checkpointing", &checkpointing, error))
        return FALSE;
    config->recompute = checkpointing ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    return reader_experts(reader, "expert_parallel_size", error);
}

gboolean config_read_axolotl(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    guint *axis = config->axis;
    gint bf16 = BF16_ON;

    axis[AXIS_DP_REPLICATE] = axis[AXIS_CP] = axis[AXIS_TP] = axis[AXIS_PP] = 1;
    if (!read_strategy(reader, error) ||
        !reader_uint(reader, "dp_replicate_size", &axis[AXIS_DP_REPLICATE], error) ||
        !reader_uint(reader, "dp_shard_size", &axis[AXIS_DP_SHARD], error) ||
        !reader_uint(reader, "context_parallel_size", &axis[AXIS_CP], error) ||
        !reader_uint(reader, "tensor_parallel_size", &axis[AXIS_TP], error) ||
        !reader_uint(reader, "micro_batch_size", &config->micro_batch, error) ||
        !reader_uint(reader, "gradient_accumulation_steps", &config->micro_batches, error) ||
        !reader_uint(reader, "sequence_len", &config->seq_len, error) ||
        !reader_word(reader, "optimizer", optimizers, &config->optimizer, error) ||
        !reader_word(reader, "bf16", bf16s, &bf16, error))
        return FALSE;
    /* Its ranks are their product; in a plan experts are divided among those that shard. */
    if (config->ep > 1 && axis[AXIS_DP_SHARD] > 0) {
        axis[AXIS_DP_SHARD] *= config->ep;
        reader_note(reader, "expert_parallel_size", NULL,
                    "priced with all that is no expert sharded over its ranks too");
    }
    config->recipe = bf16 == BF16_ON ? &recipe_fsdp2 : &recipe_fp32;
    if (config->strategy != STRATEGY_NO_SHARD) /* accelerate's policy: config_accelerate.c */
        config->recipe = recipe_with_gradients(config->recipe, DTYPE_FP32, config->recipe->compute);
    return TRUE;
}
