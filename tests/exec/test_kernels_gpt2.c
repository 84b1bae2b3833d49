/* LayerNorm, GELU, biases and learned positions: against plain loops in fp64, and their gradients
 * against central differences of those loops. */
#include "tests/exec/kernel_case.h"
#include "tests/exec/kernel_reference.h"

static const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};

/* Loop tests run over 2 types (the lowest bit) times what is left of the index. */
static DType loop_dtype(int i)
{
    return dtypes[i % 2];
}

/* |got - want| <= @absolute + roundings of the operand's type. */
static void check_value(const KernelCase *c, guint operand, guint64 i, double want, double absolute)
{
    const double got = case_get(c, operand, i);
    const double rounding = c->type[operand] == DTYPE_BF16 ? 0x1p-7 : 4e-6;

    if (!(fabs(got - want) <= absolute + rounding * fabs(want)))
        ck_abort_msg("%s, %s: operand %u, element %" G_GUINT64_FORMAT " is %.9g, not %.9g",
                     op_kind_name(c->op.kind), dtype_name(c->op.dtype), operand, i, got, want);
}

/* ---- layer norm ---- */

/* One row; odd sizes; several blocks a row. */
static const OpSizes norm_sizes[] = {
    {.rows = 1, .in = 6, .eps = 1e-5},
    {.rows = 65, .in = 250, .eps = 1e-5},
    {.rows = 3, .in = 2500, .eps = 1e-6},
};

static KernelCase layernorm_case(DType dtype, OpSizes s)
{
    KernelCase c = kernel_case(OP_LAYERNORM, dtype, s);

    case_add(&c, ACCESS_READ, dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, dtype, s.in);
    case_add(&c, ACCESS_READ, dtype, s.in);
    case_add(&c, ACCESS_WRITE, dtype, s.rows * s.in);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, s.rows * NUM_LAYERNORM);
    return c;
}

START_TEST(layernorm_equals_plain_loops_and_apply_repeats_it)
{
    const OpSizes s = norm_sizes[_i / 2];
    KernelCase c = layernorm_case(loop_dtype(_i), s);
    KernelCase again = kernel_case(OP_LAYERNORM_APPLY, loop_dtype(_i), s);
    g_autofree double *x = case_values(&c, 0), *w = case_values(&c, 1), *b = case_values(&c, 2);
    g_autofree double *y = g_new(double, c.count[3]), *stats = g_new(double, c.count[4]);
    const double *const xwb[] = {x, w, b};

    reference_layernorm(&s, xwb, y, stats);
    case_run(&c, 2);
    case_check(&c, 3, y, 2e-6, 4);
    case_check(&c, 4, stats, 1e-7, 16);
    case_check_threads(&c);

    for (guint i = 0; i < 3; i++)
        case_add(&again, ACCESS_READ, c.op.dtype, c.count[i]); /* the same noise */
    case_add(&again, ACCESS_READ, DTYPE_FP32, c.count[4]);
    case_add(&again, ACCESS_WRITE, c.op.dtype, c.count[3]);
    memcpy(again.data[3], c.data[4], c.count[4] * sizeof(float));
    case_run(&again, 2);
    ck_assert_mem_eq(again.data[4], c.data[3], c.count[3] * dtype_bytes(c.op.dtype));
    kernel_case_clear(&again);
    kernel_case_clear(&c);
}
END_TEST

/* 1000 +- 1: the variance as mean(x^2) - mean^2 would be off by a tenth in fp32. */
START_TEST(layernorm_takes_a_large_mean_off_before_it_squares)
{
    KernelCase c = layernorm_case(DTYPE_FP32, (OpSizes){.rows = 2, .in = 250});

    for (guint64 i = 0; i < 500; i++)
        case_set(&c, 0, i, 1000 + (i % 2 == 0 ? 1 : -1));
    case_fill(&c, 1, 1);
    case_fill(&c, 2, 0);
    case_run(&c, 1);
    for (guint64 i = 0; i < 500; i++)
        ck_assert_double_eq_tol(case_get(&c, 3, i), i % 2 == 0 ? 1 : -1, 1e-6);
    kernel_case_clear(&c);
}
END_TEST

/* Of x, or, in front of as many more operands, of x + added. */
static KernelCase plain_norm(gboolean layer, DType dtype, const OpSizes *s)
{
    KernelCase c = kernel_case(layer ? OP_LAYERNORM : OP_RMSNORM, dtype, *s);

    case_add(&c, ACCESS_READ, dtype, s->rows * s->in);
    case_add(&c, ACCESS_READ, dtype, s->in);
    if (layer)
        case_add(&c, ACCESS_READ, dtype, s->in);
    case_add(&c, ACCESS_WRITE, dtype, s->rows * s->in);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, s->rows * (layer ? NUM_LAYERNORM : 1));
    return c;
}

