/* Layer norm (Ba, Kiros, Hinton, arXiv 1607.06450).  x, y (N, C), w, b (C), stats (N, 2).
 *
 *     z = (x - mean_c x) rstd,  rstd = 1 / sqrt(mean_c (x - mean)^2 + eps)      y = z w + b
 *     g = dy w      dx = rstd (g - mean_c g - z mean_c(g z))
 *     dw = sum_n dy z      db = sum_n dy
 *
 * Sums along a row are fp32 over blocks, fp64 over the blocks. */
#include "exec/device/cpu_loop.h"
#include "exec/device/cpu_norm.h"

#include <math.h>

typedef struct {
    float mean, rstd;
} Moments;

/* sum_c x - mean, or of their squares. */
static double row_sum(const Launch *launch, const void *x_rows, guint64 row, float mean,
                      gboolean squares)
{
    const guint64 columns = launch->op->sizes.in;
    float block[CPU_BLOCK];
    double sum = 0;

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, columns - c);
        const float *x = block_read(launch->op->dtype, x_rows, row * columns + c, n, block);
        float part = 0;

#pragma omp simd reduction(+ : part)
        for (guint64 i = 0; i < n; i++)
            part += squares ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
        sum += (double)part;
    }
    return sum;
}

static Moments row_moments(const Launch *launch, const void *x, guint64 row)
{
    const double columns = (double)launch->op->sizes.in;
    const float mean = (float)(row_sum(launch, x, row, 0, FALSE) / columns);
    const double variance = row_sum(launch, x, row, mean, TRUE) / columns;

    return (Moments){mean, (float)(1 / sqrt(variance + launch->op->sizes.eps))};
}

static void apply_row(const Launch *launch, const void *x_rows, guint64 row, Moments moments,
                      void *y)
{
    const guint64 columns = launch->op->sizes.in;
    const DType dtype = launch->op->dtype;
    float x_block[CPU_BLOCK], w_block[CPU_BLOCK], b_block[CPU_BLOCK], y_block[CPU_BLOCK];

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, columns - c), offset = row * columns + c;
        const float *x = block_read(dtype, x_rows, offset, n, x_block);
        const float *w = block_read(dtype, launch->operand[1], c, n, w_block);
        const float *b = block_read(dtype, launch->operand[2], c, n, b_block);
        float *to = block_target(dtype, y, offset, y_block);
#pragma omp simd
        for (guint64 i = 0; i < n; i++)
            to[i] = (x[i] - moments.mean) * moments.rstd * w[i] + b[i];
        block_write(dtype, y, offset, n, to);
    }
}

static Moments read_moments(const Launch *launch, guint64 row)
{
    const float *stats = (const float *)launch->operand[3] + row * NUM_LAYERNORM;

    return (Moments){stats[LAYERNORM_MEAN], stats[LAYERNORM_RSTD]};
}

static void norm_row(gconstpointer context, guint64 row)
{
    const Launch *launch = context;
    float *stats = (float *)launch->operand[4] + row * NUM_LAYERNORM;
    const void *x = cpu_norm_input(launch, 5, row);
    const Moments moments = row_moments(launch, x, row);

    stats[LAYERNORM_MEAN] = moments.mean;
    stats[LAYERNORM_RSTD] = moments.rstd;
    apply_row(launch, x, row, moments, launch->operand[3]);
}

void cpu_layernorm(guint threads, const Launch *launch)
{
    cpu_loop(threads, launch->op->sizes.rows, norm_row, launch);
}

static void norm_row_again(gconstpointer context, guint64 row)
{
    const Launch *launch = context;

    apply_row(launch, launch->operand[0], row, read_moments(launch, row), launch->operand[4]);
}

void cpu_layernorm_apply(guint threads, const Launch *launch)
{
    cpu_loop(threads, launch->op->sizes.rows, norm_row_again, launch);
}

/* Means along a row. */
typedef struct {
    float g, gz;
} Projections;

static Projections row_projections(NormBlock *block, const Launch *launch, guint64 row,
                                   Moments moments)
{
    const guint64 columns = launch->op->sizes.in;
    double g_sum = 0, gz_sum = 0;

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        float g_part = 0, gz_part = 0;

        cpu_norm_read(block, launch, row, c);
#pragma omp simd reduction(+ : g_part, gz_part)
        for (guint64 i = 0; i < block->n; i++) {
            const float g = block->dy[i] * block->w[i];

            g_part += g;
            gz_part += g * (block->x[i] - moments.mean) * moments.rstd;
        }
        g_sum += (double)g_part;
        gz_sum += (double)gz_part;
    }
    return (Projections){(float)(g_sum / (double)columns), (float)(gz_sum / (double)columns)};
}

static void backward_row(const Launch *launch, guint64 row, float *sums)
{
    const guint64 columns = launch->op->sizes.in;
    const Moments moments = read_moments(launch, row);
    float *dw = sums, *db = sums + columns;
    NormBlock block;
    float dx[CPU_BLOCK];
    const Projections mean = row_projections(&block, launch, row, moments);

    for (guint64 c = 0; c < columns; c += CPU_BLOCK) {
        cpu_norm_read(&block, launch, row, c);
#pragma omp simd
        for (guint64 i = 0; i < block.n; i++) {
            const float z = (block.x[i] - moments.mean) * moments.rstd;

            dx[i] = moments.rstd * (block.dy[i] * block.w[i] - mean.g - z * mean.gz);
            dw[c + i] += block.dy[i] * z;
            db[c + i] += block.dy[i];
        }
        block_put(launch->op->dtype, launch->operand[NORM_DX], block.offset, block.n, dx,
                  launch_adds(launch, NORM_DX));
    }
}

void cpu_layernorm_backward(guint threads, const Launch *launch)
{
    cpu_norm_backward(threads, launch, 2, backward_row);
}
