/* The main thread walks the calls: compute ops run at once, communication ops go to the
 * communication thread's queue.  Jobs run in the order of issue, which every wait respects (check
 * proves that it can't deadlock).
 *
 * On a device without queues (a CPU) an op that was issued earlier on the main thread is done, so
 * only compute ops wait, for jobs of the queue.  On one with queues the main thread waits for such
 * a job as well: until the communication thread has enqueued the op, or, where its communicator
 * moves host memory, has finished it.  That is the only waiting of the host inside a step; all
 * waits of the program are the device's, by events. */
#include "exec/run/interpreter.h"

#include "exec/base/process.h"
#include "exec/run/agreement.h"
#include "exec/run/checker.h"
#include "exec/run/op_events.h"
#include "exec/run/op_number.h"
#include "exec/run/staging.h"
#include "exec/run/stream_groups.h"
#include "exec/run/transfer.h"
#include "sim/base/error.h"

#include <string.h>

static const guint32 POISON = 0xFFA5FFA5u; /* a NaN as fp32, two NaNs as bf16 */

/* An op for the communication thread. */
typedef struct {
    Interpreter *interpreter;
    Launch launch;
    guint stream, micro_batch;
    guint64 at;       /* progress_at() */
    OpTime *time;     /* NULL: not sampled */
    const Call *call; /* NULL: not in a step */
    guint op;         /* in its segment */
    guint32 number;   /* in the step */
    guint64 step;
} Job;

struct Interpreter {
    InterpreterOptions options;
    Runtime *runtime;
    const ProgramSet *set;
    const Program *program;
    guint rank;
    CommGroup *groups[MAX_STREAMS]; /* by stream */
    guint map_rank;                 /* position among the ranks that share a unit */
    guint8 *arena;                  /* the device's memory */
    guint64 arena_bytes;
    guint64 *offset;   /* by tensor; the program's, unless there is a guard */
    ArenaGuard *guard; /* these three: of check mode, else NULL */
    Checker *checker;
    Agreement *agreement;
    GError *found;        /* by check mode, on the main thread */
    OpEvents *events;     /* NULL: the device has no queues */
    gboolean on_device;   /* the communicator only enqueues */
    Staging *staging;     /* NULL: the communicator takes the device's memory */
    CommRun **own_chunks; /* by unit class, one a piece: made once, a step allocates nothing */
    guint32 *first_op;    /* by call of the step */
    OpNumbers numbers;
    guint64 ops_per_step;
    guint64
        *ordinals[2]; /* by op of this step and of the one before: its job in the queue; 0 = none */
    OpTime *times;
    gboolean sampled;
    gboolean primed; /* the prologue has run */
    double step_start_s;
    guint64 step;
};

/* ---- operands ---- */

void *interpreter_tensor(Interpreter *interpreter, guint tensor, guint copy)
{
    const Tensor *at = program_tensor(interpreter->program, tensor);

    return interpreter->arena + interpreter->offset[tensor] + copy * at->stride;
}

void interpreter_write(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                       const void *from)
{
    guint8 *at = interpreter_tensor(interpreter, tensor, copy);

    device_write(runtime_device(interpreter->runtime), at + range.offset, from, range.bytes);
}

void interpreter_read(Interpreter *interpreter, guint tensor, guint copy, TensorRange range,
                      void *to)
{
    const guint8 *at = interpreter_tensor(interpreter, tensor, copy);

    device_read(runtime_device(interpreter->runtime), to, at + range.offset, range.bytes);
}

static void resolve(Interpreter *interpreter, const Call *call, const Op *op, Launch *launch)
{
    const Program *program = interpreter->program;

    launch->op = op;
    launch->stream = op->stream;
    launch->first = call->first;
    launch->map_rank = interpreter->map_rank;
    launch->map = op->unit == NO_UNIT ? NULL : program_unit(program, (guint)op->unit)->map;
    if (launch->map != NULL && launch->map->ranks == 1)
        launch->map_rank = 0;
    for (guint i = 0; i < op->num_operands; i++) {
        const Operand *operand = &op->operands[i];
        const Tensor *tensor = program_tensor(program, operand->tensor);
        guint8 *at =
            interpreter_tensor(interpreter, operand->tensor, operand_copy(program, call, operand));

        if (operand->param != WHOLE_TENSOR && op->unit == NO_UNIT)
            at += program_unit(program, (guint)tensor->unit)
                      ->map->params[operand->param]
                      .full_offset *
                  dtype_bytes(tensor->dtype);
        launch->operand[i] = at;
        launch->part[i] = tensor->part;
    }
    launch->predicate = op->predicate == NO_TENSOR || interpreter->events == NULL
                            ? NULL
                            : interpreter_tensor(interpreter, (guint)op->predicate, 0);
}

