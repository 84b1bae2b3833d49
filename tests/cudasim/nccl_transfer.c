/* Moves the data.  A transfer has two halves: post copies what is sent to shared memory, complete
 * waits for the peers and writes what is received.  Neither blocks: other streams may go on. */
#include "tests/cudasim/memory.h"
#include "tests/cudasim/nccl_comm.h"
#include "tests/cudasim/number.h"
#include <sched.h>
#include <string.h>

enum { YIELDS = 4, PAUSE_US = 20 }; /* of a wait for peers */

typedef struct {
    CsOp base;
    GArray *transfers; /* CsTransfer */
} TransfersOp;

static const char *const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                    "ncclBroadcast", "ncclReduce",        "ncclSend",
                                    "ncclRecv"};

static CsNumber number_of(ncclDataType_t type)
{
    static const CsNumber numbers[ncclNumTypes] = {
        [ncclInt8] = CS_INT8,     [ncclUint8] = CS_UINT8,     [ncclInt32] = CS_INT32,
        [ncclUint32] = CS_UINT32, [ncclInt64] = CS_INT64,     [ncclUint64] = CS_UINT64,
        [ncclFloat16] = CS_FP16,  [ncclFloat32] = CS_FP32,    [ncclFloat64] = CS_FP64,
        [ncclBfloat16] = CS_BF16, [ncclFloat8e4m3] = CS_E4M3, [ncclFloat8e5m2] = CS_E5M2};

    return numbers[type];
}

gsize cs_nccl_bytes(ncclDataType_t type)
{
    return cs_number_bytes(number_of(type));
}

/* ---- sizes and places ---- */

static gsize bytes_in(const CsTransfer *t)
{
    gsize bytes = t->what.count * cs_nccl_bytes(t->what.type);

    switch (t->what.kind) {
    case CS_REDUCE_SCATTER:
        return bytes * (gsize)t->comm->size;
    case CS_RECEIVE:
        return 0;
    case CS_BROADCAST:
        return t->comm->rank == t->what.root ? bytes : 0;
    default:
        return bytes;
    }
}

static gsize bytes_out(const CsTransfer *t)
{
    gsize bytes = t->what.count * cs_nccl_bytes(t->what.type);

    switch (t->what.kind) {
    case CS_ALL_GATHER:
        return bytes * (gsize)t->comm->size;
    case CS_SEND:
        return 0;
    case CS_REDUCE:
        return t->comm->rank == t->what.root ? bytes : 0;
    default:
        return bytes;
    }
}

/* Two slots a rank, by turns: the one before may still be read. */
static char *slot_of(ncclComm_t comm, int rank, guint64 number)
{
    return comm->slots + ((gsize)rank * 2 + (number & 1)) * CS_SLOT_BYTES;
}

static char *mail_slot(ncclComm_t comm, int from, int to)
{
    gsize size = (gsize)comm->size;

    return comm->slots + (size * 2 + (gsize)from * size + (gsize)to) * CS_SLOT_BYTES;
}

/* ---- post ---- */

static gboolean may_post(const CsTransfer *t)
{
    const CsShared *shared = t->comm->shared;
    int self = t->comm->rank;

    if (t->what.kind == CS_SEND)
        return shared->mail[self][t->what.root].received + 1 >= t->number;
    if (t->what.kind == CS_RECEIVE)
        return TRUE;
    if (shared->ranks[self].posted + 1 != t->number)
        return FALSE; /* those of a communicator run in the order of the calls */
    for (int rank = 0; rank < t->comm->size; rank++)
        if (shared->ranks[rank].done + 2 < t->number)
            return FALSE;
    return TRUE;
}

