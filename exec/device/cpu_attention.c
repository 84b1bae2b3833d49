/* Attention by tiles; no matrix is larger than a tile.  cpu_attention_backward.c is its gradient.
 *
 * One head: q, o (T, D); k, v (M, D) of kv head h / (H / K); a = 1 / sqrt(D).
 *
 *     s = a q k^T    p = softmax(s)    o = p v    lse = log sum_j e^s_ij
 *
 * over the keys j that query i sees.  Running maximum and sum over tiles of keys (Milakov,
 * Gimelshein, arXiv 1805.02867; tiled as in Dao, FlashAttention-2, arXiv 2307.08691, alg. 1).  They
 * start from what is there: o with maximum lse and sum 1, nothing being 0 with -inf.
 *
 * Everything inside is fp32.  Each result is computed by one thread in a fixed order, so the bits
 * do not depend on the number of threads. */
#include "exec/device/cpu_attention_tile.h"
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_math.h"

#include <math.h>

enum { O = 3, LSE = 4, SCRATCH = 5, POSITIONS = 6 };

typedef struct {
    const Launch *launch;
    Mask mask;
    float *q, *k, *v, *scores, *o, *max, *sum;
} ForwardTile;

static ForwardTile forward_tile(guint threads, const Launch *launch)
{
    const guint64 dim = launch->op->sizes.head_dim;
    Scratch scratch = attention_scratch(threads, launch, SCRATCH);
    ForwardTile tile = {.launch = launch, .mask = attention_mask(launch, POSITIONS)};

    tile.q = scratch_floats(&scratch, QUERIES * dim);
    tile.o = scratch_floats(&scratch, QUERIES * dim);
    tile.k = scratch_floats(&scratch, KEYS * dim);
    tile.v = scratch_floats(&scratch, KEYS * dim);
    tile.scores = scratch_floats(&scratch, QUERIES * KEYS);
    tile.max = scratch_floats(&scratch, QUERIES);
    tile.sum = scratch_floats(&scratch, QUERIES);
    return tile;
}

/* s of one row becomes e^(s - max) with the new maximum, 0 where masked; returns their sum. */
static float exponentials(float *s, guint64 seen, guint64 keys, float max)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (guint64 j = 0; j < seen; j++) {
        s[j] = cpu_exp(s[j] - max);
        sum += s[j];
    }
    memset(s + seen, 0, (keys - seen) * sizeof *s);
    return sum;
}

/* One tile of keys joins the running softmax of the tile's rows. */
static void softmax_rows(const ForwardTile *tile, RowRange queries, const KeyTile *keys)
{
    const guint64 dim = tile->launch->op->sizes.head_dim;

    for (guint64 i = keys->hidden; i < queries.count; i++) {
        float *s = tile->scores + i * keys->count, *o = tile->o + i * dim;
        const guint64 seen = attention_seen(&tile->mask, queries.first + i, keys);
        const float own = cpu_max(s, seen), old = tile->max[i];
        const float max = own > old ? own : old;
        const float factor = max == old ? 1 : cpu_exp(old - max); /* both may be -inf */

        tile->max[i] = max;
        tile->sum[i] = tile->sum[i] * factor + exponentials(s, seen, keys->count, max);
        if (old == -INFINITY)
            continue; /* o is 0, or nothing yet */
#pragma omp simd
        for (guint64 d = 0; d < dim; d++)
            o[d] *= factor;
    }
}

static void start_rows(const ForwardTile *tile, HeadRows of, RowRange queries, const float *lse)
{
    const Launch *launch = tile->launch;
    const gboolean updates = launch_adds(launch, O);

    if (updates)
        attention_load(launch, O, launch->op->dtype_out, of, queries, tile->o);
    else if (tile->mask.of_queries != NULL)
        memset(tile->o, 0, queries.count * launch->op->sizes.head_dim * sizeof *tile->o);
    for (guint64 i = 0; i < queries.count; i++) {
        tile->max[i] = updates ? lse[i] : -INFINITY;
        tile->sum[i] = 1;
    }
}

