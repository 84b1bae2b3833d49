/* A device and ops to price on it. */
#pragma once

#include "sim/cost/compute.h"
#include "sim/program/program.h"
#include "tests/suite.h"

static const ComputeContext alone = {.busy = 1, .threads = 1, .cores = 2};
static const double LAUNCH_S = 3e-6; /* of a GPU's kernel: sim/cost/compute_cuda.c */

/* The caller owns the arrays of rows: see topology_clear(). */
static inline Topology test_topology(DeviceKind kind, char *gpu)
{
    return (Topology){
        .name = (char *)"test",
        .nodes = 1,
        .gpus_per_node = 2,
        .gpu = {.name = gpu,
                .kind = kind,
                .peak_flops = {[DTYPE_FP32] = 20e12, [DTYPE_BF16] = 312e12, [DTYPE_FP8] = 1979e12},
                .memory_bytes_per_s = 1e12},
        .measured = {.gemm = g_array_new(FALSE, FALSE, sizeof(MeasuredGemm)),
                     .ops = g_array_new(FALSE, FALSE, sizeof(MeasuredOp))},
    };
}

static inline void topology_clear(Topology *topology)
{
    g_array_unref(topology->measured.gemm);
    g_array_unref(topology->measured.ops);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Topology, topology_clear)

static inline Op attention(OpKind kind, guint64 seq)
{
    return (Op){
        .kind = kind,
        .dtype = DTYPE_BF16,
        .dtype_out = DTYPE_BF16,
        .sizes = {
            .rows = 2 * seq, .batch = 2, .seq = seq, .heads = 32, .kv_heads = 32, .head_dim = 128}};
}

/* dst += src: 4 bytes read, 4 read and 4 written per element of fp32. */
static inline Op accumulate(guint64 elements)
{
    Op op = {.kind = OP_ACCUMULATE,
             .dtype = DTYPE_FP32,
             .dtype_out = DTYPE_FP32,
             .sizes = {.elements = elements}};

    op_add_operand(&op, 0, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(&op, 1, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    return op;
}
