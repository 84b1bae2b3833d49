/* Attention by positions: ranks that hold parts of sequences find together what one rank finds,
 * with the keys of all ranks at hand as blocks, or one block after the other in any order. */
#include "exec/device/cpu_attention_tile.h"
#include "tests/exec/kernel_case.h"
#include "tests/exec/kernel_reference.h"

static const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};

/* Which global position a rank's token is. */
typedef gint32 Placement(guint ranks, guint64 seq, guint rank, guint64 token);

/* 2 ranks parts: rank r has part r and, from the other end, part 2 ranks - 1 - r. */
static gint32 zigzag(guint ranks, guint64 seq, guint rank, guint64 token)
{
    const guint64 half = seq / 2;
    const guint64 part = token < half ? rank : 2 * ranks - 1 - rank;

    return (gint32)(part * half + token % half);
}

static gint32 in_order(guint ranks, guint64 seq, guint rank, guint64 token)
{
    (void)ranks;
    return (gint32)(rank * seq + token);
}

static gint32 striped(guint ranks, guint64 seq, guint rank, guint64 token)
{
    (void)seq;
    return (gint32)(token * ranks + rank);
}

/* Runs that fall: the latest positions come first. */
static gint32 late_first(guint ranks, guint64 seq, guint rank, guint64 token)
{
    return zigzag(ranks, seq, rank, (token + seq / 2) % seq);
}

/* A whole problem and how it is cut. */
typedef struct {
    OpSizes whole;
    guint ranks;
    Placement *place;
} Cut;

/* Tiles are 64 queries by 256 keys: parts of a few tokens; of a tile and some; of several tiles.
 * Four query heads a kv head, or one.  Every other one is in bf16. */
static const Cut cuts[] = {
    {{.batch = 2, .seq = 12, .heads = 4, .kv_heads = 1, .head_dim = 6}, 2, zigzag},
    {{.batch = 2, .seq = 18, .heads = 4, .kv_heads = 2, .head_dim = 5}, 3, zigzag},
    {{.batch = 1, .seq = 8, .heads = 2, .kv_heads = 2, .head_dim = 4}, 4, zigzag},
    {{.batch = 1, .seq = 300, .heads = 4, .kv_heads = 1, .head_dim = 6}, 2, zigzag},
    {{.batch = 1, .seq = 1224, .heads = 1, .kv_heads = 1, .head_dim = 4}, 2, zigzag},
    {{.batch = 1, .seq = 1032, .heads = 2, .kv_heads = 1, .head_dim = 8}, 4, zigzag},
    {{.batch = 2, .seq = 201, .heads = 4, .kv_heads = 1, .head_dim = 6}, 3, in_order},
    {{.batch = 2, .seq = 201, .heads = 4, .kv_heads = 1, .head_dim = 6}, 3, striped},
    {{.batch = 2, .seq = 240, .heads = 4, .kv_heads = 1, .head_dim = 6}, 3, late_first},
    {{.batch = 2, .seq = 5, .heads = 4, .kv_heads = 1, .head_dim = 6}, 1, in_order},
};

/* One rank's share of it. */
typedef struct {
    const Cut *cut;
    guint rank;
} Share;

static guint64 part_seq(const Cut *cut)
{
    return cut->whole.seq / cut->ranks;
}

/* ---- cutting and putting together ---- */

/* Where row (batch, token) of @rank is in the whole. */
static guint64 whole_row(const Cut *cut, guint rank, guint64 row)
{
    const guint64 seq = part_seq(cut);

    return row / seq * cut->whole.seq + (guint64)cut->place(cut->ranks, seq, rank, row % seq);
}

/* A share's rows of the whole's operand, to row @first of the part's. */
static void cut_rows(Share share, const KernelCase *whole, guint from, const KernelCase *part,
                     guint to, guint64 first)
{
    const guint64 rows = share.cut->whole.batch * share.cut->whole.seq;
    const guint64 columns = whole->count[from] / rows;

    for (guint64 i = 0; i < rows / share.cut->ranks * columns; i++)
        case_set(part, to, first * columns + i,
                 case_get(whole, from,
                          whole_row(share.cut, share.rank, i / columns) * columns + i % columns));
}

