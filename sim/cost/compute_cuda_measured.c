/* GPUs that `fsdp-run calibrate --device cuda` has measured: its rows where there are any, else the
 * figures of data sheets.  A GPU is one rank's alone. */
#include "sim/cost/device_cost.h"
#include "sim/cost/measured.h"

static const MeasuredLoad alone = {.busy = 1, .threads = 1, .cores = 1};

/* The kernels that were measured are those of fsdp-run; products are the library's, whoever calls
 * it. */
static gboolean is_own(const ComputeContext *context)
{
    return !framework_is_foreign(context->framework);
}

static double gemm_seconds(const GemmShape *shape, DType dtype, const Topology *topology,
                           const ComputeContext *context)
{
    const guint64 mnk[] = {shape->m, shape->n, shape->k};
    const double flops = 2.0 * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n *
                         (double)shape->k;
    const double rate = measured_gemm_rate(&topology->measured, &alone, dtype, mnk);

    return rate > 0 && flops > 0 ? flops / rate
                                 : device_cost_cuda.gemm(shape, dtype, topology, context);
}

/* By cuDNN where it was measured and a run would take it, else by the own kernels. */
static double attention_rate(const Op *op, const Topology *topology)
{
    const guint64 keys = (guint64)((double)(op_key_blocks(op) * op->sizes.seq) * op_seen_pairs(op));
    const guint64 size[] = {keys, op->sizes.head_dim};
    g_autofree char *by_cudnn = g_strconcat(op_kind_name(op->kind), MEASURED_BY_CUDNN, NULL);
    const double rate = op_library_attention(op) ? measured_op_rate(&topology->measured, &alone,
                                                                    by_cudnn, op->dtype, size)
                                                 : 0;

    return rate > 0 ? rate
                    : measured_op_rate(&topology->measured, &alone, op_kind_name(op->kind),
                                       op->dtype, size);
}

static double attention_seconds(const Op *op, const Topology *topology,
                                const ComputeContext *context)
{
    const double rate = is_own(context) ? attention_rate(op, topology) : 0;

    return rate > 0 ? op_flops(op) / rate : device_cost_cuda.attention(op, topology, context);
}

static double memory_seconds(const MemoryWork *work, const Topology *topology,
                             const ComputeContext *context)
{
    const guint64 size[] = {(guint64)work->bytes, 0};
    const double rate =
        is_own(context) ? measured_op_rate(&topology->measured, &alone, work->op, work->dtype, size)
                        : 0;

    return rate > 0 ? work->bytes / rate : device_cost_cuda.memory(work, topology, context);
}

static double overhead_seconds(const Topology *topology, const ComputeContext *context)
{
    return topology->measured.op_overhead_s > 0 ? topology->measured.op_overhead_s
                                                : device_cost_cuda.overhead(topology, context);
}

const DeviceCost device_cost_cuda_measured = {
    .gemm = gemm_seconds,
    .attention = attention_seconds,
    .memory = memory_seconds,
    .overhead = overhead_seconds,
};
