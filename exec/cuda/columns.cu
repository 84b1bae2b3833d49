/* Sums down columns: the gradient of a bias, and the last step of norms' gradients.
 *
 *     db (O) = sum_n dy (N, O)
 *
 * A block is 32 lanes by 8 warps: a lane has its columns, a warp takes every eighth row of the
 * block's share, and the eight are added in order. */
#include "exec/cuda/columns.cuh"

#include "exec/cuda/cuda_common.cuh"

enum { SUM_WARPS = 8 };

/* The sums of all warps, which the first one gets. */
template <int VEC>
static __device__ __forceinline__ void add_warps(float (&sum)[VEC], float (*shared)[WARP * VEC])
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        shared[threadIdx.y][i * WARP + threadIdx.x] = sum[i];
    __syncthreads();
    for (int warp = 1; warp < SUM_WARPS && threadIdx.y == 0; warp++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum[i] += shared[warp][i * WARP + threadIdx.x];
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(WARP *SUM_WARPS)
    column_sums(const T *dy, float *partials, guint64 rows, guint64 columns)
{
    SHARED(float, shared, [SUM_WARPS][WARP * VEC]);
    const guint64 c = ((guint64)blockIdx.x * WARP + threadIdx.x) * VEC;
    const guint64 end = (blockIdx.y + 1) * rows / gridDim.y;
    float sum[VEC] = {}, values[VEC];

    for (guint64 row = blockIdx.y * rows / gridDim.y + threadIdx.y; row < end && c < columns;
         row += SUM_WARPS) {
        load(values, dy + row * columns + c);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum[i] += values[i];
    }
    add_warps(sum, shared);
    if (threadIdx.y == 0 && c < columns)
        store(partials + blockIdx.y * columns + c, sum);
}

template <typename T>
static __global__ void __launch_bounds__(WARP *SUM_WARPS)
    add_partials(const float *partials, guint64 parts, guint64 stride, guint64 columns, T *to,
                 bool adds)
{
    SHARED(float, shared, [SUM_WARPS][WARP]);
    const guint64 c = (guint64)blockIdx.x * WARP + threadIdx.x;
    float sum[1] = {};

    for (guint64 part = threadIdx.y; part < parts && c < columns; part += SUM_WARPS)
        sum[0] += partials[part * stride + c];
    add_warps(sum, shared);
    if (threadIdx.y == 0 && c < columns)
        put(to + c, sum, adds);
}

void sum_partials(const PartialSums *s, struct CUstream_st *stream)
{
    const unsigned blocks = (unsigned)ceil_div(s->columns, WARP);
    const dim3 block(WARP, SUM_WARPS);

    if (s->dtype == DTYPE_BF16)
        LAUNCH((add_partials<bf16>), blocks, block, 0, stream, s->partials, s->parts, s->stride,
               s->columns, (bf16 *)s->to, s->adds != 0);
    else
        LAUNCH((add_partials<float>), blocks, block, 0, stream, s->partials, s->parts, s->stride,
               s->columns, (float *)s->to, s->adds != 0);
}

template <typename T> static guint64 launch_columns(const CudaBiasBackward *b, CudaStream stream)
{
    const guint64 parts = least(ceil_div(b->rows, SUM_WARPS), CUDA_BIAS_PARTIALS);
    const dim3 block(WARP, SUM_WARPS);
    const T *dy = (const T *)b->dy;

    if (is_wide(b->columns, dy, b->scratch))
        LAUNCH((column_sums<T, WIDE>),
               dim3((unsigned)ceil_div(b->columns, WARP * WIDE), (unsigned)parts), block, 0, stream,
               dy, b->scratch, b->rows, b->columns);
    else
        LAUNCH((column_sums<T, 1>), dim3((unsigned)ceil_div(b->columns, WARP), (unsigned)parts),
               block, 0, stream, dy, b->scratch, b->rows, b->columns);
    return parts;
}

void cuda_bias_backward(const CudaBiasBackward *bias, CudaStream stream)
{
    const guint64 parts = bias->dtype == DTYPE_BF16 ? launch_columns<bf16>(bias, stream)
                                                    : launch_columns<float>(bias, stream);
    const PartialSums sums = {bias->dtype_out, parts,    bias->columns, bias->columns,
                              bias->scratch,   bias->db, bias->adds};

    sum_partials(&sums, stream);
}
