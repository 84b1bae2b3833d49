/* The order of a step: the timetable's actions as calls, and which copies of the rings each uses.
 */
#include "sim/program/builder.h"

#include <string.h>

/* Copies of a ring, or runs of copies: the one that was given back first is taken first, so that
 * the next user waits as little as possible. */
typedef struct {
    Fifo free;
    guint taken; /* most at a time */
} Pool;

/* What one chunk and micro-batch have taken. */
typedef struct {
    guint run[NUM_RINGS];
} Flight;

/* What a segment says of one of its transfers. */
typedef struct {
    gboolean send, gradient;
    guint peer, chunk;
    gint micro_batch_shift, shift;
} ExchangePart;

typedef struct {
    guint num, segment;
    ExchangePart parts[MAX_OPERANDS];
} ExchangeShape;

typedef struct {
    Builder *builder;
    Pool pools[NUM_RINGS];
    Flight *flights; /* by virtual stage x micro-batch */
    GArray *shapes;  /* ExchangeShape: those that there are segments of */
    gboolean *reads; /* by segment of a unit: whether it reads its unit's weights */
} Step;

static void pool_take(Step *step, Flight *flight, Ring ring)
{
    Pool *pool = &step->pools[ring];

    flight->run[ring] = fifo_is_empty(&pool->free) ? pool->taken++ : fifo_pop(&pool->free);
}

static void pool_give(Step *step, const Flight *flight, Ring ring)
{
    fifo_push(&step->pools[ring].free, flight->run[ring]);
}

static Flight *flight_of(const Step *step, guint chunk, guint micro_batch)
{
    const Builder *builder = step->builder;

    return &step->flights[(gsize)(chunk / builder->pp) * builder->spec->schedule.micro_batches +
                          micro_batch];
}

/* Copies of a ring that one run takes, and those before the first run: what forward leaves and
 * backward computes again goes nowhere. */
static guint run_length(const Builder *builder, guint kind, guint lot, Ring ring)
{
    switch (ring) {
    case RING_RESIDUAL:
        return builder->most_layers + 1;
    case RING_AGAIN:
    case RING_GRADIENT:
    case RING_INBOX:
        return 1;
    default:
        return builder->kinds[kind].most_of[lot];
    }
}

static guint run_start(Ring ring)
{
    return ring == RING_AGAIN_KEPT ? 1 : 0;
}

static guint16 copy_of(const Step *step, const Flight *flight, const Draft *draft, Ring ring,
                       guint within)
{
    const guint length = run_length(step->builder, draft->of_kind, draft->lot, ring);

    return (guint16)(run_start(ring) + flight->run[ring] * length + within);
}

/* Blocks before block @within of a chunk that are of the same kind and lot. */
static guint before_of_kind(const Step *step, guint chunk, guint within)
{
    const Builder *builder = step->builder;
    const Model *model = builder->spec->model;
    const guint first = builder_layers(builder, chunk).first;
    guint before = 0;

    if (builder->most_of[LOT_REST] == 0 && builder->num_kinds == 1)
        return within;
    for (guint i = 0; i < within; i++)
        before += model_block_kind(model, first + i) == model_block_kind(model, first + within) &&
                          builder_lot(builder, chunk, i) == builder_lot(builder, chunk, within)
                      ? 1
                      : 0;
    return before;
}

/* Rings of a block's call; @within: which block of its chunk, @of_kind: of those of its kind. */
static void bind_rings(const Step *step, Draft *draft, const Flight *flight, guint within,
                       guint of_kind)
{
    static const Ring of_blocks[] = {RING_SAVED, RING_KEPT, RING_AGAIN_KEPT, RING_WEIGHTS};

    draft->ring[RING_RESIDUAL] = copy_of(step, flight, draft, RING_RESIDUAL, within);
    for (guint i = 0; i < G_N_ELEMENTS(of_blocks); i++)
        draft->ring[of_blocks[i]] = copy_of(step, flight, draft, of_blocks[i], of_kind);
    draft->ring[RING_GRADIENT] = copy_of(step, flight, draft, RING_GRADIENT, 0);
    draft->ring[RING_INBOX] = copy_of(step, flight, draft, RING_INBOX, 0);
}

/* Asked of the ops themselves: a call that read weights which the unit no longer has would find
 * another unit's.  The only weights that a unit's segments read are its own. */
static gboolean reads_weights(const Program *program, const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        for (guint o = 0; o < segment->ops[i].num_operands; o++)
            if (program_tensor(program, segment->ops[i].operands[o].tensor)->kind ==
                TENSOR_PARAMETER)
                return TRUE;
    return FALSE;
}

static guint kind_of(const Builder *builder, guint chunk, guint within)
{
    return model_block_kind(builder->spec->model, builder_layers(builder, chunk).first + within);
}

