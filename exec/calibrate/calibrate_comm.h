/* Measures collectives of all ranks of a session. */
#pragma once

#include "exec/calibrate/calibrate_session.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "sim/input/topology.h"

#include <glib.h>

typedef struct {
    Volume kind;
    DType dtype;
    guint64 bytes; /* wanted; the whole buffer */
    double seconds;
    gboolean late; /* they include time that the host took: no filler was long enough */
} CommTask;

GArray *comm_tasks_new(CalibrateScale scale);

/* Sets the seconds of all tasks and their bytes to those really moved.  On a GPU they are the
 * device's: a collective begins behind work during which the host issues it, and behind another
 * that all ranks leave together. */
gboolean comm_tasks_run(Session *session, GArray *tasks, double budget_s,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void comm_tasks_add_rows(const GArray *tasks, guint ranks, Measured *measured);
