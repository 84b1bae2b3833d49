/* Causal attention, backward, by tiles (Dao, FlashAttention-2, arXiv 2307.08691, alg. 2).
 *
 *     p = e^(s - lse)    dv = p^T do    dp = do v^T    delta_i = sum_d do_id o_id
 *     ds = p * (dp - delta)    dq = a ds k    dk = a ds^T q
 *
 * Two kernels, so that each result has one block that adds it up in one order: dq by tiles of
 * queries, dk and dv by tiles of keys (over all query heads of a kv head).  Both compute s and dp:
 * seven products of tiles instead of five, which is the price of no atomics and no fp32 copy of dq.
 * Of heads wider than 128 registers hold one result at a time: dk and dv each have a kernel, and s
 * is computed a third time.
 * What they need of a query, lse and delta, is computed first. */
#include "exec/cuda/attention_fma.cuh"
#include "exec/cuda/attention_mma.cuh"

template <typename T> struct Backward {
    Shape shape;
    TileSets tiles;
    const T *dout, *q, *k, *v;
    const float2 *stats; /* (batch, H, T): lse to base 2 (+inf where nothing was seen), delta */
    Target dq, dk, dv;
};

/* ---- statistics of queries ---- */

enum { STATS_THREADS = 256 };

template <typename T> struct QueryStats {
    Shape shape;
    const T *dout, *o;
    const float *lse;
    float2 *stats;
};

/* One warp a query and head. */
template <typename T>
static __global__ void __launch_bounds__(STATS_THREADS) query_stats(QueryStats<T> s)
{
    const guint64 n = (guint64)blockIdx.x * (STATS_THREADS / WARP) + threadIdx.x / WARP;
    const guint64 row = n / s.shape.heads, head = n % s.shape.heads;
    const guint64 at = (row / s.shape.seq * s.shape.heads + head) * s.shape.seq + row % s.shape.seq;
    float sum = 0;

    if (row >= (guint64)s.shape.batch * s.shape.seq)
        return; /* the whole warp */
    for (unsigned d = threadIdx.x % WARP * WIDE; d < s.shape.dim; d += WARP * WIDE) {
        float a[WIDE], b[WIDE];

        load_head(a, s.dout + n * s.shape.dim, d, s.shape.dim);
        load_head(b, s.o + n * s.shape.dim, d, s.shape.dim);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            sum += a[i] * b[i];
    }
    sum = warp_sum(sum);
    const float lse = s.lse[at] * 1.4426950408889634f;

    if (threadIdx.x % WARP == 0)
        s.stats[at] = make_float2(lse == -INFINITY ? INFINITY : lse, sum);
}

template <typename T>
static void launch_stats(const CudaAttentionBackward *a, float2 *stats, CudaStream stream)
{
    const QueryStats<T> s = {attention_shape(&a->sizes), (const T *)a->dout, (const T *)a->o,
                             a->lse, stats};
    const guint64 warps = a->sizes.batch * a->sizes.seq * a->sizes.heads;

    LAUNCH((query_stats<T>), (unsigned)ceil_div(warps, STATS_THREADS / WARP), STATS_THREADS, 0,
           stream, s);
}

/* ---- both kernels ---- */

/* Shared memory: two tiles of the block's rows, STAGES pairs of tiles of columns, the scratch, and
 * of each stage the statistics of its queries. */
template <typename E> struct BackwardShared {
    enum {
        STAGE = 2 * E::COLUMN_TILE,
        ELEMENTS = 2 * E::ROW_TILE + E::STAGES * STAGE,
        STATS = ELEMENTS * sizeof(typename E::Element) + E::SCRATCH * sizeof(float),
        BYTES = STATS + E::STAGES * E::COLUMNS * sizeof(float2),
    };

    typename E::Element *rows, *stages;
    float *scratch;
    float2 *stats;

    __device__ __forceinline__ explicit BackwardShared(typename E::Element *start)
        : rows(start), stages(start + 2 * E::ROW_TILE),
          scratch(reinterpret_cast<float *>(start + ELEMENTS)),
          stats(reinterpret_cast<float2 *>(reinterpret_cast<char *>(start) + STATS))
    {
    }
};

