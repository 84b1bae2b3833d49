/* A communicator on a thread of its own, as in training: what ranks of a calibration share. */
#pragma once

#include "exec/comm/comm.h"
#include "exec/comm/comm_queue.h"

#include <glib.h>

typedef struct {
    CommQueue *queue;
    Comm *comm;
    CommGroup *group; /* all ranks */
} Session;

typedef gboolean (*SessionCall)(Session *session, gpointer data, GError **error);

/* @transport as for comm_open(). */
gboolean session_open(Session *session, const char *transport,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Runs @call on the communication thread and waits. */
gboolean session_call(Session *session, SessionCall call, gpointer data,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Zeroed memory for collectives; NULL on error. */
void *session_alloc(Session *session, gsize bytes, GError **error);

/* *value becomes the largest of all ranks; no rank goes on before all have come. */
gboolean session_max(Session *session, double *value, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* At rank 0 the values become their mean over ranks. */
gboolean session_mean(Session *session, double *values, guint num,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Collective; only when nothing failed. */
gboolean session_close(Session *session, GError **error) G_GNUC_WARN_UNUSED_RESULT;
