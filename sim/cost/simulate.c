#include "sim/cost/simulate.h"

#include "sim/cost/clock.h"

gboolean simulate_overlaps(const SimulateContext *context)
{
    if (context->topology->gpu.kind == DEVICE_CUDA)
        return TRUE;
    return context->ranks_per_node * (context->threads + 1) <= context->topology->gpus_per_node;
}

static void run_alone(Clock *clock, gboolean is_cpu, gboolean overlaps)
{
    const gboolean simple = clock_is_simple(clock, is_cpu, overlaps);

    while (clock_settle(clock)) {
        if (simple && clock_finish_run(clock))
            continue;
        const double start_s = clock_ready(clock, clock_timed(clock), is_cpu);

        clock_finish(clock, start_s, clock_delay_s(clock, start_s), overlaps, NULL, 0);
    }
}

StepTime simulate_program(const Program *program, const SimulateContext *context,
                          const guint *spans)
{
    const gboolean overlaps = simulate_overlaps(context);
    const gboolean is_cpu = context->topology->gpu.kind == DEVICE_CPU;
    Clock clock;

    clock_init(&clock, program, context, spans, FEWER_STEPS);
    run_alone(&clock, is_cpu, overlaps);
    if (!clock_repeats(&clock, clock_period_s(&clock))) {
        clock.steps = STEPS;
        run_alone(&clock, is_cpu, overlaps);
    }
    const StepTime time = clock_time(&clock);
    clock_clear(&clock);
    return time;
}

/* ---- several classes ---- */

enum { NOBODY = G_MAXUINT };

/* Whom a class meets, looked up once an op. */
typedef struct {
    guint **met; /* by clock_ordinal(): classes in their order, its own too, then NOBODY; NULL:
                    not yet looked up */
    guint name[MAX_STREAMS]; /* by stream: of its name */
} Meeting;

typedef struct {
    const ProgramSet *set;
    Clock *clocks;  /* by class */
    guint *sample;  /* by class: the rank that stands for it */
    gboolean *idle; /* by class: nobody has come whom it waits for */
    gboolean is_cpu, overlaps;
    GArray *ops;
    Meeting *meetings; /* by class */
    GPtrArray *names;  /* of streams: classes number theirs each for itself */
    GArray **arrivals; /* by class, partner, stream's name: when it reached each of their
                          exchanges */
} Simulation;

static const char *purpose_of(const Program *program, const Op *op)
{
    return g_array_index(program->groups, GroupRef, program_stream(program, op->stream)->group)
        .purpose;
}

/* Whether @op of the rank at position @own of a group of @size has to do with @peer. */
static gboolean sends_between(const Op *op, guint own, guint peer, guint size)
{
    for (guint i = 0; i < op->num_operands; i++)
        if ((own + op->messages[i].peer_shift) % size == peer)
            return TRUE;
    return FALSE;
}

/* Marks the classes that must be at their part of the collective that @mine has reached. */
static void mark_partners(const Simulation *simulation, guint mine, gboolean *is_partner)
{
    const Program *program = simulation->clocks[mine].program;
    const Op *op = clock_op(&simulation->clocks[mine]);
    const Group *group =
        program_set_group(simulation->set, purpose_of(program, op), simulation->sample[mine]);
    const guint own = group == NULL ? 0 : group_position(group, simulation->sample[mine]);

    for (guint i = 0; group != NULL && i < group->size; i++)
        if (op->kind != OP_EXCHANGE || sends_between(op, own, i, group->size))
            is_partner[simulation->set->class_of[group->ranks[i]]] = TRUE;
}

static guint *find_met(const Simulation *simulation, guint mine)
{
    const guint num_classes = simulation->set->num_classes;
    g_autofree gboolean *is_partner = g_new0(gboolean, num_classes);
    guint *met = g_new(guint, num_classes + 1), num = 0;

    mark_partners(simulation, mine, is_partner);
    for (guint c = 0; c < num_classes; c++)
        if (c == mine || is_partner[c])
            met[num++] = c;
    met[num] = NOBODY;
    return met;
}

/* The classes of the current op of @mine, in order. */
static const guint *met_by(const Simulation *simulation, guint mine)
{
    guint **met = &simulation->meetings[mine].met[clock_ordinal(&simulation->clocks[mine])];

    if (*met == NULL)
        *met = find_met(simulation, mine);
    return *met;
}

static guint stream_name(const Simulation *simulation, guint c)
{
    return simulation->meetings[c].name[clock_op(&simulation->clocks[c])->stream];
}

