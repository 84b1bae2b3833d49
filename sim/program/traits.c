/* What an op costs: FLOPs, bytes moved, scratch.  Both interpreters read it. */
#include "sim/input/workload.h"
#include "sim/program/cpu_blocks.h"
#include "sim/program/cuda_blocks.h"
#include "sim/program/op.h"

/* ---- FLOPs ---- */

/* Pairs of a query and a key that attention computes, times two. */
static double seen_pairs(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const double square = (double)s->batch * (double)s->seq * (double)s->seq * (double)s->heads;

    return square * (double)op_key_blocks(op) * op_seen_pairs(op);
}

/* Products of the op, a multiply and an add being two:
 *
 *     linear, and each of its two backward ops    2 N I O      grouped ones too: a row meets one
 *                                                              expert, rows that pad included
 *     head_loss (logits, dx, dW)                  3 * 2 N C V
 *     head_stats (logits)                         2 N C V
 *     attention (Q K^T, P V)                      2 N B T H (D + D') / 2 s
 *     attention_backward (those of the forward    2 N B T H (3 D + 2 D') / 2 s
 *         pass's S again, dP, dV, dQ, dK)
 *
 *     N rows, I/O columns, C hidden, V vocab, T sequence, H heads, D head_dim, D' of values (D but
 *     in latent attention), B blocks of T keys, s of all causal pairs those in the windows
 *
 * The halves are the causal mask.  With positions they hold where each rank has as many early
 * tokens as late ones (zigzag): of any block it sees half of all pairs.  Left out, as in model
 * FLOPs: everything elementwise (those ops are bound by op_memory_bytes()), and what tiles compute
 * above the diagonal.  Derived here; the five products of the backward pass are those of Dao,
 * FlashAttention-2, arXiv 2307.08691, alg. 2.
 */
double op_flops(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const double product = 2.0 * (double)s->rows * (double)s->in * (double)s->out;
    const double dim = (double)s->head_dim, value_dim = (double)op_value_dim(op);

    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_INPUT:
    case OP_LINEAR_BACKWARD_WEIGHT:
    case OP_GROUPED_LINEAR:
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT:
        return product;
    case OP_HEAD_LOSS:
        return 3 * product;
    case OP_HEAD_STATS:
        return product;
    case OP_ATTENTION:
        return (dim + value_dim) * seen_pairs(op);
    case OP_ATTENTION_BACKWARD:
        return (3 * dim + 2 * value_dim) * seen_pairs(op);
    default:
        return 0;
    }
}

/* ---- bytes moved ---- */

/* The shapes of op.h. */
typedef enum {
    SHAPE_NOTHING, /* scratch: not memory that the op must move */
    SHAPE_ONE,
    SHAPE_HYPER,
    SHAPE_ROWS,     /* (N) */
    SHAPE_STATS,    /* (N, 3) */
    SHAPE_MOMENTS,  /* (N, 2) */
    SHAPE_ROWS_IN,  /* (N, I), (N, C), (N, F) */
    SHAPE_ROWS_OUT, /* (N, O) */
    SHAPE_IN,       /* (C) */
    SHAPE_OUT,      /* (O) */
    SHAPE_OUT_IN,   /* (O, I), (V, C) */
    SHAPE_QUERY,    /* (N, H * D) */
    SHAPE_KEY,      /* (N, K * D) */
    SHAPE_KEYS,     /* (M, K * D), M = N of each block */
    SHAPE_VALUES,   /* (M, K * D') */
    SHAPE_GIVEN,    /* (N, H * D'): what attention gives */
    SHAPE_SEQ,      /* (T) */
    SHAPE_BLOCKS,   /* (blocks * T) */
    SHAPE_LSE,      /* (batch, H, T) */
    SHAPE_TABLE,    /* (T, D) */
    SHAPE_ROUTES,   /* (N, k) */
    SHAPE_ROUTED,   /* (N * k, C) */
    SHAPE_EXPERTS,  /* (E * O, I) */
    SHAPE_UP,       /* (N, H * (D - I + D')) */
    SHAPE_ROTATED,  /* (N, I) */
    SHAPE_ELEMENTS,
    SHAPE_UNIT,
    SHAPE_MOMENT, /* bytes of a moment of the unit */
} Shape;

