#include "exec/run/estimate.h"

#include "exec/run/interpreter_state.h"
#include "exec/run/stream_groups.h"
#include "exec/run/transfer.h"

#include <math.h>

typedef struct {
    Interpreter *interpreter;
    const CudaPlugIn *nccl;
    Comm *comm;
    CommGroup *group; /* of the stream that is asked about */
    double *seconds;  /* by kind */
} Estimate;

/* Operations of one stream that are alike: asked about once. */
typedef struct {
    OpKind kind;
    DType dtype;
    guint64 bytes;
    double seconds;
} Asked;

static const Asked *find_asked(const GArray *asked, const Asked *like)
{
    for (guint i = 0; i < asked->len; i++) {
        const Asked *one = &g_array_index(asked, Asked, i);

        if (one->kind == like->kind && one->dtype == like->dtype && one->bytes == like->bytes)
            return one;
    }
    return NULL;
}

static gboolean ask(Estimate *estimate, const Call *call, const Op *op, double *seconds,
                    GError **error)
{
    Interpreter *interpreter = estimate->interpreter;
    const Transfer transfer = {interpreter->program, estimate->group, interpreter->own_chunks,
                               call->micro_batch};
    Launch launch;

    interpreter_resolve(interpreter, call, op, &launch);
    if (!transfer_run(&transfer, &launch, error))
        return FALSE;
    *seconds = estimate->nccl->comm_rehearsed_s(transfer.group->comm);
    return TRUE;
}

/* In the order of the step, which members of a group share: NCCL may connect them now. */
static gboolean ask_stream(Estimate *estimate, guint stream, GError **error)
{
    const Program *program = estimate->interpreter->program;
    g_autoptr(GArray) asked = g_array_new(FALSE, FALSE, sizeof(Asked));

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const Segment *segment = program_segment(program, call->segment);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];

            if (op->stream != stream || !op_kind_is_communication(op->kind))
                continue;
            Asked like = {op->kind, op->dtype, op_volume_bytes(program, op), NAN};
            const Asked *before = find_asked(asked, &like);

            if (before != NULL)
                like.seconds = before->seconds;
            else if (estimate->group->size == 1) /* NCCL would copy at once, and say nothing */
                like.seconds = 0;
            else if (op->kind != OP_EXCHANGE && !ask(estimate, call, op, &like.seconds, error))
                return FALSE;
            if (before == NULL)
                g_array_append_val(asked, like);
            estimate->seconds[op_volume(op->kind)] += like.seconds;
        }
    }
    return TRUE;
}

/* One stream's groups at a time: NCCL's buffers for them are memory that no plan counts. */
static gboolean visit(gpointer data, guint stream, CommGroup *group, GError **error)
{
    Estimate *estimate = data;

    group->stream = stream;
    estimate->group = group;
    const gboolean ok = ask_stream(estimate, stream, error);
    estimate->nccl->comm_rehearse(estimate->comm, FALSE);
    estimate->nccl->comm_rehearse(estimate->comm, TRUE);
    return ok;
}

static gboolean rehearse(Comm *comm, gconstpointer job, GError **error)
{
    Estimate *estimate = *(Estimate *const *)job;

    estimate->comm = comm;
    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(0, PROGRESS_OPEN));
    estimate->nccl->comm_rehearse(comm, TRUE);
    const gboolean ok =
        stream_groups_visit(estimate->interpreter->set, comm, visit, estimate, error);
    estimate->nccl->comm_rehearse(comm, FALSE);
    progress_end(&comm->progress, LANE_COMMUNICATION);
    return ok;
}

gboolean estimate_step(Interpreter *interpreter, double seconds[NUM_VOLUMES], GError **error)
{
    const CudaPlugIn *nccl = runtime_nccl(interpreter->runtime);
    Estimate estimate = {.interpreter = interpreter, .nccl = nccl, .seconds = seconds};
    Estimate *job = &estimate;

    for (guint v = 0; v < NUM_VOLUMES; v++)
        seconds[v] = nccl == NULL ? NAN : 0;
    return nccl == NULL || runtime_do(interpreter->runtime, rehearse, &job, sizeof job, error);
}
