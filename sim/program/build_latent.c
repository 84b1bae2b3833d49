/* Latent attention (DeepSeek-V2, arXiv 2405.04434, sec. 2.1): queries come from q_rank values a
 * token (or straight from the norm), keys and values from kv_rank; of a key one part is rotated and
 * the same for all heads.  With tensor parallelism the matrices down are whole on every rank and
 * work on its own tokens; what they give is normed, gathered, and goes up to this rank's heads, as
 * in Megatron-Core. */
#include "sim/program/emit.h"

typedef struct {
    Linear q_down, kv_down, q, kv_up;
} LatentWeights;

static gboolean has_q_rank(const Builder *builder)
{
    return (builder->local.features & FEATURE_Q_RANK) != 0;
}

static guint64 up_columns(const Model *model)
{
    return (guint64)model->heads * (model->latent.plain_dim + model->latent.value_dim);
}

static LatentWeights latent_weights(const Builder *builder)
{
    const Model *model = &builder->local;
    const LatentAttention *latent = &model->latent;
    const guint64 rows = builder->local_rows;

    return (LatentWeights){
        .q_down = {PARAM_Q_DOWN, model->hidden, latent->q_rank, rows, 0},
        .kv_down = {PARAM_KV_DOWN, model->hidden, latent->kv_rank + latent->rope_dim, rows, 0},
        .q = {PARAM_Q, has_q_rank(builder) ? latent->q_rank : model->hidden,
              (guint64)model->heads * model->head_dim, 0, 0},
        .kv_up = {PARAM_KV_UP, latent->kv_rank, up_columns(model), 0, 0},
    };
}

/* Of all tokens; where a rank has all of them, the local one. */
static guint add_whole(Builder *builder, const char *name, guint local, guint64 columns)
{
    return builder->sequence ? emit_activation(builder, name, NO_SPACE, columns) : local;
}

static guint add_local(Builder *builder, const char *name, guint whole, guint64 columns)
{
    return builder->sequence ? emit_local_columns(builder, name, NO_SPACE, columns) : whole;
}

/* What a norm left, in the backward pass: kept where the matrices' come later. */
static guint add_again(Builder *builder, const char *name, guint local, guint64 columns)
{
    return builder->splits_backward
               ? emit_local_columns(builder, name, builder_weights_space(builder), columns)
               : local;
}

static void add_query(Builder *builder, LatentTensors *t, guint saved)
{
    const guint64 rank = builder->local.latent.q_rank;
    const guint weights = builder_weights_space(builder);

    if (!has_q_rank(builder))
        return;
    t->q = emit_local_columns(builder, "q_latent", saved, rank);
    t->q_stats = emit_norm_stats(builder, "q_latent_rstd", saved, PARAM_Q_DOWN_NORM);
    t->q_normed_local = emit_local_columns(builder, "q_latent_normed", NO_SPACE, rank);
    t->q_normed = add_whole(builder, "q_latent_gathered", t->q_normed_local, rank);
    t->q_again = add_again(builder, "q_latent_again", t->q_normed_local, rank);
    t->dq_normed = emit_activation(builder, "dq_latent_normed", NO_SPACE, rank);
    t->dq_local = add_local(builder, "dq_latent_reduced", t->dq_normed, rank);
    t->dq = emit_local_columns(builder, "dq_latent", weights, rank);
}

static void add_key_value(Builder *builder, LatentTensors *t, guint saved)
{
    const LatentAttention *latent = &builder->local.latent;
    const guint64 rank = latent->kv_rank, rope = latent->rope_dim;
    const guint64 up = up_columns(&builder->local);
    const guint weights = builder_weights_space(builder);

    t->kv = emit_local_columns(builder, "kv_latent", saved, rank + rope);
    t->kv_stats = emit_norm_stats(builder, "kv_latent_rstd", saved, PARAM_KV_DOWN_NORM);
    t->kv_normed_local = emit_local_columns(builder, "kv_latent_normed", NO_SPACE, rank);
    t->kv_normed = add_whole(builder, "kv_latent_gathered", t->kv_normed_local, rank);
    t->rotated_local = emit_local_columns(builder, "rotated", NO_SPACE, rope);
    t->rotated = add_whole(builder, "rotated_gathered", t->rotated_local, rope);
    if (!emit_is_indexed(builder)) {
        t->kv_again = add_again(builder, "kv_latent_again", t->kv_normed_local, rank);
        t->up = emit_activation(builder, "kv_up", NO_SPACE, up);
        t->dup = emit_activation(builder, "dkv_up", weights, up);
    }
    t->drotated = emit_activation(builder, "drotated", NO_SPACE, rope);
    t->drotated_local = add_local(builder, "drotated_reduced", t->drotated, rope);
    t->dkv_normed = emit_activation(builder, "dkv_latent_normed", NO_SPACE, rank);
    t->dkv_local = add_local(builder, "dkv_latent_reduced", t->dkv_normed, rank);
    t->dkv = emit_local_columns(builder, "dkv_latent", weights, rank + rope);
}

