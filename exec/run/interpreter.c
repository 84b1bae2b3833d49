/* The main thread walks the calls: compute ops run at once, the others go to the queue of their
 * lane: the communication thread's, or the storage thread's where their stream is to and from
 * files.  Jobs of a queue run in the order of issue, which every wait respects (check proves that
 * it can't deadlock).
 *
 * On a device without queues (a CPU) an op that was issued earlier on the main thread is done, so
 * an op waits for jobs of other lanes only.  On one with queues its thread waits for such a job as
 * well: until that lane has enqueued the op, or, where it moves host memory (a file, a communicator
 * without the device's memory), has finished it.  That is the only waiting of the host inside a
 * step; all waits of the program are the device's, by events. */
#include "exec/base/process.h"
#include "exec/run/lane_job.h"
#include "sim/base/error.h"

#include <string.h>

/* ---- operands ---- */

void interpreter_resolve(Interpreter *interpreter, const Call *call, const Op *op, Launch *launch)
{
    const Program *program = interpreter->program;

    launch->op = op;
    launch->stream = op->stream;
    launch->first = call->first;
    launch->unit = call->unit;
    launch->rounding = interpreter->rounding == NULL || op->unit == NO_UNIT
                           ? NULL
                           : &interpreter->rounding[(gsize)call->unit * LAUNCH_MOST_PARAMS];
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

/* ---- running ---- */

/* For op @number of this step or (@back = 1) the one before.  What computes waits here, a @job when
 * its turn has come: a queue keeps the order of issue. */
static gboolean wait_event_of(Interpreter *interpreter, LaneJob *job, guint back, guint32 number)
{
    const guint64 ordinal = interpreter->ordinals[back][number];
    const ProgressLane lane = interpreter->op_lane[number];

    if (interpreter->checker != NULL)
        checker_join(interpreter->checker, progress_at(interpreter->step - back, number));
    if (job->stream == COMPUTE_STREAM)
        return runtime_wait(interpreter->runtime, lane, ordinal);
    if (lane != interpreter->lane[job->stream])
        job->after[lane] = MAX(job->after[lane], ordinal);
    return TRUE;
}

/* Of a call of the step, before its op @i. */
static gboolean wait_for(Interpreter *interpreter, const Call *call, LaneJob *job, guint i)
{
    const GArray *waits = interpreter->program->step.waits;

    for (guint w = 0; w < call->num_waits; w++) {
        const Wait *wait = &g_array_index(waits, Wait, call->first_wait + w);

        if (wait->before == i &&
            !wait_event_of(interpreter, job, wait->back, wait_event(interpreter->first_op, wait)))
            return FALSE;
    }
    return TRUE;
}

static gboolean wait_within(Interpreter *interpreter, const Op *op, LaneJob *job, guint32 first)
{
    for (guint w = 0; w < op->num_waits; w++)
        if (!wait_event_of(interpreter, job, 0, first + op->waits[w]))
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

static gboolean begin_op(Interpreter *interpreter, const Call *call, LaneJob *job, guint i,
                         guint32 first)
{
    const Op *op = &program_segment(interpreter->program, call->segment)->ops[i];
    Checker *checker = interpreter->checker;

    if (checker != NULL)
        checker_begin(checker, op->stream);
    if (!wait_for(interpreter, call, job, i) || !wait_within(interpreter, op, job, first))
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
    interpreter_resolve(interpreter, call, op, &launch);
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
    interpreter_resolve(interpreter, call, op, &launch);
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
        LaneJob job = {.interpreter = interpreter,
                       .stream = op->stream,
                       .micro_batch = call->micro_batch,
                       .at = progress_at(interpreter->step, first + i),
                       .time = time,
                       .call = call,
                       .op = i,
                       .number = first + i,
                       .step = interpreter->step,
                       .step_start_s = interpreter->step_start_s};

        interpreter->ordinals[0][first + i] = 0;
        if (op->stream == COMPUTE_STREAM) {
            runtime_begin(interpreter->runtime, job.at);
            if (!begin_op(interpreter, call, &job, i, first))
                return FALSE;
            if (interpreter->events != NULL)
                enqueue(interpreter, call, i, first + i, sample);
            else
                compute(interpreter, call, op, job.at, time);
            runtime_end(interpreter->runtime);
            continue;
        }
        if (!begin_op(interpreter, call, &job, i, first))
            return FALSE;
        if (is_skipped(interpreter, op))
            continue;
        interpreter_resolve(interpreter, call, op, &job.launch);
        interpreter->ordinals[0][first + i] = lane_job_post(interpreter, &job);
        if (interpreter->ordinals[0][first + i] == 0 ||
            ((interpreter->options.no_overlap || interpreter->way == STEP_CAPTURED) &&
             !lane_job_wait(interpreter, &job, interpreter->ordinals[0][first + i])))
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
            LaneJob job = {.interpreter = interpreter,
                           .stream = segment->ops[i].stream,
                           .micro_batch = call->micro_batch,
                           .at = progress_at(interpreter->step, number++)};

            if (!check_alone(interpreter, call, &segment->ops[i], job.at))
                return stopped(interpreter, error);
            if (is_skipped(interpreter, &segment->ops[i]))
                continue;
            interpreter_resolve(interpreter, call, &segment->ops[i], &job.launch);
            runtime_begin(interpreter->runtime, job.at);
            if (job.stream == COMPUTE_STREAM)
                device_run(runtime_device(interpreter->runtime), &job.launch);
            else if (!lane_job_wait(interpreter, &job, lane_job_post(interpreter, &job)))
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
    runtime_note_call(interpreter->runtime,
                      program_segment(interpreter->program, call->segment)->name,
                      (CommCall){interpreter->step, call->micro_batch, call->unit});
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
    return storage_check(interpreter->tiers.storage, error) && device_sync(device, error);
}

/* So that all times of the step are there. */
static gboolean finish_sample(Interpreter *interpreter, GError **error)
{
    if (!interpreter_quiet(interpreter, error))
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

static gboolean issue(Interpreter *interpreter, gboolean sample, GError **error)
{
    const GArray *calls = interpreter->program->step.calls;

    for (guint c = 0; c < calls->len; c++) {
        note_call(interpreter, &g_array_index(calls, Call, c));
        if (!run_call(interpreter, c, sample))
            return stopped(interpreter, error);
    }
    return TRUE;
}

/* The step before has been issued to the end: what its communication still does, a graph waits for.
 * The main thread waits for each job here, so one thread at a time issues. */
static gboolean capture(Interpreter *interpreter, GError **error)
{
    OpEvents *events = interpreter->events;

    if (!step_graph_begin(interpreter->graph, error))
        return FALSE;
    op_events_fork(events);
    if (!issue(interpreter, FALSE, error))
        return FALSE;
    op_events_join(events);
    return step_graph_end(interpreter->graph, error);
}

/* What follows is issued once the host has seen its end. */
static gboolean run_as_graph(Interpreter *interpreter, GError **error)
{
    const gboolean again = interpreter->way == STEP_REPLAYED;
    OpEvents *events = interpreter->events;
    char text[48];

    op_events_join(events);
    op_events_begin_at(events, interpreter->step);
    if (!again && !capture(interpreter, error))
        return FALSE;
    g_snprintf(text, sizeof text, "step %" G_GUINT64_FORMAT " as a graph", interpreter->step);
    runtime_note(interpreter->runtime, text);
    runtime_begin(interpreter->runtime, progress_at(interpreter->step, 0));
    step_graph_run(interpreter->graph, again);
    runtime_end(interpreter->runtime);
    op_events_begin_at(events, interpreter->step + 1);
    return TRUE;
}

static StepWay way_of(const Interpreter *interpreter, gboolean sample)
{
    return interpreter->graph == NULL
               ? STEP_ISSUED
               : step_graph_way(interpreter->graph, interpreter->step, sample);
}

gboolean interpreter_step(Interpreter *interpreter, gboolean sample, GError **error)
{
    if (!begin_step(interpreter, sample, error))
        return FALSE;
    interpreter->way = way_of(interpreter, sample);
    if (!(interpreter->way == STEP_ISSUED ? issue(interpreter, sample, error)
                                          : run_as_graph(interpreter, error)))
        return FALSE;
    if (!finish_compute(interpreter, error) || !check_step(interpreter, error))
        return FALSE;
    if (sample)
        return finish_sample(interpreter, error);
    return interpreter->graph == NULL ||
           step_graph_took(interpreter->graph, interpreter->way, interpreter->step,
                           clock_s() - interpreter->step_start_s, error);
}

gboolean interpreter_drain(Interpreter *interpreter, GError **error)
{
    if (!interpreter_quiet(interpreter, error))
        return FALSE;
    if (interpreter->primed && !run_list(interpreter, &interpreter->program->epilogue,
                                         interpreter->numbers.epilogue, error))
        return FALSE;
    interpreter->primed = FALSE;
    return check_step(interpreter, error);
}
