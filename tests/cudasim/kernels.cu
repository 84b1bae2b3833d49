#include "exec/cuda/cu_port.h"

#include "tests/cudasim/kernels.h"

#define ALL 0xffffffffu

__global__ void fill(float *x, float value, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        x[i] = value;
}

__global__ void axpy(float *y, const float *x, float a, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] += a * x[i];
}

void kernel_fill(float *x, float value, int n, cudaStream_t stream)
{
    LAUNCH(fill, 2, 128, 0, stream, x, value, n);
}

void kernel_axpy(float *y, const float *x, float a, int n, cudaStream_t stream)
{
    LAUNCH(axpy, 2, 128, 0, stream, y, x, a, n);
}

/* ---- right ---- */

static __device__ float warp_sum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ALL, x, offset);
    return x;
}

__global__ void block_sums(float *out, const float *in)
{
    __shared__ float sums[4];
    int t = threadIdx.x;
    float sum = warp_sum(in[blockIdx.x * blockDim.x + t]);

    if (t % 32 == 0)
        sums[t / 32] = sum;
    __syncthreads();
    if (t == 0)
        out[blockIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

template <int N> __global__ void transpose(float *out, const float *in)
{
    SHARED(float, tile, [N][N + 1]);
    int x = threadIdx.x, y = threadIdx.y;

    tile[y][x] = in[y * N + x];
    __syncthreads();
    out[y * N + x] = tile[x][y];
}

static __device__ unsigned bf16_pair(float low, float high)
{
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/* a[i][k] = i + k, b[k][j] = k - j: small integers, which bf16 holds. */
__global__ void product(float *out, const float *)
{
    int lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    float c[4] = {0, 0, 0, 0};
    unsigned a[4], b[2];

    for (int i = 0; i < 4; i++) {
        int row = group + i % 2 * 8, k = pair + i / 2 * 8;
        a[i] = bf16_pair(row + k, row + k + 1);
        if (i < 2)
            b[i] = bf16_pair(pair + i * 8 - group, pair + i * 8 + 1 - group);
    }
    mma_m16n8k16_bf16(c, a, b, c);
    for (int i = 0; i < 4; i++)
        out[(group + i / 2 * 8) * 8 + pair + i % 2] = c[i];
}

__global__ void atomics(float *out, const float *in)
{
    atomicAdd(out, in[blockIdx.x * blockDim.x + threadIdx.x]);
}

__global__ void warp_collectives(float *out, const float *)
{
    int t = threadIdx.x, lane = t % 32;
    bool right = __ballot_sync(ALL, lane % 3 == 0) == 0x49249249u;

    right = right && __any_sync(ALL, lane == 5) && !__all_sync(ALL, lane == 5);
    right = right && __shfl_sync(ALL, lane, 7) == 7;
    right = right && __shfl_sync(ALL, lane, 3, 8) == lane / 8 * 8 + 3;
    right = right && __shfl_up_sync(ALL, lane, 2) == (lane < 2 ? lane : lane - 2);
    right = right && __shfl_down_sync(ALL, lane, 2, 16) == (lane % 16 < 14 ? lane + 2 : lane);
    right = right && __shfl_xor_sync(ALL, (double)lane, 1) == (lane ^ 1);
    out[t] = right ? 1.0f : 0.0f;
}

__global__ void warp_sync(float *out, const float *in)
{
    __shared__ float values[128];
    int t = threadIdx.x;

    values[t] = in[t];
    __syncwarp();
    out[t] = values[t ^ 1];
}

__global__ void bytes(float *out, const float *in)
{
    unsigned char *p = reinterpret_cast<unsigned char *>(out);
    int t = threadIdx.x;

    p[t] = static_cast<unsigned char>(in[t]);
    __syncthreads();
    p[128 + t] = p[127 - t];
}

__global__ void copy(float *out, const float *in)
{
    out[threadIdx.x] = in[threadIdx.x];
}

/* ---- with a bug ---- */

__global__ void read_before_barrier(float *out, const float *in)
{
    __shared__ float sums[4];
    int t = threadIdx.x;
    float sum = warp_sum(in[t]);

    if (t % 32 == 0)
        sums[t / 32] = sum;
    if (t == 0)
        out[0] = sums[0] + sums[1] + sums[2] + sums[3];
}

__global__ void write_before_barrier(float *out, const float *in)
{
    __shared__ float values[128];
    int t = threadIdx.x;
    float sum = 0;

    for (int round = 0; round < 4; round++) {
        values[t] = in[t] + round;
        __syncthreads();
        sum += values[(t + 64) % 128];
    }
    out[t] = sum;
}

__global__ void barrier_in_two_branches(float *out, const float *in)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = in[threadIdx.x];
}

__global__ void barrier_under_if(float *out, const float *in)
{
    if (threadIdx.x < 64) {
        out[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
    } else {
        out[threadIdx.x] = in[threadIdx.x];
        __syncwarp();
    }
}

__global__ void return_before_shuffle(float *out, const float *in)
{
    if (threadIdx.x >= 100)
        return;
    out[threadIdx.x] = warp_sum(in[threadIdx.x]);
}

__global__ void no_warp_sync(float *out, const float *in)
{
    __shared__ float values[128];
    int t = threadIdx.x;

    values[t] = in[t];
    out[t] = values[t ^ 1];
}

__global__ void past_dynamic_shared(float *out, const float *in)
{
    DYN_SHARED(float, values);
    int t = threadIdx.x;

    values[t + 1] = in[t];
    __syncthreads();
    out[t] = values[t];
}

__global__ void past_global(float *out, const float *in)
{
    out[threadIdx.x + 1] = in[threadIdx.x];
}

__global__ void uninitialised_shared(float *out, const float *in)
{
    __shared__ float values[128];
    int t = threadIdx.x;

    if (t < 127)
        values[t] = in[t];
    __syncthreads();
    out[t] = values[127 - t];
}

__global__ void blocks_write_one_address(float *out, const float *in)
{
    out[threadIdx.x] = in[threadIdx.x] + blockIdx.x;
}

__global__ void misaligned_vector(float *out, const float *in)
{
    float4 v = *reinterpret_cast<const float4 *>(in + 1);

    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

__global__ void endless_wait(float *out, const float *in)
{
    if (threadIdx.x % 32 < 16)
        __syncthreads();
    else
        __syncwarp();
    out[threadIdx.x] = in[threadIdx.x];
}

void kernel_run(Kernel kernel, float *out, const float *in, cudaStream_t stream)
{
    static void (*const kernels[KERNELS])(float *, const float *) = {block_sums,
                                                                     transpose<32>,
                                                                     product,
                                                                     atomics,
                                                                     warp_collectives,
                                                                     warp_sync,
                                                                     bytes,
                                                                     read_before_barrier,
                                                                     write_before_barrier,
                                                                     barrier_in_two_branches,
                                                                     barrier_under_if,
                                                                     return_before_shuffle,
                                                                     no_warp_sync,
                                                                     past_dynamic_shared,
                                                                     past_global,
                                                                     uninitialised_shared,
                                                                     blocks_write_one_address,
                                                                     misaligned_vector,
                                                                     copy,
                                                                     endless_wait,
                                                                     copy};
    bool twice = kernel == RIGHT_BLOCK_SUMS || kernel == RIGHT_ATOMICS ||
                 kernel == BUG_BLOCKS_WRITE_ONE_ADDRESS;
    dim3 threads = kernel == RIGHT_TRANSPOSE ? dim3(32, 32) : kernel == RIGHT_MMA ? 32 : 128;
    size_t shared_bytes = kernel == BUG_PAST_DYNAMIC_SHARED ? 128 * sizeof(float)
                          : kernel == BUG_TOO_MUCH_SHARED   ? 60 << 10
                                                            : 0;

    LAUNCH(kernels[kernel], twice ? 2 : 1, threads, shared_bytes, stream, out, in);
}
