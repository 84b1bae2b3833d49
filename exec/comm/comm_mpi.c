/* The MPI transport.  MPI launches, connects and carries messages; ranks of one node share windows
 * (comm_shared.c), groups that span nodes pass rings (comm_ring.c).
 *
 * What a killed job leaves behind (Open MPI 4.1):
 * - windows: nothing, their file is unlinked once all have attached;
 * - /dev/shm/vader_segment.*, the files for messages within a machine: comm_open() unlinks them as
 *   soon as all ranks have attached, so that they exist for moments only;
 * - the session directory ompi.HOST.UID/pid.N under $TMPDIR, left when mpirun itself is killed.  A
 *   launcher that wants that gone too makes a directory for the job, passes
 *       --mca orte_tmpdir_base DIR
 *   and removes DIR when mpirun has ended.  It must not move btl_vader_backing_directory and
 *   osc_sm_backing_directory out of a memory file system: windows would be written to disk.
 * That ranks end with their mpirun is seen to by launch_rank_started(). */
#include "exec/comm/comm_mpi.h"

#include "exec/comm/comm_private.h"
#include "sim/base/error.h"

#include <unistd.h>

/* After a failure the ranks can no longer agree on anything. */
static gboolean checked(Comm *comm, gboolean ok)
{
    if (!ok)
        ((MpiComm *)comm)->failed = TRUE;
    return ok;
}

/* ---- memory and groups ---- */

static void *mpi_alloc(Comm *base, gsize bytes, GError **error)
{
    MpiComm *comm = (MpiComm *)base;
    CommWindow *window = g_new0(CommWindow, 1);

    if (!checked(base, comm_window_open(window, comm->node, bytes, error))) {
        comm_window_drop(window);
        g_free(window);
        return NULL;
    }
    g_ptr_array_add(comm->windows, window);
    return window->peer[window->own];
}

/* The same one in all ranks of the machine, since they see the same groups in the same order. */
static gboolean take_barrier(MpiComm *comm, const char *purpose, CommBarrier **barrier,
                             GError **error)
{
    if (comm->num_barriers == COMM_MAX_BARRIERS)
        return fail(error, ERROR_RUNTIME, "group '%s': more than %d groups on one machine", purpose,
                    COMM_MAX_BARRIERS);
    *barrier = &comm->board->barriers[comm->num_barriers++];
    return TRUE;
}

static gboolean connect_group(MpiComm *comm, const guint *ranks, guint size, MPI_Comm *mpi,
                              GError **error)
{
    MPI_Group world, members;

    if (!comm_mpi_ok(MPI_Comm_group(comm->world, &world), "MPI_Comm_group", error))
        return FALSE;
    g_autofree int *list = g_new(int, size);
    for (guint i = 0; i < size; i++)
        list[i] = (int)ranks[i];
    gboolean ok =
        comm_mpi_ok(MPI_Group_incl(world, (int)size, list, &members), "MPI_Group_incl", error) &&
        comm_mpi_ok(MPI_Comm_create_group(comm->world, members, 0, mpi), "MPI_Comm_create_group",
                    error);
    if (ok)
        MPI_Group_free(&members);
    MPI_Group_free(&world);
    return ok;
}

static MpiGroup *group_new(MpiComm *comm, const guint *ranks, guint size, guint position)
{
    MpiGroup *group = g_new0(MpiGroup, 1);

    group->base = (CommGroup){.comm = &comm->base, .rank = position, .size = size};
    group->mpi = MPI_COMM_NULL;
    group->world_rank = g_memdup2(ranks, size * sizeof *ranks);
    group->source = g_new0(const char *, size);
    group->published = g_new0(char *, size);
    return group;
}

static void group_free(MpiGroup *group)
{
    g_free(group->world_rank);
    g_free(group->source);
    g_free(group->published);
    g_free(group);
}

static gboolean on_one_node(const MpiComm *comm, const guint *ranks, guint size)
{
    for (guint i = 1; i < size; i++)
        if (comm->places[ranks[i]].node != comm->places[ranks[0]].node)
            return FALSE;
    return TRUE;
}

static void need_ring(MpiComm *comm)
{
    for (guint i = 0; i < G_N_ELEMENTS(comm->ring); i++)
        if (!comm->ring[i])
            comm->ring[i] = g_malloc0(COMM_RING_BYTES);
}

