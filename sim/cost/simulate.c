#include "sim/cost/simulate.h"

#include "sim/cost/collective.h"

#include <string.h>

enum { STEPS = 3 }; /* the first fills the pipe, the last is taken as steady */

/* ---- durations ---- */

guint *program_spans(const Program *program, const ProgramSpec *spec)
{
    guint *spans = g_new0(guint, program->groups->len + 1);

    for (guint g = 0; g < program->groups->len; g++)
        spans[g] = purpose_span(spec, g_array_index(program->groups, GroupRef, g).purpose);
    return spans;
}

static guint64 unit_elements(const Program *program, const Op *op)
{
    const UnitMap *map;
    guint64 most = 0;

    if (op->unit == NO_UNIT)
        return 0;
    map = program_unit(program, (guint)op->unit)->map;
    for (guint p = 0; p < map->num_params; p++) /* rank 0 holds the most of each */
        most += unit_map_span(map, p, 0).elements;
    return most;
}

static guint64 message_bytes(const Program *program, const Op *op)
{
    guint64 sent = 0, received = 0;

    for (guint i = 0; i < op->num_operands; i++) {
        const guint64 bytes = tensor_copy_bytes(program_tensor(program, op->operands[i].tensor));

        if (op->operands[i].access == ACCESS_READ)
            sent += bytes;
        else
            received += bytes;
    }
    return MAX(sent, received);
}

/* Bytes of the whole buffer that a collective is about. */
static guint64 buffer_bytes(const Program *program, const Op *op)
{
    const guint64 element_bytes = dtype_bytes(op->dtype);
    const Tensor *tensor = program_tensor(program, op->operands[0].tensor);

    if (op->kind == OP_EXCHANGE)
        return message_bytes(program, op);
    if (op->unit == NO_UNIT)
        return op->sizes.elements * element_bytes;
    const UnitMap *map = program_unit(program, (guint)op->unit)->map;
    if (op->kind != OP_ALL_REDUCE)
        return map->full_elements * element_bytes;
    if (op->operands[0].param != WHOLE_TENSOR)
        return map->pieces[op->operands[0].param].chunk * element_bytes;
    return (tensor->part == PART_WHOLE && map->ranks > 1 ? map->shard_elements : tensor->elements) *
           element_bytes;
}

static const Framework *framework_of(const SimulateContext *context)
{
    return context->topology->gpu.kind == DEVICE_CUDA ? framework_or_default(context->framework)
                                                      : framework_default();
}

static const char *stream_purpose(const Program *program, guint stream)
{
    const Stream *s = program_stream(program, stream);

    return s->kind == STREAM_COMMUNICATION
               ? g_array_index(program->groups, GroupRef, s->group).purpose
               : "";
}

/* Of a program's tokens, those that the residual stream has on this rank of its tp group; FALSE
 * when all. */
static gboolean splits_tokens(const Program *program)
{
    guint64 rows = 0, local = 0;

    for (guint t = 0; t < program->tensors->len; t++)
        if (strcmp(program_tensor(program, t)->name, "labels") == 0)
            rows = program_tensor(program, t)->elements;
    for (guint s = 0; s < program->segments->len && local == 0; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            if (op->kind == OP_RMSNORM || op->kind == OP_LAYERNORM)
                local = op->sizes.rows;
        }
    return local < rows;
}

static guint group_ranks(const Program *program, const char *purpose)
{
    for (guint g = 0; g < program->groups->len; g++)
        if (strcmp(g_array_index(program->groups, GroupRef, g).purpose, purpose) == 0)
            return g_array_index(program->groups, GroupRef, g).size;
    return 1;
}

/* Parts of a message between stages, of which each rank of a tp group sends its own. */
static guint message_parts(const Program *program, const Op *op, const Framework *framework)
{
    if (!framework->splits_messages || op->kind != OP_EXCHANGE ||
        strcmp(stream_purpose(program, op->stream), "pp") != 0 || splits_tokens(program))
        return 1;
    return group_ranks(program, "tp");
}