static gboolean at_same_collective(const Simulation *simulation, guint mine, guint other)
{
    const Clock *clock = &simulation->clocks[other];
    const Op *op = clock_op(&simulation->clocks[mine]);

    return clock->arrived && clock_op(clock)->kind == op->kind &&
           stream_name(simulation, other) == stream_name(simulation, mine);
}

/* TRUE when all partners have arrived; then *start_s is when the last one did. */
static gboolean all_arrived(const Simulation *simulation, guint mine, double *start_s)
{
    *start_s = simulation->clocks[mine].ready_s;
    for (const guint *met = met_by(simulation, mine); *met != NOBODY; met++) {
        if (*met != mine && !at_same_collective(simulation, mine, *met))
            return FALSE;
        *start_s = MAX(*start_s, simulation->clocks[*met].ready_s);
    }
    return TRUE;
}

/* All are as late as the member whose links are busiest. */
static void meet(Simulation *simulation, guint mine, double start_s)
{
    const guint *all = met_by(simulation, mine);
    double delayed_s = 0;

    for (const guint *met = all; *met != NOBODY; met++)
        delayed_s = MAX(delayed_s, clock_delay_s(&simulation->clocks[*met], start_s));
    for (const guint *met = all; *met != NOBODY; met++) {
        clock_finish(&simulation->clocks[*met], start_s, delayed_s, simulation->overlaps,
                     simulation->ops, *met);
        simulation->idle[*met] = FALSE;
    }
}

/* ---- exchanges ---- */

/* Messages between two ranks keep their order on a stream, so the nth exchange that one has with
 * the other pairs with the other's nth with it. */
static GArray *arrivals_of(const Simulation *simulation, guint from, guint to, guint name)
{
    GArray **arrivals =
        &simulation
             ->arrivals[(from * simulation->set->num_classes + to) * simulation->names->len + name];

    if (*arrivals == NULL)
        *arrivals = g_array_new(FALSE, FALSE, sizeof(double));
    return *arrivals;
}

static void note_arrival(Simulation *simulation, guint mine)
{
    const Clock *clock = &simulation->clocks[mine];
    const guint name = stream_name(simulation, mine);

    for (const guint *met = met_by(simulation, mine); *met != NOBODY; met++) {
        if (*met == mine)
            continue;
        g_array_append_val(arrivals_of(simulation, mine, *met, name), clock->ready_s);
        simulation->idle[*met] = FALSE;
    }
}

/* TRUE when every partner has reached its side; it may have gone on since, when its own partners
 * were all there.  Then *start_s is when the last one did. */
static gboolean all_paired(const Simulation *simulation, guint mine, double *start_s)
{
    const guint name = stream_name(simulation, mine);

    *start_s = simulation->clocks[mine].ready_s;
    for (const guint *met = met_by(simulation, mine); *met != NOBODY; met++) {
        if (*met == mine)
            continue;
        const GArray *theirs = arrivals_of(simulation, *met, mine, name);
        const guint nth = arrivals_of(simulation, mine, *met, name)->len - 1;

        if (theirs->len <= nth)
            return FALSE;
        *start_s = MAX(*start_s, g_array_index(theirs, double, nth));
    }
    return TRUE;
}

/* FALSE when a member is missing. */
static gboolean communicate(Simulation *simulation, guint c)
{
    Clock *clock = &simulation->clocks[c];
    double start_s;

    if (clock_op(clock)->kind == OP_EXCHANGE) {
        if (!all_paired(simulation, c, &start_s))
            return FALSE;
        clock_finish(clock, start_s, clock_delay_s(clock, start_s), simulation->overlaps,
                     simulation->ops, c);
        return TRUE;
    }
    if (!all_arrived(simulation, c, &start_s))
        return FALSE;
    meet(simulation, c, start_s);
    return TRUE;
}

/* Takes one class as far as it gets alone.  FALSE when it could not move. */
static gboolean advance(Simulation *simulation, guint c)
{
    Clock *clock = &simulation->clocks[c];
    const gboolean simple =
        simulation->ops == NULL && clock_is_simple(clock, simulation->is_cpu, simulation->overlaps);
    gboolean moved = FALSE;

    while (clock_settle(clock)) {
        const Timed *timed = clock_timed(clock);

        if (simple && clock_finish_run(clock)) {
            moved = TRUE;
            continue;
        }
        if (!clock->arrived) {
            clock->ready_s = clock_ready(clock, timed, simulation->is_cpu);
            clock->arrived = timed->communicates;
            if (timed->op->kind == OP_EXCHANGE)
                note_arrival(simulation, c);
            moved = TRUE;
        }
        if (!clock->arrived)
            clock_finish(clock, clock->ready_s, 0, simulation->overlaps, simulation->ops, c);
        else if (!communicate(simulation, c)) {
            simulation->idle[c] = TRUE;
            return moved;
        }
        moved = TRUE;
    }
    return moved;
}

