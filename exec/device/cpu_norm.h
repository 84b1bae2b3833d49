/* What norms share. */
#pragma once

#include "exec/device/cpu_block.h"
#include "exec/device/cpu_kernels.h"

/* What is normed of this row: x, or, where the op has operands behind its @required ones, their
 * sum, which this makes. */
const void *cpu_norm_input(const Launch *launch, guint required, guint64 row);

/* ---- backward ----
 *
 * Operands: dy (N, C), x (N, C), w (C), statistics (N),
 * dx (N, C), then the gradients of parameters of C elements, then scratch. */

enum { NORM_DX = 4 };

/* A block of one row of dy, x and w in fp32. */
typedef struct {
    float dy_block[CPU_BLOCK], x_block[CPU_BLOCK], w_block[CPU_BLOCK];
    const float *dy, *x, *w;
    guint64 offset, n;
} NormBlock;

void cpu_norm_read(NormBlock *block, const Launch *launch, guint64 row, guint64 column);

/* Writes dx of one row, and adds its share of gradient g to sums[g * C ...]. */
typedef void CpuNormRow(const Launch *launch, guint64 row, float *sums);

/* All rows.  Gradients of parameters are summed in CPU_NORM_PARTIALS runs of rows, then over the
 * runs in order: the same bits for any number of threads. */
void cpu_norm_backward(guint threads, const Launch *launch, guint gradients, CpuNormRow *row);