/* The part's rows, added to the whole's. */
static void join_rows(Share share, const KernelCase *part, guint from, guint64 first, double *whole,
                      guint64 columns)
{
    const guint64 rows = share.cut->whole.batch * part_seq(share.cut);

    for (guint64 i = 0; i < rows * columns; i++)
        whole[whole_row(share.cut, share.rank, i / columns) * columns + i % columns] +=
            case_get(part, from, first * columns + i);
}

/* lse (batch, H, T), of the whole to that of the part. */
static guint64 whole_lse(const Cut *cut, guint rank, guint64 i)
{
    const guint64 seq = part_seq(cut);

    return i / seq * cut->whole.seq + (guint64)cut->place(cut->ranks, seq, rank, i % seq);
}

static void set_positions(const Cut *cut, const KernelCase *part, guint operand, guint rank,
                          guint64 first)
{
    for (guint64 i = 0; i < part_seq(cut); i++)
        case_set(part, operand, first + i, cut->place(cut->ranks, part_seq(cut), rank, i));
}

/* ---- the whole, without positions ---- */

static KernelCase whole_case(const Cut *cut, DType dtype)
{
    return case_of_attention(dtype, cut->whole);
}

/* What a bf16 result would be without its last rounding: o and lse of fp64 loops. */
static void whole_want(const KernelCase *whole, double **o, double **lse)
{
    g_autofree double *q = case_values(whole, 0), *k = case_values(whole, 1);
    g_autofree double *v = case_values(whole, 2);
    const double *qkv[] = {q, k, v};

    *o = g_new(double, whole->count[3]);
    *lse = g_new(double, whole->count[4]);
    reference_attention(&whole->op.sizes, qkv, *o, *lse);
}

/* ---- forward ---- */

/* The part of @rank, with room for @blocks of keys; o and lse as after no call at all. */
static KernelCase part_case(const Cut *cut, guint rank, const KernelCase *whole, guint blocks)
{
    const guint ranks = cut->ranks;
    OpSizes s = cut->whole;

    s.seq = part_seq(cut);
    s.chunk = blocks;
    KernelCase c = kernel_case(OP_ATTENTION, whole->op.dtype, s);
    case_add(&c, ACCESS_READ, c.op.dtype, whole->count[0] / ranks);
    case_add(&c, ACCESS_READ, c.op.dtype, whole->count[1] / ranks * blocks);
    case_add(&c, ACCESS_READ, c.op.dtype, whole->count[2] / ranks * blocks);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, whole->count[3] / ranks);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, whole->count[4] / ranks);
    case_add_scratch(&c);
    case_add(&c, ACCESS_READ, DTYPE_INT32, s.seq);
    case_add(&c, ACCESS_READ, DTYPE_INT32, s.seq * blocks);
    c.op.dtype_out = DTYPE_FP32;
    cut_rows((Share){cut, rank}, whole, 0, &c, 0, 0);
    set_positions(cut, &c, 6, rank, 0);
    return c;
}

static void set_block(const Cut *cut, const KernelCase *part, guint block, guint from,
                      const KernelCase *whole)
{
    const guint64 seq = part_seq(cut), rows = cut->whole.batch * seq;

    cut_rows((Share){cut, from}, whole, 1, part, 1, block * rows);
    cut_rows((Share){cut, from}, whole, 2, part, 2, block * rows);
    set_positions(cut, part, 7, from, block * seq);
}

static void check_part(const Cut *cut, guint rank, const KernelCase *part, const KernelCase *whole,
                       const double *o, const double *lse)
{
    const guint64 columns = whole->op.sizes.heads * whole->op.sizes.head_dim;
    g_autofree double *want_o = g_new(double, part->count[3]);
    g_autofree double *want_lse = g_new(double, part->count[4]);

    for (guint64 i = 0; i < part->count[3]; i++)
        want_o[i] = o[whole_row(cut, rank, i / columns) * columns + i % columns];
    for (guint64 i = 0; i < part->count[4]; i++)
        want_lse[i] = lse[whole_lse(cut, rank, i)];
    case_check(part, 3, want_o, 1e-5, 1);
    case_check(part, 4, want_lse, 1e-5, 4);
}

