#include "sim/program/op.h"

/* Every kind, once. */
static const struct {
    const char *name;
    OpClass time_class;
} kinds[NUM_OPS] = {
    [OP_EMBED] = {"embed", OP_CLASS_MEMORY_BOUND},
    [OP_RMSNORM] = {"rmsnorm", OP_CLASS_MEMORY_BOUND},
    [OP_RMSNORM_APPLY] = {"rmsnorm_apply", OP_CLASS_MEMORY_BOUND},
    [OP_LAYERNORM] = {"layernorm", OP_CLASS_MEMORY_BOUND},
    [OP_LAYERNORM_APPLY] = {"layernorm_apply", OP_CLASS_MEMORY_BOUND},
    [OP_LINEAR] = {"linear", OP_CLASS_GEMM},
    [OP_ADD_BIAS] = {"add_bias", OP_CLASS_MEMORY_BOUND},
    [OP_ROPE] = {"rope", OP_CLASS_MEMORY_BOUND},
    [OP_ATTENTION] = {"attention", OP_CLASS_ATTENTION},
    [OP_SWIGLU] = {"swiglu", OP_CLASS_MEMORY_BOUND},
    [OP_GELU] = {"gelu", OP_CLASS_MEMORY_BOUND},
    [OP_HEAD_LOSS] = {"head_loss", OP_CLASS_GEMM},
    [OP_HEAD_STATS] = {"head_stats", OP_CLASS_GEMM},
    [OP_EMBED_BACKWARD] = {"embed_backward", OP_CLASS_MEMORY_BOUND},
    [OP_RMSNORM_BACKWARD] = {"rmsnorm_backward", OP_CLASS_MEMORY_BOUND},
    [OP_LAYERNORM_BACKWARD] = {"layernorm_backward", OP_CLASS_MEMORY_BOUND},
    [OP_LINEAR_BACKWARD_INPUT] = {"linear_backward_input", OP_CLASS_GEMM},
    [OP_LINEAR_BACKWARD_WEIGHT] = {"linear_backward_weight", OP_CLASS_GEMM},
    [OP_ROPE_BACKWARD] = {"rope_backward", OP_CLASS_MEMORY_BOUND},
    [OP_ATTENTION_BACKWARD] = {"attention_backward", OP_CLASS_ATTENTION},
    [OP_SWIGLU_BACKWARD] = {"swiglu_backward", OP_CLASS_MEMORY_BOUND},
    [OP_GELU_BACKWARD] = {"gelu_backward", OP_CLASS_MEMORY_BOUND},
    [OP_COUNT_VALID] = {"count_valid", OP_CLASS_MEMORY_BOUND},
    [OP_ACCUMULATE] = {"accumulate", OP_CLASS_MEMORY_BOUND},
    [OP_CAST] = {"cast", OP_CLASS_MEMORY_BOUND},
    [OP_AMAX] = {"amax", OP_CLASS_OPTIMIZER},
    [OP_QUANTISE] = {"quantise", OP_CLASS_MEMORY_BOUND},
    [OP_DEQUANTISE] = {"dequantise", OP_CLASS_MEMORY_BOUND},
    [OP_SQUARED_NORM] = {"squared_norm", OP_CLASS_OPTIMIZER},
    [OP_CLIP] = {"clip", OP_CLASS_OPTIMIZER},
    [OP_ADAMW] = {"adamw", OP_CLASS_OPTIMIZER},
    [OP_SGD] = {"sgd", OP_CLASS_OPTIMIZER},
    [OP_COPY] = {"copy", OP_CLASS_MEMORY_BOUND},
    [OP_ALL_GATHER] = {"all_gather", OP_CLASS_COMMUNICATION},
    [OP_REDUCE_SCATTER] = {"reduce_scatter", OP_CLASS_COMMUNICATION},
    [OP_ALL_REDUCE] = {"all_reduce", OP_CLASS_COMMUNICATION},
    [OP_EXCHANGE] = {"exchange", OP_CLASS_COMMUNICATION},
    [OP_ROUTE] = {"route", OP_CLASS_MEMORY_BOUND},
    [OP_ROUTE_BACKWARD] = {"route_backward", OP_CLASS_MEMORY_BOUND},
    [OP_PERMUTE] = {"permute", OP_CLASS_MEMORY_BOUND},
    [OP_UNPERMUTE] = {"unpermute", OP_CLASS_MEMORY_BOUND},
    [OP_GROUPED_LINEAR] = {"grouped_linear", OP_CLASS_GEMM},
    [OP_GROUPED_LINEAR_BACKWARD_INPUT] = {"grouped_linear_backward_input", OP_CLASS_GEMM},
    [OP_GROUPED_LINEAR_BACKWARD_WEIGHT] = {"grouped_linear_backward_weight", OP_CLASS_GEMM},
    [OP_ALL_TO_ALL] = {"all_to_all", OP_CLASS_COMMUNICATION},
    [OP_LATENT_JOIN] = {"latent_join", OP_CLASS_MEMORY_BOUND},
    [OP_LATENT_JOIN_BACKWARD] = {"latent_join_backward", OP_CLASS_MEMORY_BOUND},
    [OP_SINKS_BACKWARD] = {"sinks_backward", OP_CLASS_MEMORY_BOUND},
    [OP_SIGMOID] = {"sigmoid", OP_CLASS_MEMORY_BOUND},
    [OP_SIGMOID_BACKWARD] = {"sigmoid_backward", OP_CLASS_MEMORY_BOUND},
    [OP_INDEX] = {"index", OP_CLASS_ATTENTION},
    [OP_INDEXED_ATTENTION] = {"indexed_attention", OP_CLASS_ATTENTION},
    [OP_INDEXED_ATTENTION_BACKWARD] = {"indexed_attention_backward", OP_CLASS_ATTENTION},
    [OP_INDEX_TARGET] = {"index_target", OP_CLASS_ATTENTION},
    [OP_INDEX_BACKWARD] = {"index_backward", OP_CLASS_ATTENTION},
    [OP_ROW_SUMS] = {"row_sums", OP_CLASS_MEMORY_BOUND},
};

