/* What an op costs: FLOPs, bytes moved (scratch: workspace.c).  Both interpreters read it. */
#include "sim/input/workload.h"
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
 *     indexed_attention                           2 N B T H (D + D') / 2 s
 *     indexed_attention_backward (as above)       2 N B T H (3 D + 2 D') / 2 s
 *     index (scores of all keys)                  2 N B T H D / 2
 *     index_target (Q K^T again)                  2 N B T H D / 2 s
 *     index_backward (scores again, dQ, dK)       2 N B T H 3 D / 2 s
 *
 *     N rows, I/O columns, C hidden, V vocab, T sequence, H heads, D head_dim, D' of values (D but
 *     in latent attention), B blocks of T keys, s of all causal pairs those in the windows, or
 *     of chosen keys: k of T leave as many as a window of k
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
    case OP_INDEXED_ATTENTION:
        return (dim + value_dim) * seen_pairs(op);
    case OP_ATTENTION_BACKWARD:
    case OP_INDEXED_ATTENTION_BACKWARD:
        return (3 * dim + 2 * value_dim) * seen_pairs(op);
    case OP_INDEX:
    case OP_INDEX_TARGET:
        return dim * seen_pairs(op);
    case OP_INDEX_BACKWARD:
        return 3 * dim * seen_pairs(op);
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
    SHAPE_HEADS,    /* (H) */
    SHAPE_TABLE,    /* (T, D) */
    SHAPE_ROUTES,   /* (N, k) */
    SHAPE_ROUTED,   /* (N * k, C) */
    SHAPE_EXPERTS,  /* (E * O, I) */
    SHAPE_BIASES,   /* (E * O) */
    SHAPE_UP,       /* (N, H * (D - I + D')) */
    SHAPE_ROTATED,  /* (N, I) */
    SHAPE_ELEMENTS,
    SHAPE_UNIT,
    SHAPE_MOMENT, /* bytes of a moment of the unit */
} Shape;

typedef enum { TYPE_OP, TYPE_OUT, TYPE_FP32, TYPE_FP64, TYPE_INT32, TYPE_UINT8 } ElementType;

/* A shape and the type of its elements, in one number. */
#define OF(shape, type) ((shape) << TYPE_BITS | (type))
enum {
    TYPE_BITS = 3,
    INPUT = OF(SHAPE_ROWS_IN, TYPE_OP),
    OUTPUT = OF(SHAPE_ROWS_OUT, TYPE_OP),
    WEIGHT = OF(SHAPE_OUT_IN, TYPE_OP),
    WEIGHT_GRADIENT = OF(SHAPE_OUT_IN, TYPE_OUT),
    NORM = OF(SHAPE_IN, TYPE_OP),
    RSTD = OF(SHAPE_ROWS, TYPE_FP32),
    NORM_GRADIENT = OF(SHAPE_IN, TYPE_OUT),
    MOMENTS = OF(SHAPE_MOMENTS, TYPE_FP32),
    SCRATCH = OF(SHAPE_NOTHING, TYPE_OP),
    IDS = OF(SHAPE_ROWS, TYPE_INT32),
    QUERY = OF(SHAPE_QUERY, TYPE_OP),
    KEY = OF(SHAPE_KEY, TYPE_OP),
    KEYS = OF(SHAPE_KEYS, TYPE_OP),
    VALUES = OF(SHAPE_VALUES, TYPE_OP),
    GIVEN = OF(SHAPE_GIVEN, TYPE_OP),
    ROUTES = OF(SHAPE_ROUTES, TYPE_INT32),
    ROUTE_WEIGHTS = OF(SHAPE_ROUTES, TYPE_FP32),
    ROUTED = OF(SHAPE_ROUTED, TYPE_OP),
    EXPERTS = OF(SHAPE_EXPERTS, TYPE_OP),
    QUERY_RESULT = OF(SHAPE_QUERY, TYPE_OUT),
    KEYS_RESULT = OF(SHAPE_KEYS, TYPE_OUT),
    LSE = OF(SHAPE_LSE, TYPE_FP32),
    TABLE = OF(SHAPE_TABLE, TYPE_FP32),
    SCALAR = OF(SHAPE_ONE, TYPE_FP64),
    HYPER = OF(SHAPE_HYPER, TYPE_FP64),
    PARAMETER = OF(SHAPE_UNIT, TYPE_OP),
    GRADIENT = OF(SHAPE_UNIT, TYPE_OUT),
    MOMENT = OF(SHAPE_MOMENT, TYPE_UINT8),
    RESULT = OF(SHAPE_ROWS_OUT, TYPE_OUT),
    INPUT_RESULT = OF(SHAPE_ROWS_IN, TYPE_OUT),
    STATE = OF(SHAPE_UNIT, TYPE_FP32),
    POSITIONS = OF(SHAPE_SEQ, TYPE_INT32),
    KEY_POSITIONS = OF(SHAPE_BLOCKS, TYPE_INT32),
    HEAD_WEIGHTS = OF(SHAPE_LSE, TYPE_OP),
};

