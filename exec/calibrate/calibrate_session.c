#include "exec/calibrate/calibrate_session.h"

#include <string.h>

typedef struct {
    Session *session;
    SessionCall call;
    gpointer data;
} Job;

static gboolean run_job(gpointer context, gpointer job, GError **error)
{
    const Job *what = job;

    (void)context;
    return what->call(what->session, what->data, error);
}

gboolean session_call(Session *session, SessionCall call, gpointer data, GError **error)
{
    const Job job = {.session = session, .call = call, .data = data};

    if (comm_queue_wait(session->queue, comm_queue_post(session->queue, &job)))
        return TRUE;
    g_propagate_error(error, g_error_copy(comm_queue_error(session->queue)));
    return FALSE;
}

static gboolean open_comm(Session *session, gpointer data, GError **error)
{
    const SessionMeans *means = data;

    session->comm = means->rendezvous != NULL ? comm_tcp_open(means->rendezvous, error)
                                              : comm_open(means->transport, 0, error);
    if (session->comm != NULL && means->nccl != NULL)
        session->comm = means->nccl->comm_open(session->comm, means->device, error);
    if (session->comm == NULL)
        return FALSE;

    g_autofree guint *ranks = g_new(guint, session->comm->size);
    for (guint i = 0; i < session->comm->size; i++)
        ranks[i] = i;
    if (!session->comm->ops->group(session->comm, ranks, session->comm->size, "calibrate",
                                   &session->group, error))
        return FALSE;
    session->group->stream = SESSION_STREAM;
    return TRUE;
}

gboolean session_open(Session *session, const SessionMeans *means, GError **error)
{
    *session = (Session){.queue = comm_queue_new(1, sizeof(Job), run_job, NULL)};
    if (means->nccl != NULL) {
        session->device = means->device;
        if (!device_queues(means->device)->open_streams(means->device, SESSION_STREAM + 1, error))
            return FALSE;
    }
    return session_call(session, open_comm, (gpointer)means, error);
}

typedef struct {
    gsize bytes;
    void *memory;
} Allocation;

static gboolean alloc_memory(Session *session, gpointer data, GError **error)
{
    Allocation *allocation = data;

    allocation->memory = session->comm->ops->alloc(session->comm, allocation->bytes, error);
    return allocation->memory != NULL;
}

void *session_alloc(Session *session, gsize bytes, GError **error)
{
    Allocation allocation = {.bytes = bytes};

    if (session->device != NULL) {
        void *memory = device_queues(session->device)->alloc(session->device, bytes, error);

        if (memory != NULL)
            device_fill(session->device, memory, 0, bytes);
        return memory;
    }
    return session_call(session, alloc_memory, &allocation, error) ? allocation.memory : NULL;
}

void session_release(Session *session, void *memory)
{
    if (session->device != NULL && memory != NULL)
        device_queues(session->device)->release(session->device, memory);
}

static gboolean agree(Session *session, gpointer value, GError **error)
{
    return session->comm->ops->agree_max(session->comm, value, error);
}

gboolean session_max(Session *session, double *value, GError **error)
{
    const double ticks_per_unit = 1e9;
    gint64 ticks = (gint64)(*value * ticks_per_unit);

    if (!session_call(session, agree, &ticks, error))
        return FALSE;
    *value = (double)ticks / ticks_per_unit;
    return TRUE;
}

typedef struct {
    double *values;
    guint num;
} Mean;

static gboolean mean_over_ranks(Session *session, gpointer data, GError **error)
{
    const Mean *mean = data;
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);

    if (!session->comm->ops->gather_bytes(session->comm, mean->values, mean->num * sizeof(double),
                                          all, error))
        return FALSE;
    if (session->comm->rank != 0)
        return TRUE;
    memset(mean->values, 0, mean->num * sizeof(double));
    for (guint rank = 0; rank < all->len; rank++) {
        gsize bytes;
        const double *values = g_bytes_get_data(g_ptr_array_index(all, rank), &bytes);

        g_assert(bytes == mean->num * sizeof(double));
        for (guint i = 0; i < mean->num; i++)
            mean->values[i] += values[i] / all->len;
    }
    return TRUE;
}

gboolean session_mean(Session *session, double *values, guint num, GError **error)
{
    Mean mean = {.values = values, .num = num};

    return session_call(session, mean_over_ranks, &mean, error);
}

static gboolean close_comm(Session *session, gpointer data, GError **error)
{
    (void)data;
    (void)error;
    g_clear_pointer(&session->comm, comm_free);
    return TRUE;
}

gboolean session_close(Session *session, GError **error)
{
    if (!session_call(session, close_comm, NULL, error))
        return FALSE;
    g_clear_pointer(&session->queue, comm_queue_free);
    return TRUE;
}
