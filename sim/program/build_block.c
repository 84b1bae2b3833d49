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
    guint local;   /* (N / tp, C): a norm's output, or a reduced sum */
    guint partial; /* (N, C): partial sums of this rank's part of a matrix */
} TpTensors;

/* Tensors of a block that live from forward to backward (one copy a block, or one in all when
 * recomputed), and those that live within a call. */
typedef struct {
    guint rstd1, mid, rstd2, gate, up;
    guint normed, dnormed, h, dh;
    AttentionTensors attention;
    guint h_again;                 /* h in the backward pass */
    guint input_again, post_again; /* (N / tp, C): what the norms left, in the backward pass */
    guint dfed, dmid; /* (N, C): the gradients of what the second and the first half added */
    TpTensors tp;
} BlockTensors;

/* What backward reads, of those the backward for weights, of those that are computed again. */
typedef enum { UNTIL_BACKWARD, UNTIL_WEIGHTS } Until;

static guint saved_space(const Builder *builder, Until until, gboolean again)
{
    const gboolean kept = builder->splits_backward && until == UNTIL_WEIGHTS;
    const Ring ring =
        again ? (kept ? RING_AGAIN_KEPT : RING_AGAIN) : (kept ? RING_KEPT : RING_SAVED);

    return builder->ring_space[ring];
}

static gboolean is_gated(const Builder *builder)
{
    return (builder->local.features & FEATURE_GATED) != 0;
}

/* @whole is (N, C): what stands in where nothing is gathered or reduced. */
static TpTensors add_tp_tensors(Builder *builder, guint whole)
{
    TpTensors tp = {whole, whole};

    if (builder->tp > 1)
        tp.partial = emit_activation(builder, "partial", NO_SPACE, builder->local.hidden);
    if (builder->sequence)
        tp.local = emit_local_activation(builder, "local", NO_SPACE);
    return tp;
}

/* Read by the matrices' backward passes: where those come later all this stays until then (so they
 * need no weights, which may be gathered no more), and gradients are of all tokens. */
static void add_gradients(Builder *builder, BlockTensors *tensors)
{
    const guint64 hidden = builder->local.hidden;
    const guint weights = builder->ring_space[RING_WEIGHTS];

    tensors->h_again = tensors->h;
    tensors->input_again = tensors->post_again = tensors->tp.local;
    tensors->dfed = tensors->dmid = builder->residual_gradient;
    if (builder->splits_backward) {
        tensors->h_again = emit_activation(builder, "h_kept", weights, builder->local.ffn);
        tensors->input_again = emit_local_activation(builder, "input_normed", weights);
        tensors->post_again = emit_local_activation(builder, "post_normed", weights);
        tensors->dfed = emit_activation(builder, "dfed", weights, hidden);
        tensors->dmid = emit_activation(builder, "dmid", weights, hidden);
    } else if (builder->sequence) {
        tensors->dfed = tensors->dmid = emit_activation(builder, "dgathered", NO_SPACE, hidden);
    }
}

static AttentionTensors add_attention_tensors(Builder *builder)
{
    const Model *model = &builder->local;
    const Recompute recompute = builder->spec->schedule.recompute;
    const guint64 attention = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const gboolean all = recompute == RECOMPUTE_FULL, some = recompute != RECOMPUTE_NONE;
    const guint saved = saved_space(builder, UNTIL_BACKWARD, all);
    const guint weights = builder->ring_space[RING_WEIGHTS];
    AttentionTensors tensors = {
        .q = emit_activation(builder, "q", saved, attention),
        .k = emit_activation(builder, "k", saved, kv),
        .v = emit_activation(builder, "v", saved, kv),
        .o = emit_activation(builder, "o", saved_space(builder, UNTIL_WEIGHTS, some), attention),
        .lse = emit_activation_fp32(builder, "lse", saved_space(builder, UNTIL_BACKWARD, some),
                                    builder->rows * model->heads),
        .dattention = emit_activation(builder, "dattention", NO_SPACE, attention),
        .dq = emit_activation(builder, "dq", weights, attention),
        .dk = emit_activation(builder, "dk", weights, kv),
        .dv = emit_activation(builder, "dv", weights, kv),
    };

    build_attention(builder, &tensors);
    return tensors;
}

