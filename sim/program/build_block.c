/* The block of a Llama- or GPT-2-shaped model: whole parameters, whole gradients; with tensor
 * parallelism this rank's part of them and the collectives between.
 *
 * Shapes: N = micro_batch x seq tokens, C hidden, A = heads x head_dim, K = kv_heads x head_dim, F
 * ffn. Saved per block and micro-batch: x (the residual stream), rstd1 (with the mean in
 * LayerNorm), q, k, v (after rotation), o, lse, mid, rstd2, up, and gate where the MLP has one. The
 * normed inputs and what SwiGLU or GELU gives are computed again in the backward pass: they cost
 * one memory-bound pass each and would take 2 C + F per token and block.  Dropout is 0: layouts
 * could not be compared with it.
 */
#include "sim/program/emit.h"

/* What tensor parallelism puts between a norm and a matrix: with tokens split, a norm works on N /
 * tp of them and its output is gathered; what a matrix leaves as partial sums is reduced.  Without
 * (tp 1), or with tokens not split, the gathered tensor is the norm's own. */
typedef struct {
    guint local;    /* (N / tp, C): a norm's output, or a reduced sum */
    guint partial;  /* (N, C): partial sums of this rank's part of a matrix */
    guint gradient; /* (N, C): the residual stream's gradient, gathered */
} TpTensors;

/* Tensors of a block that live from forward to backward (one copy a block, or one in all when
 * recomputed), and those that live within a call. */
typedef struct {
    guint rstd1, q, k, v, o, lse, mid, rstd2, gate, up;
    guint normed, dnormed, h, dh, dattention, dq, dk, dv;
    TpTensors tp;
} BlockTensors;

static gboolean is_gated(const Builder *builder)
{
    return (builder->local.features & FEATURE_GATED) != 0;
}

static gboolean is_rotated(const Builder *builder)
{
    return (builder->local.features & FEATURE_ROPE) != 0;
}

/* @whole is (N, C): what stands in where nothing is gathered or reduced. */
static TpTensors add_tp_tensors(Builder *builder, guint whole)
{
    const guint64 hidden = builder->local.hidden;
    TpTensors tp = {whole, whole, builder->residual_gradient};

    if (builder->tp > 1)
        tp.partial = emit_activation(builder, "partial", NO_SPACE, hidden);
    if (builder->sequence) {
        tp.local = emit_local_activation(builder, "local", NO_SPACE);
        tp.gradient = emit_activation(builder, "dgathered", NO_SPACE, hidden);
    }
    return tp;
}

static BlockTensors add_block_tensors(Builder *builder)
{
    const Model *model = &builder->local;
    const guint64 hidden = model->hidden, ffn = model->ffn;
    const guint64 attention = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const guint saved = builder->saved_space;
    BlockTensors tensors = {
        .rstd1 = emit_norm_stats(builder, "rstd1", saved),
        .q = emit_activation(builder, "q", saved, attention),
        .k = emit_activation(builder, "k", saved, kv),
        .v = emit_activation(builder, "v", saved, kv),
        .o = emit_activation(builder, "o", saved, attention),
        .lse = emit_activation_fp32(builder, "lse", saved, builder->rows * model->heads),
        .mid = emit_local_activation(builder, "mid", saved),
        .rstd2 = emit_norm_stats(builder, "rstd2", saved),
        .gate = is_gated(builder) ? emit_activation(builder, "gate", saved, ffn) : 0,
        .up = emit_activation(builder, "up", saved, ffn),
        .normed = emit_activation(builder, "normed", NO_SPACE, hidden),
        .dnormed = emit_activation(builder, "dnormed", NO_SPACE, hidden),
        .h = emit_activation(builder, "h", NO_SPACE, ffn),
        .dh = emit_activation(builder, "dh", NO_SPACE, ffn),
        .dattention = emit_activation(builder, "dattention", NO_SPACE, attention),
        .dq = emit_activation(builder, "dq", NO_SPACE, attention),
        .dk = emit_activation(builder, "dk", NO_SPACE, kv),
        .dv = emit_activation(builder, "dv", NO_SPACE, kv),
    };

    tensors.tp = add_tp_tensors(builder, tensors.normed);
    return tensors;
}

static void attention(const Emit *to, const BlockTensors *t)
{
    Op *op = emit_op(to, OP_ATTENTION);

    emit_reads(op, t->q);
    emit_reads(op, t->k);
    emit_reads(op, t->v);
    emit_writes(op, t->o);
    emit_writes(op, t->lse);
    emit_uses_scratch(to, op);
}

