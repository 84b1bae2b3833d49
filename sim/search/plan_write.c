/* Plan -> JSON (DESIGN 6). */
#include "sim/base/json_members.h"
#include "sim/base/text_file.h"
#include "sim/cost/framework.h"
#include "sim/search/plan_cost.h"
#include "sim/search/plan_json.h"

#include <math.h>

static void add_inputs(JsonBuilder *json, const Plan *plan)
{
    g_autofree char *topology = topology_print(plan->topology);

    json_member_object(json, "model");
    json_member_string(json, "name", plan->model->name);
    json_member_uint(json, "parameters", model_parameters(plan->model));
    json_builder_set_member_name(json, "config");
    json_builder_add_value(json, json_from_string(plan->model->config_text, NULL));
    json_builder_end_object(json);
    json_member_object(json, "topology");
    json_member_string(json, "name", plan->topology->name);
    json_member_uint(json, "gpus", plan->gpus);
    json_member_string(json, "file", topology);
    json_builder_end_object(json);
    json_member_object(json, "target");
    json_member_string(json, "device", device_kind_name(plan->device));
    json_member_uint(json, "ranks_per_node", plan->ranks_per_node);
    json_member_uint(json, "threads", plan->threads);
    if (framework_is_foreign(plan->framework))
        json_member_string(json, "framework", plan->framework->name);
    json_builder_end_object(json);
}

static void add_workload(JsonBuilder *json, const Plan *plan)
{
    const Workload *workload = &plan->workload;

    json_member_object(json, "workload");
    json_member_uint(json, "global_batch", workload->global_batch);
    json_member_uint(json, "seq_len", workload->seq_len);
    json_member_string(json, "precision", dtype_name(workload->recipe->precision));
    json_member_string(json, "recipe", workload->recipe->name);
    json_member_string(json, "optimizer", optimizer_name(workload->optimizer));
    if (workload->expert_imbalance > 1)
        json_member_number(json, "expert_imbalance", workload->expert_imbalance);
    json_builder_end_object(json);
    json_member_object(json, "layout");
    for (guint a = 1; a <= NUM_AXES; a++) /* dp_replicate ... tp, pp: as people write it */
        json_member_uint(json, axis_name((Axis)(a % NUM_AXES)), plan->layout.size[a % NUM_AXES]);
    if (layout_ep(&plan->layout) > 1)
        json_member_uint(json, "ep", plan->layout.ep);
    json_builder_end_object(json);
}

static void add_overrides(JsonBuilder *json, const Sharding *sharding)
{
    json_member_array(json, "units");
    for (guint i = 0; i < sharding->num_overrides; i++) {
        const UnitOverride *unit = &sharding->overrides[i];
        g_autofree char *range = unit_override_units(unit);

        json_builder_begin_object(json);
        json_member_string(json, "unit", range);
        if (unit->strategy >= 0)
            json_member_string(json, "strategy", strategy_name((Strategy)unit->strategy));
        if (unit->keep >= 0) {
            json_member_bool(json, "keep", unit->keep != 0);
        }
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
}

static void add_sharding(JsonBuilder *json, const Plan *plan)
{
    const Sharding *sharding = &plan->sharding;
    const Recipe *recipe = plan->workload.recipe;

    json_member_object(json, "sharding");
    json_member_string(json, "strategy", strategy_name(sharding->strategy));
    json_member_string(json, "form", form_name(sharding->form));
    json_member_uint(json, "prefetch", sharding->prefetch);
    json_member_uint(json, "live_units", sharding->live_units);
    json_member_array(json, "keep");
    if (sharding->keep_root)
        json_builder_add_string_value(json, "root");
    if (sharding->keep_last)
        json_builder_add_string_value(json, "last");
    json_builder_end_array(json);
    json_member_string(json, "accumulate", sharding->accumulate_sharded ? "sharded" : "unsharded");
    json_member_string(json, "gather_dtype",
                       dtype_name(sharding->gather_fp8 ? DTYPE_FP8 : recipe->compute));
    json_member_string(json, "gradient_dtype", dtype_name(recipe->gradient));
    json_member_string(json, "reduce_dtype", dtype_name(recipe->reduce));
    add_overrides(json, sharding);
    json_builder_end_object(json);
}

/* First and last layer of each chunk of the model; with virtual stages a stage has several. */
static void add_stages(JsonBuilder *json, const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];

    json_member_array(json, "stages");
    for (guint c = 0; c < schedule_chunks(&plan->schedule, pp); c++) {
        const LayerRange range = schedule_chunk(&plan->schedule, plan->model->layers, pp, c);

        json_builder_begin_array(json);
        json_builder_add_int_value(json, (gint64)range.first);
        json_builder_add_int_value(json, (gint64)range.first + range.count - 1);
        json_builder_end_array(json);
    }
    json_builder_end_array(json);
}