START_TEST(a_part_sees_what_the_whole_sees_in_gathered_blocks)
{
    const Cut *cut = &cuts[_i];
    KernelCase whole = whole_case(cut, dtypes[_i % 2]);
    g_autofree double *o = NULL, *lse = NULL;

    whole_want(&whole, &o, &lse);
    for (guint rank = 0; rank < cut->ranks; rank++) {
        KernelCase part = part_case(cut, rank, &whole, cut->ranks);

        for (guint b = 0; b < cut->ranks; b++)
            set_block(cut, &part, b, b, &whole);
        if (rank == 0)
            case_check_threads(&part);
        case_run(&part, 2);
        check_part(cut, rank, &part, &whole, o, lse);
        kernel_case_clear(&part);
    }
    kernel_case_clear(&whole);
}
END_TEST

/* Up from a rank's own block, as in a ring, and down from the next. */
START_TEST(a_part_merges_blocks_that_come_one_by_one_in_any_order)
{
    const Cut *cut = &cuts[_i];
    KernelCase whole = whole_case(cut, dtypes[_i % 2]);
    g_autofree double *o = NULL, *lse = NULL;

    whole_want(&whole, &o, &lse);
    for (guint order = 0; order < 2 * cut->ranks; order++) {
        const guint rank = order / 2;
        KernelCase part = part_case(cut, rank, &whole, 1);

        for (guint b = 0; b < cut->ranks; b++) {
            const guint from = order % 2 == 0 ? rank + b : rank + 1 + cut->ranks - b;

            part.op.operands[3].access = part.op.operands[4].access =
                b == 0 ? ACCESS_WRITE : ACCESS_UPDATE;
            set_block(cut, &part, 0, from % cut->ranks, &whole);
            case_run(&part, 1);
        }
        check_part(cut, rank, &part, &whole, o, lse);
        kernel_case_clear(&part);
    }
    kernel_case_clear(&whole);
}
END_TEST

/* An update starts from nothing, too: o = 0, lse = -inf. */
START_TEST(an_update_of_nothing_is_a_write)
{
    const Cut *cut = &cuts[1];
    KernelCase whole = whole_case(cut, DTYPE_FP32), written = part_case(cut, 1, &whole, 1);

    set_block(cut, &written, 0, 1, &whole);
    KernelCase updated = case_copy(&written);
    case_fill(&updated, 3, 0);
    case_fill(&updated, 4, (double)-INFINITY);
    updated.op.operands[3].access = updated.op.operands[4].access = ACCESS_UPDATE;
    case_run(&written, 1);
    case_run(&updated, 1);
    for (guint i = 3; i <= 4; i++)
        ck_assert_mem_eq(written.data[i], updated.data[i], written.count[i] * sizeof(float));
    kernel_case_clear(&updated);
    kernel_case_clear(&written);
    kernel_case_clear(&whole);
}
END_TEST

/* Rank 0 in order sees nothing of rank 1's keys. */
START_TEST(a_query_that_sees_nothing_is_zero_or_as_it_was)
{
    const Cut *cut = &cuts[6];
    KernelCase whole = whole_case(cut, DTYPE_BF16), part = part_case(cut, 0, &whole, 1);

    part.type[3] = part.op.dtype_out = DTYPE_BF16;
    set_block(cut, &part, 0, 1, &whole);
    case_run(&part, 1);
    for (guint64 i = 0; i < part.count[3]; i++)
        ck_assert(case_get(&part, 3, i) == 0);
    for (guint64 i = 0; i < part.count[4]; i++)
        ck_assert(case_get(&part, 4, i) == (double)-INFINITY);

    for (guint64 i = 0; i < part.count[3]; i++)
        case_set(&part, 3, i, noise(&part.state));
    for (guint64 i = 0; i < part.count[4]; i++)
        case_set(&part, 4, i, 100 * noise(&part.state));
    KernelCase before = case_copy(&part);
    part.op.operands[3].access = part.op.operands[4].access = ACCESS_UPDATE;
    case_run(&part, 1);
    ck_assert_mem_eq(part.data[3], before.data[3], part.count[3] * 2);
    ck_assert_mem_eq(part.data[4], before.data[4], part.count[4] * sizeof(float));
    kernel_case_clear(&before);
    kernel_case_clear(&part);
    kernel_case_clear(&whole);
}
END_TEST

/* ---- backward ---- */