static void attention_backward(const Emit *to, const BlockTensors *t)
{
    Op *op = emit_op(to, OP_ATTENTION_BACKWARD);

    emit_reads(op, t->dattention);
    emit_reads(op, t->q);
    emit_reads(op, t->k);
    emit_reads(op, t->v);
    emit_reads(op, t->o);
    emit_reads(op, t->lse);
    emit_writes(op, t->dq);
    emit_writes(op, t->dk);
    emit_writes(op, t->dv);
    emit_uses_scratch(to, op);
}

/* h of gate and up, or of up alone. */
static void activate(const Emit *to, const BlockTensors *t)
{
    Op *op = emit_op(to, is_gated(to->builder) ? OP_SWIGLU : OP_GELU);

    op->sizes.in = op->sizes.out = to->builder->local.ffn;
    if (is_gated(to->builder))
        emit_reads(op, t->gate);
    emit_reads(op, t->up);
    emit_writes(op, t->h);
}

/* gate and up become their gradients. */
static void activate_backward(const Emit *to, const BlockTensors *t)
{
    Op *op = emit_op(to, is_gated(to->builder) ? OP_SWIGLU_BACKWARD : OP_GELU_BACKWARD);

    op->sizes.in = op->sizes.out = to->builder->local.ffn;
    emit_reads(op, t->dh);
    if (is_gated(to->builder))
        emit_updates(op, t->gate);
    emit_updates(op, t->up);
}

typedef struct {
    Linear q, k, v, o, gate, up, down;
} BlockWeights;

static BlockWeights block_weights(const Model *model)
{
    const guint64 hidden = model->hidden, ffn = model->ffn;
    const guint64 attention_columns = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;

    return (BlockWeights){
        .q = {PARAM_Q, hidden, attention_columns},
        .k = {PARAM_K, hidden, kv},
        .v = {PARAM_V, hidden, kv},
        .o = {PARAM_O, attention_columns, hidden},
        .gate = {PARAM_GATE, hidden, ffn},
        .up = {PARAM_UP, hidden, ffn},
        .down = {PARAM_DOWN, ffn, hidden},
    };
}

/* y := x + input W^T, W being the last matrix of a half block. */
typedef struct {
    const Linear *weight;
    guint input, x, y;
    gint y_shift;
} ResidualSum;

/* Alone, the product adds to a copy of x; of several ranks, their partial sums are reduced first.
 */
static void add_to_residual(const Emit *to, const BlockTensors *t, const ResidualSum *sum)
{
    const Builder *builder = to->builder;

    if (builder->tp == 1) {
        emit_copy(to, sum->x, sum->y, sum->y_shift);
        Op *linear = emit_linear(to, sum->weight, sum->input, sum->y, ACCESS_UPDATE);
        linear->operands[2].shift = sum->y_shift; /* y, in op.h's order */
        return;
    }
    emit_linear(to, sum->weight, sum->input, t->tp.partial, ACCESS_WRITE);
    const guint reduced = emit_reduce_partial(to, t->tp.partial, t->tp.local);
    emit_copy(to, sum->x, sum->y, sum->y_shift);
    Op *op = emit_op(to, OP_ACCUMULATE);
    op->sizes.elements = builder->local_rows * builder->local.hidden;
    emit_reads(op, reduced);
    op_add_operand(op, sum->y, ACCESS_UPDATE, sum->y_shift, WHOLE_TENSOR);
    emit_sum_bias(to, sum->weight, sum->y, sum->y_shift);
}

static void block_forward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(&to->builder->local);
    const guint x = to->builder->residual, local = t->tp.local;
    const ResidualSum attended = {&w.o, t->o, x, t->mid, 0};
    const ResidualSum fed = {&w.down, t->h, t->mid, x, 1}; /* the next copy of the residual */

    emit_norm(to, x, PARAM_INPUT_NORM, local, t->rstd1);
    emit_gather_tokens(to, local, t->normed);
    emit_linear(to, &w.q, t->normed, t->q, ACCESS_WRITE);
    emit_linear(to, &w.k, t->normed, t->k, ACCESS_WRITE);
    emit_linear(to, &w.v, t->normed, t->v, ACCESS_WRITE);
    if (is_rotated(to->builder))
        emit_rope(to, OP_ROPE, t->q, t->k);
    attention(to, t);
    add_to_residual(to, t, &attended);
    emit_norm(to, t->mid, PARAM_POST_NORM, local, t->rstd2);
    emit_gather_tokens(to, local, t->normed);
    if (is_gated(to->builder))
        emit_linear(to, &w.gate, t->normed, t->gate, ACCESS_WRITE);
    emit_linear(to, &w.up, t->normed, t->up, ACCESS_WRITE);
    activate(to, t);
    add_to_residual(to, t, &fed);
}

