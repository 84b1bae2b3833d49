/* The block of a Llama- or GPT-2-shaped model, or of one in between: whole parameters, whole
 * gradients; with tensor parallelism this rank's part of them and the collectives between.
 *
 * Shapes: N = micro_batch x seq tokens, C hidden, A = heads x head_dim, K = kv_heads x head_dim, F
 * ffn. Saved per block and micro-batch: x (the residual stream), rstd1 (with the mean in
 * LayerNorm), q, k, v (after rotation), o, lse, mid, rstd2, up, and gate where the MLP has one. The
 * normed inputs and what SwiGLU or GELU gives are computed again in the backward pass: they cost
 * one memory-bound pass each and would take 2 C + F per token and block.  Where the halves are
 * parallel there is no mid, and no rstd2 where one norm serves both; norms of what a half gives
 * save that.  Dropout is 0: layouts could not be compared with it. */
#include "sim/program/emit.h"

/* What tensor parallelism puts between a norm and a matrix: with tokens split, a norm works on N /
 * tp of them and its output is gathered; what a matrix leaves as partial sums is reduced.  Without
 * (tp 1), or with tokens not split, the gathered tensor is the norm's own. */
typedef struct {
    guint local;   /* (N / tp, C): a norm's output, or a reduced sum */
    guint given;   /* the same of what a half gives, beside a norm's output */
    guint partial; /* (N, C): partial sums of this rank's part of a matrix */
} TpTensors;

/* Where what a half gives is normed before it is added. */
typedef struct {
    ParamRole param;
    guint given, stats;
} OutputNorm;

/* In a block with experts the MLP is that of the shared ones, if there are any, and the experts are
 * segments of a unit of their own: forward behind the block's, backward before it.
 *
 * Tensors of a block that live from forward to backward (one copy a block, or one in all when
 * recomputed), and those that live within a call. */
typedef struct {
    gboolean is_sparse; /* with experts */
    guint64 ffn;        /* 0: only experts */
    guint rstd1, mid, rstd2, gate, up;
    guint normed, dnormed, h, dh;
    AttentionTensors attention;
    guint h_again;                 /* h in the backward pass */
    guint input_again, post_again; /* (N / tp, C): what the norms left, in the backward pass */
    guint dfed, dmid; /* (N, C): the gradients of what the second and the first half added */
    guint dgiven;     /* (N / tp, C): the same before an output norm, where it is then gathered */
    TpTensors tp;
    OutputNorm attended, fed;
    ExpertTensors experts;
} BlockTensors;

/* Of the blocks whose tensors are added. */
static Recompute lot_recompute(const Builder *builder)
{
    return builder->lot == LOT_REST ? RECOMPUTE_NONE : builder->recompute;
}

static gboolean is_gated(const Builder *builder)
{
    return (builder->local.features & FEATURE_GATED) != 0;
}

static gboolean is_latent(const Builder *builder)
{
    return (builder->local.features & FEATURE_LATENT) != 0;
}

/* Both halves read x and add to it. */
static gboolean is_parallel(const Builder *builder)
{
    return (builder->local.features & FEATURE_PARALLEL) != 0;
}

static gboolean has_output_norms(const Builder *builder)
{
    return (builder->local.features & FEATURE_OUTPUT_NORMS) != 0;
}

/* In parallel one norm may serve both halves. */
static gboolean has_second_input(const Builder *builder)
{
    return !is_parallel(builder) || builder->param[PARAM_POST_NORM] >= 0;
}

/* @whole is (N, C): what stands in where nothing is gathered or reduced. */
static TpTensors add_tp_tensors(Builder *builder, guint whole)
{
    TpTensors tp = {whole, whole, whole};

    if (builder->tp > 1)
        tp.partial = emit_activation(builder, "partial", NO_SPACE, builder->local.hidden);
    if (builder->sequence)
        tp.local = emit_local_activation(builder, "local", NO_SPACE);
    if (builder->sequence || has_output_norms(builder))
        tp.given = emit_local_activation(builder, "given", NO_SPACE);
    return tp;
}