/* The same tile of two matrices. */
template <typename E, int TILE_ROWS>
static __device__ __forceinline__ void
load_both(typename E::Element *to, const typename E::Storage *const from[2], const HeadPlace &place,
          const TileSet &set, unsigned tile)
{
    const guint64 offset = tile_offset(place, set, tile);

#pragma unroll
    for (int i = 0; i < 2; i++)
        E::template load_tile<TILE_ROWS>(
            to + i * (TILE_ROWS == E::ROWS ? E::ROW_TILE : E::COLUMN_TILE), from[i] + offset,
            row_stride(place), tile_rows(set, tile), place.dim);
}

template <typename E>
static __device__ __forceinline__ void clear_results(typename E::Results &results)
{
#pragma unroll
    for (int i = 0; i < E::R; i++)
#pragma unroll
        for (int j = 0; j < E::A; j++)
            results[i][j] = 0;
}

static __device__ __forceinline__ const float2 *stats_of(const float2 *stats, const Shape &shape,
                                                         const HeadPlace &of_q, unsigned first)
{
    return stats + (guint64)(of_q.sequence * shape.heads + of_q.head) * shape.seq + first;
}

/* ---- dq ---- */

/* s becomes p, 0 where masked, then ds. */
template <typename E>
static __device__ __forceinline__ void query_gradients(typename E::Scores &s,
                                                       const typename E::Scores &dp,
                                                       const float2 (&stats)[E::R], float scale2)
{
#pragma unroll
    for (int i = 0; i < E::R; i++)
#pragma unroll
        for (int j = 0; j < E::C; j++)
            s[i][j] = exp2f(s[i][j] * scale2 - stats[i].x) * (dp[i][j] - stats[i].y);
}

/* Scores of keys that a query does not see become -inf; rows are queries. */
template <typename E>
static __device__ __forceinline__ void mask_keys(typename E::Scores &s, const TileSets &tiles,
                                                 const unsigned tile[2])
{
#pragma unroll
    for (int j = 0; j < E::C; j++) {
        const int key = position(tiles.keys, tile[1], E::column(j), INT_MAX);

#pragma unroll
        for (int i = 0; i < E::R; i++)
            s[i][j] = key <= position(tiles.queries, tile[0], E::row(i), -1) ? s[i][j] : -INFINITY;
    }
}

/* dq += ds k of one tile of keys and values. */
template <typename E>
static __device__ __forceinline__ void
add_keys(const Backward<typename E::Storage> &b, typename E::Results &dq, const unsigned tile[2],
         const BackwardShared<E> &shared, const typename E::Element *keys,
         const float2 (&stats)[E::R])
{
    typename E::Scores s, dp;

    E::product(s, shared.rows, keys, b.shape.dim);
    E::product(dp, shared.rows + E::ROW_TILE, keys + E::COLUMN_TILE, b.shape.dim);
    if (needs_mask(b.tiles.queries, tile[0], b.tiles.keys, tile[1]))
        mask_keys<E>(s, b.tiles, tile);
    query_gradients<E>(s, dp, stats, b.shape.scale2);
    E::accumulate(dq, s, keys, shared.scratch);
}

