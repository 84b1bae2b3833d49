/* RMS norm.  x, y (N, C), w (C), rstd (N).
 *
 *     rstd = 1 / sqrt(mean_c x^2 + eps)      y = x rstd w
 *     g = dy w      dx = rstd (g - x rstd^2 mean_c(g x))      dw = sum_n dy x rstd
 *
 * Sums along a row are fp32 over blocks, fp64 over the blocks.  dw is summed in CPU_NORM_PARTIALS
 * runs of rows, then over the runs in order: the same bits for any number of threads. */
#include "exec/device/cpu_block.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"

#include <math.h>

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
    float *rstd = launch->operand[3];

    rstd[row] = row_rstd(launch, launch->operand[0], row);
    apply_row(launch, launch->operand[0], row, rstd[row], launch->operand[2]);
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

/* A block of one row of dy, x and w in fp32. */
typedef struct {
    float dy_block[CPU_BLOCK], x_block[CPU_BLOCK], w_block[CPU_BLOCK];
    const float *dy, *x, *w;
    guint64 offset, n;
} RowBlock;

static void read_block(RowBlock *block, const Launch *launch, guint64 row, guint64 column)
{
    const guint64 columns = launch->op->sizes.in;
    const DType dtype = launch->op->dtype;

    block->n = MIN(CPU_BLOCK, columns - column);
    block->offset = row * columns + column;
    block->dy = block_read(dtype, launch->operand[0], block->offset, block->n, block->dy_block);
    block->x = block_read(dtype, launch->operand[1], block->offset, block->n, block->x_block);
    block->w = block_read(dtype, launch->operand[2], column, block->n, block->w_block);
}

/* sum_c dy w x */
static double projection(RowBlock *block, const Launch *launch, guint64 row)
{
    double sum = 0;

    for (guint64 c = 0; c < launch->op->sizes.in; c += CPU_BLOCK) {
        float part = 0;

        read_block(block, launch, row, c);
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
    const gboolean adds = launch_adds(launch, 4);
    RowBlock block;
    float dx[CPU_BLOCK];
    const double mean = projection(&block, launch, row) / (double)columns;
    const float factor = (float)((double)rstd * rstd * mean);

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        read_block(&block, launch, row, c);
#pragma omp simd
        for (guint64 i = 0; i < block.n; i++) {
            dx[i] = rstd * (block.dy[i] * block.w[i] - block.x[i] * factor);
            dw[c + i] += block.dy[i] * block.x[i] * rstd;
        }
        block_put(launch->op->dtype, launch->operand[4], block.offset, block.n, dx, adds);
    }
}

/* The partial sums of columns c .. become the gradient. */
static void weight_gradient(const Launch *launch, const float *partials, guint64 c)
{
    const guint64 columns = launch->op->sizes.in, n = MIN(CPU_BLOCK, columns - c);
    float sum[CPU_BLOCK] = {0};

    for (guint64 part = 0; part < CPU_NORM_PARTIALS; part++)
        for (guint64 i = 0; i < n; i++)
            sum[i] += partials[part * columns + c + i];
    block_put(launch->op->dtype_out, launch->operand[5], c, n, sum, launch_adds(launch, 5));
}

typedef struct {
    const Launch *launch;
    float *partials;
} Partials;

/* One of CPU_NORM_PARTIALS shares of the rows. */
static void backward_part(gconstpointer context, guint64 part)
{
    const Partials *to = context;
    const guint64 rows = to->launch->op->sizes.rows, columns = to->launch->op->sizes.in;
    float *dw = to->partials + part * columns;

    memset(dw, 0, columns * sizeof *dw);
    for (guint64 row = part * rows / CPU_NORM_PARTIALS; row < (part + 1) * rows / CPU_NORM_PARTIALS;
         row++)
        backward_row(to->launch, row, dw);
}

void cpu_rmsnorm_backward(guint threads, const Launch *launch)
{
    const guint64 rows = launch->op->sizes.rows, columns = launch->op->sizes.in;
    Scratch scratch = scratch_open(threads, launch, 6);
    float *partials = scratch_floats(&scratch, CPU_NORM_PARTIALS * columns);

    cpu_loop(rows > threads ? threads : 1, CPU_NORM_PARTIALS, backward_part,
             &(Partials){launch, partials});
    for (guint64 c = 0; c < columns; c += CPU_BLOCK)
        weight_gradient(launch, partials, c);
}
