/* Every complete legal choice of a search: counted, in groups, and summarised where its group may
 * be among the best. */
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
    gboolean is_timed;               /* bound_s is that of the simulated step */
    gboolean partly;                 /* recomputed are as few layers as fit: */
    guint16 too_large;               /* TOO_LARGE_UNKNOWN, or a stage, of which some are */
    const guint16 *recompute_layers; /* by stage at least; NULL: not yet known */
} Candidate;

/* By bound, by floor; equal ones in the order of enumeration. */
gint candidate_by_bound(gconstpointer a, gconstpointer b);
gint candidate_by_floor(gconstpointer a, gconstpointer b);

/* Choices that differ in data-parallel axes and strategy only. */
typedef struct {
    Candidate least;  /* one of them, with bound and floor that hold for all: summarise_least() */
    gboolean put_off; /* these are not yet its own: computing something again takes no less than
                         computing nothing again does, and the floor is 0 */
    guint first, num;
} ChoiceGroup;

typedef struct {
    GArray *groups; /* ChoiceGroup; of those whose floor fits */
    GArray *large;  /* ChoiceGroup: the others */
    GArray *members;
    guint64 legal;
    guint64 rejected[NUM_VERDICTS];
    char *example[NUM_VERDICTS]; /* of the first of each kind, or NULL */
    Candidate least;             /* that needs least of those found too large so far, or none: its
                                    floor_bytes is G_MAXUINT64 */
    Candidate nearly;            /* the same of those whose floor fits */
    guint64 framework_bytes;     /* what each rank needs beside its floor */
    guint64 floor_limit_bytes;   /* what that leaves for it */
    GPtrArray *summarisers;      /* Summariser, by worker of parallel_run() */
    GPtrArray *layers;           /* guint16 *, that candidates point to */
} Candidates;

Candidates *candidates_find(const SearchRequest *request, guint gpus);
void candidates_free(Candidates *candidates);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Candidates, candidates_free)

/* Appends those of @num groups whose floor fits, with their own bounds, on all cores.  The others
 * are counted as rejected; where as few layers as fit are a choice, such ones are found here, and
 * counted as legal. */
void candidates_expand(Candidates *candidates, const SearchRequest *request,
                       const ChoiceGroup *groups, guint num, GArray *listed);

/* Finds the bounds of @num groups that were put off, on all cores; those that don't fit get a place
 * among the large, and are counted as rejected. */
void candidates_bound(Candidates *candidates, const SearchRequest *request, ChoiceGroup *groups,
                      guint num);

static inline gboolean candidates_fit(const Candidates *candidates, const ChoiceGroup *group)
{
    return group->least.floor_bytes <= candidates->floor_limit_bytes;
}

/* How many of its choices have been counted: with as few layers as fit they are when found. */
static inline guint group_counted(const ChoiceGroup *group)
{
    return group->least.partly ? 0 : group->num;
}

/* @candidate's floor fits, itself it does not: what needs least where no floor is too large. */
void candidates_note_large(Candidates *candidates, const Candidate *candidate);

/* What needs least of all that is too large. */
const Candidate *candidates_least(Candidates *candidates, const SearchRequest *request);

/* What becomes of a candidate that computes nothing again and of which @too_large, a stage, does
 * not fit: the same with as few layers as fit. */
Candidate candidate_partly(const Candidate *none, Recompute recompute, guint too_large);

/* Brings the bounds of @num candidates closer, on all cores. */
void candidates_walk(Candidates *candidates, const SearchRequest *request, Candidate *first,
                     guint num);

/* That of @worker of parallel_run(); NULL where there is none. */
Summariser *candidates_summariser(const Candidates *candidates, guint worker);

/* The closer bound of @plan's step, one of the request's; 0 where @worker of parallel_run() has no
 * summariser. */
double candidates_bound_s(const Candidates *candidates, const Plan *plan, guint worker);

/* Fills @plan's choices; model and topology are borrowed from the request. */
void candidate_choose(const SearchRequest *request, const Candidate *candidate, Plan *plan);
