#include "exec/calibrate/calibrate_storage.h"

#include "exec/base/process.h"
#include "exec/run/storage.h"
#include "sim/base/error.h"
#include "sim/base/samples.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

/* LARGE: many requests, and 10 times both ways in less than a second at 1 GB/s. */
enum { LARGE_BYTES = 32 << 20, SMALL_BYTES = 4096, RUNS = 10 };

/* Seconds to write that many bytes, if @write, and to read them. */
static gboolean copy_seconds(Storage *storage, guint8 *memory, guint64 bytes, gboolean write,
                             double *seconds, GError **error)
{
    guint8 *file = storage_base(storage);
    const StorageCopy out = {.to = file, .from = memory, .bytes = bytes};
    const StorageCopy in = {.to = memory, .from = file, .bytes = bytes};
    const double begin_s = clock_s();

    if ((write && !storage_copy(storage, &out, error)) || !storage_copy(storage, &in, error))
        return FALSE;
    *seconds = clock_s() - begin_s;
    return TRUE;
}

/* Without the first, which writes where nothing was. */
static gboolean measure(Storage *storage, guint64 bytes, gboolean write, double *seconds,
                        GError **error)
{
    g_autofree guint8 *memory = g_malloc(bytes);
    double runs[RUNS];

    memset(memory, 1, bytes);
    if (!copy_seconds(storage, memory, bytes, TRUE, seconds, error))
        return FALSE;
    for (guint i = 0; i < RUNS; i++)
        if (!copy_seconds(storage, memory, bytes, write, &runs[i], error))
            return FALSE;
    *seconds = samples_middle_mean(runs, RUNS);
    return TRUE;
}

static MemoryTier *nvme_of(Topology *topology)
{
    const char *name = tier_name(TIER_NVME);

    for (guint i = 0; i < topology->memories->len; i++)
        if (strcmp(g_array_index(topology->memories, MemoryTier, i).name, name) == 0)
            return &g_array_index(topology->memories, MemoryTier, i);
    const MemoryTier added = {.name = g_strdup(name)};
    g_array_append_val(topology->memories, added);
    return &g_array_index(topology->memories, MemoryTier, topology->memories->len - 1);
}

gboolean calibrate_storage(Topology *topology, const char *folder, GError **error)
{
    g_autoptr(Device) device = device_open(DEVICE_CPU, 1, error);
    g_autoptr(Storage) storage =
        device == NULL ? NULL : storage_open(folder, LARGE_BYTES, device, error);
    struct statvfs fs;
    double both_s, small_s;

    if (storage == NULL || !measure(storage, LARGE_BYTES, TRUE, &both_s, error) ||
        !measure(storage, SMALL_BYTES, FALSE, &small_s, error))
        return FALSE;
    if (statvfs(folder, &fs) != 0)
        return fail(error, ERROR_RUNTIME, "--nvme %s: %s", folder, g_strerror(errno));
    MemoryTier *nvme = nvme_of(topology);
    nvme->capacity_bytes = (guint64)fs.f_bavail * fs.f_frsize;
    nvme->bytes_per_s = samples_round(2.0 * LARGE_BYTES / both_s / topology->gpus_per_node);
    nvme->latency_s = samples_round(small_s);
    nvme->span = 0;
    return TRUE;
}
