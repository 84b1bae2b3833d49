/* What most kernels need: storage as fp32, reductions, sizes of grids. */
#pragma once

#include "exec/cuda/cu_port.h"
#include "exec/cuda/cuda_kernels.h"

typedef __nv_bfloat16 bf16;

enum { WARP = 32, WIDE = 8 }; /* WIDE: elements that aligned accesses take at a time */

static const unsigned ALL_LANES = 0xffffffffu;

/* ---- storage: N consecutive elements as fp32, 16 bytes at a time where N is WIDE ---- */

static __device__ __forceinline__ void load(float (&to)[1], const float *from)
{
    to[0] = from[0];
}

static __device__ __forceinline__ void load(float (&to)[1], const bf16 *from)
{
    to[0] = __bfloat162float(from[0]);
}

static __device__ __forceinline__ void load(float (&to)[WIDE], const float *from)
{
    const float4 low = reinterpret_cast<const float4 *>(from)[0];
    const float4 high = reinterpret_cast<const float4 *>(from)[1];

    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/* bf16 is the upper half of an fp32. */
static __device__ __forceinline__ void widen(float *to, unsigned pair)
{
    to[0] = __uint_as_float(pair << 16);
    to[1] = __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ unsigned narrow(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<const unsigned *>(&pair);
}

static __device__ __forceinline__ void load(float (&to)[WIDE], const bf16 *from)
{
    const uint4 packed = *reinterpret_cast<const uint4 *>(from);

    widen(to, packed.x);
    widen(to + 2, packed.y);
    widen(to + 4, packed.z);
    widen(to + 6, packed.w);
}

static __device__ __forceinline__ void store(float *to, const float (&from)[1])
{
    to[0] = from[0];
}

static __device__ __forceinline__ void store(bf16 *to, const float (&from)[1])
{
    to[0] = __float2bfloat16_rn(from[0]);
}

static __device__ __forceinline__ void store(float *to, const float (&from)[WIDE])
{
    reinterpret_cast<float4 *>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
}

static __device__ __forceinline__ void store(bf16 *to, const float (&from)[WIDE])
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(narrow(from[0], from[1]), narrow(from[2], from[3]),
                                                narrow(from[4], from[5]), narrow(from[6], from[7]));
}

/* to = from, or to += from; the sum is taken in fp32. */
template <typename T, int N>
static __device__ __forceinline__ void put(T *to, const float (&from)[N], bool adds)
{
    float sum[N];

    if (!adds) {
        store(to, from);
        return;
    }
    load(sum, to);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] += from[i];
    store(to, sum);
}

/* Whether rows of @columns elements at these places can be accessed WIDE elements at a time. */
template <typename... P> static inline bool is_wide(guint64 columns, const P *...pointers)
{
    const gsize places = (... | reinterpret_cast<gsize>(pointers));

    return columns % WIDE == 0 && places % 16 == 0;
}

/* ---- reductions; all threads of a warp or block take part, and all get the result ---- */

static __device__ __forceinline__ float warp_sum(float value)
{
    for (int other = WARP / 2; other > 0; other /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, other);
    return value;
}

static __device__ __forceinline__ double warp_sum(double value)
{
    for (int other = WARP / 2; other > 0; other /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, other);
    return value;
}

static __device__ __forceinline__ float warp_max(float value)
{
    for (int other = WARP / 2; other > 0; other /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, other));
    return value;
}

/* @shared has a place for each warp and is free again afterwards. */
template <typename T> static __device__ __forceinline__ T block_sum(T value, T *shared)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned warps = blockDim.x / WARP;

    value = warp_sum(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    value = warp_sum(lane < warps ? shared[lane] : T(0));
    __syncthreads();
    return value;
}

/* ---- grids ---- */

static inline guint64 least(guint64 a, guint64 b)
{
    return a < b ? a : b;
}

static inline guint64 ceil_div(guint64 a, guint64 b)
{
    return (a + b - 1) / b;
}

/* Threads for a row of @items: whole warps, at most @most. */
static inline unsigned row_threads(guint64 items, unsigned most)
{
    return (unsigned)least(ceil_div(items, WARP) * WARP, most);
}
