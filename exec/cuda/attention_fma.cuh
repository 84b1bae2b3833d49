/* Products of tiles by plain multiply-adds in fp32: any storage, heads of any even number of
 * columns up to MAX_DIM.
 *
 * 16 x 16 threads on tiles of 32 x 32: a thread has two rows, and of a result every sixteenth group
 * of 4 columns.  Shared tiles are rows of fp32, zeros behind the last column; four floats of
 * padding put the rows that neighbours read into different banks. */
#pragma once

#include "exec/cuda/attention.cuh"

template <typename T, int MAX_DIM> struct FmaTiles {
    typedef T Storage;
    typedef float Element;
    enum {
        THREADS = 256,
        ROWS = CUDA_ATTENTION_TILE,
        COLUMNS = CUDA_ATTENTION_TILE,
        STAGES = 1,
        HOLDS_TWO = 1,
        R = 2,
        C = 2,
        A = MAX_DIM / 16,
        STRIDE = MAX_DIM + 4,
        ROW_TILE = ROWS * STRIDE,       /* elements of a shared tile */
        COLUMN_TILE = COLUMNS * STRIDE, /* the same */
        P_STRIDE = COLUMNS + 1,
        SCRATCH = ROWS * P_STRIDE + 4 - ROWS * P_STRIDE % 4, /* floats: a tile of scores */
        MOST_BYTES = 163 << 10, /* what sm_80 has for a block; up to 128 columns sm_86 has enough */
    };
    typedef float Scores[R][C];
    typedef float Results[R][A];

    static __device__ __forceinline__ unsigned row(int i)
    {
        return threadIdx.x / 16 * 2 + i;
    }

    static __device__ __forceinline__ unsigned column(int j)
    {
        return threadIdx.x % 16 + 16 * j;
    }

    static __device__ __forceinline__ unsigned result_column(int j)
    {
        return threadIdx.x % 16 * 4 + j / 4 * 64 + j % 4;
    }

    template <int TILE_ROWS>
    static __device__ __forceinline__ void load_tile(float *to, const T *from, guint64 stride,
                                                     unsigned rows, unsigned dim)
    {
        for (unsigned i = threadIdx.x; i < TILE_ROWS * MAX_DIM / WIDE; i += THREADS) {
            const unsigned r = i / (MAX_DIM / WIDE), c = i % (MAX_DIM / WIDE) * WIDE;
            float values[WIDE] = {};

            if (r < rows)
                load_head(values, from + r * stride, c, dim);
            store(to + r * STRIDE + c, values);
        }
    }

    static __device__ __forceinline__ float dot(float4 a, float4 b)
    {
        return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }

    static __device__ __forceinline__ void product(Scores &s, const float *a, const float *b,
                                                   unsigned dim)
    {
        s[0][0] = s[0][1] = s[1][0] = s[1][1] = 0;
        for (unsigned d = 0; d < dim; d += 4) {
            float4 va[R], vb[C];

#pragma unroll
            for (int i = 0; i < R; i++)
                va[i] = *reinterpret_cast<const float4 *>(a + row(i) * STRIDE + d);
#pragma unroll
            for (int j = 0; j < C; j++)
                vb[j] = *reinterpret_cast<const float4 *>(b + column(j) * STRIDE + d);
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < C; j++)
                    s[i][j] += dot(va[i], vb[j]);
        }
    }

    /* The scores of a row go through @scratch to the 16 lanes that share it. */
    static __device__ __forceinline__ void accumulate(Results &results, const Scores &p,
                                                      const float *b, float *scratch)
    {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                scratch[row(i) * P_STRIDE + column(j)] = p[i][j];
        __syncwarp();
        for (unsigned k = 0; k < COLUMNS; k++)
#pragma unroll
            for (int j = 0; j < A; j += 4) {
                const float4 value =
                    *reinterpret_cast<const float4 *>(b + k * STRIDE + result_column(j));
#pragma unroll
                for (int i = 0; i < R; i++) {
                    const float factor = scratch[row(i) * P_STRIDE + k];

                    results[i][j] += factor * value.x;
                    results[i][j + 1] += factor * value.y;
                    results[i][j + 2] += factor * value.z;
                    results[i][j + 3] += factor * value.w;
                }
            }
        __syncwarp();
    }

    /* Over all columns of a row, which 16 lanes have. */
    static __device__ __forceinline__ float row_sum(float value)
    {
        for (int other = 8; other > 0; other /= 2)
            value += __shfl_xor_sync(ALL_LANES, value, other);
        return value;
    }

    static __device__ __forceinline__ float row_max(float value)
    {
        for (int other = 8; other > 0; other /= 2)
            value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, other));
        return value;
    }
};
