/* Sums, and maxima, of several ranks' values. */
#pragma once

#include "sim/base/dtype.h"
#include "sim/program/op.h"

#include <glib.h>

/* to[i] = from[0][i] + from[1][i] + ... in that order, in fp32 (fp64 for fp64), rounded once.
 * @to may be one of @from; nothing else may overlap.  Not for int32. */
void comm_sum(void *to, const char *const *from, guint num, gsize elements, DType dtype);

/* The same by @reduction; maxima are of fp32 and not negative. */
void comm_reduce(void *to, const char *const *from, guint num, gsize elements, DType dtype,
                 Reduction reduction);
