/* What a run measured: progress lines, and on rank 0 the rows of the store. */
#pragma once

#include "exec/run/interpreter.h"
#include "exec/run/train_options.h"
#include "reports/store/store.h"
#include "sim/search/plan.h"

typedef struct Record Record;

/* Rank 0 says on stderr what the run will do, opens the store and adds the run with that; whether
 * that worked is agreed by all ranks. */
Record *record_new(const Plan *plan, Interpreter *interpreter, const TrainOptions *options,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void record_free(Record *record);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Record, record_free)

/* Steps that are timed op by op and whose bytes are counted: the third (the first two are warm-up;
 * the last of a shorter run), then one in 25. */
gboolean record_is_sampled(guint step, guint steps);

/* Bytes received since @before were those of one step. */
void record_volume(Record *record, const guint64 before[NUM_VOLUMES]);

/* After each step: a progress line and a row; of a sampled step the ops too. */
gboolean record_step(Record *record, const StoreStep *step, gboolean sampled,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean record_saw_non_finite(const Record *record);

/* Ends the run: terms of all ranks (collective, when @together), status. */
gboolean record_finish(Record *record, const char *status, gboolean together,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
