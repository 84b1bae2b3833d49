#include "sim/explain.h"

#include "sim/base/text.h"
#include "sim/explain_cost.h"
#include "sim/explain_run.h"
#include "sim/search/price.h"
#include "sim/search/search.h"
#include "sim/table.h"

#include <math.h>

/* What bounds the step, and what each thing that could go away is worth. */
static void print_bound(const Plan *plan)
{
    const Prediction *p = &plan->prediction;
    g_autofree char *bound = plan_bound_text(plan);
    const double hidden = p->exposed_communication_seconds / p->step_seconds;

    g_print("\nbound by %s of the step.  Hiding all communication%s would gain %.1f%%", bound,
            plan->layout.size[AXIS_PP] > 1 ? ", and no waiting for other stages," : "",
            100 * hidden);
    if (plan->schedule.recompute == RECOMPUTE_FULL && !schedule_has_rest(&plan->schedule))
        g_print("; not recomputing would gain up to %.1f%% (a quarter of the block's compute)",
                25 * (1 - hidden));
    g_print(".\nMemory-bound ops and the optimiser take %.1f%%: fusing them could gain no more.\n",
            100 * (p->time_seconds[OP_CLASS_MEMORY_BOUND] + p->time_seconds[OP_CLASS_OPTIMIZER]) /
                p->step_seconds);
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

/* ---- one change ---- */

/* A change to a copy of the plan; FALSE where there is nothing to change. */
typedef struct {
    const char *name;
    gboolean (*apply)(Plan *plan);
} Change;

static gboolean double_batch(Plan *plan)
{
    plan->workload.global_batch *= 2;
    plan->schedule.micro_batches *= 2;
    return TRUE;
}

static gboolean halve_micro_batch(Plan *plan)
{
    if (plan->schedule.micro_batch % 2 != 0)
        return FALSE;
    plan->schedule.micro_batch /= 2;
    plan->schedule.micro_batches *= 2;
    return TRUE;
}

static gboolean double_chunks(Plan *plan)
{
    if (plan->schedule.kind != SCHEDULE_1F1B && plan->schedule.kind != SCHEDULE_INTERLEAVED)
        return FALSE;
    plan->schedule.kind = SCHEDULE_INTERLEAVED;
    plan->schedule.virtual_stages = 2 * schedule_virtual_stages(&plan->schedule);
    plan->schedule.chunk_layers = NULL;
    for (guint s = 0; schedule_has_rest(&plan->schedule) && s < plan->layout.size[AXIS_PP]; s++)
        plan->recompute_layers[s] = (guint16)((plan->recompute_layers[s] + 1) / 2);
    return TRUE;
}

static gboolean split_backward(Plan *plan)
{
    if (plan->schedule.kind != SCHEDULE_1F1B)
        return FALSE;
    plan->schedule.kind = SCHEDULE_ZB_H1;
    sharding_normalise(&plan->sharding, &plan->layout, &plan->schedule);
    return TRUE;
}

static const Change changes[] = {
    {"twice the batch", double_batch},
    {"half the micro-batch", halve_micro_batch},
    {"twice the chunks a stage", double_chunks},
    {"zb_h1", split_backward},
};

/* The plan with that change, priced; NULL where it is none, or illegal. */
static Plan *change_plan(const Plan *plan, const Change *change)
{
    g_autofree char *text = plan_print(plan);
    g_autoptr(Plan) changed = plan_parse(text, "plan", NULL);

    if (changed == NULL || !change->apply(changed))
        return NULL;
    const Choice choice = plan_choice(changed);
    if (legality_check(&choice, NULL) != VERDICT_OK)
        return NULL;
    plan_price(changed);
    return g_steal_pointer(&changed);
}

/* What makes the bubble smaller, each alone. */
static void print_changes(const Plan *plan)
{
    const double own = plan->prediction.tokens_per_second;

    if (plan->layout.size[AXIS_PP] == 1)
        return;
    g_print("\none change against the bubble, simulated:\n");
    for (guint i = 0; i < G_N_ELEMENTS(changes); i++) {
        g_autoptr(Plan) changed = change_plan(plan, &changes[i]);

        if (changed == NULL)
            continue;
        g_autofree char *memory = bytes_text(changed->prediction.memory_total);
        g_autofree char *micro = g_strdup_printf("(%u x %u)", changed->schedule.micro_batches,
                                                 changed->schedule.micro_batch);
        g_print("  %-25s %-10s %+6.1f%% tokens/s, bubble %.1f%%, %s%s\n", changes[i].name, micro,
                100 * (changed->prediction.tokens_per_second / own - 1),
                100 * changed->prediction.bubble_fraction, memory,
                changed->reasons->len > 0 ? ": does not fit" : "");
    }
}

/* ---- other choices ---- */

static SearchRequest request_of(const Plan *plan)
{
    return (SearchRequest){
        .model = plan->model,
        .topology = plan->topology,
        .gpus = plan->gpus,
        .global_batch = plan->workload.global_batch,
        .seq_len = plan->workload.seq_len,
        .recipe = plan->workload.recipe,
        .optimizer = plan->workload.optimizer,
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = plan->sequence_parallel,
        .sharding = plan->sharding,
        .top = 6,
        .framework = plan->framework,
    };
}

static gboolean same_choice(const Plan *a, const Plan *b)
{
    return g_strcmp0(a->hash, b->hash) == 0;
}

/* Differences below what repeated runs of one layout show are noise. */
static const double NOISE = 0.02;

static void print_others(const Plan *plan, const SearchResult *result)
{
    const double own = plan->prediction.step_seconds;

    g_print("\nthe same batch on the same ranks, other choices:\n");
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *other = g_ptr_array_index(result->plans, i);
        const double ratio = other->prediction.step_seconds / own - 1;
        g_autofree char *layout = plan_layout_text(other);
        g_autofree char *recompute = plan_recompute_text(other);
        g_autofree char *memory = bytes_text(other->prediction.memory_total);
        g_autofree char *bound = plan_bound_text(other);

        if (same_choice(plan, other))
            continue;
        g_print("  %-33s %-15s %3u x %-3u recompute %-9s %+6.1f%% time, %s, bound by %s%s\n",
                layout, strategy_name(other->sharding.strategy), other->schedule.micro_batches,
                other->schedule.micro_batch, recompute, 100 * ratio, memory, bound,
                fabs(ratio) < NOISE ? "  (within noise)" : "");
    }
}

static void print_refused(const SearchResult *result)
{
    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++) {
        if (result->rejected[v] == 0)
            continue;
        g_print("  %6" G_GUINT64_FORMAT " %s%s%s\n", result->rejected[v], verdict_name((Verdict)v),
                result->example[v] == NULL ? "" : ", such as: ",
                result->example[v] == NULL ? "" : result->example[v]);
    }
}

gboolean explain_print(const Plan *plan, GError **error)
{
    g_autoptr(ProgramSet) set = plan_compile(plan, error);
    const SearchRequest request = request_of(plan);

    if (set == NULL)
        return FALSE;
    table_print_plan(plan);
    explain_cost_print(plan, set);
    explain_run_print(plan);
    print_recompute(plan);
    print_bound(plan);
    print_changes(plan);
    g_autoptr(SearchResult) result = search(&request);
    print_others(plan, result);
    g_print("\nof %" G_GUINT64_FORMAT " candidates, refused:\n", result->candidates);
    print_refused(result);
    return TRUE;
}
