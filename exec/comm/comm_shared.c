/* Collectives of ranks that share memory: an all-gather is copies out of the peers' buffers, a
 * reduce-scatter one sum over them.  Everyone says where its buffer lies and waits for all; reads;
 * and waits again, so that buffers may be reused.  When one member's buffer is not from alloc(),
 * all send theirs through staging memory, piece by piece. */
#include "exec/comm/comm_mpi.h"
#include "exec/comm/comm_sum.h"

#include <string.h>

static void publish(MpiComm *comm, const char *buffer)
{
    comm->published_window = G_MAXUINT;
    for (guint i = 0; i < comm->windows->len; i++) {
        const CommWindow *window = g_ptr_array_index(comm->windows, i);
        guintptr offset = (guintptr)buffer - (guintptr)window->peer[window->own];

        if (offset < window->bytes[window->own]) {
            comm->published_window = i;
            comm->published_offset = offset;
            return;
        }
    }
}

static const CommPlace *member_place(const MpiGroup *group, guint position)
{
    const MpiComm *comm = (const MpiComm *)group->base.comm;

    return &comm->places[group->world_rank[position]];
}

/* Finds every member's buffer; FALSE when one is not shared. */
static gboolean find_published(MpiGroup *group)
{
    const MpiComm *comm = (const MpiComm *)group->base.comm;

    for (guint i = 0; i < group->base.size; i++) {
        const CommPlace *place = member_place(group, i);
        const MpiComm *peer =
            (const MpiComm *)(const void *)comm->control.peer[place->machine_position];

        if (peer->published_window == G_MAXUINT)
            return FALSE;
        const CommWindow *window = g_ptr_array_index(comm->windows, peer->published_window);
        group->published[i] = window->peer[place->position] + peer->published_offset;
    }
    return TRUE;
}

static gboolean begin(MpiGroup *group, const char *buffer, gboolean *direct, GError **error)
{
    publish((MpiComm *)group->base.comm, buffer);
    if (!comm_barrier(group, error))
        return FALSE;
    *direct = find_published(group);
    return TRUE;
}

static char *staging(const MpiGroup *group, guint position)
{
    const MpiComm *comm = (const MpiComm *)group->base.comm;

    return comm_control_staging(comm, (guint)member_place(group, position)->machine_position);
}

static void count(const MpiGroup *group, const CommTransfer *transfer, gsize bytes)
{
    group->base.comm->bytes_in[transfer->volume] += bytes;
}

/* Copies [from, to) of the others' chunks into the whole; @direct: out of their buffers. */
static void copy_chunks(MpiGroup *group, const CommTransfer *transfer, gsize from, gsize to,
                        gboolean direct)
{
    for (guint step = 1; step < group->base.size; step++) {
        guint peer = (group->base.rank + step) % group->base.size;
        CommSlices slices = comm_slices(transfer, peer, from, to);
        CommSlice slice;

        while (comm_slices_next(&slices, &slice)) {
            gsize at = transfer->shard ? slice.shard : slice.full;
            const char *source = direct ? group->published[peer] + at * slice.element_bytes
                                        : staging(group, peer) + slice.linear * slice.element_bytes;

            memcpy(slice.place, source, slice.elements * slice.element_bytes);
            count(group, transfer, slice.padded * slice.element_bytes);
        }
    }
}

static gboolean gather(MpiGroup *group, const CommTransfer *transfer, gboolean direct,
                       GError **error)
{
    gsize total = comm_transfer_elements(transfer);
    gsize step = COMM_STAGING_BYTES / dtype_bytes(transfer->dtype);

    comm_transfer_own_to_full(transfer, group->base.rank);
    if (direct)
        copy_chunks(group, transfer, 0, total, TRUE);
    for (gsize from = 0; !direct && from < total; from += step) {
        gsize to = MIN(total, from + step);

        comm_slices_pack(comm_slices_own(transfer, group->base.rank, from, to),
                         staging(group, group->base.rank));
        if (!comm_barrier(group, error))
            return FALSE;
        copy_chunks(group, transfer, from, to, FALSE);
        if (!comm_barrier(group, error))
            return FALSE;
    }
    return TRUE;
}

/* Sums [from, to) of this rank's chunk over all members.  Staging memory holds @stride elements for
 * each member's chunk. */
static void sum_chunk(MpiGroup *group, const CommTransfer *transfer, gsize from, gsize to,
                      gsize stride)
{
    CommSlices slices = comm_slices_own(transfer, group->base.rank, from, to);
    CommSlice slice;

    while (comm_slices_next(&slices, &slice)) {
        for (guint i = 0; i < group->base.size; i++)
            group->source[i] =
                stride == 0 ? group->published[i] + slice.full * slice.element_bytes
                            : staging(group, i) +
                                  (group->base.rank * stride + slice.linear) * slice.element_bytes;
        comm_reduce(slice.place, group->source, group->base.size, slice.elements, transfer->dtype,
                    transfer->reduction);
        count(group, transfer, (group->base.size - 1) * slice.padded * slice.element_bytes);
    }
}

static gboolean reduce(MpiGroup *group, const CommTransfer *transfer, gboolean direct,
                       GError **error)
{
    gsize total = comm_transfer_elements(transfer);
    gsize size = dtype_bytes(transfer->dtype);
    gsize stride = MAX(COMM_STAGING_BYTES / size / group->base.size, 1);

    if (direct)
        sum_chunk(group, transfer, 0, total, 0);
    for (gsize from = 0; !direct && from < total; from += stride) {
        gsize to = MIN(total, from + stride);

        for (guint i = 0; i < group->base.size; i++)
            comm_slices_pack(comm_slices(transfer, i, from, to),
                             staging(group, group->base.rank) + i * stride * size);
        if (!comm_barrier(group, error))
            return FALSE;
        sum_chunk(group, transfer, from, to, stride);
        if (!comm_barrier(group, error))
            return FALSE;
    }
    return TRUE;
}

gboolean comm_shared_all_gather(MpiGroup *group, const CommTransfer *transfer, GError **error)
{
    const char *buffer = transfer->shard ? transfer->shard : transfer->full;
    gboolean direct = FALSE;

    return begin(group, buffer, &direct, error) && gather(group, transfer, direct, error) &&
           comm_barrier(group, error);
}

gboolean comm_shared_reduce_scatter(MpiGroup *group, const CommTransfer *transfer, GError **error)
{
    gboolean direct = FALSE;

    return begin(group, transfer->full, &direct, error) && reduce(group, transfer, direct, error) &&
           comm_barrier(group, error);
}

gboolean comm_shared_all_reduce(MpiGroup *group, const CommTransfer *transfer, GError **error)
{
    gboolean direct = FALSE;

    return begin(group, transfer->full, &direct, error) && reduce(group, transfer, direct, error) &&
           comm_barrier(group, error) && gather(group, transfer, direct, error) &&
           comm_barrier(group, error);
}