/* Read by the matrices' backward passes: where those come later all this stays until then (so they
 * need no weights, which may be gathered no more), and gradients are of all tokens. */
static void add_gradients(Builder *builder, BlockTensors *tensors)
{
    const guint64 hidden = builder->local.hidden;
    const guint weights = builder_weights_space(builder);

    tensors->h_again = tensors->h;
    tensors->input_again = tensors->post_again = tensors->tp.local;
    tensors->dfed = tensors->dmid = builder->residual_gradient;
    if (builder->splits_backward) {
        if (tensors->ffn > 0)
            tensors->h_again = emit_activation(builder, "h_kept", weights, tensors->ffn);
        tensors->input_again = emit_local_activation(builder, "input_normed", weights);
        if (has_second_input(builder))
            tensors->post_again = emit_local_activation(builder, "post_normed", weights);
        if (tensors->ffn > 0)
            tensors->dfed = emit_activation(builder, "dfed", weights, hidden);
        tensors->dmid = is_parallel(builder) ? tensors->dfed
                                             : emit_activation(builder, "dmid", weights, hidden);
    } else if (builder->sequence || has_output_norms(builder)) {
        tensors->dfed = tensors->dmid = emit_activation(builder, "dgathered", NO_SPACE, hidden);
    }
}

static void add_output_norms(Builder *builder, BlockTensors *tensors, guint saved)
{
    if (!has_output_norms(builder))
        return;
    g_assert(!is_parallel(builder)); /* no family has both */
    tensors->attended =
        (OutputNorm){PARAM_ATTENTION_NORM, emit_local_activation(builder, "attended", saved),
                     emit_norm_stats(builder, "attended_rstd", saved, PARAM_ATTENTION_NORM)};
    tensors->fed = (OutputNorm){PARAM_MLP_NORM, emit_local_activation(builder, "fed", saved),
                                emit_norm_stats(builder, "fed_rstd", saved, PARAM_MLP_NORM)};
    if (builder->sequence)
        tensors->dgiven = emit_local_activation(builder, "dgiven", NO_SPACE);
}

static AttentionTensors add_attention_tensors(Builder *builder)
{
    const Model *model = &builder->local;
    const Recompute recompute = lot_recompute(builder);
    const guint64 query = (guint64)model->heads * model->head_dim;
    const guint64 given = (guint64)model->heads * model_value_dim(model);
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const guint64 value = (guint64)model->kv_heads * model_value_dim(model);
    const gboolean all = recompute == RECOMPUTE_FULL, some = recompute != RECOMPUTE_NONE;
    const guint saved = builder_saved_space(builder, UNTIL_BACKWARD, all);
    const guint weights = builder_weights_space(builder);
    const guint rotated = (model->features & FEATURE_QK_NORM) != 0 ? NO_SPACE : weights;
    const gboolean latent = is_latent(builder); /* keys and values come from one matrix */
    AttentionTensors tensors = {
        .q = emit_activation(builder, "q", saved, query),
        .k = emit_activation(builder, "k", saved, kv),
        .v = emit_activation(builder, "v", saved, value),
        .o =
            emit_activation(builder, "o", builder_saved_space(builder, UNTIL_WEIGHTS, some), given),
        .lse =
            emit_activation_fp32(builder, "lse", builder_saved_space(builder, UNTIL_BACKWARD, some),
                                 builder->rows * model->heads),
        .dattention = emit_activation(builder, "dattention", NO_SPACE, given),
        .dq = emit_activation(builder, "dq", rotated, query),
        .dk = emit_activation(builder, "dk", latent ? NO_SPACE : rotated, kv),
        .dv = emit_activation(builder, "dv", latent ? NO_SPACE : weights, value),
    };

    if (latent)
        build_latent(builder, &tensors, saved);
    else
        build_projections(builder, &tensors, saved);
    build_attention(builder, &tensors);
    return tensors;
}

static guint add_stats(Builder *builder, const char *name, guint space, ParamRole param)
{
    return emit_has_norm(builder, param) ? emit_norm_stats(builder, name, space, param) : 0;
}