START_TEST(a_norm_that_adds_is_that_of_the_rounded_sum)
{
    const OpSizes s = norm_sizes[_i / 4];
    const gboolean layer = _i / 2 % 2;
    const guint y = layer ? 3 : 2;
    KernelCase plain = plain_norm(layer, loop_dtype(_i), &s);
    KernelCase c = plain_norm(layer, loop_dtype(_i), &s);
    const guint added = case_add(&c, ACCESS_READ, c.op.dtype, s.rows * s.in);
    const guint sum = case_add(&c, ACCESS_WRITE, c.op.dtype, s.rows * s.in);
    g_autofree double *want = g_new(double, s.rows *s.in);

    for (guint64 i = 0; i < s.rows * s.in; i++)
        want[i] = case_get(&c, 0, i) + case_get(&c, added, i);
    case_run(&c, 2);
    case_check(&c, sum, want, 0, 1);
    case_check_threads(&c);
    memcpy(plain.data[0], c.data[sum], s.rows * s.in * dtype_bytes(c.op.dtype));
    case_run(&plain, 2);
    for (guint i = y; i <= y + 1; i++)
        ck_assert_mem_eq(c.data[i], plain.data[i], c.count[i] * dtype_bytes(c.type[i]));
    kernel_case_clear(&plain);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(layernorm_passes_a_nan_on_in_its_own_row_only)
{
    KernelCase c = layernorm_case(DTYPE_FP32, (OpSizes){.rows = 2, .in = 40});

    case_set(&c, 0, 41, (double)NAN);
    case_run(&c, 1);
    for (guint64 i = 0; i < 80; i++)
        ck_assert(isnan(case_get(&c, 3, i)) == (i >= 40));
    kernel_case_clear(&c);
}
END_TEST

/* dy, x, w, statistics of x in fp64, dx, dw, db. */
static KernelCase layernorm_backward_case(DType dtype, OpSizes s)
{
    KernelCase c = kernel_case(OP_LAYERNORM_BACKWARD, dtype, s);

    case_add(&c, ACCESS_READ, dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, dtype, s.in);
    case_add(&c, ACCESS_READ, DTYPE_FP32, s.rows * NUM_LAYERNORM);
    case_add(&c, ACCESS_WRITE, dtype, s.rows * s.in);
    case_add(&c, ACCESS_ACCUMULATE, dtype, s.in);
    case_add(&c, ACCESS_ACCUMULATE, dtype, s.in);
    case_add_scratch(&c);
    g_autofree double *x = case_values(&c, 1), *w = case_values(&c, 2);
    g_autofree double *y = g_new(double, c.count[1]), *stats = g_new(double, c.count[3]);
    const double *const xwb[] = {x, w, w};
    reference_layernorm(&s, xwb, y, stats);
    for (guint64 i = 0; i < c.count[3]; i++)
        case_set(&c, 3, i, stats[i]);
    return c;
}

/* sum(dy * y); in = dy, x, w, b. */
static double layernorm_objective(const OpSizes *s, double *const in[4])
{
    g_autofree double *y = g_new(double, s->rows * s->in);
    const double *const xwb[] = {in[1], in[2], in[3]};
    double sum = 0;

    reference_layernorm(s, xwb, y, NULL);
    for (guint64 i = 0; i < s->rows * s->in; i++)
        sum += in[0][i] * y[i];
    return sum;
}

static void check_layernorm_gradient(const KernelCase *c, double *const in[4], guint which)
{
    const double h = 1e-5;

    for (guint64 i = 0; i < c->count[3 + which]; i += 1 + c->count[3 + which] / 300) {
        const double at = in[which][i];

        in[which][i] = at + h;
        const double above = layernorm_objective(&c->op.sizes, in);
        in[which][i] = at - h;
        const double below = layernorm_objective(&c->op.sizes, in);
        in[which][i] = at;
        check_value(c, 3 + which, i, (above - below) / (2 * h), 2e-5);
    }
}

START_TEST(layernorm_backward_is_the_gradient_of_layernorm)
{
    KernelCase c = layernorm_backward_case(loop_dtype(_i), norm_sizes[_i / 2]);
    g_autofree double *dy = case_values(&c, 0), *x = case_values(&c, 1), *w = case_values(&c, 2);
    g_autofree double *b = g_new0(double, c.count[2]);
    double *const in[] = {dy, x, w, b};

    case_check_threads(&c);
    case_run(&c, 2);
    for (guint which = 1; which <= 3; which++)
        check_layernorm_gradient(&c, in, which);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(layernorm_backward_adds_where_it_updates)
{
    KernelCase c = layernorm_backward_case(DTYPE_FP32, norm_sizes[1]);

    case_run(&c, 1);
    g_autofree double *dx = case_values(&c, 4), *dw = case_values(&c, 5), *db = case_values(&c, 6);
    double *const once[] = {dx, dw, db};
    c.op.operands[4].access = ACCESS_UPDATE;
    case_run_first(&c, 1, FALSE);
    for (guint g = 0; g < 3; g++) {
        for (guint64 i = 0; i < c.count[4 + g]; i++)
            once[g][i] *= 2;
        case_check(&c, 4 + g, once[g], 0, 1);
    }
    kernel_case_clear(&c);
}
END_TEST

/* ---- gelu ---- */

/* Values up to +-30 and two beyond which x^3 overflows. */
static void spread(const KernelCase *c, guint operand)
{
    for (guint64 i = 0; i < c->count[operand]; i++)
        case_set(c, operand, i, 30 * pow(case_get(c, operand, i), 3));
    case_set(c, operand, 0, 1e15);
    case_set(c, operand, 1, -1e15);
}

START_TEST(gelu_equals_its_tanh_form)
{
    KernelCase c = kernel_case(OP_GELU, loop_dtype(_i), (OpSizes){.rows = 5, .in = 250});
    g_autofree double *want = g_new(double, 1250);

    case_add(&c, ACCESS_READ, c.op.dtype, 1250);
    case_add(&c, ACCESS_WRITE, c.op.dtype, 1250);
    spread(&c, 0);
    for (guint64 i = 0; i < 1250; i++)
        want[i] = reference_gelu(case_get(&c, 0, i));
    case_check_threads(&c);
    case_run(&c, 2);
    case_check(&c, 1, want, 1e-6, 4);
    kernel_case_clear(&c);
}
END_TEST

/* By hand, from tables of tanh: gelu(1) = (1 + tanh 0.833562) / 2 ... */
START_TEST(gelu_has_the_values_of_gelu_new)
{
    const double x[] = {0, 1, -1, 3}, h[] = {0, 0.841192, -0.158808, 2.996363};
    KernelCase c = kernel_case(OP_GELU, DTYPE_FP32, (OpSizes){.rows = 1, .in = 4});

    case_add(&c, ACCESS_READ, DTYPE_FP32, 4);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, 4);
    for (guint64 i = 0; i < 4; i++)
        case_set(&c, 0, i, x[i]);
    case_run(&c, 1);
    case_check(&c, 1, h, 1e-6, 0);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(gelu_backward_replaces_x_by_its_gradient)
{
    KernelCase c = kernel_case(OP_GELU_BACKWARD, loop_dtype(_i), (OpSizes){.rows = 5, .in = 250});

    case_add(&c, ACCESS_READ, c.op.dtype, 1250);
    case_add(&c, ACCESS_UPDATE, c.op.dtype, 1250);
    spread(&c, 1);
    g_autofree double *dh = case_values(&c, 0), *x = case_values(&c, 1);
    case_check_threads(&c);
    case_run(&c, 2);
    check_value(&c, 1, 0, dh[0], 0);
    check_value(&c, 1, 1, 0, 0);
    for (guint64 i = 2; i < 1250; i++) {
        const double above = reference_gelu(x[i] + 1e-5), below = reference_gelu(x[i] - 1e-5);

        check_value(&c, 1, i, dh[i] * (above - below) / 2e-5, 1e-6);
    }
    kernel_case_clear(&c);
}
END_TEST

/* ---- biases ---- */

/* rows, in, out: one of everything; odd sizes; several blocks of CPU_LINEAR_ROWS and CPU_BLOCK. */
static const OpSizes linear_sizes[] = {
    {.rows = 1, .in = 1, .out = 1},
    {.rows = 1, .in = 250, .out = 6},
    {.rows = 65, .in = 33, .out = 257},
    {.rows = 300, .in = 7, .out = 1030},
};

/* x W^T + b, on top of @old where there is some. */
static double *linear_want(const KernelCase *c, const double *old)
{
    const guint64 out = c->op.sizes.out;
    g_autofree double *x = case_values(c, 0), *w = case_values(c, 1);
    double *y = g_new(double, c->count[2]);

    reference_linear(&c->op.sizes, x, w, y);
    for (guint64 i = 0; i < c->count[2]; i++)
        y[i] += case_get(c, 4, i % out) + (old != NULL ? old[i] : 0);
    return y;
}

START_TEST(linear_adds_its_bias_once)
{
    const OpSizes s = linear_sizes[_i / 2];
    KernelCase c = kernel_case(OP_LINEAR, loop_dtype(_i), s);

    case_add(&c, ACCESS_READ, c.op.dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, c.op.dtype, s.out * s.in);
    case_add(&c, ACCESS_WRITE, c.op.dtype, s.rows * s.out);
    case_add_scratch(&c);
    case_add(&c, ACCESS_READ, c.op.dtype, s.out);
    for (guint threads = 1; threads <= 3; threads++) {
        g_autofree double *once = linear_want(&c, NULL);

        c.op.operands[2].access = ACCESS_WRITE;
        case_run(&c, threads);
        case_check(&c, 2, once, 1e-4, 1);

        g_autofree double *old = case_values(&c, 2);
        g_autofree double *twice = linear_want(&c, old);
        c.op.operands[2].access = ACCESS_UPDATE;
        case_run(&c, threads);
        case_check(&c, 2, twice, 2e-4, 1);
    }
    kernel_case_clear(&c);
}
END_TEST

/* dW is checked in test_kernels.c; here db, with either type of gradients. */
START_TEST(the_gradient_of_a_bias_is_the_sum_of_its_columns)
{
    const OpSizes s = linear_sizes[_i / 4];
    KernelCase c = kernel_case(OP_LINEAR_BACKWARD_WEIGHT, loop_dtype(_i), s);
    g_autofree double *want = g_new0(double, s.out);

    c.op.dtype_out = dtypes[_i / 2 % 2];
    case_add(&c, ACCESS_READ, c.op.dtype, s.rows * s.out);
    case_add(&c, ACCESS_READ, c.op.dtype, s.rows * s.in);
    case_add(&c, ACCESS_ACCUMULATE, c.op.dtype_out, s.out * s.in);
    case_add_scratch(&c);
    case_add(&c, ACCESS_ACCUMULATE, c.op.dtype_out, s.out);
    for (guint64 i = 0; i < c.count[0]; i++)
        want[i % s.out] += case_get(&c, 0, i);
    case_run_first(&c, 2, TRUE);
    case_check(&c, 4, want, 1e-5, 1);

    KernelCase alone = case_copy(&c);
    case_run(&alone, 1);
    ck_assert_mem_eq(alone.data[4], c.data[4], s.out * dtype_bytes(c.op.dtype_out));
    kernel_case_clear(&alone);

    for (guint64 i = 0; i < s.out; i++)
        want[i] += case_get(&c, 4, i);
    case_run_first(&c, 2, FALSE);
    case_check(&c, 4, want, 2e-5, 1);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(add_bias_adds_a_row_to_all_rows)
{
    KernelCase c = kernel_case(OP_ADD_BIAS, loop_dtype(_i), (OpSizes){.rows = 5, .in = 1030});
    g_autofree double *want = g_new(double, 5 * 1030);

    case_add(&c, ACCESS_UPDATE, c.op.dtype, 5 * 1030);
    case_add(&c, ACCESS_READ, c.op.dtype, 1030);
    for (guint64 i = 0; i < 5 * 1030; i++)
        want[i] = case_get(&c, 0, i) + case_get(&c, 1, i % 1030);
    case_check_threads(&c);
    case_run(&c, 2);
    case_check(&c, 0, want, 0, 1);
    kernel_case_clear(&c);
}
END_TEST

/* ---- learned positions ---- */

/* Two sequences of 5: their tokens' rows are there already. */
START_TEST(embed_adds_the_rows_of_positions_to_what_is_there)
{
    const guint64 seq = 5, columns = 1030, longest = 8;
    KernelCase c = kernel_case(OP_EMBED, loop_dtype(_i),
                               (OpSizes){.rows = 2 * seq, .in = longest, .out = columns});
    g_autofree double *want = g_new(double, 2 * seq * columns);

    case_add(&c, ACCESS_READ, DTYPE_INT32, 2 * seq);
    case_add(&c, ACCESS_READ, c.op.dtype, longest * columns);
    case_add(&c, ACCESS_UPDATE, c.op.dtype, 2 * seq * columns);
    for (guint64 n = 0; n < 2 * seq; n++)
        case_set(&c, 0, n, (double)(n % seq + 3));
    for (guint64 i = 0; i < 2 * seq * columns; i++)
        want[i] =
            case_get(&c, 2, i) + case_get(&c, 1, (i / columns % seq + 3) * columns + i % columns);
    case_check_threads(&c);
    case_run(&c, 2);
    case_check(&c, 2, want, 0, 1);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(words_of_other_ranks_leave_what_is_there)
{
    KernelCase c = kernel_case(OP_EMBED, DTYPE_FP32, (OpSizes){.rows = 3, .in = 2, .out = 1});
    const double want[] = {1, 1 + 7, 1};

    case_add(&c, ACCESS_READ, DTYPE_INT32, 3);
    case_add(&c, ACCESS_READ, DTYPE_FP32, 2);
    case_add(&c, ACCESS_UPDATE, DTYPE_FP32, 3);
    case_add(&c, ACCESS_READ, DTYPE_FP64, NUM_RANGE);
    for (guint64 n = 0; n < 3; n++)
        case_set(&c, 0, n, (double)(4 + n)); /* this rank has the words 5 and, as padding, none */
    case_fill(&c, 1, 7);
    case_fill(&c, 2, 1);
    case_set(&c, 3, RANGE_FIRST, 5);
    case_set(&c, 3, RANGE_COUNT, 1);
    case_run(&c, 1);
    case_check(&c, 2, want, 0, 0);
    kernel_case_clear(&c);
}
END_TEST

/* dW of a position is the sum over the batch; 0 beyond the longest sequence. */
START_TEST(embed_backward_sums_positions_over_the_batch)
{
    const guint64 batch = 3, seq = 5, columns = 10;
    KernelCase c = kernel_case(OP_EMBED_BACKWARD, loop_dtype(_i),
                               (OpSizes){.rows = batch * seq, .in = seq + 2, .out = columns});
    g_autofree double *want = g_new0(double, (seq + 2) * columns);

    case_add(&c, ACCESS_READ, DTYPE_INT32, batch * seq);
    case_add(&c, ACCESS_READ, c.op.dtype, batch * seq * columns);
    case_add(&c, ACCESS_ACCUMULATE, c.op.dtype, (seq + 2) * columns);
    for (guint64 n = 0; n < batch * seq; n++)
        case_set(&c, 0, n, (double)(n % seq));
    for (guint64 i = 0; i < c.count[1]; i++)
        want[i / columns % seq * columns + i % columns] += case_get(&c, 1, i);
    case_check_threads(&c);
    case_run(&c, 2);
    case_check(&c, 2, want, 1e-6, 1);
    kernel_case_clear(&c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels of GPT-2");
    TCase *tcase = tcase_create("against plain loops");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, layernorm_equals_plain_loops_and_apply_repeats_it, 0,
                        2 * G_N_ELEMENTS(norm_sizes));
    tcase_add_test(tcase, layernorm_takes_a_large_mean_off_before_it_squares);
    tcase_add_test(tcase, layernorm_passes_a_nan_on_in_its_own_row_only);
    tcase_add_loop_test(tcase, a_norm_that_adds_is_that_of_the_rounded_sum, 0,
                        4 * G_N_ELEMENTS(norm_sizes));
    tcase_add_loop_test(tcase, layernorm_backward_is_the_gradient_of_layernorm, 0,
                        2 * G_N_ELEMENTS(norm_sizes));
    tcase_add_test(tcase, layernorm_backward_adds_where_it_updates);
    tcase_add_loop_test(tcase, gelu_equals_its_tanh_form, 0, 2);
    tcase_add_test(tcase, gelu_has_the_values_of_gelu_new);
    tcase_add_loop_test(tcase, gelu_backward_replaces_x_by_its_gradient, 0, 2);
    tcase_add_loop_test(tcase, linear_adds_its_bias_once, 0, 2 * G_N_ELEMENTS(linear_sizes));
    tcase_add_loop_test(tcase, the_gradient_of_a_bias_is_the_sum_of_its_columns, 0,
                        4 * G_N_ELEMENTS(linear_sizes));
    tcase_add_loop_test(tcase, add_bias_adds_a_row_to_all_rows, 0, 2);
    tcase_add_loop_test(tcase, embed_adds_the_rows_of_positions_to_what_is_there, 0, 2);
    tcase_add_test(tcase, words_of_other_ranks_leave_what_is_there);
    tcase_add_loop_test(tcase, embed_backward_sums_positions_over_the_batch, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
