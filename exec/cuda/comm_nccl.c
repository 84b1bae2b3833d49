#include "exec/cuda/comm_nccl.h"

#include "exec/cuda/cuda_device.h"
#include "sim/base/error.h"

#include <math.h>
#include <nccl.h>
#include <string.h>

typedef struct {
    Comm base;
    Comm *host; /* control channel, and how unique ids travel */
    CudaDevice *device;
    ncclComm_t world;
    GPtrArray *groups; /* NcclGroup */
    gboolean failed;
    gboolean rehearses;
    double rehearsed_s;         /* of the last operation then */
    guint first_rehearsed;      /* of the groups */
    guint64 bytes[NUM_VOLUMES]; /* that had been received before */
} NcclComm;

typedef struct {
    CommGroup base;
    ncclComm_t nccl;
} NcclGroup;

/* ---- errors ---- */

/* NCCL knows that a peer is gone, the control channel which one, maybe a moment later. */
static char *culprit(NcclComm *comm)
{
    enum { PATIENCE_MS = 1000, GLANCE_MS = 10 };
    g_autoptr(GError) why = NULL;

    for (guint ms = 0; ms < PATIENCE_MS && why == NULL; ms += GLANCE_MS) {
        if (comm->host->ops->check(comm->host, &why))
            g_usleep(GLANCE_MS * 1000);
    }
    return why == NULL ? g_strdup("") : g_strdup_printf(": %s", why->message);
}

/* Names this rank and what it last started; afterwards the communicator is unusable. */
static gboolean broken(NcclComm *comm, const char *what, ncclResult_t status, GError **error)
{
    g_autofree char *peer = culprit(comm);
    g_autofree char *last_op = comm_last_op(&comm->base);

    comm->failed = TRUE;
    return fail(error, ERROR_RUNTIME, "NCCL: rank %u at %s: %s: %s%s", comm->base.rank, last_op,
                what, ncclGetErrorString(status), peer);
}

/* A call that may go on behind our back is well so far. */
static gboolean accepted(NcclComm *comm, ncclResult_t status, const char *what, GError **error)
{
    return status == ncclSuccess || status == ncclInProgress || broken(comm, what, status, error);
}

static gboolean nccl_check(Comm *base, GError **error)
{
    NcclComm *comm = (NcclComm *)base;

    for (guint i = 0; i < comm->groups->len; i++) {
        const NcclGroup *group = g_ptr_array_index(comm->groups, i);
        ncclResult_t state = ncclSuccess;
        const ncclResult_t status = ncclCommGetAsyncError(group->nccl, &state);

        if (!accepted(comm, status, "ncclCommGetAsyncError", error) ||
            !accepted(comm, state, "an earlier operation", error))
            return FALSE;
    }
    return comm->host->ops->check(comm->host, error);
}

/* Until what was asked of @nccl is under way; peers may die meanwhile. */
static gboolean settle(NcclComm *comm, ncclComm_t nccl, const char *what, GError **error)
{
    enum { GLANCE_US = 50 };
    ncclResult_t state = ncclInProgress;

    for (;;) {
        const ncclResult_t status = ncclCommGetAsyncError(nccl, &state);

        if (!accepted(comm, status, what, error) || !accepted(comm, state, what, error))
            return FALSE;
        if (state == ncclSuccess)
            return TRUE;
        if (!comm->host->ops->check(comm->host, error)) {
            comm->failed = TRUE;
            return FALSE;
        }
        g_usleep(GLANCE_US);
    }
}

static gboolean settled(NcclComm *comm, ncclResult_t status, ncclComm_t nccl, const char *what,
                        GError **error)
{
    return accepted(comm, status, what, error) && settle(comm, nccl, what, error);
}

/* ---- groups ---- */

static void *nccl_alloc(Comm *base, gsize bytes, GError **error)
{
    Comm *host = ((NcclComm *)base)->host;

    return host->ops->alloc(host, bytes, error);
}

