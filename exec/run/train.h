/* Training a plan: binds what changes from step to step, runs the program, records what was
 * measured. */
#pragma once

#include "exec/run/interpreter.h"
#include "exec/run/train_options.h"
#include "sim/search/plan.h"

/* Learning rate of @step (from 1).  Constant, or linear warm-up to lr over `warmup` steps, then a
 * cosine down to lr / 10 at `lr_steps` (Hoffmann et al. 2022, arXiv 2203.15556, app. B), constant
 * after.  It never depends on `steps`. */
double train_learning_rate(const TrainOptions *options, guint step);

/* Runs on every rank of the job.  Returns an exit status of DESIGN 5; @error is set for 2 and 3.  A
 * loss or norm that is not finite: all ranks stop at that step, its update undone, status 3. */
int train(const Plan *plan, const ProgramSet *set, Runtime *runtime, const TrainOptions *options,
          GError **error);
