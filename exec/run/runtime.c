#include "exec/run/runtime.h"

#include "exec/comm/comm_queue.h"
#include "sim/base/error.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUE_JOBS = 256 };

typedef struct {
    RuntimeJob run;
    guint8 data[RUNTIME_JOB_BYTES];
} QueuedJob;

struct Runtime {
    RuntimeOptions options;
    Device *device;
    Comm *comm;                   /* opened, used and freed by the communication thread */
    CommQueue *queues[NUM_LANES]; /* NULL: no thread, or the main one */
    guint64 newest[NUM_LANES];    /* ordinal of the newest job */
    char *transport;
};

static gboolean run_job(gpointer context, gpointer data, GError **error)
{
    Runtime *runtime = context;
    const QueuedJob *job = data;

    return job->run(runtime->comm, job->data, error);
}

/* Where one thread fails, others that wait for it fail of the same. */
gboolean runtime_failed(const Runtime *runtime, GError **error)
{
    for (guint l = 0; l < NUM_LANES; l++) {
        const GError *why =
            runtime->queues[l] == NULL ? NULL : comm_queue_error(runtime->queues[l]);

        if (why != NULL)
            return fail(error, (ErrorCode)why->code, "%s", why->message);
    }
    return fail(error, ERROR_RUNTIME, "a thread stopped");
}

void runtime_start_storage(Runtime *runtime)
{
    if (runtime->queues[LANE_STORAGE] == NULL)
        runtime->queues[LANE_STORAGE] =
            comm_queue_new(QUEUE_JOBS, sizeof(QueuedJob), run_job, runtime);
}

guint64 runtime_post(Runtime *runtime, ProgressLane lane, RuntimeJob run, gconstpointer job,
                     gsize bytes)
{
    QueuedJob queued = {.run = run};

    g_assert(bytes <= sizeof queued.data);
    if (bytes > 0)
        memcpy(queued.data, job, bytes);
    const guint64 ordinal = comm_queue_post(runtime->queues[lane], &queued);
    if (ordinal != 0)
        runtime->newest[lane] = ordinal;
    return ordinal;
}

gboolean runtime_wait(Runtime *runtime, ProgressLane lane, guint64 ordinal)
{
    atomic_uint *waiting = &runtime->comm->progress.waiting;

    if (ordinal == 0)
        return TRUE;
    atomic_store_explicit(waiting, 1, memory_order_relaxed);
    const gboolean ok = comm_queue_wait(runtime->queues[lane], ordinal);
    atomic_store_explicit(waiting, 0, memory_order_relaxed);
    return ok;
}

gboolean runtime_wait_in_job(Runtime *runtime, ProgressLane lane, guint64 ordinal, GError **error)
{
    return ordinal == 0 || comm_queue_wait(runtime->queues[lane], ordinal) ||
           runtime_failed(runtime, error);
}

/* Where one thread has failed the other may still be in a job. */
gboolean runtime_quiet(Runtime *runtime, GError **error)
{
    const ProgressLane lanes[] = {LANE_COMMUNICATION, LANE_STORAGE};
    gboolean ok = TRUE;

    for (guint i = 0; i < G_N_ELEMENTS(lanes); i++)
        if (!runtime_wait(runtime, lanes[i], runtime->newest[lanes[i]]))
            ok = FALSE;
    return ok || runtime_failed(runtime, error);
}

gboolean runtime_do(Runtime *runtime, RuntimeJob run, gconstpointer job, gsize bytes,
                    GError **error)
{
    const guint64 ordinal = runtime_post(runtime, LANE_COMMUNICATION, run, job, bytes);

    if (ordinal == 0 || !runtime_wait(runtime, LANE_COMMUNICATION, ordinal))
        return runtime_failed(runtime, error);
    return TRUE;
}

/* The same while there is no communicator. */
static gboolean do_alone(Runtime *runtime, RuntimeJob run, GError **error)
{
    const guint64 ordinal =
        runtime_post(runtime, LANE_COMMUNICATION, run, &runtime, sizeof runtime);

    if (ordinal == 0 || !comm_queue_wait(runtime->queues[LANE_COMMUNICATION], ordinal))
        return runtime_failed(runtime, error);
    return TRUE;
}

/* ---- open and close ---- */

static gboolean open_comm(Comm *comm, gconstpointer job, GError **error)
{
    Runtime *runtime = *(Runtime *const *)job;
    const RuntimeOptions *options = &runtime->options;

    g_assert(comm == NULL);
    runtime->comm = options->rendezvous != NULL
                        ? comm_tcp_open(options->rendezvous, error)
                        : comm_open(options->transport, options->ranks_per_node, error);
    if (runtime->comm != NULL && options->nccl)
        runtime->comm = options->plug_in->comm_open(runtime->comm, runtime->device, error);
    return runtime->comm != NULL;
}

static gboolean close_comm(Comm *comm, gconstpointer job, GError **error)
{
    Runtime *runtime = *(Runtime *const *)job;

    (void)error;
    comm_free(comm);
    runtime->comm = NULL;
    return TRUE;
}

static Device *open_device(const RuntimeOptions *options, GError **error)
{
    const DeviceOptions device = {.threads = options->threads, .local_rank = options->local_rank};

    if (options->plug_in == NULL)
        return device_open(options->device, options->threads, error);
    g_assert(options->plug_in->device->kind == options->device);
    return device_open_with(options->plug_in->device, &device, error);
}

