/* Products of fp32 matrices by the BLAS, and conversions of whole matrices to feed it. */
#pragma once

#include "sim/base/dtype.h"

#include <glib.h>

/* C = alpha op(A) op(B) + beta C, row-major; op(A) is (m, k), op(B) is (k, n).  ld*: elements from
 * one row to the next, as stored.  With beta = 0, C is not read. */
typedef struct {
    gboolean transpose_a, transpose_b;
    guint64 m, n, k;
    const float *a, *b;
    float *c;
    guint64 lda, ldb, ldc;
    float alpha, beta;
} Gemm;

/* On @threads threads, each with a slice of C; the BLAS itself must be set to one thread. */
void cpu_gemm(guint threads, const Gemm *gemm);

/* @elements of @data from @offset on as fp32: where they lie, or widened into @buffer. */
const float *cpu_widen(guint threads, DType dtype, const void *data, guint64 offset,
                       guint64 elements, float *buffer);

/* data[offset ...] = values, or += when @add, summed in fp32 and rounded once.  Nothing to do when
 * @values already lie there. */
typedef struct {
    DType dtype;
    void *data;
    guint64 offset, elements;
    gboolean add;
} Destination;

void cpu_put(guint threads, const Destination *to, const float *values);
