/* Sums down columns, in two steps: partial sums by many blocks, then the sum of those. */
#pragma once

#include "sim/base/dtype.h"

typedef struct {
    DType dtype; /* of to */
    guint64 parts, columns;
    guint64 stride; /* of a part, in floats */
    const float *partials;
    void *to; /* (C) */
    gboolean adds;
} PartialSums;

/* to (+)= partials of all parts, added in one order. */
void sum_partials(const PartialSums *sums, struct CUstream_st *stream);