/* A word where it is the same of all layers. */
static void add_recompute(JsonBuilder *json, const Plan *plan)
{
    const char *kind = recompute_name(plan->schedule.recompute);

    if (!schedule_has_rest(&plan->schedule)) {
        json_member_string(json, "recompute", kind);
        return;
    }
    json_member_object(json, "recompute");
    json_member_string(json, "kind", kind);
    json_member_array(json, "layers");
    for (guint s = 0; s < plan->layout.size[AXIS_PP]; s++)
        json_builder_add_int_value(json, plan->schedule.recompute_layers[s]);
    json_builder_end_array(json);
    json_builder_end_object(json);
}

static void add_schedule(JsonBuilder *json, const Plan *plan)
{
    json_member_object(json, "tensor_parallel");
    json_member_bool(json, "sequence", plan->sequence_parallel);
    json_builder_end_object(json);
    json_member_object(json, "context_parallel");
    json_member_string(json, "kind", context_kind_name(plan->context));
    json_builder_end_object(json);
    json_member_object(json, "schedule");
    json_member_string(json, "name", schedule_name(plan->schedule.kind));
    json_member_uint(json, "micro_batch", plan->schedule.micro_batch);
    json_member_uint(json, "micro_batches", plan->schedule.micro_batches);
    json_member_uint(json, "virtual_stages", schedule_virtual_stages(&plan->schedule));
    add_stages(json, plan);
    json_builder_end_object(json);
    add_recompute(json, plan);
    json_member_object(json, "offload");
    json_member_string(json, "optimizer", tier_name(plan->sharding.offload.optimizer));
    json_member_string(json, "parameters", tier_name(plan->sharding.offload.parameters));
    json_builder_end_object(json);
}

static void add_program(JsonBuilder *json, const Plan *plan)
{
    json_member_object(json, "program");
    json_member_string(json, "hash", plan->hash == NULL ? "" : plan->hash);
    json_member_uint(json, "ops", plan->ops);
    json_member_object(json, "arena_bytes");
    for (guint t = 0; t < NUM_TIERS; t++)
        json_member_uint(json, tier_name((Tier)t), plan->arena_bytes[t]);
    json_builder_end_object(json);
    json_builder_end_object(json);
}

static void add_op_classes(JsonBuilder *json, const double seconds[NUM_OP_CLASSES])
{
    for (guint t = 0; t < NUM_OP_CLASSES; t++)
        json_member_number(json, op_class_name((OpClass)t), seconds[t]);
}

static void add_communication_seconds(JsonBuilder *json, const double seconds[NUM_VOLUMES])
{
    json_member_object(json, "communication_seconds");
    for (guint v = 0; v < NUM_VOLUMES; v++)
        json_member_number(json, volume_name((Volume)v), seconds[v]);
    json_builder_end_object(json);
}

