/* Prices one plan: compiles its program, places it, simulates it. */
#pragma once

#include "sim/cost/simulate.h"
#include "sim/search/plan.h"
#include "sim/summary/summary.h"

/* Sets device, ranks_per_node and threads from the topology and the layout.  On a CPU a rank is a
 * process of the one node, with its share of the cores. */
void plan_set_target(Plan *plan);

SimulateContext plan_context(const Plan *plan);

/* Bytes a rank may use, what its process holds beside the arena, and what that leaves for it. */
guint64 plan_memory_limit(const Plan *plan);
guint64 plan_framework_bytes(const Plan *plan);
guint64 plan_floor_limit(const Plan *plan);

/* Fits, with less to spare than what a predicted total may be wrong by: 2% for fsdp-run, whose
 * arena is known to the byte (DESIGN 10); 10% for other frameworks, the mean of published peaks
 * (reports/docs/backtest.md). */
double plan_memory_error(const Plan *plan);
gboolean plan_is_tight(const Plan *plan);

/* Adds a line for each tier beside the device that has no room for what ranks of @set keep there.
 */
void plan_check_tiers(const Plan *plan, const ProgramSet *set, GPtrArray *problems);

/* Fills hash, ops, arena_bytes and prediction.  When it does not fit, plan->reasons says by how
 * much and which term is the largest.  The plan must be legal.  Returns whether it fits. */
gboolean plan_price(Plan *plan);

/* The same without what a row of a table doesn't show and takes long: hash, bubble, and of memory
 * the terms and the moment. */
gboolean plan_price_briefly(Plan *plan);

/* The bubble_fraction of a plan that was priced briefly. */
double plan_bubble_fraction(const Plan *plan);

/* The same, of many micro-batches by straight lines as plan_price_below() says: without the
 * program's hash and sizes and the bubble. */
gboolean plan_price_quickly(Plan *plan);

/* What other strategies of units, each less sharded than the plan's or kept, could save of it:
 * gathers, and reductions but each unit's last. */
typedef struct {
    double bound_s; /* of a step without: no choice of theirs makes a faster one */
    double moved_s; /* what that is, hidden or not, on the reported rank */
} UnitSavings;

UnitSavings plan_unit_savings(const Plan *plan);

/* Sets the least number of first layers of each stage's chunks that must be computed again for the
 * stage to fit, at least those of @from, by placing its program.  FALSE, with the reason, where
 * nothing less than all of them fits, or not even that. */
gboolean plan_least_recompute(Plan *plan, Recompute recompute, const guint16 *from);

/* One layer more of each stage of which the peak is too large with that many: as floors are close,
 * that mostly is enough. */
void plan_raise_recompute(Plan *plan, Recompute recompute, Summariser *summariser, guint16 *layers);

typedef enum { PRICE_FITS, PRICE_TOO_LARGE, PRICE_TOO_SLOW, PRICE_LATER } PriceResult;

/* What is of interest of a plan among many. */
typedef struct {
    double limit_s;         /* no more seconds a step */
    double soon_s;          /* nor, for now; 0: more than that is no matter */
    guint stage;            /* whose memory to look at first */
    gboolean explains;      /* of a plan that is too large, the largest term */
    gboolean briefly;       /* plan_price_briefly() is enough */
    Summariser *summariser; /* is asked for that stage's peak first, unless the floor is far below
                               what there is; NULL: nobody */
    guint64 floor_bytes;
} PriceLimit;

/* The same for a plan among many, of which only those that fit and take no more than the limit are
 * of interest: of the others the prediction is not filled.  PRICE_TOO_LARGE leaves the reason in
 * plan->reasons, PRICE_LATER (it takes longer than soon) the seconds of its step.
 *
 * Of many micro-batches not every one is looked at: those between the first and the last are alike,
 * so time, volume and memory are straight lines in their number, drawn through 3 and 4 (with
 * stages: through 2 pp and one or, interleaved, pp more), if there are more than those together;
 * or through twice as many and so on, where so few are hidden by what is there once a step.
 * The program's hash and sizes and, of memory, the terms are then left: plan_price() the plans that
 * are kept, where ops is 0.  Else nothing is left to be priced.
 */
PriceResult plan_price_below(Plan *plan, const PriceLimit *limit);