typedef enum { TYPE_OP, TYPE_OUT, TYPE_FP32, TYPE_FP64, TYPE_INT32, TYPE_UINT8 } ElementType;

typedef struct {
    Shape shape;
    ElementType type;
} OperandShape;

#define INPUT                                                                                      \
    {                                                                                              \
        SHAPE_ROWS_IN, TYPE_OP                                                                     \
    }
#define OUTPUT                                                                                     \
    {                                                                                              \
        SHAPE_ROWS_OUT, TYPE_OP                                                                    \
    }
#define WEIGHT                                                                                     \
    {                                                                                              \
        SHAPE_OUT_IN, TYPE_OP                                                                      \
    }
#define WEIGHT_GRADIENT                                                                            \
    {                                                                                              \
        SHAPE_OUT_IN, TYPE_OUT                                                                     \
    }
#define NORM                                                                                       \
    {                                                                                              \
        SHAPE_IN, TYPE_OP                                                                          \
    }
#define RSTD                                                                                       \
    {                                                                                              \
        SHAPE_ROWS, TYPE_FP32                                                                      \
    }
#define NORM_GRADIENT                                                                              \
    {                                                                                              \
        SHAPE_IN, TYPE_OUT                                                                         \
    }
#define MOMENTS                                                                                    \
    {                                                                                              \
        SHAPE_MOMENTS, TYPE_FP32                                                                   \
    }
#define SCRATCH                                                                                    \
    {                                                                                              \
        SHAPE_NOTHING, TYPE_OP                                                                     \
    }
#define IDS                                                                                        \
    {                                                                                              \
        SHAPE_ROWS, TYPE_INT32                                                                     \
    }
#define QUERY                                                                                      \
    {                                                                                              \
        SHAPE_QUERY, TYPE_OP                                                                       \
    }
#define KEY                                                                                        \
    {                                                                                              \
        SHAPE_KEY, TYPE_OP                                                                         \
    }
#define KEYS                                                                                       \
    {                                                                                              \
        SHAPE_KEYS, TYPE_OP                                                                        \
    }
#define VALUES                                                                                     \
    {                                                                                              \
        SHAPE_VALUES, TYPE_OP                                                                      \
    }
#define GIVEN                                                                                      \
    {                                                                                              \
        SHAPE_GIVEN, TYPE_OP                                                                       \
    }
#define ROUTES                                                                                     \
    {                                                                                              \
        SHAPE_ROUTES, TYPE_INT32                                                                   \
    }
#define ROUTE_WEIGHTS                                                                              \
    {                                                                                              \
        SHAPE_ROUTES, TYPE_FP32                                                                    \
    }
#define ROUTED                                                                                     \
    {                                                                                              \
        SHAPE_ROUTED, TYPE_OP                                                                      \
    }
#define EXPERTS                                                                                    \
    {                                                                                              \
        SHAPE_EXPERTS, TYPE_OP                                                                     \
    }
#define QUERY_RESULT                                                                               \
    {                                                                                              \
        SHAPE_QUERY, TYPE_OUT                                                                      \
    }
#define KEYS_RESULT                                                                                \
    {                                                                                              \
        SHAPE_KEYS, TYPE_OUT                                                                       \
    }
#define POSITIONS                                                                                  \
    {SHAPE_SEQ, TYPE_INT32},                                                                       \
    {                                                                                              \
        SHAPE_BLOCKS, TYPE_INT32                                                                   \
    }
#define LSE                                                                                        \
    {                                                                                              \
        SHAPE_LSE, TYPE_FP32                                                                       \
    }
#define TABLE                                                                                      \
    {                                                                                              \
        SHAPE_TABLE, TYPE_FP32                                                                     \
    }
#define SCALAR                                                                                     \
    {                                                                                              \
        SHAPE_ONE, TYPE_FP64                                                                       \
    }
