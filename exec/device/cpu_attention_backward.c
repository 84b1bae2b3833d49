/* The gradient of attention (cpu_attention.c) by tiles.  One head:
 *
 *     p = e^(s - lse)    dv = p^T do    dp = do v^T    delta_i = sum_d do_id o_id
 *     ds = p * (dp - delta)    dq = a ds k    dk = a ds^T q
 *
 * Source: Dao, FlashAttention-2, arXiv 2307.08691, alg. 2.  o and lse are over all keys, so that
 * gradients by these keys need no others.  fp32 inside, and the same bits on any number of threads.
 */
#include "exec/device/cpu_attention_tile.h"
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_math.h"

enum { DOUT, Q, K, V, O, LSE, DQ, DK, DV, SCRATCH, POSITIONS };

typedef struct {
    const Launch *launch;
    Mask mask;
    float *k, *v, *dk, *dv;                    /* (blocks * T, D) of one kv head */
    float *q, *dout, *o, *dq, *p, *dp, *delta; /* of a tile */
} BackwardTile;

static BackwardTile backward_tile(guint threads, const Launch *launch)
{
    Scratch scratch = attention_scratch(threads, launch, SCRATCH);
    BackwardTile tile = {.launch = launch, .mask = attention_mask(launch, POSITIONS)};
    const guint64 dim = launch->op->sizes.head_dim, all = tile.mask.blocks * tile.mask.seq * dim;

    tile.k = scratch_floats(&scratch, all);
    tile.v = scratch_floats(&scratch, all);
    tile.dk = scratch_floats(&scratch, all);
    tile.dv = scratch_floats(&scratch, all);
    tile.q = scratch_floats(&scratch, QUERIES * dim);
    tile.dout = scratch_floats(&scratch, QUERIES * dim);
    tile.o = scratch_floats(&scratch, QUERIES * dim);
    tile.dq = scratch_floats(&scratch, QUERIES * dim);
    tile.p = scratch_floats(&scratch, QUERIES * KEYS);
    tile.dp = scratch_floats(&scratch, QUERIES * KEYS);
    tile.delta = scratch_floats(&scratch, QUERIES);
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

/* The rows that a tile of scores comes from. */
typedef struct {
    View q, dout;
    const float *lse; /* of the first query */
    RowRange queries;
} QueryTile;

/* The part of a tile of scores that is computed: its rows from the first that sees a key on. */
typedef struct {
    guint64 rows, columns;
    gboolean fresh; /* dq is to be written */
    View q, dout;
    float *p, *dp, *dq;     /* of its first row */
    float *k, *v, *dk, *dv; /* of its first key */
} ScoreTile;

static ScoreTile score_tile(const BackwardTile *tile, const QueryTile *rows, const KeyTile *keys)
{
    const guint64 dim = tile->launch->op->sizes.head_dim, hidden = keys->hidden;
    const guint64 key = (keys->block * tile->mask.seq + keys->first) * dim;

    return (ScoreTile){
        .rows = rows->queries.count - hidden,
        .columns = keys->count,
        .fresh = keys->fresh,
        .q = {rows->q.data + hidden * rows->q.stride, rows->q.stride},
        .dout = {rows->dout.data + hidden * rows->dout.stride, rows->dout.stride},
        .p = tile->p + hidden * keys->count,
        .dp = tile->dp + hidden * keys->count,
        .dq = tile->dq + hidden * dim,
        .k = tile->k + key,
        .v = tile->v + key,
        .dk = tile->dk + key,
        .dv = tile->dv + key,
    };
}

/* p = a q k^T (s, so far) and dp = do v^T. */
static void backward_scores(const ScoreTile *at, const OpSizes *s)
{
    Gemm scores = {.transpose_b = TRUE,
                   .m = at->rows,
                   .n = at->columns,
                   .k = s->head_dim,
                   .a = at->q.data,
                   .b = at->k,
                   .c = at->p,
                   .lda = at->q.stride,
                   .ldb = s->head_dim,
                   .ldc = at->columns,
                   .alpha = attention_scale(s)};

    cpu_gemm(1, &scores);
    scores.a = at->dout.data;
    scores.lda = at->dout.stride;
    scores.b = at->v;
    scores.c = at->dp;
    scores.alpha = 1;
    cpu_gemm(1, &scores);
}

/* s becomes p, dp becomes ds; both 0 where masked. */
static void score_gradients(const BackwardTile *tile, const QueryTile *rows, const KeyTile *keys)
{
    for (guint64 i = keys->hidden; i < rows->queries.count; i++) {
        float *p = tile->p + i * keys->count, *dp = tile->dp + i * keys->count;
        const guint64 seen = attention_seen(&tile->mask, rows->queries.first + i, keys);
        const float lse = rows->lse[i], delta = tile->delta[i];
#pragma omp simd
        for (guint64 j = 0; j < seen; j++) {
            p[j] = cpu_exp(p[j] - lse);
            dp[j] = p[j] * (dp[j] - delta);
        }
        memset(p + seen, 0, (keys->count - seen) * sizeof *p);
        memset(dp + seen, 0, (keys->count - seen) * sizeof *dp);
    }
}

/* dv += p^T do, dk += a ds^T q, dq += a ds k. */
static void backward_sums(const ScoreTile *at, const OpSizes *s)
{
    Gemm sums = {.transpose_a = TRUE,
                 .m = at->columns,
                 .n = s->head_dim,
                 .k = at->rows,
                 .a = at->p,
                 .b = at->dout.data,
                 .c = at->dv,
                 .lda = at->columns,
                 .ldb = at->dout.stride,
                 .ldc = s->head_dim,
                 .alpha = 1,
                 .beta = 1};

    cpu_gemm(1, &sums);
    sums.a = at->dp;
    sums.b = at->q.data;
    sums.ldb = at->q.stride;
    sums.c = at->dk;
    sums.alpha = attention_scale(s);
    cpu_gemm(1, &sums);
    cpu_gemm(1, &(Gemm){.m = at->rows,
                        .n = s->head_dim,
                        .k = at->columns,
                        .a = at->dp,
                        .b = at->k,
                        .c = at->dq,
                        .lda = at->columns,
                        .ldb = s->head_dim,
                        .ldc = s->head_dim,
                        .alpha = attention_scale(s),
                        .beta = at->fresh ? 0 : 1});
}

static void backward_rows(const BackwardTile *tile, guint64 sequence, guint64 head, guint64 first)
{
    const Launch *launch = tile->launch;
    const OpSizes *s = &launch->op->sizes;
    const HeadRows of = attention_head_rows(s, sequence, head, s->heads);
    const RowRange queries = {first, MIN(QUERIES, s->seq - first)};
    const QueryTile rows = {.q = attention_view(launch, Q, of, queries, tile->q),
                            .dout = attention_view(launch, DOUT, of, queries, tile->dout),
                            .lse = (const float *)launch->operand[LSE] +
                                   (sequence * s->heads + head) * s->seq + first,
                            .queries = queries};
    KeyTile keys = {0};

    row_deltas(tile, rows.dout, attention_view(launch, O, of, queries, tile->o), queries.count);
    if (tile->mask.of_queries != NULL)
        memset(tile->dq, 0, queries.count * s->head_dim * sizeof *tile->dq);
    while (attention_next_keys(&tile->mask, queries, &keys)) {
        const ScoreTile at = score_tile(tile, &rows, &keys);

        backward_scores(&at, s);
        score_gradients(tile, &rows, &keys);
        backward_sums(&at, s);
    }
    attention_store(launch, DQ, of, queries, tile->dq);
}

/* All query heads of one kv head, in order: nobody else adds to its dk and dv. */
static void backward_kv_head(const BackwardTile *tile, guint64 sequence, guint64 kv)
{
    const Launch *launch = tile->launch;
    const OpSizes *s = &launch->op->sizes;
    const guint64 group = s->heads / s->kv_heads, block = s->seq * s->head_dim;
    const RowRange all = {0, s->seq};

    for (guint64 b = 0; b < tile->mask.blocks; b++) {
        const HeadRows of = attention_head_rows(s, b * s->batch + sequence, kv, s->kv_heads);

        attention_load(launch, K, launch->op->dtype, of, all, tile->k + b * block);
        attention_load(launch, V, launch->op->dtype, of, all, tile->v + b * block);
    }
    memset(tile->dk, 0, tile->mask.blocks * block * sizeof *tile->dk);
    memset(tile->dv, 0, tile->mask.blocks * block * sizeof *tile->dv);
    for (guint64 head = kv * group; head < (kv + 1) * group; head++)
        for (guint64 first = 0; first < s->seq; first += QUERIES)
            backward_rows(tile, sequence, head, first);
    for (guint64 b = 0; b < tile->mask.blocks; b++) {
        const HeadRows of = attention_head_rows(s, b * s->batch + sequence, kv, s->kv_heads);

        attention_store(launch, DK, of, all, tile->dk + b * block);
        attention_store(launch, DV, of, all, tile->dv + b * block);
    }
}

/* On one thread without OpenMP, as in cpu_loop(). */
void cpu_attention_backward(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    g_assert(s->heads % s->kv_heads == 0);
    if (threads == 1) {
        const BackwardTile tile = backward_tile(threads, launch);

        for (guint64 task = 0; task < s->batch * s->kv_heads; task++)
            backward_kv_head(&tile, task / s->kv_heads, task % s->kv_heads);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        const BackwardTile tile = backward_tile(threads, launch);

#pragma omp for schedule(dynamic, 1)
        for (guint64 task = 0; task < s->batch * s->kv_heads; task++)
            backward_kv_head(&tile, task / s->kv_heads, task % s->kv_heads);
    }
}
