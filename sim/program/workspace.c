/* What scratch an op needs at most, by the kernels of each device.  Both interpreters read it. */
#include "sim/program/cpu_blocks.h"
#include "sim/program/cuda_blocks.h"
#include "sim/program/op.h"

/* ---- of attention to chosen keys, on any device ---- */

/* Queries whose scores of all keys are there at a time: enough for a GPU's multiprocessors. */
enum { INDEX_ROWS = 512 };

/* index                        scores fp32 of INDEX_ROWS queries, from which the largest are taken
 * indexed_attention_backward   sums of dk fp32, and rowsum(do * o)
 * index_backward               sums of dk fp32, and the gradients of the chosen keys' scores
 *
 * The buffers of cuDNN's kernels (NVIDIA/cudnn-frontend, docs/fe-oss-apis/dsa.md), but its scores
 * are of all queries at once. */
static guint64 indexed_bytes(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const guint64 tokens = s->batch * s->seq, keys = op_key_blocks(op) * tokens;

    switch (op->kind) {
    case OP_INDEX:
        return 4 * MIN(s->rows, INDEX_ROWS) * op_key_blocks(op) * s->seq;
    case OP_INDEXED_ATTENTION_BACKWARD:
        return 4 * (keys * s->head_dim + tokens * s->heads);
    case OP_INDEX_BACKWARD:
        return 4 * (keys * s->head_dim + tokens * s->top_k);
    default:
        return 0;
    }
}

/* ---- scratch of the CPU kernels (exec/device/cpu_*.c); f(n) = n fp32 values, rounded up to 64
 * bytes ----
 */

static guint64 floats(guint64 elements)
{
    return cpu_scratch_bytes(elements, sizeof(float));
}

/* f(O I) + f(R I) + f(R O), R = min(N, CPU_LINEAR_ROWS): the weight (or its gradient's sum) and a
 * block of both activations in fp32.  What is fp32 already is used where it lies. */
static guint64 linear_cpu_bytes(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const guint64 rows = MIN(s->rows, CPU_LINEAR_ROWS);
    const gboolean gradient =
        op->kind == OP_LINEAR_BACKWARD_WEIGHT || op->kind == OP_GROUPED_LINEAR_BACKWARD_WEIGHT;
    const DType weight = gradient ? op->dtype_out : op->dtype;
    guint64 bytes = 0;

    if (weight != DTYPE_FP32)
        bytes += floats(s->out * s->in);
    if (op->dtype != DTYPE_FP32)
        bytes += floats(rows * s->in) + floats(rows * s->out);
    return bytes;
}

/* R = min(N, chunk) rows of logits f(R V) and of losses 8 R; bf16 adds x and dx 2 f(R C), a block
 * of the weight f(min(V, CPU_HEAD_VOCAB) C), and the gradient's sum f(V C) where that is bf16. */
static guint64 head_cpu_bytes(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const guint64 rows = MIN(s->rows, s->chunk);
    guint64 bytes = floats(rows * s->out) + cpu_scratch_bytes(rows, sizeof(double));

    if (op->dtype != DTYPE_FP32)
        bytes += 2 * floats(rows * s->in) + floats(MIN(s->out, CPU_HEAD_VOCAB) * s->in);
    if (op->kind == OP_HEAD_LOSS && op->dtype_out != DTYPE_FP32)
        bytes += floats(s->out * s->in);
    return bytes;
}

/* A thread: tiles of q and o 2 f(Q D), of k and v 2 f(E D), of scores f(Q E), maxima and sums
 * 2 f(Q); Q = CPU_ATTENTION_QUERIES, E = CPU_ATTENTION_KEYS. */
static guint64 attention_cpu_bytes(const Op *op, guint threads)
{
    const guint64 queries = CPU_ATTENTION_QUERIES, keys = CPU_ATTENTION_KEYS,
                  dim = op->sizes.head_dim;

    return threads * (2 * floats(queries * dim) + 2 * floats(keys * dim) + floats(queries * keys) +
                      2 * floats(queries));
}

/* A thread: k, v, dk, dv of one kv head 4 f(B T D), tiles of q, do, o, dq 4 f(Q D), of p and dp
 * 2 f(Q E), rowsum(do * o) f(Q). */
static guint64 attention_backward_cpu_bytes(const Op *op, guint threads)
{
    const guint64 queries = CPU_ATTENTION_QUERIES, keys = CPU_ATTENTION_KEYS,
                  dim = op->sizes.head_dim;

    return threads * (4 * floats(op_key_blocks(op) * op->sizes.seq * dim) +
                      4 * floats(queries * dim) + 2 * floats(queries * keys) + floats(queries));
}

static guint64 cpu_workspace_bytes(const Op *op, guint threads)
{
    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_INPUT:
    case OP_LINEAR_BACKWARD_WEIGHT:
    case OP_GROUPED_LINEAR: /* one expert after the other */
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT:
        return linear_cpu_bytes(op);
    case OP_HEAD_LOSS:
    case OP_HEAD_STATS:
        return head_cpu_bytes(op);
    case OP_ATTENTION:
        return attention_cpu_bytes(op, threads);
    case OP_ATTENTION_BACKWARD:
        return attention_backward_cpu_bytes(op, threads);
    case OP_RMSNORM_BACKWARD:
        return floats(CPU_NORM_PARTIALS * op->sizes.in);
    case OP_LAYERNORM_BACKWARD:
        return floats(CPU_NORM_PARTIALS * 2 * op->sizes.in);
    default:
        return 0;
    }
}