/* Every rank takes part in every split, members or not. */
static gboolean nccl_group(Comm *base, const guint *ranks, guint size, const char *purpose,
                           CommGroup **result, GError **error)
{
    NcclComm *comm = (NcclComm *)base;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t made = NULL;
    guint position = 0;

    *result = NULL;
    config.blocking = comm->rehearses ? 1 : 0;
    while (position < size && ranks[position] != base->rank)
        position++;
    const gboolean member = position < size;
    const ncclResult_t status =
        ncclCommSplit(comm->world, member ? 0 : NCCL_SPLIT_NOCOLOR, (int)position, &made, &config);
    if (!settled(comm, status, comm->world, "ncclCommSplit", error) ||
        (member && !settle(comm, made, "ncclCommSplit", error))) {
        g_prefix_error(error, "group '%s': ", purpose);
        return FALSE;
    }
    if (!member)
        return TRUE;
    NcclGroup *group = g_new0(NcclGroup, 1);
    *group = (NcclGroup){.base = {.comm = base, .rank = position, .size = size}, .nccl = made};
    g_ptr_array_add(comm->groups, group);
    *result = &group->base;
    return TRUE;
}

/* ---- operations ---- */

static ncclDataType_t type_of(DType dtype)
{
    switch (dtype) {
    case DTYPE_BF16:
        return ncclBfloat16;
    case DTYPE_FP32:
        return ncclFloat32;
    case DTYPE_FP64:
        return ncclFloat64;
    case DTYPE_FP8: /* codes are moved only */
        return ncclUint8;
    default:
        g_assert(dtype == DTYPE_INT32);
        return ncclInt32;
    }
}

static NcclComm *begin(const CommGroup *group, cudaStream_t *stream)
{
    NcclComm *comm = (NcclComm *)group->comm;

    cuda_enter(comm->device);
    *stream = comm->device->streams[group->stream];
    ncclGroupStart();
    return comm;
}

/* What NCCL says of the operations since begin(), none of which is done.  With a communicator that
 * does not block they would be done all the same, and nothing said (its src/group.cc, 2.28). */
static gboolean end_rehearsal(NcclComm *comm, ncclResult_t status, const char *what, GError **error)
{
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    const ncclResult_t ended = ncclGroupSimulateEnd(&info);

    comm->rehearsed_s = info.estimatedTime > 0 ? (double)info.estimatedTime / 1e6 : NAN;
    return accepted(comm, status, what, error) && accepted(comm, ended, what, error);
}

/* @status: the first of the calls since begin(). */
static gboolean end(CommGroup *group, ncclResult_t status, const char *what, GError **error)
{
    NcclComm *comm = (NcclComm *)group->comm;

    if (comm->rehearses)
        return end_rehearsal(comm, status, what, error);
    const ncclResult_t ended = ncclGroupEnd();

    return accepted(comm, status, what, error) &&
           settled(comm, ended, ((NcclGroup *)group)->nccl, what, error);
}

static ncclResult_t first_of(ncclResult_t before, ncclResult_t now)
{
    return before == ncclSuccess || before == ncclInProgress ? now : before;
}

/* NCCL speaks of the last operation of a group alone, so all pieces are asked about as one. */
static const ShardPiece *pieces_asked(const NcclComm *comm, const ShardPiece *pieces, guint *num,
                                      ShardPiece *one)
{
    if (!comm->rehearses)
        return pieces;
    *one = (ShardPiece){0};
    for (guint p = 0; p < *num; p++)
        one->chunk += pieces[p].chunk;
    *num = 1;
    return one;
}

static const CommRun *runs_asked(const NcclComm *comm, const CommRun *runs, guint *num,
                                 CommRun *one)
{
    if (!comm->rehearses)
        return runs;
    *one = (CommRun){0};
    for (guint r = 0; r < *num; r++)
        one->elements += runs[r].elements;
    *num = 1;
    return one;
}

static gboolean nccl_all_gather(CommGroup *group, const void *shard, void *full,
                                const ShardPiece *pieces, guint num_pieces, DType dtype,
                                GError **error)
{
    const gsize size = dtype_bytes(dtype);
    ncclResult_t status = ncclSuccess;
    cudaStream_t stream;
    NcclComm *comm = begin(group, &stream);
    ShardPiece one;

    pieces = pieces_asked(comm, pieces, &num_pieces, &one);
    for (guint p = 0; p < num_pieces; p++) {
        const ShardPiece *piece = &pieces[p];
        guint8 *whole = (guint8 *)full + piece->full_offset * size;
        const guint8 *own = shard == NULL ? whole + group->rank * piece->chunk * size
                                          : (const guint8 *)shard + piece->shard_offset * size;

        if (piece->chunk == 0)
            continue;
        status = first_of(status, ncclAllGather(own, whole, piece->chunk, type_of(dtype),
                                                ((NcclGroup *)group)->nccl, stream));
        comm->base.bytes_in[VOLUME_ALL_GATHER] += (group->size - 1) * piece->chunk * size;
    }
    return end(group, status, "ncclAllGather", error);
}

