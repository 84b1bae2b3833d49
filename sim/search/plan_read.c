/* JSON -> plan: strict, every field checked, nothing filled in silently. */
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/base/text_file.h"
#include "sim/cost/framework.h"
#include "sim/search/plan.h"

#include <string.h>

static gboolean bad_name(const JsonText *json, const char *field, const char *value,
                         const char *allowed, GError **error)
{
    return fail(error, ERROR_INPUT, "%s: field \"%s\" = \"%s\": must be %s", json_source(json),
                field, value, allowed);
}

static gboolean read_format(const JsonText *json, GError **error)
{
    const char *format;
    guint version;

    if (!json_string(json, "format", &format, error) ||
        !json_uint32(json, "version", 1, G_MAXUINT, &version, error))
        return FALSE;
    if (strcmp(format, "fsdp-plan") != 0)
        return bad_name(json, "format", format, "\"fsdp-plan\"", error);
    if (version != 1)
        return fail(error, ERROR_INPUT, "%s: field \"version\" = %u: this program reads version 1",
                    json_source(json), version);
    return TRUE;
}

/* A field that has one value so far, or that others decide. */
static gboolean read_only_value(const JsonText *json, const char *field, const char *only,
                                GError **error)
{
    const char *value;

    if (!json_string(json, field, &value, error))
        return FALSE;
    return strcmp(value, only) == 0 || bad_name(json, field, value, only, error);
}

/* Whether it fits, and why not. */
static gboolean read_reasons(Plan *plan, const JsonText *json, GError **error)
{
    gboolean feasible;
    guint length;

    if (!json_bool(json, "feasible", &feasible, error) ||
        !json_length(json, "reasons", &length, error))
        return FALSE;
    if (feasible != (length == 0))
        return fail(error, ERROR_INPUT, "%s: field \"feasible\" = %s: \"reasons\" has %u entries",
                    json_source(json), feasible ? "true" : "false", length);
    for (guint i = 0; i < length; i++) {
        g_autofree char *field = g_strdup_printf("reasons.%u", i);
        const char *reason;

        if (!json_string(json, field, &reason, error))
            return FALSE;
        g_ptr_array_add(plan->reasons, g_strdup(reason));
    }
    return TRUE;
}

static gboolean read_inputs(Plan *plan, const JsonText *json, GError **error)
{
    const char *name, *topology;
    guint64 parameters;
    g_autofree char *config = json_object_text(json, "model.config", error);
    g_autofree char *config_source = g_strdup_printf("%s: model.config", json_source(json));
    g_autofree char *topology_source = g_strdup_printf("%s: topology.file", json_source(json));

    if (config == NULL || !json_string(json, "model.name", &name, error))
        return FALSE;
    plan->model = model_parse(config, config_source, name, error);
    if (plan->model == NULL || !model_check_plannable(plan->model, error))
        return FALSE;
    const guint64 psi = model_parameters(plan->model);
    if (!json_uint(json, "model.parameters", psi, psi, &parameters, error) ||
        !json_string(json, "topology.file", &topology, error))
        return FALSE;
    plan->topology = topology_parse(topology, topology_source, "", error);
    return plan->topology != NULL &&
           read_only_value(json, "topology.name", plan->topology->name, error) &&
           json_uint32(json, "topology.gpus", 1, 1u << 24, &plan->gpus, error);
}

/* Absent: fsdp-run. */
static gboolean read_framework(Plan *plan, const JsonText *json, GError **error)
{
    const char *name = NULL;

    if (!json_optional_string(json, "target.framework", &name, error))
        return FALSE;
    if (name == NULL)
        return TRUE;
    plan->framework = framework_from_name(name);
    if (plan->framework != NULL)
        return TRUE;
    g_autofree char *names = framework_names();
    return bad_name(json, "target.framework", name, names, error);
}

