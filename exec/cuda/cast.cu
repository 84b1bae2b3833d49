/* Casts to fp8 e4m3 (Micikevicius et al., arXiv 2209.05433) with the scale of a tensor, and its
 * largest magnitude for the scales to come; a unit's matrices to codes and back, each with its own.
 */
#include "exec/cuda/cuda_common.cuh"

#include "sim/program/op.h"

enum { CAST_THREADS = 256, CAST_BLOCKS = 1 << 12 };

template <typename T> struct CastFp8 {
    guint64 elements;
    const T *src;
    const float *scale;
    unsigned char *dst;
    float *amax;
};

static __device__ __forceinline__ unsigned e4m3_pair(float low, float high)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ void store_fp8(unsigned char *to, const float (&from)[1])
{
    to[0] = __nv_cvt_float_to_fp8(from[0], __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ void store_fp8(unsigned char *to, const float (&from)[WIDE])
{
    *reinterpret_cast<uint2 *>(to) =
        make_uint2(e4m3_pair(from[0], from[1]) | e4m3_pair(from[2], from[3]) << 16,
                   e4m3_pair(from[4], from[5]) | e4m3_pair(from[6], from[7]) << 16);
}

/* Magnitudes compare like the integers of their bits, NaN above all: the maximum depends on no
 * order. */
template <typename T, int VEC>
static __device__ __forceinline__ int cast_at(const CastFp8<T> &c, guint64 at, float scale)
{
    float values[VEC];
    int largest = 0;

    load(values, c.src + at);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        largest = max(largest, __float_as_int(values[i]) & 0x7fffffff);
        values[i] *= scale;
    }
    store_fp8(c.dst + at, values);
    return largest;
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(CAST_THREADS) cast_fp8(CastFp8<T> c)
{
    const guint64 first = (guint64)blockIdx.x * blockDim.x + threadIdx.x;
    const guint64 step = (guint64)gridDim.x * blockDim.x, whole = c.elements / VEC;
    const float scale = *c.scale;
    int largest = 0;

    for (guint64 i = first; i < whole; i += step)
        largest = max(largest, cast_at<T, VEC>(c, i * VEC, scale));
    if (VEC > 1 && first < c.elements % VEC)
        largest = max(largest, cast_at<T, 1>(c, whole * VEC + first, scale));
    for (int other = WARP / 2; other > 0; other /= 2)
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, other));
    if (threadIdx.x % WARP == 0 && c.amax != nullptr)
        atomicMax(reinterpret_cast<int *>(c.amax), largest);
}

template <typename T> static void launch_cast_fp8(const CudaCastFp8 *cast, CudaStream stream)
{
    const CastFp8<T> c = {cast->elements, (const T *)cast->src, cast->scale,
                          (unsigned char *)cast->dst, cast->amax};
    const bool wide = is_wide(0, c.src, c.dst);
    const guint64 items = ceil_div(c.elements, wide ? WIDE : 1);
    const unsigned blocks = (unsigned)least(ceil_div(items, CAST_THREADS), CAST_BLOCKS);

    if (wide)
        LAUNCH((cast_fp8<T, WIDE>), blocks, CAST_THREADS, 0, stream, c);
    else
        LAUNCH((cast_fp8<T, 1>), blocks, CAST_THREADS, 0, stream, c);
}

void cuda_cast_fp8(const CudaCastFp8 *cast, CudaStream stream)
{
    if (cast->dtype == DTYPE_BF16)
        launch_cast_fp8<bf16>(cast, stream);
    else
        launch_cast_fp8<float>(cast, stream);
}

/* ---- a unit's matrices, one launch each ---- */

/* As the CPU's (cpu_fp8.c), bit for bit. */
static __device__ __forceinline__ double amax_of(const float *amax)
{
    return (double)*amax > AMAX_LEAST ? (double)*amax : AMAX_LEAST;
}

