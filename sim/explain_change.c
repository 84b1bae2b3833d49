#include "sim/explain_change.h"

#include "sim/base/parallel.h"
#include "sim/base/text.h"
#include "sim/search/price.h"

#include <string.h>

static gboolean double_batch(Plan *plan)
{
    plan->workload.global_batch *= 2;
    plan->schedule.micro_batches *= 2;
    return TRUE;
}

static gboolean double_micro_batch(Plan *plan)
{
    if (plan->schedule.micro_batches % 2 != 0)
        return FALSE;
    plan->schedule.micro_batch *= 2;
    plan->schedule.micro_batches /= 2;
    return TRUE;
}

gboolean change_halve_micro_batch(Plan *plan)
{
    if (plan->schedule.micro_batch % 2 != 0)
        return FALSE;
    plan->schedule.micro_batch /= 2;
    plan->schedule.micro_batches *= 2;
    return TRUE;
}

static gboolean double_chunks(Plan *plan)
{
    if (plan->layout.size[AXIS_PP] == 1 ||
        (plan->schedule.kind != SCHEDULE_1F1B && plan->schedule.kind != SCHEDULE_INTERLEAVED))
        return FALSE;
    plan->schedule.kind = SCHEDULE_INTERLEAVED;
    plan->schedule.virtual_stages = 2 * schedule_virtual_stages(&plan->schedule);
    plan->schedule.chunk_layers =
        model_even_work(plan->model, schedule_chunks(&plan->schedule, plan->layout.size[AXIS_PP]));
    for (guint s = 0; schedule_has_rest(&plan->schedule) && s < plan->layout.size[AXIS_PP]; s++)
        plan->recompute_layers[s] = (guint16)((plan->recompute_layers[s] + 1) / 2);
    return TRUE;
}

static gboolean split_backward(Plan *plan)
{
    if (plan->layout.size[AXIS_PP] == 1 || plan->schedule.kind != SCHEDULE_1F1B)
        return FALSE;
    plan->schedule.kind = SCHEDULE_ZB_H1;
    return TRUE;
}

gboolean change_recompute(Plan *plan, Recompute what)
{
    if (plan->schedule.recompute == what && !schedule_has_rest(&plan->schedule))
        return FALSE;
    plan_set_recompute(plan, what, NULL, 0);
    return TRUE;
}

static gboolean recompute_less(Plan *plan)
{
    return change_recompute(plan, RECOMPUTE_NONE);
}

static gboolean recompute_attention(Plan *plan)
{
    return change_recompute(plan, RECOMPUTE_SELECTIVE);
}

static gboolean recompute_all(Plan *plan)
{
    return change_recompute(plan, RECOMPUTE_FULL);
}

/* Kept whole from forward to backward, or not. */
static gboolean gather_once(Plan *plan)
{
    if (plan->sharding.strategy != STRATEGY_FULL_SHARD)
        return FALSE;
    plan->sharding.strategy = STRATEGY_SHARD_GRAD_OP;
    return TRUE;
}

gboolean change_gather_twice(Plan *plan)
{
    if (plan->sharding.strategy != STRATEGY_SHARD_GRAD_OP &&
        plan->sharding.strategy != STRATEGY_SHARD_OPTIMIZER)
        return FALSE;
    plan->sharding.strategy = STRATEGY_FULL_SHARD;
    return TRUE;
}

static gboolean prefetch_more(Plan *plan)
{
    if (plan->sharding.strategy == STRATEGY_NO_SHARD)
        return FALSE;
    plan->sharding.prefetch++;
    plan->sharding.live_units++;
    return TRUE;
}

/* The plan is priced by cuDNN's rows where the GPU has them; the run may be told not to use it. */
static gboolean own_attention(Plan *plan)
{
    GArray *ops = plan->topology->measured.ops;
    gboolean own = FALSE;
    guint library = 0;

    for (guint i = ops->len; i-- > 0;) {
        const char *op = g_array_index(ops, MeasuredOp, i).op;

        own |= strcmp(op, op_attention_row(OP_ATTENTION, FALSE)) == 0;
        if (!g_str_has_suffix(op, MEASURED_BY_CUDNN))
            continue;
        g_array_remove_index(ops, i);
        library++;
    }
    return own && library > 0;
}

