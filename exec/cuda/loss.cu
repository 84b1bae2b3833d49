/* Softmax cross-entropy on a chunk of logits (rows, V), and counting labels.
 *
 *     loss = sum over labels y != -1 of (log sum_j e^z_j) - z_y
 *     dz = (softmax(z) - onehot(y)) / max(valid, 1), 0 where y = -1
 *
 * One block a row, which is read twice: for maximum and sum together (Milakov, Gimelshein, arXiv
 * 1805.02867), then for the gradient.  Losses of rows are summed in fp64. */
#include "exec/cuda/cuda_common.cuh"

#include "sim/program/op.h"

enum { LOSS_THREADS = 512, SUM_THREADS = 1024 };

/* Of some logits: their maximum and sum e^(z - max). */
struct Softmax {
    float max, sum;
};

template <int N> static __device__ __forceinline__ void join(Softmax *softmax, const float (&z)[N])
{
    float max = softmax->max;

#pragma unroll
    for (int i = 0; i < N; i++)
        max = fmaxf(max, z[i]);
    if (max > softmax->max)
        softmax->sum *= expf(softmax->max - max);
#pragma unroll
    for (int i = 0; i < N; i++)
        softmax->sum += expf(z[i] - max);
    softmax->max = max;
}

/* Of the first @count logits of a row, for all threads; -inf, 0 of none. */
template <int VEC>
static __device__ __forceinline__ Softmax row_softmax(const float *z, guint64 count, float *shared)
{
    const unsigned lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const guint64 whole = count / VEC * VEC;
    Softmax own = {-INFINITY, 0};
    float values[VEC], last[1];

    for (guint64 j = threadIdx.x * VEC; j < whole; j += blockDim.x * VEC) {
        load(values, z + j);
        join(&own, values);
    }
    if (whole + threadIdx.x < count) {
        load(last, z + whole + threadIdx.x);
        join(&own, last);
    }
    float max = warp_max(own.max);
    if (lane == 0)
        shared[threadIdx.x / WARP] = max;
    __syncthreads();
    max = warp_max(lane < warps ? shared[lane] : -INFINITY);
    __syncthreads();
    own.sum = own.max == -INFINITY ? own.sum : own.sum * expf(own.max - max);
    return Softmax{max, block_sum(own.sum, shared)};
}

template <int VEC>
static __global__ void __launch_bounds__(LOSS_THREADS) head_stats(CudaHeadStats h)
{
    SHARED(float, shared, [WARP]);
    const float *z = h.logits + blockIdx.x * h.vocab;
    const guint64 index = (guint64)h.labels[blockIdx.x] - (guint64)h.range[RANGE_FIRST];
    const guint64 count = (guint64)h.range[RANGE_COUNT];
    const Softmax softmax = row_softmax<VEC>(z, count, shared);
    float *stats = h.stats + blockIdx.x * NUM_STATS;

    if (threadIdx.x > 0)
        return;
    stats[STATS_MAX] = softmax.max;
    stats[STATS_SUM] = softmax.sum;
    stats[STATS_LABEL] = h.labels[blockIdx.x] >= 0 && index < count ? z[index] : 0;
}

void cuda_head_stats(const CudaHeadStats *h, CudaStream stream)
{
    if (is_wide(h->vocab, h->logits))
        LAUNCH((head_stats<WIDE>), (unsigned)h->rows, row_threads(h->vocab / WIDE, LOSS_THREADS), 0,
               stream, *h);
    else
        LAUNCH((head_stats<1>), (unsigned)h->rows, row_threads(h->vocab, LOSS_THREADS), 0, stream,
               *h);
}

/* ---- loss and gradient ---- */

/* A row: softmax over all words, and the logit of its label. */
struct RowLoss {
    Softmax softmax;
    float of_label;
};

/* From the statistics of all ranks. */
static __device__ __forceinline__ RowLoss joined_stats(const CudaCrossEntropy &l, guint64 row)
{
    RowLoss loss = {{-INFINITY, 0}, 0};

    for (guint64 p = 0; p < l.parts; p++) {
        const float *stats = l.stats + (p * l.part_rows + row) * NUM_STATS;

        loss.softmax.max = fmaxf(loss.softmax.max, stats[STATS_MAX]);
        loss.of_label += stats[STATS_LABEL];
    }
    for (guint64 p = 0; p < l.parts; p++) {
        const float *stats = l.stats + (p * l.part_rows + row) * NUM_STATS;

        if (stats[STATS_SUM] != 0) /* a part without words has none */
            loss.softmax.sum += stats[STATS_SUM] * expf(stats[STATS_MAX] - loss.softmax.max);
    }
    return loss;
}

