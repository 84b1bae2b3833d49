#include "exec/run/lane_job.h"

#include "exec/base/process.h"
#include "exec/run/transfer.h"

/* A collective of one rank on a device with queues: at most a copy there, which never passes
 * through the host. */
static void copy_alone(const Interpreter *interpreter, const LaneJob *job)
{
    const Launch *launch = &job->launch;
    const Op *op = launch->op;
    const ShardPiece whole = {.chunk = op->sizes.elements};
    const ShardPiece *pieces = launch->map == NULL ? &whole : launch->map->pieces;
    const guint num_pieces = launch->map == NULL ? 1 : launch->map->num_pieces;
    const gboolean gather = op->kind == OP_ALL_GATHER;
    const gsize size = dtype_bytes(op->dtype);
    Device *device = runtime_device(interpreter->runtime);

    for (guint p = 0; op->num_operands == 2 && p < num_pieces; p++) {
        const gsize full = pieces[p].full_offset * size, shard = pieces[p].shard_offset * size;

        if (pieces[p].chunk == 0 ||
            (launch->map != NULL && !unit_map_in_set(launch->map, p, op->params)))
            continue;
        device_queues(device)->copy(
            device, job->stream, (guint8 *)launch->operand[1] + (gather ? full : shard),
            (const guint8 *)launch->operand[0] + (gather ? shard : full), pieces[p].chunk * size);
    }
}

static gboolean copy_file(const Interpreter *interpreter, const LaneJob *job, GError **error)
{
    const Op *op = job->launch.op;
    const StorageCopy copy = {.stream = job->stream,
                              .to = job->launch.operand[1],
                              .from = job->launch.operand[0],
                              .bytes = op->sizes.elements * dtype_bytes(op->dtype),
                              .progress =
                                  &runtime_peer(interpreter->runtime, interpreter->rank)->progress};

    return storage_copy(interpreter->tiers.storage, &copy, error);
}

/* A cast before a gather, a sum after a reduction and a copy to or from host memory are the
 * device's. */
static gboolean run_transfer(const Interpreter *interpreter, const LaneJob *job, GError **error)
{
    const Transfer transfer = {interpreter->program, interpreter->groups[job->stream],
                               interpreter->own_chunks, job->micro_batch};
    Launch host;

    if (program_copies_file(interpreter->program, job->launch.op))
        return copy_file(interpreter, job, error);
    if (!op_kind_is_communication(job->launch.op->kind)) {
        device_run(runtime_device(interpreter->runtime), &job->launch);
        return TRUE;
    }
    if (interpreter->events != NULL && transfer.group->size == 1 &&
        job->launch.op->kind != OP_EXCHANGE) {
        copy_alone(interpreter, job);
        return TRUE;
    }
    if (interpreter->staging == NULL)
        return transfer_run(&transfer, &job->launch, error);
    return staging_in(interpreter->staging, &transfer, &job->launch, &host, error) &&
           transfer_run(&transfer, &host, error) &&
           staging_out(interpreter->staging, &transfer, &job->launch, &host, error);
}

/* The job of a step on a device with queues. */
static gboolean run_between_events(const Interpreter *interpreter, const LaneJob *job,
                                   GError **error)
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
static gboolean run_op(const Interpreter *interpreter, const LaneJob *job, GError **error)
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

static gboolean wait_for_lanes(const Interpreter *interpreter, const LaneJob *job, GError **error)
{
    for (guint l = 0; l < NUM_LANES; l++)
        if (!runtime_wait_in_job(interpreter->runtime, (ProgressLane)l, job->after[l], error))
            return FALSE;
    return TRUE;
}

/* Of a copy, which has no peers to be known by, also where in the step it is. */
static void name_op(const Interpreter *interpreter, const LaneJob *job, GError **error)
{
    const Op *op = job->launch.op;
    g_autofree char *label = job->call == NULL || op_kind_is_communication(op->kind)
                                 ? g_strdup(op_kind_name(op->kind))
                                 : program_op_label(interpreter->program, job->call, op);

    g_prefix_error(error, "%s: ", label);
}

static gboolean run_job(Comm *comm, gconstpointer data, GError **error)
{
    const LaneJob *job = data;
    const Interpreter *interpreter = job->interpreter;
    const ProgressLane lane = interpreter->lane[job->stream];
    const gboolean has_events = interpreter->events != NULL && job->call != NULL;

    if (!wait_for_lanes(interpreter, job, error))
        return FALSE;
    const double start = clock_s();
    progress_begin(&comm->progress, lane, job->at);
    if (!(has_events ? run_between_events : run_op)(interpreter, job, error)) {
        name_op(interpreter, job, error);
        return FALSE;
    }
    progress_end(&comm->progress, lane);
    if (job->time != NULL)
        *job->time = (OpTime){start - job->step_start_s, clock_s() - job->step_start_s};
    return TRUE;
}

guint64 lane_job_post(Interpreter *interpreter, const LaneJob *job)
{
    G_STATIC_ASSERT(sizeof *job <= RUNTIME_JOB_BYTES);
    return runtime_post(interpreter->runtime, interpreter->lane[job->stream], run_job, job,
                        sizeof *job);
}

gboolean lane_job_wait(Interpreter *interpreter, const LaneJob *job, guint64 ordinal)
{
    return ordinal != 0 &&
           runtime_wait(interpreter->runtime, interpreter->lane[job->stream], ordinal);
}