/* A device with queues looks itself, when it comes to the op. */
static gboolean is_skipped(Interpreter *interpreter, const Op *op)
{
    if (op->predicate == NO_TENSOR || interpreter->events != NULL)
        return FALSE;
    return *(const double *)interpreter_tensor(interpreter, (guint)op->predicate, 0) == 0.0;
}

/* ---- the communication thread ---- */

/* A cast before a gather or a sum after a reduction is the device's. */
static gboolean run_transfer(const Interpreter *interpreter, const Job *job, GError **error)
{
    const Transfer transfer = {interpreter->program, interpreter->groups[job->stream],
                               interpreter->own_chunks, job->micro_batch};
    Launch host;

    if (!op_kind_is_communication(job->launch.op->kind)) {
        device_run(runtime_device(interpreter->runtime), &job->launch);
        return TRUE;
    }
    if (interpreter->staging == NULL)
        return transfer_run(&transfer, &job->launch, error);
    return staging_in(interpreter->staging, &transfer, &job->launch, &host, error) &&
           transfer_run(&transfer, &host, error) &&
           staging_out(interpreter->staging, &transfer, &job->launch, &host, error);
}

/* The job of a step on a device with queues. */
static gboolean run_between_events(const Interpreter *interpreter, const Job *job, GError **error)
{
    OpEvents *events = interpreter->events;

    op_events_wait(events, job->step, job->call, job->op);
    if (job->time != NULL)
        op_events_begin(events, job->number, job->stream);
    if (!run_transfer(interpreter, job, error))
        return FALSE;
    if (job->time != NULL)
        op_events_end(events, job->number, job->stream);
    op_events_record(events, job->step, job->number, job->stream);
    return TRUE;
}

/* In check mode, members first compare what they are about to do.  Those that differ do nothing:
 * the main thread says so when it looks next. */
static gboolean run_op(const Interpreter *interpreter, const Job *job, GError **error)
{
    gboolean same = TRUE;

    if (interpreter->checker == NULL)
        return run_transfer(interpreter, job, error);
    checker_delay(interpreter->checker, job->at, 0);
    if (op_kind_is_communication(job->launch.op->kind) &&
        !agreement_reach(interpreter->agreement, interpreter->groups[job->stream], job->at, &same,
                         error))
        return FALSE;
    if (same && !run_transfer(interpreter, job, error))
        return FALSE;
    checker_delay(interpreter->checker, job->at, 1);
    return TRUE;
}

static gboolean run_job(Comm *comm, gconstpointer data, GError **error)
{
    const Job *job = data;
    const Interpreter *interpreter = job->interpreter;
    const gboolean has_events = interpreter->events != NULL && job->call != NULL;
    const double step_start = job->interpreter->step_start_s;
    const double start = clock_s();

    progress_begin(&comm->progress, LANE_COMMUNICATION, job->at);
    if (!(has_events ? run_between_events : run_op)(interpreter, job, error)) {
        g_prefix_error(error, "%s: ", op_kind_name(job->launch.op->kind));
        return FALSE;
    }
    progress_end(&comm->progress, LANE_COMMUNICATION);
    if (job->time != NULL)
        *job->time = (OpTime){start - step_start, clock_s() - step_start};
    return TRUE;
}

static guint64 post(Interpreter *interpreter, const Job *job)
{
    G_STATIC_ASSERT(sizeof *job <= RUNTIME_JOB_BYTES);
    return runtime_post(interpreter->runtime, run_job, job, sizeof *job);
}

