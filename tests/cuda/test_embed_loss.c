/* Embedding, softmax cross-entropy on logits, and counting labels, against plain loops. */
#include "tests/cuda/cuda_case.h"

/* ---- embedding ---- */

enum { ROWS = 300, VOCAB = 40, FIRST = 11, COUNT = 17 };

static const guint64 widths[] = {1, 250, 2304};

/* Index bits: type, alignment, range, width. */
enum { LOOPS = 8 * G_N_ELEMENTS(widths) };

typedef struct {
    CudaCase c;
    DType dtype;
    guint64 columns, first, count;
    Array *tokens, *range; /* range NULL: all words */
} EmbedCase;

/* One token takes every third row, so that its rows are in several blocks of the search. */
static EmbedCase embed_case(int i)
{
    EmbedCase e = {
        .c = cuda_case(), .dtype = loop_dtype(i), .columns = widths[i / 8], .count = VOCAB};

    e.c.unaligned = i / 2 % 2;
    e.tokens = case_noise(&e.c, DTYPE_INT32, ROWS);
    for (guint64 n = 0; n < ROWS; n++)
        e.tokens->was[n] = n % 3 == 0 ? 13 : floor((noise(&e.c.state) + 1) / 2 * VOCAB);
    array_fill(e.tokens);
    if (i / 4 % 2) {
        e.first = FIRST;
        e.count = COUNT;
        e.range = case_noise(&e.c, DTYPE_FP64, 2);
        e.range->was[0] = FIRST;
        e.range->was[1] = COUNT;
        array_fill(e.range);
    }
    return e;
}

static gboolean has_word(const EmbedCase *e, guint64 n, guint64 *row)
{
    *row = (guint64)e->tokens->was[n] - e->first;
    return *row < e->count;
}

static void check_embed(int i, gboolean adds)
{
    EmbedCase e = embed_case(i);
    Array *weight = case_noise(&e.c, e.dtype, e.count * e.columns);
    Array *x = (adds ? case_noise : case_output)(&e.c, e.dtype, ROWS * e.columns);
    double *want = case_values(&e.c, x->count);

    for (guint64 j = 0; j < x->count; j++) {
        guint64 row;
        const gboolean found = has_word(&e, j / e.columns, &row);

        want[j] =
            (adds ? x->was[j] : 0) + (found ? weight->was[row * e.columns + j % e.columns] : 0);
    }
    cuda_embed(&(CudaEmbed){e.dtype, ROWS, e.count, e.columns, e.tokens->p, weight->p, x->p,
                            e.range != NULL ? e.range->p : NULL, adds},
               e.c.stream);
    array_check(&e.c, x, want, adds ? 1e-14 : 0, adds ? BF16_ROUNDED : 0);
    cuda_case_clear(&e.c);
}

START_TEST(embed_gathers_rows_and_gives_0_for_words_of_others)
{
    check_embed(_i, FALSE);
}
END_TEST

START_TEST(embed_adds_to_what_is_there)
{
    check_embed(_i, TRUE);
}
END_TEST

START_TEST(a_token_that_is_no_word_gives_nan)
{
    g_auto(CudaCase) c = cuda_case();
    Array *tokens = case_noise(&c, DTYPE_INT32, 2), *x = case_noise(&c, DTYPE_FP32, 2);
    Array *weight = case_noise(&c, DTYPE_FP32, VOCAB);

    tokens->was[0] = -1;
    tokens->was[1] = VOCAB;
    array_fill(tokens);
    cuda_embed(&(CudaEmbed){DTYPE_FP32, 2, VOCAB, 1, tokens->p, weight->p, x->p, NULL, FALSE},
               c.stream);
    ck_assert(isnan(array_now(&c, x)[0]) && isnan(array_now(&c, x)[1]));
}
END_TEST

static void check_embed_backward(int i, DType type, gboolean adds)
{
    EmbedCase e = embed_case(i);
    Array *dx = case_noise(&e.c, e.dtype, ROWS * e.columns);
    Array *dweight = (adds ? case_noise : case_output)(&e.c, type, e.count * e.columns);
    double *want = case_values(&e.c, dweight->count);

    for (guint64 j = 0; j < dweight->count && adds; j++)
        want[j] = dweight->was[j];
    for (guint64 j = 0; j < dx->count; j++) {
        guint64 row;

        if (has_word(&e, j / e.columns, &row))
            want[row * e.columns + j % e.columns] += dx->was[j];
    }
    cuda_embed_backward(&(CudaEmbedBackward){e.dtype, type, ROWS, e.count, e.columns, e.tokens->p,
                                             dx->p, dweight->p, e.range != NULL ? e.range->p : NULL,
                                             adds},
                        e.c.stream);
    array_check(&e.c, dweight, want, 1e-12, BF16_ROUNDED);
    cuda_case_clear(&e.c);
}

