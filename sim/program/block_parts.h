/* Private to build_block*.c: what a block is made of.
 *
 * Shapes: N = micro_batch x seq tokens, C hidden, A = heads x head_dim, K = kv_heads x head_dim, F
 * ffn. */
#pragma once

#include "sim/program/emit.h"

/* What tensor parallelism puts between a norm and a matrix: with tokens split, a norm works on N /
 * tp of them and its output is gathered; what a matrix leaves as partial sums is reduced.  Without
 * (tp 1), or with tokens not split, the gathered tensor is the norm's own. */
typedef struct {
    guint local;   /* (N / tp, C): a norm's output, or a reduced sum */
    guint given;   /* the same of what a half gives, beside a norm's output */
    guint partial; /* (N, C): partial sums of this rank's part of a matrix */
} TpTensors;

/* Where what a half gives is normed before it is added, or its sum with x: @given is the norm's
 * input. */
typedef struct {
    ParamRole param;
    guint given, stats;
} OutputNorm;

/* How much of what the shared experts give a token takes: it scales their h, as a row's weight does
 * those of the others. */
typedef struct {
    guint logits, scale, dscale, dlogits; /* (N), the scale and its gradient fp32 */
} SharedScale;

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
    SharedScale shared;
    ExpertTensors experts;
} BlockTensors;

static inline gboolean block_is_gated(const Builder *builder)
{
    return (builder->local.features & FEATURE_GATED) != 0;
}

static inline gboolean block_is_latent(const Builder *builder)
{
    return (builder->local.features & FEATURE_LATENT) != 0;
}

/* Both halves read x and add to it. */
static inline gboolean block_is_parallel(const Builder *builder)
{
    return (builder->local.features & FEATURE_PARALLEL) != 0;
}

/* A block may lack either: then the other alone reads x and adds to it. */
static inline gboolean block_has_attention(const Builder *builder)
{
    return model_has_attention(&builder->local);
}

static inline gboolean block_has_mlp(const Builder *builder)
{
    return model_has_mlp(&builder->local);
}

/* What a half gives is normed before it is added. */
static inline gboolean block_norms_given(const Builder *builder)
{
    return (builder->local.features & FEATURE_OUTPUT_NORMS) != 0;
}

/* The sum with what a half gives is normed, and goes on as that; no norm comes before a half. */
static inline gboolean block_norms_sums(const Builder *builder)
{
    return (builder->local.features & FEATURE_POST_NORM) != 0;
}

static inline gboolean block_has_output_norms(const Builder *builder)
{
    return block_norms_given(builder) || block_norms_sums(builder);
}

/* Of the shared experts, where they have one. */
static inline gboolean block_has_scale(const Builder *builder, const BlockTensors *tensors)
{
    return tensors->is_sparse && builder->param[PARAM_SHARED_SCALE] >= 0;
}

/* In parallel one norm may serve both halves. */
static inline gboolean block_has_second_input(const Builder *builder)
{
    if (!block_has_mlp(builder))
        return FALSE;
    return !block_is_parallel(builder) || builder->param[PARAM_POST_NORM] >= 0;
}

/* Adds those of blocks of the builder's kind and lot. */
BlockTensors build_block_tensors(Builder *builder);

/* How much of what the shared experts give a token takes, and its gradients (build_shared.c);
 * nothing where blocks have none.  @input: what their matrices read, of all tokens. */
void build_scale(Builder *builder, BlockTensors *tensors, guint saved);
void emit_scale(const Emit *to, const BlockTensors *tensors, guint input);
void emit_scale_backward(const Emit *to, const Emit *weights, const BlockTensors *tensors,
                         guint input);
