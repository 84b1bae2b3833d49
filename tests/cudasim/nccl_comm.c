/* Communicators: how they come to be, blocking or not, and how they end. */
#include "tests/cudasim/nccl_comm.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAD_BYTES ((gsize)1 << 18)
#define MOST_POLLS 3 /* that a call which does not block is in progress */

G_STATIC_ASSERT(sizeof(CsShared) <= HEAD_BYTES);

/* ---- the file ---- */

static gsize file_bytes(int size)
{
    return HEAD_BYTES + CS_SLOT_BYTES * (gsize)(size * 2 + size * size);
}

static gboolean open_shared(ncclComm_t comm)
{
    gsize bytes = file_bytes(comm->size);
    int file = shm_open(comm->id, O_CREAT | O_RDWR, 0600), none = 0;
    void *map;

    if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
        return FALSE;
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return FALSE;
    comm->slots = (char *)map + HEAD_BYTES;
    comm->shared = map;
    if (!atomic_compare_exchange_strong(&comm->shared->size, &none, comm->size) &&
        none != comm->size)
        cs_report(CS_NCCL, "rank %d says %d ranks, another %d", comm->rank, comm->size, none);
    comm->shared->joined++;
    return TRUE;
}

/* ---- coming to be ---- */

/* Rank and size in what the parent splits into, once all of its ranks have said where they go. */
static gboolean know_members(ncclComm_t comm)
{
    const CsShared *shared = comm->parent->shared;

    for (int rank = 0; rank < comm->parent->size; rank++)
        if (shared->ranks[rank].splits <= comm->split)
            return FALSE;
    for (int rank = 0; rank < comm->parent->size; rank++) {
        int key = shared->ranks[rank].keys[comm->split];
        if (shared->ranks[rank].colors[comm->split] != comm->color)
            continue;
        comm->size++;
        if (key < comm->key || (key == comm->key && rank < comm->parent->rank))
            comm->rank++;
    }
    return TRUE;
}

/* A step towards being joined by all ranks, which never blocks. */
static gboolean advance(ncclComm_t comm)
{
    if (comm->joined)
        return TRUE;
    if (comm->shared == NULL && comm->parent != NULL && !know_members(comm))
        return FALSE;
    if (comm->shared == NULL && !open_shared(comm)) {
        comm->error = ncclSystemError;
        return TRUE;
    }
    if (comm->shared->aborted)
        comm->error = ncclRemoteError;
    else if (comm->shared->joined < comm->size)
        return FALSE;
    shm_unlink(comm->id);
    comm->joined = TRUE;
    return TRUE;
}

static ncclResult_t wait_joined(ncclComm_t comm)
{
    gint64 end = g_get_monotonic_time() + (gint64)(cs_settings.timeout_s * 1e6);

    while (!advance(comm)) {
        if (g_get_monotonic_time() > end) {
            cs_report(CS_NCCL, "rank %d of %d: the others never come", comm->rank, comm->size);
            return comm->error = ncclSystemError;
        }
        g_usleep(100);
    }
    return comm->error;
}

static ncclComm_t comm_new(gboolean blocking)
{
    ncclComm_t comm = g_new0(struct ncclComm, 1);

    comm->blocking = blocking;
    comm->held = g_ptr_array_new_with_free_func(g_free);
    return comm;
}

static void start_device(void)
{
    cs_enter();
    cs_schedule_in_background();
    cs_leave(cudaSuccess);
}

/* Blocks, or is in progress for a while. */
static ncclResult_t begin(ncclComm_t comm)
{
    if (comm->blocking)
        return wait_joined(comm);
    comm->polls = 1 + cs_random() % MOST_POLLS;
    return ncclInProgress;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    *id = (ncclUniqueId){0};
    g_snprintf(id->internal, sizeof id->internal, "/cudasim-%d-%" G_GINT64_FORMAT, (int)getpid(),
               g_get_monotonic_time());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclComm_t comm;

    start_device();
    *out = NULL;
    if (size < 1 || size > CS_MAX_RANKS || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    comm = comm_new(config == NULL || config->blocking != 0);
    comm->rank = rank;
    comm->size = size;
    memcpy(comm->id, id.internal, sizeof comm->id);
    *out = comm;
    return begin(comm);
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(out, size, id, rank, NULL);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    int split = parent->num_splits, self = parent->rank;
    ncclComm_t comm;

    *out = NULL;
    if (!parent->joined || parent->polls > 0 || split >= CS_MAX_SPLITS)
        return ncclInvalidArgument;
    parent->num_splits++;
    parent->shared->ranks[self].colors[split] = color;
    parent->shared->ranks[self].keys[split] = key;
    parent->shared->ranks[self].splits = split + 1;
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    comm = comm_new(config == NULL ? parent->blocking : config->blocking != 0);
    comm->parent = parent;
    comm->split = split;
    comm->color = color;
    comm->key = key;
    g_snprintf(comm->id, sizeof comm->id, "%.100s.%d.%d", parent->id, split, color);
    *out = comm;
    if (!parent->blocking)
        parent->polls = 1 + cs_random() % MOST_POLLS;
    return begin(comm);
}

/* ---- being in progress ---- */

static void make_held_calls(ncclComm_t comm)
{
    for (guint i = 0; i < comm->held->len; i++) {
        const CsHeld *held = comm->held->pdata[i];
        cs_op_push(held->stream, held->op);
    }
    g_ptr_array_set_size(comm->held, 0);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    if (comm->error == ncclSuccess && comm->shared != NULL && comm->shared->aborted)
        comm->error = ncclRemoteError;
    *state = comm->error;
    if (comm->error != ncclSuccess)
        return ncclSuccess;
    if (!advance(comm) || comm->polls > 0) {
        comm->polls -= comm->polls > 0 ? 1 : 0;
        g_usleep(100);
        *state = ncclInProgress;
        return ncclSuccess;
    }
    make_held_calls(comm);
    *state = comm->error;
    return ncclSuccess;
}

/* ---- the end ---- */

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    cs_enter();
    cs_wait_all();
    cs_leave(cudaSuccess);
    if (comm->blocking)
        return comm->error;
    comm->polls = 1 + cs_random() % MOST_POLLS;
    return ncclInProgress;
}

/* The struct stays: ops and graphs may still name it, which is reported. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    static GPtrArray *destroyed;

    cs_enter();
    cs_wait_all();
    if (destroyed == NULL)
        destroyed = g_ptr_array_new();
    g_ptr_array_add(destroyed, comm);
    if (comm->shared != NULL)
        munmap(comm->shared, file_bytes(comm->size));
    comm->destroyed = TRUE;
    comm->error = ncclInvalidUsage;
    cs_leave(cudaSuccess);
    return ncclSuccess;
}

/* Takes no lock: a watchdog calls it while another thread waits for a collective. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->error = ncclRemoteError;
    if (comm->shared != NULL)
        comm->shared->aborted = 1;
    return ncclSuccess;
}

/* ---- questions ---- */

ncclResult_t ncclCommCount(const ncclComm_t comm, int *size)
{
    *size = comm->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress"};

    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm == NULL ? "" : ncclGetErrorString((ncclResult_t)comm->error);
}
