/* Private to summaries: all that one stage's figures are made of. */
#pragma once

#include "sim/summary/known.h"

typedef struct {
    const ProgramSpec *spec;
    guint micro_batches;
    const StageShape *shape;
    const StageCost *cost;
    const ShardCost *shards[NUM_STRATEGIES]; /* of those that units of this stage have */
    const StageFlow *flow;
    const Flow *flows; /* of all stages */
    const ScalarCost *scalars;
    double exchange_s; /* one message to a neighbour; 0 for a single stage */
} Stage;

Stage stage_of(Known *known, const ProgramSpec *spec, guint stage);

static inline const UnitCost *stage_block(const Stage *stage, Strategy strategy)
{
    return &stage->shards[strategy]->block;
}

/* NULL where the stage has nothing of the root. */
static inline const UnitCost *stage_root(const Stage *stage)
{
    return stage->shape->place == STAGE_MIDDLE ? NULL
                                               : &stage->shards[stage->shape->root_strategy]->root;
}

/* How often units are gathered in a step. */
guint64 stage_block_gathers(const Stage *stage, Strategy strategy);
guint64 stage_root_gathers(const Stage *stage);

guint64 stage_state_bytes(const Stage *stage);
void stage_volume(const Stage *stage, guint64 bytes[NUM_VOLUMES]);

/* The arena is never smaller. */
guint64 stage_floor_bytes(const Stage *stage);

/* No step takes less, as far as this stage alone is concerned: all that it does.  @overlaps,
 * @one_queue: of communication (simulate.h). */
double stage_busy_s(const Stage *stage, gboolean overlaps, gboolean one_queue);

/* From clip to clip: through stages before @stage, all of its micro-batches, and back. @first: the
 * first stage. */
double stage_path_s(const Stage *stage, const Stage *first);