Runtime *runtime_open(const RuntimeOptions *options, GError **error)
{
    g_autoptr(Runtime) runtime = g_new0(Runtime, 1);

    runtime->options = *options;
    runtime->device = open_device(options, error);
    if (runtime->device == NULL)
        return NULL;
    runtime->queues[LANE_COMMUNICATION] =
        comm_queue_new(QUEUE_JOBS, sizeof(QueuedJob), run_job, runtime);
    if (!do_alone(runtime, open_comm, error))
        return NULL;
    runtime->options.rendezvous = NULL; /* it was borrowed */
    const gboolean staged = device_queues(runtime->device) != NULL && runtime->comm->size > 1 &&
                            !runtime->comm->ops->takes_device_memory;
    runtime->transport = g_strdup_printf(
        "%s%s%s", comm_describe(runtime->comm), staged ? " through pinned host memory" : "",
        options->rendezvous != NULL ? ", ranks joined over TCP" : "");
    return g_steal_pointer(&runtime);
}

void runtime_close(Runtime *runtime)
{
    if (runtime == NULL)
        return;
    comm_queue_free(runtime->queues[LANE_STORAGE]); /* it tells the communicator its progress */
    if (runtime->comm != NULL) {
        g_autoptr(GError) why = NULL;

        if (!do_alone(runtime, close_comm, &why))
            g_debug("closing the communicator: %s", why->message);
    }
    comm_queue_free(runtime->queues[LANE_COMMUNICATION]);
    device_free(runtime->device);
    g_free(runtime->transport);
    g_free(runtime);
}

/* ---- facts ---- */

guint runtime_rank(const Runtime *runtime)
{
    return runtime->comm->rank;
}

guint runtime_size(const Runtime *runtime)
{
    return runtime->comm->size;
}

Device *runtime_device(Runtime *runtime)
{
    return runtime->device;
}

const char *runtime_transport(const Runtime *runtime)
{
    return runtime->transport;
}

const char *runtime_library(const Runtime *runtime)
{
    return device_library(runtime->device);
}

void runtime_note(Runtime *runtime, const char *what)
{
    comm_note(runtime->comm, what);
}

void runtime_note_call(Runtime *runtime, const char *segment, CommCall call)
{
    comm_note_call(runtime->comm, segment, call);
}

void runtime_begin(Runtime *runtime, guint64 at)
{
    progress_begin(&runtime->comm->progress, LANE_COMPUTE, at);
}

void runtime_end(Runtime *runtime)
{
    progress_end(&runtime->comm->progress, LANE_COMPUTE);
}

Comm *runtime_peer(Runtime *runtime, guint rank)
{
    return comm_peer(runtime->comm, rank);
}

const CudaPlugIn *runtime_nccl(const Runtime *runtime)
{
    return runtime->options.nccl ? runtime->options.plug_in : NULL;
}

/* ---- control ---- */

/* On the communication thread: a collective of all ranks that is no op of a program begins. */
static void begin_control(Comm *comm, guint32 number)
{
    const guint64 last =
        atomic_load_explicit(&comm->progress.lane[LANE_COMMUNICATION].at, memory_order_relaxed);

    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(last >> 32, number));
}

static gboolean agree(Comm *comm, gconstpointer job, GError **error)
{
    begin_control(comm, PROGRESS_AGREE);
    const gboolean ok = comm->ops->agree_max(comm, *(gint64 *const *)job, error);
    progress_end(&comm->progress, LANE_COMMUNICATION);
    return ok;
}

gboolean runtime_agree_max(Runtime *runtime, gint64 *value, GError **error)
{
    return runtime_do(runtime, agree, &value, sizeof value, error);
}

typedef struct {
    gconstpointer data;
    gsize bytes;
    GPtrArray *all;
} Gather;

static gboolean gather(Comm *comm, gconstpointer job, GError **error)
{
    const Gather *what = job;

    begin_control(comm, PROGRESS_GATHER);
    const gboolean ok = comm->ops->gather_bytes(comm, what->data, what->bytes, what->all, error);
    progress_end(&comm->progress, LANE_COMMUNICATION);
    return ok;
}

gboolean runtime_gather(Runtime *runtime, gconstpointer data, gsize bytes, GPtrArray *all,
                        GError **error)
{
    const Gather what = {data, bytes, all};

    return runtime_do(runtime, gather, &what, sizeof what, error);
}

static gboolean copy_bytes_in(Comm *comm, gconstpointer job, GError **error)
{
    (void)error;
    memcpy(*(guint64 *const *)job, comm->bytes_in, sizeof comm->bytes_in);
    return TRUE;
}

void runtime_bytes_in(Runtime *runtime, guint64 bytes[NUM_VOLUMES])
{
    g_autoptr(GError) why = NULL;
    guint64 *to = bytes;

    if (!runtime_do(runtime, copy_bytes_in, &to, sizeof to, &why))
        memset(bytes, 0, NUM_VOLUMES * sizeof *bytes);
}

guint64 runtime_foreign_bytes(const Runtime *runtime)
{
    return comm_foreign_bytes(runtime->comm);
}

static gboolean abort_job(Comm *comm, gconstpointer job, GError **error)
{
    (void)error;
    comm->ops->abort(comm, *(const int *)job);
    return TRUE;
}

void runtime_abort(Runtime *runtime, int status)
{
    g_autoptr(GError) why = NULL;

    if (!runtime_do(runtime, abort_job, &status, sizeof status, &why))
        runtime->comm->ops->abort(runtime->comm, status); /* its thread has stopped */
    exit(status);
}
