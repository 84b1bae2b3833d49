#include "sim/search/plan_cost.h"

static const double SECONDS_PER_HOUR = 3600, WATT_SECONDS_PER_KWH = 3.6e6;

/* What a job of independent parts fails by: rates add up. */
static double failures_per_s(const Plan *plan)
{
    const Reliability *reliability = &plan->topology->reliability;
    const guint nodes = (plan->gpus + plan->ranks_per_node - 1) / plan->ranks_per_node;
    double rate = 0;

    if (reliability->gpu_mtbf_s > 0)
        rate += plan->gpus / reliability->gpu_mtbf_s;
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

/* All ranks write at once, each an equal part, while training waits.  Left out: what is written
 * while training goes on. */
gboolean plan_goodput(const Plan *plan, PlanGoodput *goodput)
{
    const Reliability *reliability = &plan->topology->reliability;
    const double rate = failures_per_s(plan);
    const guint64 bytes = checkpoint_bytes(plan);

    if (rate == 0 || reliability->checkpoint_bytes_per_s == 0)
        return FALSE;
    *goodput = (PlanGoodput){
        .checkpoint_bytes = bytes,
        .failures = {.checkpoint =
                         (double)bytes / (reliability->checkpoint_bytes_per_s * plan->gpus),
                     .restart = reliability->restart_s,
                     .mtbf = 1 / rate},
        .replicas = plan->layout.size[AXIS_DP_REPLICATE],
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

    return 1e6 / plan->prediction.tokens_per_second_per_gpu / useful;
}

double plan_money_per_million(const Plan *plan)
{
    return gpu_seconds_per_million(plan) * plan->topology->cost.price_per_gpu_hour /
           SECONDS_PER_HOUR;
}

double plan_kwh_per_million(const Plan *plan)
{
    return gpu_seconds_per_million(plan) * plan->topology->cost.power_per_gpu_w /
           WATT_SECONDS_PER_KWH;
}
