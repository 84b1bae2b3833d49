/* The subset of CUDA C++ that the project's kernels use, for a C++17 compiler of the host. NVIDIA's
 * own headers give the types, the conversions of bf16 and fp8, and the prototypes of the API. */
#pragma once

#include "tests/cudasim/thread.h"
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <tuple>
#include <utility>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)

/* Blocks run one after another, so static does; the section is poisoned before each block.  g++
 * loses the section of a static in a template: SHARED is for those. */
#define __shared__ static __attribute__((section("cudasim_shared")))
#define SHARED(T, name, ...)                                                                       \
    static char cs_tag_##name;                                                                     \
    typedef T cs_type_##name __VA_ARGS__;                                                          \
    cs_type_##name &name =                                                                         \
        *static_cast<cs_type_##name *>(cs_static_shared(&cs_tag_##name, sizeof(cs_type_##name)))
#define DYN_SHARED(T, name) T *name = static_cast<T *>(cs_dynamic_shared())

#define threadIdx (cs_thread->position)
#define blockIdx  (cs_block.position)
#define blockDim  (cs_block.threads)
#define gridDim   (cs_block.blocks)
#define warpSize  32

/* Functions of this header are no accesses of the kernel's, unless they note them. */
#define CS_FUNCTION static inline __attribute__((no_sanitize("thread")))
#define CS_PLACE    const char *file = __builtin_FILE(), int line = __builtin_LINE()

#include "tests/cudasim/device_math.cuh"
#include "tests/cudasim/device_warp.cuh"

/* ---- overloads of cuda_runtime.h ---- */

#ifndef __CUDA_RUNTIME_H__
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(p), bytes);
}
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes, unsigned = 0)
{
    return cudaMallocHost(reinterpret_cast<void **>(p), bytes);
}
template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute what,
                                               int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), what, value);
}
#endif

/* ---- launch ---- */

/* Arguments become the parameters' types and are captured by value, as <<<>>> does. */
template <class... P> struct CsArguments {
    void (*kernel)(P...);
    std::tuple<P...> values;

    static void call(void *self)
    {
        auto *arguments = static_cast<CsArguments *>(self);
        std::apply(arguments->kernel, arguments->values);
    }
    static void *copy(const void *self)
    {
        return new CsArguments(*static_cast<const CsArguments *>(self));
    }
    static void drop(void *self)
    {
        delete static_cast<CsArguments *>(self);
    }
};

template <class... P, class... A>
static inline void cs_launch_kernel(const char *name, void (*kernel)(P...), dim3 blocks,
                                    dim3 threads, size_t shared_bytes, cudaStream_t stream,
                                    A &&...values)
{
    using Arguments = CsArguments<P...>;
    static_assert(sizeof...(P) == sizeof...(A), "wrong number of kernel arguments");
    static_assert(sizeof(std::tuple<P...>) <= 4096, "over 4 KB of kernel parameters");

    auto *arguments = new Arguments{kernel, std::tuple<P...>(static_cast<P>(values)...)};
    cs_launch({name, reinterpret_cast<const void *>(kernel), Arguments::call, Arguments::copy,
               Arguments::drop, arguments, blocks, threads, shared_bytes},
              stream);
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    cs_launch_kernel(#kernel, kernel, (grid), (block), (shared_bytes), (stream), __VA_ARGS__)
