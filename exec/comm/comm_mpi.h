/* Private to the MPI transport: its state, and what its files offer each other. */
#pragma once

#include "exec/comm/comm.h"
#include "exec/comm/comm_transfer.h"

#include <mpi.h>
#include <stdatomic.h>

enum {
    COMM_PAGE = 4096,
    COMM_STAGING_BYTES = 256 * 1024, /* a rank's shared memory for buffers not from alloc() */
    COMM_RING_BYTES = 1024 * 1024,   /* what one hop of a ring carries */
    COMM_MAX_BARRIERS = 4096,        /* groups of more than one rank within a machine */
    COMM_ABORTED = G_MAXUINT32
};

/* Memory of several ranks of one machine, mapped by all of them. */
typedef struct {
    char **peer; /* each rank's part, COMM_PAGE aligned, by rank of the communicator */
    gsize *bytes;
    guint num, own;
    MPI_Win win; /* MPI_WIN_NULL for a rank alone */
} CommWindow;

typedef struct {
    _Alignas(64) atomic_uint arrived;
    atomic_uint generation; /* a futex */
} CommBarrier;

/* Lies in the memory of the first rank of a machine. */
typedef struct {
    atomic_uint stopped; /* 0 while the job runs; world rank + 1 that died; COMM_ABORTED */
    CommBarrier barriers[COMM_MAX_BARRIERS];
} CommBoard;

/* Where a world rank lives. */
typedef struct {
    int machine, node;              /* lowest world rank there */
    int machine_position, position; /* among the ranks of the machine, of the node */
} CommPlace;

enum { COMM_PLACE_INTS = sizeof(CommPlace) / sizeof(int) };

/* A node is a machine, or a part of one where ranks_per_node was given: what shares windows.  What
 * a machine shares in any case is this struct (it lies in `control`), so that a peer can say what a
 * dead rank did last, and the board. */
typedef struct {
    Comm base;
    guint published_window; /* G_MAXUINT: not from alloc() */
    gsize published_offset;

    /* of this process only */
    gboolean failed;
    gboolean finalize; /* MPI was initialised here */
    MPI_Comm world, machine, node;
    CommWindow control;
    CommBoard *board;
    CommPlace *places;  /* by world rank */
    guint num_barriers; /* in use on this machine */
    gboolean crowded;   /* more ranks than cores */
    guint max_tag;
    GPtrArray *windows;  /* CommWindow, of alloc() */
    GPtrArray *groups;   /* MpiGroup */
    GPtrArray *segments; /* names of Open MPI's own files, see comm_segments_unlink() */
    GArray *requests;    /* MPI_Request */
    char *ring[2];       /* COMM_RING_BYTES each, once a group spans nodes */
} MpiComm;

typedef struct {
    CommGroup base;
    MPI_Comm mpi;
    CommBarrier *barrier; /* of a shared group of more than one */
    guint *world_rank;    /* by position */
    const char **source;  /* by position: what comm_sum() reads */
    char **published;     /* by position: what each member published */
} MpiGroup;

/* ---- comm_window.c ---- */
gboolean comm_window_open(CommWindow *window, MPI_Comm comm, gsize bytes, GError **error);
void comm_window_close(CommWindow *window); /* collective */
void comm_window_drop(CommWindow *window);  /* the bookkeeping only, after a failure */
guint64 comm_window_foreign_bytes(const CommWindow *window);
char *comm_control_staging(const MpiComm *comm, guint machine_position);
gboolean comm_control_open(MPI_Comm machine, CommWindow *control, GError **error);
CommBoard *comm_control_board(const CommWindow *control);
Comm *comm_control_first(const MpiComm *comm); /* of the machine */
/* Open MPI keeps files for its messages within a machine until MPI_Finalize; a killed job would
 * leave them.  Collective over the machine: connects all pairs, so that all have attached, and
 * unlinks.  MPI_Finalize complains about a missing file: restore puts empty ones in place. */
gboolean comm_segments_unlink(MpiComm *comm, GError **error);
void comm_segments_restore(MpiComm *comm);

/* ---- comm_wait.c ---- */
gboolean comm_mpi_ok(int status, const char *what, GError **error);
/* FALSE when a rank of this machine has died or the job was stopped. */
gboolean comm_watch(MpiComm *comm, GError **error);
gboolean comm_barrier(MpiGroup *group, GError **error);
/* Adds to what comm_complete() waits for. */
gboolean comm_post(MpiComm *comm, MPI_Comm mpi, const CommMessage *message, GError **error);
gboolean comm_complete(MpiComm *comm, GError **error);
gboolean comm_wait_requests(MpiComm *comm, MPI_Request *requests, int num, GError **error);

/* ---- comm_shared.c, comm_ring.c: the collectives ---- */
gboolean comm_shared_all_gather(MpiGroup *group, const CommTransfer *transfer, GError **error);
gboolean comm_shared_reduce_scatter(MpiGroup *group, const CommTransfer *transfer, GError **error);
gboolean comm_shared_all_reduce(MpiGroup *group, const CommTransfer *transfer, GError **error);
gboolean comm_ring_all_gather(MpiGroup *group, const CommTransfer *transfer, GError **error);
gboolean comm_ring_reduce_scatter(MpiGroup *group, const CommTransfer *transfer, GError **error);
gboolean comm_ring_all_reduce(MpiGroup *group, const CommTransfer *transfer, GError **error);
