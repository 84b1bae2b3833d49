#include "exec/device/device.h"

#include "sim/base/error.h"

static const DeviceOps *const backends[] = {&device_cpu};

Device *device_open(DeviceKind kind, guint threads, GError **error)
{
    g_assert(threads >= 1);
    for (guint i = 0; i < G_N_ELEMENTS(backends); i++)
        if (backends[i]->kind == kind)
            return backends[i]->open(threads, error);
    fail(error, ERROR_RUNTIME, "device \"%s\": this build has none of that kind",
         device_kind_name(kind));
    return NULL;
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
