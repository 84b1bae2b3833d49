/* Tensors of a block.  Saved per block and micro-batch: x (the residual stream), rstd1 (with the
 * mean in LayerNorm), q, k, v (after rotation), o, lse, mid, rstd2, up, and gate where the MLP has
 * one. The normed inputs and what SwiGLU or GELU gives are computed again in the backward pass:
 * they cost one memory-bound pass each and would take 2 C + F per token and block.  Where the
 * halves are parallel there is no mid, and no rstd2 where one norm serves both; norms of what a
 * half gives save that, those of sums the sums: mid is made again. */
#include "sim/program/block_parts.h"

/* Of the blocks whose tensors are added. */
static Recompute lot_recompute(const Builder *builder)
{
    return builder->lot == LOT_REST ? RECOMPUTE_NONE : builder->recompute;
}

/* @whole is (N, C): what stands in where nothing is gathered or reduced. */
static TpTensors add_tp_tensors(Builder *builder, guint whole)
{
    TpTensors tp = {whole, whole, whole};

    if (builder->tp > 1)
        tp.partial = emit_activation(builder, "partial", NO_SPACE, builder->local.hidden);
    if (builder->sequence)
        tp.local = emit_local_activation(builder, "local", NO_SPACE);
    if (builder->sequence || block_norms_given(builder))
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
        if (block_has_attention(builder))
            tensors->input_again = emit_local_activation(builder, "input_normed", weights);
        if (block_has_second_input(builder))
            tensors->post_again = emit_local_activation(builder, "post_normed", weights);
        if (tensors->ffn > 0)
            tensors->dfed = emit_activation(builder, "dfed", weights, hidden);
        tensors->dmid = block_is_parallel(builder) || !block_has_attention(builder)
                            ? tensors->dfed
                            : emit_activation(builder, "dmid", weights, hidden);
    } else if (builder->sequence || block_norms_given(builder)) {
        tensors->dfed = tensors->dmid = emit_activation(builder, "dgathered", NO_SPACE, hidden);
    }
}

static void add_output_norms(Builder *builder, BlockTensors *tensors, guint saved)
{
    if (!block_has_output_norms(builder))
        return;
    g_assert(!block_is_parallel(builder)); /* no family has both */
    tensors->attended =
        (OutputNorm){PARAM_ATTENTION_NORM, emit_local_activation(builder, "attended", saved),
                     emit_norm_stats(builder, "attended_rstd", saved, PARAM_ATTENTION_NORM)};
    tensors->fed = (OutputNorm){PARAM_MLP_NORM, emit_local_activation(builder, "fed", saved),
                                emit_norm_stats(builder, "fed_rstd", saved, PARAM_MLP_NORM)};
    if (builder->sequence && block_norms_given(builder))
        tensors->dgiven = emit_local_activation(builder, "dgiven", NO_SPACE);
}

static AttentionTensors add_attention_tensors(Builder *builder)
{
    if (!block_has_attention(builder))
        return (AttentionTensors){0};
    const Model *model = &builder->local;
    const Recompute recompute = lot_recompute(builder);
    const guint64 query = (guint64)model->heads * model->head_dim;
    const guint64 given = (guint64)model->heads * model_value_dim(model);
    const gboolean indexed = emit_is_indexed(builder); /* keys are latent, and values in them */
    const guint64 kv = indexed ? model->latent.kv_rank + model->latent.rope_dim
                               : (guint64)model->kv_heads * model->head_dim;
    const guint64 value = (guint64)model->kv_heads * model_value_dim(model);
    const gboolean all = recompute == RECOMPUTE_FULL, some = recompute != RECOMPUTE_NONE;
    const guint saved = builder_saved_space(builder, UNTIL_BACKWARD, all);
    const guint kept = builder_saved_space(builder, UNTIL_WEIGHTS, all);
    const guint weights = builder_weights_space(builder);
    const guint rotated = (model->features & FEATURE_QK_NORM) != 0 ? NO_SPACE : weights;
    const gboolean latent = block_is_latent(builder); /* keys and values come from one matrix */
    AttentionTensors tensors = {
        .q = emit_activation(builder, "q", indexed ? kept : saved, query),
        .k = emit_activation(builder, "k", saved, kv),
        .v = indexed ? 0 : emit_activation(builder, "v", saved, value),
        .o =
            emit_activation(builder, "o", builder_saved_space(builder, UNTIL_WEIGHTS, some), given),
        .lse =
            emit_activation_fp32(builder, "lse", builder_saved_space(builder, UNTIL_BACKWARD, some),
                                 builder->rows * model->heads),
        .dattention = emit_activation(builder, "dattention", indexed ? weights : NO_SPACE, given),
        .dq = emit_activation(builder, "dq", rotated, query),
        .dk = emit_activation(builder, "dk", latent ? NO_SPACE : rotated, kv),
        .dv = indexed ? 0 : emit_activation(builder, "dv", latent ? NO_SPACE : weights, value),
    };

    if (latent)
        build_latent(builder, &tensors, saved);
    else
        build_projections(builder, &tensors, saved);
    if (indexed)
        build_indexed(builder, &tensors, saved, builder_saved_space(builder, UNTIL_WEIGHTS, some));
    build_attention(builder, &tensors);
    return tensors;
}

static guint add_stats(Builder *builder, const char *name, guint space, ParamRole param)
{
    return emit_has_norm(builder, param) ? emit_norm_stats(builder, name, space, param) : 0;
}

/* What the second half adds to. */
static guint add_mid(Builder *builder, guint saved)
{
    if (block_is_parallel(builder) || !block_has_attention(builder) || !block_has_mlp(builder))
        return builder->residual;
    return emit_local_activation(builder, "mid", block_norms_sums(builder) ? NO_SPACE : saved);
}

BlockTensors build_block_tensors(Builder *builder)
{
    const gboolean is_sparse = model_kind_is_sparse(builder->spec->model, builder->kind);
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
        .mid = add_mid(builder, saved),
        .rstd2 = block_has_second_input(builder)
                     ? add_stats(builder, "rstd2", saved, PARAM_POST_NORM)
                     : 0,
        .gate =
            block_is_gated(builder) && ffn > 0 ? emit_activation(builder, "gate", kept, ffn) : 0,
        .up = ffn > 0 ? emit_activation(builder, "up", kept, ffn) : 0,
        .normed = emit_activation(builder, "normed", NO_SPACE, hidden),
        .dnormed = emit_activation(builder, "dnormed", NO_SPACE, hidden),
        .h = emit_activation(builder, "h", NO_SPACE, ffn),
        .dh = emit_activation(builder, "dh", NO_SPACE, ffn),
    };

    tensors.tp = add_tp_tensors(builder, tensors.normed);
    add_gradients(builder, &tensors);
    add_output_norms(builder, &tensors, saved);
    build_scale(builder, &tensors, saved);
    if (is_sparse)
        build_experts(builder, &tensors.experts, saved, kept);
    return tensors;
}
