/* Part of `fsdp-plan explain`: stages, and formulas with their numbers. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* @set: the plan's programs. */
void explain_cost_print(const Plan *plan, const ProgramSet *set);

/* Adds "stages", "bubble" (of pipelines), "state" and "scratch". */
void explain_cost_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer);
