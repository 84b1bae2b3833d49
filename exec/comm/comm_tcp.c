#define _GNU_SOURCE 1 /* POLLRDHUP */
#include "exec/comm/comm_tcp.h"

#include "exec/base/process.h"
#include "exec/comm/comm_private.h"
#include "exec/comm/tcp_meeting.h"
#include "sim/base/error.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    Comm base;
    TcpMeeting meeting;
    struct pollfd *polled; /* by link */
    double next_look_s;
    TcpStop *stop;     /* why the job ends; NULL while it goes on */
    GPtrArray *memory; /* of alloc() */
} TcpComm;

/* ---- the end of the job ---- */

/* Says so to whoever is still there, the first time. */
static void stop_job(TcpComm *comm, const TcpStop *stop)
{
    if (comm->stop != NULL)
        return;
    comm->stop = g_memdup2(stop, sizeof *stop);
    for (guint i = 0; i < comm->meeting.num; i++)
        if (comm->meeting.links[i].fd >= 0)
            tcp_stop(comm->meeting.links[i].fd, stop);
}

static gboolean stopped(const TcpComm *comm, GError **error)
{
    return fail(error, comm->stop->status == 2 ? ERROR_INPUT : ERROR_RUNTIME, "%s",
                comm->stop->text);
}

/* The other end of a link is closed: it said why, or died. */
static gboolean lost(TcpComm *comm, guint i, GError **error)
{
    TcpLink *link = &comm->meeting.links[i];
    TcpStop stop = {.status = 3};

    if (comm->stop == NULL && tcp_last_words(link->fd, &stop)) {
        tcp_tidy(stop.text, sizeof stop.text);
    } else {
        g_autofree char *name = tcp_link_name(link);

        stop.status = 3;
        g_snprintf(stop.text, sizeof stop.text, "%s died", name);
    }
    tcp_close(&link->fd);
    stop_job(comm, &stop);
    return stopped(comm, error);
}

/* ---- waiting ---- */

/* Until link @i is ready for @events; any other that ends meanwhile is noticed. */
static gboolean await(TcpComm *comm, guint i, short events, GError **error)
{
    const guint num = comm->meeting.num;

    for (;;) {
        for (guint l = 0; l < num; l++)
            comm->polled[l] = (struct pollfd){.fd = comm->meeting.links[l].fd,
                                              .events = l == i ? events | POLLRDHUP : POLLRDHUP};
        if (poll(comm->polled, num, -1) < 0)
            continue; /* a signal */
        if (comm->polled[i].revents & events)
            return TRUE; /* what came before an end is read first */
        for (guint l = 0; l < num; l++)
            if (comm->polled[l].revents != 0)
                return lost(comm, l, error);
    }
}

static gboolean send_all(TcpComm *comm, guint i, const void *data, gsize bytes, gboolean more,
                         GError **error)
{
    const int fd = comm->meeting.links[i].fd;

    for (gsize done = 0; done < bytes;) {
        const gssize sent = tcp_send_some(fd, (const char *)data + done, bytes - done, more);

        if (sent < 0 && errno != EAGAIN)
            return lost(comm, i, error);
        if (sent < 0 && !await(comm, i, POLLOUT, error))
            return FALSE;
        done += sent > 0 ? (gsize)sent : 0;
    }
    return TRUE;
}

static gboolean receive_all(TcpComm *comm, guint i, void *data, gsize bytes, GError **error)
{
    const int fd = comm->meeting.links[i].fd;

    for (gsize done = 0; done < bytes;) {
        const gssize got = tcp_receive_some(fd, (char *)data + done, bytes - done);

        if (got == 0 || (got < 0 && errno != EAGAIN))
            return lost(comm, i, error);
        if (got < 0 && !await(comm, i, POLLIN, error))
            return FALSE;
        done += got > 0 ? (gsize)got : 0;
    }
    return TRUE;
}

/* ---- frames ---- */

static gboolean tell(TcpComm *comm, guint i, FrameKind kind, gconstpointer data, gsize bytes,
                     GError **error)
{
    const FrameHead head = tcp_frame(kind, bytes);

    if (comm->stop != NULL)
        return stopped(comm, error);
    return send_all(comm, i, &head, sizeof head, bytes > 0, error) &&
           send_all(comm, i, data, bytes, FALSE, error);
}