/* A call of one action; rings of the chunk's first block, or of block @within. */
static Draft *add_draft(Step *step, const Action *action, gint segment, guint unit, guint within)
{
    Builder *builder = step->builder;

    g_assert(segment >= 0);
    Draft draft = {
        .kind = DRAFT_COMPUTE,
        .segment = (guint)segment,
        .unit = unit,
        .micro_batch = action->micro_batch,
        .first = action->micro_batch == 0,
        .last = action->micro_batch + 1 == builder->spec->schedule.micro_batches,
        .uses_weights = step->reads[segment],
    };

    if (unit != ROOT_UNIT) {
        draft.of_kind = (guint8)kind_of(builder, action->chunk, within);
        draft.lot = (guint8)builder_lot(builder, action->chunk, within);
    }
    bind_rings(step, &draft, flight_of(step, action->chunk, action->micro_batch), within,
               unit == ROOT_UNIT ? within : before_of_kind(step, action->chunk, within));
    g_array_append_val(builder->drafts, draft);
    return builder_draft(builder, builder->drafts->len - 1);
}

/* Of the unit of a chunk's block @within. */
static const Passes *passes_of(const Builder *builder, guint unit, guint chunk, guint within)
{
    return &builder->classes[program_unit_ref(builder->program, unit)->unit_class]
                .passes[builder_lot(builder, chunk, within)];
}

/* ---- actions ---- */

/* What is computed again goes nowhere. */
static void add_forward_call(Step *step, const Action *action, guint unit, guint within)
{
    const Passes *passes = passes_of(step->builder, unit, action->chunk, within);
    Draft *forward = add_draft(step, action, passes->forward, unit, within);

    forward->ring[RING_AGAIN_KEPT] = 0;
}

static void add_forward(Step *step, const Action *action)
{
    Builder *builder = step->builder;
    const LayerRange layers = builder_layers(builder, action->chunk);
    Flight *flight = flight_of(step, action->chunk, action->micro_batch);

    pool_take(step, flight, RING_RESIDUAL);
    pool_take(step, flight, RING_SAVED);
    pool_take(step, flight, RING_KEPT);
    if (action->chunk == 0) {
        add_draft(step, action, builder->embed, ROOT_UNIT, 0);
    } else {
        add_draft(step, action, builder->input, ROOT_UNIT, 0);
        pool_give(step, flight, RING_INBOX);
    }
    for (guint i = 0; i < layers.count; i++) {
        const guint unit = layers.first + i + 1, experts = builder_experts_unit(builder, unit);

        add_forward_call(step, action, unit, i);
        if (model_is_sparse(builder->spec->model, layers.first + i))
            add_forward_call(step, action, experts, i);
    }
}

/* Loss and its gradient: forward and backward at once, right before the last chunk's backward. */
static void add_head(Step *step, const Action *action, guint layers)
{
    Builder *builder = step->builder;
    Draft *head = add_draft(step, action, builder->head, ROOT_UNIT, layers);

    head->opens_gradient = TRUE;
    head->closes_gradient = !builder->has_embedding;
}

static void give_saved(Step *step, Flight *flight)
{
    pool_give(step, flight, RING_KEPT);
    pool_give(step, flight, RING_WEIGHTS);
    pool_give(step, flight, RING_AGAIN_KEPT);
}

static void add_backward_call(Step *step, const Action *action, guint unit, guint within)
{
    const Builder *builder = step->builder;
    const Passes *passes = passes_of(builder, unit, action->chunk, within);
    Draft *backward = add_draft(step, action, passes->backward, unit, within);

    backward->opens_gradient = TRUE;
    backward->closes_gradient = !builder->splits_backward;
}

static void add_backward(Step *step, const Action *action)
{
    Builder *builder = step->builder;
    const guint chunks = schedule_chunks(&builder->spec->schedule, builder->pp);
    const LayerRange layers = builder_layers(builder, action->chunk);
    Flight *flight = flight_of(step, action->chunk, action->micro_batch);

    pool_take(step, flight, RING_WEIGHTS);
    pool_take(step, flight, RING_AGAIN_KEPT);
    if (action->chunk + 1 == chunks) {
        pool_take(step, flight, RING_GRADIENT);
        add_head(step, action, layers.count);
    }
    for (guint i = layers.count; i-- > 0;) {
        const guint unit = layers.first + i + 1;

        if (model_is_sparse(builder->spec->model, layers.first + i))
            add_backward_call(step, action, builder_experts_unit(builder, unit), i);
        add_backward_call(step, action, unit, i);
    }
    if (action->chunk == 0) {
        Draft *embed = add_draft(step, action, builder->embed_backward, ROOT_UNIT, 0);

        embed->opens_gradient = !builder->has_head;
        embed->closes_gradient = TRUE;
        pool_give(step, flight, RING_GRADIENT);
    }
    pool_give(step, flight, RING_RESIDUAL);
    pool_give(step, flight, RING_SAVED);
    if (!builder->splits_backward)
        give_saved(step, flight);
}