template <typename T, int VEC>
static __device__ __forceinline__ void gradient(const CudaCrossEntropy &l, guint64 count,
                                                const Softmax &softmax, guint64 label)
{
    const float scale = (float)(1 / fmax(*l.valid, 1.0));
    const float factor = scale / softmax.sum;
    const float *z = l.logits + blockIdx.x * l.vocab;
    T *dz = (T *)l.dlogits + blockIdx.x * l.vocab;
    float values[VEC];

    for (guint64 j = threadIdx.x * VEC; j < l.vocab; j += blockDim.x * VEC) {
        load(values, z + j);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            values[i] = j + i < count ? expf(values[i] - softmax.max) * factor : 0;
            values[i] -= j + i == label ? scale : 0;
        }
        store(dz + j, values);
    }
}

template <typename T, int VEC> static __device__ __forceinline__ void no_gradient(T *dz, guint64 n)
{
    const float zeros[VEC] = {};

    for (guint64 j = threadIdx.x * VEC; j < n; j += blockDim.x * VEC)
        store(dz + j, zeros);
}

/* Words that W holds: those of the range, else all; rows are padded to l.vocab. */
template <typename T, int VEC>
static __global__ void __launch_bounds__(LOSS_THREADS) cross_entropy(CudaCrossEntropy l)
{
    SHARED(float, shared, [WARP]);
    const guint64 row = blockIdx.x, first = l.stats ? (guint64)l.range[RANGE_FIRST] : 0;
    const guint64 count = l.stats ? (guint64)l.range[RANGE_COUNT] : l.vocab;
    const float *z = l.logits + row * l.vocab;
    const gint32 label = l.labels[row];
    RowLoss loss;

    if (label == -1) {
        no_gradient<T, VEC>((T *)l.dlogits + row * l.vocab, l.vocab);
        if (threadIdx.x == 0)
            l.losses[row] = 0;
        return; /* the whole block */
    }
    if (l.stats != nullptr)
        loss = joined_stats(l, row);
    else {
        loss.softmax = row_softmax<VEC>(z, count, shared);
        loss.of_label = (guint64)label < count ? z[label] : __int_as_float(0x7fffffff);
    }
    if (threadIdx.x == 0)
        l.losses[row] =
            log((double)loss.softmax.sum) + (double)loss.softmax.max - (double)loss.of_label;
    __syncthreads(); /* dlogits may be the logits: all have read the label's */
    gradient<T, VEC>(l, count, loss.softmax, (guint64)label - first);
}

static __global__ void __launch_bounds__(SUM_THREADS)
    sum_losses(const double *losses, guint64 rows, double *loss, bool adds)
{
    __shared__ double shared[WARP];
    double sum = 0;

    for (guint64 row = threadIdx.x; row < rows; row += blockDim.x)
        sum += losses[row];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        *loss = (adds ? *loss : 0) + sum;
}

template <typename T> static void launch_loss(const CudaCrossEntropy *l, CudaStream stream)
{
    const unsigned rows = (unsigned)l->rows;

    if (is_wide(l->vocab, l->logits, l->dlogits))
        LAUNCH((cross_entropy<T, WIDE>), rows, row_threads(l->vocab / WIDE, LOSS_THREADS), 0,
               stream, *l);
    else
        LAUNCH((cross_entropy<T, 1>), rows, row_threads(l->vocab, LOSS_THREADS), 0, stream, *l);
    LAUNCH(sum_losses, 1, row_threads(l->rows, SUM_THREADS), 0, stream, l->losses, l->rows, l->loss,
           l->adds != 0);
}

void cuda_cross_entropy(const CudaCrossEntropy *loss, CudaStream stream)
{
    if (loss->dtype == DTYPE_BF16)
        launch_loss<bf16>(loss, stream);
    else
        launch_loss<float>(loss, stream);
}

/* ---- labels ---- */

static __global__ void __launch_bounds__(SUM_THREADS)
    count_valid(const gint32 *labels, guint64 rows, double *valid, bool adds)
{
    __shared__ double shared[WARP];
    double count = 0;

    for (guint64 row = threadIdx.x; row < rows; row += blockDim.x)
        count += labels[row] != -1;
    count = block_sum(count, shared);
    if (threadIdx.x == 0)
        *valid = (adds ? *valid : 0) + count;
}

void cuda_count_valid(guint64 rows, const gint32 *labels, double *valid, gboolean adds,
                      CudaStream stream)
{
    LAUNCH(count_valid, 1, row_threads(rows, SUM_THREADS), 0, stream, labels, rows, valid,
           adds != 0);
}
