#include "exec/run/staging.h"

#include "sim/program/place.h"

struct Staging {
    Device *device;
    const Program *program;
    guint8 *host; /* the communicator's */
    guint64 bytes;
};

/* ---- memory ---- */

static guint64 operand_bytes(const Program *program, const Op *op, guint i)
{
    const guint64 bytes = tensor_copy_bytes(program_tensor(program, op->operands[i].tensor));

    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static guint64 most_bytes(const Program *program)
{
    guint64 most = ARENA_ALIGNMENT;

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint o = 0; o < segment->num_ops; o++) {
            const Op *op = &segment->ops[o];
            guint64 bytes = 0;

            for (guint i = 0; op_kind_is_communication(op->kind) && i < op->num_operands; i++)
                bytes += operand_bytes(program, op, i);
            most = MAX(most, bytes);
        }
    }
    return most;
}

Staging *staging_new(Device *device, Comm *comm, const Program *program, GError **error)
{
    const guint64 bytes = most_bytes(program);
    guint8 *host = comm->ops->alloc(comm, bytes, error);

    if (host == NULL || !device_queues(device)->pin(device, host, bytes, error))
        return NULL;
    Staging *staging = g_new0(Staging, 1);
    *staging = (Staging){device, program, host, bytes};
    return staging;
}

void staging_free(Staging *staging)
{
    if (staging == NULL)
        return;
    device_queues(staging->device)->unpin(staging->device, staging->host);
    g_free(staging);
}

/* ---- what an op touches ---- */

/* Runs of operand @i that the op reads, or writes: elements, counted from where it begins. */
static const CommRun *runs_of(const Transfer *transfer, const Launch *launch, guint i,
                              gboolean written, CommRun *one, guint *num)
{
    const Op *op = launch->op;
    const CommGroup *group = transfer->group;
    const gboolean in_place = op->num_operands == 1;

    *num = 0;
    if (op->operands[i].access == (written ? ACCESS_READ : ACCESS_WRITE))
        return NULL;
    if (op->kind == OP_ALL_REDUCE)
        return transfer_reduced(transfer, launch, one, num);
    *num = 1;
    *one =
        (CommRun){.elements = program_tensor(transfer->program, op->operands[i].tensor)->elements};
    if (!in_place || op->kind != (written ? OP_REDUCE_SCATTER : OP_ALL_GATHER))
        return one;
    if (launch->map == NULL) {
        one->elements = (op->sizes.elements + group->size - 1) / group->size;
        one->offset = group->rank * one->elements;
        return one;
    }
    *num = launch->map->num_pieces;
    return transfer->own_chunks[op->unit];
}

/* ---- copies ---- */

static gboolean copy(Staging *staging, const Transfer *transfer, const Launch *launch,
                     const Launch *host, gboolean back, GError **error)
{
    const DeviceQueueOps *queues = device_queues(staging->device);

    for (guint i = 0; i < launch->op->num_operands; i++) {
        const Tensor *tensor = program_tensor(staging->program, launch->op->operands[i].tensor);
        const gsize size = dtype_bytes(tensor->dtype);
        CommRun one;
        guint num;
        const CommRun *runs = runs_of(transfer, launch, i, back, &one, &num);

        for (guint r = 0; r < num; r++) {
            guint8 *device_side = (guint8 *)launch->operand[i] + runs[r].offset * size;
            guint8 *host_side = (guint8 *)host->operand[i] + runs[r].offset * size;

            if (runs[r].elements > 0)
                queues->copy(staging->device, launch->stream, back ? device_side : host_side,
                             back ? host_side : device_side, runs[r].elements * size);
        }
    }
    return queues->sync(staging->device, launch->stream, error);
}

gboolean staging_in(Staging *staging, const Transfer *transfer, const Launch *launch, Launch *host,
                    GError **error)
{
    guint64 offset = 0;

    *host = *launch;
    for (guint i = 0; i < launch->op->num_operands; i++) {
        host->operand[i] = staging->host + offset;
        offset += operand_bytes(staging->program, launch->op, i);
    }
    g_assert(offset <= staging->bytes);
    return copy(staging, transfer, launch, host, FALSE, error);
}

gboolean staging_out(Staging *staging, const Transfer *transfer, const Launch *launch,
                     const Launch *host, GError **error)
{
    return copy(staging, transfer, launch, host, TRUE, error);
}
