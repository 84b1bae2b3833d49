#define _GNU_SOURCE 1 /* MAP_ANONYMOUS */
#include "exec/run/tiers.h"

#include "sim/base/error.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Pages are this process's alone: other ranks see what was gathered of them. */
static gboolean open_host(Tiers *tiers, GError **error)
{
    const guint64 bytes = tiers->bytes[TIER_HOST];
    const DeviceQueueOps *queues = device_queues(tiers->device);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return fail(error, ERROR_RUNTIME,
                    "host tier: %" G_GUINT64_FORMAT " bytes can't be mapped: %s", bytes,
                    g_strerror(errno));
    tiers->base[TIER_HOST] = memory;
    tiers->pinned = queues != NULL && queues->pin(tiers->device, memory, bytes, error);
    return queues == NULL || tiers->pinned;
}

static gboolean open_nvme(Tiers *tiers, const char *folder, GError **error)
{
    if (folder == NULL)
        return fail(error, ERROR_INPUT,
                    "the plan keeps state in the nvme tier: --nvme DIR says where its files go");
    tiers->storage = storage_open(folder, tiers->bytes[TIER_NVME], tiers->device, error);
    if (tiers->storage == NULL)
        return FALSE;
    tiers->base[TIER_NVME] = storage_base(tiers->storage);
    return TRUE;
}

gboolean tiers_open(Tiers *tiers, const char *nvme_folder, GError **error)
{
    g_assert(tiers->bytes[TIER_CXL] == 0);
    return (tiers->bytes[TIER_HOST] == 0 || open_host(tiers, error)) &&
           (tiers->bytes[TIER_NVME] == 0 || open_nvme(tiers, nvme_folder, error));
}

void tiers_close(Tiers *tiers)
{
    if (tiers->pinned)
        device_queues(tiers->device)->unpin(tiers->device, tiers->base[TIER_HOST]);
    if (tiers->base[TIER_HOST] != NULL)
        munmap(tiers->base[TIER_HOST], tiers->bytes[TIER_HOST]);
    storage_free(tiers->storage);
}

void tiers_write(Tiers *tiers, Tier tier, void *to, const void *from, guint64 bytes)
{
    if (tier == TIER_DEVICE)
        device_write(tiers->device, to, from, bytes);
    else if (tier == TIER_NVME)
        storage_copy_host(tiers->storage, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

void tiers_read(Tiers *tiers, Tier tier, void *to, const void *from, guint64 bytes)
{
    if (tier == TIER_DEVICE)
        device_read(tiers->device, to, from, bytes);
    else if (tier == TIER_NVME)
        storage_copy_host(tiers->storage, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

void tiers_fill(Tiers *tiers, Tier tier, void *to, guint32 word, guint64 bytes)
{
    if (tier == TIER_DEVICE)
        device_fill(tiers->device, to, word, bytes);
    else if (tier == TIER_HOST)
        device_fill_host(to, word, bytes);
}
