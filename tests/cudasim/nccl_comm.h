/* A fake NCCL between processes of one machine, through one file of shared memory a communicator.
 */
#pragma once

#include "tests/cudasim/stream.h"
#include <nccl.h>
#include <stdatomic.h>

#define CS_MAX_RANKS  16
#define CS_MAX_SPLITS 1024              /* of one communicator */
#define CS_SLOT_BYTES ((gsize)32 << 20) /* of one message; only what is touched exists */

typedef enum {
    CS_ALL_GATHER,
    CS_REDUCE_SCATTER,
    CS_ALL_REDUCE,
    CS_BROADCAST,
    CS_REDUCE,
    CS_SEND,
    CS_RECEIVE
} CsTransferKind;

/* What all ranks must agree on. */
typedef struct {
    CsTransferKind kind;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root;
    gsize count;
} CsSignature;

/* The head of the file; slots follow. */
typedef struct {
    atomic_int joined;
    atomic_int size; /* as the first rank says */
    atomic_int aborted;
    struct {
        atomic_int splits;
        atomic_uint_fast64_t posted; /* collectives, in their order */
        atomic_uint_fast64_t done;
        CsSignature signatures[2];
        int colors[CS_MAX_SPLITS];
        int keys[CS_MAX_SPLITS];
    } ranks[CS_MAX_RANKS];
    struct {
        atomic_uint_fast64_t sent;
        atomic_uint_fast64_t received;
        gsize bytes;
    } mail[CS_MAX_RANKS][CS_MAX_RANKS]; /* from, to */
} CsShared;

struct ncclComm {
    CsShared *shared; /* NULL until it is known who else is in it */
    char *slots;
    int rank;
    int size;
    gboolean blocking;
    gboolean destroyed;
    char id[NCCL_UNIQUE_ID_BYTES];
    atomic_int error; /* ncclResult_t */

    /* While it comes to be. */
    ncclComm_t parent;
    int split; /* of the parent */
    int color;
    int key;
    gboolean joined;

    int num_splits; /* of this one */
    guint64 collectives;
    guint64 sent[CS_MAX_RANKS];
    guint64 received[CS_MAX_RANKS];

    /* Not blocking: calls that were accepted, but not yet made. */
    guint polls;
    GPtrArray *held; /* Held */
};

typedef struct {
    CsOp *op;
    cudaStream_t stream;
} CsHeld;

/* ---- nccl_transfer.c ---- */

typedef struct {
    ncclComm_t comm;
    CsSignature what;
    const void *send;
    void *receive;
    guint64 number; /* among the communicator's collectives, or the messages to or from the peer */
    gboolean posted;
    gboolean over;
} CsTransfer;

/* An op that is over when all of @transfers are (taken). */
CsOp *cs_transfers_op(GArray *transfers);

/* Number of bytes of one element. */
gsize cs_nccl_bytes(ncclDataType_t type);
