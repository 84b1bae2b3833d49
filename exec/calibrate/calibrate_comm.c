#include "exec/calibrate/calibrate_comm.h"

#include "exec/base/process.h"
#include "exec/calibrate/calibrate_memory.h"
#include "sim/base/samples.h"

#include <string.h>

#define KIB ((guint64)1024)
#define MIB ((guint64)1024 * 1024)

enum { LEAST_CALLS = 5, MOST_CALLS = 500, PILOT_CALLS = 3 };
/* A filler of 4 Mi elements moves 32 MiB: 7 us of an H200, for 2 or 3 us of the host's.  NCCL takes
 * tens of us to issue a collective. */
enum { MOST_FILLER_ELEMENTS = 4 << 20, LEAST_FILLERS = 4, MOST_FILLERS = 64 };

static const struct {
    guint64 step, largest;
} scales[NUM_CALIBRATE_SCALES] = {
    [CALIBRATE_CPU] = {4, 64 * MIB},   [CALIBRATE_CPU_QUICK] = {16, 8 * MIB},
    [CALIBRATE_GPU] = {4, 256 * MIB},  [CALIBRATE_GPU_QUICK] = {16, 256 * MIB},
    [CALIBRATE_TINY] = {16, 16 * KIB},
};

GArray *comm_tasks_new(CalibrateScale scale)
{
    const guint64 step = scales[scale].step, largest = scales[scale].largest;
    const Volume kinds[] = {VOLUME_ALL_GATHER, VOLUME_REDUCE_SCATTER, VOLUME_ALL_REDUCE};
    const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};
    GArray *tasks = g_array_new(FALSE, TRUE, sizeof(CommTask));

    for (guint d = 0; d < G_N_ELEMENTS(dtypes); d++)
        for (guint k = 0; k < G_N_ELEMENTS(kinds); k++)
            for (guint64 bytes = KIB; bytes < largest * step; bytes *= step) {
                const CommTask task = {
                    .kind = kinds[k], .dtype = dtypes[d], .bytes = MIN(bytes, largest)};
                g_array_append_val(tasks, task);
            }
    return tasks;
}

/* On a GPU: two events of the stream, and what keeps it busy before the first. */
typedef struct {
    Device *device; /* NULL: the host's clock, as a call returns when all is done */
    DeviceEvent *begin, *end;
    char *idle; /* two of filler_elements, and what ranks meet with */
    guint64 filler_elements;
    guint fillers; /* launches before a call, on all ranks alike */
} Clock;

/* Two rings of memory, for whole buffers and for shards: as in a step, where a call finds buffers
 * that were last used long ago. */
typedef struct {
    char *full, *shard;
    gsize full_bytes, shard_bytes; /* of the rings */
    Clock clock;
} Buffers;

/* One call of a task, as the communication thread gets it. */
typedef struct {
    Volume kind;
    DType dtype;
    void *full, *shard;
    ShardPiece piece;
    const Clock *clock;
    gboolean late; /* result: begin was over when the host had issued the call */
} CollectiveCall;

static gboolean run_call(Session *session, gpointer data, GError **error)
{
    const CollectiveCall *call = data;
    const CommOps *ops = session->comm->ops;
    const CommRun run = {.offset = 0, .elements = call->piece.chunk * session->group->size};

    switch (call->kind) {
    case VOLUME_ALL_GATHER:
        return ops->all_gather(session->group, call->shard, call->full, &call->piece, 1,
                               call->dtype, error);
    case VOLUME_REDUCE_SCATTER:
        return ops->reduce_scatter(session->group, call->full, call->shard, &call->piece, 1,
                                   call->dtype, error);
    case VOLUME_ALL_REDUCE:
        return ops->all_reduce(session->group, call->full, &run, 1, call->dtype, REDUCE_SUM, error);
    default:
        g_assert_not_reached();
    }
}

