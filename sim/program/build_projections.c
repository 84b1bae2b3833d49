/* Queries, keys and values: three matrices of what the norm before attention left, norms of queries
 * and keys where the model has them, and rotation. */
#include "sim/program/emit.h"

static gboolean has_head_norms(const Builder *builder)
{
    return (builder->local.features & FEATURE_QK_NORM) != 0;
}

typedef struct {
    Linear q, k, v;
} Projections;

static Projections projections(const Builder *builder)
{
    const Model *model = &builder->local;
    const guint64 query = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;

    return (Projections){
        .q = {PARAM_Q, model->hidden, query, 0, 0},
        .k = {PARAM_K, model->hidden, kv, 0, 0},
        .v = {PARAM_V, model->hidden, kv, 0, 0},
    };
}

/* The gradients before the norms are what the matrices' backward passes read. */
void build_projections(Builder *builder, AttentionTensors *tensors, guint saved)
{
    const Model *model = &builder->local;
    const guint64 query = (guint64)model->heads * model->head_dim;
    const guint64 kv = (guint64)model->kv_heads * model->head_dim;
    const guint weights = builder_weights_space(builder);

    tensors->norms =
        (HeadNorms){.q = tensors->q, .k = tensors->k, .dq = tensors->dq, .dk = tensors->dk};
    if (!has_head_norms(builder))
        return;
    tensors->norms = (HeadNorms){
        .q = emit_activation(builder, "q_given", saved, query),
        .k = emit_activation(builder, "k_given", saved, kv),
        .q_stats = emit_norm_stats(builder, "q_rstd", saved, PARAM_Q_NORM),
        .k_stats = emit_norm_stats(builder, "k_rstd", saved, PARAM_K_NORM),
        .dq = emit_activation(builder, "dq_given", weights, query),
        .dk = emit_activation(builder, "dk_given", weights, kv),
    };
    if (!emit_is_spread(builder, PARAM_Q_NORM))
        return;
    tensors->norms.q_sums = emit_norm_stats(builder, "dq_sums", NO_SPACE, PARAM_Q_NORM);
    tensors->norms.k_sums = emit_norm_stats(builder, "dk_sums", NO_SPACE, PARAM_K_NORM);
}

void emit_projections(const Emit *to, const AttentionTensors *t, guint normed)
{
    const Projections w = projections(to->builder);
    const HeadNorms *norms = &t->norms;

    emit_linear(to, &w.q, normed, norms->q, ACCESS_WRITE);
    emit_linear(to, &w.k, normed, norms->k, ACCESS_WRITE);
    emit_linear(to, &w.v, normed, t->v, ACCESS_WRITE);
    if (has_head_norms(to->builder)) {
        emit_norm(to, norms->q, PARAM_Q_NORM, t->q, norms->q_stats);
        emit_norm(to, norms->k, PARAM_K_NORM, t->k, norms->k_stats);
    }
    emit_rope(to, OP_ROPE, t->q, t->k);
}

void emit_head_norms_backward(const Emit *to, const AttentionTensors *t)
{
    const HeadNorms *norms = &t->norms;
    const NormBackward q = {t->dq, norms->q, norms->q_stats, norms->dq, ACCESS_WRITE};
    const NormBackward k = {t->dk, norms->k, norms->k_stats, norms->dk, ACCESS_WRITE};

    emit_rope(to, OP_ROPE_BACKWARD, t->dq, t->dk);
    if (!has_head_norms(to->builder))
        return;
    emit_spread_norm_backward(to, &q, PARAM_Q_NORM, norms->q_sums);
    emit_spread_norm_backward(to, &k, PARAM_K_NORM, norms->k_sums);
}

void emit_projections_backward_weight(const Emit *weights, const AttentionTensors *t, guint normed)
{
    const Projections w = projections(weights->builder);

    emit_linear_backward_weight(weights, &w.q, t->norms.dq, normed);
    emit_linear_backward_weight(weights, &w.k, t->norms.dk, normed);
    emit_linear_backward_weight(weights, &w.v, t->dv, normed);
}

void emit_projections_backward_input(const Emit *to, const AttentionTensors *t, guint dnormed,
                                     Access access)
{
    const Projections w = projections(to->builder);

    emit_linear_backward_input(to, &w.q, t->norms.dq, dnormed, access);
    emit_linear_backward_input(to, &w.k, t->norms.dk, dnormed, ACCESS_UPDATE);
    emit_linear_backward_input(to, &w.v, t->dv, dnormed, ACCESS_UPDATE);
}
