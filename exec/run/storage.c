#define _GNU_SOURCE 1 /* O_DIRECT */
#include "exec/run/storage.h"

#include "sim/base/error.h"
#include "sim/base/file_system.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* BLOCK: a multiple of what any disk wants offsets and lengths to be (open(2), O_DIRECT). */
enum { BLOCK = 4096, BOUNCE_BYTES = 4 << 20, HOST = G_MAXINT };

struct Storage {
    int file;
    guint64 bytes;         /* whole blocks */
    guint64 written_bytes; /* to the end of the last block that was written */
    guint8 *base;
    guint8 *bounce;
    gboolean pinned;
    Device *device;
    GError *error;
    char *text;
};

static guint64 block_of(guint64 offset)
{
    return offset / BLOCK * BLOCK;
}

static guint64 whole_blocks(guint64 bytes)
{
    return block_of(bytes + BLOCK - 1);
}

/* ---- opening ---- */

/* Magic numbers of statfs(2). */
static const struct {
    guint32 magic;
    const char *what;
} unsuitable[] = {
    {0x01021994, "tmpfs, which is memory"},
    {0x858458F6, "ramfs, which is memory"},
};

static const char *why_unsuitable(guint32 magic)
{
    for (guint i = 0; i < G_N_ELEMENTS(unsuitable); i++)
        if (magic == unsuitable[i].magic)
            return unsuitable[i].what;
    return file_system_network(magic);
}

static gboolean reserve(const Storage *storage, const char *folder, GError **error)
{
    struct statfs fs;

    if (fstatfs(storage->file, &fs) != 0)
        return fail(error, ERROR_RUNTIME, "--nvme %s: %s", folder, g_strerror(errno));
    const char *why = why_unsuitable((guint32)fs.f_type);
    if (why != NULL)
        return fail(error, ERROR_INPUT, "--nvme %s: is on %s: must be on a disk of this node",
                    folder, why);
    const guint64 free_bytes = (guint64)fs.f_bavail * (guint64)fs.f_bsize;
    const int status = storage->bytes > free_bytes
                           ? ENOSPC
                           : posix_fallocate(storage->file, 0, (off_t)storage->bytes);
    if (status == ENOSPC)
        return fail(error, ERROR_RUNTIME,
                    "--nvme %s: a rank needs %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT
                    " are free",
                    folder, storage->bytes, free_bytes);
    return status == 0 || fail(error, ERROR_RUNTIME,
                               "--nvme %s: %" G_GUINT64_FORMAT " bytes can't be reserved: %s",
                               folder, storage->bytes, g_strerror(status));
}

static gboolean open_file(Storage *storage, const char *folder, GError **error)
{
    g_autofree char *path = g_build_filename(folder, "fsdp-run-XXXXXX", NULL);

    storage->file = g_mkstemp_full(path, O_RDWR | O_CLOEXEC, 0600);
    if (storage->file < 0)
        return fail(error, ERROR_INPUT, "--nvme %s: no file can be made there: %s", folder,
                    g_strerror(errno));
    if (g_unlink(path) != 0)
        return fail(error, ERROR_RUNTIME, "--nvme: %s: %s", path, g_strerror(errno));
    return reserve(storage, folder, error);
}

/* Past the page cache, which would take the memory that the tier is to spare, where that works. */
static gboolean go_direct(const Storage *storage)
{
    const int flags = fcntl(storage->file, F_GETFL);

    if (fcntl(storage->file, F_SETFL, flags | O_DIRECT) == 0 &&
        pread(storage->file, storage->bounce, BLOCK, 0) == BLOCK)
        return TRUE;
    fcntl(storage->file, F_SETFL, flags);
    return FALSE;
}