/* Fillers, then an all-reduce of a number a rank, which no rank leaves before all have come. */
static gboolean gather_ranks(Session *session, const Clock *clock, GError **error)
{
    const gsize filler_bytes = clock->filler_elements * sizeof(float);
    const CommRun run = {.offset = 0, .elements = session->group->size};

    for (guint i = 0; i < clock->fillers; i++)
        memory_keep_busy(clock->device, SESSION_STREAM, clock->idle, clock->idle + filler_bytes,
                         clock->filler_elements);
    return session->comm->ops->all_reduce(session->group, clock->idle + 2 * filler_bytes, &run, 1,
                                          DTYPE_FP32, REDUCE_SUM, error);
}

static gboolean run_between_marks(Session *session, gpointer data, GError **error)
{
    CollectiveCall *call = data;
    const Clock *clock = call->clock;

    if (clock->device == NULL)
        return run_call(session, data, error);
    const DeviceQueueOps *queues = device_queues(clock->device);
    if (!gather_ranks(session, clock, error))
        return FALSE;
    queues->record(clock->device, SESSION_STREAM, clock->begin);
    const gboolean ok = run_call(session, data, error);
    call->late = queues->happened(clock->device, clock->begin);
    queues->record(clock->device, SESSION_STREAM, clock->end);
    return ok;
}

static gboolean time_call(Session *session, CollectiveCall *call, double *seconds, GError **error)
{
    const Clock *clock = call->clock;
    const double start = clock_s();

    if (!session_call(session, run_between_marks, call, error))
        return FALSE;
    *seconds = clock_s() - start;
    if (clock->device == NULL)
        return TRUE;
    if (!device_queues(clock->device)->sync(clock->device, SESSION_STREAM, error))
        return FALSE;
    *seconds = device_queues(clock->device)->seconds(clock->device, clock->begin, clock->end);
    return TRUE;
}

static char *ring_place(char *ring, gsize ring_bytes, gsize bytes, guint call)
{
    const gsize places = MAX(1, ring_bytes / MAX(bytes, 1));

    return ring + call % places * bytes;
}

/* Seconds of @num calls, one by one, and whether any was late. */
static gboolean time_calls(Session *session, const Buffers *buffers, CommTask *task,
                           double *seconds, guint num, GError **error)
{
    const gsize shard_bytes = task->bytes / session->group->size;

    task->late = FALSE;
    for (guint i = 0; i < num; i++) {
        CollectiveCall call = {
            .kind = task->kind,
            .dtype = task->dtype,
            .full = ring_place(buffers->full, buffers->full_bytes, task->bytes, i),
            .shard = ring_place(buffers->shard, buffers->shard_bytes, shard_bytes, i),
            .piece = {.chunk = shard_bytes / dtype_bytes(task->dtype)},
            .clock = &buffers->clock,
        };
        if (!time_call(session, &call, &seconds[i], error))
            return FALSE;
        task->late |= call.late;
    }
    return TRUE;
}

/* Calls before those that count, with more fillers until none is late on any rank. */
static gboolean run_pilot(Session *session, Buffers *buffers, CommTask *task, double *seconds,
                          GError **error)
{
    Clock *clock = &buffers->clock;

    for (;; clock->fillers *= 2) {
        if (!time_calls(session, buffers, task, seconds, PILOT_CALLS, error))
            return FALSE;
        double late = task->late;
        if (clock->device != NULL && !session_max(session, &late, error))
            return FALSE;
        if (late < 1 || clock->fillers >= MOST_FILLERS)
            return TRUE;
    }
}

/* Every rank must make as many calls: the slowest's pilot says how many. */
static gboolean run_task(Session *session, Buffers *buffers, CommTask *task, double window_s,
                         GError **error)
{
    const guint64 unit = session->group->size * dtype_bytes(task->dtype);
    double seconds[MOST_CALLS];

    task->bytes = MAX(task->bytes / unit, 1) * unit;
    if (!run_pilot(session, buffers, task, seconds, error))
        return FALSE;
    double pilot = seconds[PILOT_CALLS - 1];
    if (!session_max(session, &pilot, error))
        return FALSE;
    const guint num = (guint)CLAMP(window_s / pilot, LEAST_CALLS, MOST_CALLS);
    if (!time_calls(session, buffers, task, seconds, num, error))
        return FALSE;
    task->seconds = samples_middle_mean(seconds, num);
    return TRUE;
}

