/* Part of `fsdp-plan explain`: what one change to a plan would gain, and cost. */
#pragma once

#include "sim/search/plan.h"

/* Each change that is legal, alone: speed and memory. */
void explain_change_print(const Plan *plan);

/* Where units differ, what they gain, and take, against one strategy for all. */
void explain_change_print_units(const Plan *plan);

/* Of the changes that make a plan fit which does not, each alone, the one that costs least; times
 * are relative to @beside's. */
void explain_change_print_mend(const Plan *plan, const Plan *beside);
