/* Products of tiles by tensor cores: bf16, fp32 sums, heads of at most HEAD_DIM (a multiple of 64)
 * columns, themselves a multiple of 8; those behind the last are zeros.
 *
 * 4 warps, each with 16 * M_TILES rows of the block's tile.  Shared tiles are rows of HEAD_DIM bf16
 * in chunks of 16 bytes; chunk c of row r lies at place c ^ (r % 8), so that the eight rows that
 * ldmatrix reads at a time lie in different banks. */
#pragma once

#include "exec/cuda/attention.cuh"

/* Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8 by its address (16 bytes).  In
 * matrix m, lane l gets elements 2 (l % 4) and the next of row l / 4, in register m. */
static __device__ __forceinline__ void load_matrices(unsigned (&to)[4], const bf16 *row)
{
#ifdef CUDASIM
    const int lane = threadIdx.x % WARP;

    for (int m = 0; m < 4; m++) {
        const guint64 at = __shfl_sync(ALL_LANES, reinterpret_cast<guint64>(row), 8 * m + lane / 4);

        to[m] = reinterpret_cast<const unsigned *>(at)[lane % 4];
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#endif
}

/* The same matrices, transposed: rows 2 (l % 4) and the next of column l / 4. */
static __device__ __forceinline__ void load_transposed(unsigned (&to)[4], const bf16 *row)
{
#ifdef CUDASIM
    const int lane = threadIdx.x % WARP;

    for (int m = 0; m < 4; m++) {
        unsigned pair = 0;

        for (int half = 0; half < 2; half++) {
            const guint64 at =
                __shfl_sync(ALL_LANES, reinterpret_cast<guint64>(row), 8 * m + lane % 4 * 2 + half);
            pair |= (unsigned)reinterpret_cast<const unsigned short *>(at)[lane / 4] << 16 * half;
        }
        to[m] = pair;
    }
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#endif
}

/* Adds a product to tile (m, n) of a matrix of which a thread has rows 2m, 2m + 1 and columns 2n,
 * 2n + 1. */
template <int R, int C>
static __device__ __forceinline__ void mma_tile(float (&sum)[R][C], int m, int n,
                                                const unsigned (&a)[4], const unsigned *b)
{
    float d[4] = {sum[2 * m][2 * n], sum[2 * m][2 * n + 1], sum[2 * m + 1][2 * n],
                  sum[2 * m + 1][2 * n + 1]};

    mma_m16n8k16_bf16(d, a, b, d);
    sum[2 * m][2 * n] = d[0], sum[2 * m][2 * n + 1] = d[1];
    sum[2 * m + 1][2 * n] = d[2], sum[2 * m + 1][2 * n + 1] = d[3];
}

template <int HEAD_DIM, int M_TILES, int N_TILES, int NUM_STAGES = 2> struct MmaTiles {
    typedef bf16 Storage, Element;
    enum {
        THREADS = 128,
        ROWS = THREADS / WARP * 16 * M_TILES,
        COLUMNS = 8 * N_TILES,
        STAGES = NUM_STAGES,
        HOLDS_TWO = HEAD_DIM <= 128, /* results, in registers */
        R = 2 * M_TILES,
        C = 2 * N_TILES,
        A = HEAD_DIM / 4,
        CHUNKS = HEAD_DIM / 8,
        ROW_TILE = ROWS * HEAD_DIM,       /* elements of a shared tile */
        COLUMN_TILE = COLUMNS * HEAD_DIM, /* the same */
        SCRATCH = 0,
        MOST_BYTES = 99 << 10, /* what sm_86 and sm_89 have for a block */
    };
    typedef float Scores[R][C];
    typedef float Results[R][A];

    static __device__ __forceinline__ unsigned row(int i)
    {
        return threadIdx.x / WARP * 16 * M_TILES + i / 2 * 16 + i % 2 * 8 + threadIdx.x % WARP / 4;
    }

    static __device__ __forceinline__ unsigned column(int j)
    {
        return j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2;
    }

    static __device__ __forceinline__ unsigned result_column(int j)
    {
        return column(j);
    }

    static __device__ __forceinline__ const bf16 *chunk_at(const bf16 *tile, unsigned row,
                                                           unsigned chunk)
    {
        return tile + row * HEAD_DIM + (chunk ^ row % 8) * 8;
    }

    /* Copies a tile, zeros behind its last row and column. */
    template <int TILE_ROWS>
    static __device__ __forceinline__ void load_tile(bf16 *to, const bf16 *from, guint64 stride,
                                                     unsigned rows, unsigned dim)
    {
        static_assert(TILE_ROWS * CHUNKS % THREADS == 0, "each thread copies as many chunks");

#pragma unroll
        for (int i = 0; i < TILE_ROWS * CHUNKS / THREADS; i++) {
            const unsigned at = threadIdx.x + i * THREADS, r = at / CHUNKS, c = at % CHUNKS;
            const bool valid = r < rows && c * 8 < dim;

            copy_async<16>(const_cast<bf16 *>(chunk_at(to, r, c)),
                           from + (valid ? r * stride + c * 8 : 0), valid);
        }
    }

    /* s = a b^T: this warp's rows of tile a by all COLUMNS rows of tile b. */
    static __device__ __forceinline__ void product(Scores &s, const bf16 *a, const bf16 *b,
                                                   unsigned)
    {
        const unsigned lane = threadIdx.x % WARP, first = threadIdx.x / WARP * 16 * M_TILES;
        unsigned fa[M_TILES][4], fb[4];

#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                s[i][j] = 0;
#pragma unroll
        for (int k = 0; k < CHUNKS; k += 2) {
#pragma unroll
            for (int m = 0; m < M_TILES; m++)
                load_matrices(fa[m], chunk_at(a, first + 16 * m + lane % 16, k + lane / 16));
#pragma unroll
            for (int n = 0; n < N_TILES; n += 2) {
                load_matrices(fb, chunk_at(b, 8 * n + lane % 8 + lane / 16 * 8, k + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma_tile(s, m, n, fa[m], fb);
                    mma_tile(s, m, n + 1, fa[m], fb + 2);
                }
            }
        }
    }

    /* results += p b: p, rounded to bf16, by the columns of tile b. */
    static __device__ __forceinline__ void accumulate(Results &results, const Scores &p,
                                                      const bf16 *b, float *)
    {
        const unsigned lane = threadIdx.x % WARP;
        unsigned fa[M_TILES][4], fb[4];

#pragma unroll
        for (int k = 0; k < N_TILES / 2; k++) {
#pragma unroll
            for (int m = 0; m < M_TILES; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float *pair = &p[2 * m + i % 2][4 * k + i / 2 * 2];

                    fa[m][i] = narrow(pair[0], pair[1]);
                }
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n += 2) {
                load_transposed(fb, chunk_at(b, 16 * k + lane % 16, n + lane / 16));
#pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma_tile(results, m, n, fa[m], fb);
                    mma_tile(results, m, n + 1, fa[m], fb + 2);
                }
            }
        }
    }

    /* Over all columns of a row, which four lanes have. */
    static __device__ __forceinline__ float row_sum(float value)
    {
        value += __shfl_xor_sync(ALL_LANES, value, 1);
        return value + __shfl_xor_sync(ALL_LANES, value, 2);
    }

    static __device__ __forceinline__ float row_max(float value)
    {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
        return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
    }
};
