/* Search over numbers of GPUs, for what a token costs. */
#pragma once

#include "sim/search/search.h"

/* All of the request's GPUs, a half of them, a quarter, ...: the plans of each, the cheapest token
 * first, and counts of all together.  The topology has a price. */
SearchResult *search_cheapest(const SearchRequest *request);
