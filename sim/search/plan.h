/* A plan: every choice, what was predicted for it, and its file (DESIGN 6). */
#pragma once

#include "sim/input/topology.h"
#include "sim/layout/legality.h"
#include "sim/program/compile.h"
#include "sim/program/place.h"

typedef struct {
    double step_seconds, tokens_per_second, tokens_per_second_per_gpu;
    double model_tflops_per_gpu, mfu; /* DESIGN 4, "Work" */
    double exposed_communication_seconds, bubble_fraction;
    double time_seconds[NUM_OP_CLASSES]; /* add up to step_seconds; communication where exposed */
    guint rank; /* the rank with the largest total, which memory and volume are of */
    guint64 memory_bytes[NUM_MEMORY_TERMS], memory_total;
    guint64 memory_first; /* the total of the first stage's ranks; 0: not known */
    guint64 memory_limit; /* what the device has for it */
    guint64 communication_bytes[NUM_VOLUMES];
    double communication_seconds[NUM_VOLUMES]; /* hidden or not; what waits for peers left out */
    char moment[64];                           /* the segment that runs when memory peaks */
} Prediction;

MemoryTerm prediction_largest_term(const Prediction *prediction);

/* Of the ranks of one pipeline stage. */
typedef struct {
    double time_seconds[NUM_OP_CLASSES]; /* as the prediction's */
    double communication_seconds[NUM_VOLUMES];
} StageTime;

typedef struct {
    char *source;       /* the file it was read from, for messages; NULL when it was not */
    Model *model;       /* owned */
    Topology *topology; /* owned */
    guint gpus;
    DeviceKind device;
    guint ranks_per_node, threads;
    Workload workload;
    Layout layout;
    Sharding sharding;
    Schedule schedule;
    guint16 *chunk_layers;     /* owned; what the schedule points to, or NULL */
    guint16 *recompute_layers; /* the same: plan_set_recompute() */
    gboolean sequence_parallel;
    ContextKind context;
    const struct Framework *framework; /* that the prediction is for; NULL: fsdp-run */
    Patterns *patterns;                /* of programs compiled before; borrowed, or NULL */
    char *hash;                        /* of the programs; NULL until compiled */
    guint64 ops, arena_bytes[NUM_TIERS];
    Prediction prediction;
    double alike_s;     /* of a step with one strategy for all units, where a search found a faster
                           one (unit_choice.h); else 0 */
    GArray *stages;     /* StageTime, by stage; empty until priced */
    GPtrArray *reasons; /* why it is infeasible, lines; empty = feasible */
} Plan;

Plan *plan_new(void);
void plan_free(Plan *plan);
void plan_free_borrowed(Plan *plan); /* whose model and topology are another's */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Plan, plan_free)

/* A plan file reads back to the same plan.  ERROR_INPUT names file, field, value, what is allowed.
 */
Plan *plan_load(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
Plan *plan_parse(const char *text, const char *source, GError **error) G_GNUC_WARN_UNUSED_RESULT;
char *plan_print(const Plan *plan);
gboolean plan_save(const Plan *plan, const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The axes larger than 1 with what goes with them: "pp=4 interleaved x2 dp_shard=8 cp=2 ring". */
char *plan_layout_text(const Plan *plan);

/* "root shard_optimizer, layers.28-31 kept": units that are not as the rest; NULL: all are alike.
 */
char *plan_units_text(const Plan *plan);

/* What is computed again: of the first layers of each stage's chunks (@num: one number for all
 * stages, or one each; 0 = all layers), in its one form. */
void plan_set_recompute(Plan *plan, Recompute recompute, const guint16 *layers, guint num);
char *plan_recompute_text(const Plan *plan); /* "full", "full:4/2/0/0"; the caller's */

/* ERROR_INPUT when fsdp-run has no means for it yet: the field, its value, what is trained. */
gboolean plan_check_trainable(const Plan *plan, GError **error) G_GNUC_WARN_UNUSED_RESULT;

ProgramSpec plan_spec(const Plan *plan);
Choice plan_choice(const Plan *plan);

/* Compiles the plan again; ERROR_INPUT when the programs are not those that it was made with. */
ProgramSet *plan_compile(const Plan *plan, GError **error) G_GNUC_WARN_UNUSED_RESULT;
