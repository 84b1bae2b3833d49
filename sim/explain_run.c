#include "sim/explain_run.h"

#include "sim/base/text.h"
#include "sim/search/plan_cost.h"

static const char NOTHING[] =
    "nothing of the time is useful: failures leave none between a checkpoint and a restart";

/* "120 s", or that it is not known. */
static char *restart_text(const Reliability *reliability)
{
    return reliability->restart_s > 0 ? seconds_text(reliability->restart_s)
                                      : g_strdup("no time (not stated)");
}

/* Of shares that the restart would make smaller. */
static const char *bound_word(const Reliability *reliability)
{
    return reliability->restart_s > 0 ? "" : "at most ";
}

/* The numbers of the formula. */
static void print_survivors(const Plan *plan, const PlanSurvivors *survivors)
{
    const Survivors *of = &survivors->formula;
    g_autofree char *group = seconds_text(of->group_mtbf);
    g_autofree char *restart = restart_text(&plan->topology->reliability);
    g_autofree char *heal = seconds_text(of->heal);
    g_autofree char *bytes = bytes_text(survivors->heal_bytes);
    g_autofree char *step = seconds_text(of->step);

    g_print("  %u replicas hold all state.  If those that a failure leaves go on and nothing goes "
            "back to a checkpoint (torchft does so, fsdp-run restarts), "
            "Mg / (Mg + T) e^(-s/M) = %s%.1f%% of the work is done\n"
            "    Mg = %s between failures of one replica, %u ranks; T = restart, %s, + %s to get "
            "%s a rank from another; s = %s, a step lost; no replica is left %.2g%% of the time\n",
            of->groups, bound_word(&plan->topology->reliability), 100 * survivors->useful, group,
            plan->gpus / of->groups, restart, heal, bytes, step, 100 * goodput_none_left(of));
}

static void print_replicas(const Plan *plan)
{
    const PlanSurvivors survivors = plan_survivors(plan);

    if (survivors.go_on)
        print_survivors(plan, &survivors);
    else if (survivors.replicas == 1)
        g_print("  state is held once: without a lost rank nothing goes on\n");
    else
        g_print("  %u replicas hold all state, but a lost node takes all of them: nothing goes "
                "on\n",
                survivors.replicas);
}

static void print_interval(const Plan *plan, const PlanGoodput *run)
{
    g_autofree char *young = seconds_text(run->young_s);
    g_autofree char *daly = seconds_text(run->daly_s);

    if (run->useful < GOODPUT_LEAST)
        g_print("  %s\n", NOTHING);
    else
        g_print("  best interval sqrt(2 C M) = %s (Young), %s (Daly): with that %s%.1f%% of the "
                "time is useful\n",
                young, daly, bound_word(&plan->topology->reliability), 100 * run->useful);
}

static void print_checkpoints(const Plan *plan)
{
    PlanGoodput run;

    if (!plan_goodput(plan, &run)) {
        g_print("; of checkpoints nothing is said, as topology %s states no "
                "checkpoint_bandwidth\n",
                plan->topology->name);
        return;
    }
    g_autofree char *bytes = bytes_text(run.checkpoint_bytes);
    g_autofree char *checkpoint = seconds_text(run.failures.checkpoint);
    g_autofree char *restart = restart_text(&plan->topology->reliability);

    g_print("; a checkpoint of %s takes %s, a restart %s\n", bytes, checkpoint, restart);
    print_interval(plan, &run);
}

static void print_goodput(const Plan *plan)
{
    g_autofree char *mtbf = seconds_text(plan_mtbf_s(plan));

    if (plan_mtbf_s(plan) == 0)
        return;
    g_print("\ngoodput: %u ranks fail every %s", plan->gpus, mtbf);
    print_checkpoints(plan);
    print_replicas(plan);
}

static void print_cost(const Plan *plan)
{
    const RunningCost *cost = &plan->topology->cost;
    PlanGoodput run;
    const gboolean fails = plan_goodput(plan, &run);
    const char *included = fails ? ", failures and checkpoints included" : "";

    if (cost->price_per_gpu_hour == 0 && cost->power_per_gpu_w == 0)
        return;
    if (fails && run.useful < GOODPUT_LEAST) {
        g_print("\na million tokens have no cost: %s\n", NOTHING);
        return;
    }
    if (cost->price_per_gpu_hour > 0)
        g_print("\na million tokens cost %.4g%s%s%s", plan_money_per_million(plan),
                cost->currency != NULL ? " " : "", cost->currency != NULL ? cost->currency : "",
                included);
    if (cost->power_per_gpu_w > 0)
        g_print("\na million tokens take %.4g kWh%s", plan_kwh_per_million(plan), included);
    g_print("\n");
}

void explain_run_print(const Plan *plan)
{
    print_goodput(plan);
    print_cost(plan);
}