static BlockTensors add_block_tensors(Builder *builder, Lot lot, gboolean is_sparse)
{
    builder->lot = lot;
    builder->is_sparse = is_sparse;
    const guint64 hidden = builder->local.hidden;
    const guint64 ffn = is_sparse ? builder->local.experts.shared_ffn : builder->local.ffn;
    const gboolean all = lot_recompute(builder) == RECOMPUTE_FULL;
    const guint saved = builder_saved_space(builder, UNTIL_BACKWARD, all);
    const guint kept = builder_saved_space(builder, UNTIL_WEIGHTS, all);
    BlockTensors tensors = {
        .is_sparse = is_sparse,
        .ffn = ffn,
        .rstd1 = add_stats(builder, "rstd1", saved, PARAM_INPUT_NORM),
        .attention = add_attention_tensors(builder),
        .mid =
            is_parallel(builder) ? builder->residual : emit_local_activation(builder, "mid", saved),
        .rstd2 =
            has_second_input(builder) ? add_stats(builder, "rstd2", saved, PARAM_POST_NORM) : 0,
        .gate = is_gated(builder) && ffn > 0 ? emit_activation(builder, "gate", kept, ffn) : 0,
        .up = ffn > 0 ? emit_activation(builder, "up", kept, ffn) : 0,
        .normed = emit_activation(builder, "normed", NO_SPACE, hidden),
        .dnormed = emit_activation(builder, "dnormed", NO_SPACE, hidden),
        .h = emit_activation(builder, "h", NO_SPACE, ffn),
        .dh = emit_activation(builder, "dh", NO_SPACE, ffn),
    };

    tensors.tp = add_tp_tensors(builder, tensors.normed);
    add_gradients(builder, &tensors);
    add_output_norms(builder, &tensors, saved);
    if (is_sparse)
        build_experts(builder, &tensors.experts, saved, kept);
    builder->is_sparse = FALSE;
    builder->lot = LOT_FIRST;
    return tensors;
}

/* h of gate and up, or of up alone. */
static void activate(const Emit *to, const BlockTensors *t, guint h)
{
    Op *op = emit_op(to, is_gated(to->builder) ? OP_SWIGLU : OP_GELU);

    op->sizes.in = op->sizes.out = t->ffn;
    if (is_gated(to->builder))
        emit_reads(op, t->gate);
    emit_reads(op, t->up);
    emit_writes(op, h);
}

/* gate and up become their gradients. */
static void activate_backward(const Emit *to, const BlockTensors *t)
{
    Op *op = emit_op(to, is_gated(to->builder) ? OP_SWIGLU_BACKWARD : OP_GELU_BACKWARD);

    op->sizes.in = op->sizes.out = t->ffn;
    emit_reads(op, t->dh);
    if (is_gated(to->builder))
        emit_updates(op, t->gate);
    emit_updates(op, t->up);
}

typedef struct {
    Linear o, gate, up, down;
} BlockWeights;

static BlockWeights block_weights(const Emit *to, const BlockTensors *t)
{
    const Model *model = &to->builder->local;
    const guint64 hidden = model->hidden, ffn = t->ffn;
    const gboolean shared = t->is_sparse;

    return (BlockWeights){
        .o = {PARAM_O, (guint64)model->heads * model_value_dim(model), hidden, 0, 0},
        .gate = {shared ? PARAM_SHARED_GATE : PARAM_GATE, hidden, ffn, 0, 0},
        .up = {shared ? PARAM_SHARED_UP : PARAM_UP, hidden, ffn, 0, 0},
        .down = {shared ? PARAM_SHARED_DOWN : PARAM_DOWN, ffn, hidden, 0, 0},
    };
}

/* y := x + input W^T, W being the last matrix of a half block. */
typedef struct {
    const Linear *weight;
    guint input, x, y;
    gint y_shift;
    const OutputNorm *norm; /* of the product, where the model has one */
} ResidualSum;

/* norm(input W^T) */
static guint given_normed(const Emit *to, const BlockTensors *t, const ResidualSum *sum)
{
    const guint given = sum->norm->given, product = to->builder->sequence ? t->tp.partial : given;

    emit_linear(to, sum->weight, sum->input, product, ACCESS_WRITE);
    emit_reduce_partial(to, product, given);
    if (to->builder->tp > 1)
        emit_sum_bias(to, sum->weight, given);
    emit_norm(to, given, sum->norm->param, t->tp.given, sum->norm->stats);
    return t->tp.given;
}

