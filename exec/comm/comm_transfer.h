/* Where the elements of one collective lie.  A rank's chunks, piece after piece, are one
 * concatenation; a transfer walks over any range of it, for any rank. */
#pragma once

#include "exec/comm/comm.h"

/* One of @pieces and @runs is NULL.  A run of e elements is cut into chunks of ceil(e / ranks); the
 * last ones are short or empty, but move padded. */
typedef struct {
    const ShardPiece *pieces;
    const CommRun *runs;
    guint num;
    guint ranks;
    DType dtype;
    Reduction reduction; /* where there is one */
    Volume volume;
    char *full, *shard; /* shard NULL: own chunks lie in full */
} CommTransfer;

/* A contiguous part of one rank's chunk; counts are elements. */
typedef struct {
    char *place;       /* where it lies on this rank */
    gsize full, shard; /* where it starts in the whole, in that rank's shard */
    gsize linear;      /* where in the concatenation, counted from the start of the walk */
    gsize elements;    /* real ones, may be 0 */
    gsize padded;      /* what moves, at least elements */
    gsize element_bytes;
} CommSlice;

typedef struct {
    const CommTransfer *transfer;
    guint rank;
    gboolean in_shard;
    gsize from, to; /* of the concatenation */
    guint piece;
    gsize start; /* of the piece in the concatenation */
} CommSlices;

gsize comm_transfer_elements(const CommTransfer *transfer); /* of the concatenation */

/* Walks over [from, to) of @rank's chunks: as they lie in the whole; or, for this rank's own, in
 * its shard where there is one. */
CommSlices comm_slices(const CommTransfer *transfer, guint rank, gsize from, gsize to);
CommSlices comm_slices_own(const CommTransfer *transfer, guint rank, gsize from, gsize to);
gboolean comm_slices_next(CommSlices *slices, CommSlice *slice);

/* To and from consecutive memory. */
void comm_slices_pack(CommSlices slices, char *linear);
void comm_slices_unpack(CommSlices slices, const char *linear);

/* Own chunks between shard and whole; nothing to do in place. */
void comm_transfer_own_to_full(const CommTransfer *transfer, guint rank);
void comm_transfer_own_to_shard(const CommTransfer *transfer, guint rank);