/* A norm's input and weight, for its backward pass. */
typedef struct {
    guint x, rstd;
    ParamRole param;
} Norm;

/* The normed input again, of all tokens. */
static void normed_again(const Emit *to, const BlockTensors *t, const Norm *norm)
{
    emit_norm_again(to, norm->x, norm->param, norm->rstd, t->tp.local);
    emit_gather_tokens(to, t->tp.local, t->normed);
}

/* dx += the gradient of the norm's input: dnormed holds this rank's partial sums. */
static void norm_backward(const Emit *to, const BlockTensors *t, const Norm *norm)
{
    const guint dy = emit_reduce_partial(to, t->dnormed, t->tp.local);
    const NormBackward backward = {dy, norm->x, norm->rstd, to->builder->residual_gradient,
                                   ACCESS_UPDATE};

    emit_norm_backward(to, &backward, norm->param);
}

/* From dy, of all tokens, to the partial sums of the gradient of the normed input. */
static void mlp_backward(const Emit *to, const BlockTensors *t, const BlockWeights *w, guint dy)
{
    const Norm post = {t->mid, t->rstd2, PARAM_POST_NORM};

    activate(to, t);
    emit_linear_backward_weight(to, &w->down, dy, t->h);
    emit_linear_backward_input(to, &w->down, dy, t->dh, ACCESS_WRITE);
    activate_backward(to, t);
    normed_again(to, t, &post);
    if (is_gated(to->builder))
        emit_linear_backward_weight(to, &w->gate, t->gate, t->normed);
    emit_linear_backward_weight(to, &w->up, t->up, t->normed);
    if (is_gated(to->builder))
        emit_linear_backward_input(to, &w->gate, t->gate, t->dnormed, ACCESS_WRITE);
    emit_linear_backward_input(to, &w->up, t->up, t->dnormed,
                               is_gated(to->builder) ? ACCESS_UPDATE : ACCESS_WRITE);
}

/* dx holds the gradient of the block's output on entry, of its input on exit; dy is dx of all
 * tokens. */
static void block_backward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(&to->builder->local);
    const guint dx = to->builder->residual_gradient, dy = t->tp.gradient;
    const Norm post = {t->mid, t->rstd2, PARAM_POST_NORM};
    const Norm input = {to->builder->residual, t->rstd1, PARAM_INPUT_NORM};

    emit_gather_tokens(to, dx, dy);
    mlp_backward(to, t, &w, dy);
    norm_backward(to, t, &post);
    emit_gather_tokens(to, dx, dy);
    emit_linear_backward_weight(to, &w.o, dy, t->o);
    emit_linear_backward_input(to, &w.o, dy, t->dattention, ACCESS_WRITE);
    attention_backward(to, t);
    if (is_rotated(to->builder))
        emit_rope(to, OP_ROPE_BACKWARD, t->dq, t->dk);
    normed_again(to, t, &input);
    emit_linear_backward_weight(to, &w.q, t->dq, t->normed);
    emit_linear_backward_weight(to, &w.k, t->dk, t->normed);
    emit_linear_backward_weight(to, &w.v, t->dv, t->normed);
    emit_linear_backward_input(to, &w.q, t->dq, t->dnormed, ACCESS_WRITE);
    emit_linear_backward_input(to, &w.k, t->dk, t->dnormed, ACCESS_UPDATE);
    emit_linear_backward_input(to, &w.v, t->dv, t->dnormed, ACCESS_UPDATE);
    norm_backward(to, t, &input);
}

void build_blocks(Builder *builder)
{
    Program *program = builder->program;
    const BlockTensors tensors = add_block_tensors(builder);

    for (guint i = 1; i < program->units->len; i++) {
        const UnitClass *unit = program_unit(program, i);
        g_autofree char *forward = g_strdup_printf("%s.forward", unit->name);
        g_autofree char *backward = g_strdup_printf("%s.backward", unit->name);
        Emit to = {
            .builder = builder,
            .segment = program_add_segment(program, forward),
            .weights = (guint)unit->parameter,
            .gradient = (guint)unit->gradient,
            .gradient_dtype = builder->spec->workload->recipe->gradient,
        };

        builder->classes[i].forward = (gint)to.segment;
        block_forward(&to, &tensors);
        to.segment = program_add_segment(program, backward);
        builder->classes[i].backward = (gint)to.segment;
        block_backward(&to, &tensors);
    }
}
