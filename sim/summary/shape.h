/* What a stage of a pipeline has: chunks, blocks, and how their units are sharded. */
#pragma once

#include "sim/summary/probe.h"

/* Units of one chunk that stay gathered between forward and backward. */
typedef struct {
    guint chunk;     /* of the model */
    guint units, of; /* how many; of which (StageShape) */
    Strategy strategy;
} KeptUnits;

/* Blocks by kind; and how many of them are of LOT_REST. */
typedef struct {
    guint16 of[MAX_BLOCK_KINDS], rest[MAX_BLOCK_KINDS];
} BlockCounts;

static inline guint counts_of(const BlockCounts *counts, guint kind, guint lot)
{
    return lot == LOT_REST ? counts->rest[kind] : (guint)counts->of[kind] - counts->rest[kind];
}

/* Chunks of equal size. */
typedef struct {
    BlockCounts layers;
    guint chunks;
} EqualChunks;

/* Units of blocks are counted by kind, and behind all kinds those of experts, which blocks with
 * experts have beside them: @num_units in all. */
typedef struct {
    guint stage;
    StagePlace place;
    guint num_kinds, num_units;
    guint kind;                         /* of its first block */
    guint layers, most_layers;          /* on the stage, in one of its chunks */
    guint first_layers;                 /* in its first chunk */
    BlockCounts of_kind, first_of_kind; /* the same by kind */
    guint most_of[MAX_BLOCK_KINDS][NUM_LOTS], least_of[MAX_BLOCK_KINDS][NUM_LOTS]; /* in a chunk */
    guint most_of_lot[NUM_LOTS];
    guint layers_before;             /* in the first chunks of the stages before */
    BlockCounts before_of_kind;      /* the same; which of them are the rest it does not say */
    BlockCounts last_of_kind;        /* of the model's last chunk */
    BlockCounts before_last_of_kind; /* without it, where there is no rest */
    GArray *sizes;                   /* EqualChunks */
    guint units[MAX_BLOCK_KINDS + 1][NUM_STRATEGIES];
    guint kept_units[MAX_BLOCK_KINDS + 1][NUM_STRATEGIES];
    GArray *kept; /* KeptUnits */
    Strategy root_strategy, first_strategy;
    gboolean sparse;  /* blocks have experts, some at least */
    gboolean plain;   /* none have, and all are of one kind */
    gboolean alike;   /* all units of blocks have one strategy */
    gboolean uniform; /* the same, and they are plain */
} StageShape;

static inline gboolean is_experts(const StageShape *shape, guint units)
{
    return units == shape->num_kinds;
}

BlockCounts chunk_blocks(const ProgramSpec *spec, guint chunk);
BlockCounts blocks_before(const ProgramSpec *spec, guint block); /* of the whole model */

StageShape *stage_shape_new(const ProgramSpec *spec, guint stage);
void stage_shape_free(StageShape *shape);

static inline gboolean stage_has_embedding(const StageShape *shape)
{
    return shape->place == STAGE_ONLY || shape->place == STAGE_FIRST;
}

static inline gboolean stage_has_head(const StageShape *shape)
{
    return shape->place == STAGE_ONLY || shape->place == STAGE_LAST;
}
