/* The control channel of a job without MPI: every rank has a connection to rank 0.  It carries what
 * ranks agree on, gather, and that one has died; tensors are NCCL's (exec/cuda/comm_nccl.c), so its
 * group() and collectives are refused by name. */
#pragma once

#include "exec/comm/comm.h"

/* Where and as what a rank joins. */
typedef struct {
    const char *host; /* of rank 0: a name or an address */
    guint port;
    int listener; /* of rank 0: a socket that listens there already; -1: none */
    guint rank, size;
    const char *job; /* what all ranks must say alike: the version, the program */
    guint limit_s;   /* that all ranks have to come; 0: for ever */
} CommRendezvous;

/* Returns when all ranks have come.  ERROR_RUNTIME when one did not, or rank 0 can't listen;
 * ERROR_INPUT when two are not of one job: another size, program, or the same rank.  Rank 0 tells
 * that to all who come within some seconds.  What connects and is no rank is said and ignored. */
Comm *comm_tcp_open(const CommRendezvous *how, GError **error) G_GNUC_WARN_UNUSED_RESULT;
