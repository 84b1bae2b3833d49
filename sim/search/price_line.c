#include "sim/search/price_line.h"

#include "sim/search/price_parts.h"

/* Micro-batches from which on each further group is the same again, and the group: all pass the
 * stages one by one, or (interleaved) in groups of pp, of which the first four may wait for their
 * units at other moments. */
static guint steady_from(const Plan *plan, guint *group)
{
    enum { ALONE = 3 }; /* the first and the last differ from those between */
    const guint pp = plan->layout.size[AXIS_PP];
    const gboolean in_groups = plan->schedule.kind == SCHEDULE_INTERLEAVED;

    *group = in_groups ? pp : 1;
    if (pp == 1)
        return ALONE;
    return in_groups ? 4 * pp : 2 * pp;
}

/* Whether the plan has more micro-batches than @steady, and @group more: all that differ. */
static gboolean has_alike(const Plan *plan, guint *steady, guint *group)
{
    const guint micro_batches = plan->schedule.micro_batches;

    *steady = steady_from(plan, group);
    return micro_batches > *steady + *group && (micro_batches - *steady) % *group == 0 &&
           plan->schedule.kind != SCHEDULE_GPIPE; /* whose memory grows with them */
}

gboolean line_pays(const Plan *plan, guint steady, guint group)
{
    return plan->schedule.micro_batches > 2 * steady + group;
}

gboolean line_serves(const Plan *plan, guint *steady, guint *group)
{
    return has_alike(plan, steady, group) && line_pays(plan, *steady, *group);
}

gboolean line_is_straight(double further_step_s, double further_compute_s)
{
    static const double rounding = 1e-6;

    return further_step_s >= further_compute_s * (1 - rounding);
}

guint price_most_micro_batches(const Plan *plan)
{
    guint steady, group;

    return has_alike(plan, &steady, &group) ? steady + group : plan->schedule.micro_batches;
}
