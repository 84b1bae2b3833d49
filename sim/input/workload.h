/* What is trained: batch, sequence, precision, the recipe of stored state, the optimiser. */
#pragma once

#include "sim/base/dtype.h"

#include <glib.h>

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_ADAM8BIT, NUM_OPTIMIZERS } Optimizer;

/* What is kept per parameter (DESIGN 4), and what is computed with.  fp8 products are of operands
 * that are rounded for them; all else stays bf16. */
typedef struct {
    const char *name;
    DType precision; /* matrix products of the blocks; what a plan's precision names */
    DType compute;   /* gathered parameters and activations */
    DType stored;    /* parameter shard (or whole parameter where not sharded) */
    DType gradient;  /* accumulators, which the optimiser reads */
    DType reduce;    /* what data-parallel ranks sum, and whole gradients of a unit that are reduced
                        with every micro-batch */
    gboolean master; /* an fp32 copy beside the stored one */
} Recipe;

extern const Recipe recipe_zero, recipe_fsdp2, recipe_megatron, recipe_fp32;

/* The largest gradient norm of a run that is not told another; a plan doesn't say.  Exports write
 * it down. */
#define DEFAULT_CLIP_NORM 1.0

typedef struct {
    guint global_batch, seq_len;
    const Recipe *recipe;
    Optimizer optimizer;
    double expert_imbalance; /* tokens of the busiest rank's experts over the mean; 0 = 1 */
} Workload;

/* The largest imbalance there is: all tokens go to the same top_k of the model's experts.  1 where
 * it has none. */
double workload_most_imbalance(guint experts, guint top_k);

/* Of @rows, the mean that a rank's experts take, those of the busiest one of the @ep ranks that
 * share a block's experts: at most all ranks' rows. */
guint64 workload_busiest_rows(const Workload *workload, guint64 rows, guint ep);

#define OPTIMIZER_NAMES "adamw, sgd or adam8bit"
const char *optimizer_name(Optimizer optimizer);
gboolean optimizer_from_name(const char *name, Optimizer *optimizer);
guint optimizer_moments(Optimizer optimizer); /* adamw and adam8bit 2, sgd 0 */

/* Elements of a moment that share an fp32 scale, the others being 8 bits wide; 0: all are fp32. */
guint optimizer_moment_block(Optimizer optimizer);

/* One moment of @elements parameters: fp32 ones, or (a block of them) codes and scales. */
guint64 moment_bytes(guint64 elements, guint block);

/* Of all moments of one parameter, the last block taken as full. */
double optimizer_bytes_per_parameter(Optimizer optimizer);

/* The recipe of that name in bf16 (fp32: in fp32), and the same in another precision; NULL where
 * there is none. */
#define RECIPE_NAMES "zero, fsdp2, megatron or fp32"
const Recipe *recipe_from_name(const char *name);
const Recipe *recipe_with_precision(const Recipe *recipe, DType precision);

/* The same with other accumulators and reductions, each fp32 or as wide as what is computed with;
 * NULL where they are neither. */
const Recipe *recipe_with_gradients(const Recipe *recipe, DType gradient, DType reduce);

/* State of one parameter, unsharded: itself, gradient, master, moments. */
double recipe_bytes_per_parameter(const Recipe *recipe, Optimizer optimizer);

/* "zero", or with what is not as that name says: "fsdp2 (gradients fp32, reductions bf16)"; the
 * caller's.  And what recipe_with_gradients() takes: "bf16 or fp32". */
char *recipe_text(const Recipe *recipe);
const char *recipe_gradient_names(const Recipe *recipe);

/* "bf16", "fp32", "fp16", "fp8". */
#define PRECISION_NAMES "bf16, fp32, fp16 or fp8"
gboolean precision_from_name(const char *name, DType *precision);