#define HYPER                                                                                      \
    {                                                                                              \
        SHAPE_HYPER, TYPE_FP64                                                                     \
    }
#define PARAMETER                                                                                  \
    {                                                                                              \
        SHAPE_UNIT, TYPE_OP                                                                        \
    }
#define GRADIENT                                                                                   \
    {                                                                                              \
        SHAPE_UNIT, TYPE_OUT                                                                       \
    }
#define MOMENT                                                                                     \
    {                                                                                              \
        SHAPE_MOMENT, TYPE_UINT8                                                                   \
    }
#define RESULT                                                                                     \
    {                                                                                              \
        SHAPE_ROWS_OUT, TYPE_OUT                                                                   \
    }
#define INPUT_RESULT                                                                               \
    {                                                                                              \
        SHAPE_ROWS_IN, TYPE_OUT                                                                    \
    }
#define STATE                                                                                      \
    {                                                                                              \
        SHAPE_UNIT, TYPE_FP32                                                                      \
    }

/* Operand by operand as in op.h.  A lookup has in = V, out = C, and touches one row of the table a
 * token. */
static const OperandShape shapes[NUM_OPS][MAX_OPERANDS] = {
    [OP_EMBED] = {IDS, OUTPUT, OUTPUT},
    [OP_RMSNORM] = {INPUT, NORM, INPUT, RSTD, INPUT, INPUT},
    [OP_RMSNORM_APPLY] = {INPUT, NORM, RSTD, INPUT},
    [OP_LAYERNORM] = {INPUT, NORM, NORM, INPUT, MOMENTS, INPUT, INPUT},
    [OP_LAYERNORM_APPLY] = {INPUT, NORM, NORM, MOMENTS, INPUT},
    [OP_LINEAR] = {INPUT, WEIGHT, RESULT, SCRATCH, {SHAPE_OUT, TYPE_OUT}},
    [OP_ADD_BIAS] = {INPUT, NORM},
    [OP_ROPE] = {QUERY, KEY, TABLE},
    [OP_ATTENTION] = {QUERY, KEYS, VALUES, {SHAPE_GIVEN, TYPE_OUT}, LSE, SCRATCH, POSITIONS},
    [OP_SWIGLU] = {INPUT, INPUT, INPUT, RSTD},
    [OP_GELU] = {INPUT, INPUT},
    [OP_HEAD_LOSS] = {INPUT, WEIGHT, IDS, SCALAR, SCALAR, INPUT, WEIGHT_GRADIENT},
    [OP_HEAD_STATS] = {INPUT, WEIGHT, IDS, SCALAR, {SHAPE_STATS, TYPE_FP32}},
    [OP_EMBED_BACKWARD] = {IDS, OUTPUT, {SHAPE_ROWS_OUT, TYPE_OUT}},
    [OP_RMSNORM_BACKWARD] = {INPUT, INPUT, NORM, RSTD, INPUT, NORM_GRADIENT},
    [OP_LAYERNORM_BACKWARD] = {INPUT, INPUT, NORM, MOMENTS, INPUT, NORM_GRADIENT, NORM_GRADIENT},
    [OP_LINEAR_BACKWARD_INPUT] = {OUTPUT, WEIGHT, INPUT_RESULT},
    [OP_LINEAR_BACKWARD_WEIGHT] = {OUTPUT, INPUT, WEIGHT_GRADIENT, SCRATCH, {SHAPE_OUT, TYPE_OUT}},
    [OP_ROPE_BACKWARD] = {QUERY, KEY, TABLE},
    [OP_ATTENTION_BACKWARD] = {GIVEN,
                               QUERY,
                               KEYS,
                               VALUES,
                               GIVEN,
                               LSE,
                               QUERY_RESULT,
                               KEYS_RESULT,
                               {SHAPE_VALUES, TYPE_OUT},
                               SCRATCH,
                               POSITIONS},
    [OP_SWIGLU_BACKWARD] = {INPUT, INPUT, INPUT, RSTD, RSTD},
    [OP_GELU_BACKWARD] = {INPUT, INPUT},
    [OP_COUNT_VALID] = {IDS, SCALAR},
    [OP_ACCUMULATE] = {{SHAPE_ELEMENTS, TYPE_OP},
                       {SHAPE_ELEMENTS, TYPE_OUT},
                       {SHAPE_ELEMENTS, TYPE_OUT}},
    [OP_CAST] = {{SHAPE_ELEMENTS, TYPE_OP}, {SHAPE_ELEMENTS, TYPE_OUT}},
    [OP_COPY] = {{SHAPE_ELEMENTS, TYPE_OP}, {SHAPE_ELEMENTS, TYPE_OP}},
    [OP_AMAX] = {PARAMETER, SCRATCH},
    [OP_QUANTISE] = {PARAMETER, SCRATCH, {SHAPE_UNIT, TYPE_UINT8}, SCRATCH},
    [OP_DEQUANTISE] = {{SHAPE_ELEMENTS, TYPE_UINT8}, SCRATCH, {SHAPE_ELEMENTS, TYPE_OUT}},
    [OP_SQUARED_NORM] = {GRADIENT, SCALAR},
    [OP_CLIP] = {HYPER, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR},
    [OP_ADAMW] = {PARAMETER, GRADIENT, MOMENT, MOMENT, HYPER, SCALAR, STATE},
    [OP_SGD] = {PARAMETER, GRADIENT, HYPER, SCALAR, STATE},
    [OP_ROUTE] = {INPUT, ROUTE_WEIGHTS, ROUTES},
    [OP_ROUTE_BACKWARD] = {ROUTE_WEIGHTS, ROUTE_WEIGHTS, ROUTES, INPUT, INPUT},
    [OP_PERMUTE] = {INPUT, ROUTES, ROUTED},
    [OP_UNPERMUTE] = {ROUTED, ROUTES, INPUT},
    [OP_GROUPED_LINEAR] = {INPUT, EXPERTS, RESULT},
    [OP_GROUPED_LINEAR_BACKWARD_INPUT] = {OUTPUT, EXPERTS, INPUT_RESULT},
    [OP_GROUPED_LINEAR_BACKWARD_WEIGHT] = {OUTPUT, INPUT, {SHAPE_EXPERTS, TYPE_OUT}},
    [OP_LATENT_JOIN] = {{SHAPE_UP, TYPE_OP}, {SHAPE_ROTATED, TYPE_OP}, QUERY, GIVEN},
    [OP_LATENT_JOIN_BACKWARD] = {QUERY, GIVEN, {SHAPE_UP, TYPE_OP}, {SHAPE_ROTATED, TYPE_OP}},
};

