/* Causal attention by tiles, forward and backward; no matrix is larger than a tile.
 *
 * One head: q, o (T, D); k, v (T, D) of kv head h / (H / K); a = 1 / sqrt(D); row i sees j <= i.
 *
 *     s = a q k^T    p = softmax(s)    o = p v    lse = log sum_j e^s_ij
 *
 * Forward: running maximum and sum over tiles of keys (Milakov, Gimelshein, arXiv 1805.02867; tiled
 * as in Dao, FlashAttention-2, arXiv 2307.08691, alg. 1).  Backward (alg. 2):
 *
 *     p = e^(s - lse)    dv = p^T do    dp = do v^T    delta_i = sum_d do_id o_id
 *     ds = p * (dp - delta)    dq = a ds k    dk = a ds^T q
 *
 * Everything inside is fp32.  Each result is computed by one thread in a fixed order, so the bits
 * do not depend on the number of threads. */
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_math.h"

#include <math.h>
#include <omp.h>

enum { QUERIES = CPU_ATTENTION_QUERIES, KEYS = CPU_ATTENTION_KEYS };

/* A tile of keys that holds a tile's last query holds its first one too: no row is without keys. */
G_STATIC_ASSERT(CPU_ATTENTION_KEYS % CPU_ATTENTION_QUERIES == 0);

/* Rows of one head inside (N, heads * D): element (row, d) is at offset + row * stride + d. */
typedef struct {
    guint64 offset, stride;
} HeadRows;

static HeadRows head_rows(const OpSizes *s, guint64 sequence, guint64 head, guint64 heads)
{
    const guint64 stride = heads * s->head_dim;

    return (HeadRows){sequence * s->seq * stride + head * s->head_dim, stride};
}

/* A matrix of fp32 rows. */
typedef struct {
    const float *data;
    guint64 stride;
} View;

/* Rows first .. first + rows of a head: where they lie if fp32, else widened into @buffer. */
static View view_rows(const Launch *launch, guint operand, HeadRows of, const guint64 range[2],
                      float *buffer)
{
    const DType dtype = launch->op->dtype;
    const guint64 dim = launch->op->sizes.head_dim;
    const guint64 start = of.offset + range[0] * of.stride;

    if (dtype == DTYPE_FP32)
        return (View){(const float *)launch->operand[operand] + start, of.stride};
    for (guint64 i = 0; i < range[1]; i++)
        block_read(dtype, launch->operand[operand], start + i * of.stride, dim, buffer + i * dim);
    return (View){buffer, dim};
}

static void write_rows(const Launch *launch, guint operand, HeadRows of, const guint64 range[2],
                       const float *rows)
{
    const guint64 dim = launch->op->sizes.head_dim;

    for (guint64 i = 0; i < range[1]; i++)
        block_write(launch->op->dtype, launch->operand[operand],
                    of.offset + (range[0] + i) * of.stride, dim, rows + i * dim);
}

static float scale_of(const OpSizes *s)
{
    return (float)(1 / sqrt((double)s->head_dim));
}

/* Columns of a row of a tile that the mask lets through. */
static guint64 visible(guint64 query, guint64 first_key, guint64 keys)
{
    return MIN(keys, query + 1 - first_key);
}

/* This thread's equal share. */
static Scratch thread_scratch(guint threads, const Launch *launch, guint operand)
{
    Scratch scratch = scratch_open(threads, launch, operand);

    scratch.left /= threads;
    scratch.next += (guint)omp_get_thread_num() * scratch.left;
    return scratch;
}

/* ---- forward ---- */

typedef struct {
    const Launch *launch;
    float *q, *k, *v, *scores, *o, *max, *sum;
} ForwardTile;