template <typename E>
static __global__ void __launch_bounds__(E::THREADS, 1)
    attention_dq(const __grid_constant__ Backward<typename E::Storage> b)
{
    DYN_SHARED(typename E::Element, start);
    const BackwardShared<E> shared(start);
    const Shape &shape = b.shape;
    const TileSet &queries = b.tiles.queries, &keys = b.tiles.keys;
    const unsigned all = shape.batch * shape.heads, head = blockIdx.x % shape.heads;
    const HeadPlace of_q = {shape.batch, blockIdx.x % all / shape.heads, shape.heads, head,
                            shape.dim};
    const HeadPlace of_k = {shape.batch, of_q.sequence, shape.kv_heads,
                            head / (shape.heads / shape.kv_heads), shape.dim};
    const unsigned query = queries.total - 1 - blockIdx.x / all;
    const int last = tile_range(queries, query).y;
    const typename E::Storage *const of_rows[2] = {b.q, b.dout}, *const of_columns[2] = {b.k, b.v};
    const float2 *of_stats = stats_of(b.stats, shape, of_q, tile_first(queries, query));
    unsigned key = next_seen(keys, 0, last), stage = 0;
    typename E::Results dq;
    float2 stats[E::R];

    load_both<E, E::ROWS>(shared.rows, of_rows, of_q, queries, query);
    if (key < keys.total)
        load_both<E, E::COLUMNS>(shared.stages, of_columns, of_k, keys, key);
    copy_commit();
    clear_results<E>(dq);
    for (int i = 0; i < E::R; i++)
        stats[i] =
            E::row(i) < tile_rows(queries, query) ? of_stats[E::row(i)] : make_float2(INFINITY, 0);
    while (key < keys.total) {
        const unsigned next = next_seen(keys, key + 1, last), tile[2] = {query, key};

        if (E::STAGES == 2 && next < keys.total)
            load_both<E, E::COLUMNS>(shared.stages + (stage ^ 1) * shared.STAGE, of_columns, of_k,
                                     keys, next);
        copy_commit();
        copy_wait<E::STAGES - 1>();
        __syncthreads();
        add_keys<E>(b, dq, tile, shared, shared.stages + stage * shared.STAGE, stats);
        __syncthreads();
        if (E::STAGES == 1 && next < keys.total)
            load_both<E, E::COLUMNS>(shared.stages, of_columns, of_k, keys, next);
        key = next;
        stage ^= E::STAGES - 1;
    }
    put_results<E>(b.dq, of_q, queries, query, shape.scale, dq);
}

/* ---- dk, dv ---- */

/* A tile of queries of one head of the group. */
struct QueryTile {
    unsigned head, tile; /* head == H: none left */
};

/* The first from @at on that sees something of a key at @first; @end heads. */
static __device__ __forceinline__ QueryTile next_queries(const TileSet &queries, QueryTile at,
                                                         int first, unsigned end)
{
    at.tile = next_seeing(queries, at.tile, first);
    while (at.tile == queries.total && ++at.head < end)
        at.tile = next_seeing(queries, 0, first);
    return at;
}

/* p of scores, 0 where masked; rows are keys. */
template <typename E>
static __device__ __forceinline__ void powers(typename E::Scores &s, const float2 *stats,
                                              float scale2)
{
#pragma unroll
    for (int j = 0; j < E::C; j++) {
        const float lse = stats[E::column(j)].x;

#pragma unroll
        for (int i = 0; i < E::R; i++)
            s[i][j] = exp2f(s[i][j] * scale2 - lse);
    }
}

template <typename E>
static __device__ __forceinline__ void mask_queries(typename E::Scores &s, const TileSets &tiles,
                                                    unsigned query_tile, unsigned key_tile)
{
#pragma unroll
    for (int j = 0; j < E::C; j++) {
        const int query = position(tiles.queries, query_tile, E::column(j), -1);

#pragma unroll
        for (int i = 0; i < E::R; i++)
            s[i][j] =
                position(tiles.keys, key_tile, E::row(i), INT_MAX) <= query ? s[i][j] : -INFINITY;
    }
}

/* Of dk and dv, what a kernel computes. */
enum { DK = 1 << 0, DV = 1 << 1 };

/* dv += p^T do, dk += ds^T q of one tile of queries. */
template <typename E, int WHAT>
static __device__ __forceinline__ void
add_queries(const Backward<typename E::Storage> &b, typename E::Results (&dkv)[2],
            const unsigned tile[2], const BackwardShared<E> &shared,
            const typename E::Element *queries, const float2 *stats)
{
    typename E::Scores p, dp;

    E::product(p, shared.rows, queries, b.shape.dim);
    if (needs_mask(b.tiles.queries, tile[0], b.tiles.keys, tile[1]))
        mask_queries<E>(p, b.tiles, tile[0], tile[1]);
    powers<E>(p, stats, b.shape.scale2);
    if (WHAT & DV)
        E::accumulate(dkv[1], p, queries + E::COLUMN_TILE, shared.scratch);
    if (!(WHAT & DK))
        return;
    E::product(dp, shared.rows + E::ROW_TILE, queries + E::COLUMN_TILE, b.shape.dim);
#pragma unroll
    for (int j = 0; j < E::C; j++) {
        const float delta = stats[E::column(j)].y;

#pragma unroll
        for (int i = 0; i < E::R; i++)
            p[i][j] *= dp[i][j] - delta;
    }
    E::accumulate(dkv[0], p, queries, shared.scratch);
}