static void add_weights_call(Step *step, const Action *action, guint unit, guint within)
{
    const Passes *passes = passes_of(step->builder, unit, action->chunk, within);

    add_draft(step, action, passes->weights, unit, within)->closes_gradient = TRUE;
}

static void add_weights(Step *step, const Action *action)
{
    Builder *builder = step->builder;
    const LayerRange layers = builder_layers(builder, action->chunk);

    for (guint i = layers.count; i-- > 0;) {
        const guint unit = layers.first + i + 1;

        if (model_is_sparse(builder->spec->model, layers.first + i))
            add_weights_call(step, action, builder_experts_unit(builder, unit), i);
        add_weights_call(step, action, unit, i);
    }
    give_saved(step, flight_of(step, action->chunk, action->micro_batch));
}

/* ---- exchanges ---- */

/* What one transfer moves. */
typedef struct {
    guint tensor;
    Ring ring;
    guint copy;
} Moved;

static Moved moved_by(Step *step, const Transfer *transfer)
{
    Builder *builder = step->builder;
    Flight *flight = flight_of(step, transfer->chunk, transfer->micro_batch);
    const guint layers = builder_layers(builder, transfer->chunk).count;
    const Ring ring = transfer->gradient ? RING_GRADIENT
                      : transfer->send   ? RING_RESIDUAL
                                         : RING_INBOX;
    const guint tensor = transfer->gradient ? builder->residual_gradient
                         : transfer->send   ? builder->residual
                                            : builder->inbox;

    if (!transfer->send)
        pool_take(step, flight, ring);
    const Draft of_none = {.ring = {0}};
    return (Moved){tensor, ring,
                   copy_of(step, flight, &of_none, ring, ring == RING_RESIDUAL ? layers : 0)};
}

/* Both sides name a message by the chunk that it is for (an activation) or from (a gradient): the
 * later of the two. */
static guint message_chunk(const Builder *builder, const Transfer *transfer)
{
    const gboolean later_is_ours = transfer->gradient == transfer->send;
    const guint chunk = transfer->chunk + (later_is_ours ? 0 : 1);

    return chunk / builder->pp;
}

/* An exchange under construction: its call binds one copy of each ring, operands shift from there;
 * and its call's micro-batch is the first transfer's. */
typedef struct {
    guint copy[NUM_RINGS];
    gboolean bound[NUM_RINGS];
    Moved moved[MAX_OPERANDS];
    const Transfer *transfers;
    guint num;
} Exchange;

static gint shift_of(const Exchange *exchange, guint i)
{
    return (gint)exchange->moved[i].copy - (gint)exchange->copy[exchange->moved[i].ring];
}

static gint micro_batch_shift(const Exchange *exchange, guint i)
{
    return (gint)exchange->transfers[i].micro_batch - (gint)exchange->transfers[0].micro_batch;
}

static guint build_exchange(Builder *builder, const Exchange *exchange)
{
    g_autoptr(GString) name = g_string_new("exchange");

    for (guint i = 0; i < exchange->num; i++)
        g_string_append_printf(name, "%s%s.%s", i == 0 ? "." : "+",
                               exchange->transfers[i].send ? "send" : "receive",
                               exchange->transfers[i].gradient ? "gradient" : "activation");
    const guint segment = program_add_segment(builder->program, name->str);
    Op *op = segment_add_op(builder->program, segment, OP_EXCHANGE,
                            builder_stream(builder, "pp", "exchange"), builder->dtype);
    for (guint i = 0; i < exchange->num; i++) {
        const Transfer *transfer = &exchange->transfers[i];

        op->messages[i] =
            (Message){.peer_shift = (transfer->peer + builder->pp - builder->stage) % builder->pp,
                      .micro_batch_shift = micro_batch_shift(exchange, i),
                      .chunk = message_chunk(builder, transfer),
                      .direction = transfer->gradient ? 1 : 0};
        op_add_operand(op, exchange->moved[i].tensor, transfer->send ? ACCESS_READ : ACCESS_WRITE,
                       shift_of(exchange, i), WHOLE_TENSOR);
    }
    return segment;
}

static gboolean shape_equal(const ExchangeShape *a, const ExchangeShape *b)
{
    return a->num == b->num && memcmp(a->parts, b->parts, a->num * sizeof a->parts[0]) == 0;
}

/* Exchanges that differ only in what their calls bind share a segment.  The one before is most
 * likely the same. */
