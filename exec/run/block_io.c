#define _GNU_SOURCE 1 /* MAP_ANONYMOUS */
#include "exec/run/block_io.h"

#include "sim/base/error.h"

#include <errno.h>
#include <libaio.h>
#include <sys/mman.h>

typedef struct {
    struct iocb control;
    gboolean in_flight, write;
    guint64 offset, bytes, done;
} Request;

struct BlockIo {
    int file;
    char *folder;
    io_context_t context;
    guint8 *memory;
    Request requests[NUM_REQUESTS];
    guint num_in_flight;
};

/* ---- opening ---- */

/* @status: -errno of io_setup(2). */
static gboolean refused(const char *folder, int status, GError **error)
{
    const char *why = g_strerror(-status);
    g_autofree char *most = NULL;

    if (status == -ENOSYS || status == -EPERM)
        return fail(error, ERROR_RUNTIME,
                    "--nvme %s: this kernel refuses asynchronous I/O (io_setup: %s): it takes "
                    "CONFIG_AIO and, in a container, a seccomp profile that allows io_setup",
                    folder, why);
    if (status != -EAGAIN)
        return fail(error, ERROR_RUNTIME, "--nvme %s: io_setup: %s", folder, why);
    if (!g_file_get_contents("/proc/sys/fs/aio-max-nr", &most, NULL, NULL))
        most = g_strdup("unknown");
    return fail(error, ERROR_RUNTIME,
                "--nvme %s: this machine's requests for asynchronous I/O are used up, a rank needs "
                "%d: raise fs.aio-max-nr (now %s) by sysctl",
                folder, NUM_REQUESTS, g_strchomp(most));
}

BlockIo *block_io_new(int file, const char *folder, GError **error)
{
    g_autoptr(BlockIo) io = g_new0(BlockIo, 1);

    io->file = file;
    io->folder = g_strdup(folder);
    void *memory =
        mmap(NULL, REQUESTS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail(error, ERROR_RUNTIME, "--nvme %s: %d bytes can't be mapped: %s", folder,
             REQUESTS_BYTES, g_strerror(errno));
        return NULL;
    }
    io->memory = memory;
    const int status = io_setup(NUM_REQUESTS, &io->context);
    if (status < 0) {
        io->context = NULL;
        refused(folder, status, error);
        return NULL;
    }
    return g_steal_pointer(&io);
}

void block_io_free(BlockIo *io)
{
    if (io == NULL)
        return;
    if (io->context != NULL)
        io_destroy(io->context);
    if (io->memory != NULL)
        munmap(io->memory, REQUESTS_BYTES);
    g_free(io->folder);
    g_free(io);
}

/* ---- requests ---- */

guint8 *block_io_memory(BlockIo *io, guint request)
{
    return io->memory + (gsize)request * REQUEST_BYTES;
}

guint block_io_idle(const BlockIo *io)
{
    guint request = 0;

    while (request < NUM_REQUESTS && io->requests[request].in_flight)
        request++;
    return request;
}

gboolean block_io_in_flight(const BlockIo *io, guint request)
{
    return request < NUM_REQUESTS ? io->requests[request].in_flight : io->num_in_flight > 0;
}

static gboolean failed(const BlockIo *io, const Request *at, const char *why, GError **error)
{
    return fail(error, ERROR_RUNTIME,
                "nvme: %s %" G_GUINT64_FORMAT " bytes at %" G_GUINT64_FORMAT
                " of this rank's file in %s: %s",
                at->write ? "writing" : "reading", at->bytes, at->offset, io->folder, why);
}

/* What is left of a request.  EAGAIN: the kernel has no room for it at the moment. */
static gboolean submit(BlockIo *io, guint request, GError **error)
{
    enum { AGAIN_US = 1000, PATIENCE = 10000 };
    Request *at = &io->requests[request];
    struct iocb *control = &at->control;
    guint8 *memory = block_io_memory(io, request) + at->done;
    const long long offset = (long long)(at->offset + at->done);
    int status = -EAGAIN;

    if (at->write)
        io_prep_pwrite(control, io->file, memory, at->bytes - at->done, offset);
    else
        io_prep_pread(control, io->file, memory, at->bytes - at->done, offset);
    for (guint i = 0; i < PATIENCE && (status == -EAGAIN || status == -EINTR); i++) {
        if (i > 0)
            g_usleep(AGAIN_US);
        status = io_submit(io->context, 1, &control);
    }
    if (status != 1)
        return failed(io, at, g_strerror(-status), error);
    at->in_flight = TRUE;
    io->num_in_flight++;
    return TRUE;
}

gboolean block_io_start(BlockIo *io, guint request, gboolean write, guint64 offset, guint64 bytes,
                        GError **error)
{
    Request *at = &io->requests[request];

    g_assert(!at->in_flight && bytes > 0 && bytes <= REQUEST_BYTES);
    g_assert(offset % BLOCK_BYTES == 0 && bytes % BLOCK_BYTES == 0);
    *at = (Request){.write = write, .offset = offset, .bytes = bytes};
    return submit(io, request, error);
}

/* One that has ended, with what the kernel says of it: bytes, or -errno. */
static gboolean next_end(BlockIo *io, guint *request, gint64 *result, GError **error)
{
    struct io_event event;
    int status;

    do
        status = io_getevents(io->context, 1, 1, &event, NULL);
    while (status == -EINTR || status == 0);
    if (status < 0)
        return fail(error, ERROR_RUNTIME, "nvme: io_getevents, file in %s: %s", io->folder,
                    g_strerror(-status));
    for (*request = 0; &io->requests[*request].control != event.obj; (*request)++)
        g_assert(*request < NUM_REQUESTS - 1);
    io->requests[*request].in_flight = FALSE;
    io->num_in_flight--;
    *result = (gint64)event.res;
    return TRUE;
}

/* What a disk did in part goes on at the last whole block of it. */
static gboolean account(BlockIo *io, guint request, gint64 result, GError **error)
{
    Request *at = &io->requests[request];

    if (result < 0)
        return failed(io, at, g_strerror((int)-result), error);
    if (result < BLOCK_BYTES)
        return failed(io, at, at->write ? "the disk takes no whole block" : "the file ends there",
                      error);
    at->done += (guint64)result / BLOCK_BYTES * BLOCK_BYTES;
    return at->done == at->bytes || submit(io, request, error);
}

gboolean block_io_wait(BlockIo *io, guint *request, GError **error)
{
    gint64 result;

    g_assert(io->num_in_flight > 0);
    do
        if (!next_end(io, request, &result, error) || !account(io, *request, result, error))
            return FALSE;
    while (io->requests[*request].in_flight);
    return TRUE;
}

void block_io_drain(BlockIo *io)
{
    gint64 result;
    guint request;

    while (io->num_in_flight > 0 && next_end(io, &request, &result, NULL))
        ;
}