static guint64 shape_elements(const Op *op, Shape shape, guint64 unit_elements)
{
    const OpSizes *s = &op->sizes;
    const guint64 tokens = s->batch * s->seq;

    switch (shape) {
    case SHAPE_NOTHING:
        return 0;
    case SHAPE_ONE:
        return 1;
    case SHAPE_HYPER:
        return NUM_HYPER;
    case SHAPE_ROWS:
        return s->rows;
    case SHAPE_STATS:
        return s->rows * NUM_STATS;
    case SHAPE_MOMENTS:
        return s->rows * NUM_LAYERNORM;
    case SHAPE_ROWS_IN:
        return s->rows * s->in;
    case SHAPE_ROWS_OUT:
        return s->rows * s->out;
    case SHAPE_IN:
        return s->in;
    case SHAPE_OUT:
        return s->out;
    case SHAPE_OUT_IN:
        return s->out * s->in;
    case SHAPE_QUERY:
        return tokens * s->heads * s->head_dim;
    case SHAPE_KEY:
        return tokens * s->kv_heads * s->head_dim;
    case SHAPE_KEYS:
        return op_key_blocks(op) * tokens * s->kv_heads * s->head_dim;
    case SHAPE_VALUES:
        return op_key_blocks(op) * tokens * s->kv_heads * op_value_dim(op);
    case SHAPE_GIVEN:
        return tokens * s->heads * op_value_dim(op);
    case SHAPE_ROUTES:
        return s->rows * s->top_k;
    case SHAPE_ROUTED:
        return s->rows * s->top_k * s->in;
    case SHAPE_EXPERTS:
        return s->groups * s->out * s->in;
    case SHAPE_UP:
        return tokens * s->heads * (s->head_dim - s->in + op_value_dim(op));
    case SHAPE_ROTATED:
        return tokens * s->in;
    case SHAPE_SEQ:
        return s->seq;
    case SHAPE_BLOCKS:
        return op_key_blocks(op) * s->seq;
    case SHAPE_LSE:
        return tokens * s->heads;
    case SHAPE_TABLE:
        return s->seq * s->head_dim;
    case SHAPE_ELEMENTS:
        return s->elements;
    case SHAPE_UNIT:
        return unit_elements;
    case SHAPE_MOMENT:
        return moment_bytes(unit_elements, (guint)s->chunk);
    }
    g_assert_not_reached();
}

