#include "sim/search/front.h"

#include <math.h>

const double SEARCH_FRONT_STEP = 0.02;

/* Of a bound, and of steps: those that differ by less are sums of the same in another order. */
static const double rounding = 1e-9;

static const Plan *plan_at(const Front *front, guint i)
{
    return g_ptr_array_index(front->plans, i);
}

double front_key_s(const Plan *plan)
{
    return plan->prediction.step_seconds / plan->workload.global_batch;
}

static double needs(const Plan *plan)
{
    return (double)plan->prediction.memory_total;
}

/* In the order of time: the first that is small enough. */
double front_limit_s(const Front *front, double bytes)
{
    for (guint i = 0; i < front->plans->len; i++) {
        const Plan *plan = plan_at(front, i);

        if (front_key_s(plan) < front->settled_s && needs(plan) <= bytes * (1 + SEARCH_FRONT_STEP))
            return 0;
        if (needs(plan) <= bytes)
            return front_key_s(plan);
    }
    return INFINITY;
}

gboolean front_leaves_out(const Front *front, double bound_s, double bytes)
{
    return front_limit_s(front, bytes) <= bound_s * (1 - rounding);
}

/* Neither faster, but for rounding, nor smaller. */
static gboolean is_beaten(const Plan *plan, const Plan *by)
{
    return front_key_s(plan) >= front_key_s(by) * (1 - rounding) && needs(plan) >= needs(by);
}

/* All but @by itself. */
static void free_beaten(Front *front, const Plan *by)
{
    for (guint i = front->plans->len; i-- > 0;)
        if (plan_at(front, i) != by && is_beaten(plan_at(front, i), by))
            g_ptr_array_remove_index(front->plans, i);
}

gboolean front_add(Front *front, Plan *plan)
{
    guint at = 0;

    for (guint i = 0; i < front->plans->len; i++)
        if (is_beaten(plan, plan_at(front, i)))
            return FALSE;
    free_beaten(front, plan);
    while (at < front->plans->len && front_key_s(plan_at(front, at)) < front_key_s(plan))
        at++;
    g_ptr_array_insert(front->plans, (gint)at, plan);
    return TRUE;
}

void front_settle(Front *front, double seconds)
{
    guint i = 1;

    front->settled_s = seconds;
    while (i < front->plans->len && front_key_s(plan_at(front, i)) < seconds)
        if (needs(plan_at(front, i - 1)) <= needs(plan_at(front, i)) * (1 + SEARCH_FRONT_STEP))
            g_ptr_array_remove_index(front->plans, i);
        else
            i++;
}

void front_clean(Front *front)
{
    for (guint i = 0; i < front->plans->len; i++)
        free_beaten(front, plan_at(front, i));
}
