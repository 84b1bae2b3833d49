/* Private to the passes: the program under construction and its calls before they are ordered. */
#pragma once

#include "sim/layout/pipeline.h"
#include "sim/program/compile.h"

typedef enum {
    DRAFT_COMPUTE,
    DRAFT_GATHER, /* makes its unit's weights whole; stands right before the call that needs them */
    DRAFT_REDUCE,
    DRAFT_OTHER,
} DraftKind;

/* Activations live in rings; what a copy of each belongs to, and from when to when.  Blocks of
 * every kind and lot have their own of those that say "a block". */
typedef enum {
    RING_RESIDUAL, /* a block's input (one more a chunk: its output): to the end of its backward */
    RING_SAVED,    /* what forward leaves for backward, a block */
    RING_KEPT,     /* the same, a block, read by backward for weights, where that comes later */
    RING_AGAIN,    /* what is computed again right before backward: one copy */
    RING_AGAIN_KEPT, /* the same of a block, kept for backward for weights; copy 0 is forward's, for
                        nobody */
    RING_WEIGHTS,    /* what backward for inputs leaves for that for weights, a block */
    RING_GRADIENT,   /* the residual stream's gradient, a chunk and micro-batch in backward */
    RING_INBOX,      /* a chunk's input as it is received: to the start of its forward */
    NUM_RINGS
} Ring;

/* Copies that are free, in the order in which they became so: the first one is taken first. */
typedef struct {
    GArray *all; /* guint: all that ever came */
    guint next;
} Fifo;

static inline void fifo_init(Fifo *fifo)
{
    *fifo = (Fifo){.all = g_array_new(FALSE, FALSE, sizeof(guint))};
}

static inline void fifo_clear(Fifo *fifo)
{
    g_array_unref(fifo->all);
}

static inline gboolean fifo_is_empty(const Fifo *fifo)
{
    return fifo->next == fifo->all->len;
}

static inline void fifo_push(Fifo *fifo, guint copy)
{
    g_array_append_val(fifo->all, copy);
}

static inline guint fifo_pop(Fifo *fifo)
{
    return g_array_index(fifo->all, guint, fifo->next++);
}

/* A call before gathered copies and waits are assigned. */
typedef struct {
    DraftKind kind;
    guint segment, unit, micro_batch;
    guint8 of_kind, lot; /* of the block whose rings it binds */
    gboolean first, last;
    gboolean uses_weights;    /* reads its unit's gathered weights */
    gboolean releases;        /* the last reader of that gathered copy */
    gboolean opens_gradient;  /* first writer of its unit's whole gradients in this micro-batch */
    gboolean closes_gradient; /* the last one */
    guint16 ring[NUM_RINGS];  /* indices */
} Draft;

/* Segments of a block class; weights: backward for weights, where it is apart; else -1. */
typedef struct {
    gint forward, backward, weights;
} Passes;

typedef struct {
    Passes passes[NUM_LOTS]; /* of a block class */
    gint recompute;          /* of LOT_FIRST */
    gint gather, reduce_first, reduce_add, reduce_last, update_gather;
    gint norm, update;
    gint amax;         /* of what is gathered in fp8 for products in more bits; else -1 */
    gint fetch, store; /* of what an update works on and another tier keeps; else -1 */
    guint gathered_space, gradient_space;
    guint offload_space; /* of the buffers for that; NO_SPACE: none */
} ClassSegments;

/* Blocks of one kind. */
typedef struct {
    const char *name;               /* "", or what names begin with: "sparse", "block2" */
    Model whole, local;             /* of blocks of that kind alone; as this rank sees it */
    GArray *params[NUM_UNIT_KINDS]; /* ParamShape, of units of such blocks */
    guint most_of[NUM_LOTS];        /* of this stage's chunks */
    guint ring_space[NUM_LOTS][NUM_RINGS];
} BuilderKind;

typedef struct {
    const ProgramSpec *spec;
    Program *program;
    Model local;         /* the model as this rank of the tp group sees it */
    GArray *root_params; /* ParamShape: as this rank has them, without rows what it has not */
    BuilderKind *kinds;  /* of blocks */
    guint num_kinds;
    gint param[NUM_PARAM_ROLES];      /* where each is in its unit, -1: nowhere; of the root, and */
    guint64 rows_of[NUM_PARAM_ROLES]; /* of @kind; its rows on this rank */
    guint tp;                         /* ranks that split each matrix */
    guint cp;                         /* ranks that share a sequence */
    guint ep;                         /* ranks that share experts */
    gboolean sequence;                /* between matrices, tokens are split over them */
    guint64 seq;                      /* tokens of a sequence on this rank */
    guint64 rows;                     /* tokens of a micro-batch on this rank */
    guint64
        local_rows; /* of them, those of the residual stream and the norms: rows, or rows / tp */
    DType dtype;    /* of activations and of weights in use */
    guint stage, pp;
    const Timetable *timetable;       /* of this stage */
    gboolean has_embedding, has_head; /* the first chunk, the last one */
    gboolean splits_backward;         /* for inputs, later for weights */
    guint most_layers;                /* of this stage's chunks */
    guint most_of[NUM_LOTS];          /* the same, by lot */
    Recompute recompute;              /* of LOT_FIRST */
    guint kind; /* tensors and ops that are added are of blocks of that kind */
    Lot lot;    /* and of these */
    guint micro_batch_space;
    guint inbox, residual, residual_gradient, tokens, labels, rope_table, positions,
        query_positions, key_positions, scratch, logits, vocab_range;
    guint norm_ones, norm_zeros, no_gradient[2]; /* where norms lack parameters */
    guint valid, loss, hyper, norm, coefficient, finite, sum_sharded, sum_whole, amax;
    gint embed, head, embed_backward, count_valid; /* segments of the root */
    gint input;                                    /* takes a chunk's input from the inbox */
    ClassSegments *classes;                        /* by unit class */
    GArray *drafts;                                /* Draft */
} Builder;

