/* Plan -> accelerate's YAML configuration: FSDP1 (flat), FSDP2 (per_parameter), DDP; with FSDP2
 * tensor and context parallelism; torchao's float8.  Looked at: accelerate at commit 16cb6eb80dd9.
 */
#include "sim/export/exporter.h"

/* FSDP1: fsdp_sharding_strategy. */
static const Mapping fsdp1_strategies[] = {
    {"no_shard", "NO_SHARD", NULL},
    {"shard_optimizer", NULL, "FSDP shards gradients too"},
    {"shard_grad_op", "SHARD_GRAD_OP", NULL},
    {"full_shard", "FULL_SHARD", NULL},
    {"hybrid_shard", "HYBRID_SHARD", NULL},
    {NULL, NULL, NULL},
};

/* FSDP2: fsdp_reshard_after_forward; replicas are in parallelism_config. */
static const Mapping fsdp2_strategies[] = {
    {"no_shard", "", NULL}, /* it has none: DDP */
    {"shard_optimizer", NULL, "FSDP2 shards parameters and gradients too"},
    {"shard_grad_op", "false", NULL},
    {"full_shard", "true", NULL},
    {"hybrid_shard", "true", NULL},
    {NULL, NULL, NULL},
};

/* mixed_precision; with bf16 it keeps fp32 parameters and gathers bf16 copies. */
static const Mapping recipes[] = {
    {"zero", NULL, "it keeps one fp32 copy of a parameter and gathers bf16 ones (recipe fsdp2)"},
    {"fsdp2", "bf16", NULL},
    {"fp32", "'no'", NULL},
    {NULL, NULL, NULL},
};

/* With torchao's float8, which keeps what bf16 does. */
static const Mapping float8_recipes[] = {
    {"zero", NULL, "it keeps one fp32 copy of a parameter and gathers bf16 ones (recipe fsdp2)"},
    {"fsdp2", "fp8", NULL},
    {NULL, NULL, NULL},
};

/* Made in the training script. */
static const Mapping optimizers[] = {
    {"adamw", "torch.optim.AdamW", NULL},
    {"sgd", "torch.optim.SGD", NULL},
    {NULL, NULL, NULL},
};

static const Mapping recomputes[] = {
    {"none", "false", NULL},
    {"selective", NULL, "fsdp_activation_checkpointing recomputes whole blocks"},
    {"full", "true", NULL},
    {NULL, NULL, NULL},
};

/* parallelism_config_cp_comm_strategy */
static const Mapping contexts[] = {
    {"ring", "alltoall", NULL},
    {"all_gather", "allgather", NULL},
    {NULL, NULL, NULL},
};

/* The module that becomes a unit, as transformers calls it. */
static const Mapping block_classes[] = {
    {"llama", "LlamaDecoderLayer", NULL},
    {"mistral", "MistralDecoderLayer", NULL},
    {"qwen2", "Qwen2DecoderLayer", NULL},
    {"qwen3", "Qwen3DecoderLayer", NULL},
    {"gemma", "GemmaDecoderLayer", NULL},
    {"gemma2", "Gemma2DecoderLayer", NULL},
    {"gemma3_text", "Gemma3DecoderLayer", NULL},
    {"olmo", "OlmoDecoderLayer", NULL},
    {"olmo2", "Olmo2DecoderLayer", NULL},
    {"cohere", "CohereDecoderLayer", NULL},
    {"phi", "PhiDecoderLayer", NULL},
    {"phi3", "Phi3DecoderLayer", NULL},
    {"starcoder2", "Starcoder2DecoderLayer", NULL},
    {"gpt2", "GPT2Block", NULL},
    {"gptj", "GPTJBlock", NULL},
    {"gpt_neox", "GPTNeoXLayer", NULL},
    {"opt", "OPTDecoderLayer", NULL},
    {"bloom", "BloomBlock", NULL},
    {"falcon", "FalconDecoderLayer", NULL},
    {"mpt", "MptBlock", NULL},
    {"mixtral", "MixtralDecoderLayer", NULL},
    {"qwen2_moe", "Qwen2MoeDecoderLayer", NULL},
    {"qwen3_moe", "Qwen3MoeDecoderLayer", NULL},
    {"gpt_oss", "GptOssDecoderLayer", NULL},
    {"deepseek_v2", "DeepseekV2DecoderLayer", NULL},
    {"deepseek_v3", "DeepseekV3DecoderLayer", NULL},
    {"dbrx", "DbrxBlock", NULL},
    {NULL, NULL, NULL},
};