static BlockTensors add_block_tensors(Builder *builder)
{
    const guint64 hidden = builder->local.hidden, ffn = builder->local.ffn;
    const gboolean all = builder->spec->schedule.recompute == RECOMPUTE_FULL;
    const guint saved = saved_space(builder, UNTIL_BACKWARD, all);
    const guint kept = saved_space(builder, UNTIL_WEIGHTS, all);
    BlockTensors tensors = {
        .rstd1 = emit_norm_stats(builder, "rstd1", saved),
        .attention = add_attention_tensors(builder),
        .mid = emit_local_activation(builder, "mid", saved),
        .rstd2 = emit_norm_stats(builder, "rstd2", saved),
        .gate = is_gated(builder) ? emit_activation(builder, "gate", kept, ffn) : 0,
        .up = emit_activation(builder, "up", kept, ffn),
        .normed = emit_activation(builder, "normed", NO_SPACE, hidden),
        .dnormed = emit_activation(builder, "dnormed", NO_SPACE, hidden),
        .h = emit_activation(builder, "h", NO_SPACE, ffn),
        .dh = emit_activation(builder, "dh", NO_SPACE, ffn),
    };

    tensors.tp = add_tp_tensors(builder, tensors.normed);
    add_gradients(builder, &tensors);
    return tensors;
}

/* h of gate and up, or of up alone. */
static void activate(const Emit *to, const BlockTensors *t, guint h)
{
    Op *op = emit_op(to, is_gated(to->builder) ? OP_SWIGLU : OP_GELU);

    op->sizes.in = op->sizes.out = to->builder->local.ffn;
    if (is_gated(to->builder))
        emit_reads(op, t->gate);
    emit_reads(op, t->up);
    emit_writes(op, h);
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
    const ResidualSum attended = {&w.o, t->attention.o, x, t->mid, 0};
    const ResidualSum fed = {&w.down, t->h, t->mid, x, 1}; /* the next copy of the residual */

    emit_norm(to, x, PARAM_INPUT_NORM, local, t->rstd1);
    emit_gather_tokens(to, local, t->normed);
    emit_linear(to, &w.q, t->normed, t->attention.q, ACCESS_WRITE);
    emit_linear(to, &w.k, t->normed, t->attention.k, ACCESS_WRITE);
    emit_linear(to, &w.v, t->normed, t->attention.v, ACCESS_WRITE);
    emit_rope(to, OP_ROPE, t->attention.q, t->attention.k);
    emit_attention(to, &t->attention);
    add_to_residual(to, t, &attended);
    emit_norm(to, t->mid, PARAM_POST_NORM, local, t->rstd2);
    emit_gather_tokens(to, local, t->normed);
    if (is_gated(to->builder))
        emit_linear(to, &w.gate, t->normed, t->gate, ACCESS_WRITE);
    emit_linear(to, &w.up, t->normed, t->up, ACCESS_WRITE);
    activate(to, t, t->h);
    add_to_residual(to, t, &fed);
}

/* A norm's input and weight, for its backward pass. */
typedef struct {
    guint x, rstd;
    ParamRole param;
} Norm;

/* The normed input again, of all tokens; returns it.  @again: of those that this rank norms. */
static guint normed_again(const Emit *to, const Emit *weights, const BlockTensors *t,
                          const Norm *norm, guint again)
{
    emit_norm_again(to, norm->x, norm->param, norm->rstd, again);
    emit_gather_tokens(weights, again, t->normed);
    return to->builder->sequence ? t->normed : again;
}

/* dx += the gradient of the norm's input: dnormed holds this rank's partial sums. */
static void norm_backward(const Emit *to, const BlockTensors *t, const Norm *norm)
{
    const guint dy = emit_reduce_partial(to, t->dnormed, t->tp.local);
    const NormBackward backward = {dy, norm->x, norm->rstd, to->builder->residual_gradient,
                                   ACCESS_UPDATE};

    emit_norm_backward(to, &backward, norm->param);
}

/* The residual stream's gradient as the matrices read it: of all tokens, and where backward for
 * weights comes later a copy, as the stream itself goes on. */
