/* The times of a sampled step's ops, of all ranks of rank 0's node: the rank that came last to a
 * collective says how long that took, the others waited for it. */
#pragma once

#include "exec/run/interpreter.h"
#include "reports/store/store.h"

/* Collective over all ranks.  At rank 0 the times of each of the first @ranks (GBytes of OpTime, in
 * the order of calls); elsewhere an empty array. */
GPtrArray *op_times_gather(Interpreter *interpreter, guint ranks,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Writes those of @step. */
typedef struct {
    Store *store;
    gint64 run, step;
} OpTimesPlace;

gboolean op_times_write(const GPtrArray *times, const ProgramSet *set, const OpTimesPlace *place,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
