#include "sim/explain.h"

#include "sim/answer_json.h"
#include "sim/base/text.h"
#include "sim/explain_change.h"
#include "sim/explain_cost.h"
#include "sim/explain_memory.h"
#include "sim/explain_mend.h"
#include "sim/explain_run.h"
#include "sim/explain_volume.h"
#include "sim/explain_whole.h"
#include "sim/remarks.h"
#include "sim/search/price.h"
#include "sim/search/search.h"
#include "sim/table.h"

#include <math.h>

/* What bounds the step, and what each thing that could go away is worth: shares of the step. */
typedef struct {
    double hidden;     /* communication, and waiting for other stages */
    double recomputed; /* at most; 0: nothing is, or not of all layers */
    double small_ops;  /* bound by memory, and the optimiser */
} Bound;

static Bound bound_of(const Plan *plan)
{
    const Prediction *p = &plan->prediction;
    const double hidden = p->exposed_communication_seconds / p->step_seconds;
    const gboolean recomputes =
        plan->schedule.recompute == RECOMPUTE_FULL && !schedule_has_rest(&plan->schedule);

    return (Bound){
        .hidden = hidden,
        .recomputed = recomputes ? (1 - hidden) / 4 : 0, /* a quarter of the block's compute */
        .small_ops =
            (p->time_seconds[OP_CLASS_MEMORY_BOUND] + p->time_seconds[OP_CLASS_OPTIMIZER]) /
            p->step_seconds,
    };
}

static void print_bound(const Plan *plan)
{
    const Bound bound = bound_of(plan);
    g_autofree char *most = plan_bound_text(plan);

    g_print("\nbound by %s of the step.  Hiding all communication%s would gain %.1f%%", most,
            plan->layout.size[AXIS_PP] > 1 ? ", and no waiting for other stages," : "",
            100 * bound.hidden);
    if (bound.recomputed > 0)
        g_print("; not recomputing would gain up to %.1f%% (a quarter of the block's compute)",
                100 * bound.recomputed);
    g_print(".\nMemory-bound ops and the optimiser take %.1f%%: fusing them could gain no more.\n",
            100 * bound.small_ops);
}

static JsonObject *bound_answer(const Plan *plan)
{
    const Bound bound = bound_of(plan);
    const OpClass most = remark_bound(plan);
    JsonObject *object = json_object_new();

    json_object_set_string_member(object, "by", op_class_name(most));
    json_object_set_double_member(
        object, "share", plan->prediction.time_seconds[most] / plan->prediction.step_seconds);
    json_object_set_double_member(object, "hidden_communication_gain", bound.hidden);
    if (bound.recomputed > 0)
        json_object_set_double_member(object, "no_recomputation_gain_at_most", bound.recomputed);
    json_object_set_double_member(object, "memory_bound_and_optimizer_share", bound.small_ops);
    return object;
}

/* Which blocks are computed again, where not the same of all. */
static void print_recompute(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    const Schedule *schedule = &plan->schedule;

    if (!schedule_has_rest(schedule))
        return;
    g_print("\nrecomputed (%s), the first layers of each %s:", recompute_name(schedule->recompute),
            schedule_virtual_stages(schedule) > 1 ? "chunk, by stage" : "stage");
    for (guint s = 0; s < pp; s++)
        g_print("%s %u of %u", s == 0 ? "" : ",", schedule->recompute_layers[s],
                schedule_most_layers(schedule, plan->model->layers, pp, s));
    g_print("\n");
}

/* ---- other choices ---- */

/* As was asked for: where a strategy makes what the plan has of the default, the default. */
static gboolean accumulates_sharded(const Plan *plan)
{
    Sharding sharding = plan->sharding;

    sharding.accumulate_sharded = TRUE;
    sharding_normalise(&sharding, &plan->layout, &plan->schedule);
    return sharding.accumulate_sharded == plan->sharding.accumulate_sharded ||
           plan->sharding.accumulate_sharded;
}

/* Units are free again. */
static SearchRequest request_of(const Plan *plan, const Topology *topology)
{
    SearchRequest request = {
        .model = plan->model,
        .topology = topology,
        .gpus = plan->gpus,
        .global_batch = plan->workload.global_batch,
        .seq_len = plan->workload.seq_len,
        .recipe = plan->workload.recipe,
        .optimizer = plan->workload.optimizer,
        .expert_imbalance = plan->workload.expert_imbalance,
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = plan->sequence_parallel,
        .sharding = plan->sharding,
        .searches_units = TRUE,
        .top = 6,
        .keeps_large = TRUE,
        .framework = plan->framework,
    };

    request.sharding.num_overrides = 0;
    request.sharding.accumulate_sharded = accumulates_sharded(plan);
    return request;
}

static gboolean same_choice(const Plan *a, const Plan *b)
{
    return g_strcmp0(a->hash, b->hash) == 0;
}

