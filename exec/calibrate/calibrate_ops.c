#include "exec/calibrate/calibrate_ops.h"

#include "exec/base/process.h"
#include "exec/calibrate/calibrate_samples.h"
#include "exec/calibrate/calibrate_tasks.h"

#include <string.h>

static const guint64 MIB = 1024 * 1024;

enum {
    LEAST_SAMPLES = 5, /* of an op; one more comes first and is not counted */
    MOST_SAMPLES = 400,
    TINY_ELEMENTS = 16, /* of the op that shows the fixed cost */
    TINY_CALLS = 2000,
    WAKE_ELEMENTS = 65536, /* enough for every thread to get some */
};

/* ---- memory ---- */

/* Each call takes the next place of a ring, so that a buffer that a step last used long ago is not
 * found in the cache.  One ring holds what is only read, and keeps its values. */
typedef struct {
    char *base;
    gsize bytes, next;
} Ring;

enum { RING_MIB = 64, PATTERN_BYTES = 4096 };

typedef struct {
    Ring read, written;
    char *scratch;
    char *idle; /* of WAKE_ELEMENTS */
    gint32 *ids;
    double scalars[MAX_OPERANDS], hyper[NUM_HYPER];
} Memory;

static char *ring_take(Ring *ring, gsize bytes)
{
    const gsize line = 64, padded = (bytes + line - 1) / line * line;

    g_assert(padded <= ring->bytes);
    if (ring->next + padded > ring->bytes)
        ring->next = 0;
    ring->next += padded;
    return ring->base + ring->next - padded;
}

/* Positive values around 1, in fp32 and, half by half, in bf16: no operand may hold denormals,
 * infinities or NaN, which take other times. */
static void fill_pattern(char *at, gsize bytes)
{
    guint16 *half = (guint16 *)(gpointer)at;

    for (gsize i = 0; i < bytes / sizeof(guint32); i++)
        half[2 * i] = half[2 * i + 1] = (guint16)(0x3f00 + i * 37 % 256); /* 0.5 to 2 */
}

static void refill(const Memory *memory, char *to, gsize bytes)
{
    for (gsize done = 0; done < bytes; done += PATTERN_BYTES)
        memcpy(to + done, memory->read.base, MIN(PATTERN_BYTES, bytes - done));
}

/* The largest needs of @tasks. */
typedef struct {
    guint64 ids, scratch_bytes;
} Needs;

static Needs tasks_need(const GArray *tasks, guint threads)
{
    Needs needs = {.ids = 1, .scratch_bytes = 0};

    for (guint i = 0; i < tasks->len; i++) {
        const Op *op = &g_array_index(tasks, OpTask, i).op;
        needs.ids = MAX(needs.ids, op->sizes.rows);
        needs.scratch_bytes = MAX(needs.scratch_bytes, op_workspace_bytes(op, DEVICE_CPU, threads));
    }
    return needs;
}

static gboolean memory_open(Memory *memory, Session *session, const Needs *needs, GError **error)
{
    const gsize ring_bytes = RING_MIB * MIB, scratch_bytes = needs->scratch_bytes;
    const gsize idle_bytes = WAKE_ELEMENTS * sizeof(float);
    char *all = session_alloc(session, 2 * ring_bytes + idle_bytes + scratch_bytes, error);

    if (all == NULL)
        return FALSE;
    *memory = (Memory){.read = {all, ring_bytes, 0},
                       .written = {all + ring_bytes, ring_bytes, 0},
                       .idle = all + 2 * ring_bytes,
                       .scratch = all + 2 * ring_bytes + idle_bytes,
                       .ids = g_new(gint32, needs->ids),
                       .hyper = {[HYPER_LR] = 1e-6,
                                 [HYPER_BETA1] = 0.9,
                                 [HYPER_BETA2] = 0.95,
                                 [HYPER_EPS] = 1e-8,
                                 [HYPER_WEIGHT_DECAY] = 0.1,
                                 [HYPER_STEP] = 10,
                                 [HYPER_MAX_NORM] = 1}};
    fill_pattern(all, 2 * ring_bytes);
    memset(memory->scratch, 0, scratch_bytes);
    for (guint64 i = 0; i < needs->ids; i++)
        memory->ids[i] = (gint32)(i * 7 % CALIBRATE_IDS);
    return TRUE;
}

