#include "exec/run/estimate.h"

#include "exec/run/interpreter_state.h"
#include "exec/run/stream_groups.h"
#include "exec/run/transfer.h"

#include <math.h>
#include <string.h>

typedef struct {
    Interpreter *interpreter;
    const CudaPlugIn *nccl;
    CommGroup *groups[MAX_STREAMS];
    double *seconds; /* by kind */
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
    const Transfer transfer = {interpreter->program, estimate->groups[op->stream],
                               interpreter->own_chunks, call->micro_batch};
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
            else if (op->kind != OP_EXCHANGE && !ask(estimate, call, op, &like.seconds, error))
                return FALSE;
            if (before == NULL)
                g_array_append_val(asked, like);
            estimate->seconds[op_volume(op->kind)] += like.seconds;
        }
    }
    return TRUE;
}

static gint by_name(gconstpointer a, gconstpointer b, gpointer data)
{
    const Program *program = data;

    return strcmp(program_stream(program, *(const guint *)a)->name,
                  program_stream(program, *(const guint *)b)->name);
}

/* The streams of one purpose, in an order that is the same on all ranks. */
static GArray *streams_of(const Program *program, const char *purpose)
{
    GArray *streams = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint s = 0; s < program->streams->len; s++) {
        const Stream *stream = program_stream(program, s);

        if (stream->kind == STREAM_COMMUNICATION &&
            strcmp(g_array_index(program->groups, GroupRef, stream->group).purpose, purpose) == 0)
            g_array_append_val(streams, s);
    }
    g_array_sort_with_data(streams, by_name, (gpointer)program);
    return streams;
}

static gboolean ask_all(Estimate *estimate, Comm *comm, GError **error)
{
    const ProgramSet *set = estimate->interpreter->set;

    if (!stream_groups_open(set, comm, estimate->groups, error))
        return FALSE;
    for (guint s = 0; s < set->group_sets->len; s++) {
        const char *purpose = g_array_index(set->group_sets, GroupSet, s).purpose;
        g_autoptr(GArray) streams = streams_of(estimate->interpreter->program, purpose);

        for (guint i = 0; i < streams->len; i++) {
            const guint stream = g_array_index(streams, guint, i);

            if (estimate->groups[stream] == NULL)
                continue;
            estimate->groups[stream]->stream = stream;
            if (!ask_stream(estimate, stream, error))
                return FALSE;
        }
    }
    return TRUE;
}

static gboolean rehearse(Comm *comm, gconstpointer job, GError **error)
{
    Estimate *estimate = *(Estimate *const *)job;

    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(0, PROGRESS_OPEN));
    estimate->nccl->comm_rehearse(comm, TRUE);
    const gboolean ok = ask_all(estimate, comm, error);
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