static void print_others(const Plan *plan, const SearchResult *result)
{
    g_print("\nthe same batch on the same ranks, other choices:\n");
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *other = g_ptr_array_index(result->plans, i);
        const double ratio = explain_time_change(other, plan);
        g_autofree char *layout = plan_layout_text(other);
        g_autofree char *recompute = plan_recompute_text(other);
        g_autofree char *memory = bytes_text(other->prediction.memory_total);
        g_autofree char *bound = plan_bound_text(other);
        g_autofree char *strategy = table_strategy_text(other);
        g_autofree char *units = plan_units_text(other);

        if (same_choice(plan, other))
            continue;
        g_print("  %-33s %-15s %3u x %-3u recompute %-9s %+6.1f%% time, %s, bound by %s%s%s%s\n",
                layout, strategy, other->schedule.micro_batches, other->schedule.micro_batch,
                recompute, 100 * ratio, memory, bound,
                fabs(ratio) < REMARK_NOISE ? "  (within noise)" : "", units == NULL ? "" : "; * ",
                units == NULL ? "" : units);
    }
}

/* A whole plan, which can be kept and run. */
static JsonNode *other_answer(const Plan *other, const Plan *plan)
{
    JsonNode *node = answer_plan(other);
    JsonObject *object = json_node_get_object(node);
    const double change = explain_time_change(other, plan);

    json_object_set_double_member(object, "time_change", change);
    json_object_set_boolean_member(object, "within_noise", fabs(change) < REMARK_NOISE);
    return node;
}

static JsonArray *others_answer(const Plan *plan, const SearchResult *result)
{
    JsonArray *others = json_array_new();

    for (guint i = 0; i < result->plans->len; i++)
        if (!same_choice(plan, g_ptr_array_index(result->plans, i)))
            json_array_add_element(others, other_answer(g_ptr_array_index(result->plans, i), plan));
    return others;
}

/* "pp=2 dp_shard=8 full_shard, 4 x 2, recompute none" */
static char *choice_text(const Plan *plan)
{
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *recompute = plan_recompute_text(plan);

    return g_strdup_printf("%s %s, %u x %u, recompute %s", layout,
                           strategy_name(plan->sharding.strategy), plan->schedule.micro_batches,
                           plan->schedule.micro_batch, recompute);
}

/* What would be fastest if memory were no limit; NULL: what was found already. */
static Plan *fastest_of_any_size(const Plan *plan, const Plan *best)
{
    g_autofree char *text = topology_print(plan->topology);
    g_autoptr(Topology) larger = topology_parse(text, plan->topology->name, "", NULL);
    SearchRequest request = request_of(plan, larger);

    larger->gpu.memory_bytes = G_GUINT64_CONSTANT(1) << 50;
    request.top = 1;
    request.keeps_large = FALSE;
    g_autoptr(SearchResult) result = search(&request);
    if (result->plans->len == 0 || same_choice(best, g_ptr_array_index(result->plans, 0)))
        return NULL;
    g_autoptr(Plan) fastest = g_ptr_array_steal_index(result->plans, 0);
    fastest->topology->gpu.memory_bytes = plan->topology->gpu.memory_bytes;
    return plan_price(fastest) ? NULL : g_steal_pointer(&fastest);
}

static void print_larger(const Plan *plan, const Plan *fastest)
{
    if (fastest == NULL) {
        g_print("\nno layout would be faster with more memory\n");
        return;
    }
    g_autofree char *choice = choice_text(fastest);
    g_autofree char *needs = bytes_text(fastest->prediction.memory_total);
    g_auto(Mend) mend = mend_find(fastest);
    g_print("\nwith more memory %s would be fastest: %+.1f%% time, %s\n", choice,
            100 * explain_time_change(fastest, plan), needs);
    mend_print(&mend, plan, "  ");
}

static void add_mend(JsonObject *object, const char *name, JsonObject *mend)
{
    if (mend == NULL)
        json_object_set_null_member(object, name);
    else
        json_object_set_object_member(object, name, mend);
}

/* Adds "larger", and to it "mend". */
static void add_larger(const Plan *plan, const Plan *fastest, JsonObject *answer)
{
    g_auto(Mend) mend = {0};

    if (fastest == NULL) {
        json_object_set_null_member(answer, "larger");
        return;
    }
    JsonNode *larger = other_answer(fastest, plan);
    mend = mend_find(fastest);
    add_mend(json_node_get_object(larger), "mend", mend_answer(&mend, plan, FALSE));
    json_object_set_member(answer, "larger", larger);
}

/* ---- refusals ---- */

/* Of those that memory refuses: which, and what makes it fit. */
typedef struct {
    const Plan *plan; /* NULL: none is refused for memory */
    Mend mend;
} TooLarge;

