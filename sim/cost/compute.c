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

const DeviceCost *device_cost(const Topology *topology)
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

    return (bytes > 0 ? bytes : SOFTMAX_BYTES_PER_LOGIT) * MAX(context->logit_ranks, 1);
}

static void add_gemm(Works *works, const GemmShape *shape, double times)
{
    works->list[works->num++] = (Work){.kind = WORK_GEMM, .times = times, .gemm = *shape};
}

static void add_memory(Works *works, const MemoryWork *memory, double times)
{
    works->list[works->num++] = (Work){.kind = WORK_MEMORY, .times = times, .memory = *memory};
}

/* @rows of logits, @times: x W^T, then dx = dlogits W and dW = dlogits^T x, with softmax between
 * them; statistics take the logits only. */
static void add_head_chunk(Works *works, const Op *op, guint64 rows, double times,
                           double bytes_per_logit)
{
    const guint64 hidden = op->sizes.in, vocab = op->sizes.out;
    const GemmShape shapes[] = {
        {.m = rows, .n = vocab, .k = hidden},
        {.m = rows, .n = hidden, .k = vocab},
        {.m = vocab, .n = hidden, .k = rows},
    };
    const MemoryWork softmax = {
        .op = op_kind_name(OP_HEAD_LOSS),
        .dtype = op->dtype,
        .bytes = bytes_per_logit * (double)rows * (double)vocab,
    };

    add_memory(works, &softmax, times);
    for (guint i = 0; i < (op->kind == OP_HEAD_STATS ? 1 : G_N_ELEMENTS(shapes)); i++)
        add_gemm(works, &shapes[i], times);
}

static void add_head(Works *works, const Op *op, const Topology *topology,
                     const ComputeContext *context)
{
    const double bytes = logit_bytes(topology, context);
    const gboolean held = framework_of(topology, context)->logit_held_bytes > 0;
    const guint64 chunk = held ? op->sizes.rows : MIN(op->sizes.chunk, op->sizes.rows);
    const guint64 whole = op->sizes.rows / chunk, rest = op->sizes.rows % chunk;

    if (held && op->kind == OP_HEAD_STATS) /* computed once: statistics are of what is there */
        return;
    add_head_chunk(works, op, chunk, (double)whole, bytes);
    if (rest > 0)
        add_head_chunk(works, op, rest, 1, bytes);
}

/* The gradient of that matrix, added to that of other micro-batches beside the product. */
static void add_gradient(Works *works, const GemmShape *shape, const Topology *topology,
                         const ComputeContext *context)
{
    const double bytes = framework_of(topology, context)->gradient_more;
    const MemoryWork sums = {
        .op = op_kind_name(OP_ACCUMULATE),
        .dtype = DTYPE_FP32,
        .bytes = bytes * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n,
    };

    if (bytes > 0)
        add_memory(works, &sums, 1);
}

/* A bias comes with the product that is written anyway; its gradient reads dy once more, at the
 * rate of the other op that goes along rows with a bias. */
static void add_linear(Works *works, const Op *op, const Topology *topology,
                       const ComputeContext *context)
{
    const GemmShape shape = linear_shape(op);
    const double more = op->dtype == DTYPE_FP8 ? framework_of(topology, context)->fp8_more : 0;
    const MemoryWork sums = {
        .op = op_kind_name(OP_ADD_BIAS),
        .dtype = op->dtype,
        .bytes = (double)op->sizes.rows * (double)op->sizes.out * dtype_bytes(op->dtype),
    };

    add_gemm(works, &shape, 1 + more);
    if (op->kind != OP_LINEAR_BACKWARD_WEIGHT && op->kind != OP_GROUPED_LINEAR_BACKWARD_WEIGHT)
        return;
    add_gradient(works, &shape, topology, context);
    if (op->num_operands > 4)
        add_memory(works, &sums, 1);
}

Works compute_op_works(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const MemoryWork memory = {.op = op_kind_name(op->kind), .dtype = op->dtype};
    Works works = {.num = 0};

    if (op->kind == OP_HEAD_LOSS || op->kind == OP_HEAD_STATS) {
        add_head(&works, op, topology, context);
    } else if (op_class(op->kind) == OP_CLASS_GEMM) {
        add_linear(&works, op, topology, context);
    } else if (op_class(op->kind) == OP_CLASS_ATTENTION) {
        works.list[works.num++] = (Work){.kind = WORK_ATTENTION, .times = 1};
    } else {
        add_memory(&works, &memory, 1);
        works.list[0].memory.bytes =
            op_memory_bytes(op, context->unit_elements) *
            framework_passes(framework_of(topology, context), op, context->pads);
    }
    return works;
}

double compute_work_seconds(const Work *work, const Op *op, const Topology *topology,
                            const ComputeContext *context)
{
    const DeviceCost *cost = device_cost(topology);

    switch (work->kind) {
    case WORK_GEMM:
        return cost->gemm(&work->gemm, op->dtype, topology, context);
    case WORK_ATTENTION:
        return cost->attention(op, topology, context);
    case WORK_MEMORY:
        return cost->memory(&work->memory, topology, context);
    }
    g_assert_not_reached();
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

    const Works works = compute_op_works(op, topology, context);
    double seconds = device_cost(topology)->overhead(topology, context);

    for (guint i = 0; i < works.num; i++)
        seconds +=
            works.list[i].times * compute_work_seconds(&works.list[i], op, topology, context);
    return seconds;
}