/* ---- setting up ---- */

static gboolean open_arena(Comm *comm, gconstpointer job, GError **error)
{
    Interpreter *interpreter = *(Interpreter *const *)job;

    Device *device = runtime_device(interpreter->runtime);
    const guint64 bytes = interpreter->arena_bytes;
    const DeviceQueueOps *queues = device_queues(device);

    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(0, PROGRESS_OPEN));
    interpreter->arena =
        queues == NULL ? comm->ops->alloc(comm, bytes, error) : queues->alloc(device, bytes, error);
    const gboolean ok = interpreter->arena != NULL &&
                        stream_groups_open(interpreter->set, comm, interpreter->groups, error);
    progress_end(&comm->progress, LANE_COMMUNICATION);
    if (!ok)
        return FALSE;
    for (guint s = 0; s < MAX_STREAMS; s++)
        if (interpreter->groups[s] != NULL)
            interpreter->groups[s]->stream = s;
    interpreter->on_device = comm->ops->takes_device_memory;
    if (queues == NULL || comm->ops->takes_device_memory)
        return TRUE;
    interpreter->staging = staging_new(device, comm, interpreter->program, error);
    return interpreter->staging != NULL;
}

static void count_ops(Interpreter *interpreter)
{
    interpreter->first_op = program_first_ops(interpreter->program);
    interpreter->numbers = op_numbers(interpreter->program);
    interpreter->ops_per_step = interpreter->first_op[interpreter->program->step.calls->len];
    interpreter->ordinals[0] = g_new0(guint64, interpreter->ops_per_step);
    interpreter->ordinals[1] = g_new0(guint64, interpreter->ops_per_step);
    interpreter->times = g_new0(OpTime, interpreter->ops_per_step);
}

/* State is zeroed, padding included; the rest keeps the poison until something is written. */
static void fill_arena(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    Device *device = runtime_device(interpreter->runtime);

    device_fill(device, interpreter->arena, POISON, interpreter->arena_bytes);
    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const guint copies = g_array_index(program->spaces, Space, tensor->space).count;

        for (guint c = 0; tensor->persistence == PERSIST_STATE && c < copies; c++)
            device_fill(device, interpreter_tensor(interpreter, t, c), 0,
                        tensor_copy_bytes(tensor));
    }
}

/* Where tensors lie, and what check mode needs. */
static void lay_out(Interpreter *interpreter)
{
    const Program *program = interpreter->program;
    const gboolean check = interpreter->options.check;

    if (check) {
        interpreter->guard = arena_guard_new(program);
        interpreter->checker =
            checker_new(program, interpreter->guard, interpreter->rank, interpreter->options.seed);
        interpreter->agreement = agreement_new(interpreter->set, interpreter->rank);
    }
    interpreter->arena_bytes =
        check ? arena_guard_bytes(interpreter->guard) : program->arena_bytes[TIER_DEVICE];
    interpreter->offset = g_new(guint64, program->tensors->len);
    for (guint t = 0; t < program->tensors->len; t++)
        interpreter->offset[t] =
            check ? arena_guard_offset(interpreter->guard, t) : program_tensor(program, t)->offset;
}

static gboolean open_events(Interpreter *interpreter, GError **error)
{
    Device *device = runtime_device(interpreter->runtime);

    if (device_queues(device) == NULL)
        return TRUE;
    interpreter->events = op_events_new(device, interpreter->program, interpreter->first_op, error);
    return interpreter->events != NULL;
}

Interpreter *interpreter_new(Runtime *runtime, const ProgramSet *set, GError **error)
{
    const InterpreterOptions options = {0};

    return interpreter_new_with(runtime, set, &options, error);
}

