/* Private to the plain build: ops of a segment under construction, one function a kind. */
#pragma once

#include "sim/program/builder.h"

/* An op under construction and its unit's tensors. */
typedef struct {
    Builder *builder;
    guint segment, weights, gradient;
    DType gradient_dtype;
} Emit;

/* Where a norm's backward reads, and where it adds. */
typedef struct {
    guint dy, x, stats, dx;
    Access dx_access;
} NormBackward;

/* A weight (O, I) between x (N, I) and y (N, O), and its bias where the model has one. */
typedef struct {
    ParamRole param;
    guint64 in, out;
    guint64 rows;   /* N; 0: this rank's tokens */
    guint64 groups; /* experts that are held, each with (O, I) and its part of N; 0 elsewhere */
} Linear;

/* What latent attention makes queries, keys and values of (build_latent.c); _local: of this rank's
 * tokens of the residual stream. */
typedef struct {
    guint q, q_stats, kv, kv_stats; /* what the matrices down gave, local */
    guint q_normed_local, kv_normed_local, rotated_local;
    guint q_normed, kv_normed, rotated, up;
    guint q_again, kv_again; /* local: what the norms left, in the backward pass */
    guint dup, drotated, dq_normed, dkv_normed; /* backward */
    guint dq_local, dkv_local, drotated_local;  /* sums over ranks */
    guint dq, dkv;
    guint dnormed; /* local: the gradient of what the norm before attention left */
} LatentTensors;

/* What attention reads and leaves; and, where ranks share a sequence, what it works with: in a ring
 * two of each, one in use and one under way, else [0] for all ranks. */
typedef struct {
    guint k[2], v[2], dk[2], dv[2];
    guint part_dk, part_dv; /* of one step */
    guint o, dq;            /* sums */
} AttentionRing;

/* Queries and keys as their norms read them, where they are normed. */
typedef struct {
    guint q, k, q_stats, k_stats, dq, dk;
    guint q_sums, k_sums; /* backward: fp32 (N), where norms are over the heads of several ranks */
} HeadNorms;

/* Latent attention to chosen keys (build_indexed.c): what it works on in the latent space, and what
 * the indexer does. */
typedef struct {
    guint q, o, dq, dgiven;          /* (N, H * (rank + rope)), (N, H * rank) */
    guint all_k, all_dk;             /* of all ranks of the cp group */
    guint index_q, index_k, weights; /* (N, HI * DI), (N, DI), (N, HI) */
    guint given_k, stats;            /* a key before its norm */
    guint chosen, target;            /* (N, k) */
    guint dindex_q, dindex_k, dgiven_k, dweights;
    guint all_index_k, all_dindex_k;
} IndexedTensors;

typedef struct {
    guint q, k, v, o, lse, dattention, dq, dk, dv;
    HeadNorms norms;
    LatentTensors latent;
    IndexedTensors indexed;
    AttentionRing ring;
} AttentionTensors;

/* Between what a norm left, of all tokens, and queries, keys and values (build_projections.c).
 * @saved: the space of what forward leaves for backward. */
void build_projections(Builder *builder, AttentionTensors *tensors, guint saved);
void emit_projections(const Emit *to, const AttentionTensors *tensors, guint normed);

/* Gradients of queries and keys as the matrices gave them; then those of the matrices, and of what
 * they read: dnormed. */
void emit_head_norms_backward(const Emit *to, const AttentionTensors *tensors);
void emit_projections_backward_weight(const Emit *weights, const AttentionTensors *tensors,
                                      guint normed);
void emit_projections_backward_input(const Emit *to, const AttentionTensors *tensors, guint dnormed,
                                     Access access);

/* What latent attention's matrices down read, and where its gradient's partial sums go. */
typedef struct {
    guint local, normed; /* what the norm left of this rank's tokens; of all */
    guint dnormed;
} LatentInput;

/* The same of latent attention; @normed is only read where queries have no rank, or where keys are
 * chosen.  Backward returns where the gradient of @local is. */
void build_latent(Builder *builder, AttentionTensors *tensors, guint saved);
void emit_latent(const Emit *to, const AttentionTensors *tensors, guint local, guint normed);
guint emit_latent_backward(const Emit *to, const Emit *weights, const AttentionTensors *tensors,
                           const LatentInput *input);

/* Whether a query reads chosen keys. */
static inline gboolean emit_is_indexed(const Builder *builder)
{
    return builder->local.latent.top_keys != 0;
}

/* Attention to chosen keys: emit_index() from what the norms of queries' rank and before attention
 * left, of all tokens; attention from t->q and latent keys t->k to t->o; backward to t->dq and
 * t->dk, and the gradients of what the indexer's matrices gave. */
void build_indexed(Builder *builder, AttentionTensors *tensors, guint saved, guint kept);
void emit_index(const Emit *to, const AttentionTensors *tensors, guint q_latent, guint normed);
void emit_indexed_attention(const Emit *to, const AttentionTensors *tensors);
void emit_indexed_attention_backward(const Emit *to, const Emit *weights,
                                     const AttentionTensors *tensors);
void emit_index_backward_weight(const Emit *weights, const AttentionTensors *tensors,
                                guint q_latent, guint normed);

/* Experts of a block, and the way to them and back (build_experts.c). */
typedef struct {
    guint logits, weights, routes;           /* (N, E), (N, k); N of this rank's tokens */
    guint sent, received, returned, given;   /* (N * k, C): by expert, at home and where they are */
    guint rows, row_weights, gate, up, h, y; /* of the experts that are held, padded */
    guint dsent, dreceived, dreturned, dgiven, dy, dh, drows, drow_weights;
    guint dweights, dlogits, dx;
    guint h_again; /* h in the backward pass */
} ExpertTensors;

