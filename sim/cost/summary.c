#include "sim/cost/summary.h"

#include <string.h>

guint *program_spans(const Program *program, const ProgramSpec *spec)
{
    guint *spans = g_new0(guint, program->groups->len + 1);

    for (guint g = 0; g < program->groups->len; g++)
        spans[g] = purpose_span(spec, g_array_index(program->groups, GroupRef, g).purpose);
    return spans;
}

/* While a block's backward runs, these are alive, and a ring counts whole: the residual stream, the
 * saved activations, gathered weights and whole gradients of the block's class. */
static gboolean lives_in_backward(const Program *program, const Tensor *tensor)
{
    if (tensor->persistence == PERSIST_STATE)
        return FALSE;
    if (tensor->unit != NO_UNIT && program_unit(program, (guint)tensor->unit)->kind != UNIT_BLOCK)
        return FALSE;
    return tensor->kind == TENSOR_GATHERED || tensor->kind == TENSOR_UNIT_GRADIENT ||
           (tensor->kind == TENSOR_ACTIVATION && tensor->space != NO_SPACE);
}

static void sum_memory(const Program *program, Summary *summary)
{
    guint64 alive = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);
        const guint64 bytes = tensor_bytes(program, tensor);

        if (tensor->persistence == PERSIST_STATE)
            alive += bytes;
        if (tensor->kind == TENSOR_PARAMETER || tensor->kind == TENSOR_GRADIENT ||
            tensor->kind == TENSOR_MASTER || tensor->kind == TENSOR_MOMENT)
            summary->state_bytes += bytes;
        /* Of several block classes only one is in backward at a time: count the first. */
        if (lives_in_backward(program, tensor) && (tensor->unit == NO_UNIT || tensor->unit == 1))
            alive += bytes;
    }
    summary->floor_bytes = alive;
}

/* Seconds of all ops by stream, and volume. */
static void sum_ops(const Sketch *sketch, double **durations, double *stream_s, Summary *summary)
{
    for (guint s = 0; s < sketch->program->segments->len; s++) {
        const Segment *segment = program_segment(sketch->program, s);
        const double calls = (double)sketch->calls[s];

        for (guint i = 0; sketch->calls[s] > 0 && i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];

            stream_s[op->stream] += calls * durations[s][i];
            if (op_kind_is_communication(op->kind))
                summary->volume_bytes[op_volume(op->kind)] +=
                    sketch->calls[s] * op_volume_bytes(sketch->program, op);
        }
    }
}

/* Streams that may overlap: the busiest one; threads that take turns: all of them. */
static double time_bound(const double *stream_s, guint num_streams, gboolean overlaps,
                         gboolean one_queue)
{
    double most = stream_s[COMPUTE_STREAM], communication = 0;

    for (guint s = 1; s < num_streams; s++) {
        communication += stream_s[s];
        most = MAX(most, stream_s[s]);
    }
    if (!overlaps)
        return stream_s[COMPUTE_STREAM] + communication;
    return one_queue ? MAX(most, communication) : most;
}

static Summary summarise_stage(const ProgramSpec *spec, guint stage, const SimulateContext *context)
{
    g_autoptr(Sketch) sketch = program_sketch(spec, stage);
    g_autofree guint *spans = program_spans(sketch->program, spec);
    double **durations = simulate_durations(sketch->program, context, spans);
    double stream_s[MAX_STREAMS] = {0};
    Summary summary = {0};

    sum_memory(sketch->program, &summary);
    sum_ops(sketch, durations, stream_s, &summary);
    summary.bound_s =
        time_bound(stream_s, sketch->program->streams->len, simulate_overlaps(context),
                   context->topology->gpu.kind == DEVICE_CPU);
    simulate_durations_free(durations, sketch->program);
    return summary;
}

/* Of the stages the first, the last and one between are looked at: a step takes as long as any of
 * them, and all must fit. */
Summary summarise(const ProgramSpec *spec, const SimulateContext *context)
{
    const guint pp = spec->layout.size[AXIS_PP];
    const guint stages[] = {pp - 1, 0, pp / 2};
    const guint num = MIN(pp, G_N_ELEMENTS(stages));
    Summary worst = summarise_stage(spec, stages[0], context);

    for (guint i = 1; i < num; i++) {
        const Summary other = summarise_stage(spec, stages[i], context);
        const double bound_s = MAX(worst.bound_s, other.bound_s);

        if (other.floor_bytes > worst.floor_bytes)
            worst = other;
        worst.bound_s = bound_s;
    }
    return worst;
}
