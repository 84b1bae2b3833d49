/* Search: every complete legal choice is priced, or excluded by a proven bound. */
#pragma once

#include "sim/base/progress.h"
#include "sim/cost/framework.h"
#include "sim/search/plan.h"

enum { SEARCH_MOST_GPUS = 65536 }; /* how far search_smallest_gpus() looks */

/* On one number of GPUs the fastest token is the cheapest.  SORT_PARETO: all plans, the fastest
 * first, than which none is both faster and smaller; what is slower than one of them and not
 * smaller by SEARCH_FRONT_STEP is left out. */
typedef enum { SORT_TIME, SORT_MEMORY, SORT_COST, SORT_PARETO, NUM_SORTS } SortKey;

extern const double SEARCH_FRONT_STEP;

/* What to search, or (with a layout) to estimate.  Zero and -1 mean: chosen, or the default. */
typedef struct {
    const Model *model;
    const Topology *topology;
    guint gpus;         /* 0 = the whole cluster */
    guint global_batch; /* 0 = one micro-batch a data-parallel rank */
    guint seq_len;      /* 0 = min(max_position_embeddings, 8192) */
    const Recipe *recipe;
    Optimizer optimizer;
    double expert_imbalance; /* Workload's; 0 = 1 */
    gint strategy;           /* -1 = all */
    guint micro_batch;       /* 0 = all divisors of a rank's batch */
    gint recompute;          /* -1 = all, and of as many layers as memory asks for */
    guint num_recompute;     /* 0 = of all layers; else of the first ones of chunks: of each stage
                                alike (1), or by stage: */
    guint16 recompute_layers[MAX_CHUNKS];
    gint schedule;        /* -1 = all */
    guint virtual_stages; /* 0 = all that cut the layers evenly */
    guint num_chunks;     /* 0 = search_chunk_layers(); else the layers of each: */
    guint16 chunk_layers[MAX_CHUNKS];
    gint context;          /* kind of context parallelism; -1 = all */
    guint fixed[NUM_AXES]; /* 0 = free */
    guint fixed_ep;        /* the same */
    gboolean sequence_parallel;
    Sharding sharding; /* form, prefetch, keep, accumulate, overrides; strategy is overwritten */
    gboolean searches_units; /* strategy and keep of units too, where no strategy is given and
                                @sharding has no overrides */
    guint top;
    SortKey sort;
    gboolean briefly;           /* plans are shown as rows of a table: plan_price_briefly() */
    gboolean keeps_large;       /* result->large */
    const Framework *framework; /* that predictions are for; NULL = fsdp-run */
    Progress *progress;         /* shown as the search goes on; NULL = not */
} SearchRequest;

typedef struct {
    guint64 candidates, feasible;
    guint64 rejected[NUM_VERDICTS];
    char *example[NUM_VERDICTS]; /* one reason of each kind, or NULL */
    double seconds;
    GPtrArray *plans; /* Plan, best first, at most request->top, but for SORT_PARETO */
    Plan *closest;    /* when nothing fits: the one that exceeds memory least; else NULL */
    Plan *large;      /* where asked for: one that does not fit, the first that was priced, else,
                         where something fits, the one that needs least; or NULL */
} SearchResult;

SearchResult *search(const SearchRequest *request);
void search_result_free(SearchResult *result);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SearchResult, search_result_free)

/* The product of the axes that are fixed, at most G_MAXUINT. */
guint search_fixed_ranks(const SearchRequest *request);

/* What the topology's networks join, at most SEARCH_MOST_GPUS. */
guint search_most_gpus(const SearchRequest *request);

/* The smallest number of GPUs, from @from to that, on which something fits; 0 = none.
 * A global batch that was asked for is kept: only numbers that it allows are tried. */
guint search_smallest_gpus(const SearchRequest *request, guint from);

/* The nearest number above or below @from on which something fits, where nothing is legal on @from:
 * what makes it illegal may hold for every number, so only the 64 nearest that the fixed axes and
 * the batch allow are tried.  0 = none of them. */
guint search_nearest_gpus(const SearchRequest *request, guint from, gboolean above);

/* One layout; micro-batch, recompute and strategy chosen as search would where they are free.  NULL
 * and ERROR_INFEASIBLE, with the reason and what is legal, when it is illegal.  A plan that does
 * not fit is returned with its reasons. */
Plan *search_estimate(const SearchRequest *request, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The request with its defaults filled in. */
guint search_seq_len(const SearchRequest *request);
/* Of so many chunks, as a schedule has them: those that are given, or of as much work each where
 * blocks differ, or NULL: as many each. */
const guint16 *search_chunk_layers(const SearchRequest *request, guint chunks);
guint search_gpus(const SearchRequest *request);