/* What is still to be added to x: of several ranks the sum, reduced; or what a norm left.  Alone,
 * the product adds to a copy of x in fp32, rounds once, and nothing is (NO_TENSOR): six passes over
 * (N, C) with the copy and the norm; five if the norm added, which would round twice. */
static gint given_by_half(const Emit *to, const BlockTensors *t, const ResidualSum *sum)
{
    if (has_output_norms(to->builder))
        return (gint)given_normed(to, t, sum);
    if (to->builder->tp == 1) {
        emit_copy(to, sum->x, sum->y, sum->y_shift);
        Op *linear = emit_linear(to, sum->weight, sum->input, sum->y, ACCESS_UPDATE);
        linear->operands[2].shift = sum->y_shift; /* y, in op.h's order */
        return NO_TENSOR;
    }
    emit_linear(to, sum->weight, sum->input, t->tp.partial, ACCESS_WRITE);
    const guint given = emit_reduce_partial(to, t->tp.partial, t->tp.given);
    emit_sum_bias(to, sum->weight, given);
    return (gint)given;
}

/* No norm of this block follows: that of the next needs weights that may not be gathered yet. */
static void add_to_residual(const Emit *to, const BlockTensors *t, const ResidualSum *sum)
{
    const gint given = given_by_half(to, t, sum);

    if (given != NO_TENSOR)
        emit_sum(to, sum->x, (guint)given, sum->y, sum->y_shift);
}

/* The next copy of x := x + what both halves give: one reduction for both. */
static void add_both(const Emit *to, const BlockTensors *t, const BlockWeights *w)
{
    const guint x = to->builder->residual;

    if (to->builder->tp == 1) {
        emit_copy(to, x, x, 1);
        emit_linear(to, &w->o, t->attention.o, x, ACCESS_UPDATE)->operands[2].shift = 1;
        emit_linear(to, &w->down, t->h, x, ACCESS_UPDATE)->operands[2].shift = 1;
        return;
    }
    emit_linear(to, &w->o, t->attention.o, t->tp.partial, ACCESS_WRITE);
    emit_linear(to, &w->down, t->h, t->tp.partial, ACCESS_UPDATE);
    const guint given = emit_reduce_partial(to, t->tp.partial, t->tp.given);
    emit_sum_bias(to, &w->o, given);
    emit_sum_bias(to, &w->down, given);
    emit_sum(to, x, given, x, 1);
}

/* A norm's input and weight. */
typedef struct {
    guint x, rstd;
    ParamRole param;
} Norm;

static Norm input_norm(const Emit *to, const BlockTensors *t)
{
    return (Norm){to->builder->residual, t->rstd1, PARAM_INPUT_NORM};
}

static Norm post_norm(const BlockTensors *t)
{
    return (Norm){t->mid, t->rstd2, PARAM_POST_NORM};
}

/* The norm of a half's input, of this rank's tokens; without a norm the stream itself. */
static guint normed_local(const Emit *to, const BlockTensors *t, const Norm *norm)
{
    if (!emit_has_norm(to->builder, norm->param))
        return norm->x;
    emit_norm(to, norm->x, norm->param, t->tp.local, norm->rstd);
    return t->tp.local;
}

/* The same of x and what the first half gave: in one op where that is still to be added. */
static guint added_normed(const Emit *to, const BlockTensors *t, const ResidualSum *sum,
                          const Norm *norm)
{
    const gint given = given_by_half(to, t, sum);

    g_assert(norm->x == sum->y && sum->y_shift == 0);
    if (given != NO_TENSOR && emit_has_norm(to->builder, norm->param)) {
        const AddedNorm added = {sum->x, (guint)given, sum->y, t->tp.local, norm->rstd};

        emit_added_norm(to, &added, norm->param);
        return t->tp.local;
    }
    if (given != NO_TENSOR)
        emit_sum(to, sum->x, (guint)given, sum->y, 0);
    return normed_local(to, t, norm);
}