static ForwardTile forward_tile(Scratch *scratch, const Launch *launch)
{
    const guint64 dim = launch->op->sizes.head_dim;
    ForwardTile tile = {.launch = launch};

    tile.q = scratch_floats(scratch, QUERIES * dim);
    tile.o = scratch_floats(scratch, QUERIES * dim);
    tile.k = scratch_floats(scratch, KEYS * dim);
    tile.v = scratch_floats(scratch, KEYS * dim);
    tile.scores = scratch_floats(scratch, QUERIES * KEYS);
    tile.max = scratch_floats(scratch, QUERIES);
    tile.sum = scratch_floats(scratch, QUERIES);
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

static float row_max(const float *s, guint64 n)
{
    float max = -INFINITY;

#pragma omp simd reduction(max : max)
    for (guint64 j = 0; j < n; j++)
        max = s[j] > max ? s[j] : max;
    return max;
}

/* One tile of keys joins the running softmax of the tile's rows. */
static void softmax_rows(const ForwardTile *tile, const guint64 queries[2], const guint64 keys[2])
{
    const guint64 dim = tile->launch->op->sizes.head_dim;

    for (guint64 i = 0; i < queries[1]; i++) {
        float *s = tile->scores + i * keys[1], *o = tile->o + i * dim;
        const guint64 seen = visible(queries[0] + i, keys[0], keys[1]);
        const float own = row_max(s, seen), old = tile->max[i];
        const float max = own > old ? own : old;
        const float sum = exponentials(s, seen, keys[1], max);

        tile->max[i] = max;
        if (keys[0] == 0) {
            tile->sum[i] = sum;
            continue;
        }
        const float factor = cpu_exp(old - max);
        tile->sum[i] = tile->sum[i] * factor + sum;
#pragma omp simd
        for (guint64 d = 0; d < dim; d++)
            o[d] *= factor;
    }
}

static void finish_rows(const ForwardTile *tile, guint64 rows, float *lse)
{
    const guint64 dim = tile->launch->op->sizes.head_dim;

    for (guint64 i = 0; i < rows; i++) {
        float *o = tile->o + i * dim;
        const float factor = 1 / tile->sum[i];
#pragma omp simd
        for (guint64 d = 0; d < dim; d++)
            o[d] *= factor;
        lse[i] = tile->max[i] + logf(tile->sum[i]);
    }
}

/* Queries first .. of one head of one sequence. */
static void forward_rows(const ForwardTile *tile, guint64 sequence, guint64 head, guint64 first)
{
    const Launch *launch = tile->launch;
    const OpSizes *s = &launch->op->sizes;
    const guint64 dim = s->head_dim, kv = head / (s->heads / s->kv_heads);
    const HeadRows of_q = head_rows(s, sequence, head, s->heads);
    const HeadRows of_k = head_rows(s, sequence, kv, s->kv_heads);
    const guint64 queries[2] = {first, MIN(QUERIES, s->seq - first)};
    const guint64 end = first + queries[1];
    const View q = view_rows(launch, 0, of_q, queries, tile->q);
    float *lse = (float *)launch->operand[4] + (sequence * s->heads + head) * s->seq;

    for (guint i = 0; i < QUERIES; i++)
        tile->max[i] = -INFINITY;
    for (guint64 key = 0; key < end; key += KEYS) {
        const guint64 keys[2] = {key, MIN(KEYS, end - key)};
        const View k = view_rows(launch, 1, of_k, keys, tile->k);
        const View v = view_rows(launch, 2, of_k, keys, tile->v);

        cpu_gemm(1, &(Gemm){.transpose_b = TRUE,
                            .m = queries[1],
                            .n = keys[1],
                            .k = dim,
                            .a = q.data,
                            .b = k.data,
                            .c = tile->scores,
                            .lda = q.stride,
                            .ldb = k.stride,
                            .ldc = keys[1],
                            .alpha = scale_of(s)});
        softmax_rows(tile, queries, keys);
        cpu_gemm(1, &(Gemm){.m = queries[1],
                            .n = dim,
                            .k = keys[1],
                            .a = tile->scores,
                            .b = v.data,
                            .c = tile->o,
                            .lda = keys[1],
                            .ldb = v.stride,
                            .ldc = dim,
                            .alpha = 1,
                            .beta = key > 0 ? 1 : 0});
    }
    finish_rows(tile, queries[1], lse + first);
    write_rows(launch, 3, of_q, queries, tile->o);
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
        Scratch scratch = thread_scratch(threads, launch, 5);
        const ForwardTile tile = forward_tile(&scratch, launch);

        for (guint64 task = 0; task < tasks; task++)
            forward_task(&tile, s, task);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch = thread_scratch(threads, launch, 5);
        const ForwardTile tile = forward_tile(&scratch, launch);

#pragma omp for schedule(dynamic, 1)
        for (guint64 task = 0; task < tasks; task++)
            forward_task(&tile, s, task);
    }
}

