/* Private to summaries: a smaller choice, in a stage of which the same tensors are alive together.
 * What waits tell depends neither on sizes nor, once there are a few, on how many blocks or
 * micro-batches are alike. */
#pragma once

#include "sim/program/compile.h"

/* @spec points into the rest, and to what the choice that it was made of points to. */
typedef struct {
    ProgramSpec spec;
    guint stage; /* of it, that is like the other's */
    Model model;
    guint8 *kind_of; /* of its blocks */
    Sharding sharding;
    guint16 chunk_layers[MAX_CHUNKS], recompute_layers[MAX_CHUNKS];
} Reduced;

/* A choice whose layers can't be cut keeps them all. */
void reduce_spec(const ProgramSpec *spec, guint stage, Reduced *reduced);
void reduced_clear(Reduced *reduced);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Reduced, reduced_clear)

/* How many times as many passes of blocks the whole stage has. */
double reduced_by(const ProgramSpec *spec, guint stage);

/* As many micro-batches as have all rings of a stage take as many copies as with all. */
guint fewest_micro_batches(const ProgramSpec *spec, guint stage);

typedef struct {
    Strategy strategy;
    gboolean is_kept;
} UnitTraits;

/* What blocks that are alike have in common. */
typedef struct {
    guint kind;
    gboolean is_sparse, is_again;
    UnitTraits block, experts; /* without experts both are the block's */
} BlockTraits;

BlockTraits block_traits(const ProgramSpec *spec, guint chunk, LayerRange range, guint within);