/* ---- one op ---- */

/* Bytes of operand @i, from what the op with and without it moves. */
static gsize operand_bytes(const OpTask *task, guint i)
{
    Op with = task->op, without = task->op;

    for (guint k = 0; k < task->op.num_operands; k++)
        with.operands[k].access = without.operands[k].access = ACCESS_READ;
    with.num_operands = i + 1;
    without.num_operands = i;
    return (gsize)(op_memory_bytes(&with, task->unit_elements) -
                   op_memory_bytes(&without, task->unit_elements));
}

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
        trial->bytes[i] = operand_bytes(task, i);
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
        return ring_take(&memory->read, trial->bytes[i]);
    case 'w':
    case 'u':
        place = ring_take(&memory->written, trial->bytes[i]);
        refill(memory, place, trial->bytes[i]);
        return place;
    case 'i':
        return memory->ids;
    case 'h':
        return memory->hyper;
    case 's':
    case 'S':
        memory->scalars[i] = 1;
        return &memory->scalars[i];
    case 'x':
        return memory->scratch;
    default:
        return ring_take(&memory->written, trial->bytes[i]);
    }
}

/* Gives the next call its memory, operand 0 last: that is what the op before has just written. */
static void trial_prepare(Trial *trial)
{
    for (guint i = trial->task->op.num_operands; i-- > 0;)
        trial->launch.operand[i] = place_operand(trial, i);
}

/* Threads that have slept since the last call are slow to start; in a step they have just worked.
 */
static void wake_threads(const Memory *memory, Device *device)
{
    const Op op = {.kind = OP_CAST,
                   .dtype = DTYPE_FP32,
                   .dtype_out = DTYPE_FP32,
                   .num_operands = 2,
                   .operands = {{.access = ACCESS_READ}, {.access = ACCESS_WRITE}},
                   .sizes = {.elements = WAKE_ELEMENTS}};
    const Launch launch = {.op = &op, .operand = {memory->read.base, memory->idle}};

    device_run(device, &launch);
}

static gboolean trial_call(const Trial *trial, Device *device, double *seconds, GError **error)
{
    if (device->threads > 1)
        wake_threads(trial->memory, device);

    const double start = clock_s();
    device_run(device, &trial->launch);
    if (!device_sync(device, error))
        return FALSE;
    *seconds = clock_s() - start;
    return TRUE;
}

/* Runs until the window is over: ranks that run the same op do so at the same time throughout. */
static gboolean trial_run(Trial *trial, Device *device, double window_s, double *seconds,
                          GError **error)
{
    const double until = clock_s() + window_s;
    double samples[MOST_SAMPLES];
    guint num = 0;

    trial_prepare(trial);
    if (!trial_call(trial, device, &samples[0], error))
        return FALSE;
    while (num < LEAST_SAMPLES || (num < MOST_SAMPLES && clock_s() < until)) {
        trial_prepare(trial);
        if (!trial_call(trial, device, &samples[num++], error))
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
    trial_close(&trial);
    bench->overhead_s = samples_middle_mean(samples, G_N_ELEMENTS(samples));
    return TRUE;
}

/* ---- all ops ---- */

static gboolean run_task(const OpBench *bench, Memory *memory, OpTask *task, double window_s,
                         GError **error)
{
    double together = 0, seconds = 0;
    Trial trial;

    trial_open(&trial, memory, task);
    const gboolean ok = session_max(bench->session, &together, error) &&
                        trial_run(&trial, bench->device, window_s, &seconds, error);
    trial_close(&trial);
    task->seconds = MAX(seconds - bench->overhead_s, seconds / 4);
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

gboolean op_bench_run(OpBench *bench, GArray *tasks, GError **error)
{
    const Needs needs = tasks_need(tasks, bench->device->threads);
    Memory memory;

    if (!memory_open(&memory, bench->session, &needs, error))
        return FALSE;
    gboolean ok = measure_overhead(bench, &memory, error);
    for (guint i = 0; ok && i < tasks->len; i++)
        ok = run_task(bench, &memory, &g_array_index(tasks, OpTask, i),
                      bench->budget_s / tasks->len, error);
    g_free(memory.ids);
    return ok && average_tasks(bench, tasks, error);
}
