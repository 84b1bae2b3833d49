/* A communicator on a thread of its own, as in training: what ranks of a calibration share. */
#pragma once

#include "exec/comm/comm.h"
#include "exec/comm/comm_queue.h"
#include "exec/comm/comm_tcp.h"
#include "exec/cuda/plug_in.h"

#include <glib.h>

typedef struct {
    CommQueue *queue;
    Comm *comm;
    CommGroup *group; /* all ranks */
    Device *device;   /* whose memory the communicator takes; NULL: the host's */
} Session;

/* How ranks find each other; @nccl and @device: and move what is on a GPU. */
typedef struct {
    const char *transport;            /* as for comm_open() */
    const CommRendezvous *rendezvous; /* instead: over TCP; or NULL */
    const CudaPlugIn *nccl;           /* NULL: the host's memory */
    Device *device;
} SessionMeans;

enum { SESSION_STREAM = COMPUTE_STREAM + 1 }; /* of the device: its operations' */

typedef gboolean (*SessionCall)(Session *session, gpointer data, GError **error);

gboolean session_open(Session *session, const SessionMeans *means,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Runs @call on the communication thread and waits. */
gboolean session_call(Session *session, SessionCall call, gpointer data,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Memory for collectives, zeroed; NULL on error.  The session's, or (session_release) the device's.
 */
void *session_alloc(Session *session, gsize bytes, GError **error);
void session_release(Session *session, void *memory);

/* *value becomes the largest of all ranks; no rank goes on before all have come. */
gboolean session_max(Session *session, double *value, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* At rank 0 the values become their mean over ranks. */
gboolean session_mean(Session *session, double *values, guint num,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Collective; only when nothing failed. */
gboolean session_close(Session *session, GError **error) G_GNUC_WARN_UNUSED_RESULT;