guint op_attention_operands(const Op *op)
{
    g_assert(op_class(op->kind) == OP_CLASS_ATTENTION);
    return op->num_operands - (op->sizes.sinks > 0 ? 1 : 0);
}

gboolean op_has_positions(const Op *op)
{
    return op_attention_operands(op) > op_attention_scratch(op->kind) + 1;
}

guint64 op_key_blocks(const Op *op)
{
    if (op_is_indexed(op))
        return MAX(op->sizes.chunk, 1);
    return op_has_positions(op) ? op->sizes.chunk : 1;
}

gboolean op_norm_adds(const Op *op)
{
    return (op->kind == OP_RMSNORM && op->num_operands > 4) ||
           (op->kind == OP_LAYERNORM && op->num_operands > 5);
}

guint64 op_value_dim(const Op *op)
{
    return op->sizes.value_dim != 0 ? op->sizes.value_dim : op->sizes.head_dim;
}

gboolean op_is_indexed(const Op *op)
{
    return op->kind >= OP_INDEX && op->kind <= OP_INDEX_BACKWARD;
}

gboolean op_copies_rows(const Op *op)
{
    return op->kind == OP_CAST && op->sizes.top_k != 0;
}

double op_seen_pairs(const Op *op)
{
    return op->sizes.seen > 0 ? op->sizes.seen : 1;
}

const char *op_kind_name(OpKind kind)
{
    g_assert((guint)kind < NUM_OPS);
    return kinds[kind].name;
}

OpClass op_class(OpKind kind)
{
    g_assert((guint)kind < NUM_OPS);
    return kinds[kind].time_class;
}

const char *op_class_name(OpClass time_class)
{
    static const char *const names[NUM_OP_CLASSES] = {
        [OP_CLASS_GEMM] = "gemm",
        [OP_CLASS_ATTENTION] = "attention",
        [OP_CLASS_MEMORY_BOUND] = "memory_bound",
        [OP_CLASS_OPTIMIZER] = "optimizer",
        [OP_CLASS_COMMUNICATION] = "communication",
    };

    return names[time_class];
}

gboolean op_kind_is_communication(OpKind kind)
{
    return op_class(kind) == OP_CLASS_COMMUNICATION;
}

Access operand_access(const Operand *operand, gboolean first)
{
    if (operand->access != ACCESS_ACCUMULATE)
        return operand->access;
    return first ? ACCESS_WRITE : ACCESS_UPDATE;
}
