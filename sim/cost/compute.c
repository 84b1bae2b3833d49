#include "sim/cost/device_cost.h"

/* What the op's framework does otherwise. */
static const Framework *framework_of(const Topology *topology, const ComputeContext *context)
{
    return topology->gpu.kind == DEVICE_CUDA ? framework_or_default(context->framework)
                                             : framework_default();
}

/* Of one fp32 logit, moved by softmax and its gradient in OP_HEAD_LOSS: read for maximum and sum,
 * read again and overwritten by the gradient.  Derived here from what the op must do. */
static const double SOFTMAX_BYTES_PER_LOGIT = 12.0;

double device_cost_gemm_bytes(const GemmShape *shape, DType dtype)
{
    const double m = (double)shape->m, n = (double)shape->n, k = (double)shape->k;

    return (double)MAX(shape->groups, 1) *
           ((m * k + k * n) * dtype_bytes(dtype) + m * n * MAX(dtype_bytes(dtype), 2));
}

static const DeviceCost *device_cost(const Topology *topology)
{
    const GArray *gemm = topology->measured.gemm;

    if (topology->gpu.kind == DEVICE_CUDA)
        return gemm != NULL && gemm->len > 0 ? &device_cost_cuda_measured : &device_cost_cuda;
    return gemm != NULL && gemm->len > 0 ? &device_cost_cpu_measured : &device_cost_cpu_nominal;
}

/* y(N,O) = x(N,I) W(O,I)^T and its two gradients: one product each, of another shape and layout of
 * operands (NT, NN, TN).  Of experts each has its part of the rows. */
static GemmShape linear_shape(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const guint64 groups = MAX(s->groups, 1), rows = s->rows / groups;

    switch (op->kind) {
    case OP_LINEAR:
    case OP_GROUPED_LINEAR:
        return (GemmShape){.m = rows, .n = s->out, .k = s->in, .groups = groups};
    case OP_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
        return (GemmShape){.m = rows, .n = s->in, .k = s->out, .groups = groups};
    case OP_LINEAR_BACKWARD_WEIGHT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT:
        return (GemmShape){.m = s->out, .n = s->in, .k = rows, .groups = groups};
    default:
        g_assert_not_reached();
    }
}

static double logit_bytes(const Topology *topology, const ComputeContext *context)
{
    const double bytes = framework_of(topology, context)->logit_bytes;

    return bytes > 0 ? bytes : SOFTMAX_BYTES_PER_LOGIT;
}

/* @rows of logits: x W^T, then dx = dlogits W and dW = dlogits^T x, with softmax between them. */
static double head_chunk_seconds(const Op *op, guint64 rows, const Topology *topology,
                                 const ComputeContext *context)
{
    const DeviceCost *cost = device_cost(topology);
    const guint64 hidden = op->sizes.in, vocab = op->sizes.out;
    const GemmShape shapes[] = {
        {.m = rows, .n = vocab, .k = hidden},
        {.m = rows, .n = hidden, .k = vocab},
        {.m = vocab, .n = hidden, .k = rows},
    };
    const MemoryWork softmax = {
        .op = op_kind_name(OP_HEAD_LOSS),
        .dtype = op->dtype,
        .bytes = logit_bytes(topology, context) * (double)rows * (double)vocab,
    };
    double seconds = cost->memory(&softmax, topology, context);

    /* Statistics take the logits only. */
    for (guint i = 0; i < (op->kind == OP_HEAD_STATS ? 1 : G_N_ELEMENTS(shapes)); i++)
        seconds += cost->gemm(&shapes[i], op->dtype, topology, context);
    return seconds;
}

static double head_seconds(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const guint64 chunk = MIN(op->sizes.chunk, op->sizes.rows);
    const gboolean held = framework_of(topology, context)->logit_held_bytes > 0;
    const guint64 whole = op->sizes.rows / chunk, rest = op->sizes.rows % chunk;

    if (held) /* computed once, all at a time: statistics are of what is there */
        return op->kind == OP_HEAD_STATS
                   ? 0
                   : head_chunk_seconds(op, op->sizes.rows, topology, context);
    double seconds = (double)whole * head_chunk_seconds(op, chunk, topology, context);
    if (rest > 0)
        seconds += head_chunk_seconds(op, rest, topology, context);
    return seconds;
}

/* A bias comes with the product that is written anyway; its gradient reads dy once more, at the
 * rate of the other op that goes along rows with a bias. */
static double linear_seconds(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const DeviceCost *cost = device_cost(topology);
    const GemmShape shape = linear_shape(op);
    const double more = op->dtype == DTYPE_FP8 ? framework_of(topology, context)->fp8_more : 0;
    const double seconds = (1 + more) * cost->gemm(&shape, op->dtype, topology, context);

    if (op->kind != OP_LINEAR_BACKWARD_WEIGHT || op->num_operands <= 4)
        return seconds;
    const MemoryWork sums = {
        .op = op_kind_name(OP_ADD_BIAS),
        .dtype = op->dtype,
        .bytes = (double)op->sizes.rows * (double)op->sizes.out * dtype_bytes(op->dtype),
    };
    return seconds + cost->memory(&sums, topology, context);
}

static double work_seconds(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const DeviceCost *cost = device_cost(topology);

    if (op->kind == OP_HEAD_LOSS || op->kind == OP_HEAD_STATS)
        return head_seconds(op, topology, context);
    if (op_class(op->kind) == OP_CLASS_GEMM)
        return linear_seconds(op, topology, context);
    if (op_class(op->kind) == OP_CLASS_ATTENTION)
        return cost->attention(op, topology, context);

    const MemoryWork work = {
        .op = op_kind_name(op->kind),
        .dtype = op->dtype,
        .bytes = op_memory_bytes(op, context->unit_elements) *
                 framework_passes(framework_of(topology, context), op),
    };
    return cost->memory(&work, topology, context);
}

/**
 * compute_op_seconds: work of the op at its device's rate + a fixed cost of every op.
 *
 * Left out: caches that an op finds filled by the one before it (a calibrated rate was measured
 * with buffers in rotation), and the difference between the layouts NT, NN, TN of a product: the
 * calibrated rate of a shape is the mean of the three.
 * Limit: an op without elements takes the fixed cost alone.
 */
double compute_op_seconds(const Op *op, const Topology *topology, const ComputeContext *context)
{
    g_assert(!op_kind_is_communication(op->kind));
    g_assert(context->busy >= 1 && context->threads >= 1 && context->cores >= 1);

    return work_seconds(op, topology, context) + device_cost(topology)->overhead(topology, context);
}