/* Operand by operand as in op.h.  A lookup has in = V, out = C, and touches one row of the table a
 * token. */
static const guint16 operand_kinds[NUM_OPS][MAX_OPERANDS] = {
    [OP_EMBED] = {IDS, OUTPUT, OUTPUT},
    [OP_RMSNORM] = {INPUT, NORM, INPUT, RSTD, INPUT, INPUT},
    [OP_RMSNORM_APPLY] = {INPUT, NORM, RSTD, INPUT},
    [OP_LAYERNORM] = {INPUT, NORM, NORM, INPUT, MOMENTS, INPUT, INPUT},
    [OP_LAYERNORM_APPLY] = {INPUT, NORM, NORM, MOMENTS, INPUT},
    [OP_LINEAR] = {INPUT, WEIGHT, RESULT, SCRATCH, OF(SHAPE_OUT, TYPE_OUT)},
    [OP_ADD_BIAS] = {INPUT, NORM},
    [OP_ROPE] = {QUERY, KEY, TABLE},
    [OP_ATTENTION] = {QUERY, KEYS, VALUES, OF(SHAPE_GIVEN, TYPE_OUT), LSE, SCRATCH, POSITIONS,
                      KEY_POSITIONS},
    [OP_SWIGLU] = {INPUT, INPUT, INPUT, RSTD},
    [OP_GELU] = {INPUT, INPUT},
    [OP_HEAD_LOSS] = {INPUT, WEIGHT, IDS, SCALAR, SCALAR, INPUT, WEIGHT_GRADIENT},
    [OP_HEAD_STATS] = {INPUT, WEIGHT, IDS, SCALAR, OF(SHAPE_STATS, TYPE_FP32)},
    [OP_EMBED_BACKWARD] = {IDS, OUTPUT, OF(SHAPE_ROWS_OUT, TYPE_OUT)},
    [OP_RMSNORM_BACKWARD] = {INPUT, INPUT, NORM, RSTD, INPUT, NORM_GRADIENT, SCRATCH, RSTD},
    [OP_LAYERNORM_BACKWARD] = {INPUT, INPUT, NORM, MOMENTS, INPUT, NORM_GRADIENT, NORM_GRADIENT},
    [OP_LINEAR_BACKWARD_INPUT] = {OUTPUT, WEIGHT, INPUT_RESULT},
    [OP_LINEAR_BACKWARD_WEIGHT] = {OUTPUT, INPUT, WEIGHT_GRADIENT, SCRATCH,
                                   OF(SHAPE_OUT, TYPE_OUT)},
    [OP_ROPE_BACKWARD] = {QUERY, KEY, TABLE},
    [OP_ATTENTION_BACKWARD] = {GIVEN, QUERY, KEYS, VALUES, GIVEN, LSE, QUERY_RESULT, KEYS_RESULT,
                               OF(SHAPE_VALUES, TYPE_OUT), SCRATCH, POSITIONS, KEY_POSITIONS},
    [OP_SWIGLU_BACKWARD] = {INPUT, INPUT, INPUT, RSTD, RSTD},
    [OP_GELU_BACKWARD] = {INPUT, INPUT},
    [OP_COUNT_VALID] = {IDS, SCALAR},
    [OP_ACCUMULATE] = {OF(SHAPE_ELEMENTS, TYPE_OP), OF(SHAPE_ELEMENTS, TYPE_OUT),
                       OF(SHAPE_ELEMENTS, TYPE_OUT)},
    [OP_CAST] = {OF(SHAPE_ELEMENTS, TYPE_OP), OF(SHAPE_ELEMENTS, TYPE_OUT)},
    [OP_COPY] = {OF(SHAPE_ELEMENTS, TYPE_OP), OF(SHAPE_ELEMENTS, TYPE_OP)},
    [OP_AMAX] = {PARAMETER, SCRATCH},
    [OP_QUANTISE] = {PARAMETER, SCRATCH, OF(SHAPE_UNIT, TYPE_UINT8), SCRATCH},
    [OP_DEQUANTISE] = {OF(SHAPE_ELEMENTS, TYPE_UINT8), SCRATCH, OF(SHAPE_ELEMENTS, TYPE_OUT)},
    [OP_SQUARED_NORM] = {GRADIENT, SCALAR},
    [OP_CLIP] = {HYPER, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, SCALAR},
    [OP_ADAMW] = {PARAMETER, GRADIENT, MOMENT, MOMENT, HYPER, SCALAR, STATE},
    [OP_SGD] = {PARAMETER, GRADIENT, HYPER, SCALAR, STATE},
    [OP_ROUTE] = {INPUT, ROUTE_WEIGHTS, ROUTES},
    [OP_ROUTE_BACKWARD] = {ROUTE_WEIGHTS, ROUTE_WEIGHTS, ROUTES, INPUT, INPUT},
    [OP_PERMUTE] = {INPUT, ROUTES, ROUTED},
    [OP_UNPERMUTE] = {ROUTED, ROUTES, INPUT},
    [OP_GROUPED_LINEAR] = {INPUT, EXPERTS, RESULT, SCRATCH, OF(SHAPE_BIASES, TYPE_OUT), RSTD},
    [OP_GROUPED_LINEAR_BACKWARD_INPUT] = {OUTPUT, EXPERTS, INPUT_RESULT, SCRATCH,
                                          OF(SHAPE_BIASES, TYPE_OUT), RSTD},
    [OP_GROUPED_LINEAR_BACKWARD_WEIGHT] = {OUTPUT, INPUT, OF(SHAPE_EXPERTS, TYPE_OUT), SCRATCH,
                                           OF(SHAPE_BIASES, TYPE_OUT), RSTD},
    [OP_LATENT_JOIN] = {OF(SHAPE_UP, TYPE_OP), OF(SHAPE_ROTATED, TYPE_OP), QUERY, GIVEN},
    [OP_LATENT_JOIN_BACKWARD] = {QUERY, GIVEN, OF(SHAPE_UP, TYPE_OP), OF(SHAPE_ROTATED, TYPE_OP)},
    [OP_SINKS_BACKWARD] = {GIVEN, GIVEN, LSE, OF(SHAPE_HEADS, TYPE_OP), OF(SHAPE_HEADS, TYPE_OUT)},
    [OP_SIGMOID] = {OF(SHAPE_ROWS, TYPE_OP), RSTD},
    [OP_SIGMOID_BACKWARD] = {RSTD, RSTD, OF(SHAPE_ROWS, TYPE_OP)},
    [OP_INDEX] = {QUERY, KEYS, HEAD_WEIGHTS, ROUTES, SCRATCH, POSITIONS, KEY_POSITIONS},
    [OP_INDEXED_ATTENTION] = {QUERY, KEYS, ROUTES, GIVEN, LSE, SCRATCH},
    [OP_INDEXED_ATTENTION_BACKWARD] = {GIVEN, QUERY, KEYS, ROUTES, GIVEN, LSE, QUERY, KEYS,
                                       SCRATCH},
    [OP_INDEX_TARGET] = {QUERY, KEYS, ROUTES, LSE, ROUTE_WEIGHTS},
    [OP_INDEX_BACKWARD] = {ROUTE_WEIGHTS, ROUTES, QUERY, KEYS, HEAD_WEIGHTS, QUERY, KEYS,
                           HEAD_WEIGHTS, SCRATCH},
    [OP_ROW_SUMS] = {INPUT, RSTD, INPUT, NORM},
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
    case SHAPE_BIASES:
        return s->groups * s->out;
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
    case SHAPE_HEADS:
        return s->heads;
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

static guint counted_operands(const Op *op)
{
    return op_class(op->kind) == OP_CLASS_ATTENTION ? op_attention_operands(op) : op->num_operands;
}

/* Each operand once: read or written, an update both (but dequantising, which fills what gathers
 * left out).  An accumulation counts as its first call (a write).  Left out: what a kernel reads
 * twice, scratch, and a number a head of sinks.  Communication moves what op_volume_bytes()
 * says: 0 here.  Derived here. */
double op_memory_bytes(const Op *op, guint64 unit_elements)
{
    double bytes = embed_gradient_bytes(op);

    if (op_kind_is_communication(op->kind))
        return 0;
    for (guint i = 0; i < counted_operands(op); i++) {
        const guint operand = operand_kinds[op->kind][i];
        const guint64 elements = shape_elements(op, (Shape)(operand >> TYPE_BITS), unit_elements);
        const DType dtype = element_dtype(op, (ElementType)(operand & (OF(1, 0) - 1)));
        const gboolean again = op->operands[i].access == ACCESS_UPDATE && op->kind != OP_DEQUANTISE;
        const guint passes = again ? 2 : 1;

        bytes += (double)passes * (double)elements * dtype_bytes(dtype);
    }
    return bytes;
}
