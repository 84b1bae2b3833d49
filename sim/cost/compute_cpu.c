/* CPUs: calibrated rates where there are any, nominal figures of a core otherwise. */
#include "sim/cost/device_cost.h"

/* What an uncalibrated core is taken to reach.  Each is measured on one machine (2 cores of Zen 3,
 * OpenBLAS 0.3.21): calibrate for better ones. */
typedef struct {
    double gemm_fraction;      /* of peak: geometric mean over 18 shapes, 64 of 98 GFLOP/s */
    double attention_fraction; /* of peak: tiles of one head are small; assumed half of gemm's */
    double op_overhead_s;      /* a call, a check of operands, a parallel region; assumed */
} NominalCore;

static const NominalCore nominal_core = {
    .gemm_fraction = 0.65,
    .attention_fraction = 0.33,
    .op_overhead_s = 1e-6,
};

static MeasuredLoad load_of(const ComputeContext *context)
{
    return (MeasuredLoad){
        .busy = context->busy, .threads = context->threads, .cores = context->cores};
}

static guint64 attention_keys(const Op *op)
{
    return op_key_blocks(op) * op->sizes.seq;
}

static double time_sharing(const ComputeContext *context)
{
    const MeasuredLoad load = load_of(context);

    return measured_time_sharing(&load);
}

/* ---- nominal ---- */

/* FLOP/s of one rank: the peak of a core, its threads, its share when cores are too few. */
static double nominal_flops_per_s(DType dtype, const Topology *topology,
                                  const ComputeContext *context)
{
    return gpu_peak_flops(&topology->gpu, dtype) * context->threads / time_sharing(context);
}

static double nominal_gemm(const GemmShape *shape, DType dtype, const Topology *topology,
                           const ComputeContext *context)
{
    const double flops = 2.0 * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n *
                         (double)shape->k;

    return flops / (nominal_core.gemm_fraction * nominal_flops_per_s(dtype, topology, context));
}

static double nominal_attention(const Op *op, const Topology *topology,
                                const ComputeContext *context)
{
    return op_flops(op) /
           (nominal_core.attention_fraction * nominal_flops_per_s(op->dtype, topology, context));
}

/* The node's memory bandwidth is divided evenly among the ranks that run at once. */
static double nominal_bytes_seconds(double bytes, const Topology *topology,
                                    const ComputeContext *context)
{
    const guint at_once = MIN(context->busy, context->cores);

    return bytes * at_once / topology->gpu.memory_bytes_per_s * time_sharing(context);
}

static double nominal_memory(const MemoryWork *work, const Topology *topology,
                             const ComputeContext *context)
{
    return nominal_bytes_seconds(work->bytes, topology, context);
}

static double nominal_overhead(const Topology *topology, const ComputeContext *context)
{
    (void)topology;
    return nominal_core.op_overhead_s * time_sharing(context);
}

const DeviceCost device_cost_cpu_nominal = {
    .gemm = nominal_gemm,
    .attention = nominal_attention,
    .memory = nominal_memory,
    .overhead = nominal_overhead,
    .load = load_of,
    .attention_keys = attention_keys,
};

/* ---- measured ---- */

static double measured_memory(const MemoryWork *work, const Topology *topology,
                              const ComputeContext *context)
{
    const MeasuredLoad load = load_of(context);
    const guint64 size[] = {(guint64)work->bytes, 0};
    double rate = measured_op_rate(&topology->measured, &load, work->op, work->dtype, size);

    if (rate == 0)
        rate = measured_op_rate(&topology->measured, &load, work->op, DTYPE_FP32, size);
    if (rate == 0)
        return nominal_bytes_seconds(work->bytes, topology, context);
    return work->bytes / rate;
}

/* Without rows of that type: the product in fp32, and casts of all three matrices to or from it. */
static double converted_gemm(const GemmShape *shape, DType dtype, const Topology *topology,
                             const ComputeContext *context)
{
    const MemoryWork casts = {
        .op = op_kind_name(OP_CAST),
        .dtype = dtype,
        .bytes = device_cost_gemm_bytes(shape, dtype) + device_cost_gemm_bytes(shape, DTYPE_FP32),
    };

    return device_cost_cpu_measured.gemm(shape, DTYPE_FP32, topology, context) +
           measured_memory(&casts, topology, context);
}

static double measured_gemm(const GemmShape *shape, DType dtype, const Topology *topology,
                            const ComputeContext *context)
{
    const MeasuredLoad load = load_of(context);
    const guint64 mnk[] = {shape->m, shape->n, shape->k};
    const double rate = measured_gemm_rate(&topology->measured, &load, dtype, mnk);

    if (rate > 0)
        return 2.0 * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n *
               (double)shape->k / rate;
    if (dtype == DTYPE_FP32)
        return nominal_gemm(shape, dtype, topology, context);
    return converted_gemm(shape, dtype, topology, context);
}

static double measured_attention(const Op *op, const Topology *topology,
                                 const ComputeContext *context)
{
    const MeasuredLoad load = load_of(context);
    const guint64 size[] = {attention_keys(op), op->sizes.head_dim};
    const char *name = op_kind_name(op->kind);
    double rate = measured_op_rate(&topology->measured, &load, name, op->dtype, size);

    if (rate == 0)
        rate = measured_op_rate(&topology->measured, &load, name, DTYPE_FP32, size);
    if (rate == 0)
        return nominal_attention(op, topology, context);
    return op_flops(op) / rate;
}

static double measured_overhead(const Topology *topology, const ComputeContext *context)
{
    return topology->measured.op_overhead_s * time_sharing(context);
}

const DeviceCost device_cost_cpu_measured = {
    .gemm = measured_gemm,
    .attention = measured_attention,
    .memory = measured_memory,
    .overhead = measured_overhead,
    .load = load_of,
    .attention_keys = attention_keys,
};
