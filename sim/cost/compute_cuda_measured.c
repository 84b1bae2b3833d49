/* GPUs that `fsdp-run calibrate --device cuda` or training has measured: its rows where there are
 * any, else the figures of data sheets. */
#include "sim/cost/device_cost.h"

/* The kernels that were measured are those of fsdp-run; products are the library's, whoever calls
 * it. */
static gboolean is_own(const ComputeContext *context)
{
    return !framework_is_foreign(context->framework);
}

static MeasuredLoad load(const ComputeContext *context)
{
    return device_cost_cuda.load(context);
}

static guint64 attention_keys(const Op *op)
{
    return device_cost_cuda.attention_keys(op);
}

/* Rates of rows: FLOP/s or bytes/s, 0 where there is none. */

static double gemm_rate(const GemmShape *shape, DType dtype, const Topology *topology,
                        const ComputeContext *context)
{
    const guint64 mnk[] = {shape->m, shape->n, shape->k};
    const MeasuredLoad alone = load(context);

    return measured_gemm_rate(&topology->measured, &alone, dtype, mnk);
}

static double gemm_seconds(const GemmShape *shape, DType dtype, const Topology *topology,
                           const ComputeContext *context)
{
    const double flops = 2.0 * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n *
                         (double)shape->k;
    const double rate = gemm_rate(shape, dtype, topology, context);

    return rate > 0 && flops > 0 ? flops / rate
                                 : device_cost_cuda.gemm(shape, dtype, topology, context);
}

/* By cuDNN where it was measured and a run would take it, else by the own kernels. */
static double attention_rate(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const guint64 size[] = {attention_keys(op), op->sizes.head_dim};
    const MeasuredLoad alone = load(context);

    if (!is_own(context))
        return 0;
    for (guint own = op_library_attention(op) ? 0 : 1; own < 2; own++) {
        const char *row = op_attention_row(op->kind, own == 0);
        const double rate = measured_op_rate(&topology->measured, &alone, row, op->dtype, size);

        if (rate > 0)
            return rate;
    }
    return 0;
}

static double attention_seconds(const Op *op, const Topology *topology,
                                const ComputeContext *context)
{
    const double rate = attention_rate(op, topology, context);

    return rate > 0 ? op_flops(op) / rate : device_cost_cuda.attention(op, topology, context);
}

static double memory_rate(const MemoryWork *work, const Topology *topology,
                          const ComputeContext *context)
{
    const guint64 size[] = {(guint64)work->bytes, 0};
    const MeasuredLoad alone = load(context);

    return is_own(context)
               ? measured_op_rate(&topology->measured, &alone, work->op, work->dtype, size)
               : 0;
}

static double memory_seconds(const MemoryWork *work, const Topology *topology,
                             const ComputeContext *context)
{
    const double rate = memory_rate(work, topology, context);

    return rate > 0 ? work->bytes / rate : device_cost_cuda.memory(work, topology, context);
}

static double overhead_seconds(const Topology *topology, const ComputeContext *context)
{
    return topology->measured.op_overhead_s > 0 ? topology->measured.op_overhead_s
                                                : device_cost_cuda.overhead(topology, context);
}

gboolean device_cost_cuda_has_row(const Work *work, const Op *op, const Topology *topology,
                                  const ComputeContext *context)
{
    switch (work->kind) {
    case WORK_GEMM:
        return gemm_rate(&work->gemm, op->dtype, topology, context) > 0;
    case WORK_ATTENTION:
        return attention_rate(op, topology, context) > 0;
    case WORK_MEMORY:
        return memory_rate(&work->memory, topology, context) > 0;
    }
    g_assert_not_reached();
}

const DeviceCost device_cost_cuda_measured = {
    .gemm = gemm_seconds,
    .attention = attention_seconds,
    .memory = memory_seconds,
    .overhead = overhead_seconds,
    .load = load,
    .attention_keys = attention_keys,
};
