/* Part of `fsdp-plan explain`: stages, and formulas with their numbers. */
#pragma once

#include "sim/search/plan.h"

/* @set: the plan's programs. */
void explain_cost_print(const Plan *plan, const ProgramSet *set);
