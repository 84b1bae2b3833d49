/* Tensor parallelism: which part of each parameter a rank of the tp group holds (Megatron-LM,
 * Shoeybi et al. 2019, arXiv 1909.08053, sec. 3).  Queries, gate, up, embedding and head are split
 * by rows, and their biases with them, and norms with a weight for each of their values; the two
 * matrices that add to the residual stream by columns; their biases, other norms and positions are
 * whole everywhere. */
#pragma once

#include "sim/input/model.h"

typedef enum { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLUMNS } Split;

/* Part p holds rows (or columns) [p chunk, (p + 1) chunk) of the whole; the last parts may be
 * shorter or empty and are padded with zeros.  Rank t of the group holds part t / copies. */
typedef struct {
    Split split;
    guint64 rows, cols; /* of the whole */
    guint64 chunk;
    guint parts, copies; /* parts * copies == tp */
} TensorSplit;

/* Ranks of the group that hold the same of such a parameter. */
guint tensor_copies(const Model *model, ParamRole role, guint tp);

TensorSplit tensor_split(const Model *model, UnitKind unit, guint param, guint tp);

/* Over which ranks the gradient of a parameter with copies is still to be summed: those that hold
 * the same keys and values see different queries, the norms of queries and keys different heads,
 * the shared experts' scale different columns of what it scales; with tokens split (@sequence),
 * norms and positions see different tokens.  Biases that are added to a sum over ranks see all
 * tokens everywhere. */
typedef enum { SUM_NONE, SUM_OVER_KV, SUM_OVER_TP } PartialSum;

PartialSum tensor_gradient_sum(const Model *model, ParamRole role, gboolean sequence);

/* The model as one rank of the group sees it: fewer heads, a narrower ffn, fewer words, each
 * rounded up. Strings are those of @model.  tp must divide the heads, and be a divisor or a
 * multiple of the kv heads. */
Model tensor_parallel_model(const Model *model, guint tp);

/* Ranks that hold the same keys and values: more than 1 where tp exceeds the kv heads. */
guint tensor_parallel_kv_copies(const Model *model, guint tp);
