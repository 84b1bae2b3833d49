/* What a stage of a pipeline has: chunks, blocks, and how their units are sharded. */
#pragma once

#include "sim/summary/probe.h"

/* Units of one chunk that stay gathered between forward and backward. */
typedef struct {
    guint chunk; /* of the model */
    guint units;
    Strategy strategy;
} KeptUnits;

/* Chunks of equal size. */
typedef struct {
    guint layers, chunks;
} EqualChunks;

typedef struct {
    guint stage;
    StagePlace place;
    guint layers, most_layers;   /* on the stage, in one of its chunks */
    guint first_layers;          /* in its first chunk */
    guint layers_before;         /* in the first chunks of the stages before */
    GArray *sizes;               /* EqualChunks */
    guint units[NUM_STRATEGIES]; /* blocks by strategy */
    guint kept_units[NUM_STRATEGIES];
    GArray *kept; /* KeptUnits */
    Strategy root_strategy, first_strategy;
    gboolean uniform; /* all blocks have one strategy */
} StageShape;

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