/* ---- backward ---- */

typedef struct {
    const Launch *launch;
    float *k, *v, *dk, *dv;                    /* (T, D) of one kv head */
    float *q, *dout, *o, *dq, *p, *dp, *delta; /* of a tile */
} BackwardTile;

static BackwardTile backward_tile(Scratch *scratch, const Launch *launch)
{
    const guint64 dim = launch->op->sizes.head_dim, all = launch->op->sizes.seq * dim;
    BackwardTile tile = {.launch = launch};

    tile.k = scratch_floats(scratch, all);
    tile.v = scratch_floats(scratch, all);
    tile.dk = scratch_floats(scratch, all);
    tile.dv = scratch_floats(scratch, all);
    tile.q = scratch_floats(scratch, QUERIES * dim);
    tile.dout = scratch_floats(scratch, QUERIES * dim);
    tile.o = scratch_floats(scratch, QUERIES * dim);
    tile.dq = scratch_floats(scratch, QUERIES * dim);
    tile.p = scratch_floats(scratch, QUERIES * KEYS);
    tile.dp = scratch_floats(scratch, QUERIES * KEYS);
    tile.delta = scratch_floats(scratch, QUERIES);
    return tile;
}

static void row_deltas(const BackwardTile *tile, View dout, View o, guint64 rows)
{
    const guint64 dim = tile->launch->op->sizes.head_dim;

    for (guint64 i = 0; i < rows; i++) {
        const float *a = dout.data + i * dout.stride, *b = o.data + i * o.stride;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (guint64 d = 0; d < dim; d++)
            sum += a[d] * b[d];
        tile->delta[i] = sum;
    }
}

/* s becomes p, dp becomes ds; both 0 where masked. */
static void score_gradients(const BackwardTile *tile, const guint64 queries[2],
                            const guint64 keys[2], const float *lse)
{
    for (guint64 i = 0; i < queries[1]; i++) {
        float *p = tile->p + i * keys[1], *dp = tile->dp + i * keys[1];
        const guint64 seen = visible(queries[0] + i, keys[0], keys[1]);
        const float row_lse = lse[queries[0] + i], delta = tile->delta[i];
#pragma omp simd
        for (guint64 j = 0; j < seen; j++) {
            p[j] = cpu_exp(p[j] - row_lse);
            dp[j] = p[j] * (dp[j] - delta);
        }
        memset(p + seen, 0, (keys[1] - seen) * sizeof *p);
        memset(dp + seen, 0, (keys[1] - seen) * sizeof *dp);
    }
}

/* The rows of q and do that a tile of scores comes from. */
typedef struct {
    View q, dout;
    const float *lse;
    guint64 queries[2];
} QueryTile;

/* s = a q k^T and dp = do v^T. */
static void backward_scores(const BackwardTile *tile, const QueryTile *rows, const guint64 keys[2])
{
    const OpSizes *s = &tile->launch->op->sizes;
    const guint64 dim = s->head_dim;
    Gemm scores = {.transpose_b = TRUE,
                   .m = rows->queries[1],
                   .n = keys[1],
                   .k = dim,
                   .a = rows->q.data,
                   .b = tile->k + keys[0] * dim,
                   .c = tile->p,
                   .lda = rows->q.stride,
                   .ldb = dim,
                   .ldc = keys[1],
                   .alpha = scale_of(s)};

    cpu_gemm(1, &scores);
    scores.a = rows->dout.data;
    scores.lda = rows->dout.stride;
    scores.b = tile->v + keys[0] * dim;
    scores.c = tile->dp;
    scores.alpha = 1;
    cpu_gemm(1, &scores);
}

