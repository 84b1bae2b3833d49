/* Part of `fsdp-plan explain`: what one change to a plan would gain, and cost. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* Of a step: -0.1 = @other takes a tenth less than @plan. */
double explain_time_change(const Plan *other, const Plan *plan);

/* A change to a copy of the plan; FALSE where there is nothing to change. */
typedef struct {
    const char *name;
    gboolean (*apply)(Plan *plan);
} Change;

gboolean change_halve_micro_batch(Plan *plan);
gboolean change_gather_twice(Plan *plan);              /* full_shard */
gboolean change_recompute(Plan *plan, Recompute what); /* of all layers */

/* The plan with that change, not priced; NULL where it is none, or illegal. */
Plan *change_apply(const Change *change, const Plan *plan);

/* What is said of a changed plan; "change" is what it is called. */
JsonObject *change_answer(const char *name, const Plan *changed);

/* Each change that is legal, alone: speed and memory.  The second adds "changes". */
void explain_change_print(const Plan *plan);
void explain_change_answer(const Plan *plan, JsonObject *answer);

/* Where units differ, what they gain, and take, against one strategy for all.  The second adds
 * "units". */
void explain_change_print_units(const Plan *plan);
void explain_change_answer_units(const Plan *plan, JsonObject *answer);
