/* Embedding lookup and its gradient.  tokens (N), W (V, C), x (N, C); with a range (tensor
 * parallelism) W has that part of the words. */
#include "exec/cuda/cuda_common.cuh"

#include "sim/program/op.h"

enum { EMBED_THREADS = 256, EMBED_WARPS = EMBED_THREADS / WARP };

/* The row of W that holds a token; false when another rank, or nobody, has it. */
static __device__ __forceinline__ bool find_row(gint32 token, const double *range, guint64 vocab,
                                                guint64 *row)
{
    const guint64 first = range != nullptr ? (guint64)range[RANGE_FIRST] : 0;
    const guint64 count = range != nullptr ? (guint64)range[RANGE_COUNT] : vocab;

    *row = (guint64)token - first;
    return token >= 0 && *row < count;
}

template <typename T> struct Embed {
    guint64 vocab, columns;
    const gint32 *tokens;
    const T *weight;
    T *x;
    const double *range;
    bool adds;
};

template <typename T, int VEC>
static __global__ void __launch_bounds__(EMBED_THREADS) embed(Embed<T> e)
{
    const guint64 n = blockIdx.x;
    const float missing = e.range != nullptr ? 0 : __int_as_float(0x7fffffff);
    guint64 row;
    const bool found = find_row(e.tokens[n], e.range, e.vocab, &row);

    for (guint64 c = threadIdx.x * VEC; c < e.columns; c += blockDim.x * VEC) {
        float values[VEC];

        if (found)
            load(values, e.weight + row * e.columns + c);
        else
#pragma unroll
            for (int i = 0; i < VEC; i++)
                values[i] = missing;
        put(e.x + n * e.columns + c, values, e.adds);
    }
}

template <typename T> static void launch_embed(const CudaEmbed *embedding, CudaStream stream)
{
    const Embed<T> e = {
        embedding->vocab,  embedding->columns, embedding->tokens,   (const T *)embedding->weight,
        (T *)embedding->x, embedding->range,   embedding->adds != 0};
    const bool wide = is_wide(e.columns, e.weight, e.x);
    const unsigned rows = (unsigned)embedding->rows;
    const unsigned threads = row_threads(e.columns / (wide ? WIDE : 1), EMBED_THREADS);

    if (wide)
        LAUNCH((embed<T, WIDE>), rows, threads, 0, stream, e);
    else
        LAUNCH((embed<T, 1>), rows, threads, 0, stream, e);
}

void cuda_embed(const CudaEmbed *embedding, CudaStream stream)
{
    if (embedding->dtype == DTYPE_BF16)
        launch_embed<bf16>(embedding, stream);
    else
        launch_embed<float>(embedding, stream);
}

/* ---- backward: dW[token] (+)= sum of dx over the rows with that token ----
 *
 * Block (n, slice) has row n and some columns.  If an earlier row has the same token it does
 * nothing; else it adds all rows with that token, in order.  It finds them by looking, since the op
 * has no scratch: N^2 comparisons in all, served by the cache (268 MB for N = 8192). */

template <typename T, typename G> struct EmbedBackward {
    guint64 rows, vocab, columns;
    const gint32 *tokens;
    const T *dx;
    G *dweight;
    const double *range;
};

/* Whether any thread of the block says so. */
static __device__ __forceinline__ bool block_any(bool own, unsigned *shared)
{
    const unsigned votes = __ballot_sync(ALL_LANES, own);
    unsigned any = 0;

    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = votes;
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / WARP; warp++)
        any |= shared[warp];
    __syncthreads();
    return any != 0;
}

static __device__ __forceinline__ bool seen_before(const gint32 *tokens, guint64 n,
                                                   unsigned *shared)
{
    const gint32 token = tokens[n];
    bool seen = false;

    for (guint64 i = threadIdx.x; i < n; i += blockDim.x)
        seen |= tokens[i] == token;
    return block_any(seen, shared);
}

/* Writes the numbers of the threads that say so to @list, in order; returns how many. */
static __device__ __forceinline__ unsigned list_of(bool own, unsigned *shared, unsigned *list)
{
    const unsigned lane = threadIdx.x % WARP, own_warp = threadIdx.x / WARP;
    const unsigned votes = __ballot_sync(ALL_LANES, own);
    unsigned before = __popc(votes & ((1u << lane) - 1)), all = 0;

    if (lane == 0)
        shared[own_warp] = votes;
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / WARP; warp++) {
        const unsigned hits = __popc(shared[warp]);

        before += warp < own_warp ? hits : 0;
        all += hits;
    }
    if (own)
        list[before] = threadIdx.x;
    __syncthreads();
    return all;
}

template <typename T, typename G, int VEC>
static __global__ void __launch_bounds__(EMBED_THREADS, 4) embed_backward(EmbedBackward<T, G> e)
{
    SHARED(unsigned, shared, [EMBED_WARPS]);
    SHARED(unsigned, list, [EMBED_THREADS]);
    const guint64 n = blockIdx.x;
    const guint64 c = ((guint64)blockIdx.y * blockDim.x + threadIdx.x) * VEC;
    const gint32 token = e.tokens[n];
    float sum[VEC] = {}, values[VEC];
    guint64 row;

    if (!find_row(token, e.range, e.vocab, &row) || seen_before(e.tokens, n, shared))
        return; /* the whole block */
    for (guint64 start = n; start < e.rows; start += blockDim.x) {
        const guint64 at = start + threadIdx.x;
        const unsigned hits = list_of(at < e.rows && e.tokens[at] == token, shared, list);

        for (unsigned hit = 0; hit < hits && c < e.columns; hit++) {
            load(values, e.dx + (start + list[hit]) * e.columns + c);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum[i] += values[i];
        }
    }
    if (c < e.columns)
        put(e.dweight + row * e.columns + c, sum, true);
}

template <typename T, typename G>
static void launch_embed_backward(const CudaEmbedBackward *embedding, CudaStream stream)
{
    const EmbedBackward<T, G> e = {
        embedding->rows,          embedding->vocab,        embedding->columns, embedding->tokens,
        (const T *)embedding->dx, (G *)embedding->dweight, embedding->range};
    const bool wide = is_wide(e.columns, e.dx, e.dweight);
    const guint64 items = e.columns / (wide ? WIDE : 1);
    const unsigned threads = row_threads(items, EMBED_THREADS);
    const dim3 grid((unsigned)e.rows, (unsigned)ceil_div(items, threads));

    if (!embedding->adds)
        cudaMemsetAsync(e.dweight, 0, e.vocab * e.columns * sizeof(G), stream);
    if (wide)
        LAUNCH((embed_backward<T, G, WIDE>), grid, threads, 0, stream, e);
    else
        LAUNCH((embed_backward<T, G, 1>), grid, threads, 0, stream, e);
}

template <typename T>
static void embed_backward_of(const CudaEmbedBackward *embedding, CudaStream stream)
{
    if (embedding->dtype_out == DTYPE_BF16)
        launch_embed_backward<T, bf16>(embedding, stream);
    else
        launch_embed_backward<T, float>(embedding, stream);
}

void cuda_embed_backward(const CudaEmbedBackward *embedding, CudaStream stream)
{
    if (embedding->dtype == DTYPE_BF16)
        embed_backward_of<bf16>(embedding, stream);
    else
        embed_backward_of<float>(embedding, stream);
}