/* Broadcasts of all ranks' parts, each with a fixed cost, over as many units as there are. */
static double broadcast_seconds(const Program *program, const Op *op, const Framework *framework)
{
    guint units = 0;

    if (op->kind != OP_ALL_GATHER || op->unit == NO_UNIT)
        return 0;
    for (guint u = 0; u < program->units->len; u++)
        units += program_unit(program, u)->count;
    return framework->broadcast_s * op_group_size(program, op) / units;
}

static double communication_seconds(const Program *program, const Op *op,
                                    const SimulateContext *context, const guint *spans)
{
    const guint group = program_stream(program, op->stream)->group;
    const double share =
        framework_exposed(framework_of(context), stream_purpose(program, op->stream), op->kind);
    const CollectiveContext where = {
        .topology = context->topology,
        .ranks = op_group_size(program, op),
        .span = spans[group],
        .ranks_per_node = context->ranks_per_node,
    };

    const guint64 bytes =
        buffer_bytes(program, op) / message_parts(program, op, framework_of(context));
    return share * collective_seconds(op_volume(op->kind), bytes, op->dtype, &where) +
           broadcast_seconds(program, op, framework_of(context));
}

/* Adds time to the stream of compute: spread over its ops. */
static void stand_still(const Segment *segment, double seconds, double *durations)
{
    guint computes = 0;

    for (guint i = 0; i < segment->num_ops; i++)
        computes += segment->ops[i].stream == COMPUTE_STREAM ? 1 : 0;
    for (guint i = 0; i < segment->num_ops; i++)
        if (segment->ops[i].stream == COMPUTE_STREAM)
            durations[i] += seconds / computes;
}

static double all_seconds(const Segment *segment, const double *durations)
{
    double seconds = 0;

    for (guint i = 0; i < segment->num_ops; i++)
        seconds += durations[i];
    return seconds;
}

static gboolean has_products(const Segment *segment)
{
    for (guint i = 0; i < segment->num_ops; i++)
        if (segment->ops[i].kind == OP_LINEAR)
            return TRUE;
    return FALSE;
}

/* A block that is recomputed in full, its last product too: as long as its forward pass. */
static void repeat_forward(const Program *program, guint again, double **durations)
{
    static const char *const suffix = ".recompute";
    const Segment *segment = program_segment(program, again);

    if (!g_str_has_suffix(segment->name, suffix) || !has_products(segment))
        return;
    g_autofree char *unit = g_strndup(segment->name, strlen(segment->name) - strlen(suffix));
    g_autofree char *name = g_strconcat(unit, ".forward", NULL);
    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *forward = program_segment(program, s);

        if (strcmp(forward->name, name) == 0)
            stand_still(
                segment,
                MAX(0, all_seconds(forward, durations[s]) - all_seconds(segment, durations[again])),
                durations[again]);
    }
}

/* A pass over a block whose kernels run faster than the host issues them waits for it: the stream
 * of compute stands still for the rest. */
static void wait_for_host(const Segment *segment, const Framework *framework, double *durations)
{
    const gboolean forward = g_str_has_suffix(segment->name, ".forward") ||
                             g_str_has_suffix(segment->name, ".recompute");
    const gboolean is_pass = forward || g_str_has_suffix(segment->name, ".backward");
    const double host_s = forward ? framework->host_forward_s : framework->host_backward_s;
    const gboolean is_block =
        g_str_has_prefix(segment->name, "block") || g_str_has_prefix(segment->name, "sparse");

    if (host_s > 0 && is_pass && is_block)
        stand_still(segment, MAX(0, host_s - all_seconds(segment, durations)), durations);
}