static gboolean make_memory(Storage *storage, GError **error)
{
    const DeviceQueueOps *queues = device_queues(storage->device);
    void *base =
        mmap(NULL, storage->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *bounce =
        mmap(NULL, BOUNCE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    storage->base = base == MAP_FAILED ? NULL : base;
    storage->bounce = bounce == MAP_FAILED ? NULL : bounce;
    if (storage->base == NULL || storage->bounce == NULL)
        return fail(error, ERROR_RUNTIME, "%" G_GUINT64_FORMAT " bytes can't be mapped: %s",
                    storage->bytes, g_strerror(errno));
    storage->pinned = queues != NULL && queues->pin(storage->device, bounce, BOUNCE_BYTES, error);
    return queues == NULL || storage->pinned;
}

Storage *storage_open(const char *folder, guint64 bytes, Device *device, GError **error)
{
    g_autoptr(Storage) storage = g_new0(Storage, 1);

    storage->file = -1;
    storage->bytes = MAX(whole_blocks(bytes), BLOCK);
    storage->device = device;
    if (!open_file(storage, folder, error) || !make_memory(storage, error))
        return NULL;
    storage->text = g_strdup_printf(
        "%" G_GUINT64_FORMAT " bytes a rank in %s, %s the page cache, by the communication thread",
        storage->bytes, folder, go_direct(storage) ? "past" : "(which allows no O_DIRECT) through");
    return g_steal_pointer(&storage);
}

void storage_free(Storage *storage)
{
    if (storage == NULL)
        return;
    if (storage->pinned)
        device_queues(storage->device)->unpin(storage->device, storage->bounce);
    if (storage->bounce != NULL)
        munmap(storage->bounce, BOUNCE_BYTES);
    if (storage->base != NULL)
        munmap(storage->base, storage->bytes);
    if (storage->file >= 0)
        close(storage->file);
    g_clear_error(&storage->error);
    g_free(storage->text);
    g_free(storage);
}

/* ---- blocks ---- */

/* @bytes of whole blocks between the file and @at of the bounce buffer. */
static gboolean transfer(Storage *storage, gboolean out, guint64 offset, guint8 *at, guint64 bytes,
                         GError **error)
{
    for (guint64 done = 0; done < bytes;) {
        const off_t from = (off_t)(offset + done);
        const gssize moved = out ? pwrite(storage->file, at + done, bytes - done, from)
                                 : pread(storage->file, at + done, bytes - done, from);

        if (moved > 0)
            done += (guint64)moved;
        else if (moved == 0 || errno != EINTR)
            return fail(error, ERROR_RUNTIME,
                        "nvme: %s %" G_GUINT64_FORMAT " bytes at %" G_GUINT64_FORMAT ": %s",
                        out ? "writing" : "reading", bytes, offset,
                        moved == 0 ? "the file ends there" : g_strerror(errno));
    }
    if (out)
        storage->written_bytes = MAX(storage->written_bytes, offset + bytes);
    return TRUE;
}

/* Between the bounce buffer and other memory. */
static gboolean move(const Storage *storage, guint stream, void *to, const void *from,
                     guint64 bytes, GError **error)
{
    const DeviceQueueOps *queues = device_queues(storage->device);

    if (queues == NULL || stream == HOST) {
        memcpy(to, from, bytes);
        return TRUE;
    }
    queues->copy(storage->device, stream, to, from, bytes);
    return queues->sync(storage->device, stream, error);
}

/* A part that the bounce buffer has room for.  What else is in its first and last block stays. */
static gboolean write_part(Storage *storage, guint stream, guint64 offset, const void *from,
                           guint64 bytes, GError **error)
{
    const guint64 begin = block_of(offset), end = whole_blocks(offset + bytes);
    guint8 *last = storage->bounce + (end - BLOCK - begin);

    if (offset > begin && !transfer(storage, FALSE, begin, storage->bounce, BLOCK, error))
        return FALSE;
    if (offset + bytes < end && (last > storage->bounce || offset == begin) &&
        !transfer(storage, FALSE, end - BLOCK, last, BLOCK, error))
        return FALSE;
    return move(storage, stream, storage->bounce + (offset - begin), from, bytes, error) &&
           transfer(storage, TRUE, begin, storage->bounce, end - begin, error);
}

static gboolean read_part(Storage *storage, guint stream, guint64 offset, void *to, guint64 bytes,
                          GError **error)
{
    const guint64 begin = block_of(offset), end = whole_blocks(offset + bytes);

    return transfer(storage, FALSE, begin, storage->bounce, end - begin, error) &&
           move(storage, stream, to, storage->bounce + (offset - begin), bytes, error);
}

static gboolean copy(Storage *storage, guint stream, void *to, const void *from, guint64 bytes,
                     GError **error)
{
    const gboolean out = storage_holds(storage, to);
    const guint64 offset = (guint64)((out ? to : from) - (const void *)storage->base);
    guint64 part;

    g_assert(out != storage_holds(storage, from) && offset + bytes <= storage->bytes);
    for (guint64 done = 0; done < bytes; done += part) {
        part = MIN(bytes - done, BOUNCE_BYTES - (offset + done) % BLOCK);
        if (!(out ? write_part(storage, stream, offset + done, from + done, part, error)
                  : read_part(storage, stream, offset + done, to + done, part, error)))
            return FALSE;
    }
    return TRUE;
}

gboolean storage_copy(Storage *storage, guint stream, void *to, const void *from, guint64 bytes,
                      GError **error)
{
    return copy(storage, stream, to, from, bytes, error);
}

void storage_copy_host(Storage *storage, void *to, const void *from, guint64 bytes)
{
    if (storage->error == NULL && !copy(storage, HOST, to, from, bytes, &storage->error))
        g_debug("%s", storage->error->message);
}

gboolean storage_check(const Storage *storage, GError **error)
{
    if (storage == NULL || storage->error == NULL)
        return TRUE;
    return fail(error, (ErrorCode)storage->error->code, "%s", storage->error->message);
}

/* ---- facts ---- */

guint8 *storage_base(const Storage *storage)
{
    return storage->base;
}

gboolean storage_holds(const Storage *storage, const void *at)
{
    return storage != NULL && (const guint8 *)at >= storage->base &&
           (const guint8 *)at < storage->base + storage->bytes;
}

guint64 storage_used_bytes(const Storage *storage)
{
    return storage->written_bytes;
}

const char *storage_text(const Storage *storage)
{
    return storage->text;
}
