/* The transport of a single rank: a collective is a copy, a message goes to oneself. */
#include "exec/comm/comm_private.h"
#include "exec/comm/comm_transfer.h"
#include "sim/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    Comm base;
    GPtrArray *memory; /* of alloc() */
    GPtrArray *groups;
} SelfComm;

static void *self_alloc(Comm *comm, gsize bytes, GError **error)
{
    void *memory = comm_pages(bytes, error);

    if (memory != NULL)
        g_ptr_array_add(((SelfComm *)comm)->memory, memory);
    return memory;
}

static gboolean self_group(Comm *comm, const guint *ranks, guint size, const char *purpose,
                           CommGroup **group, GError **error)
{
    (void)purpose;
    (void)error;
    g_assert(size == 1 && ranks[0] == 0);
    *group = g_new(CommGroup, 1);
    **group = (CommGroup){.comm = comm, .rank = 0, .size = 1, .shared = TRUE};
    g_ptr_array_add(((SelfComm *)comm)->groups, *group);
    return TRUE;
}

static gboolean self_all_gather(CommGroup *group, const void *shard, void *full,
                                const ShardPiece *pieces, guint num_pieces, DType dtype,
                                GError **error)
{
    CommTransfer transfer = {.pieces = pieces,
                             .num = num_pieces,
                             .ranks = 1,
                             .dtype = dtype,
                             .full = full,
                             .shard = (char *)shard};

    (void)error;
    comm_transfer_own_to_full(&transfer, group->rank);
    return TRUE;
}

static gboolean self_reduce_scatter(CommGroup *group, void *full, void *shard,
                                    const ShardPiece *pieces, guint num_pieces, DType dtype,
                                    GError **error)
{
    CommTransfer transfer = {.pieces = pieces,
                             .num = num_pieces,
                             .ranks = 1,
                             .dtype = dtype,
                             .full = full,
                             .shard = shard};

    (void)error;
    comm_transfer_own_to_shard(&transfer, group->rank);
    return TRUE;
}

static gboolean self_all_reduce(CommGroup *group, void *buffer, const CommRun *runs, guint num_runs,
                                DType dtype, Reduction reduction, GError **error)
{
    (void)group;
    (void)buffer;
    (void)runs;
    (void)num_runs;
    (void)dtype;
    (void)reduction;
    (void)error;
    return TRUE;
}

/* Which one of the messages with that tag and direction message @at is. */
static guint ordinal(const CommMessage *messages, guint at)
{
    guint before = 0;

    for (guint i = 0; i < at; i++)
        before +=
            messages[i].tag == messages[at].tag && messages[i].send == messages[at].send ? 1 : 0;
    return before;
}

static const CommMessage *partner(const CommMessage *messages, guint num_messages, guint at)
{
    for (guint i = 0; i < num_messages; i++)
        if (messages[i].send != messages[at].send && messages[i].tag == messages[at].tag &&
            ordinal(messages, i) == ordinal(messages, at))
            return &messages[i];
    return NULL;
}

static gboolean self_exchange(CommGroup *group, const CommMessage *messages, guint num_messages,
                              GError **error)
{
    for (guint i = 0; i < num_messages; i++) {
        const CommMessage *message = &messages[i], *other = partner(messages, num_messages, i);

        g_assert(message->peer == 0);
        if (!other || other->bytes != message->bytes)
            return fail(error, ERROR_RUNTIME,
                        "exchange: a %s of %" G_GSIZE_FORMAT
                        " bytes with tag %u has no counterpart",
                        message->send ? "send" : "receive", message->bytes, message->tag);
        if (message->send)
            continue;
        memmove(message->buffer, other->buffer, message->bytes);
        group->comm->bytes_in[VOLUME_EXCHANGE] += message->bytes;
    }
    return TRUE;
}

static gboolean self_agree_max(Comm *comm, gint64 *value, GError **error)
{
    (void)comm;
    (void)value;
    (void)error;
    return TRUE;
}

static gboolean self_gather_bytes(Comm *comm, const void *data, gsize bytes, GPtrArray *all,
                                  GError **error)
{
    (void)comm;
    (void)error;
    g_ptr_array_add(all, g_bytes_new(data, bytes));
    return TRUE;
}

static gboolean self_check(Comm *comm, GError **error)
{
    (void)comm;
    (void)error;
    return TRUE;
}

static void self_abort(Comm *comm, int status)
{
    (void)comm;
    fflush(NULL);
    _exit(status); /* no exit handlers: other threads still run */
}

static void self_free(Comm *comm)
{
    SelfComm *self = (SelfComm *)comm;

    g_ptr_array_unref(self->memory);
    g_ptr_array_unref(self->groups);
    g_free(self);
}

Comm *comm_self_open(void)
{
    SelfComm *self = g_new0(SelfComm, 1);

    self->base = (Comm){.ops = &comm_self, .size = 1, .node_ranks = 1, .pid = getpid()};
    self->memory = g_ptr_array_new_with_free_func(free);
    self->groups = g_ptr_array_new_with_free_func(g_free);
    return &self->base;
}

const CommOps comm_self = {
    .name = "self",
    .alloc = self_alloc,
    .group = self_group,
    .all_gather = self_all_gather,
    .reduce_scatter = self_reduce_scatter,
    .all_reduce = self_all_reduce,
    .exchange = self_exchange,
    .agree_max = self_agree_max,
    .gather_bytes = self_gather_bytes,
    .check = self_check,
    .abort = self_abort,
    .free = self_free,
};
