#include "exec/calibrate/calibrate_ops.h"

#include "exec/base/process.h"
#include "exec/calibrate/calibrate_memory.h"
#include "exec/calibrate/calibrate_tasks.h"
#include "sim/base/samples.h"

#include <string.h>

enum {
    LEAST_SAMPLES = 5, /* of an op; one more comes first and is not counted */
    MOST_SAMPLES = 400,
    TINY_ELEMENTS = 16, /* of the op that shows the fixed cost */
    TINY_CALLS = 2000,
    WAKE_LAUNCHES = 4, /* that keep a queue busy until the host has issued the op */
};

/* ---- one op ---- */

/* A unit of one matrix, whole on this rank. */
static UnitMap *task_map(const OpTask *task)
{
    const ParamShape shape = {
        .rows = MAX(task->op.sizes.rows, 1), .cols = task->op.sizes.out, .dims = 2};
    g_autoptr(GArray) params = g_array_new(FALSE, FALSE, sizeof(ParamShape));

    g_array_append_val(params, shape);
    return unit_map_new(params, 1, FORM_PER_PARAMETER);
}

typedef struct {
    Memory *memory;
    const OpTask *task;
    char *roles;
    gsize bytes[MAX_OPERANDS];
    Launch launch;
    UnitMap *map;
} Trial;

static void trial_open(Trial *trial, Memory *memory, const OpTask *task)
{
    *trial = (Trial){.memory = memory,
                     .task = task,
                     .roles = op_task_roles(&task->op),
                     .launch = {.op = &task->op, .first = TRUE}};
    if (task->op.unit != NO_UNIT)
        trial->launch.map = trial->map = task_map(task);
    for (guint i = 0; i < task->op.num_operands; i++) {
        trial->bytes[i] = memory_operand_bytes(task, i);
        trial->launch.part[i] = trial->map != NULL ? PART_SHARD : PART_NONE;
    }
}

static void trial_close(Trial *trial)
{
    g_free(trial->roles);
    g_clear_pointer(&trial->map, unit_map_free);
}

static void *place_operand(Trial *trial, guint i)
{
    Memory *memory = trial->memory;
    char *place;

    switch (trial->roles[i]) {
    case 'c':
        return memory_take(&memory->read, trial->bytes[i]);
    case 'w':
    case 'u':
        place = memory_take(&memory->written, trial->bytes[i]);
        memory_refill(memory, place, trial->bytes[i]);
        return place;
    case 'i':
        return memory->ids;
    case 'h':
        return memory->hyper;
    case 's':
        return &memory->scalars[i];
    case 'S':
        return &memory->results[i];
    case 'x':
        return memory->scratch;
    default:
        return memory_take(&memory->written, trial->bytes[i]);
    }
}

/* Gives the next call its memory, operand 0 last: that is what the op before has just written. */
static void trial_prepare(Trial *trial)
{
    for (guint i = trial->task->op.num_operands; i-- > 0;)
        trial->launch.operand[i] = place_operand(trial, i);
}

/* Threads that have slept since the last call are slow to start, and an empty queue shows when the
 * host got to it; in a step they have just worked, and it is not empty. */
static void wake(const Memory *memory, Device *device)
{
    const guint times = device_queues(device) != NULL ? WAKE_LAUNCHES : 1;

    for (guint i = 0; i < times; i++)
        memory_keep_busy(device, COMPUTE_STREAM, memory->read.base, memory->idle, WAKE_ELEMENTS);
}

/* Between two events of the queue. */
static gboolean time_queued(const Trial *trial, const OpBench *bench, double *seconds,
                            GError **error)
{
    Device *device = bench->device;
    const DeviceQueueOps *queues = device_queues(device);

    wake(trial->memory, device);
    queues->record(device, COMPUTE_STREAM, bench->begin);
    device_run(device, &trial->launch);
    queues->record(device, COMPUTE_STREAM, bench->end);
    if (!device_sync(device, error))
        return FALSE;
    *seconds = queues->seconds(device, bench->begin, bench->end);
    return TRUE;
}

static gboolean trial_call(const Trial *trial, const OpBench *bench, double *seconds,
                           GError **error)
{
    if (device_queues(bench->device) != NULL)
        return time_queued(trial, bench, seconds, error);
    if (bench->device->threads > 1)
        wake(trial->memory, bench->device);

    const double start = clock_s();
    device_run(bench->device, &trial->launch);
    if (!device_sync(bench->device, error))
        return FALSE;
    *seconds = clock_s() - start;
    return TRUE;
}