static gboolean read_target(Plan *plan, const JsonText *json, GError **error)
{
    const char *device;

    if (!json_string(json, "target.device", &device, error) ||
        !json_uint32(json, "target.ranks_per_node", 1, 1u << 20, &plan->ranks_per_node, error) ||
        !json_uint32(json, "target.threads", 1, 1024, &plan->threads, error))
        return FALSE;
    plan->device = plan->topology->gpu.kind;
    if (strcmp(device, device_kind_name(plan->device)) != 0)
        return fail(error, ERROR_INPUT,
                    "%s: field \"target.device\" = \"%s\": its topology's is \"%s\"",
                    json_source(json), device, device_kind_name(plan->device));
    return read_framework(plan, json, error);
}

static gboolean read_imbalance(Plan *plan, const JsonText *json, GError **error)
{
    const Experts *experts = &plan->model->experts;
    const double most = workload_most_imbalance(experts->count, experts->top_k);

    return json_optional_double(json, "workload.expert_imbalance", 1, most,
                                &plan->workload.expert_imbalance, error);
}

static gboolean read_workload(Plan *plan, const JsonText *json, GError **error)
{
    Workload *workload = &plan->workload;
    const char *precision_text, *recipe, *optimizer;
    DType precision;

    if (!json_uint32(json, "workload.global_batch", 1, 1u << 30, &workload->global_batch, error) ||
        !json_uint32(json, "workload.seq_len", 1, 1u << 28, &workload->seq_len, error) ||
        !json_string(json, "workload.precision", &precision_text, error) ||
        !json_string(json, "workload.recipe", &recipe, error) ||
        !json_string(json, "workload.optimizer", &optimizer, error))
        return FALSE;
    workload->recipe = recipe_from_name(recipe);
    if (workload->recipe == NULL)
        return bad_name(json, "workload.recipe", recipe, RECIPE_NAMES, error);
    if (!precision_from_name(precision_text, &precision))
        return bad_name(json, "workload.precision", precision_text, PRECISION_NAMES, error);
    workload->recipe = recipe_with_precision(workload->recipe, precision);
    if (workload->recipe == NULL)
        return fail(error, ERROR_INPUT,
                    "%s: field \"workload.precision\" = \"%s\": recipe %s has no such precision",
                    json_source(json), precision_text, recipe);
    if (!optimizer_from_name(optimizer, &workload->optimizer))
        return bad_name(json, "workload.optimizer", optimizer, OPTIMIZER_NAMES, error);
    return read_imbalance(plan, json, error);
}

static gboolean read_layout(Plan *plan, const JsonText *json, GError **error)
{
    const char *context;
    guint64 world = 1;

    for (guint a = 0; a < NUM_AXES; a++) {
        g_autofree char *field = g_strdup_printf("layout.%s", axis_name((Axis)a));

        if (!json_uint32(json, field, 1, 1u << 20, &plan->layout.size[a], error))
            return FALSE;
        world = MIN(world * plan->layout.size[a], G_MAXUINT); /* axes alone may overflow it */
    }
    if (world != plan->gpus)
        return fail(error, ERROR_INPUT,
                    "%s: field \"topology.gpus\" = %u: the layout has %" G_GUINT64_FORMAT " ranks",
                    json_source(json), plan->gpus, world);
    if (!json_optional_uint32(json, "layout.ep", 1, 1u << 20, &plan->layout.ep, error) ||
        !json_bool(json, "tensor_parallel.sequence", &plan->sequence_parallel, error) ||
        !json_string(json, "context_parallel.kind", &context, error))
        return FALSE;
    if (!context_kind_from_name(context, &plan->context))
        return bad_name(json, "context_parallel.kind", context, "ring or all_gather", error);
    return TRUE;
}

static gboolean read_keep(Sharding *sharding, const JsonText *json, GError **error)
{
    guint length;

    if (!json_length(json, "sharding.keep", &length, error))
        return FALSE;
    for (guint i = 0; i < length; i++) {
        g_autofree char *field = g_strdup_printf("sharding.keep.%u", i);
        const char *name;

        if (!json_string(json, field, &name, error))
            return FALSE;
        if (strcmp(name, "root") == 0)
            sharding->keep_root = TRUE;
        else if (strcmp(name, "last") == 0)
            sharding->keep_last = TRUE;
        else
            return bad_name(json, field, name, "root or last", error);
    }
    return TRUE;
}

