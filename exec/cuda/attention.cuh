/* What the attention kernels share: tiles, what they see of each other, asynchronous copies.
 *
 * Kernels work on tiles, rows by columns of scores: queries by keys (forward, dq), or keys by
 * queries (dk and dv).  How a block multiplies tiles is a struct of static functions, "E" below:
 * MmaTiles (bf16 tensor cores) or FmaTiles (anything).  Of a tile of scores a thread has
 * E::Scores, E::R rows by E::C columns, and of a result E::Results, E::R rows by E::A columns of a
 * head; E::row(), E::column() and E::result_column() say which. */
#pragma once

#include "exec/cuda/cuda_common.cuh"

#include <limits.h>

/* Tokens of one kind, queries or keys, in tiles; tiles of block b of keys follow those of b - 1. */
struct TileSet {
    const gint32 *positions; /* (blocks, T), or NULL: those of 0 .. T - 1 */
    const int2 *ranges;      /* smallest and largest position of each tile, with positions */
    unsigned seq, rows;      /* T; of a tile */
    unsigned per_block, total;
};

struct Shape {
    unsigned batch, seq, heads, kv_heads, dim;
    float scale;  /* 1 / sqrt(D) */
    float scale2; /* the same times log2(e): exponentials are powers of 2 */
};

/* First token of a tile, within its block. */
static __device__ __forceinline__ unsigned tile_first(const TileSet &set, unsigned tile)
{
    return tile % set.per_block * set.rows;
}

/* Tokens that a tile really has. */
static __device__ __forceinline__ unsigned tile_rows(const TileSet &set, unsigned tile)
{
    return min(set.rows, set.seq - tile_first(set, tile));
}

static __device__ __forceinline__ int2 tile_range(const TileSet &set, unsigned tile)
{
    const unsigned first = tile_first(set, tile);

    if (set.ranges != nullptr)
        return set.ranges[tile];
    return make_int2((int)first, (int)(first + tile_rows(set, tile)) - 1);
}

/* Of one token of a tile; @outside for rows behind the last. */
static __device__ __forceinline__ int position(const TileSet &set, unsigned tile, unsigned row,
                                               int outside)
{
    const unsigned at = tile_first(set, tile) + row;

    if (at >= set.seq)
        return outside;
    return set.positions != nullptr ? set.positions[tile / set.per_block * set.seq + at] : (int)at;
}

/* The first tile of keys from @tile on that a query at @last sees something of. */
static __device__ __forceinline__ unsigned next_seen(const TileSet &keys, unsigned tile, int last)
{
    while (tile < keys.total && tile_range(keys, tile).x > last)
        tile++;
    return tile;
}

/* The first tile of queries from @tile on that sees something of a key at @first. */
static __device__ __forceinline__ unsigned next_seeing(const TileSet &queries, unsigned tile,
                                                       int first)
{
    while (tile < queries.total && tile_range(queries, tile).y < first)
        tile++;
    return tile;
}

/* Whether some of these queries do not see some of these keys. */
static __device__ __forceinline__ bool needs_mask(const TileSet &queries, unsigned query_tile,
                                                  const TileSet &keys, unsigned key_tile)
{
    return tile_range(keys, key_tile).y > tile_range(queries, query_tile).x ||
           tile_rows(keys, key_tile) < keys.rows;
}

/* One head of one sequence inside (blocks, batch, T, heads * D). */
struct HeadPlace {
    unsigned batch, sequence, heads, head, dim;
};

/* Elements from the start of all to the first row of a tile. */
static __device__ __forceinline__ guint64 tile_offset(const HeadPlace &place, const TileSet &set,
                                                      unsigned tile)
{
    const unsigned block = tile / set.per_block;
    const guint64 row =
        (guint64)(block * place.batch + place.sequence) * set.seq + tile_first(set, tile);

    return (row * place.heads + place.head) * place.dim;
}

static __device__ __forceinline__ guint64 row_stride(const HeadPlace &place)
{
    return (guint64)place.heads * place.dim;
}

/* Columns from @c on of one row of a head, zeros behind the last; rows are aligned where the number
 * of columns is a multiple of WIDE. */
template <typename T>
static __device__ __forceinline__ void load_head(float (&to)[WIDE], const T *row, unsigned c,
                                                 unsigned dim)
{
    if (dim % WIDE == 0 && c < dim) {
        load(to, row + c);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        float value[1] = {0};

        if (c + i < dim)
            load(value, row + c + i);
        to[i] = value[0];
    }
}

/* ---- copies to shared memory that go on behind the thread's back ---- */

/* BYTES (8 or 16) from global to shared memory; zeros where not @valid. */
template <int BYTES>
static __device__ __forceinline__ void copy_async(void *to, const void *from, bool valid)
{
#ifdef CUDASIM
    for (int i = 0; i < BYTES; i += sizeof(uint2))
        *reinterpret_cast<uint2 *>((char *)to + i) =
            valid ? *reinterpret_cast<const uint2 *>((const char *)from + i) : make_uint2(0, 0);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0));
#endif
}

/* Ends a group of copies. */
static __device__ __forceinline__ void copy_commit()
{
#ifndef CUDASIM
    asm volatile("cp.async.commit_group;\n");
#endif
}

/* Waits for this thread's copies but the last PENDING groups. */
template <int PENDING> static __device__ __forceinline__ void copy_wait()
{
#ifndef CUDASIM
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING));
#endif
}

/* ---- results ---- */

/* Two neighbours of a result: to = keep * to + value; keep = 0 does not read. */
static __device__ __forceinline__ void put_pair(void *to, bool is_float, guint64 at, float keep,
                                                float2 value)
{
    float old[2] = {0, 0};

    if (keep != 0 && is_float)
        old[0] = ((float *)to)[at], old[1] = ((float *)to)[at + 1];
    else if (keep != 0)
        widen(old, *reinterpret_cast<unsigned *>((bf16 *)to + at));
    value.x += keep * old[0];
    value.y += keep * old[1];
    if (is_float)
        *reinterpret_cast<float2 *>((float *)to + at) = value;
    else
        *reinterpret_cast<unsigned *>((bf16 *)to + at) = narrow(value.x, value.y);
}

/* Where a block's rows of a result go. */
struct Target {
    void *data;
    bool is_float, adds;
};

/* to (+)= scale * results, in the rows that the tile really has. */
template <typename E>
static __device__ __forceinline__ void put_results(const Target &to, const HeadPlace &place,
                                                   const TileSet &set, unsigned tile, float scale,
                                                   const typename E::Results &results)
{
    const guint64 first = tile_offset(place, set, tile);

#pragma unroll
    for (int i = 0; i < E::R; i++)
        if (E::row(i) < tile_rows(set, tile))
#pragma unroll
            for (int j = 0; j < E::A; j += 2)
                if (E::result_column(j) < place.dim)
                    put_pair(to.data, to.is_float,
                             first + E::row(i) * row_stride(place) + E::result_column(j),
                             to.adds ? 1 : 0,
                             make_float2(scale * results[i][j], scale * results[i][j + 1]));
}

/* ---- host ---- */

/* Queries and keys of a launch in tiles of so many rows; with positions their ranges are computed,
 * into the scratch. */
struct TileSets {
    TileSet queries, keys;
};

TileSets attention_tiles(const CudaAttentionSizes *sizes, unsigned query_rows, unsigned key_rows,
                         void *scratch, CudaStream stream);
Shape attention_shape(const CudaAttentionSizes *sizes);
/* HEAD_DIM of the MmaTiles that take such heads, or 0: FmaTiles do. */
unsigned attention_tensor_cores(const CudaAttentionSizes *sizes);