/* Time by class of op, of the ranks of each stage. */
static void add_stage_times(JsonBuilder *json, const Plan *plan)
{
    json_member_array(json, "stages");
    for (guint s = 0; s < plan->stages->len; s++) {
        const StageTime *stage = &g_array_index(plan->stages, StageTime, s);

        json_builder_begin_object(json);
        add_op_classes(json, stage->time_seconds);
        add_communication_seconds(json, stage->communication_seconds);
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
}

static void add_times(JsonBuilder *json, const Prediction *prediction)
{
    json_member_number(json, "step_seconds", prediction->step_seconds);
    json_member_number(json, "tokens_per_second", prediction->tokens_per_second);
    json_member_number(json, "tokens_per_second_per_gpu", prediction->tokens_per_second_per_gpu);
    json_member_number(json, "model_tflops_per_gpu", prediction->model_tflops_per_gpu);
    json_member_number(json, "mfu", prediction->mfu);
    json_member_number(json, "exposed_communication_seconds",
                       prediction->exposed_communication_seconds);
    json_member_number(json, "bubble_fraction", prediction->bubble_fraction);
    json_member_object(json, "time_seconds");
    add_op_classes(json, prediction->time_seconds);
    json_builder_end_object(json);
}

/* Where replicas go on without a lost one; shares as goodput_surviving() has them. */
static void add_survivors(JsonBuilder *json, const Plan *plan)
{
    const PlanSurvivors survivors = plan_survivors(plan);

    json_member_uint(json, "replicas_left_by_a_loss", survivors.replicas - 1);
    if (!survivors.go_on)
        return;
    json_member_object(json, "survivors");
    json_member_uint(json, "groups", survivors.formula.groups);
    json_member_number(json, "group_mtbf_seconds", survivors.formula.group_mtbf);
    json_member_uint(json, "heal_bytes", survivors.heal_bytes);
    json_member_number(json, "heal_seconds", survivors.formula.heal);
    json_member_number(json, "useful_fraction", survivors.useful);
    json_member_number(json, "none_left_fraction", goodput_none_left(&survivors.formula));
    json_builder_end_object(json);
}

/* null: not stated, and counted as none. */
static void add_restart(JsonBuilder *json, double restart_s)
{
    json_member_number(json, "restart_seconds", restart_s > 0 ? restart_s : NAN);
}

static void add_goodput(JsonBuilder *json, const Plan *plan)
{
    PlanGoodput run;

    json_member_object(json, "goodput");
    json_member_number(json, "mtbf_seconds", plan_mtbf_s(plan));
    if (plan_goodput(plan, &run)) {
        json_member_uint(json, "checkpoint_bytes", run.checkpoint_bytes);
        json_member_number(json, "checkpoint_seconds", run.failures.checkpoint);
        json_member_number(json, "interval_seconds_young", run.young_s);
        json_member_number(json, "interval_seconds_daly", run.daly_s);
        json_member_number(json, "useful_fraction", run.useful);
    }
    add_restart(json, plan->topology->reliability.restart_s);
    add_survivors(json, plan);
    json_builder_end_object(json);
}

/* Of a long run; where the topology says how parts fail and what they cost. */
static void add_run(JsonBuilder *json, const Plan *plan)
{
    const RunningCost *cost = &plan->topology->cost;

    if (plan_mtbf_s(plan) > 0)
        add_goodput(json, plan);
    if (cost->price_per_gpu_hour == 0 && cost->power_per_gpu_w == 0)
        return;
    json_member_object(json, "cost_per_million_tokens");
    if (cost->price_per_gpu_hour > 0)
        json_member_number(json, "money", plan_money_per_million(plan));
    if (cost->currency != NULL)
        json_member_string(json, "currency", cost->currency);
    if (cost->power_per_gpu_w > 0)
        json_member_number(json, "kwh", plan_kwh_per_million(plan));
    json_builder_end_object(json);
}

static void add_prediction(JsonBuilder *json, const Plan *plan)
{
    const Prediction *prediction = &plan->prediction;

    json_member_object(json, "prediction");
    add_times(json, prediction);
    add_stage_times(json, plan);
    json_member_uint(json, "rank", prediction->rank);
    json_member_object(json, "memory_bytes");
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        json_member_uint(json, memory_term_name((MemoryTerm)t), prediction->memory_bytes[t]);
    json_member_uint(json, "total", prediction->memory_total);
    json_builder_end_object(json);
    json_member_uint(json, "memory_limit_bytes", prediction->memory_limit);
    json_member_string(json, "memory_peak_at", prediction->moment);
    json_member_object(json, "communication_bytes");
    for (guint v = 0; v < NUM_VOLUMES; v++)
        json_member_uint(json, volume_name((Volume)v), prediction->communication_bytes[v]);
    json_builder_end_object(json);
    add_communication_seconds(json, prediction->communication_seconds);
    add_run(json, plan);
    json_builder_end_object(json);
}

static void add_feasible(JsonBuilder *json, const Plan *plan)
{
    json_member_bool(json, "feasible", plan->reasons->len == 0);
    json_member_array(json, "reasons");
    for (guint i = 0; i < plan->reasons->len; i++)
        json_builder_add_string_value(json, g_ptr_array_index(plan->reasons, i));
    json_builder_end_array(json);
}

JsonNode *plan_node(const Plan *plan)
{
    g_autoptr(JsonBuilder) json = json_builder_new();

    json_builder_begin_object(json);
    json_member_string(json, "format", "fsdp-plan");
    json_member_uint(json, "version", 1);
    add_feasible(json, plan);
    add_inputs(json, plan);
    add_workload(json, plan);
    add_sharding(json, plan);
    add_schedule(json, plan);
    add_program(json, plan);
    add_prediction(json, plan);
    json_builder_end_object(json);
    return json_builder_get_root(json);
}

char *plan_print(const Plan *plan)
{
    g_autoptr(JsonNode) node = plan_node(plan);

    return json_node_text(node, TRUE);
}

gboolean plan_save(const Plan *plan, const char *path, GError **error)
{
    g_autofree char *json = plan_print(plan);
    g_autofree char *text = g_strconcat(json, "\n", NULL);

    return text_file_write(path, text, strlen(text), error);
}