/* dv += p^T do, dk += a ds^T q, dq += a ds k. */
static void backward_sums(const BackwardTile *tile, const QueryTile *rows, const guint64 keys[2])
{
    const OpSizes *s = &tile->launch->op->sizes;
    const guint64 dim = s->head_dim;
    Gemm sums = {.transpose_a = TRUE,
                 .m = keys[1],
                 .n = dim,
                 .k = rows->queries[1],
                 .a = tile->p,
                 .b = rows->dout.data,
                 .c = tile->dv + keys[0] * dim,
                 .lda = keys[1],
                 .ldb = rows->dout.stride,
                 .ldc = dim,
                 .alpha = 1,
                 .beta = 1};

    cpu_gemm(1, &sums);
    sums.a = tile->dp;
    sums.b = rows->q.data;
    sums.ldb = rows->q.stride;
    sums.c = tile->dk + keys[0] * dim;
    sums.alpha = scale_of(s);
    cpu_gemm(1, &sums);
    cpu_gemm(1, &(Gemm){.m = rows->queries[1],
                        .n = dim,
                        .k = keys[1],
                        .a = tile->dp,
                        .b = tile->k + keys[0] * dim,
                        .c = tile->dq,
                        .lda = keys[1],
                        .ldb = dim,
                        .ldc = dim,
                        .alpha = scale_of(s),
                        .beta = keys[0] > 0 ? 1 : 0});
}

static void backward_rows(const BackwardTile *tile, guint64 sequence, guint64 head, guint64 first)
{
    const Launch *launch = tile->launch;
    const OpSizes *s = &launch->op->sizes;
    const HeadRows of = head_rows(s, sequence, head, s->heads);
    QueryTile rows = {.queries = {first, MIN(QUERIES, s->seq - first)}};
    const guint64 end = first + rows.queries[1];

    rows.lse = (const float *)launch->operand[5] + (sequence * s->heads + head) * s->seq;
    rows.dout = view_rows(launch, 0, of, rows.queries, tile->dout);
    rows.q = view_rows(launch, 1, of, rows.queries, tile->q);
    row_deltas(tile, rows.dout, view_rows(launch, 4, of, rows.queries, tile->o), rows.queries[1]);
    for (guint64 key = 0; key < end; key += KEYS) {
        const guint64 keys[2] = {key, MIN(KEYS, end - key)};

        backward_scores(tile, &rows, keys);
        score_gradients(tile, rows.queries, keys, rows.lse);
        backward_sums(tile, &rows, keys);
    }
    write_rows(launch, 6, of, rows.queries, tile->dq);
}

static void copy_rows(const Launch *launch, guint operand, HeadRows of, float *to)
{
    const OpSizes *s = &launch->op->sizes;

    for (guint64 i = 0; i < s->seq; i++) {
        float *row = to + i * s->head_dim;
        const float *values = block_read(launch->op->dtype, launch->operand[operand],
                                         of.offset + i * of.stride, s->head_dim, row);

        if (values != row)
            memcpy(row, values, s->head_dim * sizeof *row);
    }
}

/* All query heads of one kv head, in order: nobody else adds to its dk and dv. */
static void backward_kv_head(const BackwardTile *tile, guint64 sequence, guint64 kv)
{
    const Launch *launch = tile->launch;
    const OpSizes *s = &launch->op->sizes;
    const guint64 group = s->heads / s->kv_heads, all[2] = {0, s->seq};
    const HeadRows of = head_rows(s, sequence, kv, s->kv_heads);

    copy_rows(launch, 2, of, tile->k);
    copy_rows(launch, 3, of, tile->v);
    memset(tile->dk, 0, s->seq * s->head_dim * sizeof(float));
    memset(tile->dv, 0, s->seq * s->head_dim * sizeof(float));
    for (guint64 head = kv * group; head < (kv + 1) * group; head++)
        for (guint64 first = 0; first < s->seq; first += QUERIES)
            backward_rows(tile, sequence, head, first);
    write_rows(launch, 7, of, all, tile->dk);
    write_rows(launch, 8, of, all, tile->dv);
}

void cpu_attention_backward(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    g_assert(s->heads % s->kv_heads == 0);
    if (threads == 1) {
        Scratch scratch = thread_scratch(threads, launch, 9);
        const BackwardTile tile = backward_tile(&scratch, launch);

        for (guint64 task = 0; task < s->batch * s->kv_heads; task++)
            backward_kv_head(&tile, task / s->kv_heads, task % s->kv_heads);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch = thread_scratch(threads, launch, 9);
        const BackwardTile tile = backward_tile(&scratch, launch);
#pragma omp for schedule(dynamic, 1)
        for (guint64 task = 0; task < s->batch * s->kv_heads; task++)
            backward_kv_head(&tile, task / s->kv_heads, task % s->kv_heads);
    }
}
