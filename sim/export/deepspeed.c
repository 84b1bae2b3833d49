/* Plan -> DeepSpeed's JSON configuration: ZeRO stages, MiCS, AutoEP.  Looked at: DeepSpeed at
 * commit edaa72212672 (runtime/, module_inject/auto_ep_config.py, auto_ep_presets). */
#include "sim/base/json_members.h"
#include "sim/export/exporter.h"

#include <string.h>

/* zero_optimization.stage.  hybrid_shard is stage 3 within groups of mics_shard_size ranks. */
static const Mapping strategies[] = {
    {"no_shard", "0", NULL},   {"shard_optimizer", "1", NULL}, {"shard_grad_op", "2", NULL},
    {"full_shard", "3", NULL}, {"hybrid_shard", "3", NULL},    {NULL, NULL, NULL},
};
/* Stages 1 and 2 shard over all data-parallel ranks. */
static const Mapping replicated_strategies[] = {
    {"no_shard", "0", NULL},
    {"shard_optimizer", NULL, "ZeRO-1 has no replicas (layout.dp_replicate must be 1)"},
    {"shard_grad_op", NULL, "ZeRO-2 has no replicas (layout.dp_replicate must be 1)"},
    {"hybrid_shard", "3", NULL},
    {NULL, NULL, NULL},
};

/* bf16.enabled or fp16.enabled; with them DeepSpeed keeps an fp32 master. */
static const Mapping recipes[] = {
    {"zero", "true", NULL},
    {"megatron", "true", NULL},
    {"fsdp2", NULL, "its bf16 keeps bf16 parameters with an fp32 copy beside them (recipe zero)"},
    {"fp32", "false", NULL},
    {NULL, NULL, NULL},
};

static const Mapping optimizers[] = {
    {"adamw", "AdamW", NULL},
    {"sgd", "SGD", NULL},
    {NULL, NULL, NULL},
};

static const Mapping recomputes[] = {
    {"none", "false", NULL},
    {"selective", NULL, "what is checkpointed is up to the model's code, block by block"},
    {"full", "true", NULL},
    {NULL, NULL, NULL},
};

/* expert_parallel.preset_model: where AutoEP finds experts and router. */
static const Mapping presets[] = {
    {"mixtral", "mixtral", NULL},
    {"qwen3_moe", "qwen3_moe", NULL},
    {"deepseek_v2", "deepseek_v2", NULL},
    {"deepseek_v3", "deepseek_v3", NULL},
    {NULL, NULL, NULL},
};

/* Of the largest block, with the experts that a rank holds. */
static guint64 block_elements(const Plan *plan)
{
    const Model *model = plan->model;
    guint64 largest = 0;

    for (guint k = 0; k < model_num_kinds(model); k++) {
        const Model one = model_of_kind(model, k);
        const guint64 elements =
            model_kind_is_sparse(model, k)
                ? model_unit_elements(&one, UNIT_SPARSE) +
                      model_unit_elements(&one, UNIT_EXPERTS) / layout_ep(&plan->layout)
                : model_unit_elements(&one, UNIT_BLOCK);

        if (model_has_kind(model, k))
            largest = MAX(largest, elements);
    }
    return largest;
}

/* Of the root, what is used behind the blocks. */
static guint64 end_elements(const Model *model)
{
    g_autoptr(GArray) params = model_unit_params(model, UNIT_ROOT);
    guint64 elements = 0;

    for (guint i = 0; i < params->len; i++) {
        const ParamShape *param = &g_array_index(params, ParamShape, i);

        if ((param->role >= PARAM_PROJECT_OUT && param->role <= PARAM_HEAD_BIAS) ||
            (param->role == PARAM_EMBEDDING && model->tied))
            elements += param->rows * param->cols;
    }
    return elements;
}

/* How many elements may come before a parameter's next use for it to stay gathered.  Between the
 * last block's forward and backward lie the final norm and the head, twice; between the forward and
 * backward of a recomputed block that block, twice. */
static guint64 reuse_distance(const Plan *plan, guint64 block)
{
    const guint64 end = end_elements(plan->model);
    const guint64 kept =
        (plan->sharding.keep_root ? 2 * end : 0) + (plan->sharding.keep_last ? 2 * block : 0);

    return plan->schedule.recompute == RECOMPUTE_FULL ? MAX(kept, 2 * block) : kept;
}

/* Sizes are in elements; with the plan's units as buckets its buffers are DeepSpeed's. */
static void add_stage3(JsonBuilder *json, const Plan *plan, guint64 block)
{
    json_member_uint(json, "stage3_prefetch_bucket_size", plan->sharding.prefetch * block);
    /* Every parameter is sharded, small ones too. */
    json_member_uint(json, "stage3_param_persistence_threshold", 0);
    json_member_uint(json, "stage3_max_live_parameters",
                     plan->sharding.live_units * block +
                         model_unit_elements(plan->model, UNIT_ROOT));
    json_member_uint(json, "stage3_max_reuse_distance", reuse_distance(plan, block));
    if (plan->sharding.strategy == STRATEGY_HYBRID_SHARD)
        json_member_uint(json, "mics_shard_size", plan->layout.size[AXIS_DP_SHARD]);
}

