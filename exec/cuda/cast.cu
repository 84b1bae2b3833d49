/* Casts to fp8 e4m3 (Micikevicius et al., arXiv 2209.05433) with the scale of a tensor, and its
 * largest magnitude for the scales to come. */
#include "exec/cuda/cuda_common.cuh"

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
