/* A gate of shared experts: sigmoid(x w) of each token scales their h, as a row's weight does that
 * of the other experts; before the last matrix, so that what they give need not be kept for its
 * gradient.  With tp > 1 a rank has all of w and a part of h: its gradients are partial sums. */
#include "sim/program/block_parts.h"

static Linear scale_weight(const Builder *builder)
{
    return (Linear){PARAM_SHARED_SCALE, builder->local.hidden, 1, 0, 0};
}

void build_scale(Builder *builder, BlockTensors *t, guint saved)
{
    if (!block_has_scale(builder, t))
        return;
    t->shared = (SharedScale){
        .logits = emit_activation(builder, "shared_logits", NO_SPACE, 1),
        .scale = emit_activation_fp32(builder, "shared_scale", saved, builder->rows),
        .dscale = emit_activation_fp32(builder, "dshared_scale", NO_SPACE, builder->rows),
        .dlogits = emit_activation(builder, "dshared_logits", builder_weights_space(builder), 1),
    };
}

void emit_scale(const Emit *to, const BlockTensors *t, guint input)
{
    const Linear weight = scale_weight(to->builder);

    if (!block_has_scale(to->builder, t))
        return;
    emit_linear(to, &weight, input, t->shared.logits, ACCESS_WRITE);
    Op *op = emit_op(to, OP_SIGMOID);
    emit_reads(op, t->shared.logits);
    emit_writes(op, t->shared.scale);
}

void emit_scale_backward(const Emit *to, const Emit *weights, const BlockTensors *t, guint input)
{
    const Linear weight = scale_weight(to->builder);

    if (!block_has_scale(to->builder, t))
        return;
    Op *op = emit_op(to, OP_SIGMOID_BACKWARD);
    emit_reads(op, t->shared.dscale);
    emit_reads(op, t->shared.scale);
    emit_writes(op, t->shared.dlogits);
    emit_linear_backward_weight(weights, &weight, t->shared.dlogits, input);
    emit_linear_backward_input(to, &weight, t->shared.dlogits, t->dnormed, ACCESS_UPDATE);
}