static gboolean read_override(Sharding *sharding, const JsonText *json, guint i, GError **error)
{
    UnitOverride *unit = &sharding->overrides[i];
    g_autofree char *unit_field = g_strdup_printf("sharding.units.%u.unit", i);
    g_autofree char *strategy_field = g_strdup_printf("sharding.units.%u.strategy", i);
    g_autofree char *keep_field = g_strdup_printf("sharding.units.%u.keep", i);
    const char *range, *strategy = NULL;
    gboolean keep = FALSE;
    Strategy value;

    if (!json_string(json, unit_field, &range, error) ||
        !json_optional_string(json, strategy_field, &strategy, error) ||
        !json_optional_bool(json, keep_field, &keep, error))
        return FALSE;
    if (!unit_override_parse(range, unit))
        return bad_name(json, unit_field, range, UNIT_TEXTS, error);
    if (strategy != NULL && !strategy_from_name(strategy, &value))
        return bad_name(json, strategy_field, strategy,
                        "no_shard, shard_optimizer, shard_grad_op or full_shard", error);
    unit->strategy = strategy == NULL ? -1 : (gint)value;
    unit->keep = json_has(json, keep_field) ? keep : -1;
    return TRUE;
}

static gboolean read_sharding(Plan *plan, const JsonText *json, GError **error)
{
    Sharding *sharding = &plan->sharding;
    const char *strategy, *form, *accumulate;

    if (!json_string(json, "sharding.strategy", &strategy, error) ||
        !json_string(json, "sharding.form", &form, error) ||
        !json_uint32(json, "sharding.prefetch", 0, 1024, &sharding->prefetch, error) ||
        !json_uint32(json, "sharding.live_units", 1, 1024, &sharding->live_units, error) ||
        !json_string(json, "sharding.accumulate", &accumulate, error) ||
        !read_keep(sharding, json, error) ||
        !json_length(json, "sharding.units", &sharding->num_overrides, error))
        return FALSE;
    if (!strategy_from_name(strategy, &sharding->strategy))
        return bad_name(json, "sharding.strategy", strategy,
                        "no_shard, shard_optimizer, shard_grad_op, full_shard or hybrid_shard",
                        error);
    if (!form_from_name(form, &sharding->form))
        return bad_name(json, "sharding.form", form, "per_parameter or flat", error);
    sharding->accumulate_sharded = strcmp(accumulate, "sharded") == 0;
    if (!sharding->accumulate_sharded && strcmp(accumulate, "unsharded") != 0)
        return bad_name(json, "sharding.accumulate", accumulate, "sharded or unsharded", error);
    if (sharding->num_overrides > MAX_UNIT_OVERRIDES)
        return fail(error, ERROR_INPUT, "%s: field \"sharding.units\": at most %d entries",
                    json_source(json), MAX_UNIT_OVERRIDES);
    for (guint i = 0; i < sharding->num_overrides; i++)
        if (!read_override(sharding, json, i, error))
            return FALSE;
    return TRUE;
}

/* [first, last] of chunk @c, which starts with block @next. */
static gboolean read_chunk(Plan *plan, const JsonText *json, guint c, guint next, GError **error)
{
    g_autofree char *field = g_strdup_printf("schedule.stages.%u", c);
    g_autofree char *first_field = g_strdup_printf("%s.0", field);
    g_autofree char *last_field = g_strdup_printf("%s.1", field);
    const guint final = plan->model->layers - 1;
    guint length, first, last;

    if (!json_length(json, field, &length, error) ||
        !json_uint32(json, first_field, next, next, &first, error) ||
        !json_uint32(json, last_field, MIN(next, final), final, &last, error))
        return FALSE;
    if (length != 2)
        return fail(error, ERROR_INPUT,
                    "%s: field \"%s\": %u entries; a chunk is [first block, last block]",
                    json_source(json), field, length);
    plan->chunk_layers[c] = (guint16)(last + 1 - first);
    return TRUE;
}