static const Change changes[] = {
    {"twice the batch", double_batch},
    {"twice the micro-batch", double_micro_batch},
    {"half the micro-batch", change_halve_micro_batch},
    {"twice the chunks a stage", double_chunks},
    {"zb_h1", split_backward},
    {"recompute none", recompute_less},
    {"recompute selective", recompute_attention},
    {"recompute full", recompute_all},
    {"shard_grad_op", gather_once},
    {"full_shard", change_gather_twice},
    {"one unit more ahead", prefetch_more},
    {"fsdp-run --attention own", own_attention},
};

Plan *change_apply(const Change *change, const Plan *plan)
{
    g_autofree char *text = plan_print(plan);
    g_autoptr(Plan) changed = plan_parse(text, "plan", NULL);

    if (changed == NULL || !change->apply(changed))
        return NULL;
    sharding_normalise(&changed->sharding, &changed->layout, &changed->schedule);
    const Choice choice = plan_choice(changed);
    if (legality_check(&choice, NULL) != VERDICT_OK)
        return NULL;
    return g_steal_pointer(&changed);
}

/* The same, priced. */
static Plan *change_plan(const Plan *plan, const Change *change)
{
    g_autoptr(Plan) changed = change_apply(change, plan);

    if (changed == NULL)
        return NULL;
    if (changed->layout.size[AXIS_PP] > 1) /* its bubble is shown */
        plan_price(changed);
    else
        plan_price_briefly(changed);
    return g_steal_pointer(&changed);
}

typedef struct {
    const Plan *plan;
    const Change *changes;
    Plan **changed; /* by change */
} Each;

static void change_one(gpointer data, guint i, guint worker)
{
    Each *each = data;

    (void)worker;
    each->changed[i] = change_plan(each->plan, &each->changes[i]);
}

/* Each of @num changes alone, on all cores; the plans are the caller's, the array too. */
static Plan **change_each(const Plan *plan, const Change *list, guint num)
{
    Each each = {plan, list, g_new0(Plan *, num)};

    parallel_run(num, change_one, &each);
    return each.changed;
}

/* Speed against the plan's, -0.1 = a tenth less. */
static double speed_change(const Plan *changed, const Plan *plan)
{
    return changed->prediction.tokens_per_second / plan->prediction.tokens_per_second - 1;
}

double explain_time_change(const Plan *other, const Plan *plan)
{
    return other->prediction.step_seconds / plan->prediction.step_seconds - 1;
}

/* Each alone, by the speed and the memory that it would have. */
void explain_change_print(const Plan *plan)
{
    const gboolean pipeline = plan->layout.size[AXIS_PP] > 1;

    g_autofree Plan **all = change_each(plan, changes, G_N_ELEMENTS(changes));
    g_print("\none change, simulated:\n");
    for (guint i = 0; i < G_N_ELEMENTS(changes); i++) {
        g_autoptr(Plan) changed = all[i];

        if (changed == NULL)
            continue;
        g_autofree char *memory = bytes_text(changed->prediction.memory_total);
        g_autofree char *micro = g_strdup_printf("(%u x %u)", changed->schedule.micro_batches,
                                                 changed->schedule.micro_batch);
        g_autofree char *bubble =
            pipeline ? g_strdup_printf(", bubble %.1f%%", 100 * changed->prediction.bubble_fraction)
                     : g_strdup("");
        g_print("  %-25s %-10s %+6.1f%% tokens/s%s, %s%s\n", changes[i].name, micro,
                100 * speed_change(changed, plan), bubble, memory,
                changed->reasons->len > 0 ? ": does not fit" : "");
    }
}

