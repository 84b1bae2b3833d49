/* What is trained: batch, sequence, precision, the recipe of stored state, the optimiser. */
#pragma once

#include "sim/base/dtype.h"

#include <glib.h>

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD, NUM_OPTIMIZERS } Optimizer;

/* What is kept per parameter (DESIGN 4). */
typedef struct {
    const char *name;
    DType compute;   /* gathered parameters and activations */
    DType stored;    /* parameter shard (or whole parameter where not sharded) */
    DType gradient;  /* whole gradients of a unit, accumulators, and what is reduced */
    gboolean master; /* an fp32 copy beside the stored one */
} Recipe;

extern const Recipe recipe_zero, recipe_fsdp2, recipe_fp32;

/* The largest gradient norm of a run that is not told another; a plan doesn't say.  Exports write
 * it down. */
#define DEFAULT_CLIP_NORM 1.0

typedef struct {
    guint global_batch, seq_len;
    const Recipe *recipe;
    Optimizer optimizer;
} Workload;

const char *optimizer_name(Optimizer optimizer); /* "adamw", "sgd" */
gboolean optimizer_from_name(const char *name, Optimizer *optimizer);
const Recipe *recipe_from_name(const char *name); /* NULL when unknown */
guint optimizer_moments(Optimizer optimizer);     /* fp32 copies: adamw 2, sgd 0 */