/* Chunks follow each other without a gap; those of the balanced partition are not stored. */
static gboolean read_stages(Plan *plan, const JsonText *json, GError **error)
{
    const guint pp = plan->layout.size[AXIS_PP];
    gboolean balanced = TRUE;
    guint length, next = 0;

    if (!json_length(json, "schedule.stages", &length, error))
        return FALSE;
    if (length != schedule_chunks(&plan->schedule, pp))
        return fail(error, ERROR_INPUT,
                    "%s: field \"schedule.stages\": %u entries; pp x virtual_stages is %u",
                    json_source(json), length, schedule_chunks(&plan->schedule, pp));
    plan->chunk_layers = g_new0(guint16, length);
    for (guint c = 0; c < length; c++) {
        const LayerRange even = schedule_chunk(&plan->schedule, plan->model->layers, pp, c);

        if (!read_chunk(plan, json, c, next, error))
            return FALSE;
        balanced &= plan->chunk_layers[c] == even.count;
        next += plan->chunk_layers[c];
    }
    if (balanced)
        g_clear_pointer(&plan->chunk_layers, g_free);
    plan->schedule.chunk_layers = plan->chunk_layers;
    return TRUE;
}

static gboolean read_gather(Plan *plan, const JsonText *json, GError **error)
{
    static const char field[] = "sharding.gather_dtype";
    const char *compute = dtype_name(plan->workload.recipe->compute), *gather;

    if (!json_string(json, field, &gather, error))
        return FALSE;
    plan->sharding.gather_fp8 = strcmp(gather, dtype_name(DTYPE_FP8)) == 0;
    if (!plan->sharding.gather_fp8 && strcmp(gather, compute) != 0)
        return fail(error, ERROR_INPUT, "%s: field \"%s\" = \"%s\": must be %s or fp8",
                    json_source(json), field, gather, compute);
    return TRUE;
}

static gboolean read_gradient(Plan *plan, const JsonText *json, const char *field, DType *dtype,
                              GError **error)
{
    const Recipe *recipe = plan->workload.recipe;
    const char *name;

    if (!json_string(json, field, &name, error))
        return FALSE;
    return (dtype_from_name(name, dtype) &&
            recipe_with_gradients(recipe, *dtype, *dtype) != NULL) ||
           bad_name(json, field, name, recipe_gradient_names(recipe), error);
}

/* They belong to the recipe; a plan has them where they are used. */
static gboolean read_gradients(Plan *plan, const JsonText *json, GError **error)
{
    DType gradient, reduce;

    if (!read_gradient(plan, json, "sharding.gradient_dtype", &gradient, error) ||
        !read_gradient(plan, json, "sharding.reduce_dtype", &reduce, error))
        return FALSE;
    plan->workload.recipe = recipe_with_gradients(plan->workload.recipe, gradient, reduce);
    return TRUE;
}

static gboolean read_tier(const Plan *plan, const JsonText *json, const char *field, Tier *tier,
                          GError **error)
{
    MemoryTier memory;
    const char *name;

    if (!json_string(json, field, &name, error))
        return FALSE;
    if (!tier_from_name(name, tier))
        return bad_name(json, field, name, TIER_NAMES, error);
    return *tier == TIER_DEVICE || topology_memory(plan->topology, *tier, &memory) ||
           fail(error, ERROR_INPUT, "%s: field \"%s\" = \"%s\": topology %s states none",
                json_source(json), field, name, plan->topology->name);
}

static gboolean read_offload(Plan *plan, const JsonText *json, GError **error)
{
    Offload *offload = &plan->sharding.offload;

    return read_tier(plan, json, "offload.optimizer", &offload->optimizer, error) &&
           read_tier(plan, json, "offload.parameters", &offload->parameters, error);
}

static gboolean read_arenas(Plan *plan, const JsonText *json, GError **error)
{
    for (guint t = 0; t < NUM_TIERS; t++) {
        g_autofree char *field = g_strdup_printf("program.arena_bytes.%s", tier_name((Tier)t));

        if (!json_uint(json, field, 0, G_MAXINT64, &plan->arena_bytes[t], error))
            return FALSE;
    }
    return TRUE;
}

