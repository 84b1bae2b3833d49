/* Search over other numbers of GPUs, and batches: for what a token costs, what each number buys,
 * and where fewer GPUs, or another batch, are faster. */
#pragma once

#include "sim/search/search.h"

/* All of the request's GPUs, a half of them, a quarter, ...: the plans of each, the cheapest token
 * first, and counts of all together.  The topology has a price. */
SearchResult *search_cheapest(const SearchRequest *request);

/* What each number of GPUs buys, from the request's, on which something fits, to the whole cluster
 * or eight times as many: the fastest plan of each that makes more tokens a second than all on
 * fewer, and where that is at risk (plan_is_tight()) the fastest that is not; the fewest GPUs
 * first, and counts of all together.  Tried are powers of two and half as many more, times the axes
 * that are fixed, in whole nodes beyond one; @searched (array of guint) gets those. */
SearchResult *search_numbers(const SearchRequest *request, GArray *searched);

/* Where none of @result, the answer for @from GPUs, has more memory to spare than what a prediction
 * may be wrong by (plan_is_tight()): the smallest larger number on which one has; 0 = none, or one
 * here has. */
guint search_roomy_gpus(const SearchRequest *request, const SearchResult *result, guint from);

/* On 1 GPU, on one node's, of up to 64 GPUs on half, and on those of whole nodes where the last is
 * a part, of up to 64 GPUs on a power of two: the fastest plan that makes more tokens a second than
 * @best, of all that were asked for; NULL: none.  Looked for only where ranks wait for each other
 * long enough that it may be. */
Plan *search_fewer_faster(const SearchRequest *request, const Plan *best);

/* Of the two batches next to one that the number of GPUs does not divide: the plan that makes most
 * tokens a second (where both do, of the nearer one), if those are a tenth more than those of the
 * first of @result, which has one; NULL: none, or all ranks can share the batch anyway, or both are
 * more than half of it away.  Not looked for where a search takes long. */
Plan *search_other_batch(const SearchRequest *request, const SearchResult *result);
