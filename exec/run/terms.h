/* One rank's measurements, and the rows they make beside the prediction. */
#pragma once

#include "exec/run/interpreter.h"
#include "sim/search/plan.h"

/* Plain data: sent to rank 0 as it is. */
typedef struct {
    double step_seconds, tokens, peak_flops;
    gboolean timed; /* time_seconds were sampled */
    double time_seconds[NUM_OP_CLASSES];
    double communication_seconds[NUM_VOLUMES]; /* from begin to end, waiting for peers included */
    double estimated_seconds[NUM_VOLUMES];     /* by NCCL; NAN = it says nothing */
    guint64 state_bytes[NUM_MEMORY_TERMS];     /* only those of terms_is_state() */
    guint64 arena_bytes[NUM_TIERS], total_bytes;
    guint64 communication_bytes[NUM_VOLUMES];
} Terms;

/* Terms that are whole tensors of their own in the arena, so that touched bytes measure them. */
gboolean terms_is_state(MemoryTerm term);

/* Sums a sampled step's compute ops by what they are; the rest of its @seconds is exposed
 * communication: this rank computed nothing then. */
void terms_take_times(Terms *terms, const Program *program, const OpTime *times, double seconds);

/* GArray of StoreTerm: every term of what was predicted for @rank of the plan's programs @set,
 * measured or NAN; names are static strings or owned by the array. */
GArray *terms_rows(const Terms *terms, const Plan *plan, const ProgramSet *set, guint rank);