static gboolean nccl_reduce_scatter(CommGroup *group, void *full, void *shard,
                                    const ShardPiece *pieces, guint num_pieces, DType dtype,
                                    GError **error)
{
    const gsize size = dtype_bytes(dtype);
    ncclResult_t status = ncclSuccess;
    cudaStream_t stream;
    NcclComm *comm = begin(group, &stream);
    ShardPiece one;

    pieces = pieces_asked(comm, pieces, &num_pieces, &one);
    for (guint p = 0; p < num_pieces; p++) {
        const ShardPiece *piece = &pieces[p];
        guint8 *whole = (guint8 *)full + piece->full_offset * size;
        guint8 *own = shard == NULL ? whole + group->rank * piece->chunk * size
                                    : (guint8 *)shard + piece->shard_offset * size;

        if (piece->chunk == 0)
            continue;
        status = first_of(status, ncclReduceScatter(whole, own, piece->chunk, type_of(dtype),
                                                    ncclSum, ((NcclGroup *)group)->nccl, stream));
        comm->base.bytes_in[VOLUME_REDUCE_SCATTER] += (group->size - 1) * piece->chunk * size;
    }
    return end(group, status, "ncclReduceScatter", error);
}

static gboolean nccl_all_reduce(CommGroup *group, void *buffer, const CommRun *runs, guint num_runs,
                                DType dtype, Reduction reduction, GError **error)
{
    const gsize size = dtype_bytes(dtype);
    ncclResult_t status = ncclSuccess;
    cudaStream_t stream;
    NcclComm *comm = begin(group, &stream);
    CommRun one;

    runs = runs_asked(comm, runs, &num_runs, &one);
    for (guint r = 0; r < num_runs; r++) {
        guint8 *at = (guint8 *)buffer + runs[r].offset * size;
        const guint64 chunk = (runs[r].elements + group->size - 1) / group->size;

        if (runs[r].elements == 0)
            continue;
        status = first_of(status, ncclAllReduce(at, at, runs[r].elements, type_of(dtype),
                                                reduction == REDUCE_MAX ? ncclMax : ncclSum,
                                                ((NcclGroup *)group)->nccl, stream));
        comm->base.bytes_in[VOLUME_ALL_REDUCE] += 2 * (group->size - 1) * chunk * size;
    }
    return end(group, status, "ncclAllReduce", error);
}

