/* RMS norm and layer norm.  x, y (N, C), weight, bias (C).
 *
 *     RMS     x^ = x rstd             rstd = 1 / sqrt(mean_c x^2 + eps)
 *     layer   x^ = (x - mean) rstd    rstd = 1 / sqrt(mean_c (x - mean)^2 + eps)
 *     y = x^ w (+ b)
 *
 *     g = dy w    dx = rstd (g - mean_c g - x^ mean_c(g x^))    mean_c g: layer norm only
 *     dw = sum_n dy x^    db = sum_n dy
 *
 * One block a row; it reads the row again, from its cache, for every pass after the first.  Sums
 * are fp32.  In the backward pass block p takes rows p, p + P, ... and keeps its sums of dw and db
 * in shared memory, or in the scratch itself where they don't fit; columns.cuh adds the P. */
#include "exec/cuda/columns.cuh"
#include "exec/cuda/cuda_common.cuh"

enum { NORM_THREADS = 256, SHARED_BYTES = 96 << 10 /* two blocks an SM of sm_80 */ };

template <typename T> struct Norm {
    guint64 columns;
    float eps;
    const T *x, *added; /* x: with added, where sum is read again */
    T *sum;
    const T *base, *weight, *bias;
    T *y;
    float *stats;
};

/* First pass over a row: sum = base + added, which is x from then on; sum of x, or of x^2. */
template <typename T, int VEC, bool LAYER>
static __device__ __forceinline__ float first_sum(const Norm<T> &n, guint64 row)
{
    float sum = 0;

    for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC) {
        const guint64 at = row * n.columns + c;
        float x[VEC];

        if (n.added != nullptr) {
            float added[VEC];

            load(x, n.base + at);
            load(added, n.added + at);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                x[i] += added[i];
            store(n.sum + at, x);
        }
        load(x, n.x + at);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum += LAYER ? x[i] : x[i] * x[i];
    }
    return sum;
}

template <typename T, int VEC>
static __device__ __forceinline__ float squared_distance(const Norm<T> &n, guint64 row, float mean)
{
    float sum = 0;

    for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC) {
        float x[VEC];

        load(x, n.x + row * n.columns + c);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum += (x[i] - mean) * (x[i] - mean);
    }
    return sum;
}

template <typename T, int VEC, bool LAYER>
static __device__ __forceinline__ void write_row(const Norm<T> &n, guint64 row, float mean,
                                                 float rstd)
{
    for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC) {
        const guint64 at = row * n.columns + c;
        float x[VEC], w[VEC], b[VEC] = {};

        load(x, n.x + at);
        load(w, n.weight + c);
        if (LAYER)
            load(b, n.bias + c);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            x[i] = (x[i] - mean) * rstd * w[i] + b[i];
        store(n.y + at, x);
    }
}

template <typename T, int VEC, bool LAYER>
static __global__ void __launch_bounds__(NORM_THREADS) norm_forward(Norm<T> n)
{
    SHARED(float, shared, [WARP]);
    const guint64 row = blockIdx.x;
    const float columns = (float)n.columns;
    float sum = block_sum(first_sum<T, VEC, LAYER>(n, row), shared);
    const float mean = LAYER ? sum / columns : 0;

    if (LAYER)
        sum = block_sum(squared_distance<T, VEC>(n, row, mean), shared);
    const float rstd = 1 / sqrtf(sum / columns + n.eps);

    if (threadIdx.x == 0 && LAYER)
        n.stats[2 * row] = mean;
    if (threadIdx.x == 0)
        n.stats[LAYER ? 2 * row + 1 : row] = rstd;
    write_row<T, VEC, LAYER>(n, row, mean, rstd);
}

template <typename T, int VEC, bool LAYER>
static __global__ void __launch_bounds__(NORM_THREADS) norm_apply(Norm<T> n)
{
    const guint64 row = blockIdx.x;

    write_row<T, VEC, LAYER>(n, row, LAYER ? n.stats[2 * row] : 0,
                             n.stats[LAYER ? 2 * row + 1 : row]);
}

