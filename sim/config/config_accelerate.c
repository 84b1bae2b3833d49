/* accelerate's YAML: DDP, FSDP 1 and 2, DeepSpeed's stages. */
#include "sim/config/config_reader.h"

#include "sim/base/error.h"

#include <string.h>

enum { TYPE_DDP, TYPE_FSDP, TYPE_DEEPSPEED };
static const Meaning types[] = {
    {"NO", TYPE_DDP}, {"MULTI_GPU", TYPE_DDP}, {"FSDP", TYPE_FSDP}, {"DEEPSPEED", TYPE_DEEPSPEED},
    {NULL, 0},
};

/* shard_grad_op within nodes */
enum { HYBRID_GRAD_OP = NUM_STRATEGIES };

/* fsdp_sharding_strategy: names, or their numbers in PyTorch's ShardingStrategy. */
static const Meaning strategies[] = {
    {"FULL_SHARD", STRATEGY_FULL_SHARD},
    {"SHARD_GRAD_OP", STRATEGY_SHARD_GRAD_OP},
    {"NO_SHARD", STRATEGY_NO_SHARD},
    {"HYBRID_SHARD", STRATEGY_HYBRID_SHARD},
    {"1", STRATEGY_FULL_SHARD},
    {"2", STRATEGY_SHARD_GRAD_OP},
    {"3", STRATEGY_NO_SHARD},
    {"4", STRATEGY_HYBRID_SHARD},
    {"HYBRID_SHARD_ZERO2", HYBRID_GRAD_OP},
    {"5", HYBRID_GRAD_OP},
    {NULL, 0},
};

/* fsdp_reshard_after_forward of FSDP2; FSDP1's strategies stand there in some versions. */
static const Meaning reshards[] = {
    {"true", STRATEGY_FULL_SHARD},           {"false", STRATEGY_SHARD_GRAD_OP},
    {"FULL_SHARD", STRATEGY_FULL_SHARD},     {"SHARD_GRAD_OP", STRATEGY_SHARD_GRAD_OP},
    {"HYBRID_SHARD", STRATEGY_HYBRID_SHARD}, {NULL, 0},
};

enum { MIXED_NO, MIXED_BF16, MIXED_FP16, MIXED_FP8 };
static const Meaning precisions[] = {
    {"no", MIXED_NO}, {"bf16", MIXED_BF16}, {"fp16", MIXED_FP16}, {"fp8", MIXED_FP8}, {NULL, 0}};

static gboolean read_fsdp(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    gboolean checkpointing;

    config->strategy = STRATEGY_FULL_SHARD;
    if (!reader_word(reader, "fsdp_reshard_after_forward", reshards, &config->strategy, error) ||
        !reader_word(reader, "fsdp_sharding_strategy", strategies, &config->strategy, error) ||
        !reader_flag(reader, "fsdp_activation_checkpointing", &checkpointing, error) ||
        !reader_offload_all(reader, "fsdp_offload_params", error))
        return FALSE;
    config->recompute = checkpointing ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    reader_note(reader, "fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
                "priced with a unit for each block");
    return TRUE;
}

static gboolean read_deepspeed(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    const FlatEntry *file = flat_find(reader->flat, "deepspeed_config_file");

    if (file != NULL)
        return flat_refuse(reader->flat, file, "given itself: its choices stand there", error);
    return reader_tier(reader, "offload_optimizer_device", &config->offload.optimizer, error) &&
           reader_tier(reader, "offload_param_device", &config->offload.parameters, error) &&
           reader_word(reader, "zero_stage", reader_zero_stages, &config->strategy, error);
}

/* parallelism_config: an axis that it does not name is 1. */
static gboolean read_axes(const Reader *reader, GError **error)
{
    guint *axis = reader->config->axis;

    axis[AXIS_DP_REPLICATE] = axis[AXIS_CP] = axis[AXIS_TP] = axis[AXIS_PP] = 1;
    if (reader->config->strategy == STRATEGY_HYBRID_SHARD ||
        reader->config->strategy == HYBRID_GRAD_OP)
        axis[AXIS_DP_REPLICATE] = 0; /* nodes */
    if (reader->config->strategy == HYBRID_GRAD_OP)
        reader->config->strategy = STRATEGY_SHARD_GRAD_OP;
    return reader_uint(reader, "parallelism_config_dp_replicate_size", &axis[AXIS_DP_REPLICATE],
                       error) &&
           reader_uint(reader, "parallelism_config_dp_shard_size", &axis[AXIS_DP_SHARD], error) &&
           reader_uint(reader, "parallelism_config_cp_size", &axis[AXIS_CP], error) &&
           reader_uint(reader, "parallelism_config_tp_size", &axis[AXIS_TP], error) &&
           reader_word(reader, "parallelism_config_cp_comm_strategy", reader_rotations,
                       &reader->config->context, error);
}

/* torchao's float8 layers gather in it unless told. */
static gboolean read_float8(const Reader *reader, GError **error)
{
    const FlatEntry *backend = flat_find(reader->flat, "fp8_config.backend");

    if (backend == NULL || g_ascii_strcasecmp(backend->value, "AO") != 0)
        return TRUE;
    reader->config->gather_fp8 = reader->config->strategy != STRATEGY_NO_SHARD;
    return flat_find(reader->flat, "enable_fsdp_float8_all_gather") == NULL ||
           reader_gather_fp8(reader, "enable_fsdp_float8_all_gather", error);
}

/* What mixed precision keeps: FSDP an fp32 shard, with reductions in what it computes with,
 * DeepSpeed bf16 parameters beside an fp32 master; DDP's autocast keeps fp32 and casts, which is
 * not priced. */
static void set_recipe(Config *config, gint type, gint precision)
{
    if (precision == MIXED_NO)
        config->recipe = &recipe_fp32;
    else
        config->recipe = type == TYPE_DEEPSPEED ? &recipe_zero : &recipe_fsdp2;
    if (precision == MIXED_FP16)
        config->recipe = recipe_with_precision(config->recipe, DTYPE_FP16);
    if (precision == MIXED_FP8)
        config->recipe = recipe_with_precision(config->recipe, DTYPE_FP8);
    if (type == TYPE_FSDP)
        config->recipe = recipe_with_gradients(config->recipe, DTYPE_FP32, config->recipe->compute);
}

gboolean config_read_accelerate(const Reader *reader, GError **error)
{
    Config *config = reader->config;
    gint type = TYPE_DDP, precision = MIXED_NO;

    config->strategy = STRATEGY_NO_SHARD;
    if (!reader_word(reader, "distributed_type", types, &type, error) ||
        !reader_word(reader, "mixed_precision", precisions, &precision, error) ||
        !reader_uint(reader, "num_processes", &config->gpus, error) ||
        !reader_uint(reader, "gradient_accumulation_steps", &config->micro_batches, error) ||
        (type == TYPE_FSDP && !read_fsdp(reader, error)) ||
        (type == TYPE_FSDP && precision == MIXED_FP8 && !read_float8(reader, error)) ||
        (type == TYPE_DEEPSPEED && !read_deepspeed(reader, error)) || !read_axes(reader, error))
        return FALSE;
    set_recipe(config, type, precision);
    return TRUE;
}
