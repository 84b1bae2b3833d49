#include "exec/comm/comm.h"

#include "exec/comm/comm_private.h"
#include "sim/base/error.h"

#include <stdlib.h>
#include <string.h>

Comm *comm_open(const char *transport, guint ranks_per_node, GError **error)
{
    if (g_str_equal(transport, comm_self.name))
        return comm_self_open();
    if (g_str_equal(transport, comm_mpi.name))
        return comm_mpi_open(ranks_per_node, error);
    fail(error, ERROR_INPUT, "transport: '%s' is not one of: %s, %s", transport, comm_self.name,
         comm_mpi.name);
    return NULL;
}

void *comm_pages(gsize bytes, GError **error)
{
    enum { PAGE = 4096 };
    const gsize padded = (MAX(bytes, 1) + PAGE - 1) / PAGE * PAGE;
    void *memory = padded >= bytes ? aligned_alloc(PAGE, padded) : NULL;

    if (memory == NULL) {
        fail(error, ERROR_RUNTIME, "out of memory: %" G_GSIZE_FORMAT " bytes", bytes);
        return NULL;
    }
    memset(memory, 0, padded);
    return memory;
}

void comm_free(Comm *comm)
{
    if (comm)
        comm->ops->free(comm);
}

void comm_note(Comm *comm, const char *what)
{
    comm->last_call.step = 0;
    g_strlcpy(comm->last_op, what, sizeof comm->last_op);
}

void comm_note_call(Comm *comm, const char *segment, CommCall call)
{
    g_strlcpy(comm->last_op, segment, sizeof comm->last_op);
    comm->last_call = call;
}

/* A peer may write meanwhile; it never moves the last byte, which is 0. */
char *comm_last_op(const Comm *comm)
{
    const CommCall call = comm->last_call;

    if (call.step == 0)
        return g_strdup(comm->last_op);
    return g_strdup_printf("step %" G_GUINT64_FORMAT " micro-batch %u %s unit %u", call.step,
                           call.micro_batch, comm->last_op, call.unit);
}

Comm *comm_peer(Comm *comm, guint rank)
{
    if (rank == comm->rank)
        return comm;
    return comm->ops == &comm_mpi ? comm_mpi_peer(comm, rank) : NULL;
}

const char *comm_describe(const Comm *comm)
{
    if (comm->ops->takes_device_memory)
        return "NCCL";
    if (comm->ops == &comm_self)
        return "one rank";
    if (comm->node_ranks == comm->size)
        return "shared windows";
    return comm->node_ranks == 1 ? "rings over MPI"
                                 : "shared windows within a node, rings over MPI between nodes";
}

guint64 comm_foreign_bytes(const Comm *comm)
{
    return comm->ops == &comm_mpi ? comm_mpi_foreign_bytes(comm) : 0;
}
