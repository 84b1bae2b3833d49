/* Calls of NCCL, alone and in groups. */
#include "tests/cudasim/nccl_comm.h"

/* What ncclGroupSimulateEnd says: a start, and a rate that is nobody's. */
#define LATENCY_US   10.0
#define BYTES_PER_US 50e3

typedef struct {
    CsTransfer transfer;
    cudaStream_t stream;
} Call;

/* Of this thread. */
static __thread int depth;
static __thread GArray *calls; /* Call */
static __thread ncclResult_t group_error;

static void hold(ncclComm_t comm, CsOp *op, cudaStream_t stream)
{
    CsHeld *held = g_new(CsHeld, 1);

    *held = (CsHeld){op, stream};
    g_ptr_array_add(comm->held, held);
}

/* Makes the calls in one op, or promises to. */
static ncclResult_t submit(GArray *transfers, cudaStream_t stream)
{
    ncclComm_t first = g_array_index(transfers, CsTransfer, 0).comm;
    gboolean in_progress = FALSE;

    for (guint i = 0; i < transfers->len; i++) {
        ncclComm_t comm = g_array_index(transfers, CsTransfer, i).comm;
        if (comm->blocking)
            continue;
        comm->polls = cs_random() % 4;
        in_progress = TRUE;
    }
    CsOp *op = cs_transfers_op(transfers);
    if (!in_progress) {
        cs_op_push(stream, op);
        return ncclSuccess;
    }
    hold(first, op, stream);
    return ncclInProgress;
}

/* One op for each stream. */
static ncclResult_t flush(void)
{
    ncclResult_t result = ncclSuccess;

    while (calls != NULL && calls->len > 0) {
        cudaStream_t stream = g_array_index(calls, Call, 0).stream;
        GArray *transfers = g_array_new(FALSE, FALSE, sizeof(CsTransfer));
        for (guint i = 0; i < calls->len;) {
            Call call = g_array_index(calls, Call, i);
            if (call.stream != stream) {
                i++;
                continue;
            }
            g_array_append_val(transfers, call.transfer);
            g_array_remove_index(calls, i);
        }
        ncclResult_t submitted = submit(transfers, stream);
        result = submitted == ncclSuccess ? result : submitted;
    }
    g_clear_pointer(&calls, g_array_unref);
    return result;
}

static ncclResult_t refuse(ncclComm_t comm, const char *why, ncclResult_t result)
{
    cs_report(CS_MISUSE, "NCCL: a call on a communicator of rank %d, which %s", comm->rank, why);
    group_error = depth > 0 ? result : ncclSuccess;
    return result;
}

static ncclResult_t call(CsTransfer transfer, cudaStream_t stream)
{
    ncclComm_t comm = transfer.comm;
    Call values = {transfer, stream};

    if (comm->destroyed)
        return refuse(comm, "was destroyed", ncclInvalidArgument);
    if (comm->error != ncclSuccess)
        return (ncclResult_t)comm->error;
    if (!comm->joined || comm->polls > 0 || comm->held->len > 0)
        return refuse(comm, "is still in progress", ncclInvalidArgument);
    if (transfer.what.root < 0 || transfer.what.root >= comm->size)
        return ncclInvalidArgument;
    if (calls == NULL)
        calls = g_array_new(FALSE, FALSE, sizeof(Call));
    g_array_append_val(calls, values);
    return depth == 0 ? flush() : ncclSuccess;
}

/* ---- groups ---- */

/* nccl.h declares them without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t error = group_error;

    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    group_error = ncclSuccess;
    if (error != ncclSuccess) {
        g_clear_pointer(&calls, g_array_unref);
        return error;
    }
    return flush();
}

/* As NCCL 2.28 does it (src/group.cc, src/enqueue.cc): it speaks of the last collective alone,
 * never of sends and receives; and a group of a communicator that does not block is done. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    for (guint i = 0; calls != NULL && i < calls->len; i++) {
        const CsTransfer *transfer = &g_array_index(calls, Call, i).transfer;
        const CsSignature *what = &transfer->what;

        if (!transfer->comm->blocking || transfer->comm->size == 1) {
            cs_report(CS_MISUSE,
                      "NCCL: a simulated group of a communicator of rank %d, which does not block "
                      "or has no other rank: it is done",
                      transfer->comm->rank);
            return ncclGroupEnd();
        }
        if (what->kind != CS_SEND && what->kind != CS_RECEIVE)
            info->estimatedTime =
                (float)(LATENCY_US +
                        (double)what->count * (double)cs_nccl_bytes(what->type) / BYTES_PER_US);
    }
    if (depth == 0)
        return ncclInvalidUsage;
    depth--;
    g_clear_pointer(&calls, g_array_unref);
    return ncclSuccess;
}

/* ---- calls ---- */

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call((CsTransfer){.comm = comm,
                             .what = {CS_ALL_GATHER, type, 0, 0, count},
                             .send = send,
                             .receive = receive},
                stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    return call((CsTransfer){.comm = comm,
                             .what = {CS_REDUCE_SCATTER, type, reduction, 0, count},
                             .send = send,
                             .receive = receive},
                stream);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    return call((CsTransfer){.comm = comm,
                             .what = {CS_ALL_REDUCE, type, reduction, 0, count},
                             .send = send,
                             .receive = receive},
                stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return call((CsTransfer){.comm = comm,
                             .what = {CS_BROADCAST, type, 0, root, count},
                             .send = send,
                             .receive = receive},
                stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream)
{
    return call((CsTransfer){.comm = comm,
                             .what = {CS_REDUCE, type, reduction, root, count},
                             .send = send,
                             .receive = receive},
                stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return call((CsTransfer){.comm = comm, .what = {CS_SEND, type, 0, peer, count}, .send = send},
                stream);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(
        (CsTransfer){.comm = comm, .what = {CS_RECEIVE, type, 0, peer, count}, .receive = receive},
        stream);
}