/**
 * copy_seconds: one way between the device and another tier.
 *
 *     t = a + S / B
 *
 *     a, B  latency and bandwidth that the topology states for one GPU     S  bytes
 *
 * Both directions at once don't slow each other; ranks of a node don't either.
 */
static double copy_seconds(const Program *program, const Op *op, const Topology *topology)
{
    const Tensor *from = program_tensor(program, op->operands[0].tensor);
    const Tensor *to = program_tensor(program, op->operands[1].tensor);
    MemoryTier memory;

    if (!topology_memory(topology, from->tier != TIER_DEVICE ? from->tier : to->tier, &memory))
        g_assert_not_reached(); /* a plan's tiers are looked up before */
    return memory.latency_s + (double)tensor_copy_bytes(from) / memory.bytes_per_s;
}

static double op_seconds(const Program *program, const Op *op, const SimulateContext *context,
                         const guint *spans)
{
    const ComputeContext compute = {
        .busy = context->ranks_per_node,
        .threads = context->threads,
        .cores = context->topology->gpus_per_node,
        .unit_elements = unit_elements(program, op),
        .context_ranks = group_ranks(program, "cp"),
        .framework = framework_of(context),
    };

    if (op->stream != COMPUTE_STREAM && context->free_communication)
        return 0;
    if (op->kind == OP_COPY)
        return copy_seconds(program, op, context->topology);
    return op_kind_is_communication(op->kind) ? communication_seconds(program, op, context, spans)
                                              : compute_op_seconds(op, context->topology, &compute);
}

double **simulate_durations(const Program *program, const SimulateContext *context,
                            const guint *spans)
{
    double **durations = g_new(double *, program->segments->len);

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        durations[s] = g_new(double, segment->num_ops + 1);
        for (guint i = 0; i < segment->num_ops; i++)
            durations[s][i] = op_seconds(program, &segment->ops[i], context, spans);
        wait_for_host(segment, framework_of(context), durations[s]);
    }
    for (guint s = 0; framework_of(context)->recomputes_all && s < program->segments->len; s++)
        repeat_forward(program, s, durations);
    return durations;
}

void simulate_durations_free(double **durations, const Program *program)
{
    for (guint s = 0; s < program->segments->len; s++)
        g_free(durations[s]);
    g_free(durations);
}

gboolean simulate_overlaps(const SimulateContext *context)
{
    if (context->topology->gpu.kind == DEVICE_CUDA)
        return TRUE;
    return context->ranks_per_node * (context->threads + 1) <= context->topology->gpus_per_node;
}

/* ---- clocks ---- */

/* Virtual time of one simulated rank. */
typedef struct {
    const Program *program;
    double **durations;
    guint32 *first_op;            /* program_first_ops() */
    double *end[2];               /* by op: when it ended in this step, in the one before */
    double stream_s[MAX_STREAMS]; /* when the newest op of a stream ends */
    double blocks[MAX_STREAMS];   /* seconds that compute loses a second of that stream's */
    double owed_s;                /* of them, what it loses before the optimiser: to reductions */
    double issue_s;               /* when the issuing thread is free (CPU) */
    double queue_s;               /* when the communication thread is free (CPU) */
    double last_compute_s;        /* end of the newest compute op */
    double step_start_s;
    StepTime time;
    /* the op under way */
    guint step, call, op;
    double ready_s;
    gboolean arrived; /* at a collective, waiting for the others */
} Clock;

static void clock_init(Clock *clock, const Program *program, const SimulateContext *context,
                       double **durations)
{
    *clock = (Clock){.program = program, .durations = durations};
    clock->first_op = program_first_ops(program);
    const guint32 ops_per_step = clock->first_op[program->step.calls->len];
    clock->end[0] = g_new0(double, ops_per_step);
    clock->end[1] = g_new0(double, ops_per_step);
    for (guint s = 0; s < program->streams->len; s++)
        clock->blocks[s] =
            framework_blocks(framework_of(context), program_stream(program, s)->name);
}