template <typename T>
static __global__ void __launch_bounds__(CAST_THREADS)
    find_amax(guint64 elements, const T *src, float *amax)
{
    const guint64 step = (guint64)gridDim.x * blockDim.x;
    int largest = 0;

    for (guint64 i = (guint64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        float value[1];

        load(value, src + i);
        largest = max(largest, __float_as_int(value[0]) & 0x7fffffff);
    }
    for (int other = WARP / 2; other > 0; other /= 2)
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, other));
    if (threadIdx.x % WARP == 0)
        atomicMax(reinterpret_cast<int *>(amax), largest);
}

template <typename T>
static __global__ void __launch_bounds__(CAST_THREADS)
    quantise(guint64 elements, const T *src, const float *amax, unsigned char *dst)
{
    const float scale = (float)(E4M3_MOST / amax_of(amax));
    const guint64 step = (guint64)gridDim.x * blockDim.x;

    for (guint64 i = (guint64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        float value[1];

        load(value, src + i);
        value[0] *= scale;
        store_fp8(dst + i, value);
    }
}

/* Codes 8 to 126 are their exponent's and mantissa's bits, 120 exponents lower; smaller ones count
 * 2^-9. */
static __device__ __forceinline__ float from_e4m3(unsigned code)
{
    const unsigned rest = code & 0x7f;
    const float magnitude = rest == 0x7f ? __uint_as_float(0x7fc00000u)
                            : rest < 8   ? (float)rest * 0x1p-9f
                                         : __uint_as_float((rest << 20) + (120u << 23));

    return __uint_as_float(__float_as_uint(magnitude) | (code & 0x80u) << 24);
}

template <typename T>
static __global__ void __launch_bounds__(CAST_THREADS)
    dequantise(guint64 elements, const unsigned char *src, const float *amax, T *dst)
{
    const float scale = (float)(amax_of(amax) / E4M3_MOST);
    const guint64 step = (guint64)gridDim.x * blockDim.x;

    for (guint64 i = (guint64)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step) {
        const float value[1] = {from_e4m3(src[i]) * scale};

        store(dst + i, value);
    }
}

static unsigned cast_blocks(guint64 elements)
{
    return (unsigned)least(ceil_div(elements, CAST_THREADS), CAST_BLOCKS);
}

void cuda_zero(void *to, gsize bytes, CudaStream stream)
{
    cudaMemsetAsync(to, 0, bytes, stream);
}

void cuda_amax(DType dtype, guint64 elements, const void *src, float *amax, CudaStream stream)
{
    if (elements == 0)
        return;
    if (dtype == DTYPE_BF16)
        LAUNCH((find_amax<bf16>), cast_blocks(elements), CAST_THREADS, 0, stream, elements,
               (const bf16 *)src, amax);
    else
        LAUNCH((find_amax<float>), cast_blocks(elements), CAST_THREADS, 0, stream, elements,
               (const float *)src, amax);
}

void cuda_quantise(DType dtype, guint64 elements, const void *src, const float *amax, void *codes,
                   CudaStream stream)
{
    if (elements == 0)
        return;
    if (dtype == DTYPE_BF16)
        LAUNCH((quantise<bf16>), cast_blocks(elements), CAST_THREADS, 0, stream, elements,
               (const bf16 *)src, amax, (unsigned char *)codes);
    else
        LAUNCH((quantise<float>), cast_blocks(elements), CAST_THREADS, 0, stream, elements,
               (const float *)src, amax, (unsigned char *)codes);
}

void cuda_dequantise(DType dtype, guint64 elements, const void *codes, const float *amax, void *dst,
                     CudaStream stream)
{
    if (elements == 0)
        return;
    if (dtype == DTYPE_BF16)
        LAUNCH((dequantise<bf16>), cast_blocks(elements), CAST_THREADS, 0, stream, elements,
               (const unsigned char *)codes, amax, (bf16 *)dst);
    else
        LAUNCH((dequantise<float>), cast_blocks(elements), CAST_THREADS, 0, stream, elements,
               (const unsigned char *)codes, amax, (float *)dst);
}