static void post(CsTransfer *t)
{
    CsShared *shared = t->comm->shared;
    int self = t->comm->rank, peer = t->what.root;
    gsize in = bytes_in(t), out = bytes_out(t);

    if (in > CS_SLOT_BYTES)
        g_error("cudasim: %s of %zu bytes", names[t->what.kind], in);
    cs_race_access(CS_READ, t->send, in);
    if (t->what.kind == CS_SEND) {
        memcpy(mail_slot(t->comm, self, peer), t->send, in);
        shared->mail[self][peer].bytes = in;
        shared->mail[self][peer].sent = t->number;
    } else if (t->what.kind != CS_RECEIVE) {
        if (in > 0)
            memcpy(slot_of(t->comm, self, t->number), t->send, in);
        shared->ranks[self].signatures[t->number & 1] = t->what;
        shared->ranks[self].posted = t->number;
    }
    /* What is received is written at any time from now on: whoever looks too early finds that. */
    cs_race_access(CS_WRITE, t->receive, out);
    if (out > 0)
        cs_memory_poison(t->receive, out);
    t->posted = TRUE;
}

/* ---- reductions ---- */

static double combine(ncclRedOp_t reduction, double a, double b)
{
    switch (reduction) {
    case ncclMax:
        return MAX(a, b);
    case ncclMin:
        return MIN(a, b);
    case ncclProd:
        return a * b;
    default:
        return a + b;
    }
}

/* Element @from of all ranks, as a ring adds it: from the owner's next to the owner, rounded at
 * each hop.  So sums depend on who owns a chunk, and tests cannot rely on one order. */
static void reduce_element(const CsTransfer *t, gsize from, gsize to, int owner)
{
    CsNumber type = number_of(t->what.type);
    int size = t->comm->size;

    for (int hop = 1; hop <= size; hop++) {
        const char *slot = slot_of(t->comm, (owner + hop) % size, t->number);
        double value = cs_number_get(type, slot, from);
        if (t->what.reduction == ncclAvg)
            value /= size;
        if (hop > 1)
            value = combine(t->what.reduction, cs_number_get(type, t->receive, to), value);
        cs_number_set(type, t->receive, to, value);
    }
}

static void reduce(const CsTransfer *t)
{
    gsize count = t->what.count, size = (gsize)t->comm->size;
    gsize chunk = (count + size - 1) / size;
    gsize first = t->what.kind == CS_REDUCE_SCATTER ? (gsize)t->comm->rank * count : 0;

    for (gsize i = 0; i < count; i++)
        reduce_element(t, first + i, i,
                       t->what.kind == CS_REDUCE_SCATTER ? t->comm->rank : (int)(i / chunk));
}

/* ---- complete ---- */

static void check_signatures(const CsTransfer *t)
{
    const CsSignature *self = &t->what;

    for (int rank = 0; rank < t->comm->size; rank++) {
        const CsSignature *other = &t->comm->shared->ranks[rank].signatures[t->number & 1];
        if (other->kind != self->kind || other->type != self->type || other->root != self->root ||
            other->reduction != self->reduction || other->count != self->count)
            cs_report(CS_NCCL,
                      "call %" G_GUINT64_FORMAT
                      ": rank %d does %s of %zu, type %d; rank %d %s of %zu, type %d",
                      t->number, t->comm->rank, names[self->kind], self->count, (int)self->type,
                      rank, names[other->kind], other->count, (int)other->type);
    }
}

static void write_received(const CsTransfer *t)
{
    gsize bytes = t->what.count * cs_nccl_bytes(t->what.type);

    switch (t->what.kind) {
    case CS_ALL_GATHER:
        for (int rank = 0; rank < t->comm->size; rank++)
            memcpy((char *)t->receive + (gsize)rank * bytes, slot_of(t->comm, rank, t->number),
                   bytes);
        return;
    case CS_BROADCAST:
        memcpy(t->receive, slot_of(t->comm, t->what.root, t->number), bytes);
        return;
    case CS_REDUCE:
        if (t->comm->rank == t->what.root)
            reduce(t);
        return;
    default:
        reduce(t);
    }
}

static gboolean complete_receive(const CsTransfer *t)
{
    CsShared *shared = t->comm->shared;
    int self = t->comm->rank, peer = t->what.root;
    gsize bytes = bytes_out(t), sent;

    if (shared->mail[peer][self].sent < t->number)
        return FALSE;
    sent = shared->mail[peer][self].bytes;
    if (sent != bytes)
        cs_report(CS_NCCL, "rank %d receives %zu bytes from rank %d, which sent %zu", self, bytes,
                  peer, sent);
    memcpy(t->receive, mail_slot(t->comm, peer, self), bytes);
    shared->mail[peer][self].received = t->number;
    return TRUE;
}

