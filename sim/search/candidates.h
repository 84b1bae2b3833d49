/* Every complete legal choice of a search: counted, summarised, and listed where it may fit. */
#pragma once

#include "sim/search/price.h"
#include "sim/search/search.h"

enum { TOO_LARGE_UNKNOWN = G_MAXUINT16 };

/* Small: there are many. */
typedef struct {
    double bound_s; /* of the step, divided by the global batch: layouts of different batches
                       compare by the time of a sequence */
    guint64 floor_bytes;
    guint32 order; /* of enumeration: makes ties deterministic */
    guint32 micro_batch, micro_batches, global_batch;
    Layout layout;
    guint16 virtual_stages, stage; /* stage: that needs most memory, by its floor */
    guint8 strategy, schedule, recompute, context;
    gboolean partly;                 /* recomputed are as few layers as fit: */
    guint16 too_large;               /* TOO_LARGE_UNKNOWN, or a stage, of which some are */
    const guint16 *recompute_layers; /* by stage at least; NULL: not yet known */
} Candidate;

typedef struct {
    GArray *listed; /* Candidate, in the order of enumeration; of those whose floor fits */
    guint64 legal;
    guint64 rejected[NUM_VERDICTS];
    char *example[NUM_VERDICTS]; /* of the first of each kind, or NULL */
    Candidate least;             /* that needs least; where legal > 0 */
    guint64 framework_bytes;     /* what each rank needs beside its floor */
    guint64 floor_limit_bytes;   /* what that leaves for it */
    GPtrArray *summarisers;      /* Summariser, by worker of parallel_run() */
    GPtrArray *layers;           /* guint16 *, that candidates point to */
} Candidates;

Candidates *candidates_find(const SearchRequest *request, guint gpus);
void candidates_free(Candidates *candidates);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Candidates, candidates_free)

/* Whether some tp of the request's goes with that number of GPUs; the largest one to try. */
gboolean candidates_offer_tp(const SearchRequest *request, guint tp);
guint candidates_most_tp(const SearchRequest *request);

/* Whether as few layers as fit are a choice: where what is computed again is free.  (Megatron-LM
 * takes one number for all stages, torchtitan none, so only for fsdp-run.) */
gboolean candidates_offer_partly(const SearchRequest *request);

/* What becomes of a candidate that computes nothing again and of which @too_large, a stage, does
 * not fit: the same with as few layers as fit. */
Candidate candidate_partly(const Candidate *none, Recompute recompute, guint too_large);

/* Brings the bounds of @num candidates closer, on all cores. */
void candidates_walk(const Candidates *candidates, const SearchRequest *request, Candidate *first,
                     guint num);

/* That of @worker of parallel_run(); NULL where it has walked none. */
Summariser *candidates_summariser(const Candidates *candidates, guint worker);

/* The closer bound of @plan's step, one of the request's; 0 where @worker of parallel_run() has
 * walked none. */
double candidates_bound_s(const Candidates *candidates, const Plan *plan, guint worker);

/* Fills @plan's choices; model and topology are borrowed from the request. */
void candidate_choose(const SearchRequest *request, const Candidate *candidate, Plan *plan);
