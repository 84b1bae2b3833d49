/* Attention, forward and backward, against plain loops in fp64. */
#include "tests/cuda/cuda_case.h"

typedef struct {
    DType dtype;
    guint64 batch, seq, heads, kv_heads, head_dim, blocks;
    gint positions; /* 0: causal; 1: zigzag of this rank's own; 2: blocks of several ranks */
} Shape;

/* Every way to multiply tiles (fp32 and bf16; 40 and more have tensor cores in bf16 where a
 * multiple of 8, as if 64, 128, 192 or 256), heads that end inside a tile or with an odd pair,
 * sequences that do, groups of query heads. */
static const Shape shapes[] = {
    {DTYPE_FP32, 1, 1, 1, 1, 8, 1, 0},    {DTYPE_FP32, 2, 45, 4, 2, 24, 1, 0},
    {DTYPE_FP32, 1, 70, 2, 1, 72, 1, 0},  {DTYPE_FP32, 1, 40, 1, 1, 200, 1, 0},
    {DTYPE_FP32, 2, 40, 2, 1, 16, 1, 1},  {DTYPE_FP32, 1, 80, 2, 2, 16, 3, 2},
    {DTYPE_BF16, 2, 33, 2, 1, 40, 1, 0},  {DTYPE_BF16, 1, 1, 1, 1, 64, 1, 0},
    {DTYPE_BF16, 2, 150, 2, 1, 64, 1, 0}, {DTYPE_BF16, 1, 200, 2, 2, 128, 1, 0},
    {DTYPE_BF16, 1, 130, 4, 2, 64, 1, 1}, {DTYPE_BF16, 1, 160, 2, 1, 64, 3, 2},
    {DTYPE_BF16, 1, 96, 2, 1, 128, 2, 2}, {DTYPE_BF16, 1, 40, 2, 1, 136, 2, 2},
    {DTYPE_BF16, 1, 72, 2, 1, 80, 1, 0},  {DTYPE_BF16, 1, 70, 2, 1, 96, 2, 2},
    {DTYPE_FP32, 1, 40, 2, 1, 10, 1, 0},  {DTYPE_BF16, 1, 45, 2, 1, 100, 1, 1},
    {DTYPE_BF16, 1, 77, 2, 1, 160, 1, 0}, {DTYPE_BF16, 1, 99, 2, 1, 256, 1, 0},
    {DTYPE_BF16, 1, 40, 2, 1, 200, 2, 2}, {DTYPE_BF16, 1, 40, 1, 1, 202, 2, 2},
};

typedef struct {
    CudaCase c;
    const Shape *s;
    guint64 queries, keys; /* elements of q, and of k */
    Array *q, *k, *v, *dout, *q_positions, *k_positions;
} AttentionCase;

/* Positions of rank @rank of @ranks: chunks rank and 2 ranks - 1 - rank of the sequence. */
static void zigzag(const Shape *s, guint64 rank, guint64 ranks, double *to)
{
    const guint64 half = (s->seq + 1) / 2;

    for (guint64 i = 0; i < s->seq; i++)
        to[i] = (double)(i < half ? rank * half + i : (2 * ranks - 1 - rank) * half + i - half);
}

static AttentionCase attention_case(int i)
{
    AttentionCase a = {.c = cuda_case(), .s = &shapes[i]};
    const Shape *s = a.s;

    a.queries = s->batch * s->seq * s->heads * s->head_dim;
    a.keys = s->blocks * s->batch * s->seq * s->kv_heads * s->head_dim;
    a.q = case_noise(&a.c, s->dtype, a.queries);
    a.k = case_noise(&a.c, s->dtype, a.keys);
    a.v = case_noise(&a.c, s->dtype, a.keys);
    a.dout = case_noise(&a.c, s->dtype, a.queries);
    for (guint64 j = 0; j < a.queries; j++)
        a.q->was[j] *= 4; /* so that softmax is not flat */
    array_fill(a.q);
    if (s->positions == 0)
        return a;
    a.q_positions = case_noise(&a.c, DTYPE_INT32, s->seq);
    a.k_positions = case_noise(&a.c, DTYPE_INT32, s->blocks * s->seq);
    zigzag(s, s->blocks / 2, s->blocks, a.q_positions->was);
    for (guint64 b = 0; b < s->blocks; b++)
        zigzag(s, b, s->blocks, a.k_positions->was + b * s->seq);
    array_fill(a.q_positions);
    array_fill(a.k_positions);
    return a;
}

