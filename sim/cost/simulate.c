#include "sim/cost/simulate.h"

#include <string.h>

enum { STEPS = 3 }; /* the first fills the pipe, the last is taken as steady */

gboolean simulate_overlaps(const SimulateContext *context)
{
    if (context->topology->gpu.kind == DEVICE_CUDA)
        return TRUE;
    return context->ranks_per_node * (context->threads + 1) <= context->topology->gpus_per_node;
}

/* ---- clocks ---- */

/* One op of a segment, and what there is to know of it on the clocks. */
typedef struct {
    const Op *op;
    double took_s, lost_s; /* lost_s: that compute loses to it */
    OpClass class, spent_on;
    gboolean communicates, copies_file;
    gboolean follows; /* starts when the compute op before it ends, unless its call waits */
    Volume volume;    /* where it communicates */
} Timed;

/* Virtual time of one simulated rank. */
typedef struct {
    const Program *program;
    Timed *timed;                 /* ops of all segments */
    guint *first_timed;           /* by segment; one past the end too */
    guint32 *first_op;            /* program_first_ops() */
    double *end[2];               /* by op: when it ended in this step, in the one before */
    guint lane[MAX_STREAMS];      /* by stream: the stream whose clock it goes by */
    double stream_s[MAX_STREAMS]; /* when the newest op of a lane ends */
    double owed_s;                /* what compute loses before the optimiser: to reductions */
    double issue_s;               /* when the issuing thread is free (CPU) */
    double queue_s;               /* when the communication thread is free (CPU) */
    guint32 files;                /* program_file_streams() */
    double files_s;               /* when the storage thread is free: a rank's disk has one op */
    double held_s[2];             /* until when the thread that issues compute (0), or the one that
                                     issues communication, waits for a file (GPU) */
    double last_compute_s;        /* end of the newest compute op */
    double step_start_s;
    StepTime time;
    /* the op under way */
    guint step, next_call, op, num_ops;
    const Call *call;
    const Timed *call_timed; /* of the call's first op */
    const Wait *call_waits;
    double *call_end; /* end[0], of the call's first op */
    double ready_s;
    gboolean arrived; /* at a collective, waiting for the others */
} Clock;

/* A cast before a gather, a sum after a reduction: on a stream of communication, part of it. */
static OpClass spent_on(const Op *op)
{
    return op->stream == COMPUTE_STREAM ? op_class(op->kind) : OP_CLASS_COMMUNICATION;
}

/* Whether units' gradients are reduced on that stream. */
static gboolean reduces_units(const Program *program, guint stream)
{
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            if (op->stream == stream && op->unit >= 0)
                return TRUE;
        }
    return FALSE;
}

/* A stream is a clock of its own, but units whose gradients are reduced among all data ranks beside
 * others that are sharded send over the very links that those do: one after the other.  Else a step
 * would gain by spreading its units over streams, as if each had its own network. */
static void find_lanes(Clock *clock)
{
    const Program *program = clock->program;
    gint shard = -1, data = -1, replicate = -1;

    for (guint s = 0; s < program->streams->len; s++) {
        const char *name = program_stream(program, s)->name;

        clock->lane[s] = s;
        shard = strcmp(name, "shard.reduce") == 0 ? (gint)s : shard;
        data = strcmp(name, "data.reduce") == 0 ? (gint)s : data;
        replicate = strcmp(name, "replicate.reduce") == 0 ? (gint)s : replicate;
    }
    if (shard < 0 || data < 0 || !reduces_units(program, (guint)data) ||
        !reduces_units(program, (guint)shard))
        return;
    clock->lane[data] = (guint)shard;
    if (replicate >= 0)
        clock->lane[replicate] = (guint)shard;
}

static void time_ops(Clock *clock, const SimulateContext *context, double *const *durations)
{
    const Program *program = clock->program;
    double blocks[MAX_STREAMS]; /* seconds that compute loses a second of that stream's */

    for (guint s = 0; s < program->streams->len; s++)
        blocks[s] =
            framework_blocks(durations_framework(context), program_stream(program, s)->name);
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            Timed *timed = &clock->timed[clock->first_timed[s] + i];

            *timed = (Timed){
                .op = op,
                .took_s = durations[s][i],
                .lost_s = op->stream == COMPUTE_STREAM ? 0 : blocks[op->stream] * durations[s][i],
                .class = op_class(op->kind),
                .spent_on = spent_on(op),
                .communicates = op_kind_is_communication(op->kind),
                .copies_file = program_copies_file(program, op),
                .follows = op->stream == COMPUTE_STREAM && op->num_waits == 0 &&
                           op_class(op->kind) != OP_CLASS_OPTIMIZER,
            };
            if (op_kind_is_communication(op->kind))
                timed->volume = op_volume(op->kind);
        }
}