static void clock_clear(Clock *clock)
{
    g_free(clock->first_op);
    g_free(clock->end[0]);
    g_free(clock->end[1]);
}

static const Call *current_call(const Clock *clock)
{
    return &g_array_index(clock->program->step.calls, Call, clock->call);
}

static const Op *current_op(const Clock *clock)
{
    return &program_segment(clock->program, current_call(clock)->segment)->ops[clock->op];
}

/* The earliest start of the current op by its stream, its waits and the threads that it needs. */
static double ready(const Clock *clock, gboolean is_cpu)
{
    const Call *call = current_call(clock);
    const Op *op = current_op(clock);
    const CallList *list = &clock->program->step;
    double at = clock->stream_s[op->stream];

    if (op_class(op->kind) == OP_CLASS_OPTIMIZER)
        at += clock->owed_s;
    for (guint w = 0; w < op->num_waits; w++)
        at = MAX(at, clock->end[0][clock->first_op[clock->call] + op->waits[w]]);
    for (guint w = 0; w < call->num_waits; w++) {
        const Wait *wait = &g_array_index(list->waits, Wait, call->first_wait + w);

        if (wait->before == clock->op && (wait->back == 0 || clock->step > 0))
            at = MAX(at, clock->end[wait->back][wait_event(clock->first_op, wait)]);
    }
    if (is_cpu) /* issued when the main thread comes by, run when its own thread is free */
        at = MAX(at, MAX(clock->issue_s, op->stream == COMPUTE_STREAM ? 0 : clock->queue_s));
    return at;
}

/* A cast before a gather, a sum after a reduction: on a stream of communication, part of it. */
static OpClass spent_on(const Op *op)
{
    return op->stream == COMPUTE_STREAM ? op_class(op->kind) : OP_CLASS_COMMUNICATION;
}

/* Of compute's time, to traffic.  What reductions take of it counts once all backward passes are
 * done: before, other stages would wait for it one after the other, and no framework does that. */
static void lose(Clock *clock, const Op *op, double seconds)
{
    if (op->kind == OP_ALL_GATHER)
        clock->stream_s[COMPUTE_STREAM] += seconds;
    else
        clock->owed_s += seconds;
}

/* Ends the current op and takes the rank to the next one. */
static void finish(Clock *clock, double start_s, gboolean overlaps, GArray *ops, guint class_index)
{
    const Op *op = current_op(clock);
    const double took = clock->durations[current_call(clock)->segment][clock->op];
    const double end_s = start_s + took;

    clock->end[0][clock->first_op[clock->call] + clock->op] = end_s;
    clock->stream_s[op->stream] = end_s;
    if (op->stream == COMPUTE_STREAM) {
        clock->issue_s = clock->last_compute_s = end_s;
    } else {
        clock->queue_s = end_s;
        lose(clock, op, clock->blocks[op->stream] * took);
    }
    if (op_class(op->kind) == OP_CLASS_OPTIMIZER)
        clock->owed_s = 0;
    clock->time.busy_s[spent_on(op)] += took;
    if (!overlaps) /* threads take turns on a core: what runs now delays whatever is issued later */
        clock->issue_s = clock->queue_s = MAX(clock->issue_s, end_s);
    if (ops != NULL && clock->step == STEPS - 1) {
        const SimulatedOp done = {class_index, clock->call, clock->op,
                                  start_s - clock->step_start_s, end_s - clock->step_start_s};

        g_array_append_val(ops, done);
    }
    clock->arrived = FALSE;
    clock->op++;
}

/* A step ends for the host with its last compute op (it reads the loss then). */
static void end_step(Clock *clock)
{
    double *end = clock->end[1];

    clock->end[1] = clock->end[0];
    clock->end[0] = end;
    clock->time.step_s = clock->last_compute_s - clock->step_start_s;
    clock->step_start_s = clock->last_compute_s;
    clock->call = clock->op = 0;
    clock->step++;
    if (clock->step < STEPS)
        memset(clock->time.busy_s, 0, sizeof clock->time.busy_s);
}

