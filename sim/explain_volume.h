/* What fsdp-plan explain says of the bytes that a rank receives, by formula. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

void explain_volume_print(const Plan *plan, const ProgramSet *set);

/* Adds "volume", a list by group of ranks. */
void explain_volume_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer);