static void take_gradient(const Emit *to, guint dy)
{
    const guint dx = to->builder->residual_gradient;

    if (to->builder->sequence)
        emit_gather_tokens(to, dx, dy);
    else if (dy != dx)
        emit_copy(to, dx, dy, 0);
}

/* Of the second half: dx holds the gradient of the block's output on entry, of mid on exit. */
static void feed_forward_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const BlockWeights w = block_weights(&to->builder->local);
    const Norm post = {t->mid, t->rstd2, PARAM_POST_NORM};
    const gboolean gated = is_gated(to->builder);

    take_gradient(to, t->dfed);
    activate(to, t, t->h_again);
    emit_linear_backward_weight(weights, &w.down, t->dfed, t->h_again);
    emit_linear_backward_input(to, &w.down, t->dfed, t->dh, ACCESS_WRITE);
    activate_backward(to, t);
    const guint normed = normed_again(to, weights, t, &post, t->post_again);
    if (gated)
        emit_linear_backward_weight(weights, &w.gate, t->gate, normed);
    emit_linear_backward_weight(weights, &w.up, t->up, normed);
    if (gated)
        emit_linear_backward_input(to, &w.gate, t->gate, t->dnormed, ACCESS_WRITE);
    emit_linear_backward_input(to, &w.up, t->up, t->dnormed, gated ? ACCESS_UPDATE : ACCESS_WRITE);
    norm_backward(to, t, &post);
}

/* Of the first half: on exit dx holds the gradient of the block's input. */
static void attention_half_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const BlockWeights w = block_weights(&to->builder->local);
    const Norm input = {to->builder->residual, t->rstd1, PARAM_INPUT_NORM};

    take_gradient(to, t->dmid);
    emit_linear_backward_weight(weights, &w.o, t->dmid, t->attention.o);
    emit_linear_backward_input(to, &w.o, t->dmid, t->attention.dattention, ACCESS_WRITE);
    emit_attention_backward(to, &t->attention);
    emit_rope(to, OP_ROPE_BACKWARD, t->attention.dq, t->attention.dk);
    const guint normed = normed_again(to, weights, t, &input, t->input_again);
    emit_linear_backward_weight(weights, &w.q, t->attention.dq, normed);
    emit_linear_backward_weight(weights, &w.k, t->attention.dk, normed);
    emit_linear_backward_weight(weights, &w.v, t->attention.dv, normed);
    emit_linear_backward_input(to, &w.q, t->attention.dq, t->dnormed, ACCESS_WRITE);
    emit_linear_backward_input(to, &w.k, t->attention.dk, t->dnormed, ACCESS_UPDATE);
    emit_linear_backward_input(to, &w.v, t->attention.dv, t->dnormed, ACCESS_UPDATE);
    norm_backward(to, t, &input);
}

static gint add_block_segment(Builder *builder, Emit *to, const UnitClass *unit, const char *what)
{
    g_autofree char *name = g_strdup_printf("%s.%s", unit->name, what);

    *to = (Emit){
        .builder = builder,
        .segment = program_add_segment(builder->program, name),
        .weights = (guint)unit->parameter,
        .gradient = (guint)unit->gradient,
        .gradient_dtype = builder->spec->workload->recipe->gradient,
    };
    return (gint)to->segment;
}

static void build_block(Builder *builder, guint index, const BlockTensors *tensors)
{
    const UnitClass *unit = program_unit(builder->program, index);
    ClassSegments *segments = &builder->classes[index];
    Emit to, weights;

    segments->forward = add_block_segment(builder, &to, unit, "forward");
    block_forward(&to, tensors);
    segments->backward = add_block_segment(builder, &to, unit, "backward");
    weights = to;
    if (builder->splits_backward)
        segments->weights = add_block_segment(builder, &weights, unit, "weights");
    feed_forward_backward(&to, &weights, tensors);
    attention_half_backward(&to, &weights, tensors);
}

void build_blocks(Builder *builder)
{
    const BlockTensors tensors = add_block_tensors(builder);

    for (guint i = 1; i < builder->program->units->len; i++)
        build_block(builder, i, &tensors);
}