static CudaAttentionSizes sizes_of(AttentionCase *a, DType dtype_out)
{
    const Shape *s = a->s;
    const guint64 tiles = (s->seq + CUDA_ATTENTION_TILE - 1) / CUDA_ATTENTION_TILE;

    return (CudaAttentionSizes){
        .dtype = s->dtype,
        .dtype_out = dtype_out,
        .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .blocks = s->blocks,
        .q_positions = a->q_positions != NULL ? a->q_positions->p : NULL,
        .k_positions = a->k_positions != NULL ? a->k_positions->p : NULL,
        .scratch =
            case_scratch(&a->c, 8 * (s->batch * s->seq * s->heads + (s->blocks + 1) * tiles)),
    };
}

/* ---- plain loops ---- */

static gboolean sees(const AttentionCase *a, guint64 query, guint64 block, guint64 key)
{
    if (a->q_positions == NULL)
        return key <= query;
    return a->k_positions->was[block * a->s->seq + key] <= a->q_positions->was[query];
}

/* What one query sees of one head: probabilities of all keys (blocks, T), and their lse. */
typedef struct {
    guint64 sequence, head, query;
    const double *q;
    double *p, lse;
} Query;

static guint64 key_offset(const AttentionCase *a, const Query *query, guint64 j)
{
    const Shape *s = a->s;
    const guint64 row = (j / s->seq * s->batch + query->sequence) * s->seq + j % s->seq;

    return (row * s->kv_heads + query->head / (s->heads / s->kv_heads)) * s->head_dim;
}

static double dot(const double *a, const double *b, guint64 n)
{
    double sum = 0;

    for (guint64 d = 0; d < n; d++)
        sum += a[d] * b[d];
    return sum;
}

static guint64 query_offset(const Shape *s, const Query *query)
{
    return ((query->sequence * s->seq + query->query) * s->heads + query->head) * s->head_dim;
}

static void probabilities(const AttentionCase *a, Query *query)
{
    const Shape *s = a->s;
    double sum = 0;

    query->q = a->q->was + query_offset(s, query);
    for (guint64 j = 0; j < s->blocks * s->seq; j++) {
        query->p[j] = 0;
        if (!sees(a, query->query, j / s->seq, j % s->seq))
            continue;
        query->p[j] = exp(dot(query->q, a->k->was + key_offset(a, query, j), s->head_dim) /
                          sqrt((double)s->head_dim));
        sum += query->p[j];
    }
    for (guint64 j = 0; j < s->blocks * s->seq && sum > 0; j++)
        query->p[j] /= sum;
    query->lse = log(sum);
}

typedef struct {
    double *o, *lse, *dq, *dk, *dv;
} Wanted;

static void add_query(const AttentionCase *a, const Query *query, Wanted *w)
{
    const Shape *s = a->s;
    const guint64 at = query_offset(s, query), dim = s->head_dim;
    const double *dout = a->dout->was + at, scale = 1 / sqrt((double)dim);
    double delta = 0;

    for (guint64 j = 0; j < s->blocks * s->seq; j++)
        for (guint64 d = 0; d < dim; d++)
            w->o[at + d] += query->p[j] * a->v->was[key_offset(a, query, j) + d];
    delta = dot(dout, w->o + at, dim);
    for (guint64 j = 0; j < s->blocks * s->seq; j++) {
        const guint64 key = key_offset(a, query, j);
        const double ds = query->p[j] * (dot(dout, a->v->was + key, dim) - delta) * scale;

        for (guint64 d = 0; d < dim; d++) {
            w->dq[at + d] += ds * a->k->was[key + d];
            w->dk[key + d] += ds * query->q[d];
            w->dv[key + d] += query->p[j] * dout[d];
        }
    }
}

static Wanted plain_loops(AttentionCase *a)
{
    const Shape *s = a->s;
    Wanted w = {case_values(&a->c, a->queries), case_values(&a->c, s->batch * s->heads * s->seq),
                case_values(&a->c, a->queries), case_values(&a->c, a->keys),
                case_values(&a->c, a->keys)};
    Query query = {.p = case_values(&a->c, s->blocks * s->seq)};

    for (guint64 n = 0; n < s->batch * s->heads * s->seq; n++) {
        query.sequence = n / (s->heads * s->seq);
        query.head = n / s->seq % s->heads;
        query.query = n % s->seq;
        probabilities(a, &query);
        w.lse[n] = query.lse;
        add_query(a, &query, &w);
    }
    return w;
}