static void clock_init(Clock *clock, const Program *program, const SimulateContext *context,
                       const guint *spans)
{
    const guint num = program->segments->len;
    double **durations = durations_new(program, context, spans);

    *clock = (Clock){.program = program, .files = program_file_streams(program)};
    find_lanes(clock);
    clock->first_op = program_first_ops(program);
    const guint32 ops_per_step = clock->first_op[program->step.calls->len];
    clock->end[0] = g_new0(double, ops_per_step);
    clock->end[1] = g_new0(double, ops_per_step);
    clock->first_timed = g_new0(guint, num + 1);
    for (guint s = 0; s < num; s++)
        clock->first_timed[s + 1] = clock->first_timed[s] + program_segment(program, s)->num_ops;
    clock->timed = g_new(Timed, clock->first_timed[num]);
    time_ops(clock, context, durations);
    durations_free(durations, program);
}

static void clock_clear(Clock *clock)
{
    g_free(clock->timed);
    g_free(clock->first_timed);
    g_free(clock->first_op);
    g_free(clock->end[0]);
    g_free(clock->end[1]);
}

/* Ordinal of the current op among those of all segments. */
static guint current_ordinal(const Clock *clock)
{
    return (guint)(clock->call_timed - clock->timed) + clock->op;
}

static const Timed *current_timed(const Clock *clock)
{
    return &clock->call_timed[clock->op];
}

static const Op *current_op(const Clock *clock)
{
    return current_timed(clock)->op;
}

static gboolean is_on(guint32 streams, guint stream)
{
    return (streams >> stream & 1) != 0;
}

/* When the thread that runs or issues the current op comes to it.  On a CPU an op is issued when
 * the main thread comes by, and run when its own thread is free.  On a GPU threads only enqueue,
 * unless a file is waited for. */
static double thread_ready(const Clock *clock, guint stream, gboolean is_cpu)
{
    const gboolean computes = stream == COMPUTE_STREAM;

    if (is_on(clock->files, stream))
        return MAX(clock->files_s, is_cpu ? clock->issue_s : clock->held_s[0]);
    if (is_cpu)
        return MAX(clock->issue_s, computes ? 0 : clock->queue_s);
    return MAX(clock->held_s[0], computes ? 0 : clock->held_s[1]);
}

/* The end of what is on @streams and the current op waits for; 0 without. */
static double awaited_end(const Clock *clock, const Op *op, guint32 streams)
{
    const Program *program = clock->program;
    const Segment *segment = program_segment(program, clock->call->segment);
    double end_s = 0;

    for (guint w = 0; w < op->num_waits; w++)
        if (is_on(streams, segment->ops[op->waits[w]].stream))
            end_s = MAX(end_s, clock->call_end[op->waits[w]]);
    for (guint w = 0; w < clock->call->num_waits; w++) {
        const Wait *wait = &g_array_index(program->step.waits, Wait, clock->call->first_wait + w);
        const Call *call = &g_array_index(program->step.calls, Call, wait->call);
        const Segment *of = program_segment(program, call->segment);
        const guint awaited = wait->op == LAST_OP ? of->num_ops - 1 : wait->op;

        if (wait->before == clock->op && (wait->back == 0 || clock->step > 0) &&
            is_on(streams, of->ops[awaited].stream))
            end_s = MAX(end_s, clock->end[wait->back][wait_event(clock->first_op, wait)]);
    }
    return end_s;
}

/* The earliest start of the current op by its stream, its waits and the threads that it needs. */
static double ready(const Clock *clock, const Timed *timed, gboolean is_cpu)
{
    const Call *call = clock->call;
    const Op *op = timed->op;
    const Wait *waits = clock->call_waits;
    double at = clock->stream_s[clock->lane[op->stream]];

    if (timed->class == OP_CLASS_OPTIMIZER)
        at += clock->owed_s;
    for (guint w = 0; w < op->num_waits; w++)
        at = MAX(at, clock->call_end[op->waits[w]]);
    for (guint w = 0; w < call->num_waits; w++)
        if (waits[w].before == clock->op && (waits[w].back == 0 || clock->step > 0))
            at = MAX(at, clock->end[waits[w].back][wait_event(clock->first_op, &waits[w])]);
    return MAX(at, thread_ready(clock, op->stream, is_cpu));
}

