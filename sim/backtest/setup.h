/* A published run as a plan: what estimate would be asked. */
#pragma once

#include "sim/backtest/record.h"
#include "sim/search/plan.h"

/* A plan that is legal and not priced.  Its global batch is the nearest that the layout allows;
 * *share (of the run's batch in it) is 1 but where that differs.  NULL and *reason where the row
 * lacks what a prediction needs, or asks for what the planner does not know; the caller's. */
Plan *setup_plan(const Record *record, const char *topologies_dir, double *share, char **reason);

/* Whether the framework's "selective" keeps every other product of a block (torchtitan, whose
 * configurations say so where the table is silent), which no plan says: between plans that
 * recompute nothing and all. */
gboolean setup_halves(const Record *record);

/* Whether a run that would not have fitted was recomputed, though the table does not say so. */
gboolean setup_recomputes(const Record *record);

/* Whether the framework's own figure of memory is its first rank's, not the largest. */
gboolean setup_weighs_first(const Record *record);
