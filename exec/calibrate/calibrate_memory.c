#include "exec/calibrate/calibrate_memory.h"

#include <string.h>

static const guint64 MIB = 1024 * 1024;

enum { RING_MIB = 64, PATTERN_BYTES = 4096, ALIGNED_BYTES = 256 };

static gsize padded(gsize bytes)
{
    return (bytes + ALIGNED_BYTES - 1) / ALIGNED_BYTES * ALIGNED_BYTES;
}

char *memory_take(Ring *ring, gsize bytes)
{
    const gsize size = padded(bytes);

    g_assert(size <= ring->bytes);
    if (ring->next + size > ring->bytes)
        ring->next = 0;
    ring->next += size;
    return ring->base + ring->next - size;
}

/* Positive values around 1, in fp32 and, half by half, in bf16: no operand may hold denormals,
 * infinities or NaN, which take other times. */
static void fill_pattern(Device *device, char *at, gsize bytes)
{
    enum { AT_ONCE = 1 << 20 };
    g_autofree guint16 *half = g_malloc(AT_ONCE);

    for (gsize i = 0; i < AT_ONCE / sizeof(guint32); i++)
        half[2 * i] = half[2 * i + 1] = (guint16)(0x3f00 + i * 37 % 256); /* 0.5 to 2 */
    for (gsize done = 0; done < bytes; done += AT_ONCE)
        device_write(device, at + done, half, MIN(AT_ONCE, bytes - done));
}

/* On a CPU from a part that stays in the cache. */
void memory_refill(const Memory *memory, char *to, gsize bytes)
{
    const DeviceQueueOps *queues = device_queues(memory->device);

    if (queues != NULL) {
        queues->copy(memory->device, COMPUTE_STREAM, to, memory->read.base, bytes);
        return;
    }
    for (gsize done = 0; done < bytes; done += PATTERN_BYTES)
        memcpy(to + done, memory->read.base, MIN(PATTERN_BYTES, bytes - done));
}

void memory_keep_busy(Device *device, guint stream, const void *from, void *to, guint64 elements)
{
    const Op op = {.kind = OP_CAST,
                   .dtype = DTYPE_FP32,
                   .dtype_out = DTYPE_FP32,
                   .num_operands = 2,
                   .operands = {{.access = ACCESS_READ}, {.access = ACCESS_WRITE}},
                   .sizes = {.elements = elements}};
    const Launch launch = {.op = &op, .stream = stream, .operand = {(void *)from, to}};

    device_run(device, &launch);
}

gsize memory_operand_bytes(const OpTask *task, guint i)
{
    Op with = task->op, without = task->op;

    for (guint k = 0; k < task->op.num_operands; k++)
        with.operands[k].access = without.operands[k].access = ACCESS_READ;
    with.num_operands = i + 1;
    without.num_operands = i;
    return (gsize)(op_memory_bytes(&with, task->unit_elements) -
                   op_memory_bytes(&without, task->unit_elements));
}

/* The largest needs of @tasks. */
typedef struct {
    guint64 ids, scratch_bytes, ring_bytes;
} Needs;

static Needs tasks_need(const GArray *tasks, const Device *device)
{
    Needs needs = {.ids = 1, .ring_bytes = RING_MIB * MIB};

    for (guint i = 0; i < tasks->len; i++) {
        const OpTask *task = &g_array_index(tasks, OpTask, i);

        needs.ids = MAX(needs.ids, task->op.sizes.rows);
        needs.scratch_bytes = MAX(
            needs.scratch_bytes, op_workspace_bytes(&task->op, device->ops->kind, device->threads));
        for (guint k = 0; k < task->op.num_operands; k++)
            needs.ring_bytes = MAX(needs.ring_bytes, padded(memory_operand_bytes(task, k)));
    }
    return needs;
}

static void write_small(const Memory *memory, guint64 num_ids)
{
    const double hyper[NUM_HYPER] = {
        [HYPER_LR] = 1e-6,          [HYPER_BETA1] = 0.9, [HYPER_BETA2] = 0.95, [HYPER_EPS] = 1e-8,
        [HYPER_WEIGHT_DECAY] = 0.1, [HYPER_STEP] = 10,   [HYPER_MAX_NORM] = 1};
    g_autofree gint32 *ids = g_new(gint32, num_ids);
    double ones[2 * MAX_OPERANDS];

    for (guint64 i = 0; i < num_ids; i++)
        ids[i] = (gint32)(i * 7 % CALIBRATE_IDS);
    for (guint i = 0; i < G_N_ELEMENTS(ones); i++)
        ones[i] = 1;
    device_write(memory->device, memory->ids, ids, num_ids * sizeof *ids);
    device_write(memory->device, memory->scalars, ones, sizeof ones);
    device_write(memory->device, memory->hyper, hyper, sizeof hyper);
}

static void *alloc_all(Session *session, Device *device, gsize bytes, GError **error)
{
    const DeviceQueueOps *queues = device_queues(device);

    return queues != NULL ? queues->alloc(device, bytes, error)
                          : session_alloc(session, bytes, error);
}

gboolean memory_open(Memory *memory, Session *session, Device *device, const GArray *tasks,
                     GError **error)
{
    const Needs needs = tasks_need(tasks, device);
    const gsize idle = padded(WAKE_ELEMENTS * sizeof(float));
    const gsize scratch = padded(needs.scratch_bytes);
    const gsize ids = padded(needs.ids * sizeof(gint32));
    const gsize scalars = padded(2 * MAX_OPERANDS * sizeof(double));
    const gsize hyper = padded(NUM_HYPER * sizeof(double));
    const gsize bytes = 2 * needs.ring_bytes + idle + scratch + ids + scalars + hyper;
    char *all = alloc_all(session, device, bytes, error);

    if (all == NULL)
        return FALSE;
    char *small = all + 2 * needs.ring_bytes;
    *memory = (Memory){
        .device = device,
        .all = all,
        .read = {all, needs.ring_bytes, 0},
        .written = {all + needs.ring_bytes, needs.ring_bytes, 0},
        .idle = small,
        .scratch = small + idle,
        .ids = (gint32 *)(gpointer)(small + idle + scratch),
        .scalars = (double *)(gpointer)(small + idle + scratch + ids),
        .results = (double *)(gpointer)(small + idle + scratch + ids) + MAX_OPERANDS,
        .hyper = (double *)(gpointer)(small + idle + scratch + ids + scalars),
    };
    fill_pattern(device, all, 2 * needs.ring_bytes);
    device_fill(device, memory->scratch, 0, scratch);
    write_small(memory, needs.ids);
    return TRUE;
}

/* Without queues it was the session's. */
void memory_close(const Memory *memory)
{
    const DeviceQueueOps *queues = device_queues(memory->device);

    if (queues != NULL)
        queues->release(memory->device, memory->all);
}
