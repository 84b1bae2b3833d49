#include "sim/summary/flow.h"

/* Copies of a ring. */
typedef struct {
    guint now, most;
} Count;

static void take(Count *count)
{
    count->now++;
    count->most = MAX(count->most, count->now);
}

/* One stage, action by action, as the program's build_step() takes and gives copies. */
typedef struct {
    const Schedule *schedule;
    guint pp, chunks;
    Count in_flight, until_weights, backward_apart, gradients, inboxes;
    Flow *flow;
    StageFlow *stage;
    guint *open; /* by chunk */
    guint first_forwards;
    gboolean backward_begun;
} Counter;

static gboolean splits(const Counter *counter)
{
    return counter->schedule->kind == SCHEDULE_ZB_H1;
}

static void count_forward(Counter *counter, guint chunk)
{
    take(&counter->in_flight);
    take(&counter->until_weights);
    if (chunk > 0)
        counter->inboxes.now--;
    counter->flow->opened[chunk] += counter->open[chunk]++ == 0;
    if (chunk < counter->pp && counter->backward_begun)
        counter->stage->refills = TRUE;
}

static void give_weights(Counter *counter)
{
    counter->until_weights.now--;
    counter->backward_apart.now--;
}

static void count_backward(Counter *counter, guint chunk)
{
    counter->backward_begun = TRUE;
    take(&counter->backward_apart);
    if (chunk + 1 == counter->chunks)
        take(&counter->gradients);
    if (chunk == 0)
        counter->gradients.now--;
    counter->in_flight.now--;
    counter->open[chunk]--;
    if (!splits(counter))
        give_weights(counter);
}

static void count_exchange(Counter *counter, const Transfer *transfers, guint num)
{
    StageFlow *stage = counter->stage;

    stage->exchanges++;
    for (guint i = 0; i < num; i++) {
        if (transfers[i].send)
            continue;
        take(transfers[i].gradient ? &counter->gradients : &counter->inboxes);
        stage->gradients_received += transfers[i].gradient ? 1 : 0;
        stage->activations_received += transfers[i].gradient ? 0 : 1;
    }
    for (guint i = 0; i < num; i++)
        if (transfers[i].send && transfers[i].gradient)
            counter->gradients.now--;
}

static void count_action(Counter *counter, const Timetable *table, const Action *action)
{
    switch (action->kind) {
    case ACTION_FORWARD:
        count_forward(counter, action->chunk);
        break;
    case ACTION_BACKWARD:
        count_backward(counter, action->chunk);
        break;
    case ACTION_WEIGHTS:
        give_weights(counter);
        break;
    case ACTION_EXCHANGE:
    default:
        count_exchange(counter, &g_array_index(table->transfers, Transfer, action->first_transfer),
                       action->num_transfers);
    }
}

static void count_stage(Counter *counter, const Timetable *table)
{
    StageFlow *stage = counter->stage;

    for (guint a = 0; a < table->actions->len; a++)
        count_action(counter, table, &g_array_index(table->actions, Action, a));
    stage->in_flight = counter->in_flight.most;
    stage->until_weights = counter->until_weights.most;
    stage->backward_apart = counter->backward_apart.most;
    stage->gradients = counter->gradients.most;
    stage->inboxes = counter->inboxes.most;
}

static Flow *flow_alloc(guint pp, guint chunks)
{
    Flow *flow = g_new0(Flow, 1);

    flow->pp = pp;
    flow->stages = g_new0(StageFlow, pp);
    flow->opened = g_new0(guint, chunks);
    return flow;
}

Flow *flow_new(const Schedule *schedule, guint pp)
{
    const guint chunks = schedule_chunks(schedule, pp);
    Flow *flow = flow_alloc(pp, chunks);
    Timetable *tables = timetables_new(schedule, pp);
    g_autofree guint *open = g_new0(guint, chunks);

    for (guint s = 0; s < pp; s++) {
        Counter counter = {.schedule = schedule,
                           .pp = pp,
                           .chunks = chunks,
                           .flow = flow,
                           .stage = &flow->stages[s],
                           .open = open};

        count_stage(&counter, &tables[s]);
    }
    timetables_free(tables, pp);
    return flow;
}

guint flow_filled(guint micro_batches, guint pp)
{
    const guint filled = 2 * pp + micro_batches % pp;

    return micro_batches <= filled + pp ? 0 : filled;
}

static guint extend(guint filled, guint one_more, guint groups)
{
    return filled + (one_more - filled) * groups;
}

Flow *flow_extended(const Schedule *schedule, guint pp, const Flow *filled, const Flow *one_more)
{
    const guint chunks = schedule_chunks(schedule, pp);
    const guint groups = (schedule->micro_batches - flow_filled(schedule->micro_batches, pp)) / pp;
    Flow *flow = flow_alloc(pp, chunks);

    for (guint s = 0; s < pp; s++) {
        const StageFlow *a = &filled->stages[s], *b = &one_more->stages[s];

        flow->stages[s] = (StageFlow){
            .in_flight = extend(a->in_flight, b->in_flight, groups),
            .until_weights = extend(a->until_weights, b->until_weights, groups),
            .backward_apart = extend(a->backward_apart, b->backward_apart, groups),
            .gradients = extend(a->gradients, b->gradients, groups),
            .inboxes = extend(a->inboxes, b->inboxes, groups),
            .activations_received =
                extend(a->activations_received, b->activations_received, groups),
            .gradients_received = extend(a->gradients_received, b->gradients_received, groups),
            .exchanges = extend(a->exchanges, b->exchanges, groups),
            .refills = b->refills,
        };
    }
    for (guint c = 0; c < chunks; c++)
        flow->opened[c] = extend(filled->opened[c], one_more->opened[c], groups);
    return flow;
}

void flow_free(Flow *flow)
{
    if (flow == NULL)
        return;
    g_free(flow->stages);
    g_free(flow->opened);
    g_free(flow);
}
