/* Private to the search: choices with what they share in common. */
#pragma once

#include "sim/search/candidates.h"

/* What tells groups of one pp, cp, tp apart.  No padding: compared byte by byte. */
typedef struct {
    guint32 micro_batch;
    guint16 ep, virtual_stages;
    guint8 schedule, context;
    guint8 gradient; /* program_gradient_dtype() */
    guint8 recompute;
} GroupKey;

/* What tells the choices of a group apart. */
typedef struct {
    guint32 order, dp_shard;
    guint8 strategy;
} Member;

typedef struct {
    GroupKey key;
    Member member;
} LegalChoice;

/* Makes groups of @found, with the bounds of each, of @choices (LegalChoice, in the order of
 * enumeration), which are alike in all that @common says. */
void groups_add(Candidates *found, const SearchRequest *request, Summariser *summariser,
                const Candidate *common, const GArray *choices);

/* A summariser for each worker of parallel_run() on so many items. */
void candidates_add_summarisers(Candidates *candidates, guint num);
