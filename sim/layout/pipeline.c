#include "sim/layout/pipeline.h"

/* Clocks count chunks' forwards. */
enum { UNKNOWN = G_MAXUINT, FORWARD_TAKES = 1, WHOLE_BACKWARD_TAKES = 2, HALF_BACKWARD_TAKES = 1 };

/* A chunk's pass over one micro-batch. */
typedef struct {
    guint chunk, micro_batch;
} Pass;

/* An action and when it runs. */
typedef struct {
    ActionKind kind;
    Pass pass;
    guint start, end;
} Timed;

/* A transfer of one stage and when it is ready. */
typedef struct {
    Transfer transfer;
    guint time;
} TimedTransfer;

typedef struct {
    Pass *forward, *backward;    /* in their fixed orders; weights follow that of backward */
    guint next[ACTION_EXCHANGE]; /* of each order */
    guint most, most_unweighted; /* in flight: between forward and backward, and weights */
    guint free_at;
    Timed chosen;      /* what it does next, unless @stale; start UNKNOWN: nothing yet */
    gboolean stale;    /* what that depends on has changed */
    GArray *actions;   /* Timed */
    GArray *transfers; /* TimedTransfer, by time */
} Stage;

typedef struct {
    const Schedule *schedule;
    guint pp, chunks, passes; /* passes of a stage in one direction */
    Stage *stages;
    guint *forward_end, *backward_end; /* by chunk x micro-batch */
} Clocks;

/* ---- orders and limits ---- */

/* Micro-batches pass the chunks of a stage in groups of pp, so that a group can follow itself
 * around. */
static void fill_orders(const Clocks *clocks, guint index)
{
    const Schedule *schedule = clocks->schedule;
    const guint virtual_stages = schedule_virtual_stages(schedule);
    Stage *stage = &clocks->stages[index];
    guint at = 0;

    for (guint first = 0; first < schedule->micro_batches; first += clocks->pp) {
        const guint end = MIN(first + clocks->pp, schedule->micro_batches);

        for (guint v = 0; v < virtual_stages; v++)
            for (guint m = first; m < end; m++, at++) {
                stage->forward[at] = (Pass){v * clocks->pp + index, m};
                stage->backward[at] = (Pass){(virtual_stages - 1 - v) * clocks->pp + index, m};
            }
    }
}

static void set_limits(const Clocks *clocks, guint index)
{
    const guint pp = clocks->pp, behind = pp - index;
    Stage *stage = &clocks->stages[index];

    stage->most_unweighted = clocks->passes;
    switch (clocks->schedule->kind) {
    case SCHEDULE_GPIPE:
        stage->most = clocks->passes;
        break;
    case SCHEDULE_INTERLEAVED:
        stage->most = 2 * (behind - 1) + 1 +
                      (schedule_virtual_stages(clocks->schedule) - 1) *
                          MIN(pp, clocks->schedule->micro_batches);
        break;
    case SCHEDULE_ZB_H1:
        stage->most = behind;
        stage->most_unweighted = pp;
        break;
    case SCHEDULE_1F1B:
    default:
        stage->most = behind;
    }
}

/* ---- the clocks ---- */

static guint *end_of(guint *ends, const Clocks *clocks, guint chunk, guint micro_batch)
{
    return &ends[(gsize)chunk * clocks->schedule->micro_batches + micro_batch];
}

static guint forward_ready(const Clocks *clocks, const Stage *stage)
{
    const guint next = stage->next[ACTION_FORWARD];
    const Pass pass = stage->forward[MIN(next, clocks->passes - 1)];

    if (next == clocks->passes || next - stage->next[ACTION_BACKWARD] >= stage->most ||
        next - stage->next[ACTION_WEIGHTS] >= stage->most_unweighted)
        return UNKNOWN;
    return pass.chunk == 0 ? 0
                           : *end_of(clocks->forward_end, clocks, pass.chunk - 1, pass.micro_batch);
}

static guint backward_ready(const Clocks *clocks, const Stage *stage)
{
    const guint next = stage->next[ACTION_BACKWARD];
    const Pass pass = stage->backward[MIN(next, clocks->passes - 1)];

    if (next == clocks->passes)
        return UNKNOWN;
    if (clocks->schedule->kind == SCHEDULE_GPIPE && stage->next[ACTION_FORWARD] < clocks->passes)
        return UNKNOWN;
    if (pass.chunk + 1 == clocks->chunks)
        return *end_of(clocks->forward_end, clocks, pass.chunk, pass.micro_batch);
    return *end_of(clocks->backward_end, clocks, pass.chunk + 1, pass.micro_batch);
}

static guint weights_ready(const Clocks *clocks, const Stage *stage)
{
    const guint next = stage->next[ACTION_WEIGHTS];

    if (clocks->schedule->kind != SCHEDULE_ZB_H1 || next == stage->next[ACTION_BACKWARD])
        return UNKNOWN;
    return 0; /* its backward was this stage's own */
}

