/* Part of `fsdp-plan explain` for another framework: what it needs where a rank has its whole part
 * of the model for a time, as while it is loaded. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* @set: the plan's programs.  Nothing is said of fsdp-run, which has the model nowhere whole. */
void explain_whole_print(const Plan *plan, const ProgramSet *set);

/* Adds "whole_model". */
void explain_whole_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer);