/* do q k v o lse dq dk dv, of the whole; o and lse are those of fp64 loops. */
static KernelCase whole_backward(const KernelCase *forward)
{
    const DType dtype = forward->op.dtype;
    KernelCase c = kernel_case(OP_ATTENTION_BACKWARD, dtype, forward->op.sizes);
    const guint64 q = forward->count[0], k = forward->count[1], lse = forward->count[4];
    const guint64 counts[] = {q, q, k, k, q, lse, q, k, k};
    g_autofree double *want_o = NULL, *want_lse = NULL;

    for (guint i = 0; i < G_N_ELEMENTS(counts); i++)
        case_add(&c, i < 6 ? ACCESS_READ : ACCESS_WRITE, i == 5 || i > 5 ? DTYPE_FP32 : dtype,
                 counts[i]);
    case_add_scratch(&c);
    c.op.dtype_out = DTYPE_FP32;
    for (guint i = 0; i < 3; i++)
        memcpy(c.data[1 + i], forward->data[i], counts[1 + i] * dtype_bytes(dtype));
    whole_want(forward, &want_o, &want_lse);
    for (guint64 i = 0; i < q; i++)
        case_set(&c, 4, i, want_o[i]);
    for (guint64 i = 0; i < lse; i++)
        case_set(&c, 5, i, want_lse[i]);
    return c;
}

/* With the keys of @blocks ranks, @from[b] each. */
static KernelCase part_backward(const Cut *cut, guint rank, const KernelCase *whole,
                                const guint *from, guint blocks)
{
    const guint64 seq = part_seq(cut), rows = cut->whole.batch * seq;
    OpSizes s = cut->whole;

    s.seq = seq;
    s.chunk = blocks;
    KernelCase c = kernel_case(OP_ATTENTION_BACKWARD, whole->op.dtype, s);
    for (guint i = 0; i < 9; i++) {
        const gboolean keys = i == 2 || i == 3 || i > 6;

        case_add(&c, i < 6 ? ACCESS_READ : ACCESS_WRITE, whole->type[i],
                 whole->count[i] / cut->ranks * (keys ? blocks : 1));
    }
    case_add_scratch(&c);
    case_add(&c, ACCESS_READ, DTYPE_INT32, seq);
    case_add(&c, ACCESS_READ, DTYPE_INT32, seq * blocks);
    c.op.dtype_out = DTYPE_FP32;
    cut_rows((Share){cut, rank}, whole, 0, &c, 0, 0);
    cut_rows((Share){cut, rank}, whole, 1, &c, 1, 0);
    cut_rows((Share){cut, rank}, whole, 4, &c, 4, 0);
    for (guint64 i = 0; i < c.count[5]; i++)
        case_set(&c, 5, i, case_get(whole, 5, whole_lse(cut, rank, i)));
    set_positions(cut, &c, 10, rank, 0);
    for (guint b = 0; b < blocks; b++) {
        cut_rows((Share){cut, from[b]}, whole, 2, &c, 2, b * rows);
        cut_rows((Share){cut, from[b]}, whole, 3, &c, 3, b * rows);
        set_positions(cut, &c, 11, from[b], b * seq);
    }
    return c;
}

/* dq, dk, dv of all ranks, added up. */
typedef struct {
    double *gradient[3];
    guint64 columns[3];
} Joined;

static Joined joined_new(const KernelCase *whole)
{
    const guint64 rows = whole->op.sizes.batch * whole->op.sizes.seq;
    Joined joined;

    for (guint g = 0; g < 3; g++) {
        joined.gradient[g] = g_new0(double, whole->count[6 + g]);
        joined.columns[g] = whole->count[6 + g] / rows;
    }
    return joined;
}

static void joined_check(const Joined *joined, const KernelCase *whole)
{
    for (guint g = 0; g < 3; g++) {
        case_check(whole, 6 + g, joined->gradient[g], 2e-5, 16);
        g_free(joined->gradient[g]);
    }
}