template <typename T, bool LAYER>
static void launch_norm(const CudaNorm *norm, bool again, CudaStream stream)
{
    const Norm<T> n = {norm->columns,
                       norm->eps,
                       (const T *)(norm->added != nullptr ? norm->sum : norm->x),
                       (const T *)norm->added,
                       (T *)norm->sum,
                       (const T *)norm->x,
                       (const T *)norm->weight,
                       (const T *)norm->bias,
                       (T *)norm->y,
                       norm->stats};
    const bool wide = is_wide(n.columns, n.x, n.added, n.base, n.weight, n.bias, n.y);
    const unsigned threads = row_threads(n.columns / (wide ? WIDE : 1), NORM_THREADS);
    const unsigned rows = (unsigned)norm->rows;

    if (wide && again)
        LAUNCH((norm_apply<T, WIDE, LAYER>), rows, threads, 0, stream, n);
    else if (wide)
        LAUNCH((norm_forward<T, WIDE, LAYER>), rows, threads, 0, stream, n);
    else if (again)
        LAUNCH((norm_apply<T, 1, LAYER>), rows, threads, 0, stream, n);
    else
        LAUNCH((norm_forward<T, 1, LAYER>), rows, threads, 0, stream, n);
}

template <bool LAYER> static void norm_any(const CudaNorm *norm, bool again, CudaStream stream)
{
    if (norm->dtype == DTYPE_BF16)
        launch_norm<bf16, LAYER>(norm, again, stream);
    else
        launch_norm<float, LAYER>(norm, again, stream);
}

void cuda_rmsnorm(const CudaNorm *norm, CudaStream stream)
{
    norm_any<false>(norm, false, stream);
}

void cuda_rmsnorm_apply(const CudaNorm *norm, CudaStream stream)
{
    norm_any<false>(norm, true, stream);
}

void cuda_layernorm(const CudaNorm *norm, CudaStream stream)
{
    norm_any<true>(norm, false, stream);
}

void cuda_layernorm_apply(const CudaNorm *norm, CudaStream stream)
{
    norm_any<true>(norm, true, stream);
}

/* ---- backward ---- */

template <typename T> struct NormBackward {
    guint64 rows, columns;
    const T *dy, *x, *weight;
    const float *stats;
    T *dx;
    bool adds_dx, shared_sums;
    float *partials; /* (P, C), or (P, 2, C): dw, db */
};

/* sum_c g and sum_c g x^ */
template <typename T, int VEC>
static __device__ __forceinline__ float2 projections(const NormBackward<T> &n, guint64 row,
                                                     float mean, float rstd)
{
    float2 sum = make_float2(0, 0);

    for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC) {
        float dy[VEC], x[VEC], w[VEC];

        load(dy, n.dy + row * n.columns + c);
        load(x, n.x + row * n.columns + c);
        load(w, n.weight + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            sum.x += dy[i] * w[i];
            sum.y += dy[i] * w[i] * ((x[i] - mean) * rstd);
        }
    }
    return sum;
}

template <int N> static __device__ __forceinline__ void add_to(float *sums, const float (&terms)[N])
{
    put(sums, terms, true);
}

/* dx of a row; each thread adds to the sums of its own columns. */
template <typename T, int VEC, bool LAYER>
static __device__ __forceinline__ void backward_row(const NormBackward<T> &n, guint64 row,
                                                    float *sums, float *shared)
{
    const float mean = LAYER ? n.stats[2 * row] : 0;
    const float rstd = n.stats[LAYER ? 2 * row + 1 : row];
    const float2 own = projections<T, VEC>(n, row, mean, rstd);
    const float mean_g = LAYER ? block_sum(own.x, shared) / (float)n.columns : 0;
    const float mean_gx = block_sum(own.y, shared) / (float)n.columns;

    for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC) {
        const guint64 at = row * n.columns + c;
        float dy[VEC], x[VEC], w[VEC];

        load(dy, n.dy + at);
        load(x, n.x + at);
        load(w, n.weight + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            x[i] = (x[i] - mean) * rstd;
            w[i] = rstd * (dy[i] * w[i] - mean_g - x[i] * mean_gx);
            x[i] *= dy[i];
        }
        put(n.dx + at, w, n.adds_dx);
        add_to(sums + c, x);
        if (LAYER)
            add_to(sums + n.columns + c, dy);
    }
}