START_TEST(embed_backward_sums_the_rows_of_each_word)
{
    check_embed_backward(_i, DTYPE_FP32, FALSE);
    check_embed_backward(_i, DTYPE_BF16, TRUE);
}
END_TEST

/* ---- loss ---- */

static const struct {
    guint64 rows, vocab;
} loss_sizes[] = {{1, 1}, {5, 250}, {3, 5000}};

/* Index bits: type of dlogits, alignment, size. */
enum { LOSS_LOOPS = 4 * G_N_ELEMENTS(loss_sizes) };

typedef struct {
    CudaCase c;
    DType dtype;
    guint64 rows, vocab;
    Array *logits, *labels, *valid, *dlogits, *loss;
    double *losses; /* device */
} LossCase;

/* Logits to +-30: no exponential may be of a logit itself.  One label in four is -1. */
static LossCase loss_case(int i)
{
    LossCase l = {.c = cuda_case(),
                  .dtype = loop_dtype(i),
                  .rows = loss_sizes[i / 4].rows,
                  .vocab = loss_sizes[i / 4].vocab};

    l.c.unaligned = i / 2 % 2;
    l.logits = case_noise(&l.c, DTYPE_FP32, l.rows * l.vocab);
    for (guint64 j = 0; j < l.logits->count; j++)
        l.logits->was[j] *= 30;
    array_fill(l.logits);
    l.labels = case_noise(&l.c, DTYPE_INT32, l.rows);
    for (guint64 row = 0; row < l.rows; row++)
        l.labels->was[row] = row % 4 == 3 ? -1 : (double)(row * 77 % l.vocab);
    array_fill(l.labels);
    l.valid = case_scalar(&l.c, 7);
    l.loss = case_scalar(&l.c, 2.5);
    l.dlogits = case_output(&l.c, l.dtype, l.rows * l.vocab);
    l.losses = case_scratch(&l.c, l.rows * sizeof(double));
    return l;
}

/* Loss of the words [0, vocab); returns their sum over rows, and the gradient in @want. */
static double want_loss(const LossCase *l, double *want)
{
    double loss = 0;

    for (guint64 row = 0; row < l->rows; row++) {
        const double *z = l->logits->was + row * l->vocab;
        double sum = 0;

        if (l->labels->was[row] < 0)
            continue;
        const guint64 label = (guint64)l->labels->was[row];

        for (guint64 j = 0; j < l->vocab; j++)
            sum += exp(z[j]);
        for (guint64 j = 0; j < l->vocab; j++)
            want[row * l->vocab + j] = (exp(z[j]) / sum - (j == label)) / l->valid->was[0];
        loss += log(sum) - z[label];
    }
    return loss;
}

static CudaCrossEntropy loss_of(const LossCase *l)
{
    return (CudaCrossEntropy){.dtype = l->dtype,
                              .rows = l->rows,
                              .vocab = l->vocab,
                              .logits = l->logits->p,
                              .labels = l->labels->p,
                              .valid = l->valid->p,
                              .dlogits = l->dlogits->p,
                              .losses = l->losses,
                              .loss = l->loss->p};
}

START_TEST(cross_entropy_equals_plain_loops)
{
    LossCase l = loss_case(_i);
    CudaCrossEntropy loss = loss_of(&l);
    double *want = case_values(&l.c, l.dlogits->count), sum = want_loss(&l, want);

    cuda_cross_entropy(&loss, l.c.stream);
    array_check(&l.c, l.dlogits, want, 1e-11, BF16_ROUNDED);
    ck_assert_double_eq_tol(array_now(&l.c, l.loss)[0], sum, 1e-5 * (1 + sum));
    loss.adds = TRUE;
    cuda_cross_entropy(&loss, l.c.stream);
    ck_assert_double_eq_tol(array_now(&l.c, l.loss)[0], 2 * sum, 2e-5 * (1 + sum));
    cuda_case_clear(&l.c);
}
END_TEST

START_TEST(the_gradient_may_replace_the_logits)
{
    LossCase l = loss_case(4 * _i);
    CudaCrossEntropy loss = loss_of(&l);
    double *want = case_values(&l.c, l.dlogits->count);

    want_loss(&l, want);
    loss.dlogits = l.logits->p;
    cuda_cross_entropy(&loss, l.c.stream);
    array_check(&l.c, l.logits, want, 1e-11, 0);
    cuda_case_clear(&l.c);
}
END_TEST

START_TEST(a_label_that_is_no_word_gives_a_loss_of_nan)
{
    LossCase l = loss_case(4);
    const CudaCrossEntropy loss = loss_of(&l);

    l.labels->was[0] = (double)l.vocab;
    array_fill(l.labels);
    cuda_cross_entropy(&loss, l.c.stream);
    ck_assert(isnan(array_now(&l.c, l.loss)[0]));
    cuda_case_clear(&l.c);
}
END_TEST