static gboolean mpi_group(Comm *base, const guint *ranks, guint size, const char *purpose,
                          CommGroup **result, GError **error)
{
    MpiComm *comm = (MpiComm *)base;
    CommBarrier *barrier = NULL;
    guint position = 0;

    *result = NULL;
    g_assert(size > 0);
    gboolean shared = on_one_node(comm, ranks, size);
    gboolean here = comm->places[ranks[0]].machine == comm->places[base->rank].machine;
    if (shared && here && size > 1 && !take_barrier(comm, purpose, &barrier, error))
        return checked(base, FALSE);
    while (position < size && ranks[position] != base->rank)
        position++;
    if (position == size)
        return TRUE;
    MpiGroup *group = group_new(comm, ranks, size, position);
    g_ptr_array_add(comm->groups, group);
    group->base.shared = shared;
    group->barrier = barrier;
    if (!shared)
        need_ring(comm);
    if (!checked(base, connect_group(comm, ranks, size, &group->mpi, error)))
        return FALSE;
    *result = &group->base;
    return TRUE;
}

/* ---- collectives and messages ---- */

static gboolean mpi_all_gather(CommGroup *group, const void *shard, void *full,
                               const ShardPiece *pieces, guint num_pieces, DType dtype,
                               GError **error)
{
    const CommTransfer transfer = {.pieces = pieces,
                                   .num = num_pieces,
                                   .ranks = group->size,
                                   .dtype = dtype,
                                   .volume = VOLUME_ALL_GATHER,
                                   .full = full,
                                   .shard = (char *)shard};

    return checked(group->comm, (group->shared ? comm_shared_all_gather : comm_ring_all_gather)(
                                    (MpiGroup *)group, &transfer, error));
}

static gboolean mpi_reduce_scatter(CommGroup *group, void *full, void *shard,
                                   const ShardPiece *pieces, guint num_pieces, DType dtype,
                                   GError **error)
{
    const CommTransfer transfer = {.pieces = pieces,
                                   .num = num_pieces,
                                   .ranks = group->size,
                                   .dtype = dtype,
                                   .volume = VOLUME_REDUCE_SCATTER,
                                   .full = full,
                                   .shard = shard};

    return checked(group->comm,
                   (group->shared ? comm_shared_reduce_scatter
                                  : comm_ring_reduce_scatter)((MpiGroup *)group, &transfer, error));
}

static gboolean mpi_all_reduce(CommGroup *group, void *buffer, const CommRun *runs, guint num_runs,
                               DType dtype, Reduction reduction, GError **error)
{
    const CommTransfer transfer = {.runs = runs,
                                   .num = num_runs,
                                   .ranks = group->size,
                                   .dtype = dtype,
                                   .reduction = reduction,
                                   .volume = VOLUME_ALL_REDUCE,
                                   .full = buffer};

    return checked(group->comm, (group->shared ? comm_shared_all_reduce : comm_ring_all_reduce)(
                                    (MpiGroup *)group, &transfer, error));
}

static gboolean exchange(MpiComm *comm, MPI_Comm mpi, const CommMessage *messages,
                         guint num_messages, GError **error)
{
    guint64 received = 0;

    for (guint i = 0; i < num_messages; i++) {
        if (!comm_post(comm, mpi, &messages[i], error))
            return FALSE;
        received += messages[i].send ? 0 : messages[i].bytes;
    }
    if (!comm_complete(comm, error))
        return FALSE;
    comm->base.bytes_in[VOLUME_EXCHANGE] += received;
    return TRUE;
}

static gboolean mpi_exchange(CommGroup *group, const CommMessage *messages, guint num_messages,
                             GError **error)
{
    return checked(group->comm, exchange((MpiComm *)group->comm, ((MpiGroup *)group)->mpi, messages,
                                         num_messages, error));
}

/* ---- control channel ---- */

