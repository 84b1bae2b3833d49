/* torchtitan's job configuration: v0.2 and, where names differ, those before it. */
#include "sim/config/config_reader.h"

#include <string.h>

static const Meaning reshards[] = {
    {"default", STRATEGY_FULL_SHARD},
    {"always", STRATEGY_FULL_SHARD},
    {"never", STRATEGY_SHARD_GRAD_OP},
    {NULL, 0},
};

/* "selective" keeps the products of matrices and computes the rest again, or takes every nth block:
 * attention alone is the nearest that there is here. */
static const Meaning recomputes[] = {
    {"none", RECOMPUTE_NONE},
    {"selective", RECOMPUTE_SELECTIVE},
    {"full", RECOMPUTE_FULL},
    {NULL, 0},
};

static const Meaning schedules[] = {
    {"1F1B", SCHEDULE_1F1B},
    {"GPipe", SCHEDULE_GPIPE},
    {"Interleaved1F1B", SCHEDULE_INTERLEAVED},
    {NULL, 0},
};

static const Meaning optimizers[] = {
    {"AdamW", OPTIMIZER_ADAMW}, {"Adam", OPTIMIZER_ADAMW}, {NULL, 0}};

enum { PARAM_BF16, PARAM_FP32 };
static const Meaning precisions[] = {{"bfloat16", PARAM_BF16}, {"float32", PARAM_FP32}, {NULL, 0}};

static gboolean read_axes(const Reader *reader, GError **error)
{
    guint *axis = reader->config->axis;
    const FlatEntry *shard = flat_find(reader->flat, "data_parallel_shard_degree");

    if (shard != NULL && strcmp(shard->value, "-1") != 0 &&
        !reader_uint(reader, "data_parallel_shard_degree", &axis[AXIS_DP_SHARD], error))
        return FALSE;
    axis[AXIS_DP_REPLICATE] = axis[AXIS_TP] = axis[AXIS_PP] = axis[AXIS_CP] = 1;
    return reader_uint(reader, "data_parallel_replicate_degree", &axis[AXIS_DP_REPLICATE], error) &&
           reader_uint(reader, "tensor_parallel_degree", &axis[AXIS_TP], error) &&
           reader_uint(reader, "pipeline_parallel_degree", &axis[AXIS_PP], error) &&
           reader_uint(reader, "context_parallel_degree", &axis[AXIS_CP], error);
}

static gboolean read_strategy(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    const FlatEntry *policy = flat_find(reader->flat, "fsdp_reshard_after_forward");
    const gboolean pipeline = config->axis[AXIS_PP] > 1;

    config->strategy = STRATEGY_FULL_SHARD;
    if (!reader_word(reader, "fsdp_reshard_after_forward", reshards, &config->strategy, error))
        return FALSE;
    if (pipeline && (policy == NULL || strcmp(policy->value, "default") == 0))
        config->strategy = STRATEGY_SHARD_GRAD_OP; /* with a pipeline it keeps all */
    config->keep = policy != NULL && strcmp(policy->value, "always") == 0 ? 0 : 1;
    if (config->axis[AXIS_DP_SHARD] == 1 && config->axis[AXIS_CP] == 1)
        config->strategy = STRATEGY_NO_SHARD;
    return TRUE;
}

/* With a pipeline the local batch is all micro-batches of a step. */
static gboolean read_batch(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    guint local = 0, micro = 1;

    if (!reader_uint(reader, "batch_size", &local, error) ||
        !reader_uint(reader, "local_batch_size", &local, error) ||
        !reader_uint(reader, "pipeline_parallel_microbatch_size", &micro, error) ||
        !reader_uint(reader, "seq_len", &config->seq_len, error))
        return FALSE;
    const FlatEntry *global = flat_find(reader->flat, "global_batch_size");
    if (global != NULL && strcmp(global->value, "-1") != 0 &&
        !reader_uint(reader, "global_batch_size", &config->global_batch, error))
        return FALSE;
    config->micro_batch = config->axis[AXIS_PP] > 1 ? micro : local;
    if (config->global_batch == 0 && local > 0)
        config->micro_batches = config->axis[AXIS_PP] > 1 ? MAX(local / micro, 1) : 1;
    return TRUE;
}

static gboolean read_pipeline(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    guint per_stage = 0;

    if (config->axis[AXIS_PP] == 1)
        return TRUE;
    config->schedule = SCHEDULE_1F1B;
    if (!reader_word(reader, "pipeline_parallel_schedule", schedules, &config->schedule, error) ||
        !reader_uint(reader, "pipeline_parallel_layers_per_stage", &per_stage, error))
        return FALSE;
    if (per_stage == 0 && config->schedule == SCHEDULE_INTERLEAVED)
        config->virtual_stages = 2; /* its default */
    return TRUE;
}

/* model.converters (a list of names, or one): "float8", "quantize.linear.float8". */
static gboolean names_float8(const Reader *reader)
{
    const FlatEntry *converters = flat_find(reader->flat, "model.converters");

    return converters != NULL && strstr(converters->value, "float8") != NULL;
}

gboolean config_read_torchtitan(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    gint precision = PARAM_BF16;

    config->sequence_parallel = TRUE;
    config->optimizer = OPTIMIZER_ADAMW;
    config->recompute = RECOMPUTE_NONE;
    if (!read_axes(reader, error) || !read_strategy(reader, error) || !read_batch(reader, error) ||
        !read_pipeline(reader, error) ||
        !reader_gather_fp8(reader, "enable_fsdp_float8_all_gather", error) ||
        !reader_word(reader, "mixed_precision_param", precisions, &precision, error) ||
        !reader_word(reader, "activation_checkpoint.mode", recomputes, &config->recompute, error) ||
        !reader_word(reader, "optimizer.name", optimizers, &config->optimizer, error))
        return FALSE;
    if (config->axis[AXIS_CP] > 1 && (config->context = CONTEXT_ALL_GATHER,
                                      !reader_word(reader, "context_parallel_rotate_method",
                                                   reader_rotations, &config->context, error)))
        return FALSE;
    config->recipe = precision == PARAM_BF16 ? &recipe_fsdp2 : &recipe_fp32;
    if (names_float8(reader))
        config->recipe = recipe_with_precision(config->recipe, DTYPE_FP8);
    if (config->recompute == RECOMPUTE_SELECTIVE)
        reader_note(reader, "selective_ac_option", NULL,
                    "priced as recomputation of attention alone");
    if (config->axis[AXIS_TP] > 1)
        reader_note(reader, "expert_tensor_parallel_degree", "1",
                    "priced with whole experts on a rank");
    reader_note(reader, "training.dtype", "float32",
                "priced with fp32 parameters, gradients and moments");
    return reader_gradients(reader, NULL, "mixed_precision_reduce", error) &&
           reader_offload_all(reader, "enable_cpu_offload", error) &&
           reader_experts(reader, "expert_parallel_degree", error);
}
