/* Names and classes of op kinds. */
#include "sim/program/op.h"

static const char *const names[NUM_OPS] = {
    [OP_EMBED] = "embed",
    [OP_RMSNORM] = "rmsnorm",
    [OP_RMSNORM_APPLY] = "rmsnorm_apply",
    [OP_LINEAR] = "linear",
    [OP_ROPE] = "rope",
    [OP_ATTENTION] = "attention",
    [OP_SWIGLU] = "swiglu",
    [OP_HEAD_LOSS] = "head_loss",
    [OP_HEAD_STATS] = "head_stats",
    [OP_EMBED_BACKWARD] = "embed_backward",
    [OP_RMSNORM_BACKWARD] = "rmsnorm_backward",
    [OP_LINEAR_BACKWARD_INPUT] = "linear_backward_input",
    [OP_LINEAR_BACKWARD_WEIGHT] = "linear_backward_weight",
    [OP_ROPE_BACKWARD] = "rope_backward",
    [OP_ATTENTION_BACKWARD] = "attention_backward",
    [OP_SWIGLU_BACKWARD] = "swiglu_backward",
    [OP_COUNT_VALID] = "count_valid",
    [OP_ACCUMULATE] = "accumulate",
    [OP_CAST] = "cast",
    [OP_SQUARED_NORM] = "squared_norm",
    [OP_CLIP] = "clip",
    [OP_ADAMW] = "adamw",
    [OP_SGD] = "sgd",
    [OP_ALL_GATHER] = "all_gather",
    [OP_REDUCE_SCATTER] = "reduce_scatter",
    [OP_ALL_REDUCE] = "all_reduce",
    [OP_EXCHANGE] = "exchange",
};

const char *op_kind_name(OpKind kind)
{
    g_assert((guint)kind < NUM_OPS);
    return names[kind];
}

gboolean op_kind_is_communication(OpKind kind)
{
    return kind == OP_ALL_GATHER || kind == OP_REDUCE_SCATTER || kind == OP_ALL_REDUCE ||
           kind == OP_EXCHANGE;
}

Access operand_access(const Operand *operand, gboolean first)
{
    if (operand->access != ACCESS_ACCUMULATE)
        return operand->access;
    return first ? ACCESS_WRITE : ACCESS_UPDATE;
}