static gboolean mpi_agree_max(Comm *base, gint64 *value, GError **error)
{
    MpiComm *comm = (MpiComm *)base;
    MPI_Request request;
    gint64 most = 0;

    if (!checked(base, comm_mpi_ok(MPI_Iallreduce(value, &most, 1, MPI_INT64_T, MPI_MAX,
                                                  comm->world, &request),
                                   "MPI_Iallreduce", error)) ||
        !checked(base, comm_wait_requests(comm, &request, 1, error)))
        return FALSE;
    *value = most;
    return TRUE;
}

static gboolean move(MpiComm *comm, void *buffer, gsize bytes, guint peer, gboolean send,
                     GError **error)
{
    const CommMessage message = {buffer, bytes, peer, 0, send};

    return comm_post(comm, comm->world, &message, error) && comm_complete(comm, error);
}

static gboolean receive_all(MpiComm *comm, GPtrArray *all, GError **error)
{
    for (guint peer = 1; peer < comm->base.size; peer++) {
        guint64 bytes = 0;

        if (!move(comm, &bytes, sizeof bytes, peer, FALSE, error))
            return FALSE;
        g_autofree void *data = g_malloc(MAX(bytes, 1));
        if (!move(comm, data, bytes, peer, FALSE, error))
            return FALSE;
        g_ptr_array_add(all, g_bytes_new_take(g_steal_pointer(&data), bytes));
    }
    return TRUE;
}

static gboolean mpi_gather_bytes(Comm *base, const void *data, gsize bytes, GPtrArray *all,
                                 GError **error)
{
    MpiComm *comm = (MpiComm *)base;
    guint64 length = bytes;

    if (base->rank == 0) {
        g_ptr_array_add(all, g_bytes_new(data, bytes));
        return checked(base, receive_all(comm, all, error));
    }
    return checked(base, move(comm, &length, sizeof length, 0, TRUE, error) &&
                             move(comm, (void *)data, bytes, 0, TRUE, error));
}

static gboolean mpi_check(Comm *base, GError **error)
{
    return checked(base, comm_watch((MpiComm *)base, error));
}

/* ---- begin and end ---- */

static void mpi_abort(Comm *base, int status)
{
    MpiComm *comm = (MpiComm *)base;
    unsigned running = 0;

    atomic_compare_exchange_strong(&comm->board->stopped, &running, COMM_ABORTED);
    MPI_Abort(comm->world, status);
    _exit(status);
}

static void close_all(MpiComm *comm)
{
    MPI_Comm machine = comm->machine, node = comm->node, world = comm->world;
    CommWindow control = comm->control;
    gboolean finalize = comm->finalize;

    for (guint i = 0; i < comm->groups->len; i++)
        MPI_Comm_free(&((MpiGroup *)g_ptr_array_index(comm->groups, i))->mpi);
    for (guint i = 0; i < comm->windows->len; i++)
        comm_window_close(g_ptr_array_index(comm->windows, i));
    comm_segments_restore(comm);
    comm_window_close(&control); /* comm is gone */
    MPI_Comm_free(&node);
    MPI_Comm_free(&machine);
    MPI_Comm_free(&world);
    if (finalize)
        MPI_Finalize();
}

static void mpi_free(Comm *base)
{
    MpiComm *comm = (MpiComm *)base;
    g_autoptr(GPtrArray) groups = comm->groups;
    g_autoptr(GPtrArray) windows = comm->windows;
    g_autoptr(GPtrArray) segments = comm->segments;
    g_autoptr(GArray) requests = comm->requests;
    g_autofree CommPlace *places = comm->places;
    g_autofree char *first = comm->ring[0], *second = comm->ring[1];

    if (!comm->failed)
        close_all(comm);
}

static gboolean start_mpi(gboolean *finalize, GError **error)
{
    int initialized = 0, provided = 0;

    MPI_Initialized(&initialized);
    *finalize = !initialized;
    if (initialized)
        return TRUE;
    if (!comm_mpi_ok(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread",
                     error))
        return FALSE;
    return provided >= MPI_THREAD_FUNNELED ||
           fail(error, ERROR_RUNTIME, "this MPI was built without thread support");
}