/* All but the program, which stays. */
void builder_clear(Builder *builder);

/* Parts of build_plain(). */
void build_count_valid(Builder *builder);
void build_embedding(Builder *builder);
void build_blocks(Builder *builder);
void build_head(Builder *builder);
void build_step(Builder *builder);

/* Each pass leaves the program consistent; they run in this order. */
void build_plain(Builder *builder);
void pass_recompute(Builder *builder);
void pass_shard(Builder *builder);
void pass_optimizer(Builder *builder);
void pass_offload(Builder *builder);
void pass_order(Builder *builder);

/* Finds waits by dataflow: an op that reads or overwrites what another stream wrote or reads waits
 * for it, unless other waits already imply that; over the step followed by itself.  Call lists must
 * have no waits yet. */
void order_add_waits(Program *program);

/* Units are numbered: the root, blocks, and right behind them the experts of each block. */
static inline guint builder_experts_unit(const Builder *builder, guint block_unit)
{
    return builder->spec->model->layers + block_unit;
}

static inline guint builder_block_unit(const Builder *builder, guint unit)
{
    const guint layers = builder->spec->model->layers;

    return unit > layers ? unit - layers : unit;
}

/* As sharding.h numbers them. */
static inline guint builder_sharding_unit(const Builder *builder, guint unit)
{
    const guint layers = builder->spec->model->layers;

    return unit > layers ? EXPERTS_UNITS + unit - layers : unit;
}

static inline Draft *builder_draft(const Builder *builder, guint i)
{
    return &g_array_index(builder->drafts, Draft, i);
}

/* Where a tensor of the blocks whose tensors are added lives that forward leaves, or that is
 * computed @again, by who reads it last. */
typedef enum { UNTIL_BACKWARD, UNTIL_WEIGHTS } Until;

guint builder_saved_space(const Builder *builder, Until until, gboolean again);

/* From here on tensors and ops are of blocks of that kind and lot; of kind 0 and LOT_FIRST where
 * they are of none. */
void builder_turn_to(Builder *builder, guint kind, Lot lot);

/* The space of a ring of the blocks whose tensors are added. */
static inline guint builder_ring_space(const Builder *builder, Ring ring)
{
    return builder->kinds[builder->kind].ring_space[builder->lot][ring];
}

/* What backward for inputs leaves for that for weights, of the same blocks. */
static inline guint builder_weights_space(const Builder *builder)
{
    return builder_ring_space(builder, RING_WEIGHTS);
}

static inline LayerRange builder_layers(const Builder *builder, guint chunk)
{
    return schedule_chunk(&builder->spec->schedule, builder->spec->model->layers, builder->pp,
                          chunk);
}

/* Of block @within of a chunk: where the same is computed again of all of a stage's, LOT_FIRST;
 * else the rest has tensors and passes of its own. */
static inline Lot builder_lot(const Builder *builder, guint chunk, guint within)
{
    return builder->most_of[LOT_REST] > 0 &&
                   !schedule_recomputes(&builder->spec->schedule, builder->pp, chunk, within)
               ? LOT_REST
               : LOT_FIRST;
}

/* Whether this stage has a unit at all, and that unit's class. */
static inline gboolean builder_has_unit(const Builder *builder, guint unit)
{
    return program_unit_ref(builder->program, unit)->unit_class != NO_UNIT_CLASS;
}

/* Appends a call that sums a step scalar, or several in one tensor, over the groups of a purpose;
 * its op. */
Op *builder_all_reduce(Builder *builder, const char *name, guint tensor, const char *purpose);

/* The stream of that direction of the groups of a purpose, made when first asked for. */
guint builder_stream(Builder *builder, const char *purpose, const char *direction);

/* The first class of units that differ from that class's in the kind of their blocks alone: itself,
 * where there is none.  No call is of both. */
guint builder_first_alike(const Builder *builder, guint unit_class);

/* Units that are treated alike. */
typedef struct {
    UnitKind kind;
    guint of_kind; /* of blocks */
    Strategy strategy;
} UnitSort;

/* The map of such a unit over @ranks, of this tensor-parallel rank's part. */
UnitMap *builder_unit_map(const Builder *builder, UnitSort sort, guint ranks);
