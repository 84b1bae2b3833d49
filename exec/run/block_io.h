/* Whole blocks between a file and memory, several requests at once: Linux' asynchronous I/O.
 *
 * By libaio and not io_uring: its system calls are in every kernel that clusters run, while
 * io_uring is switched off by the default seccomp profiles of container runtimes and by
 * kernel.io_uring_disabled; and past the page cache, on blocks that are reserved, libaio's requests
 * are really asynchronous.  What io_uring has beyond it (requests without system calls, files in
 * the page cache) matters for small ones, and these are large. */
#pragma once

#include <glib.h>

typedef struct BlockIo BlockIo;

/* BLOCK: a multiple of what any disk wants offsets and lengths to be (open(2), O_DIRECT).  The
 * other two as DeepSpeed's defaults (aio: block_size, queue_depth): an SSD of 100 us and 7 GB/s has
 * 0.7 MB under way, so 8 MiB keep several of them busy while others are copied out. */
enum {
    BLOCK_BYTES = 4096,
    REQUEST_BYTES = 1 << 20,
    NUM_REQUESTS = 8,
    REQUESTS_BYTES = NUM_REQUESTS * REQUEST_BYTES
};

/* @file is borrowed, @folder named in errors.  ERROR_RUNTIME where the kernel refuses. */
BlockIo *block_io_new(int file, const char *folder, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void block_io_free(BlockIo *io);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(BlockIo, block_io_free)

/* REQUEST_BYTES, one behind the other. */
guint8 *block_io_memory(BlockIo *io, guint request);

/* A request that is not in flight, or NUM_REQUESTS when all are. */
guint block_io_idle(const BlockIo *io);
gboolean block_io_in_flight(const BlockIo *io, guint request); /* NUM_REQUESTS: any */

/* Moves @bytes at @offset (whole blocks) from or to the request's memory; block_io_wait() says when
 * that is done. */
gboolean block_io_start(BlockIo *io, guint request, gboolean write, guint64 offset, guint64 bytes,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits for one that is in flight, to the last byte, and says which.  ERROR_RUNTIME with what the
 * disk or the kernel says, and where. */
gboolean block_io_wait(BlockIo *io, guint *request, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* After an error: nothing is in flight any more. */
void block_io_drain(BlockIo *io);
