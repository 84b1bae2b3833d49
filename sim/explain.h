/* Why a plan is what it is. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* Formulas with their numbers, time and memory, the runners-up and why others were refused.
 * Searches again with the plan's own inputs. */
gboolean explain_print(const Plan *plan, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for programs: {"plan", "memory", "stages", "bubble", "state", "scratch", "volume",
 * "bound", "units", "changes", "others", "candidates", "rejected", "refused", "larger"}; what does
 * not apply is absent.  The caller's; json_node_unref(). */
JsonNode *explain_answer(const Plan *plan, GError **error) G_GNUC_WARN_UNUSED_RESULT;