/* The same of all tokens, as matrices read it. */
static guint whole(const Emit *to, const BlockTensors *t, guint local)
{
    emit_gather_tokens(to, local, t->normed);
    return to->builder->sequence ? t->normed : local;
}

static void feed_forward(const Emit *to, const BlockTensors *t, guint input)
{
    const BlockWeights w = block_weights(to, t);

    if (is_gated(to->builder))
        emit_linear(to, &w.gate, input, t->gate, ACCESS_WRITE);
    emit_linear(to, &w.up, input, t->up, ACCESS_WRITE);
    activate(to, t, t->h);
}

/* From the norm to queries, keys and values; returns what the matrices read. */
static guint attention_input(const Emit *to, const BlockTensors *t)
{
    const Norm input = input_norm(to, t);
    const guint local = normed_local(to, t, &input);
    const gboolean reads_whole = !is_latent(to->builder) || t->attention.latent.q == 0;
    const guint read = reads_whole ? whole(to, t, local) : local;

    if (is_latent(to->builder))
        emit_latent(to, &t->attention, local, read);
    else
        emit_projections(to, &t->attention, read);
    return read;
}

/* The second half of a block with experts, but for their own segment, from its normed input. */
static void sparse_half(const Emit *to, const BlockTensors *t, guint local, const ResidualSum *fed)
{
    emit_route(to, &t->experts, local);
    if (t->ffn == 0) {
        emit_copy(to, fed->x, fed->y, fed->y_shift);
        return;
    }
    feed_forward(to, t, whole(to, t, local));
    add_to_residual(to, t, fed);
}

static void block_forward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to, t);
    const guint x = to->builder->residual;
    const Norm post = post_norm(t);
    const ResidualSum attended = {&w.o, t->attention.o, x, t->mid, 0, &t->attended};
    const ResidualSum fed = {&w.down, t->h, t->mid, x, 1, &t->fed}; /* the next copy */
    guint read = attention_input(to, t);

    emit_attention(to, &t->attention);
    if (is_parallel(to->builder)) {
        if (has_second_input(to->builder))
            read = whole(to, t, normed_local(to, t, &post));
        feed_forward(to, t, read);
        add_both(to, t, &w);
        return;
    }
    const guint local = added_normed(to, t, &attended, &post);
    if (t->is_sparse) {
        sparse_half(to, t, local, &fed);
        return;
    }
    feed_forward(to, t, whole(to, t, local));
    add_to_residual(to, t, &fed);
}

/* The normed input again, of this rank's tokens; returns it. */
static guint local_again(const Emit *to, const Norm *norm, guint again)
{
    if (emit_has_norm(to->builder, norm->param))
        emit_norm_again(to, norm->x, norm->param, norm->rstd, again);
    else if (to->builder->splits_backward)
        emit_copy(to, norm->x, again, 0);
    else
        again = norm->x;
    return again;
}

/* The same of all tokens, where it is read.  @again: of those that this rank norms. */
static guint normed_again(const Emit *to, const Emit *weights, const BlockTensors *t,
                          const Norm *norm, guint again)
{
    return whole(weights, t, local_again(to, norm, again));
}

/* dx += the gradient of the norm's input, dy being that of what it left, local. */
static void local_norm_backward(const Emit *to, const Norm *norm, guint dy)
{
    const guint dx = to->builder->residual_gradient;
    const NormBackward backward = {dy, norm->x, norm->rstd, dx, ACCESS_UPDATE};

    if (emit_has_norm(to->builder, norm->param))
        emit_norm_backward(to, &backward, norm->param);
    else
        emit_add(to, dy, dx, 0);
}

/* The same where dnormed holds this rank's partial sums. */
static void norm_backward(const Emit *to, const BlockTensors *t, const Norm *norm)
{
    local_norm_backward(to, norm, emit_reduce_partial(to, t->dnormed, t->tp.local));
}

/* The residual stream's gradient as the matrices of a half read it: before its output norm, of all
 * tokens, and where backward for weights comes later a copy, as the stream itself goes on. */
