#include "sim/explain_run.h"

#include "sim/base/text.h"
#include "sim/search/plan_cost.h"

static void print_replicas(guint replicas)
{
    if (replicas == 1)
        g_print("  state is held once: without a lost rank nothing goes on\n");
    else
        g_print("  %u replicas hold all state: a lost rank takes one of them, %u are left\n",
                replicas, replicas - 1);
}

static void print_goodput(const Plan *plan)
{
    PlanGoodput run;

    if (!plan_goodput(plan, &run))
        return;
    g_autofree char *mtbf = seconds_text(run.failures.mtbf);
    g_autofree char *bytes = bytes_text(run.checkpoint_bytes);
    g_autofree char *checkpoint = seconds_text(run.failures.checkpoint);
    g_autofree char *restart = run.failures.restart > 0 ? seconds_text(run.failures.restart)
                                                        : g_strdup("no time (not stated)");
    g_autofree char *young = seconds_text(run.young_s);
    g_autofree char *daly = seconds_text(run.daly_s);

    g_print("\ngoodput: %u ranks fail every %s; a checkpoint of %s takes %s, a restart %s\n"
            "  best interval sqrt(2 C M) = %s (Young), %s (Daly): with that %.1f%% of the time is "
            "useful\n",
            plan->gpus, mtbf, bytes, checkpoint, restart, young, daly, 100 * run.useful);
    print_replicas(run.replicas);
}

static void print_cost(const Plan *plan)
{
    const RunningCost *cost = &plan->topology->cost;
    PlanGoodput run;
    const char *included = plan_goodput(plan, &run) ? ", failures and checkpoints included" : "";

    if (cost->price_per_gpu_hour > 0)
        g_print("\na million tokens cost %.4g%s%s%s", plan_money_per_million(plan),
                cost->currency != NULL ? " " : "", cost->currency != NULL ? cost->currency : "",
                included);
    if (cost->power_per_gpu_w > 0)
        g_print("\na million tokens take %.4g kWh%s", plan_kwh_per_million(plan), included);
    if (cost->price_per_gpu_hour > 0 || cost->power_per_gpu_w > 0)
        g_print("\n");
}

void explain_run_print(const Plan *plan)
{
    print_goodput(plan);
    print_cost(plan);
}
