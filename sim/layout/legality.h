/* Which choices are legal, and why the others are not. */
#pragma once

#include "sim/input/workload.h"
#include "sim/layout/context_parallel.h"
#include "sim/layout/layout.h"
#include "sim/layout/schedule.h"
#include "sim/layout/sharding.h"

typedef enum {
    VERDICT_OK,
    VERDICT_MESH,     /* the axes that are fixed do not divide the ranks */
    VERDICT_CONTEXT,  /* cp does not divide the sequence */
    VERDICT_PIPELINE, /* more chunks than layers, or a schedule that does not go with them */
    VERDICT_TENSOR,   /* tp does not divide what it splits */
    VERDICT_EXPERTS,  /* ep does not divide experts or ranks, or what does not go with them */
    VERDICT_BATCH,    /* the global batch does not divide */
    VERDICT_STRATEGY, /* strategy and mesh do not go together */
    VERDICT_RECIPE,   /* recipe and strategy do not go together */
    VERDICT_PREFETCH, /* fewer live units than prefetch needs */
    VERDICT_SEQUENCE, /* longer than the model allows */
    VERDICT_LIMIT,    /* beyond what a program can count */
    VERDICT_MEMORY,   /* does not fit */
    VERDICT_SLOWER,   /* excluded: a proven bound is above the best that was simulated */
    NUM_VERDICTS
} Verdict;

/* "context", "batch", ...: the keys of "rejected" in search --json. */
const char *verdict_name(Verdict verdict);

typedef struct {
    const Model *model;
    const Workload *workload;
    const Layout *layout;
    const Sharding *sharding;
    const Schedule *schedule;
    gboolean sequence_parallel;
    ContextKind context;
} Choice;

/* Everything but memory.  *reason (may be NULL) becomes one line that names the field, its value
 * and what is allowed; the caller's. */
Verdict legality_check(const Choice *choice, char **reason);

/* Whether strategies that keep weights whole are refused, whatever the mesh. */
gboolean legality_needs_shards(const Recipe *recipe, const Sharding *sharding);

/* full_shard with dp_replicate > 1 *is* hybrid_shard and is called so; strategies that keep whole
 * gradients accumulate unsharded, and so does zb_h1, whose backward for weights comes later than
 * that for inputs. */
void sharding_normalise(Sharding *sharding, const Layout *layout, const Schedule *schedule);