/* Communicators of the world, the machine and the node; into @comm, which is not yet shared. */
static gboolean split_world(MpiComm *comm, guint ranks_per_node, GError **error)
{
    int rank = 0;

    if (!comm_mpi_ok(MPI_Comm_dup(MPI_COMM_WORLD, &comm->world), "MPI_Comm_dup", error))
        return FALSE;
    MPI_Comm_set_errhandler(comm->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm->world, &rank);
    int color = ranks_per_node == 0 ? 0 : rank / (int)ranks_per_node;
    return comm_mpi_ok(MPI_Comm_split_type(comm->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                                           &comm->machine),
                       "MPI_Comm_split_type", error) &&
           comm_mpi_ok(MPI_Comm_split(comm->machine, color, 0, &comm->node), "MPI_Comm_split",
                       error);
}

static gboolean find_places(MpiComm *comm, GError **error)
{
    CommPlace own = {.machine = (int)comm->base.rank, .node = (int)comm->base.rank};

    MPI_Comm_rank(comm->machine, &own.machine_position);
    MPI_Comm_rank(comm->node, &own.position);
    comm->places = g_new0(CommPlace, comm->base.size);
    return comm_mpi_ok(MPI_Bcast(&own.machine, 1, MPI_INT, 0, comm->machine), "MPI_Bcast", error) &&
           comm_mpi_ok(MPI_Bcast(&own.node, 1, MPI_INT, 0, comm->node), "MPI_Bcast", error) &&
           comm_mpi_ok(MPI_Allgather(&own, COMM_PLACE_INTS, MPI_INT, comm->places, COMM_PLACE_INTS,
                                     MPI_INT, comm->world),
                       "MPI_Allgather", error);
}

static void fill(MpiComm *comm)
{
    int rank = 0, size = 0, node_ranks = 0, found = 0;
    int *max_tag = NULL;

    MPI_Comm_rank(comm->world, &rank);
    MPI_Comm_size(comm->world, &size);
    MPI_Comm_size(comm->node, &node_ranks);
    MPI_Comm_get_attr(comm->world, MPI_TAG_UB, &max_tag, &found);
    comm->base = (Comm){.ops = &comm_mpi,
                        .rank = (guint)rank,
                        .size = (guint)size,
                        .node_ranks = (guint)node_ranks,
                        .pid = getpid(),
                        .last_op = "start"};
    comm->max_tag = found ? (guint)*max_tag : 32767; /* what the standard promises */
    comm->board = comm_control_board(&comm->control);
    comm->crowded = comm->control.num > g_get_num_processors();
    comm->windows = g_ptr_array_new_with_free_func(g_free);
    comm->groups = g_ptr_array_new_with_free_func((GDestroyNotify)group_free);
    comm->requests = g_array_new(FALSE, FALSE, sizeof(MPI_Request));
}

Comm *comm_mpi_open(guint ranks_per_node, GError **error)
{
    MpiComm local = {.world = MPI_COMM_NULL};

    if (!start_mpi(&local.finalize, error) || !split_world(&local, ranks_per_node, error) ||
        !comm_control_open(local.machine, &local.control, error))
        return NULL;
    fill(&local);
    MpiComm *comm = (MpiComm *)(void *)local.control.peer[local.control.own];
    *comm = local;
    /* No rank leaves the gathering in find_places() before all have filled their part. */
    if (!find_places(comm, error) || !comm_segments_unlink(comm, error))
        return NULL;
    return &comm->base;
}

Comm *comm_mpi_peer(Comm *base, guint rank)
{
    const MpiComm *comm = (const MpiComm *)base;
    const CommPlace *place = &comm->places[rank];

    if (place->machine != comm->places[base->rank].machine)
        return NULL;
    return (Comm *)(void *)comm->control.peer[place->machine_position];
}

guint64 comm_mpi_foreign_bytes(const Comm *base)
{
    const MpiComm *comm = (const MpiComm *)base;
    guint64 bytes = comm_window_foreign_bytes(&comm->control);

    for (guint i = 0; i < comm->windows->len; i++)
        bytes += comm_window_foreign_bytes(g_ptr_array_index(comm->windows, i));
    return bytes;
}

const CommOps comm_mpi = {
    .name = "mpi",
    .alloc = mpi_alloc,
    .group = mpi_group,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_reduce = mpi_all_reduce,
    .exchange = mpi_exchange,
    .agree_max = mpi_agree_max,
    .gather_bytes = mpi_gather_bytes,
    .check = mpi_check,
    .abort = mpi_abort,
    .free = mpi_free,
};