START_TEST(gradients_of_parts_with_gathered_blocks_add_up_to_those_of_the_whole)
{
    const Cut *cut = &cuts[_i];
    const guint from[] = {0, 1, 2, 3};
    const guint64 rows = cut->whole.batch * part_seq(cut);
    KernelCase forward = whole_case(cut, dtypes[_i % 2]), whole = whole_backward(&forward);
    Joined joined = joined_new(&whole);

    case_run(&whole, 2);
    for (guint rank = 0; rank < cut->ranks; rank++) {
        KernelCase part = part_backward(cut, rank, &whole, from, cut->ranks);

        if (rank == 0)
            case_check_threads(&part);
        case_run(&part, 2);
        join_rows((Share){cut, rank}, &part, 6, 0, joined.gradient[0], joined.columns[0]);
        for (guint g = 1; g < 3; g++)
            for (guint b = 0; b < cut->ranks; b++)
                join_rows((Share){cut, b}, &part, 6 + g, b * rows, joined.gradient[g],
                          joined.columns[g]);
        kernel_case_clear(&part);
    }
    joined_check(&joined, &whole);
    kernel_case_clear(&whole);
    kernel_case_clear(&forward);
}
END_TEST

/* dq stays with its rank, dk and dv travel with their keys: each call adds to what is there. */
START_TEST(gradients_of_single_blocks_add_up_to_those_of_the_whole)
{
    const Cut *cut = &cuts[_i];
    KernelCase forward = whole_case(cut, dtypes[_i % 2]), whole = whole_backward(&forward);
    Joined joined = joined_new(&whole);

    case_run(&whole, 2);
    for (guint keys = 0; keys < cut->ranks; keys++) {
        KernelCase last = {.state = 0};

        for (guint step = 0; step < cut->ranks; step++) {
            const guint rank = (keys + step) % cut->ranks;
            KernelCase part = part_backward(cut, rank, &whole, &keys, 1);

            for (guint g = 1; g < 3 && step > 0; g++) {
                part.op.operands[6 + g].access = ACCESS_UPDATE;
                memcpy(part.data[6 + g], last.data[6 + g], part.count[6 + g] * sizeof(float));
            }
            case_run(&part, 1);
            join_rows((Share){cut, rank}, &part, 6, 0, joined.gradient[0], joined.columns[0]);
            kernel_case_clear(&last);
            last = part;
        }
        for (guint g = 1; g < 3; g++)
            join_rows((Share){cut, keys}, &last, 6 + g, 0, joined.gradient[g], joined.columns[g]);
        kernel_case_clear(&last);
    }
    joined_check(&joined, &whole);
    kernel_case_clear(&whole);
    kernel_case_clear(&forward);
}
END_TEST

/* In both types of gradients; once written, once on top of it. */
START_TEST(gradients_are_added_where_they_are_updated)
{
    const Cut *cut = &cuts[1];
    const guint from[] = {0, 1, 2};
    const DType dtype_out = dtypes[_i];
    KernelCase forward = whole_case(cut, DTYPE_BF16), whole = whole_backward(&forward);
    KernelCase part = part_backward(cut, 1, &whole, from, 3);

    part.op.dtype_out = part.type[6] = part.type[7] = part.type[8] = dtype_out;
    case_run(&part, 1);
    g_autofree double *dq = case_values(&part, 6), *dk = case_values(&part, 7);
    g_autofree double *dv = case_values(&part, 8);
    double *const once[] = {dq, dk, dv};
    for (guint g = 0; g < 3; g++) {
        part.op.operands[6 + g].access = ACCESS_UPDATE;
        for (guint64 i = 0; i < part.count[6 + g]; i++)
            once[g][i] *= 2;
    }
    case_run(&part, 1);
    for (guint g = 0; g < 3; g++)
        case_check(&part, 6 + g, once[g], 0, 2);
    kernel_case_clear(&part);
    kernel_case_clear(&whole);
    kernel_case_clear(&forward);
}
END_TEST

/* ---- work ---- */

/* NaN and infinities in what no query sees do no harm, and nor do they when half a tile is seen. */
START_TEST(what_is_hidden_is_not_touched)
{
    const Cut *cut = &cuts[5]; /* halves of 129 tokens */
    KernelCase whole = whole_case(cut, DTYPE_FP32), part = part_case(cut, 2, &whole, 1);

    set_block(cut, &part, 0, 1, &whole); /* its late half is later than all of rank 2's tokens */
    KernelCase spoilt = case_copy(&part);
    for (guint i = 1; i <= 2; i++)
        for (guint64 j = spoilt.count[i] / 2; j < spoilt.count[i]; j++)
            case_set(&spoilt, i, j, j % 2 == 0 ? (double)NAN : (double)INFINITY);
    case_run(&part, 1);
    case_run(&spoilt, 1);
    for (guint i = 3; i <= 4; i++)
        ck_assert_mem_eq(part.data[i], spoilt.data[i], part.count[i] * sizeof(float));
    kernel_case_clear(&spoilt);
    kernel_case_clear(&part);
    kernel_case_clear(&whole);
}
END_TEST