/* Models of which transformers' tp_plan splits heads and feed-forward as the plan does. */
#define OTHER_SPLIT "with tp: transformers' plan does not split its blocks by heads"
static const Mapping tensor_plans[] = {
    {"llama", "auto", NULL},     {"mistral", "auto", NULL},    {"qwen2", "auto", NULL},
    {"qwen3", "auto", NULL},     {"starcoder2", "auto", NULL}, {"phi3", NULL, OTHER_SPLIT},
    {"gpt2", NULL, OTHER_SPLIT}, {NULL, NULL, NULL},
};

/* Has a mesh of its own: parallelism_config, which wants FSDP2. */
static gboolean is_split(const Plan *plan)
{
    return plan->layout.size[AXIS_TP] > 1 || plan->layout.size[AXIS_CP] > 1;
}

static gboolean is_ddp(const Plan *plan)
{
    return plan->sharding.strategy == STRATEGY_NO_SHARD &&
           plan->sharding.form == FORM_PER_PARAMETER;
}

/* It starts as many processes on every machine. */
static gboolean check_machines(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    g_autofree char *value = g_strdup_printf("%u", plan->ranks_per_node);

    return plan->gpus % plan->ranks_per_node == 0 ||
           export_refuse(export, "target.ranks_per_node", value,
                         "every machine runs as many processes", error);
}

/* With replicas FSDP1 shards within a machine and replicates between machines; FSDP2 has a mesh, in
 * which one rank is no shard group. */
static gboolean check_replicas(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const gboolean flat = plan->sharding.form == FORM_FLAT;
    const guint shard = plan->layout.size[AXIS_DP_SHARD];
    g_autofree char *value = g_strdup_printf("%u", shard);

    if (plan->sharding.strategy == STRATEGY_NO_SHARD || plan->layout.size[AXIS_DP_REPLICATE] == 1 ||
        (flat ? shard == plan->ranks_per_node : shard > 1))
        return TRUE;
    return export_refuse(export, "layout.dp_shard", value,
                         flat ? "FSDP1 (form flat) with replicas shards over the ranks of a "
                                "machine, target.ranks_per_node"
                              : "FSDP2 with replicas shards over 2 ranks or more",
                         error);
}

/* Parameters of a rank of tp or cp are DTensors, which FSDP2 shards further. */
static gboolean check_split(const Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint tp = plan->layout.size[AXIS_TP];

    if (!is_split(plan))
        return TRUE;
    if (plan->sharding.form == FORM_FLAT)
        return export_refuse(export, "sharding.form", "flat",
                             "tp and cp go with FSDP2 (per_parameter)", error);
    if (plan->sharding.strategy == STRATEGY_NO_SHARD)
        return export_refuse(export, "sharding.strategy", "no_shard", "tp and cp go with FSDP2",
                             error);
    if (layout_shard_ranks(&plan->layout) == 1)
        return export_refuse_uint(export, "layout.dp_shard", 1,
                                  "FSDP2 beside tp shards over 2 ranks or more", error);
    if (tp > 1 && plan->sequence_parallel)
        return export_refuse(export, "tensor_parallel.sequence", "true",
                             "transformers' plan splits no sequence", error);
    return tp == 1 || export_map(export, "model.model_type", plan->model->model_type, tensor_plans,
                                 error) != NULL;
}

/* Gathers in float8 are of FSDP2, and torchao's layers take no matrix that tp has split but by
 * classes of its own, which accelerate leaves out. */
static gboolean check_float8(const Export *export, GError **error)
{
    const Plan *plan = export->plan;

    if (plan->workload.recipe->precision != DTYPE_FP8)
        return TRUE;
    if (plan->layout.size[AXIS_TP] > 1)
        return export_refuse(export, "workload.precision", "fp8",
                             "its float8 layers are not split by tp", error);
    if (plan->model->experts.count > 0)
        return export_refuse(export, "workload.precision", "fp8",
                             "its float8 layers replace linear ones, and experts are stacked in "
                             "one parameter",
                             error);
    return !plan->sharding.gather_fp8 || plan->sharding.form == FORM_PER_PARAMETER ||
           export_refuse(export, "sharding.gather_dtype", "fp8",
                         "gathers in float8 are FSDP2's (per_parameter)", error);
}

/* It wraps whole blocks. */
static gboolean check_experts(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const guint ep = layout_ep(&plan->layout);

    if (plan->model->experts.count == 0)
        return TRUE;
    if (plan->sharding.strategy != STRATEGY_NO_SHARD)
        export_note(export, "left to FSDP: a block's experts are gathered with the rest of it, the "
                            "plan gathers them apart");
    return ep == 1 ||
           export_refuse_uint(export, "layout.ep", ep, "it has no expert parallelism", error);
}

