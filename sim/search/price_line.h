/* Of many micro-batches, prices as straight lines through two numbers of them. */
#pragma once

#include "sim/search/plan.h"

static inline double line_at(double a, double b, guint more)
{
    return b + (b - a) * more;
}

static inline guint64 line_bytes_at(guint64 a, guint64 b, guint more)
{
    return b + (b - a) * more; /* unsigned arithmetic wraps back where b < a */
}

/* Whether to look at @steady micro-batches and @group more is less than to look at all. */
gboolean line_pays(const Plan *plan, guint steady, guint group);

/* The same, with those two numbers; FALSE also where no further group is like another. */
gboolean line_serves(const Plan *plan, guint *steady, guint *group);

/* No further group takes less than a stage computes for it: where it seems so, something that is
 * there once a step, as state that a disk keeps, takes longer than few micro-batches and hides
 * them.  Then the line starts at twice as many. */
gboolean line_is_straight(double further_step_s, double further_compute_s);
