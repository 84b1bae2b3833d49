/* What every .cu file includes first.  nvcc compiles the kernels for a GPU; a C++ compiler with
 * -DCUDASIM compiles the same files for the simulated device of the tests.  Three constructs differ
 * from plain CUDA C++ for that: LAUNCH for <<<>>>, DYN_SHARED for extern __shared__, and SHARED for
 * __shared__ inside templates. */
#pragma once

#ifdef CUDASIM
#include "tests/cudasim/device.cuh"
#else
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

/* A kernel with commas in its template arguments goes in parentheses: LAUNCH((k<float, 4>), ...).
 */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)

/* Dynamic shared memory of the launch as `T *name`, aligned to 16 bytes. */
#define DYN_SHARED(T, name)                                                                        \
    extern __shared__ __align__(16) unsigned char cu_dynamic_shared_[];                            \
    T *name = reinterpret_cast<T *>(cu_dynamic_shared_)

/* Static shared memory: SHARED(float, tile, [32][33]). */
#define SHARED(T, name, ...) __shared__ T name __VA_ARGS__
#endif

/* d = a * b + c on one tile of 16 x 8, with a of 16 x 16 and b of 16 x 8, by all lanes of a warp.
 * Registers hold the tiles as PTX says of mma.m16n8k16; bf16 products, summed in float. */
static __device__ __forceinline__ void mma_m16n8k16_bf16(float d[4], const unsigned a[4],
                                                         const unsigned b[2], const float c[4])
{
#ifdef CUDASIM
    cs_mma_m16n8k16_bf16(d, a, b, c);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]),
                   "f"(c[1]), "f"(c[2]), "f"(c[3]));
#endif
}
