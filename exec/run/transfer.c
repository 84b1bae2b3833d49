#include "exec/run/transfer.h"

/* Those of the unit's pieces that the op is about. */
static const ShardPiece *pieces_of(const UnitMap *map, ParamSet set,
                                   ShardPiece chosen[LAUNCH_MOST_PARAMS], guint *num)
{
    *num = map->num_pieces;
    if (set == PARAMS_ALL)
        return map->pieces;
    g_assert(map->num_pieces <= LAUNCH_MOST_PARAMS);
    *num = 0;
    for (guint p = 0; p < map->num_pieces; p++)
        if (unit_map_in_set(map, p, set))
            chosen[(*num)++] = map->pieces[p];
    return chosen;
}

static gboolean run_gather_or_scatter(const Transfer *transfer, const Launch *launch,
                                      GError **error)
{
    const Op *op = launch->op;
    CommGroup *group = transfer->group;
    const ShardPiece whole = {.chunk = (op->sizes.elements + group->size - 1) / group->size};
    const UnitMap *map = launch->map;
    ShardPiece chosen[LAUNCH_MOST_PARAMS];
    guint num_pieces = 1;
    const ShardPiece *pieces =
        map == NULL ? &whole : pieces_of(map, op->params, chosen, &num_pieces);
    const gboolean in_place = op->num_operands == 1;
    void *first = launch->operand[0];
    void *second = in_place ? NULL : launch->operand[1];

    if (op->kind == OP_ALL_GATHER)
        return group->comm->ops->all_gather(group, in_place ? NULL : first,
                                            in_place ? first : second, pieces, num_pieces,
                                            op->dtype, error);
    return group->comm->ops->reduce_scatter(group, first, second, pieces, num_pieces, op->dtype,
                                            error);
}

const CommRun *transfer_reduced(const Transfer *transfer, const Launch *launch, CommRun *one,
                                guint *num)
{
    const Op *op = launch->op;
    const UnitMap *map = launch->map;
    const gint param = op->operands[0].param;
    const gboolean whole = launch->part[0] == PART_WHOLE;

    *num = 1;
    *one = (CommRun){.elements = op->sizes.elements};
    if (map == NULL)
        return one;
    const CommRun *chunks = transfer->own_chunks[op->unit];
    if (param != WHOLE_TENSOR) {
        *one = (CommRun){whole ? chunks[param].offset : map->pieces[param].shard_offset,
                         map->pieces[param].chunk};
        return one;
    }
    one->elements = program_tensor(transfer->program, op->operands[0].tensor)->elements;
    if (!whole || map->ranks == 1)
        return one;
    *num = map->num_pieces;
    return chunks;
}

static gboolean run_all_reduce(const Transfer *transfer, const Launch *launch, GError **error)
{
    CommGroup *group = transfer->group;
    CommRun one;
    guint num;
    const CommRun *runs = transfer_reduced(transfer, launch, &one, &num);

    return group->comm->ops->all_reduce(group, launch->operand[0], runs, num, launch->op->dtype,
                                        launch->op->reduction, error);
}

/* Tags pair a send with its receive: micro-batch, chunk, direction. */
static guint message_tag(const Message *message, guint micro_batch)
{
    const guint moved = (guint)((gint)micro_batch + message->micro_batch_shift);

    return ((moved & 0xFFFu) << 8 | (message->chunk & 0x3Fu) << 2 | (message->direction & 3u)) + 1;
}

static gboolean run_exchange(const Transfer *transfer, const Launch *launch, GError **error)
{
    const Op *op = launch->op;
    CommGroup *group = transfer->group;
    CommMessage messages[MAX_OPERANDS];

    for (guint i = 0; i < op->num_operands; i++)
        messages[i] = (CommMessage){
            .buffer = launch->operand[i],
            .bytes = tensor_copy_bytes(program_tensor(transfer->program, op->operands[i].tensor)),
            .peer = (group->rank + op->messages[i].peer_shift) % group->size,
            .tag = message_tag(&op->messages[i], transfer->micro_batch),
            .send = op->operands[i].access == ACCESS_READ,
        };
    return group->comm->ops->exchange(group, messages, op->num_operands, error);
}

gboolean transfer_run(const Transfer *transfer, const Launch *launch, GError **error)
{
    switch (launch->op->kind) {
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
        return run_gather_or_scatter(transfer, launch, error);
    case OP_ALL_REDUCE:
        return run_all_reduce(transfer, launch, error);
    default:
        g_assert(launch->op->kind == OP_EXCHANGE);
        return run_exchange(transfer, launch, error);
    }
}

/* ---- chunks ---- */

CommRun **transfer_own_chunks(const Program *program, guint map_rank)
{
    CommRun **chunks = g_new0(CommRun *, program->units->len);

    for (guint u = 0; u < program->units->len; u++) {
        const UnitMap *map = program_unit(program, u)->map;
        const guint position = map->ranks == 1 ? 0 : map_rank;

        chunks[u] = g_new0(CommRun, map->num_pieces);
        for (guint p = 0; p < map->num_pieces; p++)
            chunks[u][p] = (CommRun){
                .offset = map->pieces[p].full_offset + position * map->pieces[p].chunk,
                .elements = map->pieces[p].chunk,
            };
    }
    return chunks;
}

void transfer_own_chunks_free(CommRun **chunks, const Program *program)
{
    for (guint u = 0; chunks != NULL && u < program->units->len; u++)
        g_free(chunks[u]);
    g_free(chunks);
}
