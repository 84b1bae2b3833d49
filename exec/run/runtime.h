/* One rank's means: a device, a communicator on a thread of its own, and another thread where state
 * is in files.  Programs run on it, one or several (interpreter.h). */
#pragma once

#include "exec/comm/comm_tcp.h"
#include "exec/cuda/plug_in.h"

typedef struct Runtime Runtime;

typedef struct {
    const char *transport; /* "self" (one rank) or "mpi"; or "tcp", with a rendezvous */
    const CommRendezvous *rendezvous;
    guint ranks_per_node; /* 0 = as the machine is; see comm_open() */
    guint threads;        /* of the device */
    DeviceKind device;
    const CudaPlugIn *plug_in; /* of the device, where it is no CPU; else NULL */
    guint local_rank;          /* which of the machine's GPUs, see DeviceOptions */
    gboolean nccl;             /* ranks have a GPU each: on top of the transport */
} RuntimeOptions;

/* Starts the communication thread and opens the communicator on it.  Collective.  ERROR_RUNTIME. */
Runtime *runtime_open(const RuntimeOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Ends with every queued job done (unless one failed).  Collective when nothing failed. */
void runtime_close(Runtime *runtime);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Runtime, runtime_close)

guint runtime_rank(const Runtime *runtime);
guint runtime_size(const Runtime *runtime);
Device *runtime_device(Runtime *runtime);
const char *runtime_transport(const Runtime *runtime); /* as comm_describe(), and whether it
                                                          moves the device's tensors by copies */
const char *runtime_library(const Runtime *runtime);   /* as device_library() */
/* NULL where another transport than NCCL moves the tensors. */
const CudaPlugIn *runtime_nccl(const Runtime *runtime);

/* ---- the threads beside the main one ---- */

/* LANE_STORAGE has a thread from now on. */
void runtime_start_storage(Runtime *runtime);

/* A job: `run` is called on its lane's thread with this rank's communicator, which on that of
 * storage is only there to tell progress.  Copied in; posting never allocates. */
enum { RUNTIME_JOB_BYTES = 288 };
typedef gboolean (*RuntimeJob)(Comm *comm, gconstpointer job, GError **error);

/* By the main thread.  @lane: LANE_COMMUNICATION or LANE_STORAGE; @job: @bytes, at most
 * RUNTIME_JOB_BYTES.  Returns its ordinal; 0 once that thread has failed. */
guint64 runtime_post(Runtime *runtime, ProgressLane lane, RuntimeJob run, gconstpointer job,
                     gsize bytes);

/* Blocks the main thread until that job and all before it are done; ordinal 0 is nothing to wait
 * for.  FALSE once that thread has failed. */
gboolean runtime_wait(Runtime *runtime, ProgressLane lane, guint64 ordinal);

/* The same of a job, for one of another lane that was posted before it. */
gboolean runtime_wait_in_job(Runtime *runtime, ProgressLane lane, guint64 ordinal,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* runtime_post() and runtime_wait() on the communication thread; ERROR_RUNTIME with what a thread
 * failed of. */
gboolean runtime_do(Runtime *runtime, RuntimeJob run, gconstpointer job, gsize bytes,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean runtime_failed(const Runtime *runtime, GError **error); /* sets @error, returns FALSE */

/* Until all that was posted is done, or its thread has failed: no job is under way. */
gboolean runtime_quiet(Runtime *runtime, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What this rank is about to do; a peer that finds it dead reports it. */
void runtime_note(Runtime *runtime, const char *what);
void runtime_note_call(Runtime *runtime, const char *segment, CommCall call); /* cheaper */

/* What the calling thread's lane (the main thread's) works on, see comm_progress.h. */
void runtime_begin(Runtime *runtime, guint64 at);
void runtime_end(Runtime *runtime);
Comm *runtime_peer(Runtime *runtime, guint rank); /* as comm_peer() */

/* ---- control channel, collective over all ranks, not counted as volume ---- */

gboolean runtime_agree_max(Runtime *runtime, gint64 *value,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @data of all ranks, at rank 0 (@all: GBytes). */
gboolean runtime_gather(Runtime *runtime, gconstpointer data, gsize bytes, GPtrArray *all,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Bytes received so far, by kind; bytes of other ranks' memory mapped here. */
void runtime_bytes_in(Runtime *runtime, guint64 bytes[NUM_VOLUMES]);
guint64 runtime_foreign_bytes(const Runtime *runtime);

/* Ends the whole job, all ranks, with @status. */
void runtime_abort(Runtime *runtime, int status) G_GNUC_NORETURN;