template <typename T, int VEC, bool LAYER>
static __global__ void __launch_bounds__(NORM_THREADS) norm_backward(NormBackward<T> n)
{
    DYN_SHARED(float, dynamic);
    SHARED(float, shared, [WARP]);
    const guint64 width = n.columns * (LAYER ? 2 : 1);
    float *partials = n.partials + blockIdx.x * width;
    float *sums = n.shared_sums ? dynamic : partials;
    const float zeros[VEC] = {};
    float values[VEC];

    for (guint64 part = 0; part < width; part += n.columns)
        for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC)
            store(sums + part + c, zeros);
    for (guint64 row = blockIdx.x; row < n.rows; row += gridDim.x)
        backward_row<T, VEC, LAYER>(n, row, sums, shared);
    if (!n.shared_sums)
        return;
    for (guint64 part = 0; part < width; part += n.columns)
        for (guint64 c = threadIdx.x * VEC; c < n.columns; c += blockDim.x * VEC) {
            load(values, sums + part + c);
            store(partials + part + c, values);
        }
}

/* Sums of dw and db are in shared memory where a block may have that much. */
template <typename T, int VEC, bool LAYER>
static void launch_backward(const NormBackward<T> &n, unsigned blocks, CudaStream stream)
{
    const gsize bytes = n.shared_sums ? n.columns * (LAYER ? 2 : 1) * sizeof(float) : 0;
    const unsigned threads = row_threads(n.columns / VEC, NORM_THREADS);

    cudaFuncSetAttribute(norm_backward<T, VEC, LAYER>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         SHARED_BYTES);
    LAUNCH((norm_backward<T, VEC, LAYER>), blocks, threads, bytes, stream, n);
}

template <typename T, bool LAYER>
static void backward_of(const CudaNormBackward *norm, CudaStream stream)
{
    const unsigned blocks = (unsigned)least(norm->rows, CUDA_NORM_PARTIALS);
    const guint64 width = norm->columns * (LAYER ? 2 : 1);
    const NormBackward<T> n = {
        norm->rows,         norm->columns,           (const T *)norm->dy,
        (const T *)norm->x, (const T *)norm->weight, norm->stats,
        (T *)norm->dx,      norm->adds_dx != 0,      width * sizeof(float) <= SHARED_BYTES,
        norm->scratch};
    PartialSums sums = {norm->dtype_out, blocks,        norm->columns, width,
                        norm->scratch,   norm->dweight, norm->adds_dw};

    if (is_wide(n.columns, n.dy, n.x, n.weight, n.dx, n.partials))
        launch_backward<T, WIDE, LAYER>(n, blocks, stream);
    else
        launch_backward<T, 1, LAYER>(n, blocks, stream);
    sum_partials(&sums, stream);
    if (!LAYER)
        return;
    sums.partials += norm->columns;
    sums.to = norm->dbias;
    sums.adds = norm->adds_db;
    sum_partials(&sums, stream);
}

template <bool LAYER> static void backward_any(const CudaNormBackward *norm, CudaStream stream)
{
    if (norm->dtype == DTYPE_BF16)
        backward_of<bf16, LAYER>(norm, stream);
    else
        backward_of<float, LAYER>(norm, stream);
}

void cuda_rmsnorm_backward(const CudaNormBackward *norm, CudaStream stream)
{
    backward_any<false>(norm, stream);
}

void cuda_layernorm_backward(const CudaNormBackward *norm, CudaStream stream)
{
    backward_any<true>(norm, stream);
}