Interpreter *interpreter_new_with(Runtime *runtime, const ProgramSet *set,
                                  const InterpreterOptions *options, GError **error)
{
    g_autoptr(Interpreter) interpreter = g_new0(Interpreter, 1);
    Interpreter *self = interpreter;

    interpreter->runtime = runtime;
    if (runtime_size(runtime) != set->num_ranks) {
        fail(error, ERROR_INPUT, "the plan has %u ranks, this job %u", set->num_ranks,
             runtime_size(runtime));
        return NULL;
    }
    interpreter->options = *options;
    if (options->check && device_queues(runtime_device(runtime)) != NULL) {
        fail(error, ERROR_INPUT, "--check follows what a CPU does; this plan's device is another");
        return NULL;
    }
    interpreter->set = set;
    interpreter->rank = runtime_rank(runtime);
    interpreter->program = set->classes[set->class_of[interpreter->rank]];
    const Group *shard = program_set_group(set, "shard", interpreter->rank);
    interpreter->map_rank = shard == NULL ? 0 : group_position(shard, interpreter->rank);
    interpreter->own_chunks = transfer_own_chunks(interpreter->program, interpreter->map_rank);
    count_ops(interpreter);
    lay_out(interpreter);
    if (!runtime_do(runtime, open_arena, &self, sizeof self, error) ||
        !open_events(interpreter, error))
        return NULL;
    fill_arena(interpreter);
    if (interpreter->guard != NULL)
        arena_guard_attach(interpreter->guard, interpreter->arena, POISON);
    return g_steal_pointer(&interpreter);
}

/* What jobs may still use is used no more. */
static void close_device(Interpreter *interpreter)
{
    Device *device = runtime_device(interpreter->runtime);
    g_autoptr(GError) why = NULL;

    if (device_queues(device) == NULL)
        return;
    if (interpreter->events != NULL && !op_events_sync(interpreter->events, &why))
        g_debug("closing the interpreter: %s", why->message);
    op_events_free(interpreter->events);
    staging_free(interpreter->staging);
    if (interpreter->arena != NULL)
        device_queues(device)->release(device, interpreter->arena);
}

void interpreter_free(Interpreter *interpreter)
{
    if (interpreter == NULL)
        return;
    close_device(interpreter);
    transfer_own_chunks_free(interpreter->own_chunks, interpreter->program);
    g_free(interpreter->first_op);
    g_free(interpreter->ordinals[0]);
    g_free(interpreter->ordinals[1]);
    g_free(interpreter->times);
    g_free(interpreter->offset);
    checker_free(interpreter->checker);
    arena_guard_free(interpreter->guard);
    agreement_free(interpreter->agreement);
    g_clear_error(&interpreter->found);
    g_free(interpreter);
}

/* ---- running ---- */

/* For op @number of this step or (@back = 1) the one before.  Only what computes waits: the queue
 * keeps the order of issue. */
static gboolean wait_event_of(Interpreter *interpreter, const Op *op, guint back, guint32 number)
{
    if (interpreter->checker != NULL)
        checker_join(interpreter->checker, progress_at(interpreter->step - back, number));
    return op->stream != COMPUTE_STREAM ||
           runtime_wait(interpreter->runtime, interpreter->ordinals[back][number]);
}

/* Of a call of the step, before its op @i. */
static gboolean wait_for(Interpreter *interpreter, const Call *call, const Op *op, guint i)
{
    const GArray *waits = interpreter->program->step.waits;

    for (guint w = 0; w < call->num_waits; w++) {
        const Wait *wait = &g_array_index(waits, Wait, call->first_wait + w);

        if (wait->before == i &&
            !wait_event_of(interpreter, op, wait->back, wait_event(interpreter->first_op, wait)))
            return FALSE;
    }
    return TRUE;
}

static gboolean wait_within(Interpreter *interpreter, const Op *op, guint32 first)
{
    for (guint w = 0; w < op->num_waits; w++)
        if (!wait_event_of(interpreter, op, 0, first + op->waits[w]))
            return FALSE;
    return TRUE;
}

/* Check mode: what the op touches, with the waits that were made.  FALSE with the problem in
 * `found`. */
static gboolean access_is_safe(Interpreter *interpreter, const Call *call, const Op *op, guint64 at)
{
    return agreement_holds(interpreter->agreement, &interpreter->found) &&
           checker_access(interpreter->checker, at, call, op, &interpreter->found);
}