/* Columns first .. first + count of the logits, padded to @padded. */
static Array *part_of_logits(LossCase *l, guint64 first, guint64 count, guint64 padded)
{
    Array *part = case_noise(&l->c, DTYPE_FP32, l->rows * padded);

    for (guint64 row = 0; row < l->rows; row++)
        for (guint64 j = 0; j < count; j++)
            part->was[row * padded + j] = l->logits->was[row * l->vocab + first + j];
    array_fill(part);
    return part;
}

/* Three ranks share 250 words: 104, 104, 42, and a fourth has none; rows are padded to 104. */
START_TEST(ranks_that_share_the_words_have_the_gradient_and_the_loss_of_one)
{
    enum { PARTS = 4, PADDED = 104 };
    LossCase l = loss_case(4 + _i);
    double *want = case_values(&l.c, l.dlogits->count), sum = want_loss(&l, want);
    Array *stats = case_output(&l.c, DTYPE_FP32, PARTS * l.rows * 3);
    Array *parts[PARTS], *ranges[PARTS];

    for (guint p = 0; p < PARTS; p++) {
        const guint64 first = MIN(p * PADDED, l.vocab), count = MIN(PADDED, l.vocab - first);

        parts[p] = part_of_logits(&l, first, count, PADDED);
        ranges[p] = case_noise(&l.c, DTYPE_FP64, 2);
        ranges[p]->was[0] = (double)first;
        ranges[p]->was[1] = (double)count;
        array_fill(ranges[p]);
        cuda_head_stats(&(CudaHeadStats){l.rows, PADDED, parts[p]->p, l.labels->p, ranges[p]->p,
                                         (float *)stats->p + p * l.rows * 3},
                        l.c.stream);
    }
    for (guint p = 0; p < PARTS; p++) {
        Array *dlogits = case_output(&l.c, l.dtype, l.rows * PADDED);
        double *share = case_values(&l.c, dlogits->count);
        CudaCrossEntropy loss = loss_of(&l);

        for (guint64 j = 0; j < dlogits->count; j++)
            share[j] = j % PADDED < (guint64)ranges[p]->was[1]
                           ? want[j / PADDED * l.vocab + p * PADDED + j % PADDED]
                           : 0;
        loss.vocab = PADDED;
        loss.logits = parts[p]->p;
        loss.dlogits = dlogits->p;
        loss.range = ranges[p]->p;
        loss.stats = stats->p;
        loss.parts = PARTS;
        loss.part_rows = l.rows;
        cuda_cross_entropy(&loss, l.c.stream);
        array_check(&l.c, dlogits, share, 1e-11, BF16_ROUNDED);
        ck_assert_double_eq_tol(array_now(&l.c, l.loss)[0], sum, 1e-5 * (1 + sum));
    }
    cuda_case_clear(&l.c);
}
END_TEST

START_TEST(labels_other_than_minus_1_are_counted)
{
    g_auto(CudaCase) c = cuda_case();
    Array *labels = case_noise(&c, DTYPE_INT32, 3000), *valid = case_scalar(&c, 100);

    for (guint64 i = 0; i < labels->count; i++)
        labels->was[i] = i % 3 == 0 ? -1 : (double)i;
    array_fill(labels);
    cuda_count_valid(3000, labels->p, valid->p, TRUE, c.stream);
    ck_assert(array_now(&c, valid)[0] == 2100);
    cuda_count_valid(5, labels->p, valid->p, FALSE, c.stream);
    ck_assert(array_now(&c, valid)[0] == 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda embedding and loss");
    TCase *tests = tcase_create("embedding and loss");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, embed_gathers_rows_and_gives_0_for_words_of_others, 0, LOOPS);
    tcase_add_loop_test(tests, embed_adds_to_what_is_there, 0, LOOPS);
    tcase_add_test(tests, a_token_that_is_no_word_gives_nan);
    tcase_add_loop_test(tests, embed_backward_sums_the_rows_of_each_word, 0, LOOPS);
    tcase_add_loop_test(tests, cross_entropy_equals_plain_loops, 0, LOSS_LOOPS);
    tcase_add_loop_test(tests, the_gradient_may_replace_the_logits, 0, G_N_ELEMENTS(loss_sizes));
    tcase_add_test(tests, a_label_that_is_no_word_gives_a_loss_of_nan);
    tcase_add_loop_test(tests, ranks_that_share_the_words_have_the_gradient_and_the_loss_of_one, 0,
                        4);
    tcase_add_test(tests, labels_other_than_minus_1_are_counted);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