static void note_split(Export *export)
{
    const guint *size = export->plan->layout.size;

    if (size[AXIS_TP] > 1)
        export_note(export, "in the training script: from_pretrained(..., tp_plan=\"auto\", "
                            "device_mesh=accelerator.torch_device_mesh); it keeps the embedding "
                            "whole on every rank, the plan splits it");
    if (size[AXIS_CP] > 1)
        export_note(export, "in the training script: every step under "
                            "accelerator.maybe_context_parallel(...), labels shifted before, "
                            "attn_implementation sdpa");
    if (size[AXIS_CP] > 1 && export->plan->context == CONTEXT_ALL_GATHER)
        export_note(export, "left to PyTorch: gradients of keys and values pass from rank to rank, "
                            "the plan reduce-scatters them");
}

/* What belongs into the training script. */
static void note_script(Export *export, const char *optimizer)
{
    const Plan *plan = export->plan;
    const gboolean sharded = plan->sharding.accumulate_sharded;

    export_note(export,
                "in the training script: %s, batches "
                "of %u x %u tokens a %s, clip_grad_norm_ at " EXPORT_CLIP_NORM,
                optimizer, plan->schedule.micro_batch, plan->workload.seq_len,
                is_split(plan) ? "data-parallel rank" : "process");
    if (plan->schedule.micro_batches > 1)
        export_note(export,
                    "in the training script: Accelerator(gradient_accumulation_plugin="
                    "GradientAccumulationPlugin(num_steps=%u, sync_each_batch=%s))",
                    plan->schedule.micro_batches, sharded ? "True" : "False");
    if (export_is_fsdp2(plan) && plan->workload.recipe->reduce != plan->workload.recipe->compute)
        export_note(export, "in the training script, or gradients are reduced in bf16: "
                            "FullyShardedDataParallelPlugin(mixed_precision_policy=...) with "
                            "reduce_dtype torch.float32");
    if (plan->gpus > plan->ranks_per_node)
        export_note(export, "machine_rank, main_process_ip and main_process_port are each "
                            "machine's to set");
}

static void note_hints(Export *export)
{
    const Plan *plan = export->plan;
    const Sharding *sharding = &plan->sharding;

    if (sharding->strategy == STRATEGY_NO_SHARD) {
        if (is_ddp(plan) && plan->schedule.recompute == RECOMPUTE_FULL)
            export_note(export, "in the training script: model.gradient_checkpointing_enable()");
        return;
    }
    export_note(export,
                "left to FSDP: sharding.prefetch = %u beyond on or off, live_units = %u, "
                "keep",
                sharding->prefetch, sharding->live_units);
    if (sharding->strategy == STRATEGY_SHARD_GRAD_OP && plan->schedule.micro_batches > 1)
        export_note(export, "shard_grad_op: FSDP gathers in every micro-batch that it reduces, the "
                            "plan once a step");
}

/* Scaled by the largest magnitude of each tensor as it is, as in the plan. */
static void write_float8(Export *export)
{
    const Plan *plan = export->plan;

    if (plan->workload.recipe->precision != DTYPE_FP8)
        return;
    export_note(export, "left to accelerate: of the blocks' matrices the very first stays in bf16");
    g_string_append_printf(export->text,
                           "fp8_config:\n"
                           "  backend: AO\n"
                           "  enable_fsdp_float8_all_gather: %s\n"
                           "  pad_inner_dim: true\n",
                           plan->sharding.gather_fp8 ? "true" : "false");
}

static void write_fsdp1(Export *export, const char *strategy)
{
    const Plan *plan = export->plan;
    const gboolean prefetch = plan->sharding.prefetch > 0;
    const gboolean replicated_zero2 = plan->sharding.strategy == STRATEGY_SHARD_GRAD_OP &&
                                      plan->layout.size[AXIS_DP_REPLICATE] > 1;

    g_string_append_printf(export->text,
                           "  fsdp_backward_prefetch: %s\n"
                           "  fsdp_forward_prefetch: %s\n"
                           "  fsdp_sharding_strategy: %s\n"
                           "  fsdp_sync_module_states: true\n"
                           "  fsdp_use_orig_params: true\n"
                           "  fsdp_version: 1\n",
                           prefetch ? "BACKWARD_PRE" : "NO_PREFETCH", prefetch ? "true" : "false",
                           replicated_zero2 ? "HYBRID_SHARD_ZERO2" : strategy);
}

