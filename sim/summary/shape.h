/* What a stage of a pipeline has: chunks, blocks, and how their units are sharded. */
#pragma once

#include "sim/summary/probe.h"

/* Units of the stage's blocks: of a block with experts two. */
typedef enum { UNITS_DENSE, UNITS_SPARSE, UNITS_EXPERTS, NUM_BLOCK_UNITS } BlockUnits;

/* Units of one chunk that stay gathered between forward and backward. */
typedef struct {
    guint chunk; /* of the model */
    guint units;
    BlockUnits of;
    Strategy strategy;
} KeptUnits;

/* Blocks by kind; and how many of them are of LOT_REST. */
typedef struct {
    guint of[NUM_BLOCK_KINDS], rest[NUM_BLOCK_KINDS];
} BlockCounts;

static inline guint counts_of(const BlockCounts *counts, guint kind, guint lot)
{
    return lot == LOT_REST ? counts->rest[kind] : counts->of[kind] - counts->rest[kind];
}

/* Chunks of equal size. */
typedef struct {
    BlockCounts layers;
    guint chunks;
} EqualChunks;

typedef struct {
    guint stage;
    StagePlace place;
    guint layers, most_layers;          /* on the stage, in one of its chunks */
    guint first_layers;                 /* in its first chunk */
    BlockCounts of_kind, first_of_kind; /* the same by kind */
    guint most_of[NUM_BLOCK_KINDS][NUM_LOTS], least_of[NUM_BLOCK_KINDS][NUM_LOTS]; /* in a chunk */
    guint most_of_lot[NUM_LOTS];
    guint layers_before;        /* in the first chunks of the stages before */
    BlockCounts before_of_kind; /* the same; which of them are the rest it does not say */
    GArray *sizes;              /* EqualChunks */
    guint units[NUM_BLOCK_UNITS][NUM_STRATEGIES];
    guint kept_units[NUM_BLOCK_UNITS][NUM_STRATEGIES];
    GArray *kept; /* KeptUnits */
    Strategy root_strategy, first_strategy;
    gboolean alike;   /* all units of blocks have one strategy */
    gboolean uniform; /* the same, and blocks are of one unit */
} StageShape;

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