static gboolean begin_op(Interpreter *interpreter, const Call *call, guint i, guint32 first)
{
    const Op *op = &program_segment(interpreter->program, call->segment)->ops[i];
    Checker *checker = interpreter->checker;

    if (checker != NULL)
        checker_begin(checker, op->stream);
    if ((checker != NULL || op->stream == COMPUTE_STREAM) &&
        (!wait_for(interpreter, call, op, i) || !wait_within(interpreter, op, first)))
        return FALSE;
    return checker == NULL ||
           access_is_safe(interpreter, call, op, progress_at(interpreter->step, first + i));
}

static void compute(Interpreter *interpreter, const Call *call, const Op *op, guint64 at,
                    OpTime *time)
{
    Device *device = runtime_device(interpreter->runtime);
    Launch launch;

    if (is_skipped(interpreter, op))
        return;
    resolve(interpreter, call, op, &launch);
    if (interpreter->checker != NULL)
        checker_delay(interpreter->checker, at, 0);
    if (time == NULL) {
        device_run(device, &launch);
        return;
    }
    const double start = clock_s();
    device_run(device, &launch);
    *time = (OpTime){start - interpreter->step_start_s, clock_s() - interpreter->step_start_s};
}

/* The same on a device with queues. */
static void enqueue(Interpreter *interpreter, const Call *call, guint i, guint32 number,
                    gboolean sample)
{
    const Op *op = &program_segment(interpreter->program, call->segment)->ops[i];
    OpEvents *events = interpreter->events;
    Launch launch;

    op_events_wait(events, interpreter->step, call, i);
    resolve(interpreter, call, op, &launch);
    if (sample)
        op_events_begin(events, number, op->stream);
    device_run(runtime_device(interpreter->runtime), &launch);
    if (sample)
        op_events_end(events, number, op->stream);
    op_events_record(events, interpreter->step, number, op->stream);
}

static gboolean run_call(Interpreter *interpreter, guint c, gboolean sample)
{
    const Program *program = interpreter->program;
    const Call *call = &g_array_index(program->step.calls, Call, c);
    const Segment *segment = program_segment(program, call->segment);
    const guint32 first = interpreter->first_op[c];

    for (guint i = 0; i < segment->num_ops; i++) {
        const Op *op = &segment->ops[i];
        OpTime *time = sample ? &interpreter->times[first + i] : NULL;
        Job job = {.interpreter = interpreter,
                   .stream = op->stream,
                   .micro_batch = call->micro_batch,
                   .at = progress_at(interpreter->step, first + i),
                   .time = time,
                   .call = call,
                   .op = i,
                   .number = first + i,
                   .step = interpreter->step};

        interpreter->ordinals[0][first + i] = 0;
        if (op->stream == COMPUTE_STREAM) {
            runtime_begin(interpreter->runtime, job.at);
            if (!begin_op(interpreter, call, i, first))
                return FALSE;
            if (interpreter->events != NULL)
                enqueue(interpreter, call, i, first + i, sample);
            else
                compute(interpreter, call, op, job.at, time);
            runtime_end(interpreter->runtime);
            continue;
        }
        if (!begin_op(interpreter, call, i, first))
            return FALSE;
        if (is_skipped(interpreter, op))
            continue;
        resolve(interpreter, call, op, &job.launch);
        interpreter->ordinals[0][first + i] = post(interpreter, &job);
        if (interpreter->ordinals[0][first + i] == 0 ||
            (interpreter->options.no_overlap &&
             !runtime_wait(interpreter->runtime, interpreter->ordinals[0][first + i])))
            return FALSE;
    }
    return TRUE;
}

/* Check mode: one op of a list, which runs alone. */
static gboolean check_alone(Interpreter *interpreter, const Call *call, const Op *op, guint64 at)
{
    if (interpreter->checker == NULL)
        return TRUE;
    checker_quiet(interpreter->checker);
    checker_begin(interpreter->checker, op->stream);
    if (!access_is_safe(interpreter, call, op, at))
        return FALSE;
    checker_quiet(interpreter->checker);
    return TRUE;
}

static gboolean nothing(Comm *comm, gconstpointer job, GError **error)
{
    (void)comm;
    (void)job;
    (void)error;
    return TRUE;
}