/* ---- scratch of the CUDA kernels ---- */

/* Smallest and largest position (int32) of each tile of queries and, for each block, of keys. */
static guint64 tile_range_bytes(const Op *op)
{
    const guint64 tiles = (op->sizes.seq + CUDA_ATTENTION_TILE - 1) / CUDA_ATTENTION_TILE;

    return op_has_positions(op) ? 8 * (op->sizes.chunk + 1) * tiles : 0;
}

guint64 op_library_aligned(guint64 bytes)
{
    return (bytes + CUDA_LIBRARY_ALIGNMENT - 1) / CUDA_LIBRARY_ALIGNMENT * CUDA_LIBRARY_ALIGNMENT;
}

guint op_attention_scratch(OpKind kind)
{
    return kind == OP_ATTENTION ? 5 : 9;
}

gboolean op_library_attention(const Op *op)
{
    return (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_BACKWARD) &&
           !op_has_positions(op) && op->dtype == DTYPE_BF16 && op->dtype_out == DTYPE_BF16 &&
           op_value_dim(op) == op->sizes.head_dim;
}

const char *op_attention_row(OpKind kind, gboolean by_library)
{
    if (!by_library)
        return op_kind_name(kind);
    return kind == OP_ATTENTION ? "attention" MEASURED_BY_CUDNN
                                : "attention_backward" MEASURED_BY_CUDNN;
}

/* What any plan that cuDNN makes of the op may need, by the plans that its 9.19 makes for sm_80 to
 * sm_120 (tests/cuda/test_cudnn_plans.c asks the one that is installed).  Backward, for N tokens of
 * H heads of D: sums of dq in fp32 and rowsum(do * o), which our graph names; the sums once more,
 * of T rounded up (all engines before sm_90, and those of short sequences on sm_100); where heads
 * share keys, dk and dv of each in bf16; and counters.
 *
 *     4 N H D + 4 N H  +  4 N' H D + (2 + 2) N H D + 256
 *
 * Engines of sm_90 and sm_100 leave out the second sums; one bound holds for all, since a plan is
 * for a topology, whose GPUs have no compute capability. */
static guint64 library_attention_bytes(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const guint64 rows = s->batch * s->seq * s->heads;
    const guint64 seq = (s->seq + CUDA_LIBRARY_SEQ - 1) / CUDA_LIBRARY_SEQ * CUDA_LIBRARY_SEQ;

    if (!op_library_attention(op))
        return 0;
    if (op->kind == OP_ATTENTION)
        return CUDA_LIBRARY_ALIGNMENT;
    const guint64 shared = s->heads == s->kv_heads ? 0 : (2 + 2) * rows * s->head_dim;
    return op_library_aligned(4 * rows * s->head_dim) + op_library_aligned(4 * rows) +
           4 * s->batch * seq * s->heads * s->head_dim + shared + CUDA_LIBRARY_ALIGNMENT;
}

/* linear                 the library's, and after it 4 O for each of CUDA_BIAS_PARTIALS partial
 *                        sums of a bias' gradient
 * head_loss              the library's + chunk (V (4 + 2) + 8): logits fp32, dlogits in bf16 beside
 *                        them, losses of rows fp64
 * attention              where there are positions, their range for each tile; or what the library
 *                        needs that may run it
 * attention_backward     the same + 8 N H for lse and rowsum(do * o); all sums have one block; or
 *                        what the library needs
 * rmsnorm_backward       4 C for each of CUDA_NORM_PARTIALS partial sums of dw
 * layernorm_backward     the same for dw and for db */
static guint64 cuda_workspace_bytes(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const guint64 tokens = s->batch * s->seq;

    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR:
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT:
        return CUDA_GEMM_WORKSPACE_BYTES;
    case OP_LINEAR_BACKWARD_WEIGHT:
        return MAX(CUDA_GEMM_WORKSPACE_BYTES, 4 * CUDA_BIAS_PARTIALS * s->out);
    case OP_HEAD_LOSS:
    case OP_HEAD_STATS:
        return CUDA_GEMM_WORKSPACE_BYTES + MIN(s->rows, s->chunk) * (s->out * (4 + 2) + 8);
    case OP_ATTENTION:
        return MAX(tile_range_bytes(op), library_attention_bytes(op));
    case OP_ATTENTION_BACKWARD:
        return MAX(8 * tokens * s->heads + tile_range_bytes(op), library_attention_bytes(op));
    case OP_RMSNORM_BACKWARD:
        return 4 * CUDA_NORM_PARTIALS * s->in;
    case OP_LAYERNORM_BACKWARD:
        return 2 * 4 * CUDA_NORM_PARTIALS * s->in;
    default:
        return 0;
    }
}

/* 128 on a GPU: the alignment of DeepGEMM's contiguous grouped layout, and the rows of the larger
 * tiles.  A CPU takes one expert after the other. */
guint64 op_expert_rows(guint64 rows, DeviceKind device)
{
    const guint64 multiple = device == DEVICE_CUDA ? 128 : 1;

    return (rows + multiple - 1) / multiple * multiple;
}

guint64 op_workspace_bytes(const Op *op, DeviceKind device, guint threads)
{
    g_assert(threads >= 1);
    if (op_is_indexed(op))
        return indexed_bytes(op);
    return device == DEVICE_CPU ? cpu_workspace_bytes(op, threads) : cuda_workspace_bytes(op);
}
