#include "sim/explain.h"

#include "sim/base/text.h"
#include "sim/search/search.h"
#include "sim/table.h"

#include <math.h>

static guint bytes_per_parameter(const Plan *plan, guint *stored, guint *gradient, guint *rest)
{
    const Recipe *recipe = plan->workload.recipe;

    *stored = dtype_bytes(recipe->stored);
    *gradient = dtype_bytes(recipe->gradient);
    *rest = (recipe->master ? 4 : 0) + 4 * optimizer_moments(plan->workload.optimizer);
    return *stored + *gradient + *rest;
}

/* The table of DESIGN 4 for this plan's strategy, before padding. */
static void print_state_formula(const Plan *plan)
{
    const double psi = (double)model_parameters(plan->model);
    const double d =
        plan->sharding.strategy == STRATEGY_NO_SHARD ? 1 : layout_shard_ranks(&plan->layout);
    guint stored, gradient, rest;
    const guint all = bytes_per_parameter(plan, &stored, &gradient, &rest);
    const gboolean zero1 = plan->sharding.strategy == STRATEGY_SHARD_OPTIMIZER;
    const gboolean whole_gradients = zero1 || !plan->sharding.accumulate_sharded;
    const double bytes = psi * (zero1 ? stored : stored / d) +
                         psi * (whole_gradients ? gradient : gradient / d) + psi * rest / d;
    g_autofree char *state = bytes_text((guint64)bytes);
    g_autofree char *whole = bytes_text((guint64)(psi * all));

    g_print("\nstate, by formula: Psi = %.0f parameters, d = %.0f; %u + %u + %u bytes a parameter "
            "(parameter, gradient, master and moments)\n  %s%s%s: %s a rank (unsharded: %s)\n",
            psi, d, stored, gradient, rest, zero1 ? "parameters whole, " : "parameters / d, ",
            whole_gradients ? "gradients whole, " : "gradients / d, ", "the rest / d", state,
            whole);
}

static void print_volume_formula(const Plan *plan)
{
    const double psi = (double)model_parameters(plan->model);
    const double d = layout_shard_ranks(&plan->layout);
    const guint element = dtype_bytes(plan->workload.recipe->compute);
    const double unit = element * psi * (d - 1) / d;
    g_autofree char *bytes = bytes_text((guint64)unit);
    const Prediction *p = &plan->prediction;

    if (plan->sharding.strategy == STRATEGY_NO_SHARD || d < 2)
        return;
    g_print(
        "\nvolume, by formula: one gather of everything is %u Psi (d-1)/d = %s a rank; this plan "
        "gathers %.2f and reduce-scatters %.2f times that\n",
        element, bytes, (double)p->communication_bytes[VOLUME_ALL_GATHER] / unit,
        (double)p->communication_bytes[VOLUME_REDUCE_SCATTER] / unit);
}

/* What bounds the step, and what each thing that could go away is worth. */
static void print_bound(const Plan *plan)
{
    const Prediction *p = &plan->prediction;
    g_autofree char *bound = plan_bound_text(plan);
    const double hidden = p->exposed_communication_seconds / p->step_seconds;

    g_print("\nbound by %s of the step.  Hiding all communication would gain %.1f%%", bound,
            100 * hidden);
    if (plan->schedule.recompute == RECOMPUTE_FULL)
        g_print("; not recomputing would gain up to %.1f%% (a quarter of the block's compute)",
                25 * (1 - hidden));
    g_print(".\nMemory-bound ops and the optimiser take %.1f%%: fusing them could gain no more.\n",
            100 * (p->time_seconds[OP_CLASS_MEMORY_BOUND] + p->time_seconds[OP_CLASS_OPTIMIZER]) /
                p->step_seconds);
}

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
        g_autofree char *layout = layout_text(&other->layout);
        g_autofree char *memory = bytes_text(other->prediction.memory_total);
        g_autofree char *bound = plan_bound_text(other);

        if (same_choice(plan, other))
            continue;
        g_print("  %-26s %-15s %3u x %-3u recompute %-5s %+6.1f%% time, %s, bound by %s%s\n",
                layout, strategy_name(other->sharding.strategy), other->schedule.micro_batches,
                other->schedule.micro_batch, recompute_name(other->schedule.recompute), 100 * ratio,
                memory, bound, fabs(ratio) < NOISE ? "  (within noise)" : "");
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
    print_state_formula(plan);
    print_volume_formula(plan);
    print_bound(plan);
    g_autoptr(SearchResult) result = search(&request);
    print_others(plan, result);
    g_print("\nof %" G_GUINT64_FORMAT " candidates, refused:\n", result->candidates);
    print_refused(result);
    return TRUE;
}
