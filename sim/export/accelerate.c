/* Plan -> accelerate's YAML configuration: FSDP1 (flat), FSDP2 (per_parameter), DDP. */
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

/* Made in the training script. */
static const Mapping optimizers[] = {
    {"adamw", "torch.optim.AdamW", NULL},
    {"sgd", "torch.optim.SGD", NULL},
    {NULL, NULL, NULL},
};

static const Mapping recomputes[] = {
    {"none", "false", NULL},
    {"full", "true", NULL},
    {NULL, NULL, NULL},
};

/* The module that becomes a unit, as transformers calls it. */
static const Mapping block_classes[] = {
    {"llama", "LlamaDecoderLayer", NULL},
    {"mistral", "MistralDecoderLayer", NULL},
    {"qwen2", "Qwen2DecoderLayer", NULL},
    {"phi3", "Phi3DecoderLayer", NULL},
    {"starcoder2", "Starcoder2DecoderLayer", NULL},
    {"gpt2", "GPT2Block", NULL},
    {NULL, NULL, NULL},
};

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

/* What belongs into the training script. */
static void note_script(Export *export, const char *optimizer)
{
    const Plan *plan = export->plan;
    const gboolean sharded = plan->sharding.accumulate_sharded;

    export_note(export,
                "in the training script: %s, batches "
                "of %u x %u tokens a process, clip_grad_norm_ at " EXPORT_CLIP_NORM,
                optimizer, plan->schedule.micro_batch, plan->workload.seq_len);
    if (plan->schedule.micro_batches > 1)
        export_note(export,
                    "in the training script: Accelerator(gradient_accumulation_plugin="
                    "GradientAccumulationPlugin(num_steps=%u, sync_each_batch=%s))",
                    plan->schedule.micro_batches, sharded ? "True" : "False");
    if (plan->workload.recipe == &recipe_fsdp2)
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
    g_string_append_printf(export->text,
                           "fsdp_config:\n"
                           "  fsdp_activation_checkpointing: %s\n"
                           "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                           "  fsdp_cpu_ram_efficient_loading: true\n"
                           "  fsdp_offload_params: false\n"
                           "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
                           "  fsdp_transformer_layer_cls_to_wrap: %s\n",
                           recompute, block);
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

static void write_replicas(Export *export)
{
    const guint *size = export->plan->layout.size;

    if (size[AXIS_DP_REPLICATE] > 1 && export->plan->sharding.form == FORM_PER_PARAMETER)
        g_string_append_printf(export->text,
                               "parallelism_config:\n"
                               "  parallelism_config_cp_size: %u\n"
                               "  parallelism_config_dp_replicate_size: %u\n"
                               "  parallelism_config_dp_shard_size: %u\n"
                               "  parallelism_config_tp_size: %u\n",
                               size[AXIS_CP], size[AXIS_DP_REPLICATE], size[AXIS_DP_SHARD],
                               size[AXIS_TP]);
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
    const char *strategy, *precision, *optimizer, *recompute, *block;

    if ((strategy =
             export_map(export, "sharding.strategy", strategy_name(plan->sharding.strategy),
                        plan->sharding.form == FORM_FLAT ? fsdp1_strategies : fsdp2_strategies,
                        error)) == NULL ||
        (precision = export_map(export, "workload.recipe", plan->workload.recipe->name, recipes,
                                error)) == NULL ||
        (optimizer = export_map(export, "workload.optimizer",
                                optimizer_name(plan->workload.optimizer), optimizers, error)) ==
            NULL ||
        (recompute = export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                                recomputes, error)) == NULL ||
        (block = export_map(export, "model.model_type", plan->model->model_type, block_classes,
                            error)) == NULL ||
        !check_machines(export, error) || !check_replicas(export, error))
        return FALSE;
    note_script(export, optimizer);
    note_hints(export);
    g_string_append_printf(export->text,
                           "compute_environment: LOCAL_MACHINE\n"
                           "debug: false\n"
                           "distributed_type: %s\n"
                           "downcast_bf16: 'no'\n",
                           distributed_type(plan));
    if (!is_ddp(plan)) {
        write_fsdp(export, strategy, recompute, block);
        write_replicas(export);
    }
    write_top(export, precision);
    return TRUE;
}

const Exporter exporter_accelerate = {
    .name = "accelerate",
    .comments = TRUE,
    .write = accelerate_write,
};