/* FALSE when all steps are done. */
static gboolean settle(Clock *clock)
{
    while (clock->step < STEPS) {
        if (clock->call == clock->program->step.calls->len) {
            end_step(clock);
            continue;
        }
        if (clock->op < program_segment(clock->program, current_call(clock)->segment)->num_ops)
            return TRUE;
        clock->call++;
        clock->op = 0;
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
    double **durations = simulate_durations(program, context, spans);
    const gboolean overlaps = simulate_overlaps(context);
    const gboolean is_cpu = context->topology->gpu.kind == DEVICE_CPU;
    Clock clock;

    clock_init(&clock, program, context, durations);
    while (settle(&clock))
        finish(&clock, ready(&clock, is_cpu), overlaps, NULL, 0);
    const StepTime time = clock_time(&clock);
    clock_clear(&clock);
    simulate_durations_free(durations, program);
    return time;
}

/* ---- several classes ---- */

enum { NOBODY = G_MAXUINT };

/* Whom a class meets, looked up once an op. */
typedef struct {
    guint *first_op; /* by segment: ordinal of its first op among those of all segments */
    guint **met;     /* by that ordinal: classes in their order, its own too, then NOBODY; NULL:
                        not yet looked up */
    guint name[MAX_STREAMS]; /* by stream: of its name */
} Meeting;

typedef struct {
    const ProgramSet *set;
    Clock *clocks; /* by class */
    guint *sample; /* by class: the rank that stands for it */
    gboolean is_cpu, overlaps;
    GArray *ops;
    Meeting *meetings; /* by class */
    GPtrArray *names;  /* of streams: classes number theirs each for itself */
    GArray **arrivals; /* by class, partner, stream's name: when it reached each of their
                          exchanges */
} Simulation;

/* As CollectiveContext counts it: stride * ranks, the gap after the last member included. */
static guint span_of(const Group *group)
{
    guint low = G_MAXUINT, high = 0;

    if (group->size == 1)
        return 1;
    for (guint i = 0; i < group->size; i++) {
        low = MIN(low, group->ranks[i]);
        high = MAX(high, group->ranks[i]);
    }
    return (high - low + group->size - 2) / (group->size - 1) * group->size;
}

/* Whether @op of the rank at position @own of a group of @size has to do with @peer. */
static gboolean sends_between(const Op *op, guint own, guint peer, guint size)
{
    for (guint i = 0; i < op->num_operands; i++)
        if ((own + op->messages[i].peer_shift) % size == peer)
            return TRUE;
    return FALSE;
}

/* Whether @other must be at its part of the collective that @mine has reached. */
static gboolean is_partner(const Simulation *simulation, guint mine, guint other)
{
    const Program *program = simulation->clocks[mine].program;
    const Op *op = current_op(&simulation->clocks[mine]);
    const Group *group = program_set_group(simulation->set, stream_purpose(program, op->stream),
                                           simulation->sample[mine]);
    const guint own = group == NULL ? 0 : group_position(group, simulation->sample[mine]);

    for (guint i = 0; group != NULL && i < group->size; i++) {
        if (simulation->set->class_of[group->ranks[i]] != other)
            continue;
        if (op->kind != OP_EXCHANGE || sends_between(op, own, i, group->size))
            return TRUE;
    }
    return FALSE;
}

/* The classes of the current op of @mine, in order. */
static const guint *met_by(const Simulation *simulation, guint mine)
{
    const Clock *clock = &simulation->clocks[mine];
    const Meeting *meeting = &simulation->meetings[mine];
    guint **met = &meeting->met[meeting->first_op[current_call(clock)->segment] + clock->op];
    guint num = 0;

    if (*met != NULL)
        return *met;
    *met = g_new(guint, simulation->set->num_classes + 1);
    for (guint c = 0; c < simulation->set->num_classes; c++)
        if (c == mine || is_partner(simulation, mine, c))
            (*met)[num++] = c;
    (*met)[num] = NOBODY;
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
    for (const guint *met = met_by(simulation, mine); *met != NOBODY; met++)
        finish(&simulation->clocks[*met], start_s, simulation->overlaps, simulation->ops, *met);
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

    for (const guint *met = met_by(simulation, mine); *met != NOBODY; met++)
        if (*met != mine)
            g_array_append_val(arrivals_of(simulation, mine, *met, name), clock->ready_s);
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
    gboolean moved = FALSE;

    while (settle(clock)) {
        if (!clock->arrived) {
            clock->ready_s = ready(clock, simulation->is_cpu);
            clock->arrived = op_kind_is_communication(current_op(clock)->kind);
            if (current_op(clock)->kind == OP_EXCHANGE)
                note_arrival(simulation, c);
            moved = TRUE;
        }
        if (!clock->arrived)
            finish(clock, clock->ready_s, simulation->overlaps, simulation->ops, c);
        else if (!communicate(simulation, c))
            return moved;
        moved = TRUE;
    }
    return moved;
}

static double **class_durations(const Simulation *simulation, const SimulateContext *context,
                                guint c)
{
    const Program *program = simulation->set->classes[c];
    g_autofree guint *spans = g_new0(guint, program->groups->len + 1);

    for (guint g = 0; g < program->groups->len; g++)
        spans[g] = span_of(program_set_group(simulation->set,
                                             g_array_index(program->groups, GroupRef, g).purpose,
                                             simulation->sample[c]));
    return simulate_durations(program, context, spans);
}

static void meetings_init(Simulation *simulation)
{
    simulation->meetings = g_new0(Meeting, simulation->set->num_classes);
    simulation->names = g_ptr_array_new();
    for (guint c = 0; c < simulation->set->num_classes; c++) {
        const Program *program = simulation->set->classes[c];
        Meeting *meeting = &simulation->meetings[c];
        guint ops = 0;

        meeting->first_op = g_new(guint, program->segments->len);
        for (guint s = 0; s < program->segments->len; s++) {
            meeting->first_op[s] = ops;
            ops += program_segment(program, s)->num_ops;
        }
        meeting->met = g_new0(guint *, ops + 1);
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
        const Program *program = simulation->set->classes[c];
        const guint last = program->segments->len - 1;
        const Meeting *meeting = &simulation->meetings[c];

        for (guint i = 0; i < meeting->first_op[last] + program_segment(program, last)->num_ops;
             i++)
            g_free(meeting->met[i]);
        g_free(meeting->met);
        g_free(meeting->first_op);
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
        .is_cpu = context->topology->gpu.kind == DEVICE_CPU,
        .overlaps = simulate_overlaps(context),
        .ops = ops,
    };
    gboolean moved = TRUE;

    meetings_init(&simulation);
    for (guint rank = set->num_ranks; rank-- > 0;)
        simulation.sample[set->class_of[rank]] = rank;
    for (guint c = 0; c < set->num_classes; c++)
        clock_init(&simulation.clocks[c], set->classes[c], context,
                   class_durations(&simulation, context, c));
    while (moved) {
        moved = FALSE;
        for (guint c = 0; c < set->num_classes; c++)
            moved |= advance(&simulation, c);
    }
    for (guint c = 0; c < set->num_classes; c++) {
        g_assert(simulation.clocks[c].step == STEPS); /* check excludes deadlocks */
        times[c] = clock_time(&simulation.clocks[c]);
        simulate_durations_free(simulation.clocks[c].durations, set->classes[c]);
        clock_clear(&simulation.clocks[c]);
    }
    meetings_clear(&simulation);
    g_free(simulation.clocks);
    g_free(simulation.sample);
}