/* Copies q, do and the statistics of a tile of queries; zeros behind the last. */
template <typename E>
static __device__ __forceinline__ void load_queries(const Backward<typename E::Storage> &b,
                                                    const HeadPlace &of_k, QueryTile at,
                                                    const BackwardShared<E> &shared, unsigned stage)
{
    const TileSet &queries = b.tiles.queries;
    const HeadPlace of_q = {of_k.batch, of_k.sequence, b.shape.heads, at.head, of_k.dim};
    const typename E::Storage *const from[2] = {b.q, b.dout};
    const float2 *stats = stats_of(b.stats, b.shape, of_q, tile_first(queries, at.tile));
    const unsigned row = threadIdx.x;

    load_both<E, E::COLUMNS>(shared.stages + stage * shared.STAGE, from, of_q, queries, at.tile);
    if (row < E::COLUMNS) {
        const bool valid = row < tile_rows(queries, at.tile);

        copy_async<8>(shared.stats + stage * E::COLUMNS + row, stats + (valid ? row : 0), valid);
    }
}

template <typename E, int WHAT>
static __global__ void __launch_bounds__(E::THREADS, 1)
    attention_dkv(const __grid_constant__ Backward<typename E::Storage> b)
{
    DYN_SHARED(typename E::Element, start);
    const BackwardShared<E> shared(start);
    const TileSet &queries = b.tiles.queries, &keys = b.tiles.keys;
    const unsigned all = b.shape.batch * b.shape.kv_heads, group = b.shape.heads / b.shape.kv_heads;
    const HeadPlace of_k = {b.shape.batch, blockIdx.x % all / b.shape.kv_heads, b.shape.kv_heads,
                            blockIdx.x % b.shape.kv_heads, b.shape.dim};
    const unsigned key = blockIdx.x / all, end = (of_k.head + 1) * group;
    const int first = tile_range(keys, key).x;
    const typename E::Storage *const of_rows[2] = {b.k, b.v};
    QueryTile at = next_queries(queries, QueryTile{of_k.head * group, 0}, first, end);
    typename E::Results dkv[2];
    unsigned stage = 0;

    load_both<E, E::ROWS>(shared.rows, of_rows, of_k, keys, key);
    if (at.head < end)
        load_queries<E>(b, of_k, at, shared, 0);
    copy_commit();
    clear_results<E>(dkv[0]);
    clear_results<E>(dkv[1]);
    while (at.head < end) {
        const QueryTile next = next_queries(queries, QueryTile{at.head, at.tile + 1}, first, end);
        const unsigned tile[2] = {at.tile, key};

        if (E::STAGES == 2 && next.head < end)
            load_queries<E>(b, of_k, next, shared, stage ^ 1);
        copy_commit();
        copy_wait<E::STAGES - 1>();
        __syncthreads();
        add_queries<E, WHAT>(b, dkv, tile, shared, shared.stages + stage * shared.STAGE,
                             shared.stats + stage * E::COLUMNS);
        __syncthreads();
        if (E::STAGES == 1 && next.head < end)
            load_queries<E>(b, of_k, next, shared, 0);
        at = next;
        stage ^= E::STAGES - 1;
    }
    if (WHAT & DK)
        put_results<E>(b.dk, of_k, keys, key, b.shape.scale, dkv[0]);
    if (WHAT & DV)
        put_results<E>(b.dv, of_k, keys, key, 1, dkv[1]);
}

/* ---- launchers ---- */