/* emit_route() is of the block's unit and sends the rows; emit_experts(), of the experts' own,
 * works on them and adds what comes back to the next copy of the residual stream.  Backward the
 * other way round: dx, local, is the gradient of @x. */
void build_experts(Builder *builder, ExpertTensors *tensors, guint saved, guint kept);
void emit_route(const Emit *to, const ExpertTensors *tensors, guint x);
void emit_experts(const Emit *to, const ExpertTensors *tensors);
void emit_experts_backward(const Emit *to, const Emit *weights, const ExpertTensors *tensors);
void emit_route_backward(const Emit *to, const Emit *weights, const ExpertTensors *tensors,
                         guint x);

void build_attention(Builder *builder, AttentionTensors *tensors); /* adds those of the ring */
void emit_attention(const Emit *to, const AttentionTensors *tensors);
void emit_attention_backward(const Emit *to, const AttentionTensors *tensors);

/* A tensor of activations: of any size; (N, columns); (N or N / tp, C or columns); fp32 values. */
guint emit_tensor(Builder *builder, const char *name, DType dtype, guint space, guint64 elements);
guint emit_local_columns(Builder *builder, const char *name, guint space, guint64 columns);
guint emit_activation(Builder *builder, const char *name, guint space, guint64 columns);
guint emit_local_activation(Builder *builder, const char *name, guint space);
guint emit_activation_fp32(Builder *builder, const char *name, guint space, guint64 elements);

/* What a norm leaves for its backward pass: rstd, or mean and rstd of each row. */
guint emit_norm_stats(Builder *builder, const char *name, guint space, ParamRole param);

/* Whether the model has that norm at all; one without parameters is one. */
gboolean emit_has_norm(const Builder *builder, ParamRole param);

/* A new compute op with the model's sizes, and its operands in order. */
Op *emit_op(const Emit *to, OpKind kind);
void emit_reads(Op *op, guint tensor);
void emit_writes(Op *op, guint tensor);
void emit_updates(Op *op, guint tensor);
void emit_accumulates(Op *op, guint tensor);
void emit_reads_weight(const Emit *to, Op *op, ParamRole param);
void emit_accumulates_gradient(const Emit *to, Op *op, ParamRole param);

/* Workspace: one tensor for all, as large as the largest bound (build_plain()). */
void emit_uses_scratch(const Emit *to, Op *op);

/* Whether that norm's columns are those of several ranks of the tp group: each sums over its own.
 */
gboolean emit_is_spread(const Builder *builder, ParamRole param);

/* The model's kind of norm: RMSNorm, or LayerNorm with a bias. */
void emit_norm(const Emit *to, guint x, ParamRole param, guint y, guint stats);

/* sum := x + added, and y and the statistics of the norm of that, in one pass over memory. */
typedef struct {
    guint x, added, sum, y, stats;
} AddedNorm;

void emit_added_norm(const Emit *to, const AddedNorm *norm, ParamRole param);
void emit_norm_again(const Emit *to, guint x, ParamRole param, guint stats, guint y);
void emit_norm_backward(const Emit *to, const NormBackward *norm, ParamRole param);

/* The same of one that may be spread; @sums: fp32 (N), where it is. */
void emit_spread_norm_backward(const Emit *to, const NormBackward *norm, ParamRole param,
                               guint sums);

/* The bias is added here, except to a partial sum of a tp group: emit_sum_bias() adds it, once, to
 * what was reduced.  Its gradient, of all tokens, is that of the weight's op everywhere. */
Op *emit_linear(const Emit *to, const Linear *weight, guint x, guint y, Access access);
Op *emit_linear_backward_input(const Emit *to, const Linear *weight, guint dy, guint dx,
                               Access access);
Op *emit_linear_backward_weight(const Emit *to, const Linear *weight, guint dy, guint x);
void emit_sum_bias(const Emit *to, const Linear *weight, guint y);

/* Nothing where the model's positions are others. */
void emit_rope(const Emit *to, OpKind kind, guint q, guint k);

/* Part of each token's values, @elements in all, to or from where others are beside them. */
void emit_part(const Emit *to, guint from, guint target, guint64 elements, Access access);

/* y := x, to which a linear then adds its product; y += x; y := x + added. */
void emit_copy(const Emit *to, guint x, guint y, gint y_shift);
void emit_add(const Emit *to, guint x, guint y, gint y_shift);
void emit_sum(const Emit *to, guint x, guint added, guint y, gint y_shift);

/* The sum of fp32 values over the tp group, in place; nothing without one. */
void emit_sum_fp32(const Emit *to, guint tensor);

/* A collective of the tp group on (N, C), on its stream of that direction. */
Op *emit_collective(const Emit *to, OpKind kind, const char *direction);

/* All tokens of what a norm left for its own: nothing to do where it had all. */
void emit_gather_tokens(const Emit *to, guint local, guint whole);
void emit_gather_columns(const Emit *to, guint local, guint whole, guint64 columns);

/* The sum of all ranks' partial sums, of the tokens that this rank works on; returns where it is.
 */
guint emit_reduce_partial(const Emit *to, guint partial, guint local);
guint emit_reduce_columns(const Emit *to, guint partial, guint local, guint64 columns);

/* A new segment of the root; returns it. */
guint emit_begin_root(Builder *builder, const char *name, Emit *to);