/* Messages of a pair meet in the order of the calls, so both sides go by tags. */
static void sort_by_tag(const CommMessage *messages, guint num, guint order[])
{
    for (guint i = 0; i < num; i++) {
        guint at = i;

        for (; at > 0 && messages[order[at - 1]].tag > messages[i].tag; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static gboolean nccl_exchange(CommGroup *group, const CommMessage *messages, guint num_messages,
                              GError **error)
{
    ncclComm_t nccl = ((NcclGroup *)group)->nccl;
    guint order[MAX_OPERANDS];
    ncclResult_t status = ncclSuccess;
    cudaStream_t stream;

    g_assert(num_messages <= MAX_OPERANDS);
    sort_by_tag(messages, num_messages, order);
    NcclComm *comm = begin(group, &stream);
    for (guint i = 0; i < num_messages; i++) {
        const CommMessage *m = &messages[order[i]];
        const int peer = (int)m->peer;

        status =
            first_of(status, m->send ? ncclSend(m->buffer, m->bytes, ncclInt8, peer, nccl, stream)
                                     : ncclRecv(m->buffer, m->bytes, ncclInt8, peer, nccl, stream));
        comm->base.bytes_in[VOLUME_EXCHANGE] += m->send ? 0 : m->bytes;
    }
    return end(group, status, "ncclSend and ncclRecv", error);
}

/* ---- control channel: the host's ---- */

static gboolean nccl_agree_max(Comm *base, gint64 *value, GError **error)
{
    Comm *host = ((NcclComm *)base)->host;

    return host->ops->agree_max(host, value, error);
}

static gboolean nccl_gather_bytes(Comm *base, const void *data, gsize bytes, GPtrArray *all,
                                  GError **error)
{
    Comm *host = ((NcclComm *)base)->host;

    return host->ops->gather_bytes(host, data, bytes, all, error);
}

/* ---- begin and end ---- */

static void abort_all(NcclComm *comm)
{
    for (guint i = 0; i < comm->groups->len; i++)
        ncclCommAbort(((NcclGroup *)g_ptr_array_index(comm->groups, i))->nccl);
    if (comm->world != NULL)
        ncclCommAbort(comm->world);
    comm->world = NULL;
}

static void nccl_abort(Comm *base, int status)
{
    NcclComm *comm = (NcclComm *)base;

    abort_all(comm);
    comm->host->ops->abort(comm->host, status);
}

static void close_one(NcclComm *comm, ncclComm_t nccl)
{
    g_autoptr(GError) why = NULL;

    if (!settled(comm, ncclCommFinalize(nccl), nccl, "ncclCommFinalize", &why))
        g_debug("closing: %s", why->message);
    ncclCommDestroy(nccl);
}

static void nccl_free(Comm *base)
{
    NcclComm *comm = (NcclComm *)base;

    cuda_enter(comm->device);
    if (comm->failed)
        abort_all(comm);
    for (guint i = 0; i < comm->groups->len && !comm->failed; i++)
        close_one(comm, ((NcclGroup *)g_ptr_array_index(comm->groups, i))->nccl);
    if (comm->world != NULL)
        close_one(comm, comm->world);
    g_ptr_array_unref(comm->groups);
    if (!comm->failed)
        comm_free(comm->host); /* else its peers would wait for what never comes */
    g_free(comm);
}

void comm_nccl_rehearse(Comm *base, gboolean on)
{
    NcclComm *comm = (NcclComm *)base;

    g_assert(comm->rehearses != on);
    cuda_enter(comm->device);
    comm->rehearses = on;
    if (on) {
        comm->first_rehearsed = comm->groups->len;
        memcpy(comm->bytes, base->bytes_in, sizeof comm->bytes);
        return;
    }
    for (guint i = comm->first_rehearsed; i < comm->groups->len && !comm->failed; i++)
        close_one(comm, ((NcclGroup *)g_ptr_array_index(comm->groups, i))->nccl);
    if (!comm->failed)
        g_ptr_array_set_size(comm->groups, (gint)comm->first_rehearsed);
    memcpy(base->bytes_in, comm->bytes, sizeof comm->bytes);
}

double comm_nccl_rehearsed_s(const Comm *base)
{
    return ((const NcclComm *)base)->rehearsed_s;
}

/* Rank 0's id: the greatest of what all say, word by word. */
static gboolean share_id(NcclComm *comm, ncclUniqueId *id, GError **error)
{
    gint64 words[sizeof *id / sizeof(gint64)];

    G_STATIC_ASSERT(sizeof words == sizeof *id);
    if (comm->base.rank == 0 && !accepted(comm, ncclGetUniqueId(id), "ncclGetUniqueId", error))
        return FALSE;
    memcpy(words, id, sizeof words);
    for (guint w = 0; w < G_N_ELEMENTS(words); w++) {
        if (comm->base.rank > 0)
            words[w] = G_MININT64;
        if (!comm->host->ops->agree_max(comm->host, &words[w], error))
            return FALSE;
    }
    memcpy(id, words, sizeof words);
    return TRUE;
}

static gboolean join(NcclComm *comm, GError **error)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id = {0};

    cuda_enter(comm->device);
    config.blocking = 0;
    if (!share_id(comm, &id, error))
        return FALSE;
    const ncclResult_t status = ncclCommInitRankConfig(&comm->world, (int)comm->base.size, id,
                                                       (int)comm->base.rank, &config);
    return settled(comm, status, comm->world, "ncclCommInitRankConfig", error);
}

static const CommOps comm_nccl = {
    .name = "nccl",
    .takes_device_memory = TRUE,
    .alloc = nccl_alloc,
    .group = nccl_group,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce = nccl_all_reduce,
    .exchange = nccl_exchange,
    .agree_max = nccl_agree_max,
    .gather_bytes = nccl_gather_bytes,
    .check = nccl_check,
    .abort = nccl_abort,
    .free = nccl_free,
};

Comm *comm_nccl_open(Comm *host, Device *device, GError **error)
{
    NcclComm *comm = g_new0(NcclComm, 1);

    comm->base = (Comm){.ops = &comm_nccl,
                        .rank = host->rank,
                        .size = host->size,
                        .node_ranks = host->node_ranks,
                        .last_op = "start"};
    comm->host = host;
    comm->device = (CudaDevice *)device;
    comm->groups = g_ptr_array_new_with_free_func(g_free);
    if (join(comm, error))
        return &comm->base;
    comm->failed = TRUE;
    nccl_free(&comm->base);
    return NULL;
}
