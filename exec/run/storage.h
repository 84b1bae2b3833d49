/* A rank's file: the arena of the nvme tier.  It has no name once it is open, so it goes with the
 * process however that ends.  Blocks pass through host memory, pinned where the device has queues,
 * several at once (block_io.h); the thread that copies waits for the last.  One thread at a time.
 */
#pragma once

#include "exec/comm/comm_progress.h"
#include "exec/device/device.h"

typedef struct Storage Storage;

/* Reserves @bytes in @folder.  ERROR_INPUT: no folder for it, or on a file system in memory or on a
 * network; ERROR_RUNTIME: too little room. */
Storage *storage_open(const char *folder, guint64 bytes, Device *device,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
void storage_free(Storage *storage);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Storage, storage_free)

/* Addresses from here on stand for places in the file; nobody can read or write there. */
guint8 *storage_base(const Storage *storage);
gboolean storage_holds(const Storage *storage, const void *at); /* @storage NULL: it does not */

/* One side is in the file, the other the device's memory, which is used once all is done that
 * `stream` holds or waits for. */
typedef struct {
    guint stream;
    void *to;
    const void *from;
    guint64 bytes;
    CommProgress *progress; /* where each request that ends is told, on LANE_STORAGE; or NULL */
} StorageCopy;

/* Done when it returns. */
gboolean storage_copy(Storage *storage, const StorageCopy *what,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same with host memory.  The first error is kept, and is every later storage_check()'s. */
void storage_copy_host(Storage *storage, void *to, const void *from, guint64 bytes);
gboolean storage_check(const Storage *storage,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT; /* @storage NULL: fine */

guint64 storage_used_bytes(const Storage *storage); /* to the end of the last write */
const char *storage_text(const Storage *storage);   /* for the run's record */