/* The head of a frame of @kind, or the end of the job. */
static gboolean hear(TcpComm *comm, guint i, FrameKind kind, guint64 *bytes, GError **error)
{
    TcpLink *link = &comm->meeting.links[i];
    FrameHead head;
    TcpStop stop = {.status = 3};

    if (comm->stop != NULL)
        return stopped(comm, error);
    if (!receive_all(comm, i, &head, sizeof head, error))
        return FALSE;
    *bytes = head.bytes;
    if (tcp_frame_is_valid(&head) && head.kind == kind)
        return TRUE;
    if (tcp_frame_is_valid(&head) && head.kind == FRAME_STOP && head.bytes == sizeof stop) {
        if (!receive_all(comm, i, &stop, sizeof stop, error))
            return FALSE;
        tcp_tidy(stop.text, sizeof stop.text);
    } else {
        g_autofree char *name = tcp_link_name(link);

        g_snprintf(stop.text, sizeof stop.text,
                   "%s and rank %u do not agree on what comes next: got frame %u, not %u", name,
                   comm->base.rank, head.kind, kind);
    }
    stop_job(comm, &stop);
    return stopped(comm, error);
}

/* ---- control channel ---- */

static gboolean hear_value(TcpComm *comm, guint i, gint64 *value, GError **error)
{
    guint64 bytes;

    return hear(comm, i, FRAME_VALUE, &bytes, error) &&
           receive_all(comm, i, value, sizeof *value, error);
}

static gboolean tcp_agree_max(Comm *base, gint64 *value, GError **error)
{
    TcpComm *comm = (TcpComm *)base;

    if (base->rank > 0)
        return tell(comm, 0, FRAME_VALUE, value, sizeof *value, error) &&
               hear_value(comm, 0, value, error);
    for (guint i = 0; i < comm->meeting.num; i++) {
        gint64 other;

        if (!hear_value(comm, i, &other, error))
            return FALSE;
        *value = MAX(*value, other);
    }
    for (guint i = 0; i < comm->meeting.num; i++)
        if (!tell(comm, i, FRAME_VALUE, value, sizeof *value, error))
            return FALSE;
    return TRUE;
}

static gboolean tcp_gather_bytes(Comm *base, const void *data, gsize bytes, GPtrArray *all,
                                 GError **error)
{
    TcpComm *comm = (TcpComm *)base;

    if (bytes > TCP_MAX_BYTES)
        return fail(error, ERROR_RUNTIME, "transport \"tcp\" gathers at most %d bytes a rank",
                    TCP_MAX_BYTES);
    if (base->rank > 0)
        return tell(comm, 0, FRAME_BYTES, data, bytes, error);
    g_ptr_array_add(all, g_bytes_new(data, bytes));
    for (guint i = 0; i < comm->meeting.num; i++) {
        guint64 length;

        if (!hear(comm, i, FRAME_BYTES, &length, error))
            return FALSE;
        g_autofree void *theirs = g_malloc(MAX(length, 1));
        if (!receive_all(comm, i, theirs, length, error))
            return FALSE;
        g_ptr_array_add(all, g_bytes_new_take(g_steal_pointer(&theirs), length));
    }
    return TRUE;
}

/* Often asked, so it looks seldom. */
static gboolean tcp_check(Comm *base, GError **error)
{
    TcpComm *comm = (TcpComm *)base;
    const double now_s = clock_s();

    if (comm->stop != NULL)
        return stopped(comm, error);
    if (now_s < comm->next_look_s)
        return TRUE;
    comm->next_look_s = now_s + COMM_DEATH_S;
    for (guint i = 0; i < comm->meeting.num; i++)
        comm->polled[i] = (struct pollfd){.fd = comm->meeting.links[i].fd, .events = POLLRDHUP};
    if (poll(comm->polled, comm->meeting.num, 0) <= 0)
        return TRUE;
    for (guint i = 0; i < comm->meeting.num; i++)
        if (comm->polled[i].revents != 0)
            return lost(comm, i, error);
    return TRUE;
}

/* ---- what NCCL does ---- */