static gboolean advance_all(Simulation *simulation)
{
    gboolean moved = FALSE;

    for (guint c = 0; c < simulation->set->num_classes; c++)
        if (!simulation->idle[c])
            moved |= advance(simulation, c);
    return moved;
}

static void class_init(Simulation *simulation, const SimulateContext *context, guint c)
{
    const Program *program = simulation->set->classes[c];
    g_autofree guint *spans = program_set_spans(simulation->set, c, simulation->sample[c]);

    clock_init(&simulation->clocks[c], program, context, spans,
               simulation->ops == NULL ? FEWER_STEPS : STEPS); /* the timeline is of the last */
}

static guint num_timed(const Clock *clock)
{
    return clock->first_timed[clock->program->segments->len];
}

static void meetings_init(Simulation *simulation)
{
    simulation->meetings = g_new0(Meeting, simulation->set->num_classes);
    simulation->names = g_ptr_array_new();
    for (guint c = 0; c < simulation->set->num_classes; c++) {
        const Program *program = simulation->set->classes[c];
        Meeting *meeting = &simulation->meetings[c];

        meeting->met = g_new0(guint *, num_timed(&simulation->clocks[c]));
        for (guint s = 0; s < program->streams->len; s++) {
            const char *name = program_stream(program, s)->name;

            if (!g_ptr_array_find_with_equal_func(simulation->names, name, g_str_equal,
                                                  &meeting->name[s])) {
                meeting->name[s] = simulation->names->len;
                g_ptr_array_add(simulation->names, (gpointer)name);
            }
        }
    }
    simulation->arrivals =
        g_new0(GArray *, simulation->set->num_classes * simulation->set->num_classes *
                             simulation->names->len);
}

static void meetings_clear(Simulation *simulation)
{
    const guint num = simulation->set->num_classes;

    for (guint i = 0; i < num * num * simulation->names->len; i++)
        g_clear_pointer(&simulation->arrivals[i], g_array_unref);
    for (guint c = 0; c < num; c++) {
        for (guint i = 0; i < num_timed(&simulation->clocks[c]); i++)
            g_free(simulation->meetings[c].met[i]);
        g_free(simulation->meetings[c].met);
    }
    g_ptr_array_unref(simulation->names);
    g_free(simulation->arrivals);
    g_free(simulation->meetings);
}

/* As far as clocks go. */
static void run_all(Simulation *simulation)
{
    while (advance_all(simulation))
        ;
    for (guint c = 0; c < simulation->set->num_classes; c++)
        g_assert(simulation->clocks[c].step ==
                 simulation->clocks[c].steps); /* no deadlock: check */
}

/* All by as much. */
static gboolean all_repeat(const Simulation *simulation)
{
    const double period_s = clock_period_s(&simulation->clocks[0]);

    for (guint c = 0; c < simulation->set->num_classes; c++)
        if (!clock_repeats(&simulation->clocks[c], period_s))
            return FALSE;
    return TRUE;
}

static void go_on(Simulation *simulation)
{
    for (guint c = 0; c < simulation->set->num_classes; c++) {
        simulation->clocks[c].steps = STEPS;
        simulation->idle[c] = FALSE;
    }
}

void simulate_set(const ProgramSet *set, const SimulateContext *context, StepTime *times,
                  GArray *ops)
{
    Simulation simulation = {
        .set = set,
        .clocks = g_new(Clock, set->num_classes),
        .sample = g_new0(guint, set->num_classes),
        .idle = g_new0(gboolean, set->num_classes),
        .is_cpu = context->topology->gpu.kind == DEVICE_CPU,
        .overlaps = simulate_overlaps(context),
        .ops = ops,
    };

    for (guint rank = set->num_ranks; rank-- > 0;)
        simulation.sample[set->class_of[rank]] = rank;
    for (guint c = 0; c < set->num_classes; c++)
        class_init(&simulation, context, c);
    meetings_init(&simulation);
    run_all(&simulation);
    if (ops == NULL && !all_repeat(&simulation)) {
        go_on(&simulation);
        run_all(&simulation);
    }
    for (guint c = 0; c < set->num_classes; c++)
        times[c] = clock_time(&simulation.clocks[c]);
    meetings_clear(&simulation);
    for (guint c = 0; c < set->num_classes; c++)
        clock_clear(&simulation.clocks[c]);
    g_free(simulation.clocks);
    g_free(simulation.sample);
    g_free(simulation.idle);
}