static void write_fsdp(Export *export, const char *strategy, const char *recompute,
                       const char *block)
{
    const gboolean offloads = sharding_offloads(&export->plan->sharding);
    const gboolean float8 = export->plan->workload.recipe->precision == DTYPE_FP8;

    g_string_append_printf(export->text,
                           "fsdp_config:\n"
                           "  fsdp_activation_checkpointing: %s\n"
                           "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                           "  fsdp_cpu_ram_efficient_loading: %s\n"
                           "  fsdp_offload_params: %s\n"
                           "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
                           "  fsdp_transformer_layer_cls_to_wrap: %s\n",
                           recompute, float8 ? "false" : "true", offloads ? "true" : "false",
                           block);
    if (export->plan->sharding.form == FORM_FLAT)
        write_fsdp1(export, strategy);
    else
        g_string_append_printf(export->text,
                               "  fsdp_reshard_after_forward: %s\n"
                               "  fsdp_version: 2\n",
                               strategy);
}

static void write_top(Export *export, const char *precision)
{
    const Plan *plan = export->plan;

    g_string_append_printf(export->text,
                           "machine_rank: 0\n"
                           "main_training_function: main\n"
                           "mixed_precision: %s\n"
                           "num_machines: %u\n"
                           "num_processes: %u\n"
                           "rdzv_backend: static\n"
                           "same_network: true\n"
                           "use_cpu: %s\n",
                           precision, plan->gpus / plan->ranks_per_node, plan->gpus,
                           plan->device == DEVICE_CPU ? "true" : "false");
}

static void write_mesh(Export *export, const char *context)
{
    const Plan *plan = export->plan;
    const guint *size = plan->layout.size;

    if (!is_split(plan) &&
        (size[AXIS_DP_REPLICATE] == 1 || plan->sharding.form != FORM_PER_PARAMETER))
        return;
    g_string_append_printf(export->text,
                           "parallelism_config:\n"
                           "  parallelism_config_cp_size: %u\n"
                           "  parallelism_config_dp_replicate_size: %u\n"
                           "  parallelism_config_dp_shard_size: %u\n"
                           "  parallelism_config_tp_size: %u\n",
                           size[AXIS_CP], size[AXIS_DP_REPLICATE], size[AXIS_DP_SHARD],
                           size[AXIS_TP]);
    if (size[AXIS_CP] > 1)
        g_string_append_printf(export->text, "  parallelism_config_cp_comm_strategy: %s\n",
                               context);
}

static const char *distributed_type(const Plan *plan)
{
    if (!is_ddp(plan))
        return "FSDP";
    if (plan->gpus == 1)
        return "'NO'";
    return plan->device == DEVICE_CPU ? "MULTI_CPU" : "MULTI_GPU";
}

static gboolean accelerate_write(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const gboolean float8 = plan->workload.recipe->precision == DTYPE_FP8;
    const char *strategy, *precision, *optimizer, *recompute, *block, *context;
    gboolean offloads;

    if ((strategy =
             export_map(export, "sharding.strategy", strategy_name(plan->sharding.strategy),
                        plan->sharding.form == FORM_FLAT ? fsdp1_strategies : fsdp2_strategies,
                        error)) == NULL ||
        (precision = export_map(export, "workload.recipe", plan->workload.recipe->name,
                                float8 ? float8_recipes : recipes, error)) == NULL ||
        (optimizer = export_map(export, "workload.optimizer",
                                optimizer_name(plan->workload.optimizer), optimizers, error)) ==
            NULL ||
        !export_check_recompute(export, "fsdp_activation_checkpointing wraps every block", error) ||
        (recompute = export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                                recomputes, error)) == NULL ||
        (block = export_map(export, "model.model_type", plan->model->model_type, block_classes,
                            error)) == NULL ||
        (context = export_map(export, "context_parallel.kind", context_kind_name(plan->context),
                              contexts, error)) == NULL ||
        !check_machines(export, error) || !check_replicas(export, error) ||
        !check_split(export, error) || !check_float8(export, error) ||
        !export_check_gradients(export, DTYPE_FP32,
                                "FSDP's gradients of fp32 parameters are fp32 once reduced",
                                error) ||
        !check_experts(export, error) || !export_offload_all(export, &offloads, error))
        return FALSE;
    note_script(export, optimizer);
    note_split(export);
    note_hints(export);
    g_string_append_printf(export->text,
                           "compute_environment: LOCAL_MACHINE\n"
                           "debug: false\n"
                           "distributed_type: %s\n"
                           "downcast_bf16: 'no'\n",
                           distributed_type(plan));
    if (!is_ddp(plan)) {
        write_fsdp(export, strategy, recompute, block);
        write_mesh(export, context);
    }
    write_float8(export);
    write_top(export, precision);
    return TRUE;
}

const Exporter exporter_accelerate = {
    .name = "accelerate",
    .comments = TRUE,
    .any_model = TRUE,
    .eighth = TRUE,
    .why_not_axis = {[AXIS_PP] = "its pipeline (PiPPy) is for inference"},
    .write = accelerate_write,
};
