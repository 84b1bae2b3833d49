/* From choices to programs: build the plain blocks, then the passes (recompute, shard, optimiser,
 * offload, order), then place. */
#pragma once

#include "sim/input/workload.h"
#include "sim/layout/context_parallel.h"
#include "sim/layout/layout.h"
#include "sim/layout/schedule.h"
#include "sim/program/pattern.h"

/* Everything that a program depends on; all validated before (legality_check()). */
typedef struct {
    const Model *model;
    const Workload *workload;
    Layout layout;
    const Sharding *sharding;
    Schedule schedule;
    gboolean sequence_parallel; /* with tp > 1: norms and the residual stream split by tokens */
    ContextKind context;        /* with cp > 1 */
    DeviceKind device;
    guint threads;      /* of one rank */
    Patterns *patterns; /* of programs that were compiled before, or NULL */
} ProgramSpec;

/* Whether matrices are gathered as fp8 codes and get their scale again, and then the elements of
 * the tensor of their largest magnitudes: a row of NUM_PARAM_ROLES for each unit of the model, as
 * each rank of the model has them; else 0. */
gboolean program_has_scales(const ProgramSpec *spec);
guint64 program_scales(const ProgramSpec *spec);

/* What backward passes write gradients in: what is reduced with every micro-batch, or what is
 * accumulated.  Where these two differ all units are alike (legality_check()). */
DType program_gradient_dtype(const ProgramSpec *spec);

/* Members of a group of that purpose ("shard", "replicate", "data", "tp", ...: compile.c). */
guint purpose_size(const ProgramSpec *spec, const char *purpose);

/* Consecutive ranks that such a group spreads over. */
guint purpose_span(const ProgramSpec *spec, const char *purpose);

/* Ranks from the first to the last member of a group whose members differ in whole axes. */
guint purpose_reach(const ProgramSpec *spec, const char *purpose);

/* The program of the ranks of one stage, placed; the same, not placed. */
Program *program_build(const ProgramSpec *spec, guint stage);
Program *program_build_unplaced(const ProgramSpec *spec, guint stage);

/* Segments and tensors without an ordered list of calls: how often each segment runs is all that
 * sums need. Some ten times cheaper than program_build(); not placed, and it can't be run. */
typedef struct {
    Program *program;
    guint64 *calls; /* of a step, by segment */
    guint micro_batch_space;
} Sketch;

Sketch *program_sketch(const ProgramSpec *spec, guint stage);
void sketch_free(Sketch *sketch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Sketch, sketch_free)

/* Programs of all ranks, placed, and their groups: a class a stage. */
ProgramSet *program_compile(const ProgramSpec *spec);

/* The same, for those who place what they need: program_place(). */
ProgramSet *program_compile_unplaced(const ProgramSpec *spec);

/* The same, where the program of stage @known has been built before: takes it. */
ProgramSet *program_compile_around(const ProgramSpec *spec, guint known, Program *program);