/* Pairs of a query and a key that tiles hold, and those of them that are seen. */
typedef struct {
    guint64 computed, seen;
} Pairs;

static Pairs count_pairs(const Mask *mask)
{
    Pairs pairs = {0, 0};

    for (guint64 first = 0; first < mask->seq; first += QUERIES) {
        const RowRange queries = {first, MIN(QUERIES, mask->seq - first)};
        KeyTile keys = {0};

        while (attention_next_keys(mask, queries, &keys)) {
            pairs.computed += (queries.count - keys.hidden) * keys.count;
            for (guint64 i = 0; i < queries.count; i++)
                pairs.seen += attention_seen(mask, first + i, &keys);
        }
    }
    return pairs;
}

/* Tokens of a part; ranks; whose queries and whose keys; pairs that are seen, by hand, and
 * computed: as many, but for squares on the diagonal.  In order all of an earlier part and nothing
 * of a later one; balanced half of any. */
static const struct {
    Placement *place;
    guint64 seq;
    guint ranks, queries, keys;
    guint64 seen, diagonal;
} works[] = {
    {in_order, 1000, 2, 1, 0, 1000 * 1000, 0},
    {in_order, 1000, 2, 0, 1, 0, 0},
    {in_order, 1000, 2, 0, 0, 1000 * 1001 / 2, 1000 * QUERIES},
    {zigzag, 1000, 4, 2, 1, 1000 * 500, 0},
    {zigzag, 1000, 4, 1, 2, 500 * 1000, 0},
    {zigzag, 1000, 4, 1, 1, 1000 * 1001 / 2, 1500 * QUERIES},
    {late_first, 1000, 4, 1, 2, 500 * 1000, 64 * 1000},
    {zigzag, 32, 4, 1, 2, 16 * 32, 0}, /* both runs in one tile */
    {zigzag, 32, 4, 2, 1, 32 * 16, 0},
};

START_TEST(the_work_is_that_of_the_visible_part)
{
    const guint ranks = works[_i].ranks;
    const guint64 seq = works[_i].seq;
    g_autofree gint32 *queries = g_new(gint32, seq), *keys = g_new(gint32, seq);

    for (guint64 i = 0; i < seq; i++) {
        queries[i] = works[_i].place(ranks, seq, works[_i].queries, i);
        keys[i] = works[_i].place(ranks, seq, works[_i].keys, i);
    }
    const Pairs pairs = count_pairs(&(Mask){queries, keys, 1, seq});
    ck_assert_uint_eq(pairs.seen, works[_i].seen);
    ck_assert_uint_ge(pairs.computed, pairs.seen);
    ck_assert_uint_le(pairs.computed, pairs.seen + works[_i].diagonal);
}
END_TEST

int main(void)
{
    const int loops = G_N_ELEMENTS(cuts);
    Suite *suite = suite_create("attention by positions");
    TCase *forward = tcase_create("forward"), *backward = tcase_create("backward");

    tcase_set_timeout(forward, 120);
    tcase_set_timeout(backward, 120);
    tcase_add_loop_test(forward, a_part_sees_what_the_whole_sees_in_gathered_blocks, 0, loops);
    tcase_add_loop_test(forward, a_part_merges_blocks_that_come_one_by_one_in_any_order, 0, loops);
    tcase_add_test(forward, an_update_of_nothing_is_a_write);
    tcase_add_test(forward, a_query_that_sees_nothing_is_zero_or_as_it_was);
    tcase_add_test(forward, what_is_hidden_is_not_touched);
    tcase_add_loop_test(forward, the_work_is_that_of_the_visible_part, 0, G_N_ELEMENTS(works));
    tcase_add_loop_test(
        backward, gradients_of_parts_with_gathered_blocks_add_up_to_those_of_the_whole, 0, loops);
    tcase_add_loop_test(backward, gradients_of_single_blocks_add_up_to_those_of_the_whole, 0,
                        loops);
    tcase_add_loop_test(backward, gradients_are_added_where_they_are_updated, 0, 2);
    suite_add_tcase(suite, forward);
    suite_add_tcase(suite, backward);
    return suite_run(suite);
}
