/* Causal attention, forward, by tiles; no matrix is larger than a tile.
 *
 * One head: q, o (T, D); k, v (T, D) of kv head h / (H / K); a = 1 / sqrt(D).
 *
 *     s = a q k^T over the keys that a query sees    p = softmax(s)    o = p v
 *     lse = log sum_j e^s_ij
 *
 * Running maximum and sum over tiles of keys (Milakov, Gimelshein, arXiv 1805.02867; tiled as in
 * Dao, FlashAttention-2, arXiv 2307.08691, alg. 1).  A block has one tile of queries of one head
 * and takes the tiles of keys that it sees something of; the next one is copied while it computes.
 */
#include "exec/cuda/attention_fma.cuh"
#include "exec/cuda/attention_mma.cuh"

template <typename T> struct Forward {
    Shape shape;
    TileSets tiles;
    const T *q, *k, *v;
    void *o;
    float *lse;
    bool is_float, adds; /* o */
};

/* What a thread keeps of its rows; max and powers are to base 2. */
template <typename E> struct Rows {
    float max[E::R], sum[E::R];
    int last; /* largest position of the warp's rows */
    typename E::Results o;
};

template <typename E>
static __device__ __forceinline__ void begin_rows(Rows<E> *rows, const TileSet &queries,
                                                  unsigned tile)
{
    rows->last = -1;
#pragma unroll
    for (int i = 0; i < E::R; i++) {
        rows->max[i] = -INFINITY;
        rows->sum[i] = 0;
        rows->last = max(rows->last, position(queries, tile, E::row(i), -1));
#pragma unroll
        for (int j = 0; j < E::A; j++)
            rows->o[i][j] = 0;
    }
    for (int other = WARP / 2; other > 0; other /= 2)
        rows->last = max(rows->last, __shfl_xor_sync(ALL_LANES, rows->last, other));
}

/* Scores of keys that a row does not see become -inf. */
template <typename E>
static __device__ __forceinline__ void mask_scores(typename E::Scores &s, const TileSets &tiles,
                                                   const unsigned tile[2])
{
    int queries[E::R];

#pragma unroll
    for (int i = 0; i < E::R; i++)
        queries[i] = position(tiles.queries, tile[0], E::row(i), -1);
#pragma unroll
    for (int j = 0; j < E::C; j++) {
        const int key = position(tiles.keys, tile[1], E::column(j), INT_MAX);

#pragma unroll
        for (int i = 0; i < E::R; i++)
            s[i][j] = key <= queries[i] ? s[i][j] : -INFINITY;
    }
}

/* s becomes p = 2^(s - max) with the new maximum; sums and o so far are scaled to it. */
template <typename E>
static __device__ __forceinline__ void join_softmax(typename E::Scores &s, Rows<E> *rows,
                                                    float scale2)
{
#pragma unroll
    for (int i = 0; i < E::R; i++) {
        float top = s[i][0];

#pragma unroll
        for (int j = 1; j < E::C; j++)
            top = fmaxf(top, s[i][j]);
        const float max = fmaxf(rows->max[i], E::row_max(top) * scale2);
        const float base = max == -INFINITY ? 0 : max; /* nothing seen yet: all powers are 0 */
        const float factor = exp2f(rows->max[i] - base);

        rows->max[i] = max;
        rows->sum[i] *= factor;
#pragma unroll
        for (int j = 0; j < E::C; j++) {
            s[i][j] = exp2f(s[i][j] * scale2 - base);
            rows->sum[i] += s[i][j];
        }
#pragma unroll
        for (int j = 0; j < E::A; j++)
            rows->o[i][j] *= factor;
    }
}

/* Shared memory: the tile of queries, STAGES pairs of tiles of keys and values, the scratch. */
template <typename E> struct ForwardShared {
    enum {
        STAGE = 2 * E::COLUMN_TILE,
        ELEMENTS = E::ROW_TILE + E::STAGES * STAGE,
        BYTES = ELEMENTS * sizeof(typename E::Element) + E::SCRATCH * sizeof(float),
    };
};