static void too_large_clear(TooLarge *large)
{
    mend_clear(&large->mend);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(TooLarge, too_large_clear)

/* One that is not far from fitting. */
static TooLarge too_large_of(const SearchResult *result)
{
    const Plan *plan = result->large != NULL ? result->large : result->closest;
    TooLarge large = {.plan = plan};

    if (plan != NULL)
        large.mend = mend_find(plan);
    return large;
}

static void print_too_large(const TooLarge *large, const Plan *plan)
{
    g_autofree char *choice = choice_text(large->plan);

    g_print(", such as %s: %s\n", choice, mend_reason(large->plan));
    mend_print(&large->mend, plan, "           ");
}

static void print_refused(const SearchResult *result, const TooLarge *large, const Plan *plan)
{
    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++) {
        if (result->rejected[v] == 0)
            continue;
        g_print("  %6" G_GUINT64_FORMAT " %s", result->rejected[v], verdict_name((Verdict)v));
        if (v == VERDICT_MEMORY && large->plan != NULL)
            print_too_large(large, plan);
        else
            g_print("%s%s\n", result->example[v] == NULL ? "" : ", such as: ",
                    result->example[v] == NULL ? "" : result->example[v]);
    }
}

/* Adds "too_large". */
static void add_too_large(const TooLarge *large, const Plan *plan, JsonObject *answer)
{
    JsonObject *object;

    if (large->plan == NULL) {
        json_object_set_null_member(answer, "too_large");
        return;
    }
    g_autofree char *choice = choice_text(large->plan);
    object = json_object_new();
    json_object_set_string_member(object, "choice", choice);
    json_object_set_string_member(object, "reason", mend_reason(large->plan));
    add_mend(object, "mend", mend_answer(&large->mend, plan, FALSE));
    add_mend(object, "nearest", mend_answer(&large->mend, plan, TRUE));
    json_object_set_object_member(answer, "too_large", object);
}

/* Of the plan that is explained, where it does not fit. */
static void print_mend_of_plan(const Plan *plan)
{
    if (plan->reasons->len == 0)
        return;
    g_auto(Mend) mend = mend_find(plan);
    g_print("\nthis plan does not fit:\n");
    mend_print(&mend, plan, "  ");
}

/* Adds "mend" and "nearest" there. */
static void add_mend_of_plan(const Plan *plan, JsonObject *answer)
{
    if (plan->reasons->len == 0)
        return;
    g_auto(Mend) mend = mend_find(plan);
    add_mend(answer, "mend", mend_answer(&mend, plan, FALSE));
    add_mend(answer, "nearest", mend_answer(&mend, plan, TRUE));
}

/* What the search would list first; or, where nothing fits, the plan itself. */
static const Plan *best_of(const SearchResult *result, const Plan *plan)
{
    return result->plans->len > 0 ? g_ptr_array_index(result->plans, 0) : plan;
}

gboolean explain_print(const Plan *plan, GError **error)
{
    g_autoptr(ProgramSet) set = plan_compile(plan, error);
    const SearchRequest request = request_of(plan, plan->topology);

    if (set == NULL)
        return FALSE;
    table_print_plan(plan);
    explain_memory_print(plan, set);
    explain_whole_print(plan, set);
    explain_cost_print(plan, set);
    explain_volume_print(plan, set);
    explain_run_print(plan);
    print_recompute(plan);
    print_bound(plan);
    explain_change_print_units(plan);
    explain_change_print(plan);
    print_mend_of_plan(plan);
    g_autoptr(SearchResult) result = search(&request);
    print_others(plan, result);
    g_print("\nof %" G_GUINT64_FORMAT " candidates, refused:\n", result->candidates);
    g_autoptr(Plan) fastest = fastest_of_any_size(plan, best_of(result, plan));
    g_auto(TooLarge) large = too_large_of(result);
    print_refused(result, &large, plan);
    print_larger(plan, fastest);
    return TRUE;
}

JsonNode *explain_answer(const Plan *plan, GError **error)
{
    g_autoptr(ProgramSet) set = plan_compile(plan, error);
    const SearchRequest request = request_of(plan, plan->topology);
    JsonObject *answer;
    JsonNode *node;

    if (set == NULL)
        return NULL;
    answer = json_object_new();
    json_object_set_member(answer, "plan", answer_plan(plan));
    explain_memory_answer(plan, set, answer);
    explain_whole_answer(plan, set, answer);
    explain_cost_answer(plan, set, answer);
    explain_volume_answer(plan, set, answer);
    json_object_set_object_member(answer, "bound", bound_answer(plan));
    explain_change_answer_units(plan, answer);
    explain_change_answer(plan, answer);
    add_mend_of_plan(plan, answer);
    g_autoptr(SearchResult) result = search(&request);
    json_object_set_array_member(answer, "others", others_answer(plan, result));
    json_object_set_int_member(answer, "candidates", (gint64)result->candidates);
    answer_add_refused(answer, result);
    g_autoptr(Plan) fastest = fastest_of_any_size(plan, best_of(result, plan));
    g_auto(TooLarge) large = too_large_of(result);
    add_too_large(&large, plan, answer);
    add_larger(plan, fastest, answer);
    node = json_node_new(JSON_NODE_OBJECT);
    json_node_take_object(node, answer);
    return node;
}
