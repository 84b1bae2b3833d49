/* What a layout costs, by arithmetic on its segments: nothing is simulated, and only closer looks
 * list calls.
 * What many layouts share is looked at once: a block under one tp, cp, micro-batch; a unit under
 * one sharding; the flow of micro-batches through stages. */
#pragma once

#include "sim/cost/simulate.h"
#include "sim/program/compile.h"

/* Of all stages. */
typedef struct {
    guint64 floor_bytes; /* what the largest stage needs is never less: its arena, and what a
                            framework holds beside it */
    guint stage;         /* whose that is */
    double bound_s;      /* no simulated step is shorter */
} Summary;

/* Of one stage. */
typedef struct {
    guint64 state_bytes; /* exact: parameters, gradients, master, moments, by copies */
    guint64 floor_bytes; /* the arena, with what a framework holds beside it, is never smaller */
    guint64 volume_bytes[NUM_VOLUMES]; /* exact */
} StageSummary;

/* What was looked at so far.  All layouts that one is asked about differ only in the axes,
 * strategy and accumulation, schedule, kind of context parallelism, global batch. */
typedef struct Summariser Summariser;

/* @of_others: that of another thread, or NULL; both then share what takes longest to look at. */
Summariser *summariser_new(const SimulateContext *context, Summariser *of_others);
const SimulateContext *summariser_context(const Summariser *summariser);
void summariser_free(Summariser *summariser);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Summariser, summariser_free)

/* Of a layout whose floor is above @limit_bytes the bound is left 0, and the floor that is returned
 * may be any that says so: the closest one takes longer to find. */
Summary summarise(Summariser *summariser, const ProgramSpec *spec, guint64 limit_bytes);

/* The same of what no layout is below that shares @spec's pp, cp, tp, ep, recomputation, schedule,
 * micro-batches and dtype of gradients, under any strategy and any dp_shard up to @spec's: of its
 * passes, and of state that is fully sharded.  @partly: with as few layers computed again as
 * @limit_bytes asks of every such layout, and no floor; where all are not enough, floor_bytes is
 * above it.  Overrides of units are not known to it. */
Summary summarise_least(Summariser *summariser, const ProgramSpec *spec, gboolean partly,
                        guint64 limit_bytes);

/* How many first layers of each chunk must be computed again as @spec says for its stage's floor to
 * be within @limit_bytes: the least number, into @by_stage (array of pp).  Of stages that say most
 * about all, or of @all; 0 of the others.  FALSE where even all layers are not enough. */
gboolean summarise_recompute(Summariser *summariser, const ProgramSpec *spec, guint64 limit_bytes,
                             gboolean all, guint16 *by_stage);

/* A closer bound of the step's seconds, a thousand times as much work: call by call, on clocks.
 * 0 where blocks have several strategies. */
double summarise_calls(Summariser *summariser, const ProgramSpec *spec);

/* What stage @stage needs at its peak moment, as its program's memory says, and what a framework
 * holds beside it: a closer bound of the arena than the floor, some hundred times as much work. */
guint64 summarise_peak(Summariser *summariser, const ProgramSpec *spec, guint stage);

/* Whether that is much less work than to compile and place the stage's program. */
gboolean summarise_peak_pays(const ProgramSpec *spec, guint stage);
StageSummary summarise_stage(Summariser *summariser, const ProgramSpec *spec, guint stage);