/* Everything that was issued is done. */
static gboolean quiet(Interpreter *interpreter, GError **error)
{
    if (!runtime_do(interpreter->runtime, nothing, NULL, 0, error))
        return FALSE;
    return interpreter->events == NULL || op_events_sync(interpreter->events, error);
}

/* Why a step could not go on. */
static gboolean stopped(Interpreter *interpreter, GError **error)
{
    if (interpreter->found == NULL)
        return runtime_failed(interpreter->runtime, error);
    g_propagate_error(error, g_steal_pointer(&interpreter->found));
    return FALSE;
}

/* A prologue or an epilogue: once in a run, so one op after the other.  @number: of its first op.
 */
static gboolean run_list(Interpreter *interpreter, const CallList *list, guint32 number,
                         GError **error)
{
    for (guint c = 0; c < list->calls->len; c++) {
        const Call *call = &g_array_index(list->calls, Call, c);
        const Segment *segment = program_segment(interpreter->program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            Job job = {.interpreter = interpreter,
                       .stream = segment->ops[i].stream,
                       .micro_batch = call->micro_batch,
                       .at = progress_at(interpreter->step, number++)};

            if (!check_alone(interpreter, call, &segment->ops[i], job.at))
                return stopped(interpreter, error);
            if (is_skipped(interpreter, &segment->ops[i]))
                continue;
            resolve(interpreter, call, &segment->ops[i], &job.launch);
            runtime_begin(interpreter->runtime, job.at);
            if (job.stream == COMPUTE_STREAM)
                device_run(runtime_device(interpreter->runtime), &job.launch);
            else if (!runtime_wait(interpreter->runtime, post(interpreter, &job)))
                return runtime_failed(interpreter->runtime, error);
            if (interpreter->events != NULL && !op_events_sync(interpreter->events, error))
                return FALSE;
            runtime_end(interpreter->runtime);
        }
    }
    return TRUE;
}

static void note_call(Interpreter *interpreter, const Call *call)
{
    char text[96];

    g_snprintf(text, sizeof text, "step %" G_GUINT64_FORMAT " micro-batch %u %s unit %u",
               interpreter->step, call->micro_batch,
               program_segment(interpreter->program, call->segment)->name, call->unit);
    runtime_note(interpreter->runtime, text);
}

/* On the communication thread: until all compute is done, or a peer will never do its part. */
static gboolean watch_device(Comm *comm, gconstpointer job, GError **error)
{
    enum { GLANCE_US = 20 };
    Device *device = *(Device *const *)job;

    while (device_queues(device)->busy(device, COMPUTE_STREAM)) {
        if (!comm->ops->check(comm, error))
            return FALSE;
        g_usleep(GLANCE_US);
    }
    return TRUE;
}

/* Check mode, once a step has been issued. */
static gboolean check_step(Interpreter *interpreter, GError **error)
{
    return interpreter->checker == NULL ||
           (agreement_holds(interpreter->agreement, error) &&
            checker_step_end(interpreter->checker, interpreter->step, error));
}

/* Until all compute of the step is done. */
static gboolean finish_compute(Interpreter *interpreter, GError **error)
{
    Device *device = runtime_device(interpreter->runtime);

    if (interpreter->on_device &&
        !runtime_do(interpreter->runtime, watch_device, &device, sizeof device, error))
        return FALSE;
    return device_sync(device, error);
}

/* So that all times of the step are there. */
static gboolean finish_sample(Interpreter *interpreter, GError **error)
{
    if (!quiet(interpreter, error))
        return FALSE;
    for (guint32 i = 0; interpreter->events != NULL && i < interpreter->ops_per_step; i++)
        op_events_time(interpreter->events, i, &interpreter->times[i].start_s,
                       &interpreter->times[i].end_s);
    return TRUE;
}

static gboolean begin_step(Interpreter *interpreter, gboolean sample, GError **error)
{
    guint64 *previous = interpreter->ordinals[1];

    if (!interpreter->primed && !run_list(interpreter, &interpreter->program->prologue,
                                          interpreter->numbers.prologue, error))
        return FALSE;
    interpreter->primed = TRUE;
    interpreter->ordinals[1] = interpreter->ordinals[0];
    interpreter->ordinals[0] = previous;
    interpreter->step++;
    interpreter->step_start_s = clock_s();
    interpreter->sampled |= sample;
    if (sample)
        memset(interpreter->times, 0, interpreter->ops_per_step * sizeof *interpreter->times);
    return !sample || interpreter->events == NULL || op_events_sample(interpreter->events, error);
}

