#include "sim/cost/clock.h"

#include <math.h>
#include <string.h>

enum { NOT_NOTED = G_MAXUINT };

static gboolean is_on(guint32 streams, guint stream)
{
    return (streams >> stream & 1) != 0;
}

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

static void time_ops(Clock *clock, const SimulateContext *context, const guint *spans,
                     double *const *durations)
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
            };
            if (!op_kind_is_communication(op->kind))
                continue;
            const LinkUse use = durations_link(program, op, context, spans);
            timed->volume = op_volume(op->kind);
            timed->link = MIN(use.level, MAX_LINKS - 1);
            timed->linked_s = use.seconds;
        }
}

/* By ordinal of an op: whether some call of its segment has it wait for another call, and whether
 * something waits for it. */
typedef struct {
    gboolean waits, awaited;
} Marks;

static Marks *mark_waits(const Clock *clock)
{
    const Program *program = clock->program;
    Marks *marks = g_new0(Marks, clock->first_timed[program->segments->len]);

    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            for (guint w = 0; w < op->num_waits; w++)
                marks[clock->first_timed[s] + op->waits[w]].awaited = TRUE;
        }
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);

        for (guint w = 0; w < call->num_waits; w++) {
            const Wait *wait = &g_array_index(program->step.waits, Wait, call->first_wait + w);
            const guint of = g_array_index(program->step.calls, Call, wait->call).segment;
            const guint op = wait_event(clock->first_op, wait) - clock->first_op[wait->call];

            marks[clock->first_timed[call->segment] + wait->before].waits = TRUE;
            marks[clock->first_timed[of] + op].awaited = TRUE;
        }
    }
    return marks;
}

/* Whether it starts when the compute op before it ends. */
static gboolean follows(const Timed *timed, const Marks *marks)
{
    return timed->op->stream == COMPUTE_STREAM && timed->op->num_waits == 0 && !marks->waits &&
           timed->class != OP_CLASS_OPTIMIZER;
}

/* Backwards: a run goes on with the next op's, but behind an op that something waits for. */
static void find_runs(Clock *clock)
{
    g_autofree Marks *marks = mark_waits(clock);

    for (guint s = 0; s < clock->program->segments->len; s++)
        for (guint i = clock->first_timed[s + 1]; i-- > clock->first_timed[s];) {
            Timed *timed = &clock->timed[i];

            if (!follows(timed, &marks[i]))
                continue;
            timed->run_ops = 1;
            if (marks[i].awaited || i + 1 == clock->first_timed[s + 1])
                continue;
            timed->run_ops += timed[1].run_ops;
        }
}

static guint lane_of(const Clock *clock, const Timed *timed)
{
    return clock->lane[timed->op->stream];
}

/* A link that one lane alone uses is never shared: that costs nothing. */
static void find_shared_links(Clock *clock)
{
    const guint num = clock->first_timed[clock->program->segments->len];
    guint32 lanes[MAX_LINKS] = {0}, sharing = 0;

    for (guint i = 0; i < num; i++)
        if (clock->timed[i].linked_s > 0)
            lanes[clock->timed[i].link] |= 1u << lane_of(clock, &clock->timed[i]);
    for (guint link = 0; link < MAX_LINKS; link++)
        sharing |= __builtin_popcount(lanes[link]) > 1 ? lanes[link] : 0;
    for (guint i = 0; i < num; i++) {
        Timed *timed = &clock->timed[i];

        timed->shares = is_on(sharing, lane_of(clock, timed));
        if (timed->linked_s > 0 && __builtin_popcount(lanes[timed->link]) == 1)
            timed->linked_s = 0;
    }
}

void clock_init(Clock *clock, const Program *program, const SimulateContext *context,
                const guint *spans, guint steps)
{
    const guint num = program->segments->len;
    double **durations = durations_new(program, context, spans);

    *clock = (Clock){
        .program = program,
        .before = g_new(Clock, 1),
        .files = program_file_streams(program),
        .steps = steps,
        .begun_s = {INFINITY, INFINITY},
    };
    find_lanes(clock);
    clock->first_op = program_first_ops(program);
    const guint32 ops_per_step = clock->first_op[program->step.calls->len];
    clock->end[0] = g_new0(double, ops_per_step);
    clock->end[1] = g_new0(double, ops_per_step);
    clock->first_timed = g_new0(guint, num + 1);
    for (guint s = 0; s < num; s++)
        clock->first_timed[s + 1] = clock->first_timed[s] + program_segment(program, s)->num_ops;
    clock->timed = g_new(Timed, clock->first_timed[num]);
    time_ops(clock, context, spans, durations);
    find_runs(clock);
    find_shared_links(clock);
    memset(clock->noted, 0xff, sizeof clock->noted); /* NOT_NOTED */
    durations_free(durations, program);
}