/* Of compute's time, to traffic.  What reductions take of it counts once all backward passes are
 * done: before, other stages would wait for it one after the other, and no framework does that. */
static void lose(Clock *clock, const Timed *timed)
{
    if (timed->op->kind == OP_ALL_GATHER)
        clock->stream_s[COMPUTE_STREAM] += timed->lost_s;
    else
        clock->owed_s += timed->lost_s;
}

static void note_op(const Clock *clock, double start_s, double end_s, GArray *ops,
                    guint class_index)
{
    const SimulatedOp done = {class_index, clock->next_call - 1, clock->op,
                              start_s - clock->step_start_s, end_s - clock->step_start_s};

    if (ops != NULL && clock->step == STEPS - 1)
        g_array_append_val(ops, done);
}

/* Of the last step, which is what is asked for. */
static void count_op(Clock *clock, const Timed *timed)
{
    if (clock->step < STEPS - 1)
        return;
    clock->time.busy_s[timed->spent_on] += timed->took_s;
    if (timed->communicates)
        clock->time.volume_s[timed->volume] += timed->took_s;
}

/* Ends the current op and takes the rank to the next one. */
static void finish(Clock *clock, double start_s, gboolean overlaps, GArray *ops, guint class_index)
{
    const Timed *timed = current_timed(clock);
    const double end_s = start_s + timed->took_s;

    clock->call_end[clock->op] = end_s;
    clock->stream_s[clock->lane[timed->op->stream]] = end_s;
    if (is_on(clock->files, timed->op->stream)) {
        clock->files_s = end_s;
    } else if (clock->files != 0) {
        double *held_s = &clock->held_s[timed->op->stream == COMPUTE_STREAM ? 0 : 1];

        *held_s = MAX(*held_s, awaited_end(clock, timed->op, clock->files));
    }
    if (timed->op->stream == COMPUTE_STREAM) {
        clock->issue_s = clock->last_compute_s = end_s;
    } else if (!is_on(clock->files, timed->op->stream)) {
        clock->queue_s = end_s;
        lose(clock, timed);
    }
    if (timed->class == OP_CLASS_OPTIMIZER)
        clock->owed_s = 0;
    count_op(clock, timed);
    /* threads take turns on a core: what runs now delays whatever is issued later; but to wait for
     * a disk takes none */
    if (!overlaps && !timed->copies_file)
        clock->issue_s = clock->queue_s = MAX(clock->issue_s, end_s);
    note_op(clock, start_s, end_s, ops, class_index);
    clock->arrived = FALSE;
    clock->op++;
}

/* Whether nothing but the op before it is waited for. */
static gboolean follows(const Clock *clock)
{
    for (guint w = 0; w < clock->call->num_waits; w++)
        if (clock->call_waits[w].before == clock->op)
            return FALSE;
    return current_timed(clock)->follows;
}

/* Most ops of a step, quickly: what ready() and finish() make of those that follow one another
 * where clocks are simple. */
static void finish_followers(Clock *clock)
{
    double end_s = clock->stream_s[COMPUTE_STREAM];

    for (; clock->op < clock->num_ops && follows(clock); clock->op++) {
        const Timed *timed = current_timed(clock);

        end_s += timed->took_s;
        clock->call_end[clock->op] = end_s;
        count_op(clock, timed);
    }
    clock->stream_s[COMPUTE_STREAM] = clock->last_compute_s = end_s;
}

/* The stream of compute has a clock that nothing else moves or holds. */
static gboolean is_simple(const Clock *clock, gboolean is_cpu, gboolean overlaps)
{
    return !is_cpu && overlaps && clock->files == 0;
}

/* A step ends for the host with its last compute op (it reads the loss then). */
static void end_step(Clock *clock)
{
    double *end = clock->end[1];

    clock->end[1] = clock->end[0];
    clock->end[0] = end;
    clock->time.step_s = clock->last_compute_s - clock->step_start_s;
    clock->step_start_s = clock->last_compute_s;
    clock->next_call = clock->op = clock->num_ops = 0;
    clock->step++;
}

static void start_call(Clock *clock)
{
    const CallList *step = &clock->program->step;

    clock->call = &g_array_index(step->calls, Call, clock->next_call);
    clock->call_timed = &clock->timed[clock->first_timed[clock->call->segment]];
    clock->call_waits = &g_array_index(step->waits, Wait, clock->call->first_wait);
    clock->call_end = clock->end[0] + clock->first_op[clock->next_call++];
    clock->num_ops = program_segment(clock->program, clock->call->segment)->num_ops;
    clock->op = 0;
}