gboolean interpreter_step(Interpreter *interpreter, gboolean sample, GError **error)
{
    const GArray *calls = interpreter->program->step.calls;

    if (!begin_step(interpreter, sample, error))
        return FALSE;
    for (guint c = 0; c < calls->len; c++) {
        note_call(interpreter, &g_array_index(calls, Call, c));
        if (!run_call(interpreter, c, sample))
            return stopped(interpreter, error);
    }
    if (!finish_compute(interpreter, error) || !check_step(interpreter, error))
        return FALSE;
    return !sample || finish_sample(interpreter, error);
}

gboolean interpreter_drain(Interpreter *interpreter, GError **error)
{
    if (!quiet(interpreter, error))
        return FALSE;
    if (interpreter->primed && !run_list(interpreter, &interpreter->program->epilogue,
                                         interpreter->numbers.epilogue, error))
        return FALSE;
    interpreter->primed = FALSE;
    return check_step(interpreter, error);
}

/* ---- measuring ---- */

const OpTime *interpreter_times(const Interpreter *interpreter)
{
    return interpreter->sampled ? interpreter->times : NULL;
}

static guint64 touched_words(const guint8 *from, guint64 bytes)
{
    guint64 count = 0, i = 0;

    for (; i + sizeof POISON <= bytes; i += sizeof POISON)
        if (memcmp(from + i, &POISON, sizeof POISON) != 0)
            count += sizeof POISON;
    if (memcmp(from + i, &POISON, bytes - i) != 0) /* a last half word */
        count += bytes - i;
    return count;
}

static guint64 touched(const Interpreter *interpreter, const guint8 *from, guint64 bytes)
{
    enum { BLOCK = 1 << 20 };
    Device *device = runtime_device(interpreter->runtime);
    guint64 count = 0;

    if (device_queues(device) == NULL)
        return touched_words(from, bytes);
    g_autofree guint8 *block = g_malloc(BLOCK);
    for (guint64 done = 0; done < bytes; done += BLOCK) {
        const guint64 part = MIN(bytes - done, BLOCK);

        device_read(device, block, from + done, part);
        count += touched_words(block, part);
    }
    return count;
}

guint64 interpreter_touched_arena(const Interpreter *interpreter)
{
    return touched(interpreter, interpreter->arena, interpreter->arena_bytes);
}

guint64 interpreter_touched_tensor(const Interpreter *interpreter, guint tensor)
{
    const Tensor *at = program_tensor(interpreter->program, tensor);
    const guint copies = g_array_index(interpreter->program->spaces, Space, at->space).count;
    guint64 count = 0;

    for (guint c = 0; c < copies; c++)
        count +=
            touched(interpreter, interpreter->arena + interpreter->offset[tensor] + c * at->stride,
                    tensor_copy_bytes(at));
    return count;
}

/* ---- facts ---- */

Runtime *interpreter_runtime(const Interpreter *interpreter)
{
    return interpreter->runtime;
}

guint interpreter_position(const Interpreter *interpreter, const char *purpose, guint *size)
{
    const Group *group = program_set_group(interpreter->set, purpose, interpreter->rank);

    *size = group == NULL ? 1 : group->size;
    return group == NULL ? 0 : group_position(group, interpreter->rank);
}

guint interpreter_map_rank(const Interpreter *interpreter)
{
    return interpreter->map_rank;
}

const Program *interpreter_program(const Interpreter *interpreter)
{
    return interpreter->program;
}

const ProgramSet *interpreter_set(const Interpreter *interpreter)
{
    return interpreter->set;
}

gint interpreter_find(const Interpreter *interpreter, const char *name)
{
    for (guint t = 0; t < interpreter->program->tensors->len; t++)
        if (strcmp(program_tensor(interpreter->program, t)->name, name) == 0)
            return (gint)t;
    return NO_TENSOR;
}