void clock_clear(Clock *clock)
{
    g_free(clock->before);
    g_free(clock->timed);
    g_free(clock->first_timed);
    g_free(clock->first_op);
    g_free(clock->end[0]);
    g_free(clock->end[1]);
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

double clock_ready(const Clock *clock, const Timed *timed, gboolean is_cpu)
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

static void note_op(Clock *clock, double start_s, double end_s, GArray *ops, guint class_index)
{
    const SimulatedOp done = {class_index, clock->next_call - 1, clock->op,
                              start_s - clock->step_start_s, end_s - clock->step_start_s};

    if (ops == NULL || clock->step < STEPS - 1)
        return;
    clock->noted[lane_of(clock, clock_timed(clock))] = ops->len;
    g_array_append_val(ops, done);
}

/* Seconds that the current op, from @start_s on, is late for what other lanes send. */
static double shared_delay_s(const Clock *clock, const Timed *timed, double start_s)
{
    double lost[MAX_STREAMS] = {0};

    return links_share(&clock->links, lane_of(clock, timed), timed->link, start_s, timed->linked_s,
                       lost);
}

double clock_delay_s(const Clock *clock, double start_s)
{
    const Timed *timed = clock_timed(clock);

    if (timed->linked_s == 0 || links_are_free(&clock->links, timed->link, start_s))
        return 0;
    return shared_delay_s(clock, timed, start_s);
}

/* The others are late for the current op: each lane's newest op ends later.  What has begun by the
 * end that it had stays, and so some steps send more than a link lets through: of 600 random ones
 * over slow links 5% at most in nine of ten ranks that fill a link to 0.8, and never more than 22%
 * (86% if nothing were shared). */
static void delay_others(Clock *clock, const Timed *timed, double start_s, GArray *ops)
{
    double lost[MAX_STREAMS] = {0};

    links_share(&clock->links, lane_of(clock, timed), timed->link, start_s, timed->linked_s, lost);
    for (guint lane = 0; lane < clock->program->streams->len; lane++) {
        if (lost[lane] == 0)
            continue;
        const double later_s = links_lose(&clock->links, lane, lost[lane]);
        *clock->newest[lane] += later_s;
        clock->stream_s[lane] += later_s;
        if (ops != NULL && clock->noted[lane] != NOT_NOTED)
            g_array_index(ops, SimulatedOp, clock->noted[lane]).end_s += later_s;
    }
}

/* The current op on the links, @delayed_s of it for others. */
static inline void use_link(Clock *clock, const Timed *timed, double start_s, double delayed_s,
                            GArray *ops)
{
    const guint lane = lane_of(clock, timed);

    clock->newest[lane] = &clock->call_end[clock->op];
    if (timed->linked_s == 0) {
        clock->links.runs[lane].slack_s += start_s - clock->stream_s[lane];
        return;
    }
    if (!links_are_free(&clock->links, timed->link, start_s))
        delay_others(clock, timed, start_s, ops);
    links_take(&clock->links, lane, timed->link, start_s, start_s + timed->linked_s + delayed_s,
               start_s <= clock->stream_s[lane]);
}

void clock_finish(Clock *clock, double start_s, double delayed_s, gboolean overlaps, GArray *ops,
                  guint class_index)
{
    const Timed *timed = clock_timed(clock);
    const double end_s = start_s + timed->took_s + delayed_s;

    clock->begun_s[0] = MIN(clock->begun_s[0], start_s);
    if (timed->shares)
        use_link(clock, timed, start_s, delayed_s, ops);
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
    /* threads take turns on a core: what runs now delays whatever is issued later; but to wait for
     * a disk takes none */
    if (!overlaps && !timed->copies_file)
        clock->issue_s = clock->queue_s = MAX(clock->issue_s, end_s);
    note_op(clock, start_s, end_s, ops, class_index);
    clock->arrived = FALSE;
    clock->op++;
}

gboolean clock_is_simple(const Clock *clock, gboolean is_cpu, gboolean overlaps)
{
    return !is_cpu && overlaps && clock->files == 0;
}

/* A step ends for the host with its last compute op (it reads the loss then). */
static void end_step(Clock *clock)
{
    double *end = clock->end[1];

    clock->end[1] = clock->end[0];
    clock->end[0] = end;
    clock->step_s = clock->last_compute_s - clock->step_start_s;
    clock->step_start_s = clock->last_compute_s;
    clock->begun_s[1] = clock->begun_s[0];
    clock->begun_s[0] = INFINITY;
    clock->next_call = clock->op = clock->num_ops = 0;
    clock->step++;
    if (clock->step == FEWER_STEPS - 1)
        *clock->before = *clock;
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

gboolean clock_settle(Clock *clock)
{
    while (clock->step < clock->steps) {
        if (clock->op < clock->num_ops)
            return TRUE;
        if (clock->next_call < clock->program->step.calls->len)
            start_call(clock);
        else
            end_step(clock);
    }
    return FALSE;
}

/* What the ops of a segment take. */
static void add_busy(const Clock *clock, guint segment, double calls, StepTime *time)
{
    for (guint i = clock->first_timed[segment]; i < clock->first_timed[segment + 1]; i++) {
        const Timed *timed = &clock->timed[i];

        time->busy_s[timed->spent_on] += calls * timed->took_s;
        if (timed->communicates)
            time->volume_s[timed->volume] += calls * timed->took_s;
    }
}

StepTime clock_time(const Clock *clock)
{
    const guint num = clock->program->segments->len;
    const GArray *calls = clock->program->step.calls;
    g_autofree guint *called = g_new0(guint, num);
    StepTime time = {.step_s = clock->step_s};

    for (guint c = 0; c < calls->len; c++)
        called[g_array_index(calls, Call, c).segment]++;
    for (guint s = 0; s < num; s++)
        add_busy(clock, s, called[s], &time);
    time.exposed_s = time.step_s;
    for (guint c = 0; c < OP_CLASS_COMMUNICATION; c++)
        time.exposed_s -= time.busy_s[c];
    time.exposed_s = MAX(time.exposed_s, 0);
    return time;
}
