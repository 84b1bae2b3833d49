/* Tiles of an attention launch, and the smallest and largest position of each. */
#include "exec/cuda/attention.cuh"

#include <math.h>

enum { RANGE_THREADS = 128 };

/* One warp a tile. */
static __global__ void __launch_bounds__(RANGE_THREADS) tile_ranges(TileSet set, int2 *ranges)
{
    const unsigned tile = blockIdx.x * (RANGE_THREADS / WARP) + threadIdx.x / WARP;
    int2 range = make_int2(INT_MAX, INT_MIN);

    if (tile >= set.total)
        return; /* the whole warp */
    for (unsigned row = threadIdx.x % WARP; row < tile_rows(set, tile); row += WARP) {
        const int at = position(set, tile, row, 0);

        range = make_int2(min(range.x, at), max(range.y, at));
    }
    for (int other = WARP / 2; other > 0; other /= 2) {
        range.x = min(range.x, __shfl_xor_sync(ALL_LANES, range.x, other));
        range.y = max(range.y, __shfl_xor_sync(ALL_LANES, range.y, other));
    }
    if (threadIdx.x % WARP == 0)
        ranges[tile] = range;
}

static TileSet tile_set(const gint32 *positions, guint64 seq, guint64 blocks, unsigned rows)
{
    const unsigned per_block = (unsigned)ceil_div(seq, rows);

    return TileSet{positions, nullptr,   (unsigned)seq,
                   rows,      per_block, per_block * (unsigned)blocks};
}

static void find_ranges(TileSet *set, int2 *ranges, CudaStream stream)
{
    LAUNCH(tile_ranges, (unsigned)ceil_div(set->total, RANGE_THREADS / WARP), RANGE_THREADS, 0,
           stream, *set, ranges);
    set->ranges = ranges;
}

TileSets attention_tiles(const CudaAttentionSizes *sizes, unsigned query_rows, unsigned key_rows,
                         void *scratch, CudaStream stream)
{
    const bool has_positions = sizes->q_positions != nullptr;
    const guint64 blocks = has_positions ? sizes->blocks : 1;
    int2 *ranges = (int2 *)scratch;
    TileSets sets = {tile_set(sizes->q_positions, sizes->seq, 1, query_rows),
                     tile_set(sizes->k_positions, sizes->seq, blocks, key_rows)};

    if (has_positions) {
        find_ranges(&sets.queries, ranges, stream);
        find_ranges(&sets.keys, ranges + sets.queries.total, stream);
    }
    return sets;
}

Shape attention_shape(const CudaAttentionSizes *sizes)
{
    const double scale = 1 / sqrt((double)sizes->head_dim);

    g_assert(sizes->heads % sizes->kv_heads == 0);
    g_assert(sizes->head_dim % 2 == 0 && sizes->head_dim <= CUDA_ATTENTION_MOST_DIM);
    return Shape{(unsigned)sizes->batch,
                 (unsigned)sizes->seq,
                 (unsigned)sizes->heads,
                 (unsigned)sizes->kv_heads,
                 (unsigned)sizes->head_dim,
                 (float)scale,
                 (float)(scale * 1.4426950408889634)};
}

/* Heads of 80 or 96 columns do as much as 128 there, those of 160 as much as 192, several times
 * faster than without.  Those of 32 and fewer are in models too small to care. */
unsigned attention_tensor_cores(const CudaAttentionSizes *sizes)
{
    const guint64 dim = sizes->head_dim;

    if (sizes->dtype != DTYPE_BF16 || dim % 8 != 0 || dim <= 32)
        return 0;
    return (unsigned)(ceil_div(dim, 64) * 64);
}
