/* Private to the passes: the program under construction and its calls before they are ordered. */
#pragma once

#include "sim/program/compile.h"

typedef enum {
    DRAFT_COMPUTE,
    DRAFT_GATHER, /* makes its unit's weights whole; stands right before the call that needs them */
    DRAFT_REDUCE,
    DRAFT_OTHER,
} DraftKind;

/* A call before rings and waits are assigned. */
typedef struct {
    DraftKind kind;
    guint segment, unit, micro_batch;
    gboolean first, last;
    gboolean uses_weights;   /* reads its unit's gathered weights */
    gboolean releases;       /* the last reader of that gathered copy */
    gboolean opens_gradient; /* first writer of its unit's whole gradients in this micro-batch */
    guint residual;          /* index of the residual stream's copy */
    guint saved;             /* index of the saved activations' copy */
} Draft;

typedef struct {
    gint forward, backward, recompute; /* segments of a block class */
    gint gather, reduce_first, reduce_add, reduce_last, update_gather;
    gint norm, update;
    guint gathered_space, gradient_space;
} ClassSegments;

typedef struct {
    const ProgramSpec *spec;
    Program *program;
    Model local;                 /* the model as this rank of the tp group sees it */
    gint param[NUM_PARAM_ROLES]; /* where each is in its unit, -1: nowhere */
    guint tp;                    /* ranks that split each matrix */
    gboolean sequence;           /* between matrices, tokens are split over them */
    guint64 rows;                /* tokens of a micro-batch on this rank */
    guint64
        local_rows; /* of them, those of the residual stream and the norms: rows, or rows / tp */
    DType dtype;    /* of activations and of weights in use */
    guint residual_space, saved_space, micro_batch_space;
    guint residual, residual_gradient, tokens, labels, rope_table, positions, scratch, logits,
        vocab_range;
    guint valid, loss, hyper, norm, coefficient, finite, sum_sharded, sum_whole;
    gint embed, head, embed_backward, count_valid; /* segments of the root */
    guint64 scratch_bytes;
    ClassSegments *classes; /* by unit class */
    GArray *drafts;         /* Draft */
} Builder;

/* Parts of build_plain(). */
void build_count_valid(Builder *builder);
void build_embedding(Builder *builder);
void build_blocks(Builder *builder);
void build_head(Builder *builder);

/* Each pass leaves the program consistent; they run in this order. */
void build_plain(Builder *builder);
void pass_recompute(Builder *builder);
void pass_shard(Builder *builder);
void pass_optimizer(Builder *builder);
void pass_order(Builder *builder);

/* Finds waits by dataflow: an op that reads or overwrites what another stream wrote or reads waits
 * for it, unless other waits already imply that; over the step followed by itself.  Call lists must
 * have no waits yet. */
void order_add_waits(Program *program);

static inline Draft *builder_draft(const Builder *builder, guint i)
{
    return &g_array_index(builder->drafts, Draft, i);
}

/* Appends a call that sums a step scalar over the groups of a purpose. */
void builder_all_reduce_scalar(Builder *builder, const char *name, guint scalar,
                               const char *purpose);

/* The stream of that direction of the groups of a purpose, made when first asked for. */
guint builder_stream(Builder *builder, const char *purpose, const char *direction);

/* The map of a unit of this class over @ranks, of this tensor-parallel rank's part. */
UnitMap *builder_unit_map(const Builder *builder, UnitKind kind, guint ranks);