JsonObject *change_answer(const char *name, const Plan *changed)
{
    JsonObject *object = json_object_new();

    json_object_set_string_member(object, "change", name);
    json_object_set_int_member(object, "micro_batches", changed->schedule.micro_batches);
    json_object_set_int_member(object, "micro_batch", changed->schedule.micro_batch);
    json_object_set_double_member(object, "bubble_fraction", changed->prediction.bubble_fraction);
    json_object_set_int_member(object, "memory_bytes", (gint64)changed->prediction.memory_total);
    json_object_set_boolean_member(object, "feasible", changed->reasons->len == 0);
    return object;
}

void explain_change_answer(const Plan *plan, JsonObject *answer)
{
    g_autofree Plan **all = change_each(plan, changes, G_N_ELEMENTS(changes));
    JsonArray *list = json_array_new();

    for (guint i = 0; i < G_N_ELEMENTS(changes); i++) {
        g_autoptr(Plan) changed = all[i];

        if (changed == NULL)
            continue;
        JsonObject *object = change_answer(changes[i].name, changed);
        json_object_set_double_member(object, "speed_change", speed_change(changed, plan));
        json_array_add_object_element(list, object);
    }
    json_object_set_array_member(answer, "changes", list);
}

/* ---- units that differ ---- */

static gboolean treat_alike(Plan *plan)
{
    plan->sharding.num_overrides = 0;
    return TRUE;
}

static guint64 received_bytes(const Plan *plan)
{
    guint64 bytes = 0;

    for (guint v = 0; v < NUM_VOLUMES; v++)
        bytes += plan->prediction.communication_bytes[v];
    return bytes;
}

/* "1.2 GB more" */
static char *difference_text(guint64 bytes, guint64 than)
{
    g_autofree char *text = bytes_text(bytes > than ? bytes - than : than - bytes);

    return g_strdup_printf("%s %s", text, bytes >= than ? "more" : "less");
}

/* NULL: they are. */
static Plan *units_alike(const Plan *plan)
{
    static const Change alike = {"one strategy for all units", treat_alike};

    return plan->sharding.num_overrides == 0 ? NULL : change_plan(plan, &alike);
}

void explain_change_print_units(const Plan *plan)
{
    g_autoptr(Plan) alike = units_alike(plan);
    g_autofree char *units = plan_units_text(plan);

    if (alike == NULL)
        return;
    g_autofree char *received = difference_text(received_bytes(plan), received_bytes(alike));
    g_autofree char *memory =
        difference_text(plan->prediction.memory_total, alike->prediction.memory_total);
    g_autofree char *exposed = seconds_text(plan->prediction.exposed_communication_seconds);
    g_autofree char *before = seconds_text(alike->prediction.exposed_communication_seconds);
    g_print("\nunits that differ (%s), against one strategy for all: %+.1f%% time, a rank receives "
            "%s and needs %s memory; of communication %s are not hidden, not %s%s\n",
            units, 100 * explain_time_change(plan, alike), received, memory, exposed, before,
            alike->reasons->len > 0 ? "; all alike does not fit" : "");
}

void explain_change_answer_units(const Plan *plan, JsonObject *answer)
{
    g_autoptr(Plan) alike = units_alike(plan);
    g_autofree char *units = plan_units_text(plan);

    if (alike == NULL)
        return;
    JsonObject *object = json_object_new();
    json_object_set_string_member(object, "units", units);
    json_object_set_double_member(object, "time_change", explain_time_change(plan, alike));
    json_object_set_int_member(object, "received_bytes_change",
                               (gint64)(received_bytes(plan) - received_bytes(alike)));
    json_object_set_int_member(
        object, "memory_bytes_change",
        (gint64)(plan->prediction.memory_total - alike->prediction.memory_total));
    json_object_set_double_member(object, "uniform_exposed_communication_seconds",
                                  alike->prediction.exposed_communication_seconds);
    json_object_set_boolean_member(object, "uniform_feasible", alike->reasons->len == 0);
    json_object_set_object_member(answer, "units", object);
}