/* Runs until the window is over: ranks that run the same op do so at the same time throughout. */
static gboolean trial_run(Trial *trial, const OpBench *bench, double window_s, double *seconds,
                          GError **error)
{
    const double until = clock_s() + window_s;
    double samples[MOST_SAMPLES];
    guint num = 0;

    trial_prepare(trial);
    if (!trial_call(trial, bench, &samples[0], error))
        return FALSE;
    while (num < LEAST_SAMPLES || (num < MOST_SAMPLES && clock_s() < until)) {
        trial_prepare(trial);
        if (!trial_call(trial, bench, &samples[num++], error))
            return FALSE;
    }
    *seconds = samples_middle_mean(samples, num);
    return TRUE;
}

/* Calls of an op with next to no work, back to back. */
static gboolean measure_overhead(OpBench *bench, Memory *memory, GError **error)
{
    const OpSizes tiny = {.elements = TINY_ELEMENTS};
    g_autoptr(GArray) tasks = g_array_new(FALSE, TRUE, sizeof(OpTask));
    double samples[4 * LEAST_SAMPLES];
    Trial trial;

    op_tasks_add(tasks, OP_ACCUMULATE, DTYPE_FP32, &tiny, 0);
    trial_open(&trial, memory, &g_array_index(tasks, OpTask, 0));
    trial_prepare(&trial);
    for (guint s = 0; s < G_N_ELEMENTS(samples); s++) {
        const double start = clock_s();
        for (guint call = 0; call < TINY_CALLS; call++)
            device_run(bench->device, &trial.launch);
        if (!device_sync(bench->device, error))
            return FALSE;
        samples[s] = (clock_s() - start) / TINY_CALLS;
    }
    bench->overhead_s = bench->offset_s = samples_middle_mean(samples, G_N_ELEMENTS(samples));
    const gboolean ok = device_queues(bench->device) == NULL ||
                        trial_run(&trial, bench, 0, &bench->offset_s, error);
    trial_close(&trial);
    return ok;
}

/* ---- all ops ---- */

static gboolean run_task(const OpBench *bench, Memory *memory, OpTask *task, double window_s,
                         GError **error)
{
    double together = 0, seconds = 0;
    Trial trial;

    trial_open(&trial, memory, task);
    const gboolean ok = session_max(bench->session, &together, error) &&
                        trial_run(&trial, bench, window_s, &seconds, error);
    trial_close(&trial);
    task->seconds = MAX(seconds - bench->offset_s, seconds / 4);
    return ok;
}

static gboolean average_tasks(OpBench *bench, GArray *tasks, GError **error)
{
    g_autofree double *seconds = g_new(double, tasks->len + 1);

    for (guint i = 0; i < tasks->len; i++)
        seconds[i] = g_array_index(tasks, OpTask, i).seconds;
    seconds[tasks->len] = bench->overhead_s;
    if (!session_mean(bench->session, seconds, tasks->len + 1, error))
        return FALSE;
    for (guint i = 0; i < tasks->len; i++)
        g_array_index(tasks, OpTask, i).seconds = seconds[i];
    bench->overhead_s = seconds[tasks->len];
    return TRUE;
}

static gboolean open_events(OpBench *bench, GError **error)
{
    const DeviceQueueOps *queues = device_queues(bench->device);

    if (queues == NULL)
        return TRUE;
    bench->begin = queues->event_new(bench->device, TRUE, error);
    bench->end = bench->begin == NULL ? NULL : queues->event_new(bench->device, TRUE, error);
    return bench->end != NULL;
}

static void close_events(OpBench *bench)
{
    const DeviceQueueOps *queues = device_queues(bench->device);

    if (bench->begin != NULL)
        queues->event_free(bench->device, bench->begin);
    if (bench->end != NULL)
        queues->event_free(bench->device, bench->end);
}

gboolean op_bench_run(OpBench *bench, GArray *tasks, GError **error)
{
    Memory memory;

    if (!memory_open(&memory, bench->session, bench->device, tasks, error))
        return FALSE;
    gboolean ok = open_events(bench, error) && measure_overhead(bench, &memory, error);
    for (guint i = 0; ok && i < tasks->len; i++)
        ok = run_task(bench, &memory, &g_array_index(tasks, OpTask, i),
                      bench->budget_s / tasks->len, error);
    close_events(bench);
    memory_close(&memory);
    return ok && average_tasks(bench, tasks, error);
}
