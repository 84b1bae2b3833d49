/* Small kernels for the simulator's own tests: some right, some with one bug each. */
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x = value; y += a x.  n elements. */
void kernel_fill(float *x, float value, int n, cudaStream_t stream);
void kernel_axpy(float *y, const float *x, float a, int n, cudaStream_t stream);

/* A writes one of its kernels: out of in, by blocks of 128 threads (but for the transpose). */
typedef enum {
    RIGHT_BLOCK_SUMS,       /* out[block] = sum of the block's 128 elements; 2 blocks */
    RIGHT_TRANSPOSE,        /* of 32 x 32, by SHARED in a template */
    RIGHT_MMA,              /* out (16, 8) = a b of bf16, a (16, 16) and b (16, 8) made of lanes */
    RIGHT_ATOMICS,          /* out[0] = sum of in, added by all threads of 2 blocks */
    RIGHT_WARP_COLLECTIVES, /* votes and shuffles against what they should give; out = 1 */
    RIGHT_WARP_SYNC,        /* lanes of a warp meet in shared memory */
    RIGHT_BYTES,            /* neighbouring bytes by neighbouring threads */
    BUG_READ_BEFORE_BARRIER,
    BUG_WRITE_BEFORE_BARRIER,
    BUG_BARRIER_IN_TWO_BRANCHES,
    BUG_BARRIER_UNDER_IF,
    BUG_RETURN_BEFORE_SHUFFLE,
    BUG_NO_WARP_SYNC, /* the same without __syncwarp */
    BUG_PAST_DYNAMIC_SHARED,
    BUG_PAST_GLOBAL, /* by one element */
    BUG_UNINITIALISED_SHARED,
    BUG_BLOCKS_WRITE_ONE_ADDRESS,
    BUG_MISALIGNED_VECTOR,
    BUG_TOO_MUCH_SHARED, /* over 48 KiB without the attribute */
    BUG_ENDLESS_WAIT,    /* half of a warp waits for the other half, which is at a barrier */
    RIGHT_COPY,          /* given host memory, or memory nobody wrote or that was freed: a bug */
    KERNELS
} Kernel;
void kernel_run(Kernel kernel, float *out, const float *in, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