/* Of the first layers of each stage's chunks. */
static gboolean read_recompute_layers(Plan *plan, const JsonText *json, Recompute recompute,
                                      GError **error)
{
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree guint16 *layers = g_new(guint16, pp);
    guint length, count;

    if (!json_length(json, "recompute.layers", &length, error))
        return FALSE;
    if (length != pp)
        return fail(error, ERROR_INPUT, "%s: field \"recompute.layers\": %u entries; pp is %u",
                    json_source(json), length, pp);
    for (guint s = 0; s < pp; s++) {
        g_autofree char *field = g_strdup_printf("recompute.layers.%u", s);
        const guint most = schedule_most_layers(&plan->schedule, plan->model->layers, pp, s);

        if (!json_uint32(json, field, 0, most, &count, error))
            return FALSE;
        layers[s] = (guint16)count;
    }
    plan_set_recompute(plan, recompute, layers, pp);
    return TRUE;
}

/* Of all layers, or {"kind": "full", "layers": [4, 2, 0, 0]}. */
static gboolean read_recompute(Plan *plan, const JsonText *json, GError **error)
{
    const gboolean by_stage = json_has(json, "recompute.kind");
    const char *field = by_stage ? "recompute.kind" : "recompute", *name;
    Recompute recompute;

    if (!json_string(json, field, &name, error))
        return FALSE;
    if (!recompute_from_name(name, &recompute))
        return bad_name(json, field, name, "none, selective or full", error);
    plan->schedule.recompute = recompute;
    return !by_stage || read_recompute_layers(plan, json, recompute, error);
}

static gboolean read_schedule(Plan *plan, const JsonText *json, GError **error)
{
    Schedule *schedule = &plan->schedule;
    const char *name, *hash;

    if (!json_string(json, "schedule.name", &name, error) ||
        !json_uint32(json, "schedule.virtual_stages", 1, MAX_CHUNKS, &schedule->virtual_stages,
                     error) ||
        !json_uint32(json, "schedule.micro_batch", 1, 1u << 30, &schedule->micro_batch, error) ||
        !json_uint32(json, "schedule.micro_batches", 1, 1u << 30, &schedule->micro_batches,
                     error) ||
        !json_string(json, "program.hash", &hash, error) ||
        !json_uint(json, "program.ops", 0, G_MAXINT64, &plan->ops, error) ||
        !read_arenas(plan, json, error))
        return FALSE;
    if (!schedule_from_name(name, &schedule->kind))
        return bad_name(json, "schedule.name", name, "gpipe, 1f1b, interleaved or zb_h1", error);
    if (plan->layout.size[AXIS_PP] > MAX_CHUNKS / schedule->virtual_stages)
        return fail(error, ERROR_INPUT,
                    "%s: field \"schedule.virtual_stages\" = %u: with pp = %u at most %u",
                    json_source(json), schedule->virtual_stages, plan->layout.size[AXIS_PP],
                    MAX_CHUNKS / plan->layout.size[AXIS_PP]);
    plan->hash = g_strdup(hash);
    return TRUE;
}

static gboolean read_op_classes(const JsonText *json, const char *at,
                                double seconds[NUM_OP_CLASSES], GError **error)
{
    for (guint t = 0; t < NUM_OP_CLASSES; t++) {
        g_autofree char *field = g_strdup_printf("%s.%s", at, op_class_name((OpClass)t));

        if (!json_double(json, field, 0, G_MAXDOUBLE, &seconds[t], error))
            return FALSE;
    }
    return TRUE;
}

static gboolean read_communication_seconds(const JsonText *json, const char *at,
                                           double seconds[NUM_VOLUMES], GError **error)
{
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        g_autofree char *field =
            g_strdup_printf("%s.communication_seconds.%s", at, volume_name((Volume)v));

        if (!json_double(json, field, 0, G_MAXDOUBLE, &seconds[v], error))
            return FALSE;
    }
    return TRUE;
}

