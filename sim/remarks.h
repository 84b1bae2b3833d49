/* What is said beside a plan, in words: tables print it, and --json has it too. */
#pragma once

#include "sim/search/search.h"

/* Lines without an end, the caller's; NULL where there is nothing to say. */
char *remark_routing(const Model *model, double imbalance);    /* of experts */
char *remark_long_sequence(const Model *model, guint seq_len); /* positions it was not made for */
char *remark_framework(const Framework *framework);            /* nothing is said of fsdp-run */

/* Of a plan that does not fit: what its largest term depends on, where more ranks that shard
 * parameters leave that as it is.  Else NULL. */
char *remark_largest(const Plan *plan);

/* Of another framework's plan that fits, without parts of matrices and stages, which are built as
 * such: that a GPU has no room for the whole model before it is sharded.  Else NULL. */
char *remark_loading(const Plan *plan);

/* What fsdp-run would refuse. */
char *remark_untrainable(const Plan *plan);

/* Differences below what repeated runs of one layout show are noise. */
#define REMARK_NOISE 0.02

/* How many plans, from the first on, are no slower than it but by noise. */
guint remark_alike(const SearchResult *result);

/* The class of ops that takes the largest part of the step. */
OpClass remark_bound(const Plan *plan);
