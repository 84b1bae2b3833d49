#include "exec/device/device.h"

#include "sim/base/error.h"

#include <string.h>

static const DeviceOps *const backends[] = {&device_cpu};

Device *device_open(DeviceKind kind, guint threads, GError **error)
{
    const DeviceOptions options = {.threads = threads};

    for (guint i = 0; i < G_N_ELEMENTS(backends); i++)
        if (backends[i]->kind == kind)
            return device_open_with(backends[i], &options, error);
    fail(error, ERROR_RUNTIME, "device \"%s\": comes with a plug-in only", device_kind_name(kind));
    return NULL;
}

Device *device_open_with(const DeviceOps *ops, const DeviceOptions *options, GError **error)
{
    g_assert(options->threads >= 1);
    return ops->open(options, error);
}

void device_run(Device *device, const Launch *launch)
{
    g_assert(!op_kind_is_communication(launch->op->kind));
    device->ops->run(device, launch);
}

gboolean device_sync(Device *device, GError **error)
{
    return device->ops->sync(device, error);
}

void device_free(Device *device)
{
    if (device != NULL)
        device->ops->free(device);
}

const char *device_library(const Device *device)
{
    return device->ops->library(device);
}

/* ---- the host's copies ---- */

/* Until the last copy is done; what went wrong stays with the device. */
static void settle(Device *device)
{
    g_autoptr(GError) kept = NULL;

    if (!device_sync(device, &kept))
        g_debug("device: %s", kept->message);
}

void device_write(Device *device, void *to, const void *from, gsize bytes)
{
    const DeviceQueueOps *queues = device_queues(device);

    if (queues == NULL) {
        memcpy(to, from, bytes);
        return;
    }
    for (gsize done = 0; done < bytes; done += device->bounce_bytes) {
        const gsize part = MIN(bytes - done, device->bounce_bytes);

        memcpy(device->bounce, (const guint8 *)from + done, part);
        queues->copy(device, COMPUTE_STREAM, (guint8 *)to + done, device->bounce, part);
        settle(device);
    }
}

void device_read(Device *device, void *to, const void *from, gsize bytes)
{
    const DeviceQueueOps *queues = device_queues(device);

    if (queues == NULL) {
        memcpy(to, from, bytes);
        return;
    }
    for (gsize done = 0; done < bytes; done += device->bounce_bytes) {
        const gsize part = MIN(bytes - done, device->bounce_bytes);

        queues->copy(device, COMPUTE_STREAM, device->bounce, (const guint8 *)from + done, part);
        settle(device);
        memcpy((guint8 *)to + done, device->bounce, part);
    }
}

/* What is there already is doubled. */
void device_fill_host(void *to, guint32 word, gsize bytes)
{
    gsize done = MIN(bytes, sizeof word);

    memcpy(to, &word, done);
    for (gsize part; done < bytes; done += part) {
        part = MIN(done, bytes - done);
        memcpy((guint8 *)to + done, to, part);
    }
}

void device_fill(Device *device, void *to, guint32 word, gsize bytes)
{
    const DeviceQueueOps *queues = device_queues(device);

    if (queues == NULL) {
        device_fill_host(to, word, bytes);
        return;
    }
    gsize done = MIN(bytes, device->bounce_bytes);
    device_fill_host(device->bounce, word, done);
    if (bytes > 0)
        queues->copy(device, COMPUTE_STREAM, to, device->bounce, done);
    for (gsize part; done < bytes; done += part) {
        part = MIN(done, bytes - done);
        queues->copy(device, COMPUTE_STREAM, (guint8 *)to + done, to, part);
    }
    settle(device);
}

/* One tensor is the scratch of all. */
const char *device_library_attention(Device *device, const Program *program, GError **error)
{
    g_autoptr(GPtrArray) ops = g_ptr_array_new();
    guint64 scratch_bytes = 0;

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];

            if (op->kind != OP_ATTENTION && op->kind != OP_ATTENTION_BACKWARD)
                continue;
            g_ptr_array_add(ops, (gpointer)op);
            scratch_bytes = tensor_copy_bytes(
                program_tensor(program, op->operands[op_attention_scratch(op->kind)].tensor));
        }
    }
    return device_queues(device)->library_attention(device, ops, scratch_bytes, error);
}
