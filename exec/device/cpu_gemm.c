#include "exec/device/cpu_gemm.h"

#include "exec/device/cpu_block.h"
#include "exec/device/cpu_loop.h"

#include <cblas.h>
#include <omp.h>

/* Below this many FLOPs a product takes less time than waking threads for it. */
static const double min_parallel_flops = 1e6;

static blasint blas_int(guint64 value)
{
    g_assert(value <= G_MAXINT32);
    return (blasint)value;
}

/* Rows [row, row + rows) and columns [column, column + columns) of C. */
typedef struct {
    guint64 row, rows, column, columns;
} Slice;

static void multiply(const Gemm *g, const Slice *slice)
{
    if (slice->rows == 0 || slice->columns == 0)
        return;
    cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, blas_int(slice->rows),
                blas_int(slice->columns), blas_int(g->k), g->alpha,
                g->a + slice->row * (g->transpose_a ? 1 : g->lda), blas_int(g->lda),
                g->b + slice->column * (g->transpose_b ? g->ldb : 1), blas_int(g->ldb), g->beta,
                g->c + slice->row * g->ldc + slice->column, blas_int(g->ldc));
}

/* Equal slices of the longer side, in multiples of what the BLAS' inner kernels take at a time. */
static Slice slice_of(const Gemm *g, guint part, guint parts)
{
    const guint64 unit = 16, side = MAX(g->m, g->n);
    const guint64 share = ((side + parts - 1) / parts + unit - 1) / unit * unit;
    const guint64 start = MIN(side, part * share), count = MIN(side - start, share);

    return g->m >= g->n ? (Slice){start, count, 0, g->n} : (Slice){0, g->m, start, count};
}

void cpu_gemm(guint threads, const Gemm *gemm)
{
    const double flops = 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;

    if (threads == 1 || flops < min_parallel_flops) {
        multiply(gemm, &(Slice){0, gemm->m, 0, gemm->n});
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (guint part = 0; part < threads; part++) {
        const Slice slice = slice_of(gemm, part, threads);

        multiply(gemm, &slice);
    }
}

static guint64 num_blocks(guint64 elements)
{
    return (elements + CPU_BLOCK - 1) / CPU_BLOCK;
}

typedef struct {
    DType dtype;
    const void *data;
    guint64 offset, elements;
    float *buffer;
} Widening;

static void widen_block(gconstpointer context, guint64 block)
{
    const Widening *w = context;
    const guint64 start = block * CPU_BLOCK, n = MIN(w->elements - start, CPU_BLOCK);

    block_read(w->dtype, w->data, w->offset + start, n, w->buffer + start);
}

const float *cpu_widen(guint threads, DType dtype, const void *data, guint64 offset,
                       guint64 elements, float *buffer)
{
    if (dtype == DTYPE_FP32)
        return (const float *)data + offset;
    cpu_loop(threads, num_blocks(elements), widen_block,
             &(Widening){dtype, data, offset, elements, buffer});
    return buffer;
}

typedef struct {
    const Destination *to;
    const float *values;
} Putting;

static void put_block(gconstpointer context, guint64 block)
{
    const Putting *putting = context;
    const Destination *to = putting->to;
    const guint64 start = block * CPU_BLOCK, n = MIN(to->elements - start, CPU_BLOCK);

    block_put(to->dtype, to->data, to->offset + start, n, putting->values + start, to->add);
}

void cpu_put(guint threads, const Destination *to, const float *values)
{
    if (to->dtype == DTYPE_FP32 && values == (const float *)to->data + to->offset)
        return;
    cpu_loop(threads, num_blocks(to->elements), put_block, &(Putting){to, values});
}