static void finish_rows(const ForwardTile *tile, HeadRows of, RowRange queries, float *lse)
{
    const Op *op = tile->launch->op;
    const guint64 dim = op->sizes.head_dim;

    for (guint64 i = 0; i < queries.count; i++) {
        float *o = tile->o + i * dim;
        const float factor = 1 / tile->sum[i];
#pragma omp simd
        for (guint64 d = 0; d < dim; d++)
            o[d] *= factor;
        block_write(op->dtype_out, tile->launch->operand[O],
                    of.offset + (queries.first + i) * of.stride, dim, o);
        lse[i] = tile->max[i] + logf(tile->sum[i]);
    }
}

/* o += e^(a q k^T - max) v over one tile of keys. */
static void add_keys(const ForwardTile *tile, View q, RowRange queries, HeadRows of_k,
                     const KeyTile *keys)
{
    const OpSizes *s = &tile->launch->op->sizes;
    const RowRange range = {keys->first, keys->count};
    const View k = attention_view(tile->launch, 1, of_k, range, tile->k);
    const View v = attention_view(tile->launch, 2, of_k, range, tile->v);
    float *scores = tile->scores + keys->hidden * keys->count;

    cpu_gemm(1, &(Gemm){.transpose_b = TRUE,
                        .m = queries.count - keys->hidden,
                        .n = keys->count,
                        .k = s->head_dim,
                        .a = q.data + keys->hidden * q.stride,
                        .b = k.data,
                        .c = scores,
                        .lda = q.stride,
                        .ldb = k.stride,
                        .ldc = keys->count,
                        .alpha = attention_scale(s)});
    softmax_rows(tile, queries, keys);
    cpu_gemm(1, &(Gemm){.m = queries.count - keys->hidden,
                        .n = s->head_dim,
                        .k = keys->count,
                        .a = scores,
                        .b = v.data,
                        .c = tile->o + keys->hidden * s->head_dim,
                        .lda = keys->count,
                        .ldb = v.stride,
                        .ldc = s->head_dim,
                        .alpha = 1,
                        .beta = keys->fresh && !launch_adds(tile->launch, O) ? 0 : 1});
}

/* Queries first .. of one head of one sequence. */
static void forward_rows(const ForwardTile *tile, guint64 sequence, guint64 head, guint64 first)
{
    const OpSizes *s = &tile->launch->op->sizes;
    const guint64 kv = head / (s->heads / s->kv_heads);
    const HeadRows of_q = attention_head_rows(s, sequence, head, s->heads);
    const RowRange queries = {first, MIN(QUERIES, s->seq - first)};
    const View q = attention_view(tile->launch, 0, of_q, queries, tile->q);
    float *lse =
        (float *)tile->launch->operand[LSE] + (sequence * s->heads + head) * s->seq + first;
    KeyTile keys = {0};

    start_rows(tile, of_q, queries, lse);
    while (attention_next_keys(&tile->mask, queries, &keys))
        add_keys(tile, q, queries,
                 attention_head_rows(s, keys.block * s->batch + sequence, kv, s->kv_heads), &keys);
    finish_rows(tile, of_q, queries, lse);
}

/* The longest rows first, so that threads end together. */
static void forward_task(const ForwardTile *tile, const OpSizes *s, guint64 task)
{
    const guint64 tiles = (s->seq + QUERIES - 1) / QUERIES, heads = s->batch * s->heads;

    forward_rows(tile, task % heads / s->heads, task % s->heads,
                 (tiles - 1 - task / heads) * QUERIES);
}

/* On one thread without OpenMP, as in cpu_loop(). */
void cpu_attention(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const guint64 tasks = (s->seq + QUERIES - 1) / QUERIES * s->batch * s->heads;

    g_assert(s->heads % s->kv_heads == 0);
    if (threads == 1) {
        const ForwardTile tile = forward_tile(threads, launch);

        for (guint64 task = 0; task < tasks; task++)
            forward_task(&tile, s, task);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        const ForwardTile tile = forward_tile(threads, launch);

#pragma omp for schedule(dynamic, 1)
        for (guint64 task = 0; task < tasks; task++)
            forward_task(&tile, s, task);
    }
}