void build_latent(Builder *builder, AttentionTensors *tensors, guint saved)
{
    LatentTensors *t = &tensors->latent;

    add_query(builder, t, saved);
    add_key_value(builder, t, saved);
    t->dnormed = emit_local_activation(builder, "dlatent_normed", NO_SPACE);
}

/* Of all heads' queries, and of the one rotated part of the keys. */
static void rotate(const Emit *to, OpKind kind, guint q, guint rotated)
{
    Op *op = emit_op(to, kind);

    op->sizes.head_dim = to->builder->local.latent.rope_dim;
    op->sizes.kv_heads = 1;
    emit_updates(op, q);
    emit_updates(op, rotated);
    emit_reads(op, to->builder->rope_table);
}

static Op *join_op(const Emit *to, OpKind kind)
{
    Op *op = emit_op(to, kind);

    op->sizes.in = to->builder->local.latent.rope_dim;
    return op;
}

/* The rotated part, from where the matrix down left it, or back. */
static void copy_rotated(const Emit *to, guint from, guint target, Access access)
{
    emit_part(to, from, target, to->builder->local_rows * to->builder->local.latent.rope_dim,
              access);
}

/* Both parts of latent keys, as attention reads them where all heads share them, or back. */
static void join_latents(const Emit *to, const AttentionTensors *t)
{
    const LatentAttention *sizes = &to->builder->local.latent;
    const guint64 rows = to->builder->rows;

    emit_part(to, t->latent.kv_normed, t->k, rows * sizes->kv_rank, ACCESS_WRITE);
    emit_part(to, t->latent.rotated, t->k, rows * sizes->rope_dim, ACCESS_UPDATE);
}

static void split_latents(const Emit *to, const AttentionTensors *t)
{
    const LatentAttention *sizes = &to->builder->local.latent;
    const guint64 rows = to->builder->rows;

    emit_part(to, t->dk, t->latent.dkv_normed, rows * sizes->kv_rank, ACCESS_WRITE);
    emit_part(to, t->dk, t->latent.drotated, rows * sizes->rope_dim, ACCESS_WRITE);
}

void emit_latent(const Emit *to, const AttentionTensors *t, guint local, guint normed)
{
    const LatentWeights w = latent_weights(to->builder);
    const LatentAttention *sizes = &to->builder->local.latent;
    const LatentTensors *l = &t->latent;

    if (has_q_rank(to->builder)) {
        emit_linear(to, &w.q_down, local, l->q, ACCESS_WRITE);
        emit_norm(to, l->q, PARAM_Q_DOWN_NORM, l->q_normed_local, l->q_stats);
        emit_gather_columns(to, l->q_normed_local, l->q_normed, sizes->q_rank);
    }
    emit_linear(to, &w.q, has_q_rank(to->builder) ? l->q_normed : normed, t->q, ACCESS_WRITE);
    emit_linear(to, &w.kv_down, local, l->kv, ACCESS_WRITE);
    emit_norm(to, l->kv, PARAM_KV_DOWN_NORM, l->kv_normed_local, l->kv_stats);
    emit_gather_columns(to, l->kv_normed_local, l->kv_normed, sizes->kv_rank);
    copy_rotated(to, l->kv, l->rotated_local, ACCESS_WRITE);
    emit_gather_columns(to, l->rotated_local, l->rotated, sizes->rope_dim);
    rotate(to, OP_ROPE, t->q, l->rotated);
    if (emit_is_indexed(to->builder)) {
        join_latents(to, t);
        emit_index(to, t, l->q_normed, normed);
        return;
    }
    emit_linear(to, &w.kv_up, l->kv_normed, l->up, ACCESS_WRITE);
    Op *op = join_op(to, OP_LATENT_JOIN);
    emit_reads(op, l->up);
    emit_reads(op, l->rotated);
    emit_writes(op, t->k);
    emit_writes(op, t->v);
}

