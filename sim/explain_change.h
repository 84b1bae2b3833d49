/* Part of `fsdp-plan explain`: what one change to a plan would gain, and cost. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* Of a step: -0.1 = @other takes a tenth less than @plan. */
double explain_time_change(const Plan *other, const Plan *plan);

/* Each change that is legal, alone: speed and memory.  The second adds "changes". */
void explain_change_print(const Plan *plan);
void explain_change_answer(const Plan *plan, JsonObject *answer);

/* Where units differ, what they gain, and take, against one strategy for all.  The second adds
 * "units". */
void explain_change_print_units(const Plan *plan);
void explain_change_answer_units(const Plan *plan, JsonObject *answer);

/* Of the changes that make a plan fit which does not, each alone, the one that costs least; times
 * are relative to @beside's.  The second's is the caller's; NULL: none does. */
void explain_change_print_mend(const Plan *plan, const Plan *beside);
JsonObject *explain_change_answer_mend(const Plan *plan, const Plan *beside);