static void take_gradient(const Emit *to, const BlockTensors *t, const OutputNorm *norm, guint dy)
{
    const gboolean sequence = to->builder->sequence;
    guint dx = to->builder->residual_gradient;

    if (has_output_norms(to->builder)) {
        const guint dgiven = sequence ? t->dgiven : dy;
        const NormBackward backward = {dx, norm->given, norm->stats, dgiven, ACCESS_WRITE};

        emit_norm_backward(to, &backward, norm->param);
        dx = dgiven;
    }
    if (sequence)
        emit_gather_tokens(to, dx, dy);
    else if (dy != dx)
        emit_copy(to, dx, dy, 0);
}

/* From what the second half added to gate and up. */
static void down_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to, t);

    activate(to, t, t->h_again);
    emit_linear_backward_weight(weights, &w.down, t->dfed, t->h_again);
    emit_linear_backward_input(to, &w.down, t->dfed, t->dh, ACCESS_WRITE);
    activate_backward(to, t);
}

static void gate_up_backward(const Emit *to, const Emit *weights, const BlockTensors *t,
                             guint input)
{
    const BlockWeights w = block_weights(to, t);
    const gboolean gated = is_gated(to->builder);

    if (gated)
        emit_linear_backward_weight(weights, &w.gate, t->gate, input);
    emit_linear_backward_weight(weights, &w.up, t->up, input);
    if (gated)
        emit_linear_backward_input(to, &w.gate, t->gate, t->dnormed, ACCESS_WRITE);
    emit_linear_backward_input(to, &w.up, t->up, t->dnormed, gated ? ACCESS_UPDATE : ACCESS_WRITE);
}

/* From what the first half added to what attention gave. */
static void output_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to, t);

    emit_linear_backward_weight(weights, &w.o, t->dmid, t->attention.o);
    emit_linear_backward_input(to, &w.o, t->dmid, t->attention.dattention, ACCESS_WRITE);
}

/* Of the second half: dx holds the gradient of the block's output on entry, of mid on exit. */
static void feed_forward_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const Norm post = post_norm(t);

    take_gradient(to, t, &t->fed, t->dfed);
    down_backward(to, weights, t);
    gate_up_backward(to, weights, t, normed_again(to, weights, t, &post, t->post_again));
    norm_backward(to, t, &post);
}

/* The same with experts, whose own backward has left the gradients of the rows that it was sent. */
static void sparse_half_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const Norm post = post_norm(t);
    const guint dx = t->experts.dx;

    if (t->ffn > 0) {
        take_gradient(to, t, &t->fed, t->dfed);
        down_backward(to, weights, t);
    }
    const guint local = local_again(to, &post, t->post_again);
    emit_route_backward(to, weights, &t->experts, local);
    if (t->ffn > 0) {
        gate_up_backward(to, weights, t, whole(weights, t, local));
        emit_add(to, emit_reduce_partial(to, t->dnormed, t->tp.local), dx, 0);
    }
    local_norm_backward(to, &post, dx);
}

static void latent_backward(const Emit *to, const Emit *weights, const BlockTensors *t,
                            const Norm *input)
{
    const guint local = local_again(to, input, t->input_again);
    const guint read = t->attention.latent.q == 0 ? whole(weights, t, local) : local;
    const LatentInput latent = {local, read, t->dnormed};

    local_norm_backward(to, input, emit_latent_backward(to, weights, &t->attention, &latent));
}

/* Of the first half: on exit dx holds the gradient of the block's input. */
static void attention_half_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const Norm input = input_norm(to, t);

    take_gradient(to, t, &t->attended, t->dmid);
    output_backward(to, weights, t);
    emit_attention_backward(to, &t->attention);
    if (is_latent(to->builder)) {
        latent_backward(to, weights, t, &input);
        return;
    }
    emit_head_norms_backward(to, &t->attention);
    emit_projections_backward_weight(weights, &t->attention,
                                     normed_again(to, weights, t, &input, t->input_again));
    emit_projections_backward_input(to, &t->attention, t->dnormed, ACCESS_WRITE);
    norm_backward(to, t, &input);
}

