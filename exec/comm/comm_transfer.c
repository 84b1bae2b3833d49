#include "exec/comm/comm_transfer.h"

#include <string.h>

typedef struct {
    gsize shard, full, chunk, elements;
} Piece;

static Piece piece_at(const CommTransfer *transfer, guint i)
{
    if (transfer->pieces) {
        const ShardPiece *piece = &transfer->pieces[i];

        return (Piece){piece->shard_offset, piece->full_offset, piece->chunk,
                       piece->chunk * transfer->ranks};
    }
    const CommRun *run = &transfer->runs[i];
    gsize chunk = (run->elements + transfer->ranks - 1) / transfer->ranks;

    return (Piece){0, run->offset, chunk, run->elements};
}

gsize comm_transfer_elements(const CommTransfer *transfer)
{
    gsize sum = 0;

    for (guint i = 0; i < transfer->num; i++)
        sum += piece_at(transfer, i).chunk;
    return sum;
}

CommSlices comm_slices(const CommTransfer *transfer, guint rank, gsize from, gsize to)
{
    return (CommSlices){.transfer = transfer, .rank = rank, .from = from, .to = to};
}

CommSlices comm_slices_own(const CommTransfer *transfer, guint rank, gsize from, gsize to)
{
    CommSlices slices = comm_slices(transfer, rank, from, to);

    slices.in_shard = transfer->shard != NULL;
    return slices;
}

/* The part of @piece inside the walk; its padded length is not 0. */
static CommSlice cut(const CommSlices *slices, const Piece *piece)
{
    const CommTransfer *transfer = slices->transfer;
    gsize first = MAX(slices->from, slices->start) - slices->start;
    gsize end = MIN(slices->to, slices->start + piece->chunk) - slices->start;
    gsize in_piece = slices->rank * piece->chunk + first;
    gsize real = piece->elements > in_piece ? piece->elements - in_piece : 0;
    CommSlice slice = {.full = piece->full + in_piece,
                       .shard = piece->shard + first,
                       .linear = slices->start + first - slices->from,
                       .elements = MIN(real, end - first),
                       .padded = end - first,
                       .element_bytes = dtype_bytes(transfer->dtype)};

    slice.place = slices->in_shard ? transfer->shard + slice.shard * slice.element_bytes
                                   : transfer->full + slice.full * slice.element_bytes;
    return slice;
}

gboolean comm_slices_next(CommSlices *slices, CommSlice *slice)
{
    while (slices->piece < slices->transfer->num && slices->start < slices->to) {
        Piece piece = piece_at(slices->transfer, slices->piece);
        gboolean inside = piece.chunk > 0 && slices->start + piece.chunk > slices->from;

        if (inside)
            *slice = cut(slices, &piece);
        slices->piece++;
        slices->start += piece.chunk;
        if (inside)
            return TRUE;
    }
    return FALSE;
}

void comm_slices_pack(CommSlices slices, char *linear)
{
    CommSlice slice;

    while (comm_slices_next(&slices, &slice))
        memcpy(linear + slice.linear * slice.element_bytes, slice.place,
               slice.elements * slice.element_bytes);
}

void comm_slices_unpack(CommSlices slices, const char *linear)
{
    CommSlice slice;

    while (comm_slices_next(&slices, &slice))
        memcpy(slice.place, linear + slice.linear * slice.element_bytes,
               slice.elements * slice.element_bytes);
}

static void copy_own(const CommTransfer *transfer, guint rank, gboolean to_full)
{
    CommSlices slices = comm_slices_own(transfer, rank, 0, G_MAXSIZE);
    CommSlice slice;

    while (transfer->shard && comm_slices_next(&slices, &slice)) {
        char *full = transfer->full + slice.full * slice.element_bytes;

        memcpy(to_full ? full : slice.place, to_full ? slice.place : full,
               slice.elements * slice.element_bytes);
    }
}

void comm_transfer_own_to_full(const CommTransfer *transfer, guint rank)
{
    copy_own(transfer, rank, TRUE);
}

void comm_transfer_own_to_shard(const CommTransfer *transfer, guint rank)
{
    copy_own(transfer, rank, FALSE);
}
