#include "sim/search/plan_cost.h"

#include "sim/cost/collective.h"

#include <math.h>

static const double SECONDS_PER_HOUR = 3600, WATT_SECONDS_PER_KWH = 3.6e6;

/* What independent parts fail by: rates add up. */
static double failures_per_s(const Reliability *reliability, guint gpus, guint nodes)
{
    double rate = 0;

    if (reliability->gpu_mtbf_s > 0)
        rate += gpus / reliability->gpu_mtbf_s;
    if (reliability->node_mtbf_s > 0)
        rate += nodes / reliability->node_mtbf_s;
    return rate;
}

/**
 * checkpoint_bytes: of what a run can't make again.
 *
 *     S = Psi (p + o)
 *
 *     Psi  parameters     p  bytes of the master, or of the parameter where there is none
 *     o    bytes of a parameter's moments
 *
 * Derived here.  Left out: padding, which is not written, and names.
 */
static guint64 checkpoint_bytes(const Plan *plan)
{
    const Recipe *recipe = plan->workload.recipe;
    const guint weight = recipe->master ? dtype_bytes(DTYPE_FP32) : dtype_bytes(recipe->stored);

    return (guint64)((double)model_parameters(plan->model) *
                     (weight + optimizer_bytes_per_parameter(plan->workload.optimizer)));
}

/* Neighbours of a stage that hold its state once. */
static guint replica_ranks(const Layout *layout)
{
    return layout_shard_ranks(layout) * layout->size[AXIS_TP];
}

/* Those that hold ranks of the first replica, a run of neighbours in each stage. */
static guint replica_nodes(const Plan *plan)
{
    const guint ranks = replica_ranks(&plan->layout);
    const guint stride = ranks * plan->layout.size[AXIS_DP_REPLICATE];
    guint nodes = 0, next = 0; /* the first node that isn't counted yet */

    for (guint stage = 0; stage < plan->layout.size[AXIS_PP]; stage++) {
        const guint first = stage * stride / plan->ranks_per_node;
        const guint last = (stage * stride + ranks - 1) / plan->ranks_per_node;

        nodes += last + 1 - MIN(MAX(first, next), last + 1);
        next = last + 1;
    }
    return nodes;
}

/* Runs of replica_ranks() that a node holds a part of, at most. */
static guint replicas_of_node(const Plan *plan)
{
    const guint ranks = replica_ranks(&plan->layout), node = plan->ranks_per_node;
    const gboolean aligned = node % ranks == 0 || ranks % node == 0;
    const guint most = aligned ? (node + ranks - 1) / ranks : (node - 2) / ranks + 2;

    return MIN(most, plan->layout.size[AXIS_DP_REPLICATE]);
}

/* Each rank gets what it holds from the same rank of another replica, all at once. */
static double heal_seconds(const Plan *plan, guint64 bytes)
{
    const guint replicas = plan->layout.size[AXIS_DP_REPLICATE];
    const CollectiveContext between = {.topology = plan->topology,
                                       .ranks = replicas,
                                       .span = replicas * replica_ranks(&plan->layout),
                                       .ranks_per_node = plan->ranks_per_node};

    return collective_seconds(VOLUME_EXCHANGE, bytes, DTYPE_FP32, &between);
}

/* A rank heals by a share of what a checkpoint has: 1 / (tp x pp), and of that 1 / d where it is
 * sharded. */
static guint64 heal_bytes(const Plan *plan)
{
    const Layout *layout = &plan->layout;
    const guint shards =
        plan->sharding.strategy == STRATEGY_NO_SHARD ? 1 : layout_shard_ranks(layout);

    return checkpoint_bytes(plan) / (layout->size[AXIS_TP] * layout->size[AXIS_PP] * shards);
}

PlanSurvivors plan_survivors(const Plan *plan)
{
    const Reliability *reliability = &plan->topology->reliability;
    const guint ranks = replica_ranks(&plan->layout) * plan->layout.size[AXIS_PP];
    PlanSurvivors survivors = {.replicas = plan->layout.size[AXIS_DP_REPLICATE],
                               .lost_with_node = replicas_of_node(plan)};

    survivors.go_on = survivors.replicas > 1 && (reliability->node_mtbf_s == 0 ||
                                                 survivors.lost_with_node < survivors.replicas);
    if (!survivors.go_on)
        return survivors;
    survivors.heal_bytes = heal_bytes(plan);
    survivors.formula = (Survivors){
        .groups = survivors.replicas,
        .mtbf = plan_mtbf_s(plan),
        .group_mtbf = 1 / failures_per_s(reliability, ranks, replica_nodes(plan)),
        .restart = reliability->restart_s,
        .heal = heal_seconds(plan, survivors.heal_bytes),
        .step = plan->prediction.step_seconds,
    };
    survivors.useful = goodput_surviving(&survivors.formula);
    return survivors;
}

double plan_mtbf_s(const Plan *plan)
{
    const guint nodes = (plan->gpus + plan->ranks_per_node - 1) / plan->ranks_per_node;
    const double rate = failures_per_s(&plan->topology->reliability, plan->gpus, nodes);

    return rate > 0 ? 1 / rate : 0;
}

/* All ranks write at once, each an equal part, while training waits.  Left out: what is written
 * while training goes on. */
gboolean plan_goodput(const Plan *plan, PlanGoodput *goodput)
{
    const Reliability *reliability = &plan->topology->reliability;
    const double mtbf_s = plan_mtbf_s(plan);
    const guint64 bytes = checkpoint_bytes(plan);

    if (mtbf_s == 0 || reliability->checkpoint_bytes_per_s == 0)
        return FALSE;
    *goodput = (PlanGoodput){
        .checkpoint_bytes = bytes,
        .failures = {.checkpoint =
                         (double)bytes / (reliability->checkpoint_bytes_per_s * plan->gpus),
                     .restart = reliability->restart_s,
                     .mtbf = mtbf_s},
    };
    goodput->young_s = goodput_young_s(&goodput->failures);
    goodput->daly_s = goodput_daly_s(&goodput->failures);
    goodput->useful = goodput_useful(&goodput->failures, goodput->daly_s);
    return TRUE;
}

/* GPU-seconds of a million tokens. */
static double gpu_seconds_per_million(const Plan *plan)
{
    PlanGoodput goodput;
    const double useful = plan_goodput(plan, &goodput) ? goodput.useful : 1;

    if (useful < GOODPUT_LEAST)
        return INFINITY;
    return 1e6 / plan->prediction.tokens_per_second_per_gpu / useful;
}

/* Of what costs nothing there may be no end. */
static double cost_per_million(const Plan *plan, double per_gpu_second)
{
    return per_gpu_second == 0 ? 0 : gpu_seconds_per_million(plan) * per_gpu_second;
}

double plan_money_per_million(const Plan *plan)
{
    return cost_per_million(plan, plan->topology->cost.price_per_gpu_hour / SECONDS_PER_HOUR);
}

double plan_kwh_per_million(const Plan *plan)
{
    return cost_per_million(plan, plan->topology->cost.power_per_gpu_w / WATT_SECONDS_PER_KWH);
}