/* All that reads the block's gradient comes before the first norm adds to it. */
static void parallel_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const Norm input = input_norm(to, t), post = post_norm(t);
    const gboolean two = has_second_input(to->builder);
    guint read;

    take_gradient(to, t, NULL, t->dfed);
    output_backward(to, weights, t);
    down_backward(to, weights, t);
    read = normed_again(to, weights, t, two ? &post : &input, two ? t->post_again : t->input_again);
    gate_up_backward(to, weights, t, read);
    if (two)
        norm_backward(to, t, &post);
    emit_attention_backward(to, &t->attention);
    emit_head_norms_backward(to, &t->attention);
    if (two)
        read = normed_again(to, weights, t, &input, t->input_again);
    emit_projections_backward_weight(weights, &t->attention, read);
    emit_projections_backward_input(to, &t->attention, t->dnormed,
                                    two ? ACCESS_WRITE : ACCESS_UPDATE);
    norm_backward(to, t, &input);
}

static gint add_block_segment(Builder *builder, Emit *to, const UnitClass *unit, Lot lot,
                              const char *what)
{
    g_autofree char *name =
        g_strdup_printf("%s.%s%s", unit->name, lot == LOT_REST ? "rest." : "", what);

    *to = (Emit){
        .builder = builder,
        .segment = program_add_segment(builder->program, name),
        .weights = (guint)unit->parameter,
        .gradient = (guint)unit->gradient,
        .gradient_dtype = program_gradient_dtype(builder->spec),
    };
    return (gint)to->segment;
}

static void build_block(Builder *builder, guint index, Lot lot, const BlockTensors *tensors)
{
    const UnitClass *unit = program_unit(builder->program, index);
    Passes *passes = &builder->classes[index].passes[lot];
    Emit to, weights;

    passes->forward = add_block_segment(builder, &to, unit, lot, "forward");
    block_forward(&to, tensors);
    passes->backward = add_block_segment(builder, &to, unit, lot, "backward");
    weights = to;
    if (builder->splits_backward)
        passes->weights = add_block_segment(builder, &weights, unit, lot, "weights");
    if (is_parallel(builder)) {
        parallel_backward(&to, &weights, tensors);
        return;
    }
    if (tensors->is_sparse)
        sparse_half_backward(&to, &weights, tensors);
    else
        feed_forward_backward(&to, &weights, tensors);
    attention_half_backward(&to, &weights, tensors);
}

static void build_experts_unit(Builder *builder, guint index, Lot lot, const BlockTensors *tensors)
{
    const UnitClass *unit = program_unit(builder->program, index);
    Passes *passes = &builder->classes[index].passes[lot];
    Emit to, weights;

    passes->forward = add_block_segment(builder, &to, unit, lot, "forward");
    emit_experts(&to, &tensors->experts);
    passes->backward = add_block_segment(builder, &to, unit, lot, "backward");
    weights = to;
    if (builder->splits_backward)
        passes->weights = add_block_segment(builder, &weights, unit, lot, "weights");
    emit_experts_backward(&to, &weights, &tensors->experts);
}

static void build_lot(Builder *builder, Lot lot)
{
    const gboolean has_dense = builder->most_dense[lot] > 0;
    const gboolean has_sparse = builder->most_sparse[lot] > 0;
    BlockTensors dense = {0}, sparse = {0};

    if (has_dense)
        dense = add_block_tensors(builder, lot, FALSE);
    if (has_sparse)
        sparse = add_block_tensors(builder, lot, TRUE);
    for (guint i = 1; i < builder->program->units->len; i++) {
        const UnitKind kind = program_unit(builder->program, i)->kind;

        if (kind == UNIT_BLOCK && has_dense)
            build_block(builder, i, lot, &dense);
        else if (kind == UNIT_SPARSE && has_sparse)
            build_block(builder, i, lot, &sparse);
        else if (kind == UNIT_EXPERTS && has_sparse)
            build_experts_unit(builder, i, lot, &sparse);
    }
}

void build_blocks(Builder *builder)
{
    for (guint lot = 0; lot < NUM_LOTS; lot++)
        build_lot(builder, (Lot)lot);
}