static DType element_dtype(const Op *op, ElementType type)
{
    switch (type) {
    case TYPE_OP:
        return op->dtype;
    case TYPE_OUT:
        return op->dtype_out;
    case TYPE_FP32:
        return DTYPE_FP32;
    case TYPE_FP64:
        return DTYPE_FP64;
    case TYPE_INT32:
        return DTYPE_INT32;
    case TYPE_UINT8:
        return DTYPE_UINT8;
    }
    g_assert_not_reached();
}

/* An embedding's gradient is zeroed as a whole, but where it holds sums already; then rows are
 * added to it, which reads them too. */
static double embed_gradient_bytes(const Op *op)
{
    const OpSizes *s = &op->sizes;
    const double size = dtype_bytes(op->dtype_out);
    const Access access = op->num_operands > 2 ? op->operands[2].access : ACCESS_READ;

    if (op->kind != OP_EMBED_BACKWARD || access == ACCESS_READ || access == ACCESS_UPDATE)
        return 0;
    return ((double)s->in * (double)s->out + (double)s->rows * (double)s->out) * size;
}

/* Each operand once: read or written, an update both (but dequantising, which fills what gathers
 * left out).  An accumulation counts as its first call (a write).  Left out: what a kernel reads
 * twice, and scratch.  Communication moves what op_volume_bytes() says: 0 here.  Derived here. */
double op_memory_bytes(const Op *op, guint64 unit_elements)
{
    double bytes = embed_gradient_bytes(op);

    if (op_kind_is_communication(op->kind))
        return 0;
    for (guint i = 0; i < op->num_operands; i++) {
        const OperandShape *operand = &shapes[op->kind][i];
        const guint64 elements = shape_elements(op, operand->shape, unit_elements);
        const gboolean again = op->operands[i].access == ACCESS_UPDATE && op->kind != OP_DEQUANTISE;
        const guint passes = again ? 2 : 1;

        bytes += (double)passes * (double)elements * dtype_bytes(element_dtype(op, operand->type));
    }
    return bytes;
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

/* Smallest and largest position (int32) of each tile of queries and, for each block, of keys; none
 * where the op has no more than @operands. */
static guint64 tile_range_bytes(const Op *op, guint operands)
{
    const guint64 tiles = (op->sizes.seq + CUDA_ATTENTION_TILE - 1) / CUDA_ATTENTION_TILE;

    return op->num_operands > operands ? 8 * (op->sizes.chunk + 1) * tiles : 0;
}

static guint64 cuda_aligned(guint64 bytes)
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
           op->num_operands <= op_attention_scratch(op->kind) + 1 && op->dtype == DTYPE_BF16 &&
           op->dtype_out == DTYPE_BF16 && op_value_dim(op) == op->sizes.head_dim;
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
    return cuda_aligned(4 * rows * s->head_dim) + cuda_aligned(4 * rows) +
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
        return MAX(tile_range_bytes(op, 6), library_attention_bytes(op));
    case OP_ATTENTION_BACKWARD:
        return MAX(8 * tokens * s->heads + tile_range_bytes(op, 10), library_attention_bytes(op));
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
    return device == DEVICE_CPU ? cpu_workspace_bytes(op, threads) : cuda_workspace_bytes(op);
}
