/* RMS norm.  x, y (N, C), w (C), rstd (N).
 *
 *     rstd = 1 / sqrt(mean_c x^2 + eps)      y = x rstd w
 *     g = dy w      dx = rstd (g - x rstd^2 mean_c(g x))      dw = sum_n dy x rstd
 *
 * Sums along a row are fp32 over blocks, fp64 over the blocks. */
#include "exec/device/cpu_norm.h"

#include "exec/device/cpu_loop.h"

#include <math.h>

const void *cpu_norm_input(const Launch *launch, guint required, guint64 row)
{
    const guint64 columns = launch->op->sizes.in;
    const void *added = launch_optional(launch, required);
    void *sum = launch_optional(launch, required + 1);

    if (added == NULL)
        return launch->operand[0];
    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 at = row * columns + c, n = MIN(CPU_BLOCK, columns - c);
        float block[CPU_BLOCK];

        block_add(launch->op->dtype, launch->operand[0],
                  block_read(launch->op->dtype, added, at, n, block), sum, at, n);
    }
    return sum;
}

static float dot(const float *a, const float *b, guint64 n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (guint64 i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* y = x * rstd * w of one row. */
static void apply_row(const Launch *launch, const void *x, guint64 row, float rstd, void *y)
{
    const guint64 columns = launch->op->sizes.in;
    const DType dtype = launch->op->dtype;
    float x_block[CPU_BLOCK], w_block[CPU_BLOCK], y_block[CPU_BLOCK];

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, columns - c), offset = row * columns + c;
        const float *from = block_read(dtype, x, offset, n, x_block);
        const float *w = block_read(dtype, launch->operand[1], c, n, w_block);
        float *to = block_target(dtype, y, offset, y_block);
#pragma omp simd
        for (guint64 i = 0; i < n; i++)
            to[i] = from[i] * rstd * w[i];
        block_write(dtype, y, offset, n, to);
    }
}

static float row_rstd(const Launch *launch, const void *x, guint64 row)
{
    const guint64 columns = launch->op->sizes.in;
    float block[CPU_BLOCK];
    double sum = 0;

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, columns - c);
        const float *values = block_read(launch->op->dtype, x, row * columns + c, n, block);

        sum += (double)dot(values, values, n);
    }
    return (float)(1 / sqrt(sum / (double)columns + launch->op->sizes.eps));
}

static void norm_row(gconstpointer context, guint64 row)
{
    const Launch *launch = context;
    const void *x = cpu_norm_input(launch, 4, row);
    float *rstd = launch->operand[3];

    rstd[row] = row_rstd(launch, x, row);
    apply_row(launch, x, row, rstd[row], launch->operand[2]);
}

void cpu_rmsnorm(guint threads, const Launch *launch)
{
    cpu_loop(threads, launch->op->sizes.rows, norm_row, launch);
}

static void norm_row_again(gconstpointer context, guint64 row)
{
    const Launch *launch = context;
    const float *rstd = launch->operand[2];

    apply_row(launch, launch->operand[0], row, rstd[row], launch->operand[3]);
}

void cpu_rmsnorm_apply(guint threads, const Launch *launch)
{
    cpu_loop(threads, launch->op->sizes.rows, norm_row_again, launch);
}

/* ---- backward of all norms ---- */

void cpu_norm_read(NormBlock *block, const Launch *launch, guint64 row, guint64 column)
{
    const guint64 columns = launch->op->sizes.in;
    const DType dtype = launch->op->dtype;

    block->n = MIN(CPU_BLOCK, columns - column);
    block->offset = row * columns + column;
    block->dy = block_read(dtype, launch->operand[0], block->offset, block->n, block->dy_block);
    block->x = block_read(dtype, launch->operand[1], block->offset, block->n, block->x_block);
    block->w = block_read(dtype, launch->operand[2], column, block->n, block->w_block);
}

typedef struct {
    const Launch *launch;
    guint gradients;
    CpuNormRow *row;
    float *partials; /* (CPU_NORM_PARTIALS, gradients, C) */
} Backward;

/* One of CPU_NORM_PARTIALS shares of the rows. */
static void backward_part(gconstpointer context, guint64 part)
{
    const Backward *backward = context;
    const OpSizes *s = &backward->launch->op->sizes;
    const guint64 elements = backward->gradients * s->in;
    float *sums = backward->partials + part * elements;

    memset(sums, 0, elements * sizeof *sums);
    for (guint64 row = part * s->rows / CPU_NORM_PARTIALS;
         row < (part + 1) * s->rows / CPU_NORM_PARTIALS; row++)
        backward->row(backward->launch, row, sums);
}

/* The partial sums of columns c .. of gradient g become the gradient. */
static void put_gradient(const Backward *backward, guint g, guint64 c)
{
    const Launch *launch = backward->launch;
    const guint64 columns = launch->op->sizes.in, n = MIN(CPU_BLOCK, columns - c);
    const guint operand = NORM_DX + 1 + g;
    float sum[CPU_BLOCK] = {0};

    for (guint64 part = 0; part < CPU_NORM_PARTIALS; part++) {
        const float *from = backward->partials + (part * backward->gradients + g) * columns + c;

        for (guint64 i = 0; i < n; i++)
            sum[i] += from[i];
    }
    block_put(launch->op->dtype_out, launch->operand[operand], c, n, sum,
              launch_adds(launch, operand));
}

void cpu_norm_backward(guint threads, const Launch *launch, guint gradients, CpuNormRow *row)
{
    const OpSizes *s = &launch->op->sizes;
    Scratch scratch = scratch_open(threads, launch, NORM_DX + 1 + gradients);
    const Backward backward = {launch, gradients, row,
                               scratch_floats(&scratch, CPU_NORM_PARTIALS * gradients * s->in)};

    cpu_loop(s->rows > threads ? threads : 1, CPU_NORM_PARTIALS, backward_part, &backward);
    for (guint g = 0; g < gradients; g++)
        for (guint64 c = 0; c < s->in; c += CPU_BLOCK)
            put_gradient(&backward, g, c);
}

/* ---- backward of RMS norm ---- */

/* sum_c dy w x */
static double projection(NormBlock *block, const Launch *launch, guint64 row)
{
    double sum = 0;

    for (guint64 c = 0; c < launch->op->sizes.in; c += CPU_BLOCK) {
        float part = 0;

        cpu_norm_read(block, launch, row, c);
#pragma omp simd reduction(+ : part)
        for (guint64 i = 0; i < block->n; i++)
            part += block->dy[i] * block->w[i] * block->x[i];
        sum += (double)part;
    }
    return sum;
}

static void backward_row(const Launch *launch, guint64 row, float *dw)
{
    const guint64 columns = launch->op->sizes.in;
    const float rstd = ((const float *)launch->operand[3])[row];
    NormBlock block;
    float dx[CPU_BLOCK];
    const double mean = projection(&block, launch, row) / (double)columns;
    const float factor = (float)((double)rstd * rstd * mean);

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        cpu_norm_read(&block, launch, row, c);
#pragma omp simd
        for (guint64 i = 0; i < block.n; i++) {
            dx[i] = rstd * (block.dy[i] * block.w[i] - block.x[i] * factor);
            dw[c + i] += block.dy[i] * block.x[i] * rstd;
        }
        block_put(launch->op->dtype, launch->operand[NORM_DX], block.offset, block.n, dx,
                  launch_adds(launch, NORM_DX));
    }
}

void cpu_rmsnorm_backward(guint threads, const Launch *launch)
{
    cpu_norm_backward(threads, launch, 1, backward_row);
}
