/* Collectives of ranks on several nodes: each rank passes a chunk to the next one, n - 1 times.
 * The pieces' chunks travel as one concatenation, COMM_RING_BYTES at a time.  Partial sums are
 * rounded to the dtype at every hop, so that what moves is what the volume formula counts; the sum
 * of chunk c starts at position c + 1 and ends at c. */
#include "exec/comm/comm_mpi.h"
#include "exec/comm/comm_sum.h"

/* Sends one hop's part to the next rank, receives another from the one before. */
static gboolean pass(MpiGroup *group, const CommTransfer *transfer, gsize elements, GError **error)
{
    MpiComm *comm = (MpiComm *)group->base.comm;
    guint size = group->base.size, rank = group->base.rank;
    gsize bytes = elements * dtype_bytes(transfer->dtype);
    CommMessage send = {comm->ring[0], bytes, (rank + 1) % size, 0, TRUE};
    CommMessage receive = {comm->ring[1], bytes, (rank + size - 1) % size, 0, FALSE};

    progress_move(&comm->base.progress);
    if (!comm_post(comm, group->mpi, &receive, error) ||
        !comm_post(comm, group->mpi, &send, error) || !comm_complete(comm, error))
        return FALSE;
    comm->base.bytes_in[transfer->volume] += bytes;
    return TRUE;
}

/* What was received goes out with the next hop. */
static void swap(MpiComm *comm)
{
    char *sent = comm->ring[0];

    comm->ring[0] = comm->ring[1];
    comm->ring[1] = sent;
}

/* Adds this rank's values to the partial sum that was received. */
static void add_own(char *partial, CommSlices slices, const CommTransfer *transfer)
{
    CommSlice slice;

    while (comm_slices_next(&slices, &slice)) {
        char *to = partial + slice.linear * slice.element_bytes;
        const char *const from[] = {to, slice.place};

        comm_reduce(to, from, G_N_ELEMENTS(from), slice.elements, transfer->dtype,
                    transfer->reduction);
    }
}

static gboolean reduce_part(MpiGroup *group, const CommTransfer *transfer, gsize from, gsize to,
                            GError **error)
{
    MpiComm *comm = (MpiComm *)group->base.comm;
    guint size = group->base.size, rank = group->base.rank;

    comm_slices_pack(comm_slices(transfer, (rank + size - 1) % size, from, to), comm->ring[0]);
    for (guint hop = 1; hop < size; hop++) {
        guint chunk = (rank + 2 * size - hop - 1) % size;

        if (!pass(group, transfer, to - from, error))
            return FALSE;
        add_own(comm->ring[1], comm_slices(transfer, chunk, from, to), transfer);
        swap(comm);
    }
    comm_slices_unpack(comm_slices_own(transfer, rank, from, to), comm->ring[0]);
    return TRUE;
}

static gboolean gather_part(MpiGroup *group, const CommTransfer *transfer, gsize from, gsize to,
                            GError **error)
{
    MpiComm *comm = (MpiComm *)group->base.comm;
    guint size = group->base.size, rank = group->base.rank;

    comm_slices_pack(comm_slices_own(transfer, rank, from, to), comm->ring[0]);
    for (guint hop = 1; hop < size; hop++) {
        if (!pass(group, transfer, to - from, error))
            return FALSE;
        comm_slices_unpack(comm_slices(transfer, (rank + size - hop) % size, from, to),
                           comm->ring[1]);
        swap(comm);
    }
    return TRUE;
}

typedef gboolean (*Part)(MpiGroup *group, const CommTransfer *transfer, gsize from, gsize to,
                         GError **error);

static gboolean in_parts(MpiGroup *group, const CommTransfer *transfer, Part part, GError **error)
{
    gsize total = comm_transfer_elements(transfer);
    gsize step = COMM_RING_BYTES / dtype_bytes(transfer->dtype);

    for (gsize from = 0; from < total; from += step)
        if (!part(group, transfer, from, MIN(total, from + step), error))
            return FALSE;
    return TRUE;
}

gboolean comm_ring_all_gather(MpiGroup *group, const CommTransfer *transfer, GError **error)
{
    comm_transfer_own_to_full(transfer, group->base.rank);
    return in_parts(group, transfer, gather_part, error);
}

gboolean comm_ring_reduce_scatter(MpiGroup *group, const CommTransfer *transfer, GError **error)
{
    return in_parts(group, transfer, reduce_part, error);
}

gboolean comm_ring_all_reduce(MpiGroup *group, const CommTransfer *transfer, GError **error)
{
    return in_parts(group, transfer, reduce_part, error) &&
           in_parts(group, transfer, gather_part, error);
}
