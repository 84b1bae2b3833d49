/* Block sizes of the CUDA kernels that need scratch.  The kernels and op_workspace_bytes() read the
 * same numbers, so that the bound in a plan is what runs. */
#pragma once

enum {
    CUDA_NORM_PARTIALS = 256,          /* sums of a norm's weight gradient */
    CUDA_BIAS_PARTIALS = 64,           /* sums of a bias' gradient */
    CUDA_SQUARED_NORM_PARTIALS = 1024, /* sums of squares of a unit: 8 KiB that the device keeps */
    CUDA_ATTENTION_TILE = 32,          /* queries or keys of the smallest tile */
    CUDA_ATTENTION_MOST_DIM = 256,     /* columns of a head, an even number */
    /* What cuBLASLt is given as its limit: NVIDIA recommends 32 MiB for Hopper and later. */
    CUDA_GEMM_WORKSPACE_BYTES = 32 << 20,
    CUDA_LIBRARY_ALIGNMENT = 256, /* of each part of cuDNN's scratch, and its counters, bytes */
    CUDA_LIBRARY_SEQ = 8,         /* sequences in its workspace are a multiple of this */
};