/* ---- tests ---- */

typedef struct {
    Array *o, *lse;
} Outputs;

static Outputs forward(AttentionCase *a, DType dtype_out)
{
    const Shape *s = a->s;
    const Outputs out = {case_output(&a->c, dtype_out, a->queries),
                         case_output(&a->c, DTYPE_FP32, s->batch * s->heads * s->seq)};

    cuda_attention(&(CudaAttention){.sizes = sizes_of(a, dtype_out),
                                    .q = a->q->p,
                                    .k = a->k->p,
                                    .v = a->v->p,
                                    .o = out.o->p,
                                    .lse = out.lse->p},
                   a->c.stream);
    return out;
}

/* p is rounded to bf16 once more before it is multiplied. */
static const double product_bound = 2 * BF16_ROUNDED;

START_TEST(attention_equals_plain_loops)
{
    AttentionCase a = attention_case(_i);
    const Wanted want = plain_loops(&a);
    const double bound = a.s->dtype == DTYPE_BF16 ? product_bound : 1e-11;

    for (DType type = DTYPE_FP32; type <= a.s->dtype; type++) {
        const Outputs out = forward(&a, type);

        array_check(&a.c, out.o, want.o, bound, product_bound);
        array_check(&a.c, out.lse, want.lse, 1e-11, 0);
    }
    cuda_case_clear(&a.c);
}
END_TEST

/* @dtype_out of what is written (or added to). */
static void check_backward(AttentionCase *a, const Wanted *want, const Outputs *out,
                           DType dtype_out, gboolean adds)
{
    Array *(*make)(CudaCase *, DType, guint64) = adds ? case_noise : case_output;
    Array *results[] = {make(&a->c, dtype_out, a->queries), make(&a->c, dtype_out, a->keys),
                        make(&a->c, dtype_out, a->keys)};
    const double *wanted[] = {want->dq, want->dk, want->dv};
    const double bound = a->s->dtype == DTYPE_BF16 ? 4 * BF16_ROUNDED : 1e-10;

    cuda_attention_backward(&(CudaAttentionBackward){.sizes = sizes_of(a, dtype_out),
                                                     .dout = a->dout->p,
                                                     .q = a->q->p,
                                                     .k = a->k->p,
                                                     .v = a->v->p,
                                                     .o = out->o->p,
                                                     .lse = out->lse->p,
                                                     .dq = results[0]->p,
                                                     .dk = results[1]->p,
                                                     .dv = results[2]->p,
                                                     .adds_dq = adds,
                                                     .adds_dk = adds,
                                                     .adds_dv = adds},
                            a->c.stream);
    for (guint r = 0; r < 3; r++) {
        double *sum = case_values(&a->c, results[r]->count);

        for (guint64 i = 0; i < results[r]->count; i++)
            sum[i] = wanted[r][i] + (adds ? results[r]->was[i] : 0);
        if (a->s->seq > 1 || adds || r == 2) /* dq, dk of a single key are 0 but for rounding */
            array_check(&a->c, results[r], sum, bound, 4 * BF16_ROUNDED);
    }
}

START_TEST(gradients_of_attention_equal_plain_loops)
{
    AttentionCase a = attention_case(_i);
    const Wanted want = plain_loops(&a);
    const Outputs out = forward(&a, a.s->dtype);

    for (DType type = DTYPE_FP32; type <= a.s->dtype; type++) {
        check_backward(&a, &want, &out, type, FALSE);
        check_backward(&a, &want, &out, type, TRUE);
    }
    cuda_case_clear(&a.c);
}
END_TEST