static gboolean ran_forward(const Stage *stage)
{
    const guint len = stage->actions->len;

    return len > 0 && g_array_index(stage->actions, Timed, len - 1).kind == ACTION_FORWARD;
}

/* What @stage does next, and when; of what can start at the same time, a backward after a forward,
 * a forward after a backward (else others would wait for it), weights last.  Its start is UNKNOWN
 * when it can do nothing yet. */
static Timed choose(const Clocks *clocks, const Stage *stage)
{
    const ActionKind preferred = ran_forward(stage) ? ACTION_BACKWARD : ACTION_FORWARD;
    const struct {
        ActionKind kind;
        guint ready;
    } options[] = {
        {ACTION_FORWARD, forward_ready(clocks, stage)},
        {ACTION_BACKWARD, backward_ready(clocks, stage)},
        {ACTION_WEIGHTS, weights_ready(clocks, stage)},
    };
    Timed chosen = {.start = UNKNOWN};

    for (guint i = 0; i < G_N_ELEMENTS(options); i++) {
        const guint start = MAX(options[i].ready, stage->free_at);
        const gboolean first = options[i].kind == preferred && start == chosen.start;

        if (options[i].ready != UNKNOWN && (start < chosen.start || first))
            chosen = (Timed){.kind = options[i].kind, .start = start};
    }
    return chosen;
}

static guint takes(const Clocks *clocks, ActionKind kind)
{
    if (kind == ACTION_FORWARD)
        return FORWARD_TAKES;
    return clocks->schedule->kind == SCHEDULE_ZB_H1 ? HALF_BACKWARD_TAKES : WHOLE_BACKWARD_TAKES;
}

static void transfer(Clocks *clocks, const Timed *from, guint to_chunk)
{
    const guint sender = from->pass.chunk % clocks->pp, receiver = to_chunk % clocks->pp;
    const gboolean gradient = from->kind == ACTION_BACKWARD;
    const guint m = from->pass.micro_batch;
    const TimedTransfer sent = {{TRUE, gradient, receiver, from->pass.chunk, m}, from->end};
    const TimedTransfer received = {{FALSE, gradient, sender, to_chunk, m}, from->end};

    if (sender == receiver)
        return;
    g_array_append_val(clocks->stages[sender].transfers, sent);
    g_array_append_val(clocks->stages[receiver].transfers, received);
}

/* Its own next action depends on what a stage does, and those of its neighbours. */
static void make_stale(Clocks *clocks, const Stage *stage)
{
    const guint pp = clocks->pp, index = (guint)(stage - clocks->stages);

    clocks->stages[index].stale = TRUE;
    clocks->stages[(index + 1) % pp].stale = TRUE;
    clocks->stages[(index + pp - 1) % pp].stale = TRUE;
}

static void perform(Clocks *clocks, Stage *stage, Timed action)
{
    const Pass *order = action.kind == ACTION_FORWARD ? stage->forward : stage->backward;

    action.pass = order[stage->next[action.kind]++];
    action.end = stage->free_at = action.start + takes(clocks, action.kind);
    g_array_append_val(stage->actions, action);
    make_stale(clocks, stage);
    if (action.kind == ACTION_FORWARD) {
        *end_of(clocks->forward_end, clocks, action.pass.chunk, action.pass.micro_batch) =
            action.end;
        if (action.pass.chunk + 1 < clocks->chunks)
            transfer(clocks, &action, action.pass.chunk + 1);
    } else if (action.kind == ACTION_BACKWARD) {
        *end_of(clocks->backward_end, clocks, action.pass.chunk, action.pass.micro_batch) =
            action.end;
        if (action.pass.chunk > 0)
            transfer(clocks, &action, action.pass.chunk - 1);
    }
}

/* All that starts at @now, of one stage after the other; what it makes ready is later than that.
 * FALSE when all are done. */
static gboolean advance(Clocks *clocks, guint now)
{
    gboolean goes_on = FALSE;

    for (guint s = 0; s < clocks->pp; s++) {
        Stage *stage = &clocks->stages[s];

        if (stage->stale) {
            stage->chosen = choose(clocks, stage);
            stage->stale = FALSE;
        }
        goes_on |= stage->chosen.start != UNKNOWN;
        if (stage->chosen.start == now)
            perform(clocks, stage, stage->chosen);
    }
    return goes_on;
}

/* ---- timetables ---- */

static gint by_time(const TimedTransfer *left, const TimedTransfer *right)
{
    if (left->time != right->time)
        return left->time < right->time ? -1 : 1;
    if (left->transfer.gradient != right->transfer.gradient)
        return left->transfer.gradient ? 1 : -1;
    return (gint)right->transfer.send - (gint)left->transfer.send;
}

/* By insertion: they come in the order in which what they wait for starts, so few are far from
 * their places. */