static void *tcp_alloc(Comm *base, gsize bytes, GError **error)
{
    TcpComm *comm = (TcpComm *)base;
    void *memory = comm_pages(bytes, error);

    if (memory != NULL)
        g_ptr_array_add(comm->memory, memory);
    return memory;
}

static gboolean refused(GError **error)
{
    return fail(error, ERROR_RUNTIME,
                "transport \"tcp\" carries what ranks agree on, but no tensors: those need NCCL, "
                "or MPI instead of it");
}

static gboolean tcp_group(Comm *comm, const guint *ranks, guint size, const char *purpose,
                          CommGroup **group, GError **error)
{
    (void)comm, (void)ranks, (void)size, (void)purpose;
    *group = NULL;
    return refused(error);
}

static gboolean tcp_all_gather(CommGroup *group, const void *shard, void *full,
                               const ShardPiece *pieces, guint num_pieces, DType dtype,
                               GError **error)
{
    (void)group, (void)shard, (void)full, (void)pieces, (void)num_pieces, (void)dtype;
    return refused(error);
}

static gboolean tcp_reduce_scatter(CommGroup *group, void *full, void *shard,
                                   const ShardPiece *pieces, guint num_pieces, DType dtype,
                                   GError **error)
{
    (void)group, (void)full, (void)shard, (void)pieces, (void)num_pieces, (void)dtype;
    return refused(error);
}

static gboolean tcp_all_reduce(CommGroup *group, void *buffer, const CommRun *runs, guint num_runs,
                               DType dtype, Reduction reduction, GError **error)
{
    (void)group, (void)buffer, (void)runs, (void)num_runs, (void)dtype, (void)reduction;
    return refused(error);
}

static gboolean tcp_exchange(CommGroup *group, const CommMessage *messages, guint num_messages,
                             GError **error)
{
    (void)group, (void)messages, (void)num_messages;
    return refused(error);
}

/* ---- begin and end ---- */

static void tcp_abort(Comm *base, int status)
{
    const TcpLink self = {.rank = base->rank, .pid = base->pid};
    TcpStop stop = {.status = status};

    g_snprintf(stop.text, sizeof stop.text, "rank %u (pid %d on host %s) has stopped the job",
               self.rank, self.pid, g_get_host_name());
    stop_job((TcpComm *)base, &stop);
    _exit(status); /* no exit handlers: other threads still run */
}

static void clear(TcpComm *comm)
{
    tcp_meeting_clear(&comm->meeting);
    g_ptr_array_unref(comm->memory);
    g_free(comm->polled);
    g_free(comm->stop);
    g_free(comm);
}

/* No rank closes its end while another may still look whether it is there. */
static void tcp_free(Comm *base)
{
    TcpComm *comm = (TcpComm *)base;
    g_autoptr(GError) why = NULL;
    gint64 nothing = 0;

    if (comm->stop == NULL && !tcp_agree_max(base, &nothing, &why))
        g_debug("closing: %s", why->message);
    clear(comm);
}

static const CommOps comm_tcp = {
    .name = "tcp",
    .alloc = tcp_alloc,
    .group = tcp_group,
    .all_gather = tcp_all_gather,
    .reduce_scatter = tcp_reduce_scatter,
    .all_reduce = tcp_all_reduce,
    .exchange = tcp_exchange,
    .agree_max = tcp_agree_max,
    .gather_bytes = tcp_gather_bytes,
    .check = tcp_check,
    .abort = tcp_abort,
    .free = tcp_free,
};

Comm *comm_tcp_open(const CommRendezvous *how, GError **error)
{
    TcpMeeting meeting;

    if (!tcp_meet(how, &meeting, error))
        return NULL;
    TcpComm *comm = g_new0(TcpComm, 1);
    comm->base = (Comm){.ops = &comm_tcp,
                        .rank = how->rank,
                        .size = how->size,
                        .node_ranks = meeting.node_ranks,
                        .pid = getpid(),
                        .last_op = "start"};
    comm->meeting = meeting;
    comm->polled = g_new0(struct pollfd, MAX(meeting.num, 1));
    comm->memory = g_ptr_array_new_with_free_func(free);
    return &comm->base;
}
