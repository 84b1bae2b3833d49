#include "exec/device/cpu_attention_tile.h"

#include "exec/device/cpu_block.h"

#include <math.h>
#include <omp.h>

/* ---- rows ---- */

HeadRows attention_head_rows(const OpSizes *s, guint64 sequence, guint64 head, guint64 heads)
{
    const guint64 stride = heads * s->head_dim;

    return (HeadRows){sequence * s->seq * stride + head * s->head_dim, stride};
}

View attention_view(const Launch *launch, guint operand, HeadRows of, RowRange range, float *buffer)
{
    const DType dtype = launch->op->dtype;

    if (dtype == DTYPE_FP32)
        return (View){(const float *)launch->operand[operand] + of.offset + range.first * of.stride,
                      of.stride};
    attention_load(launch, operand, dtype, of, range, buffer);
    return (View){buffer, launch->op->sizes.head_dim};
}

void attention_load(const Launch *launch, guint operand, DType dtype, HeadRows of, RowRange range,
                    float *to)
{
    const guint64 dim = launch->op->sizes.head_dim;

    for (guint64 i = 0; i < range.count; i++) {
        float *row = to + i * dim;
        const float *values = block_read(dtype, launch->operand[operand],
                                         of.offset + (range.first + i) * of.stride, dim, row);

        if (values != row)
            memcpy(row, values, dim * sizeof *row);
    }
}

void attention_store(const Launch *launch, guint operand, HeadRows of, RowRange range,
                     const float *rows)
{
    const guint64 dim = launch->op->sizes.head_dim;
    const gboolean add = launch_adds(launch, operand);

    for (guint64 i = 0; i < range.count; i++)
        for (guint64 d = 0; d < dim; d += CPU_BLOCK)
            block_put(launch->op->dtype_out, launch->operand[operand],
                      of.offset + (range.first + i) * of.stride + d, MIN(CPU_BLOCK, dim - d),
                      rows + i * dim + d, add);
}

float attention_scale(const OpSizes *s)
{
    return (float)(1 / sqrt((double)s->head_dim));
}

Scratch attention_scratch(guint threads, const Launch *launch, guint operand)
{
    Scratch scratch = scratch_open(threads, launch, operand);

    scratch.left /= threads;
    scratch.next += (guint)omp_get_thread_num() * scratch.left;
    return scratch;
}

/* ---- what is seen ---- */

/* Without positions, keys that hold a tile's last query hold its first one too: none is hidden. */
G_STATIC_ASSERT(CPU_ATTENTION_KEYS % CPU_ATTENTION_QUERIES == 0);

Mask attention_mask(const Launch *launch, guint operand)
{
    const Op *op = launch->op;
    Mask mask = {.blocks = op_key_blocks(op), .seq = op->sizes.seq};

    if (op->num_operands > operand) {
        mask.of_queries = launch->operand[operand];
        mask.of_keys = launch->operand[operand + 1];
    }
    return mask;
}

/* How many of @count positions, which never fall, are at most @latest. */
static guint64 count_until(const gint32 *positions, guint64 count, gint32 latest)
{
    guint64 low = 0, high = count;

    if (count > 0 && positions[count - 1] <= latest)
        return count;
    while (low < high) {
        const guint64 middle = (low + high) / 2;

        if (positions[middle] <= latest)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static gint32 latest_of(const gint32 *positions, RowRange queries)
{
    gint32 latest = positions[queries.first];

    for (guint64 i = 1; i < queries.count; i++)
        latest = MAX(latest, positions[queries.first + i]);
    return latest;
}

/* The run of at most KEYS keys from @first on whose positions don't fall. */
static guint64 run_length(const Mask *mask, const gint32 *positions, guint64 first)
{
    const guint64 most = MIN(KEYS, mask->seq - first);
    guint64 count = 1;

    while (count < most && positions[first + count] >= positions[first + count - 1])
        count++;
    return count;
}

static gboolean next_seen(const Mask *mask, RowRange queries, KeyTile *tile)
{
    const gint32 latest = latest_of(mask->of_queries, queries);

    for (; tile->block < mask->blocks; tile->block++, tile->next = 0) {
        const gint32 *positions = mask->of_keys + tile->block * mask->seq;

        while (tile->next < mask->seq) {
            const guint64 run = run_length(mask, positions, tile->next);

            tile->first = tile->next;
            tile->next += run;
            tile->count = count_until(positions + tile->first, run, latest);
            if (tile->count == 0)
                continue;
            tile->hidden = 0;
            while (mask->of_queries[queries.first + tile->hidden] < positions[tile->first])
                tile->hidden++;
            return TRUE;
        }
    }
    return FALSE;
}

gboolean attention_next_keys(const Mask *mask, RowRange queries, KeyTile *tile)
{
    const guint64 end = queries.first + queries.count;

    if (mask->of_queries != NULL)
        return next_seen(mask, queries, tile);
    if (tile->next >= end)
        return FALSE;
    tile->first = tile->next;
    tile->fresh = tile->first == 0;
    tile->count = MIN(KEYS, end - tile->first);
    tile->next += tile->count;
    return TRUE;
}

guint64 attention_seen(const Mask *mask, guint64 query, const KeyTile *tile)
{
    if (mask->of_queries == NULL)
        return MIN(tile->count, query + 1 - tile->first);
    return count_until(mask->of_keys + tile->block * mask->seq + tile->first, tile->count,
                       mask->of_queries[query]);
}