static void sort_transfers(GArray *transfers)
{
    TimedTransfer *all = &g_array_index(transfers, TimedTransfer, 0);

    for (guint i = 1; i < transfers->len; i++) {
        const TimedTransfer one = all[i];
        guint at = i;

        for (; at > 0 && by_time(&all[at - 1], &one) > 0; at--)
            all[at] = all[at - 1];
        all[at] = one;
    }
}

/* All transfers from @first on that are ready at the same time. */
static guint append_exchange(Timetable *table, const GArray *transfers, guint first)
{
    const guint time = g_array_index(transfers, TimedTransfer, first).time;
    Action action = {.kind = ACTION_EXCHANGE, .first_transfer = table->transfers->len};
    guint i = first;

    for (; i < transfers->len && g_array_index(transfers, TimedTransfer, i).time == time; i++) {
        g_array_append_val(table->transfers, g_array_index(transfers, TimedTransfer, i).transfer);
        action.num_transfers++;
    }
    g_array_append_val(table->actions, action);
    return i;
}

/* Whether the exchange that starts at @first must follow @action. */
static gboolean goes_after(const GArray *transfers, guint first, const Timed *action)
{
    const guint time = g_array_index(transfers, TimedTransfer, first).time;

    for (guint i = first; action->end == time && i < transfers->len; i++) {
        const TimedTransfer *at = &g_array_index(transfers, TimedTransfer, i);

        if (at->time == time && at->transfer.send)
            return TRUE;
    }
    return action->end < time;
}

static void fill_timetable(Timetable *table, const Stage *stage)
{
    guint next = 0;

    table->actions = g_array_sized_new(FALSE, FALSE, sizeof(Action),
                                       stage->actions->len + stage->transfers->len);
    table->transfers = g_array_sized_new(FALSE, FALSE, sizeof(Transfer), stage->transfers->len);
    sort_transfers(stage->transfers);
    for (guint a = 0; a < stage->actions->len; a++) {
        const Timed *timed = &g_array_index(stage->actions, Timed, a);
        const Action action = {.kind = timed->kind,
                               .chunk = timed->pass.chunk,
                               .micro_batch = timed->pass.micro_batch};

        while (next < stage->transfers->len && !goes_after(stage->transfers, next, timed))
            next = append_exchange(table, stage->transfers, next);
        g_array_append_val(table->actions, action);
    }
    while (next < stage->transfers->len)
        next = append_exchange(table, stage->transfers, next);
}

static void clocks_init(Clocks *clocks, const Schedule *schedule, guint pp)
{
    const gsize ends = (gsize)schedule_chunks(schedule, pp) * schedule->micro_batches;

    *clocks = (Clocks){
        .schedule = schedule,
        .pp = pp,
        .chunks = schedule_chunks(schedule, pp),
        .passes = schedule_virtual_stages(schedule) * schedule->micro_batches,
        .stages = g_new0(Stage, pp),
        .forward_end = g_new(guint, ends),
        .backward_end = g_new(guint, ends),
    };
    for (gsize i = 0; i < ends; i++)
        clocks->forward_end[i] = clocks->backward_end[i] = UNKNOWN;
    for (guint s = 0; s < pp; s++) {
        Stage *stage = &clocks->stages[s];

        stage->forward = g_new(Pass, clocks->passes);
        stage->backward = g_new(Pass, clocks->passes);
        stage->actions = g_array_sized_new(FALSE, FALSE, sizeof(Timed), 3 * clocks->passes);
        stage->transfers =
            g_array_sized_new(FALSE, FALSE, sizeof(TimedTransfer), 4 * clocks->passes);
        stage->stale = TRUE;
        fill_orders(clocks, s);
        set_limits(clocks, s);
    }
}

static void clocks_clear(Clocks *clocks)
{
    for (guint s = 0; s < clocks->pp; s++) {
        g_free(clocks->stages[s].forward);
        g_free(clocks->stages[s].backward);
        g_array_unref(clocks->stages[s].actions);
        g_array_unref(clocks->stages[s].transfers);
    }
    g_free(clocks->stages);
    g_free(clocks->forward_end);
    g_free(clocks->backward_end);
}

Timetable *timetables_new(const Schedule *schedule, guint pp)
{
    Timetable *tables = g_new0(Timetable, pp);
    Clocks clocks;

    clocks_init(&clocks, schedule, pp);
    for (guint now = 0; advance(&clocks, now); now++)
        ;
    for (guint s = 0; s < pp; s++) {
        g_assert(clocks.stages[s].next[ACTION_BACKWARD] == clocks.passes);
        fill_timetable(&tables[s], &clocks.stages[s]);
    }
    clocks_clear(&clocks);
    return tables;
}

void timetables_free(Timetable *timetables, guint pp)
{
    for (guint s = 0; s < pp; s++) {
        g_array_unref(timetables[s].actions);
        g_array_unref(timetables[s].transfers);
    }
    g_free(timetables);
}