static gboolean read_stage_times(Plan *plan, const JsonText *json, GError **error)
{
    guint length;

    if (!json_length(json, "prediction.stages", &length, error))
        return FALSE;
    if (length != plan->layout.size[AXIS_PP])
        return fail(error, ERROR_INPUT, "%s: field \"prediction.stages\": %u entries; pp is %u",
                    json_source(json), length, plan->layout.size[AXIS_PP]);
    g_array_set_size(plan->stages, length);
    for (guint s = 0; s < length; s++) {
        g_autofree char *at = g_strdup_printf("prediction.stages.%u", s);

        StageTime *stage = &g_array_index(plan->stages, StageTime, s);

        if (!read_op_classes(json, at, stage->time_seconds, error) ||
            !read_communication_seconds(json, at, stage->communication_seconds, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean read_terms(Prediction *prediction, const JsonText *json, GError **error)
{
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++) {
        g_autofree char *field =
            g_strdup_printf("prediction.memory_bytes.%s", memory_term_name((MemoryTerm)t));

        if (!json_uint(json, field, 0, G_MAXINT64, &prediction->memory_bytes[t], error))
            return FALSE;
    }
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        g_autofree char *field =
            g_strdup_printf("prediction.communication_bytes.%s", volume_name((Volume)v));

        if (!json_uint(json, field, 0, G_MAXINT64, &prediction->communication_bytes[v], error))
            return FALSE;
    }
    return read_op_classes(json, "prediction.time_seconds", prediction->time_seconds, error) &&
           read_communication_seconds(json, "prediction", prediction->communication_seconds, error);
}

static gboolean read_prediction(Plan *plan, const JsonText *json, GError **error)
{
    Prediction *p = &plan->prediction;
    const struct {
        const char *field;
        double *value;
    } numbers[] = {
        {"prediction.step_seconds", &p->step_seconds},
        {"prediction.tokens_per_second", &p->tokens_per_second},
        {"prediction.tokens_per_second_per_gpu", &p->tokens_per_second_per_gpu},
        {"prediction.model_tflops_per_gpu", &p->model_tflops_per_gpu},
        {"prediction.mfu", &p->mfu},
        {"prediction.exposed_communication_seconds", &p->exposed_communication_seconds},
        {"prediction.bubble_fraction", &p->bubble_fraction},
    };
    const char *moment;

    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++)
        if (!json_double(json, numbers[i].field, 0, G_MAXDOUBLE, numbers[i].value, error))
            return FALSE;
    if (!json_uint32(json, "prediction.rank", 0, plan->gpus - 1, &p->rank, error) ||
        !json_uint(json, "prediction.memory_bytes.total", 0, G_MAXINT64, &p->memory_total, error) ||
        !json_uint(json, "prediction.memory_limit_bytes", 0, G_MAXINT64, &p->memory_limit, error) ||
        !json_string(json, "prediction.memory_peak_at", &moment, error))
        return FALSE;
    g_strlcpy(p->moment, moment, sizeof p->moment);
    return read_terms(p, json, error) && read_stage_times(plan, json, error);
}

static gboolean check_legal(const Plan *plan, const JsonText *json, GError **error)
{
    const Choice choice = plan_choice(plan);
    g_autofree char *reason = NULL;

    if (legality_check(&choice, &reason) != VERDICT_OK)
        return fail(error, ERROR_INPUT, "%s: %s", json_source(json), reason);
    return TRUE;
}

Plan *plan_parse(const char *text, const char *source, GError **error)
{
    g_autoptr(JsonText) json = json_parse(text, source, error);
    g_autoptr(Plan) plan = plan_new();

    if (json == NULL || !read_format(json, error) || !read_reasons(plan, json, error) ||
        !read_inputs(plan, json, error) || !read_target(plan, json, error) ||
        !read_workload(plan, json, error) || !read_layout(plan, json, error) ||
        !read_sharding(plan, json, error) || !read_schedule(plan, json, error) ||
        !read_stages(plan, json, error) || !read_recompute(plan, json, error) ||
        !read_gather(plan, json, error) || !read_offload(plan, json, error) ||
        !read_gradients(plan, json, error) || !read_prediction(plan, json, error) ||
        !check_legal(plan, json, error))
        return NULL;
    plan->source = g_strdup(source);
    return g_steal_pointer(&plan);
}

Plan *plan_load(const char *path, GError **error)
{
    g_autofree char *text = text_file_read(path, error);

    return text == NULL ? NULL : plan_parse(text, path, error);
}