/* FALSE when all steps are done. */
static gboolean settle(Clock *clock)
{
    while (clock->step < STEPS) {
        if (clock->op < clock->num_ops)
            return TRUE;
        if (clock->next_call < clock->program->step.calls->len)
            start_call(clock);
        else
            end_step(clock);
    }
    return FALSE;
}

static StepTime clock_time(const Clock *clock)
{
    StepTime time = clock->time;

    time.exposed_s = time.step_s;
    for (guint c = 0; c < OP_CLASS_COMMUNICATION; c++)
        time.exposed_s -= time.busy_s[c];
    time.exposed_s = MAX(time.exposed_s, 0);
    return time;
}

StepTime simulate_program(const Program *program, const SimulateContext *context,
                          const guint *spans)
{
    const gboolean overlaps = simulate_overlaps(context);
    const gboolean is_cpu = context->topology->gpu.kind == DEVICE_CPU;
    Clock clock;

    clock_init(&clock, program, context, spans);
    const gboolean simple = is_simple(&clock, is_cpu, overlaps);
    while (settle(&clock))
        if (simple && follows(&clock))
            finish_followers(&clock);
        else
            finish(&clock, ready(&clock, current_timed(&clock), is_cpu), overlaps, NULL, 0);
    const StepTime time = clock_time(&clock);
    clock_clear(&clock);
    return time;
}

/* ---- several classes ---- */

enum { NOBODY = G_MAXUINT };

/* Whom a class meets, looked up once an op. */
typedef struct {
    guint **met; /* by current_ordinal(): classes in their order, its own too, then NOBODY; NULL:
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
    const Op *op = current_op(&simulation->clocks[mine]);
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
    guint **met = &simulation->meetings[mine].met[current_ordinal(&simulation->clocks[mine])];

    if (*met == NULL)
        *met = find_met(simulation, mine);
    return *met;
}

static guint stream_name(const Simulation *simulation, guint c)
{
    return simulation->meetings[c].name[current_op(&simulation->clocks[c])->stream];
}

static gboolean at_same_collective(const Simulation *simulation, guint mine, guint other)
{
    const Clock *clock = &simulation->clocks[other];
    const Op *op = current_op(&simulation->clocks[mine]);

    return clock->arrived && current_op(clock)->kind == op->kind &&
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

static void meet(Simulation *simulation, guint mine, double start_s)
{
    for (const guint *met = met_by(simulation, mine); *met != NOBODY; met++) {
        finish(&simulation->clocks[*met], start_s, simulation->overlaps, simulation->ops, *met);
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

    if (current_op(clock)->kind == OP_EXCHANGE) {
        if (!all_paired(simulation, c, &start_s))
            return FALSE;
        finish(clock, start_s, simulation->overlaps, simulation->ops, c);
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
        simulation->ops == NULL && is_simple(clock, simulation->is_cpu, simulation->overlaps);
    gboolean moved = FALSE;

    while (settle(clock)) {
        const Timed *timed = current_timed(clock);

        if (simple && follows(clock)) {
            finish_followers(clock);
            moved = TRUE;
            continue;
        }
        if (!clock->arrived) {
            clock->ready_s = ready(clock, timed, simulation->is_cpu);
            clock->arrived = timed->communicates;
            if (timed->op->kind == OP_EXCHANGE)
                note_arrival(simulation, c);
            moved = TRUE;
        }
        if (!clock->arrived)
            finish(clock, clock->ready_s, simulation->overlaps, simulation->ops, c);
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

    clock_init(&simulation->clocks[c], program, context, spans);
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
            char *name = program_stream(program, s)->name;

            if (!g_ptr_array_find_with_equal_func(simulation->names, name, g_str_equal,
                                                  &meeting->name[s])) {
                meeting->name[s] = simulation->names->len;
                g_ptr_array_add(simulation->names, name);
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
    while (advance_all(&simulation))
        ;
    for (guint c = 0; c < set->num_classes; c++) {
        g_assert(simulation.clocks[c].step == STEPS); /* check excludes deadlocks */
        times[c] = clock_time(&simulation.clocks[c]);
    }
    meetings_clear(&simulation);
    for (guint c = 0; c < set->num_classes; c++)
        clock_clear(&simulation.clocks[c]);
    g_free(simulation.clocks);
    g_free(simulation.sample);
    g_free(simulation.idle);
}
