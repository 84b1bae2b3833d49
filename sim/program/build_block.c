/* The block of a Llama- or GPT-2-shaped model, or of one in between: whole parameters, whole
 * gradients; with tensor parallelism this rank's part of them and the collectives between.  Dropout
 * is 0: layouts could not be compared with it. */
#include "sim/program/block_parts.h"

/* h of gate and up, or of up alone. */
static void activate(const Emit *to, const BlockTensors *t, guint h)
{
    Op *op = emit_op(to, block_is_gated(to->builder) ? OP_SWIGLU : OP_GELU);

    op->sizes.in = op->sizes.out = t->ffn;
    if (block_is_gated(to->builder))
        emit_reads(op, t->gate);
    emit_reads(op, t->up);
    emit_writes(op, h);
    if (block_has_scale(to->builder, t))
        emit_reads(op, t->shared.scale);
}

/* gate and up become their gradients. */
static void activate_backward(const Emit *to, const BlockTensors *t)
{
    Op *op = emit_op(to, block_is_gated(to->builder) ? OP_SWIGLU_BACKWARD : OP_GELU_BACKWARD);

    op->sizes.in = op->sizes.out = t->ffn;
    emit_reads(op, t->dh);
    if (block_is_gated(to->builder))
        emit_updates(op, t->gate);
    emit_updates(op, t->up);
    if (block_has_scale(to->builder, t)) {
        emit_reads(op, t->shared.scale);
        emit_writes(op, t->shared.dscale);
    }
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
    if (block_norms_given(to->builder))
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

/* y := norm(x + input W^T), and the sum, which is kept. */
static void add_and_norm(const Emit *to, const BlockTensors *t, const ResidualSum *sum, guint y)
{
    const OutputNorm *norm = sum->norm;

    if (to->builder->tp == 1) {
        emit_copy(to, sum->x, norm->given, 0);
        emit_linear(to, sum->weight, sum->input, norm->given, ACCESS_UPDATE);
        emit_norm(to, norm->given, norm->param, y, norm->stats);
        return;
    }
    emit_linear(to, sum->weight, sum->input, t->tp.partial, ACCESS_WRITE);
    const guint given = emit_reduce_partial(to, t->tp.partial, t->tp.given);
    const AddedNorm added = {sum->x, given, norm->given, y, norm->stats};

    emit_sum_bias(to, sum->weight, given);
    emit_added_norm(to, &added, norm->param);
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

/* What leaves the MLP's input: where sums are normed, the one that left mid. */
static Norm post_norm(const Emit *to, const BlockTensors *t)
{
    if (block_norms_sums(to->builder))
        return (Norm){t->attended.given, t->attended.stats, t->attended.param};
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

    if (block_is_gated(to->builder))
        emit_linear(to, &w.gate, input, t->gate, ACCESS_WRITE);
    emit_linear(to, &w.up, input, t->up, ACCESS_WRITE);
    emit_scale(to, t, input);
    activate(to, t, t->h);
}

/* From the norm to queries, keys and values; returns what the matrices read. */
static guint attention_input(const Emit *to, const BlockTensors *t)
{
    const Norm input = input_norm(to, t);
    const guint local = normed_local(to, t, &input);
    const gboolean reads_whole =
        !block_is_latent(to->builder) || t->attention.latent.q == 0 || emit_is_indexed(to->builder);
    const guint read = reads_whole ? whole(to, t, local) : local;

    if (block_is_latent(to->builder))
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

/* The same halves with norms of sums.  What goes on is copied: computed again, the norm must not
 * write where another block's input may lie by then. */
static void norm_sums(const Emit *to, const BlockTensors *t, const ResidualSum *attended,
                      const ResidualSum *fed)
{
    add_and_norm(to, t, attended, t->mid);
    feed_forward(to, t, whole(to, t, t->mid));
    add_and_norm(to, t, fed, t->tp.local);
    emit_copy(to, t->tp.local, fed->y, fed->y_shift);
}

/* A block of one half. */
static void half_forward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to, t);
    const guint x = to->builder->residual;
    const ResidualSum attended = {&w.o, t->attention.o, x, x, 1, &t->attended};
    const ResidualSum fed = {&w.down, t->h, x, x, 1, &t->fed};
    const Norm post = post_norm(to, t);

    if (block_has_attention(to->builder)) {
        attention_input(to, t);
        emit_attention(to, &t->attention);
        add_to_residual(to, t, &attended);
        return;
    }
    feed_forward(to, t, whole(to, t, normed_local(to, t, &post)));
    add_to_residual(to, t, &fed);
}

static void block_forward(const Emit *to, const BlockTensors *t)
{
    const BlockWeights w = block_weights(to, t);
    const guint x = to->builder->residual;
    const Norm post = post_norm(to, t);
    const ResidualSum attended = {&w.o, t->attention.o, x, t->mid, 0, &t->attended};
    const ResidualSum fed = {&w.down, t->h, t->mid, x, 1, &t->fed}; /* the next copy */
    guint read = attention_input(to, t);

    emit_attention(to, &t->attention);
    if (block_is_parallel(to->builder)) {
        if (block_has_second_input(to->builder))
            read = whole(to, t, normed_local(to, t, &post));
        feed_forward(to, t, read);
        add_both(to, t, &w);
        return;
    }
    if (block_norms_sums(to->builder)) {
        norm_sums(to, t, &attended, &fed);
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

    if (emit_has_norm(to->builder, norm->param) && !block_norms_sums(to->builder))
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
 * tokens, and where backward for weights comes later a copy, as the stream itself goes on.  Through
 * a norm of sums the stream itself passes, in place. */
static void take_gradient(const Emit *to, const BlockTensors *t, const OutputNorm *norm, guint dy)
{
    const gboolean sequence = to->builder->sequence;
    guint dx = to->builder->residual_gradient;

    if (block_has_output_norms(to->builder)) {
        const guint dgiven = block_norms_sums(to->builder) ? dx : sequence ? t->dgiven : dy;
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
    const gboolean gated = block_is_gated(to->builder);

    if (gated)
        emit_linear_backward_weight(weights, &w.gate, t->gate, input);
    emit_linear_backward_weight(weights, &w.up, t->up, input);
    if (gated)
        emit_linear_backward_input(to, &w.gate, t->gate, t->dnormed, ACCESS_WRITE);
    emit_linear_backward_input(to, &w.up, t->up, t->dnormed, gated ? ACCESS_UPDATE : ACCESS_WRITE);
    emit_scale_backward(to, weights, t, input);
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
    const Norm post = post_norm(to, t);

    take_gradient(to, t, &t->fed, t->dfed);
    down_backward(to, weights, t);
    gate_up_backward(to, weights, t, normed_again(to, weights, t, &post, t->post_again));
    norm_backward(to, t, &post);
}

/* The same with experts, whose own backward has left the gradients of the rows that it was sent. */
static void sparse_half_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const Norm post = post_norm(to, t);
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
    const gboolean reads_whole = t->attention.latent.q == 0 || emit_is_indexed(to->builder);
    const guint read = reads_whole ? whole(weights, t, local) : local;
    const LatentInput latent = {local, read, t->dnormed};

    local_norm_backward(to, input, emit_latent_backward(to, weights, &t->attention, &latent));
}

/* Of the first half: on exit dx holds the gradient of the block's input. */
static void attention_half_backward(const Emit *to, const Emit *weights, const BlockTensors *t)
{
    const Norm input = input_norm(to, t);

    take_gradient(to, t, &t->attended, t->dmid);
    output_backward(to, weights, t);
    if (emit_is_indexed(to->builder))
        emit_indexed_attention_backward(to, weights, &t->attention);
    else
        emit_attention_backward(to, &t->attention);
    if (block_is_latent(to->builder)) {
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
    const Norm input = input_norm(to, t), post = post_norm(to, t);
    const gboolean two = block_has_second_input(to->builder);
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

static void build_block(Builder *builder, guint index, const BlockTensors *tensors)
{
    const UnitClass *unit = program_unit(builder->program, index);
    const Lot lot = builder->lot;
    Passes *passes = &builder->classes[index].passes[lot];
    Emit to, weights;

    passes->forward = add_block_segment(builder, &to, unit, lot, "forward");
    const gboolean attention = block_has_attention(builder), mlp = block_has_mlp(builder);
    if (attention && mlp)
        block_forward(&to, tensors);
    else
        half_forward(&to, tensors);
    passes->backward = add_block_segment(builder, &to, unit, lot, "backward");
    weights = to;
    if (builder->splits_backward)
        passes->weights = add_block_segment(builder, &weights, unit, lot, "weights");
    if (block_is_parallel(builder)) {
        parallel_backward(&to, &weights, tensors);
        return;
    }
    if (tensors->is_sparse)
        sparse_half_backward(&to, &weights, tensors);
    else if (mlp)
        feed_forward_backward(&to, &weights, tensors);
    if (attention)
        attention_half_backward(&to, &weights, tensors);
}

static void build_experts_unit(Builder *builder, guint index, const BlockTensors *tensors)
{
    const UnitClass *unit = program_unit(builder->program, index);
    const Lot lot = builder->lot;
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
    g_autofree BlockTensors *tensors = g_new0(BlockTensors, builder->num_kinds);

    for (guint k = 0; k < builder->num_kinds; k++) {
        builder_turn_to(builder, k, lot);
        if (builder->kinds[k].most_of[lot] > 0)
            tensors[k] = build_block_tensors(builder);
    }
    for (guint i = 1; i < builder->program->units->len; i++) {
        const UnitClass *unit = program_unit(builder->program, i);

        if (builder->kinds[unit->of_kind].most_of[lot] == 0)
            continue;
        builder_turn_to(builder, unit->of_kind, lot);
        if (unit->kind == UNIT_EXPERTS)
            build_experts_unit(builder, i, &tensors[unit->of_kind]);
        else
            build_block(builder, i, &tensors[unit->of_kind]);
    }
    builder_turn_to(builder, 0, LOT_FIRST);
}

void build_blocks(Builder *builder)
{
    for (guint lot = 0; lot < NUM_LOTS; lot++)
        build_lot(builder, (Lot)lot);
}
