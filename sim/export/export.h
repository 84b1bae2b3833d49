/* A plan as the configuration file of another framework. */
#pragma once

#include "sim/search/plan.h"

/* What --to takes, NULL-terminated: torchtitan, megatron, deepspeed, accelerate. */
const char *const *export_frameworks(void);

/* The text of the file; the caller's.  What the framework decides by itself, or leaves to the
 * training script, stands in it as comments; where its format has none, the lines are added to
 * @notes (of char *, freed by it).  What it can't express is refused by name: ERROR_INFEASIBLE.  An
 * unknown framework is ERROR_INPUT. */
char *export_plan(const Plan *plan, const char *framework, GPtrArray *notes,
                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