/* One call a block of keys, as a ring does, in an order that starts with keys that hide most. */
START_TEST(calls_over_blocks_of_keys_add_up_to_one_over_all)
{
    AttentionCase a = attention_case(_i);
    const Shape *s = a.s;
    const Wanted want = plain_loops(&a);
    const guint64 block = a.keys / s->blocks;
    const double bound = s->dtype == DTYPE_BF16 ? product_bound : 1e-11;
    Array *o = case_output(&a.c, DTYPE_FP32, a.queries);
    Array *lse = case_output(&a.c, DTYPE_FP32, s->batch * s->heads * s->seq);
    CudaAttention call = {.sizes = sizes_of(&a, DTYPE_FP32), .q = a.q->p, .o = o->p, .lse = lse->p};

    if (s->positions != 2)
        goto done;
    call.sizes.blocks = 1;
    for (guint64 b = s->blocks; b-- > 0;) {
        const gsize offset = b * block * dtype_bytes(s->dtype);

        call.k = (const char *)a.k->p + offset;
        call.v = (const char *)a.v->p + offset;
        call.sizes.k_positions = (const gint32 *)a.k_positions->p + b * s->seq;
        cuda_attention(&call, a.c.stream);
        call.adds = TRUE;
    }
    array_check(&a.c, o, want.o, bound, 0);
    array_check(&a.c, lse, want.lse, 1e-11, 0);
done:
    cuda_case_clear(&a.c);
}
END_TEST

/* Keys at positions behind every query's. */
static void hide_keys(AttentionCase *a)
{
    for (guint64 j = 0; j < a->k_positions->count; j++)
        a->k_positions->was[j] = 1e6;
    array_fill(a->k_positions);
}

START_TEST(queries_that_see_nothing_get_0_or_leave_what_is_there)
{
    AttentionCase a = attention_case(_i);
    const guint64 rows = a.s->batch * a.s->heads * a.s->seq;
    Array *o = case_output(&a.c, DTYPE_FP32, a.queries);
    Array *lse = case_output(&a.c, DTYPE_FP32, rows);

    if (a.s->positions == 0)
        goto done;
    hide_keys(&a);
    CudaAttention call = {.sizes = sizes_of(&a, DTYPE_FP32),
                          .q = a.q->p,
                          .k = a.k->p,
                          .v = a.v->p,
                          .o = o->p,
                          .lse = lse->p};

    cuda_attention(&call, a.c.stream);
    const double *got = array_now(&a.c, o);

    for (guint64 i = 0; i < a.queries; i++)
        ck_assert(got[i] == 0);
    ck_assert(array_now(&a.c, lse)[rows - 1] == -(double)INFINITY);
    for (guint64 i = 0; i < a.queries; i++)
        o->was[i] = 1;
    for (guint64 i = 0; i < rows; i++)
        lse->was[i] = 2;
    array_fill(o);
    array_fill(lse);
    call.adds = TRUE;
    cuda_attention(&call, a.c.stream);
    array_check(&a.c, o, o->was, 0, 0);
    array_check(&a.c, lse, lse->was, 0, 0);
done:
    cuda_case_clear(&a.c);
}
END_TEST

/* NaN in the last block, which no query sees any of: whoever multiplies it, finds out. */
START_TEST(tiles_that_nobody_sees_are_not_touched)
{
    AttentionCase a = attention_case(_i);
    const guint64 block = a.keys / a.s->blocks, hidden = a.keys - block;

    if (a.s->positions != 2)
        goto done;
    for (guint64 j = 0; j < a.s->seq; j++)
        a.k_positions->was[(a.s->blocks - 1) * a.s->seq + j] = 1e6;
    array_fill(a.k_positions);
    const Wanted want = plain_loops(&a);

    for (guint64 i = hidden; i < a.keys; i++)
        a.k->was[i] = a.v->was[i] = (double)NAN;
    array_fill(a.k);
    array_fill(a.v);
    const Outputs out = forward(&a, a.s->dtype);

    array_check(&a.c, out.o, want.o, 1e-11, product_bound);
    check_backward(&a, &want, &out, a.s->dtype, FALSE);
done:
    cuda_case_clear(&a.c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda attention");
    TCase *tests = tcase_create("attention");
    const int num = G_N_ELEMENTS(shapes);

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, attention_equals_plain_loops, 0, num);
    tcase_add_loop_test(tests, gradients_of_attention_equal_plain_loops, 0, num);
    tcase_add_loop_test(tests, calls_over_blocks_of_keys_add_up_to_one_over_all, 0, num);
    tcase_add_loop_test(tests, queries_that_see_nothing_get_0_or_leave_what_is_there, 0, num);
    tcase_add_loop_test(tests, tiles_that_nobody_sees_are_not_touched, 0, num);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
