/* What comm.c knows of the transports beyond their tables. */
#pragma once

#include "exec/comm/comm.h"

Comm *comm_self_open(void);
Comm *comm_mpi_open(guint ranks_per_node, GError **error) G_GNUC_WARN_UNUSED_RESULT;
Comm *comm_mpi_peer(Comm *comm, guint rank);
guint64 comm_mpi_foreign_bytes(const Comm *comm);

/* What alloc() promises, of this process alone; to be freed with free(). */
void *comm_pages(gsize bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;