/* Maps every page of every rank's rings, so that no call pays for that. */
static gboolean touch(Session *session, const Buffers *buffers, GError **error)
{
    const Volume kinds[] = {VOLUME_ALL_GATHER, VOLUME_REDUCE_SCATTER, VOLUME_ALL_REDUCE};
    const guint64 unit = session->group->size * dtype_bytes(DTYPE_FP32);
    double seconds;

    if (session->device == NULL) {
        memset(buffers->full, 0, buffers->full_bytes);
        memset(buffers->shard, 0, buffers->shard_bytes);
    }
    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        CommTask task = {
            .kind = kinds[i], .dtype = DTYPE_FP32, .bytes = buffers->full_bytes / unit * unit};
        if (!time_calls(session, buffers, &task, &seconds, 1, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean average_tasks(Session *session, GArray *tasks, GError **error)
{
    g_autofree double *seconds = g_new(double, tasks->len);

    for (guint i = 0; i < tasks->len; i++)
        seconds[i] = g_array_index(tasks, CommTask, i).seconds;
    if (!session_mean(session, seconds, tasks->len, error))
        return FALSE;
    for (guint i = 0; i < tasks->len; i++)
        g_array_index(tasks, CommTask, i).seconds = seconds[i];
    return TRUE;
}

static gboolean clock_open(Clock *clock, Session *session, guint64 largest, GError **error)
{
    const DeviceQueueOps *queues = device_queues(session->device);
    const guint64 elements = MIN(largest / 16, MOST_FILLER_ELEMENTS);

    *clock =
        (Clock){.device = session->device, .filler_elements = elements, .fillers = LEAST_FILLERS};
    clock->idle = session_alloc(
        session, 2 * elements * sizeof(float) + session->group->size * sizeof(float), error);
    clock->begin = clock->idle ? queues->event_new(session->device, TRUE, error) : NULL;
    clock->end = clock->begin ? queues->event_new(session->device, TRUE, error) : NULL;
    return clock->end != NULL;
}

static gboolean buffers_open(Buffers *buffers, Session *session, const GArray *tasks,
                             GError **error)
{
    guint64 largest = 0;

    for (guint i = 0; i < tasks->len; i++)
        largest = MAX(largest, g_array_index(tasks, CommTask, i).bytes);
    *buffers = (Buffers){.full_bytes = MAX(32 * MIB, largest)};
    buffers->shard_bytes = buffers->full_bytes / session->group->size;
    buffers->full = session_alloc(session, buffers->full_bytes, error);
    buffers->shard = buffers->full ? session_alloc(session, buffers->shard_bytes, error) : NULL;
    if (buffers->shard == NULL || session->device == NULL)
        return buffers->shard != NULL;
    return clock_open(&buffers->clock, session, largest, error);
}

static void buffers_close(Buffers *buffers, Session *session)
{
    session_release(session, buffers->full);
    session_release(session, buffers->shard);
    session_release(session, buffers->clock.idle);
    if (buffers->clock.begin != NULL)
        device_queues(session->device)->event_free(session->device, buffers->clock.begin);
    if (buffers->clock.end != NULL)
        device_queues(session->device)->event_free(session->device, buffers->clock.end);
}

gboolean comm_tasks_run(Session *session, GArray *tasks, double budget_s, GError **error)
{
    const double window_s = budget_s / tasks->len;
    Buffers buffers;

    gboolean ok = buffers_open(&buffers, session, tasks, error) && touch(session, &buffers, error);
    for (guint i = 0; ok && i < tasks->len; i++)
        ok = run_task(session, &buffers, &g_array_index(tasks, CommTask, i), window_s, error);
    buffers_close(&buffers, session);
    return ok && average_tasks(session, tasks, error);
}

void comm_tasks_add_rows(const GArray *tasks, guint ranks, Measured *measured)
{
    for (guint i = 0; i < tasks->len; i++) {
        const CommTask *task = &g_array_index(tasks, CommTask, i);
        const MeasuredCollective row = {.collective = g_strdup(volume_name(task->kind)),
                                        .dtype = task->dtype,
                                        .ranks = ranks,
                                        .bytes = task->bytes,
                                        .seconds = samples_round(task->seconds)};
        g_array_append_val(measured->collectives, row);
    }
}