/* offload_optimizer.device, offload_param.device. */
static const Mapping tiers[] = {
    {"device", "none", NULL}, {"host", "cpu", NULL},
    {"nvme", "nvme", NULL},   {"cxl", NULL, "it offloads to the host and to NVMe disks"},
    {NULL, NULL, NULL},
};

static gboolean check_offload(Export *export, guint64 stage, GError **error)
{
    const Offload *offload = &export->plan->sharding.offload;
    const char *optimizer = tier_name(offload->optimizer);
    const char *parameters = tier_name(offload->parameters);

    if (!sharding_offloads(&export->plan->sharding))
        return TRUE;
    if (export_map(export, "offload.optimizer", optimizer, tiers, error) == NULL ||
        export_map(export, "offload.parameters", parameters, tiers, error) == NULL)
        return FALSE;
    if (stage == 0)
        return export_refuse(export, "offload.optimizer", optimizer,
                             "offload_optimizer needs ZeRO, so strategies that shard", error);
    if (export->plan->sharding.strategy == STRATEGY_HYBRID_SHARD)
        return export_refuse(export, "offload.optimizer", optimizer, "MiCS has no offload", error);
    if (stage != 3 && offload->parameters != TIER_DEVICE)
        return export_refuse(export, "offload.parameters", parameters,
                             "offload_param is of stage 3 (full_shard)", error);
    export_note_offload(export);
    if (offload->optimizer == TIER_NVME || offload->parameters == TIER_NVME)
        export_note(export, "nvme_path is yours to set");
    return TRUE;
}

/* Nothing is said of what stays on the device. */
static void add_tier(JsonBuilder *json, const char *name, Tier tier)
{
    if (tier == TIER_DEVICE)
        return;
    json_member_object(json, name);
    json_member_string(json, "device", tier == TIER_NVME ? "nvme" : "cpu");
    if (tier == TIER_NVME)
        json_member_string(json, "nvme_path", "/local_nvme");
    json_member_bool(json, "pin_memory", TRUE);
    json_builder_end_object(json);
}

static void add_zero(JsonBuilder *json, const Plan *plan, guint64 stage)
{
    const guint64 block = block_elements(plan);

    json_member_object(json, "zero_optimization");
    json_member_uint(json, "stage", stage);
    if (stage != 0) {
        json_member_bool(json, "overlap_comm", TRUE);
        json_member_bool(json, "contiguous_gradients", TRUE);
        json_member_uint(json, "reduce_bucket_size", block);
    }
    if (stage == 1 || stage == 2) {
        json_member_bool(json, "allgather_partitions", TRUE);
        json_member_bool(json, "reduce_scatter", TRUE);
        json_member_uint(json, "allgather_bucket_size", block);
    }
    if (stage == 3)
        add_stage3(json, plan, block);
    add_tier(json, "offload_optimizer", plan->sharding.offload.optimizer);
    add_tier(json, "offload_param", plan->sharding.offload.parameters);
    json_builder_end_object(json);
}

static void add_precision(JsonBuilder *json, const Plan *plan, const char *bf16)
{
    const Recipe *recipe = plan->workload.recipe;

    json_member_object(json, recipe->precision == DTYPE_FP16 ? "fp16" : "bf16");
    json_member_bool(json, "enabled", g_str_equal(bf16, "true"));
    json_builder_end_object(json);
    /* Said, as the default of the first has changed between versions. */
    json_member_object(json, "data_types");
    json_member_string(json, "grad_accum_dtype", dtype_name(recipe->gradient));
    json_builder_end_object(json);
    json_member_string(json, "communication_data_type", dtype_name(recipe->reduce));
}

static void add_optimizer(JsonBuilder *json, const char *type, gboolean sharded)
{
    json_member_object(json, "optimizer");
    json_member_string(json, "type", type);
    json_member_object(json, "params");
    json_member_string(json, "lr", "auto");
    json_member_string(json, "weight_decay", "auto");
    json_builder_end_object(json);
    json_builder_end_object(json);
    if (sharded && !g_str_equal(type, "AdamW"))
        json_member_bool(json, "zero_allow_untested_optimizer", TRUE);
}

static void note_hints(Export *export, guint64 stage)
{
    const Sharding *sharding = &export->plan->sharding;

    export_note(export, "learning rate and weight decay are \"auto\": accelerate and transformers "
                        "fill them in, deepspeed alone wants numbers");
    if (export->plan->schedule.recompute == RECOMPUTE_FULL)
        export_note(export, "recompute = full: the model has to checkpoint its blocks "
                            "(gradient_checkpointing_enable() in transformers)");
    if (export->plan->workload.recipe->precision == DTYPE_FP16)
        export_note(export, "fp16: its loss scale is dynamic");
    if (stage != 0)
        export_note(export, "left to DeepSpeed: sharding.form = %s (ZeRO cuts flat pieces)",
                    form_name(sharding->form));
    if (stage == 2)
        export_note(export, "shard_grad_op: ZeRO-2 keeps whole parameters between steps, the plan "
                            "shards of them");
    if (stage == 3)
        export_note(export, "left to DeepSpeed: the embedding is gathered again for the backward "
                            "pass even where the plan keeps root");
    if (sharding->strategy == STRATEGY_HYBRID_SHARD)
        export_note(export, "hybrid_shard: build the model under deepspeed.zero.MiCS_Init()");
}

