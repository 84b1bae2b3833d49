/* Private to the search: plans of which none is both faster and smaller than another. */
#pragma once

#include "sim/search/search.h"

/* Which plans are left depends on those that were added, not on their order: the fastest, and of
 * those behind it each that needs less than the one before by more than SEARCH_FRONT_STEP. */
typedef struct {
    GPtrArray *plans; /* Plan, the fastest first; borrowed, its elements are its own */
    double settled_s; /* all plans that take less have been added */
} Front;

/* Seconds of a sequence, as for a bound: layouts of different batches compare by it. */
double front_key_s(const Plan *plan);

/* What a plan that needs no less than @bytes must be faster than to be one of them: by seconds of a
 * sequence, of those that are not settled.  0: none is; INFINITY: any is. */
double front_limit_s(const Front *front, double bytes);

/* Whether no plan is one of them that takes no less than @bound_s, which is not settled, and needs
 * no less than @bytes. */
gboolean front_leaves_out(const Front *front, double bound_s, double bytes);

/* Takes @plan, and frees those that it beats, unless another beats it: FALSE. */
gboolean front_add(Front *front, Plan *plan);

/* All plans that take less have been added: those that need nearly as much as a faster one are
 * freed. */
void front_settle(Front *front, double seconds);

/* Plans have been priced anew, and sorted: those that others beat now are freed. */
void front_clean(Front *front);
