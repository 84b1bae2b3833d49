/* Private to summaries: all that one stage's figures are made of. */
#pragma once

#include "sim/summary/known.h"

/* Units as @spec shards them; or least: whole units that move nothing, cost nothing, and whose
 * state is as small as @spec's ranks can make it. */
typedef enum { UNITS_AS_PLANNED, UNITS_LEAST } UnitsTaken;

typedef struct {
    const ProgramSpec *spec;
    UnitsTaken taken;
    guint micro_batches;
    const StageShape *shape;
    const StageCost *cost,
        *rest; /* of LOT_REST, which computes nothing again; NULL: there is none */
    const ShardCost *shards[NUM_STRATEGIES]; /* of those that units of this stage have */
    const StageFlow *flow;
    const Flow *flows; /* of all stages */
    const ScalarCost *scalars;
    const Framework *framework;
    double exchange_s; /* one message to a neighbour; 0 for a single stage */
} Stage;

Stage stage_of(Known *known, const ProgramSpec *spec, guint stage, UnitsTaken taken);

/* The same by steps: its units alone, which state is made of, and what it needs besides. */
Stage stage_of_units(Known *known, const ProgramSpec *spec, guint stage, UnitsTaken taken);
void stage_add_passes(Stage *stage, Known *known);

/* Again, where the layers that are computed again have changed. */
void stage_update_shape(Stage *stage, Known *known, guint index);

/* In place of that: passes over fewer sequences.  The program of as many micro-batches of those has
 * the same ops, and no tensor that is larger: so this one's arena is no smaller than that one's
 * floor.  FALSE: none are known, or the stage's own are. */
gboolean stage_add_fewer(Stage *stage, Known *known);

/* @units: as StageShape counts them. */
static inline const UnitCost *stage_unit(const Stage *stage, guint units, Strategy strategy)
{
    return &stage->shards[strategy]->units[units];
}

/* How many the stage has under a strategy. */
static inline guint stage_num_units(const Stage *stage, guint units, Strategy strategy)
{
    return stage->shape->units[units][strategy];
}

/* A block's passes; forward and backward for weights are the same in both lots. */
static inline const StageCost *stage_lot_cost(const Stage *stage, guint lot)
{
    return lot == LOT_REST ? stage->rest : stage->cost;
}

/* Where blocks are plain. */
static inline const UnitCost *stage_block(const Stage *stage, Strategy strategy)
{
    return stage_unit(stage, stage->shape->kind, strategy);
}

/* NULL where the stage has nothing of the root. */
static inline const UnitCost *stage_root(const Stage *stage)
{
    return stage->shape->place == STAGE_MIDDLE ? NULL
                                               : &stage->shards[stage->shape->root_strategy]->root;
}

/* How often units are gathered in a step. */
guint64 stage_block_gathers(const Stage *stage, guint units, Strategy strategy);
guint64 stage_root_gathers(const Stage *stage);

guint64 stage_state_bytes(const Stage *stage);
guint64 stage_beside_bytes(const Stage *stage); /* of state that another framework keeps */
void stage_volume(const Stage *stage, guint64 bytes[NUM_VOLUMES]);

/* The arena is never smaller. */
guint64 stage_floor_bytes(const Stage *stage);

/* No step takes less, as far as this stage alone is concerned: all that it does.  @overlaps,
 * @one_queue: of communication (simulate.h). */
double stage_busy_s(const Stage *stage, gboolean overlaps, gboolean one_queue);

/* From clip to clip: through stages before @stage, all of its micro-batches, and back. @first: the
 * first stage. */
double stage_path_s(const Stage *stage, const Stage *first);
