/* Communicators: how ranks exchange tensors.  Transports are const tables: comm_self.c (one
 * rank), comm_mpi.c (MPI; shared windows within a node, rings between nodes), comm_tcp.c (a control
 * channel only, below NCCL). */
#pragma once

#include "exec/comm/comm_progress.h"
#include "sim/base/dtype.h"
#include "sim/layout/sharding.h"
#include "sim/program/program.h"

#include <glib.h>

typedef struct Comm Comm;
typedef struct CommGroup CommGroup;

/* One message of an exchange; tags pair a send with its receive. */
typedef struct {
    void *buffer;
    gsize bytes;
    guint peer; /* position in the group */
    guint tag;
    gboolean send;
} CommMessage;

/* A run of elements for all_reduce. */
typedef struct {
    gsize offset, elements;
} CommRun;

/* One transport.  All slots are required.  Only the thread that opened the communicator calls it.
 * Operations block until this rank's part is done AND its own buffers may be reused (peers have
 * read what they need).  Every member of a group calls the same operations in the same order.
 * Buffers of collectives lie in memory from alloc() (peers of the node read it directly); other
 * memory is legal too, and slower.  Sums are in fp32 (fp64 for fp64) in the order of positions,
 * rounded once; between nodes a ring may round once a hop.  After an error or a dead peer the
 * communicator is unusable: the caller ends with abort(). */
typedef struct {
    const char *name;             /* "self", "mpi", "tcp", "nccl" */
    gboolean takes_device_memory; /* buffers of collectives and messages are the device's, and
                                     operations are only enqueued, on the group's stream */

    /* Zeroed memory for the arena, aligned to 4096; freed with the communicator. Collective. */
    void *(*alloc)(Comm *comm, gsize bytes, GError **error);

    /* Collective over ALL ranks of the communicator (members or not), in one fixed order.  Returns
     * a group for members, NULL without error for others; freed with the communicator. */
    gboolean (*group)(Comm *comm, const guint *ranks, guint size, const char *purpose,
                      CommGroup **group, GError **error);

    /* shard == NULL: own chunks are already in place in @full. */
    gboolean (*all_gather)(CommGroup *group, const void *shard, void *full,
                           const ShardPiece *pieces, guint num_pieces, DType dtype, GError **error);
    /* shard == NULL: the sums go to own chunks of @full. */
    gboolean (*reduce_scatter)(CommGroup *group, void *full, void *shard, const ShardPiece *pieces,
                               guint num_pieces, DType dtype, GError **error);
    gboolean (*all_reduce)(CommGroup *group, void *buffer, const CommRun *runs, guint num_runs,
                           DType dtype, Reduction reduction, GError **error);
    gboolean (*exchange)(CommGroup *group, const CommMessage *messages, guint num_messages,
                         GError **error);

    /* Control channel, over all ranks, not counted as volume. */
    gboolean (*agree_max)(Comm *comm, gint64 *value, GError **error); /* value := max over ranks */
    gboolean (*gather_bytes)(Comm *comm, const void *data, gsize bytes,
                             GPtrArray *all, /* of GBytes, at rank 0 */
                             GError **error);
    /* Without blocking: FALSE once a peer is known to be dead, or an operation to have failed. */
    gboolean (*check)(Comm *comm, GError **error);
    void (*abort)(Comm *comm,
                  int status); /* ends the whole job; does not return where that is possible */
    void (*free)(Comm *comm);  /* collective when nothing failed */
} CommOps;

/* Where in a step a call is. */
typedef struct {
    guint64 step; /* from 1 */
    guint micro_batch, unit;
} CommCall;

/* First member of every transport's own struct. */
struct Comm {
    const CommOps *ops;
    guint rank, size;
    guint node_ranks;              /* ranks on this node */
    guint64 bytes_in[NUM_VOLUMES]; /* received so far, counted where they are copied */
    int pid;
    /* what peers of the machine read, see comm_peer() */
    char last_op[96];   /* what this rank last started */
    CommCall last_call; /* of a step: where; else step 0 */
    CommProgress progress;
};

struct CommGroup {
    Comm *comm;
    guint rank, size; /* position of this rank, members */
    guint stream;     /* of the device, where the transport takes its memory; the owner sets it */
    gboolean shared;  /* all members on this node: shared windows */
};

extern const CommOps comm_self, comm_mpi;

#define COMM_DEATH_S 0.1 /* a peer of this machine that died is noticed so soon */

/* @transport: "self" or "mpi".  For mpi this initialises MPI (call it on the communication thread).
 * @ranks_per_node 0: as the machine is; else consecutive ranks are taken as if on nodes of that
 * many (so that rings between nodes are testable on one machine). */
Comm *comm_open(const char *transport, guint ranks_per_node,
                GError **error) G_GNUC_WARN_UNUSED_RESULT;
void comm_free(Comm *comm);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Comm, comm_free)

/* Says what this rank is about to do ("step 12 block.backward layers.3 linear"); a peer that finds
 * this rank dead reports it.  Async-signal-safe cost: one bounded copy. */
void comm_note(Comm *comm, const char *what);

/* The same of a call of a step, for every call: nothing is formatted until somebody asks. */
void comm_note_call(Comm *comm, const char *segment, CommCall call);

/* What that rank noted last, as text; g_free(). */
char *comm_last_op(const Comm *comm);

/* What that rank shares with its machine: rank, pid, last_op and progress, nothing else; NULL for
 * one of another machine.  Any thread may ask, until the communicator is freed. */
Comm *comm_peer(Comm *comm, guint rank);

/* What a transport would say in the run's record: "shared windows", "rings over MPI", "one rank".
 */
const char *comm_describe(const Comm *comm);

/* Bytes of other ranks' memory that this process has mapped and touched (RSS that is not its own);
 * taken off VmHWM when a rank's memory is measured. */
guint64 comm_foreign_bytes(const Comm *comm);