template <typename E>
static __device__ __forceinline__ void load_keys(const Forward<typename E::Storage> &f,
                                                 const HeadPlace &place, unsigned tile,
                                                 typename E::Element *to)
{
    const guint64 offset = tile_offset(place, f.tiles.keys, tile);
    const unsigned rows = tile_rows(f.tiles.keys, tile);

    E::template load_tile<E::COLUMNS>(to, f.k + offset, row_stride(place), rows, place.dim);
    E::template load_tile<E::COLUMNS>(to + E::COLUMN_TILE, f.v + offset, row_stride(place), rows,
                                      place.dim);
}

/* One tile of keys and values joins; warps that see nothing of it pass. */
template <typename E>
static __device__ __forceinline__ void
join_keys(const Forward<typename E::Storage> &f, Rows<E> *rows, const unsigned tile[2],
          const typename E::Element *q, const typename E::Element *keys, float *scratch)
{
    typename E::Scores s;

    if (tile_range(f.tiles.keys, tile[1]).x > rows->last)
        return;
    E::product(s, q, keys, f.shape.dim);
    if (needs_mask(f.tiles.queries, tile[0], f.tiles.keys, tile[1]))
        mask_scores<E>(s, f.tiles, tile);
    join_softmax<E>(s, rows, f.shape.scale2);
    E::accumulate(rows->o, s, keys + E::COLUMN_TILE, scratch);
}

/* How a row's o and lse join what is there: o' = keep o + own sum_j p_j v_j. */
struct Merge {
    float keep, own, lse;
};

static __device__ __forceinline__ Merge merge_row(float max, float sum, bool adds, float old)
{
    const float ln2 = 0.6931471805599453f;
    const float lse = sum > 0 ? (max + log2f(sum)) * ln2 : -INFINITY;
    const float top = fmaxf(old, lse);

    if (!adds || old == -INFINITY)
        return Merge{0, sum > 0 ? 1 / sum : 0, lse};
    const float merged = top + logf(expf(old - top) + expf(lse - top));

    return Merge{expf(old - merged), expf(lse - merged) / sum, merged};
}

template <typename E>
static __device__ __forceinline__ void store_rows(const Forward<typename E::Storage> &f,
                                                  const HeadPlace &place, unsigned tile,
                                                  Rows<E> *rows)
{
    const TileSet &queries = f.tiles.queries;
    const guint64 first = tile_offset(place, queries, tile);
    float *lse = f.lse + (guint64)(place.sequence * place.heads + place.head) * queries.seq +
                 tile_first(queries, tile);

#pragma unroll
    for (int i = 0; i < E::R; i++) {
        const unsigned row = E::row(i);
        const bool valid = row < tile_rows(queries, tile);
        const float sum = E::row_sum(rows->sum[i]);
        const Merge merge = merge_row(rows->max[i], sum, f.adds, valid && f.adds ? lse[row] : 0);

        __syncwarp(); /* lanes of a row have read lse */
        if (!valid || (f.adds && sum == 0))
            continue;
        if (E::result_column(0) == 0)
            lse[row] = merge.lse;
#pragma unroll
        for (int j = 0; j < E::A; j += 2)
            if (E::result_column(j) < place.dim)
                put_pair(f.o, f.is_float, first + row * row_stride(place) + E::result_column(j),
                         merge.keep,
                         make_float2(merge.own * rows->o[i][j], merge.own * rows->o[i][j + 1]));
    }
}

