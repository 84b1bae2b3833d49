/* Why a plan is what it is. */
#pragma once

#include "sim/search/plan.h"

/* Formulas with their numbers, time and memory, the runners-up and why others were refused.
 * Searches again with the plan's own inputs. */
gboolean explain_print(const Plan *plan, GError **error) G_GNUC_WARN_UNUSED_RESULT;