/* AutoEP's experts: groups of neighbouring ranks, as in a plan. */
static gboolean check_experts(Export *export, const char **preset, GError **error)
{
    const Plan *plan = export->plan;
    const guint ep = layout_ep(&plan->layout);

    *preset = NULL;
    if (ep == 1)
        return TRUE;
    if (plan->sharding.strategy == STRATEGY_HYBRID_SHARD)
        return export_refuse_uint(export, "layout.ep", ep, "its AutoEP does not go with MiCS",
                                  error);
    if (strcmp(plan->model->model_type, "deepseek_v3") == 0)
        export_note(export, "left to DeepSpeed: its AutoEP updates no bias of the router");
    return (*preset = export_map(export, "model.model_type", plan->model->model_type, presets,
                                 error)) != NULL;
}

static void add_experts(JsonBuilder *json, const Plan *plan, const char *preset)
{
    if (preset == NULL)
        return;
    json_member_object(json, "expert_parallel");
    json_member_bool(json, "enabled", TRUE);
    json_member_uint(json, "autoep_size", layout_ep(&plan->layout));
    json_member_string(json, "preset_model", preset);
    json_builder_end_object(json);
}

static gboolean check_keep(const Export *export, guint64 stage, GError **error)
{
    const Sharding *sharding = &export->plan->sharding;

    if (stage != 3 || sharding->keep_root || !sharding->keep_last)
        return TRUE;
    return export_refuse(export, "sharding.keep", "[last]",
                         "stage3_max_reuse_distance keeps the head, which is used in between, too",
                         error);
}

static void write_json(Export *export, JsonBuilder *json)
{
    g_autoptr(JsonNode) root = json_builder_get_root(json);
    g_autofree char *text = json_node_text(root, TRUE);

    g_string_append_printf(export->text, "%s\n", text);
}

static gboolean deepspeed_write(Export *export, GError **error)
{
    const Plan *plan = export->plan;
    const gboolean replicated = plan->layout.size[AXIS_DP_REPLICATE] > 1;
    const char *stage_text, *bf16, *optimizer, *recompute, *preset;
    g_autoptr(JsonBuilder) json = json_builder_new();

    if ((stage_text =
             export_map(export, "sharding.strategy", strategy_name(plan->sharding.strategy),
                        replicated ? replicated_strategies : strategies, error)) == NULL ||
        (bf16 = export_map(export, "workload.recipe", plan->workload.recipe->name, recipes,
                           error)) == NULL ||
        (optimizer = export_map(export, "workload.optimizer",
                                optimizer_name(plan->workload.optimizer), optimizers, error)) ==
            NULL ||
        !export_check_recompute(
            export, "which layers are checkpointed is the model's code, not its configuration",
            error) ||
        (recompute = export_map(export, "recompute", recompute_name(plan->schedule.recompute),
                                recomputes, error)) == NULL)
        return FALSE;
    const guint64 stage = g_ascii_strtoull(stage_text, NULL, 10);
    if (!export_check_accumulate(export, stage >= 2, error) || !check_keep(export, stage, error) ||
        !check_offload(export, stage, error) || !check_experts(export, &preset, error))
        return FALSE;
    note_hints(export, stage);
    json_builder_begin_object(json);
    json_member_uint(json, "train_batch_size", plan->workload.global_batch);
    json_member_uint(json, "train_micro_batch_size_per_gpu", plan->schedule.micro_batch);
    json_member_uint(json, "gradient_accumulation_steps", plan->schedule.micro_batches);
    json_member_number(json, "gradient_clipping", DEFAULT_CLIP_NORM);
    add_precision(json, plan, bf16);
    add_optimizer(json, optimizer, stage != 0);
    add_zero(json, plan, stage);
    add_experts(json, plan, preset);
    if (g_str_equal(recompute, "true")) {
        json_member_object(json, "activation_checkpointing");
        json_member_bool(json, "partition_activations", FALSE);
        json_builder_end_object(json);
    }
    json_builder_end_object(json);
    write_json(export, json);
    return TRUE;
}

const Exporter exporter_deepspeed = {
    .name = "deepspeed",
    .comments = FALSE,
    .any_model = TRUE,
    .half = TRUE,
    .why_not_axis =
        {
            [AXIS_PP] = "its pipeline is a model's code (PipelineModule), not configuration",
            [AXIS_CP] = "its sequence parallelism (Ulysses) moves heads, not keys and values",
            [AXIS_TP] = "what its AutoTP splits is decided by the model's code",
        },
    .write = deepspeed_write,
};
