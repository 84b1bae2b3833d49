/* What a run will do, in words, once everything is chosen: said when it starts, and stored with it.
 */
#pragma once

#include "exec/run/runtime.h"
#include "exec/run/train_options.h"
#include "sim/search/plan.h"

/* Lines of "  key  value". */
char *effective_text(const Plan *plan, const TrainOptions *options, const Runtime *runtime);
