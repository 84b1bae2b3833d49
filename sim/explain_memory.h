/* Part of `fsdp-plan explain`: memory as the three tools that show it count it, and what else needs
 * some beside the peak of a step. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* @set: the plan's programs.  Nothing is said of other frameworks, which run another one. */
void explain_memory_print(const Plan *plan, const ProgramSet *set);

/* Adds "memory". */
void explain_memory_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer);