static gboolean complete(const CsTransfer *t)
{
    CsShared *shared = t->comm->shared;
    int self = t->comm->rank;

    if (t->what.kind == CS_SEND) /* over when it was received */
        return shared->mail[self][t->what.root].received >= t->number;
    if (t->what.kind == CS_RECEIVE)
        return complete_receive(t);
    if (shared->ranks[self].done + 1 != t->number)
        return FALSE; /* one by one: peers reuse the slots of what is done */
    for (int rank = 0; rank < t->comm->size; rank++)
        if (shared->ranks[rank].posted < t->number)
            return FALSE;
    check_signatures(t);
    write_received(t);
    shared->ranks[self].done = t->number;
    return TRUE;
}

/* One step, which never blocks.  TRUE: it is over. */
static gboolean progress(CsTransfer *t)
{
    if (t->over)
        return TRUE;
    if (t->comm->error == ncclSuccess && t->comm->shared->aborted)
        t->comm->error = ncclRemoteError;
    if (t->comm->error != ncclSuccess)
        return t->over = TRUE;
    if (!t->posted && !may_post(t))
        return FALSE;
    if (!t->posted)
        post(t);
    return t->over = complete(t);
}

/* ---- the op ---- */

static CsTransfer *transfer(CsOp *op, guint index)
{
    GArray *transfers = ((TransfersOp *)op)->transfers;

    return index < transfers->len ? &g_array_index(transfers, CsTransfer, index) : NULL;
}

/* Numbers follow the order in which ops are queued: a graph's at each launch. */
static void queued(CsOp *op)
{
    CsTransfer *t;

    for (guint i = 0; (t = transfer(op, i)) != NULL; i++) {
        if (t->what.kind == CS_SEND)
            t->number = ++t->comm->sent[t->what.root];
        else if (t->what.kind == CS_RECEIVE)
            t->number = ++t->comm->received[t->what.root];
        else
            t->number = ++t->comm->collectives;
    }
}

static void start(CsOp *op)
{
    CsTransfer *t;

    for (guint i = 0; (t = transfer(op, i)) != NULL; i++)
        if (t->comm->error == ncclSuccess && may_post(t))
            post(t);
}

/* The peers are other processes, which may need this one's core. */
static gboolean poll(CsOp *op, double wait_s)
{
    gint64 end = g_get_monotonic_time() + (gint64)(wait_s * 1e6);
    gboolean over;
    CsTransfer *t;

    for (guint polls = 0;; polls++) {
        over = TRUE;
        for (guint i = 0; (t = transfer(op, i)) != NULL; i++)
            over = progress(t) && over;
        if (over || g_get_monotonic_time() >= end)
            return over;
        if (polls < YIELDS)
            sched_yield();
        else
            g_usleep(PAUSE_US);
    }
}

/* All is over, or the scheduler gives up. */
static void run(CsOp *op)
{
    CsTransfer *t;

    for (guint i = 0; (t = transfer(op, i)) != NULL; i++) {
        if (t->over)
            continue;
        cs_report(CS_NCCL, "rank %d of %d: %s number %" G_GUINT64_FORMAT " has no end",
                  t->comm->rank, t->comm->size, names[t->what.kind], t->number);
        t->comm->error = ncclSystemError;
    }
}

static void copied(CsOp *op)
{
    TransfersOp *self = (TransfersOp *)op;

    self->transfers = g_array_copy(self->transfers);
}

static void dropped(CsOp *op)
{
    g_array_unref(((TransfersOp *)op)->transfers);
}

static const CsOpKind transfers_kind = {.name = "an NCCL group",
                                        .bytes = sizeof(TransfersOp),
                                        .run = run,
                                        .copied = copied,
                                        .dropped = dropped,
                                        .queued = queued,
                                        .start = start,
                                        .poll = poll};

CsOp *cs_transfers_op(GArray *transfers)
{
    TransfersOp *op = (TransfersOp *)cs_op_new(&transfers_kind);

    op->transfers = transfers;
    if (transfers->len == 1)
        op->base.name = names[g_array_index(transfers, CsTransfer, 0).what.kind];
    return &op->base;
}
