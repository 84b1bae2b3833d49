#define _GNU_SOURCE 1 /* O_DIRECT */
#include "exec/run/storage.h"

#include "exec/run/block_io.h"
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

enum { HOST = G_MAXINT }; /* no stream */

struct Storage {
    int file;
    guint64 bytes;         /* whole blocks */
    guint64 written_bytes; /* to the end of the last block that was written */
    guint8 *base;
    BlockIo *io;
    gboolean pinned; /* its memory */
    Device *device;
    CommProgress *progress; /* of the thread that copies; NULL: nobody's */
    GError *error;
    char *text;
};

static guint64 block_of(guint64 offset)
{
    return offset / BLOCK_BYTES * BLOCK_BYTES;
}

static guint64 whole_blocks(guint64 bytes)
{
    return block_of(bytes + BLOCK_BYTES - 1);
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
        pread(storage->file, block_io_memory(storage->io, 0), BLOCK_BYTES, 0) == BLOCK_BYTES)
        return TRUE;
    fcntl(storage->file, F_SETFL, flags);
    return FALSE;
}

static gboolean make_memory(Storage *storage, const char *folder, GError **error)
{
    const DeviceQueueOps *queues = device_queues(storage->device);
    void *base =
        mmap(NULL, storage->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    storage->base = base == MAP_FAILED ? NULL : base;
    if (storage->base == NULL)
        return fail(error, ERROR_RUNTIME, "%" G_GUINT64_FORMAT " bytes can't be mapped: %s",
                    storage->bytes, g_strerror(errno));
    storage->io = block_io_new(storage->file, folder, error);
    if (storage->io == NULL)
        return FALSE;
    storage->pinned =
        queues != NULL &&
        queues->pin(storage->device, block_io_memory(storage->io, 0), REQUESTS_BYTES, error);
    return queues == NULL || storage->pinned;
}

Storage *storage_open(const char *folder, guint64 bytes, Device *device, GError **error)
{
    g_autoptr(Storage) storage = g_new0(Storage, 1);

    storage->file = -1;
    storage->bytes = MAX(whole_blocks(bytes), BLOCK_BYTES);
    storage->device = device;
    if (!open_file(storage, folder, error) || !make_memory(storage, folder, error))
        return NULL;
    const char *way = go_direct(storage) ? "past" : "(which allows no O_DIRECT) through";
    storage->text = g_strdup_printf("%" G_GUINT64_FORMAT " bytes a rank in %s, %s the page cache, "
                                    "up to %d requests of %d bytes at once",
                                    storage->bytes, folder, way, NUM_REQUESTS, REQUEST_BYTES);
    return g_steal_pointer(&storage);
}

void storage_free(Storage *storage)
{
    if (storage == NULL)
        return;
    if (storage->pinned)
        device_queues(storage->device)->unpin(storage->device, block_io_memory(storage->io, 0));
    block_io_free(storage->io);
    if (storage->base != NULL)
        munmap(storage->base, storage->bytes);
    if (storage->file >= 0)
        close(storage->file);
    g_clear_error(&storage->error);
    g_free(storage->text);
    g_free(storage);
}

/* ---- blocks ---- */

/* Between a request's memory and other memory. */
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

/* What one request is about: bytes at an offset of the file, with the blocks that they lie in. */
typedef struct {
    guint64 offset, bytes; /* in the file */
    guint64 begin, end;    /* whole blocks */
    guint64 done;          /* of the copy, before it */
} Part;

static Part part_at(guint64 offset, guint64 bytes, guint64 done)
{
    Part part = {.offset = offset + done, .begin = block_of(offset + done), .done = done};

    part.bytes = MIN(bytes - done, REQUEST_BYTES - (part.offset - part.begin));
    part.end = whole_blocks(part.offset + part.bytes);
    return part;
}

/* Of the requests in flight. */
static gboolean wait_one(Storage *storage, guint *request, GError **error)
{
    if (!block_io_wait(storage->io, request, error))
        return FALSE;
    if (storage->progress != NULL)
        progress_tick(storage->progress, LANE_STORAGE);
    return TRUE;
}

static gboolean read_all(Storage *storage, guint stream, guint64 offset, guint8 *to, guint64 bytes,
                         GError **error)
{
    Part parts[NUM_REQUESTS];
    guint64 begun = 0;
    guint request;

    while (begun < bytes || block_io_in_flight(storage->io, NUM_REQUESTS)) {
        for (; begun < bytes && (request = block_io_idle(storage->io)) < NUM_REQUESTS;
             begun += parts[request].bytes) {
            Part *part = &parts[request];

            *part = part_at(offset, bytes, begun);
            if (!block_io_start(storage->io, request, FALSE, part->begin, part->end - part->begin,
                                error))
                return FALSE;
        }
        if (!wait_one(storage, &request, error))
            return FALSE;
        const Part *done = &parts[request];
        const guint8 *from = block_io_memory(storage->io, request) + (done->offset - done->begin);
        if (!move(storage, stream, to + done->done, from, done->bytes, error))
            return FALSE;
    }
    return TRUE;
}

/* A block of which only a part is written: what else is in it stays.  It comes to its place in
 * @memory, through the memory's begin, which nothing is in yet. */
static gboolean read_block(Storage *storage, guint request, guint64 offset, guint8 *memory,
                           GError **error)
{
    guint8 *begin = block_io_memory(storage->io, request);
    guint ended;

    if (!block_io_start(storage->io, request, FALSE, offset, BLOCK_BYTES, error))
        return FALSE;
    while (block_io_in_flight(storage->io, request))
        if (!wait_one(storage, &ended, error))
            return FALSE;
    if (memory != begin)
        memcpy(memory, begin, BLOCK_BYTES);
    return TRUE;
}

/* The last block first: it passes the place of the first one. */
static gboolean read_edges(Storage *storage, guint request, const Part *part, GError **error)
{
    guint8 *memory = block_io_memory(storage->io, request);
    const guint64 last = part->end - BLOCK_BYTES;

    if (part->offset + part->bytes < part->end &&
        !read_block(storage, request, last, memory + (last - part->begin), error))
        return FALSE;
    return part->offset == part->begin ||
           (last == part->begin && part->offset + part->bytes < part->end) ||
           read_block(storage, request, part->begin, memory, error);
}

static gboolean write_all(Storage *storage, guint stream, guint64 offset, const guint8 *from,
                          guint64 bytes, GError **error)
{
    guint request;
    Part part;

    for (guint64 begun = 0; begun < bytes; begun += part.bytes) {
        request = block_io_idle(storage->io);
        if (request == NUM_REQUESTS && !wait_one(storage, &request, error))
            return FALSE;
        part = part_at(offset, bytes, begun);
        guint8 *to = block_io_memory(storage->io, request) + (part.offset - part.begin);
        if (!read_edges(storage, request, &part, error) ||
            !move(storage, stream, to, from + begun, part.bytes, error) ||
            !block_io_start(storage->io, request, TRUE, part.begin, part.end - part.begin, error))
            return FALSE;
    }
    while (block_io_in_flight(storage->io, NUM_REQUESTS))
        if (!wait_one(storage, &request, error))
            return FALSE;
    storage->written_bytes = MAX(storage->written_bytes, whole_blocks(offset + bytes));
    return TRUE;
}

static gboolean copy(Storage *storage, guint stream, void *to, const void *from, guint64 bytes,
                     GError **error)
{
    const gboolean out = storage_holds(storage, to);
    const guint64 offset = (guint64)((out ? to : from) - (const void *)storage->base);

    g_assert(out != storage_holds(storage, from) && offset + bytes <= storage->bytes);
    const gboolean ok = out ? write_all(storage, stream, offset, from, bytes, error)
                            : read_all(storage, stream, offset, to, bytes, error);
    if (!ok)
        block_io_drain(storage->io);
    return ok;
}

gboolean storage_copy(Storage *storage, const StorageCopy *what, GError **error)
{
    storage->progress = what->progress;
    const gboolean ok = copy(storage, what->stream, what->to, what->from, what->bytes, error);
    storage->progress = NULL;
    return ok;
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