template <typename E>
static void launch_dq(Backward<typename E::Storage> b, const CudaAttentionBackward *a,
                      void *scratch, CudaStream stream)
{
    const unsigned bytes = BackwardShared<E>::BYTES;

    static_assert((int)BackwardShared<E>::BYTES <= (int)E::MOST_BYTES, "shared memory");
    b.tiles = attention_tiles(&a->sizes, E::ROWS, E::COLUMNS, scratch, stream);
    cudaFuncSetAttribute(attention_dq<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((attention_dq<E>), b.tiles.queries.total * b.shape.batch * b.shape.heads, E::THREADS,
           bytes, stream, b);
}

template <typename E, int WHAT>
static void launch_results(const Backward<typename E::Storage> &b, CudaStream stream)
{
    const unsigned bytes = BackwardShared<E>::BYTES;

    cudaFuncSetAttribute(attention_dkv<E, WHAT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    LAUNCH((attention_dkv<E, WHAT>), b.tiles.keys.total * b.shape.batch * b.shape.kv_heads,
           E::THREADS, bytes, stream, b);
}

template <typename E>
static void launch_dkv(Backward<typename E::Storage> b, const CudaAttentionBackward *a,
                       void *scratch, CudaStream stream)
{
    b.tiles = attention_tiles(&a->sizes, E::COLUMNS, E::ROWS, scratch, stream);
    if constexpr (E::HOLDS_TWO) {
        launch_results<E, DK | DV>(b, stream);
    } else {
        launch_results<E, DV>(b, stream);
        launch_results<E, DK>(b, stream);
    }
}

/* Queries: how dq is computed.  Keys: how dk and dv are.  The scratch has the statistics first. */
template <typename Queries, typename Keys>
static void launch_backward(const CudaAttentionBackward *a, CudaStream stream)
{
    typedef typename Queries::Storage T;
    const guint64 queries = a->sizes.batch * a->sizes.seq * a->sizes.heads;
    float2 *stats = (float2 *)a->sizes.scratch;
    const bool is_float = a->sizes.dtype_out == DTYPE_FP32;
    const Backward<T> b = {attention_shape(&a->sizes),
                           {},
                           (const T *)a->dout,
                           (const T *)a->q,
                           (const T *)a->k,
                           (const T *)a->v,
                           stats,
                           {a->dq, is_float, a->adds_dq != 0},
                           {a->dk, is_float, a->adds_dk != 0},
                           {a->dv, is_float, a->adds_dv != 0}};

    launch_stats<T>(a, stats, stream);
    launch_dq<Queries>(b, a, stats + queries, stream);
    launch_dkv<Keys>(b, a, stats + queries, stream);
}

template <typename T> static void launch_plain(const CudaAttentionBackward *a, CudaStream stream)
{
    typedef FmaTiles<T, 64> Small;
    typedef FmaTiles<T, 128> Middle;
    typedef FmaTiles<T, 256> Large;

    if (a->sizes.head_dim <= 64)
        launch_backward<Small, Small>(a, stream);
    else if (a->sizes.head_dim <= 128)
        launch_backward<Middle, Middle>(a, stream);
    else
        launch_backward<Large, Large>(a, stream);
}

void cuda_attention_backward(const CudaAttentionBackward *attention, CudaStream stream)
{
    switch (attention_tensor_cores(&attention->sizes)) {
    case 256: /* one stage: with two no tile of 32 columns fits the 99 KiB of sm_86 */
        launch_backward<MmaTiles<256, 1, 4, 1>, MmaTiles<256, 1, 4, 1>>(attention, stream);
        return;
    case 192:
        launch_backward<MmaTiles<192, 1, 4>, MmaTiles<192, 1, 4>>(attention, stream);
        return;
    case 128:
        launch_backward<MmaTiles<128, 1, 4>, MmaTiles<128, 1, 4>>(attention, stream);
        return;
    case 64:
        launch_backward<MmaTiles<64, 2, 4>, MmaTiles<64, 1, 8>>(attention, stream);
        return;
    default:
        break;
    }
    if (attention->sizes.dtype == DTYPE_FP32)
        launch_plain<float>(attention, stream);
    else
        launch_plain<bf16>(attention, stream);
}