static guint exchange_segment(Step *step, const Exchange *exchange)
{
    ExchangeShape shape = {.num = exchange->num};

    for (guint i = 0; i < exchange->num; i++) {
        const Transfer *transfer = &exchange->transfers[i];

        shape.parts[i] = (ExchangePart){
            .send = transfer->send,
            .gradient = transfer->gradient,
            .peer = transfer->peer,
            .chunk = message_chunk(step->builder, transfer),
            .micro_batch_shift = micro_batch_shift(exchange, i),
            .shift = shift_of(exchange, i),
        };
    }
    for (guint i = step->shapes->len; i-- > 0;)
        if (shape_equal(&g_array_index(step->shapes, ExchangeShape, i), &shape))
            return g_array_index(step->shapes, ExchangeShape, i).segment;
    shape.segment = build_exchange(step->builder, exchange);
    g_array_append_val(step->shapes, shape);
    return shape.segment;
}

static void add_exchange(Step *step, const Action *action)
{
    Builder *builder = step->builder;
    Exchange exchange = {
        .transfers =
            &g_array_index(builder->timetable->transfers, Transfer, action->first_transfer),
        .num = action->num_transfers,
    };

    g_assert(exchange.num <= MAX_OPERANDS);
    for (guint i = 0; i < exchange.num; i++) {
        const Moved moved = exchange.moved[i] = moved_by(step, &exchange.transfers[i]);

        if (!exchange.bound[moved.ring])
            exchange.copy[moved.ring] = moved.copy;
        exchange.bound[moved.ring] = TRUE;
    }
    Draft draft = {
        .kind = DRAFT_OTHER,
        .segment = exchange_segment(step, &exchange),
        .micro_batch = exchange.transfers[0].micro_batch,
        .first = TRUE,
        .last = TRUE,
    };
    for (guint r = 0; r < NUM_RINGS; r++)
        draft.ring[r] = (guint16)exchange.copy[r];
    g_array_append_val(builder->drafts, draft);
    for (guint i = 0; i < exchange.num; i++)
        if (exchange.transfers[i].send && exchange.transfers[i].gradient)
            pool_give(
                step,
                flight_of(step, exchange.transfers[i].chunk, exchange.transfers[i].micro_batch),
                RING_GRADIENT);
}

/* ---- the step ---- */

static void add_count_valid(Builder *builder)
{
    const guint micro_batches = builder->spec->schedule.micro_batches;

    for (guint m = 0; m < micro_batches; m++) {
        const Draft draft = {.kind = DRAFT_OTHER,
                             .segment = (guint)builder->count_valid,
                             .micro_batch = m,
                             .first = m == 0,
                             .last = m + 1 == micro_batches};

        g_array_append_val(builder->drafts, draft);
    }
}

static void add_action(Step *step, const Action *action)
{
    switch (action->kind) {
    case ACTION_FORWARD:
        add_forward(step, action);
        break;
    case ACTION_BACKWARD:
        add_backward(step, action);
        break;
    case ACTION_WEIGHTS:
        add_weights(step, action);
        break;
    case ACTION_EXCHANGE:
    default:
        add_exchange(step, action);
    }
}

/* Of all kinds and lots. */
static void count_ring(const Step *step, Ring ring)
{
    const Builder *builder = step->builder;
    const guint runs = step->pools[ring].taken;

    for (guint k = 0; k < builder->num_kinds; k++)
        for (guint lot = 0; lot < NUM_LOTS; lot++) {
            const guint space = builder->kinds[k].ring_space[lot][ring];
            const guint copies = run_start(ring) + runs * run_length(builder, k, lot, ring);

            if (space == NO_SPACE)
                continue;
            g_assert(copies <= G_MAXUINT16); /* legality */
            program_space(builder->program, space)->count = MAX(copies, 1);
        }
}

void build_step(Builder *builder)
{
    const Schedule *schedule = &builder->spec->schedule;
    const gsize flights = (gsize)schedule_virtual_stages(schedule) * schedule->micro_batches;
    g_autofree Flight *in_flight = g_new0(Flight, flights);
    g_autoptr(GArray) shapes = g_array_new(FALSE, FALSE, sizeof(ExchangeShape));
    g_autofree gboolean *reads = g_new(gboolean, builder->program->segments->len);
    Step step = {.builder = builder, .flights = in_flight, .shapes = shapes, .reads = reads};

    for (guint r = 0; r < NUM_RINGS; r++)
        fifo_init(&step.pools[r].free);
    for (guint s = 0; s < builder->program->segments->len; s++)
        reads[s] = reads_weights(builder->program, program_segment(builder->program, s));
    add_count_valid(builder);
    for (guint i = 0; i < builder->timetable->actions->len; i++)
        add_action(&step, &g_array_index(builder->timetable->actions, Action, i));
    for (guint r = 0; r < NUM_RINGS; r++)
        count_ring(&step, (Ring)r);
    for (guint r = 0; r < NUM_RINGS; r++)
        fifo_clear(&step.pools[r].free);
}