/* Of all tokens, as the weight's backward reads it. */
static guint whole_again(const Emit *weights, guint again, guint whole, guint64 columns)
{
    emit_gather_columns(weights, again, whole, columns);
    return weights->builder->sequence ? whole : again;
}

static void key_value_up_backward(const Emit *to, const Emit *weights, const LatentTensors *l)
{
    const LatentWeights w = latent_weights(to->builder);
    const LatentAttention *sizes = &to->builder->local.latent;

    emit_norm_again(to, l->kv, PARAM_KV_DOWN_NORM, l->kv_stats, l->kv_again);
    emit_linear_backward_weight(weights, &w.kv_up, l->dup,
                                whole_again(weights, l->kv_again, l->kv_normed, sizes->kv_rank));
    emit_linear_backward_input(to, &w.kv_up, l->dup, l->dkv_normed, ACCESS_WRITE);
}

static void key_value_backward(const Emit *to, const Emit *weights, const AttentionTensors *t)
{
    const LatentAttention *sizes = &to->builder->local.latent;
    const LatentTensors *l = &t->latent;

    if (!emit_is_indexed(to->builder))
        key_value_up_backward(to, weights, l);
    const NormBackward norm = {emit_reduce_columns(to, l->dkv_normed, l->dkv_local, sizes->kv_rank),
                               l->kv, l->kv_stats, l->dkv, ACCESS_WRITE};
    emit_norm_backward(to, &norm, PARAM_KV_DOWN_NORM);
    copy_rotated(to, emit_reduce_columns(to, l->drotated, l->drotated_local, sizes->rope_dim),
                 l->dkv, ACCESS_UPDATE);
}

/* Returns where the gradient of what the norm left is, of this rank's tokens, so far. */
static guint query_backward(const Emit *to, const Emit *weights, const AttentionTensors *t,
                            const LatentInput *input)
{
    const LatentWeights w = latent_weights(to->builder);
    const guint64 rank = to->builder->local.latent.q_rank;
    const LatentTensors *l = &t->latent;

    if (!has_q_rank(to->builder)) {
        emit_linear_backward_weight(weights, &w.q, t->dq, input->normed);
        emit_linear_backward_input(to, &w.q, t->dq, input->dnormed, ACCESS_WRITE);
        return emit_reduce_partial(to, input->dnormed, l->dnormed);
    }
    emit_norm_again(to, l->q, PARAM_Q_DOWN_NORM, l->q_stats, l->q_again);
    emit_linear_backward_weight(weights, &w.q, t->dq,
                                whole_again(weights, l->q_again, l->q_normed, rank));
    emit_linear_backward_input(to, &w.q, t->dq, l->dq_normed, ACCESS_WRITE);
    const NormBackward norm = {emit_reduce_columns(to, l->dq_normed, l->dq_local, rank), l->q,
                               l->q_stats, l->dq, ACCESS_WRITE};
    emit_norm_backward(to, &norm, PARAM_Q_DOWN_NORM);
    emit_linear_backward_weight(weights, &w.q_down, l->dq, input->local);
    emit_linear_backward_input(to, &w.q_down, l->dq, l->dnormed, ACCESS_WRITE);
    return l->dnormed;
}

static void join_backward(const Emit *to, const AttentionTensors *t)
{
    Op *op = join_op(to, OP_LATENT_JOIN_BACKWARD);

    emit_reads(op, t->dk);
    emit_reads(op, t->dv);
    emit_writes(op, t->latent.dup);
    emit_writes(op, t->latent.drotated);
}

guint emit_latent_backward(const Emit *to, const Emit *weights, const AttentionTensors *t,
                           const LatentInput *input)
{
    const LatentWeights w = latent_weights(to->builder);
    const LatentTensors *l = &t->latent;
    const gboolean indexed = emit_is_indexed(to->builder);

    if (indexed)
        split_latents(to, t);
    else
        join_backward(to, t);
    rotate(to, OP_ROPE_BACKWARD, t->dq, l->drotated);
    key_value_backward(to, weights, t);
    const guint dx = query_backward(to, weights, t, input);
    if (indexed)
        emit_index_backward_weight(weights, t, to->builder->sequence ? l->q_normed : l->q_again,
                                   input->normed);
    emit_linear_backward_weight(weights, &w.kv_down, l->dkv, input->local);
    emit_linear_backward_input(to, &w.kv_down, l->dkv, dx, ACCESS_UPDATE);
    return dx;
}