/* The tiles with most keys first, so that blocks end together. */
template <typename E>
static __global__ void __launch_bounds__(E::THREADS, 1)
    attention_forward(const __grid_constant__ Forward<typename E::Storage> f)
{
    DYN_SHARED(typename E::Element, q);
    typename E::Element *stages = q + E::ROW_TILE;
    float *scratch = reinterpret_cast<float *>(q + ForwardShared<E>::ELEMENTS);
    const unsigned all = f.shape.batch * f.shape.heads, head = blockIdx.x % f.shape.heads;
    const HeadPlace of_q = {f.shape.batch, blockIdx.x % all / f.shape.heads, f.shape.heads, head,
                            f.shape.dim};
    const HeadPlace of_k = {f.shape.batch, of_q.sequence, f.shape.kv_heads,
                            head / (f.shape.heads / f.shape.kv_heads), f.shape.dim};
    const TileSet &queries = f.tiles.queries, &keys = f.tiles.keys;
    const unsigned query = queries.total - 1 - blockIdx.x / all, size = ForwardShared<E>::STAGE;
    const int last = tile_range(queries, query).y;
    unsigned key = next_seen(keys, 0, last), stage = 0;
    Rows<E> rows;

    E::template load_tile<E::ROWS>(q, f.q + tile_offset(of_q, queries, query), row_stride(of_q),
                                   tile_rows(queries, query), f.shape.dim);
    if (key < keys.total)
        load_keys<E>(f, of_k, key, stages);
    copy_commit();
    begin_rows<E>(&rows, queries, query);
    while (key < keys.total) {
        const unsigned next = next_seen(keys, key + 1, last), tile[2] = {query, key};

        if (E::STAGES == 2 && next < keys.total)
            load_keys<E>(f, of_k, next, stages + (stage ^ 1) * size);
        copy_commit();
        copy_wait<E::STAGES - 1>();
        __syncthreads();
        join_keys<E>(f, &rows, tile, q, stages + stage * size, scratch);
        __syncthreads();
        if (E::STAGES == 1 && next < keys.total)
            load_keys<E>(f, of_k, next, stages);
        key = next;
        stage ^= E::STAGES - 1;
    }
    store_rows<E>(f, of_q, query, &rows);
}

template <typename E> static void launch_forward(const CudaAttention *a, CudaStream stream)
{
    typedef typename E::Storage T;
    const Forward<T> f = {attention_shape(&a->sizes),
                          attention_tiles(&a->sizes, E::ROWS, E::COLUMNS, a->sizes.scratch, stream),
                          (const T *)a->q,
                          (const T *)a->k,
                          (const T *)a->v,
                          a->o,
                          a->lse,
                          a->sizes.dtype_out == DTYPE_FP32,
                          a->adds != 0};
    const unsigned blocks = f.tiles.queries.total * f.shape.batch * f.shape.heads;

    static_assert((int)ForwardShared<E>::BYTES <= (int)E::MOST_BYTES, "shared memory");
    cudaFuncSetAttribute(attention_forward<E>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         ForwardShared<E>::BYTES);
    LAUNCH((attention_forward<E>), blocks, E::THREADS, ForwardShared<E>::BYTES, stream, f);
}

template <typename T> static void launch_plain(const CudaAttention *a, CudaStream stream)
{
    if (a->sizes.head_dim <= 64)
        launch_forward<FmaTiles<T, 64>>(a, stream);
    else if (a->sizes.head_dim <= 128)
        launch_forward<FmaTiles<T, 128>>(a, stream);
    else
        launch_forward<FmaTiles<T, 256>>(a, stream);
}

void cuda_attention(const CudaAttention *attention, CudaStream stream)
{
    switch (attention_tensor_cores(&attention->sizes)) {
    case 256:
        launch_forward<MmaTiles<256, 1, 4>>(attention, stream);
        return;
    case 192:
        launch_forward<MmaTiles<192, 1, 4>>(attention, stream);
        return;
    case 128:
        launch_forward<MmaTiles<128, 2, 4>>(attention, stream);
        return;
    case 64:
        launch_forward<MmaTiles<64, 2, 8>>(attention, stream);
        return;
    default:
        break;
    }
    if (attention->sizes.dtype == DTYPE_FP32)
        launch_plain<float>(attention, stream);
    else
        launch_plain<bf16>(attention, stream);
}
