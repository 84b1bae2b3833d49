/* Units that are not all sharded alike: the plans that a search lists are made faster by keeping
 * some of their units whole, or gathered for longer, where there is memory. */
#pragma once

#include "sim/search/candidates.h"

/* A plan that treats its units differently is taken only where its step is shorter by this part
 * than the best step so far. */
extern const double UNIT_CHOICE_GAIN;

/* Changes those of @plans (Plan, best first, priced) that become the fastest by it, if the request
 * leaves units open.  Choices of each plan: the root, and the first or the last n blocks of each
 * chunk, with their experts, or only these, or all but these, less sharded than the plan's strategy
 * says or kept between forward and backward; the best change is made, by simulation, until none is
 * left that gains.  Not for other frameworks, whose configurations have one strategy for all units.
 */
void unit_choice_refine(const SearchRequest *request, const Candidates *found, GPtrArray *plans);
