/* What segments cost that many layouts have in common, from the smallest programs that contain
 * them: one block a stage.  Nothing here knows what a block is made of or how a unit is sharded:
 * that is the program's. */
#pragma once

#include "sim/cost/simulate.h"
#include "sim/program/compile.h"
#include "sim/summary/segment.h"

/* Of a stage among others; those between have neither embedding nor head. */
typedef enum { STAGE_ONLY, STAGE_FIRST, STAGE_LAST, STAGE_MIDDLE, NUM_STAGE_PLACES } StagePlace;

StagePlace stage_place(guint stage, guint pp);

/* One pass over a block (with experts its two units' segments together), or a call of the root. */
typedef struct {
    SegmentSums sums;
    SegmentPath path;
    SegmentPeak peak;       /* beside rings */
    SegmentPeak alone_peak; /* where a ring of activations has a single copy: with that one */
} PassCost;

/* Bytes of one copy of the rings (builder.h), by what a copy is of. */
typedef struct {
    guint64 residual, gradient, inbox;
} RingBytes;

typedef struct {
    PassCost forward, backward, weights;   /* backward with what is computed again */
    guint64 saved, kept, again_kept, left; /* bytes of one copy of its rings; left for weights */
    guint64 scratch;                       /* bytes that its ops share */
} BlockCost;

/* What is on a stage beside its blocks, of one micro-batch; absent passes are zeros. */
typedef struct {
    PassCost embed, head, embed_backward, input;
    RingBytes ring;
    SegmentSums count_valid;
    guint64 input_bytes, micro_batch_bytes; /* what the host binds: in all, and for a micro-batch */
} RootCost;

/* @block: by kind, of those that the model has none of zeros. */
typedef struct {
    const BlockCost *block[MAX_BLOCK_KINDS];
    RootCost root;
} StageCost;

/* One unit under a strategy; absent segments are zeros. */
typedef struct {
    guint64 state_bytes;                    /* parameters, gradients, master, moments */
    guint64 beside_bytes;                   /* what another framework keeps beside them */
    guint64 gathered_bytes, gradient_bytes; /* a whole copy, where the unit is sharded */
    guint64 cast_bytes, reduced_bytes; /* what a gather holds of its own, and a reduction that adds
                                          to others, where there are any between first and last */
    guint64 fetched_bytes;             /* what an update works on and another tier keeps */
    SegmentSums gather, update_gather, norm, update, amax;
    SegmentSums fetch, store; /* of an update, of what another tier keeps */
    SegmentSums reduce_first, reduce_add, reduce_last; /* of micro-batches; in place: the last */
    guint gathers;                                     /* of a micro-batch, where it is not kept */
} UnitCost;

typedef struct {
    SegmentSums tied_reduce; /* of an embedding on two stages */
    SegmentSums clip;
    UnitCost root;
    UnitCost units[]; /* of blocks by kind, then of experts */
} ShardCost;

ShardCost *shard_cost_new(const Model *model); /* zeros; freed by g_free() */

/* A block of @spec's, and the root of a stage at @place, under its axes tp, cp, ep, its
 * micro-batch, context, recomputation, backward in one or two parts.  Blocks are the same at every
 * place, those without experts whatever ep is; the root is the same however its blocks are
 * computed, but for the
 * @scratch bytes at least that they share with it. */
BlockCost probe_block(const ProgramSpec *spec, const SimulateContext *context, StagePlace place,
                      guint kind);
RootCost probe_root(const ProgramSpec *spec, const SimulateContext *context, StagePlace place,
                    guint64 scratch);

/* A unit of @spec's under @strategy, its data axes, accumulation, one or several micro-batches. */
ShardCost *probe_shard(const ProgramSpec *spec, const SimulateContext *context, StagePlace place,
                       Strategy strategy);
