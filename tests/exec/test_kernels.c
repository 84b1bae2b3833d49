#include "exec/device/cpu_math.h"
#include "tests/exec/kernel_case.h"
#include "tests/exec/kernel_reference.h"

static const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};

/* Loop tests run over 2 types (the lowest bit) times what is left of the index. */
static DType loop_dtype(int i)
{
    return dtypes[i % 2];
}

/* ---- linear ---- */

/* rows, in, out: one of everything; odd sizes; several blocks of CPU_LINEAR_ROWS. */
static const OpSizes linear_sizes[] = {
    {.rows = 1, .in = 1, .out = 1},
    {.rows = 1, .in = 250, .out = 6},
    {.rows = 65, .in = 33, .out = 257},
    {.rows = 600, .in = 70, .out = 50},
};

static KernelCase linear_case(OpKind kind, DType dtype, OpSizes s)
{
    const guint64 counts[NUM_OPS][3] = {
        [OP_LINEAR] = {s.rows * s.in, s.out * s.in, s.rows * s.out},
        [OP_LINEAR_BACKWARD_INPUT] = {s.rows * s.out, s.out * s.in, s.rows * s.in},
        [OP_LINEAR_BACKWARD_WEIGHT] = {s.rows * s.out, s.rows * s.in, s.out * s.in},
    };
    KernelCase c = kernel_case(kind, dtype, s);

    case_add(&c, ACCESS_READ, dtype, counts[kind][0]);
    case_add(&c, ACCESS_READ, dtype, counts[kind][1]);
    case_add(&c, ACCESS_WRITE, dtype, counts[kind][2]);
    case_add_scratch(&c);
    return c;
}

/* What operand 2 becomes when it held @old, or is only written (NULL). */
static double *linear_want(const KernelCase *c, const double *old)
{
    const OpSizes *s = &c->op.sizes;
    g_autofree double *a = case_values(c, 0), *b = case_values(c, 1);
    double *want = g_new0(double, c->count[2]);

    if (c->op.kind == OP_LINEAR)
        reference_linear(s, a, b, want);
    for (guint64 n = 0; n < s->rows && c->op.kind != OP_LINEAR; n++)
        for (guint64 o = 0; o < s->out; o++)
            for (guint64 i = 0; i < s->in; i++)
                if (c->op.kind == OP_LINEAR_BACKWARD_INPUT)
                    want[n * s->in + i] += a[n * s->out + o] * b[o * s->in + i];
                else
                    want[o * s->in + i] += a[n * s->out + o] * b[n * s->in + i];
    for (guint64 i = 0; old != NULL && i < c->count[2]; i++)
        want[i] += old[i];
    return want;
}

static void check_linear(OpKind kind, int i)
{
    for (guint threads = 1; threads <= 3; threads++) {
        KernelCase c = linear_case(kind, loop_dtype(i), linear_sizes[i / 2]);
        g_autofree double *once = linear_want(&c, NULL);

        case_run(&c, threads); /* NaN is not read */
        case_check(&c, 2, once, 1e-4, 1);

        g_autofree double *old = case_values(&c, 2);
        g_autofree double *twice = linear_want(&c, old);
        c.op.operands[2].access = ACCESS_UPDATE;
        case_run(&c, threads);
        case_check(&c, 2, twice, 2e-4, 1);
        kernel_case_clear(&c);
    }
}

START_TEST(linear_equals_plain_loops)
{
    check_linear(OP_LINEAR, _i);
}
END_TEST

START_TEST(gradient_of_a_linears_input_equals_plain_loops)
{
    check_linear(OP_LINEAR_BACKWARD_INPUT, _i);
}
END_TEST

START_TEST(gradient_of_a_linears_weight_equals_plain_loops)
{
    check_linear(OP_LINEAR_BACKWARD_WEIGHT, _i);
}
END_TEST

START_TEST(first_turns_an_accumulated_weight_gradient_into_a_written_one)
{
    KernelCase c = linear_case(OP_LINEAR_BACKWARD_WEIGHT, DTYPE_FP32, linear_sizes[2]);
    g_autofree double *once = linear_want(&c, NULL);
    g_autofree double *twice = linear_want(&c, once);

    c.op.operands[2].access = ACCESS_ACCUMULATE;
    case_run_first(&c, 1, TRUE);
    case_check(&c, 2, once, 1e-4, 1);
    case_run_first(&c, 1, FALSE);
    case_check(&c, 2, twice, 2e-4, 1);
    kernel_case_clear(&c);
}
END_TEST

/* 1 added 599 times to 1: a running sum in bf16 would stop at 256. */
START_TEST(a_weight_gradient_is_summed_in_fp32_and_rounded_once)
{
    for (guint out = 0; out < G_N_ELEMENTS(dtypes); out++) {
        KernelCase c = kernel_case(OP_LINEAR_BACKWARD_WEIGHT, DTYPE_BF16,
                                   (OpSizes){.rows = 600, .in = 3, .out = 2});
        const double want[] = {600, 600, 600, 600, 600, 600};

        case_add(&c, ACCESS_READ, DTYPE_BF16, 1200);
        case_add(&c, ACCESS_READ, DTYPE_BF16, 1800);
        case_add(&c, ACCESS_WRITE, dtypes[out], 6);
        case_add_scratch(&c);
        c.op.dtype_out = dtypes[out];
        case_fill(&c, 0, 1);
        case_fill(&c, 1, 1);
        case_run(&c, 2);
        case_check(&c, 2, want, 0, 0);
        kernel_case_clear(&c);
    }
}
END_TEST

/* ---- norm ---- */

static const OpSizes norm_sizes[] = {
    {.rows = 1, .in = 1, .eps = 1e-5},
    {.rows = 65, .in = 250, .eps = 1e-5},
    {.rows = 3, .in = 2500, .eps = 1e-6}, /* several blocks a row */
};

START_TEST(rmsnorm_equals_plain_loops_and_apply_repeats_it)
{
    const OpSizes s = norm_sizes[_i / 2];
    KernelCase c = kernel_case(OP_RMSNORM, loop_dtype(_i), s);
    KernelCase again = kernel_case(OP_RMSNORM_APPLY, loop_dtype(_i), s);
    g_autofree double *want = g_new(double, s.rows *s.in);

    case_add(&c, ACCESS_READ, c.op.dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, c.op.dtype, s.in);
    case_add(&c, ACCESS_WRITE, c.op.dtype, s.rows * s.in);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, s.rows);
    case_run(&c, 2);
    g_autofree double *x = case_values(&c, 0), *w = case_values(&c, 1);
    reference_rmsnorm(&s, x, w, want);
    case_check(&c, 2, want, 1e-6, 4);
    case_check_threads(&c);

    case_add(&again, ACCESS_READ, c.op.dtype, s.rows * s.in);
    case_add(&again, ACCESS_READ, c.op.dtype, s.in);
    case_add(&again, ACCESS_READ, DTYPE_FP32, s.rows);
    case_add(&again, ACCESS_WRITE, c.op.dtype, s.rows * s.in);
    for (guint64 n = 0; n < s.rows; n++)
        case_set(&again, 2, n, case_get(&c, 3, n));
    case_run(&again, 2);
    ck_assert_mem_eq(again.data[3], c.data[2], s.rows * s.in * dtype_bytes(c.op.dtype));
    kernel_case_clear(&again);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(rmsnorm_passes_a_nan_on_in_its_own_row_only)
{
    KernelCase c = kernel_case(OP_RMSNORM, DTYPE_FP32, (OpSizes){.rows = 2, .in = 40});

    case_add(&c, ACCESS_READ, DTYPE_FP32, 80);
    case_add(&c, ACCESS_READ, DTYPE_FP32, 40);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, 80);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, 2);
    case_set(&c, 0, 41, (double)NAN);
    case_run(&c, 1);
    for (guint64 i = 0; i < 80; i++)
        ck_assert(isnan(case_get(&c, 2, i)) == (i >= 40));
    kernel_case_clear(&c);
}
END_TEST

/* ---- rotary embedding ---- */

static KernelCase rope_case(OpKind kind, DType dtype)
{
    const OpSizes s = {.batch = 2, .seq = 5, .heads = 4, .kv_heads = 2, .head_dim = 6};
    KernelCase c = kernel_case(kind, dtype, s);

    case_add(&c, ACCESS_UPDATE, dtype, 10 * 4 * 6);
    case_add(&c, ACCESS_UPDATE, dtype, 10 * 2 * 6);
    case_add(&c, ACCESS_READ, DTYPE_FP32, 5 * 6);
    for (guint64 i = 0; i < 15; i++) {
        const double angle = 3 * noise(&c.state);

        case_set(&c, 2, i / 3 * 6 + i % 3, cos(angle));
        case_set(&c, 2, i / 3 * 6 + 3 + i % 3, sin(angle));
    }
    return c;
}

START_TEST(rope_equals_plain_loops)
{
    KernelCase c = rope_case(OP_ROPE, dtypes[_i]);
    g_autofree double *q = case_values(&c, 0), *k = case_values(&c, 1);
    g_autofree double *table = case_values(&c, 2);

    case_check_threads(&c);
    reference_rope(&c.op.sizes, 4, table, q);
    reference_rope(&c.op.sizes, 2, table, k);
    case_run(&c, 2);
    case_check(&c, 0, q, 1e-6, 1);
    case_check(&c, 1, k, 1e-6, 1);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(rope_backward_turns_back)
{
    KernelCase c = rope_case(OP_ROPE, DTYPE_FP32);
    g_autofree double *q = case_values(&c, 0), *k = case_values(&c, 1);

    case_run(&c, 1);
    c.op.kind = OP_ROPE_BACKWARD;
    case_run(&c, 1);
    case_check(&c, 0, q, 1e-6, 1);
    case_check(&c, 1, k, 1e-6, 1);
    kernel_case_clear(&c);
}
END_TEST

/* ---- attention ---- */

/* One token; a tile and one; several tiles of keys; one, two and four query heads a kv head. */
static const OpSizes attention_sizes[] = {
    {.batch = 1, .seq = 1, .heads = 2, .kv_heads = 2, .head_dim = 6},
    {.batch = 2, .seq = 65, .heads = 4, .kv_heads = 1, .head_dim = 6},
    {.batch = 1, .seq = 300, .heads = 4, .kv_heads = 2, .head_dim = 16},
    {.batch = 1, .seq = 128, .heads = 1, .kv_heads = 1, .head_dim = 64},
};

START_TEST(attention_equals_plain_loops)
{
    KernelCase c = case_of_attention(loop_dtype(_i), attention_sizes[_i / 2]);
    g_autofree double *q = case_values(&c, 0), *k = case_values(&c, 1), *v = case_values(&c, 2);
    g_autofree double *o = g_new(double, c.count[3]), *lse = g_new(double, c.count[4]);
    const double *qkv[] = {q, k, v};

    reference_attention(&c.op.sizes, qkv, o, lse);
    case_run(&c, 2);
    case_check(&c, 3, o, 1e-5, 1);
    case_check(&c, 4, lse, 1e-5, 4);
    case_check_threads(&c);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(attention_does_not_see_later_keys)
{
    KernelCase c = case_of_attention(DTYPE_FP32, attention_sizes[1]);
    KernelCase other = case_copy(&c);

    for (guint64 d = 0; d < 6; d++) { /* the last token of the last sequence */
        case_set(&other, 1, c.count[1] - 1 - d, 3);
        case_set(&other, 2, c.count[2] - 1 - d, -2);
    }
    case_run(&c, 1);
    case_run(&other, 1);
    ck_assert_mem_eq(c.data[3], other.data[3], (c.count[3] - 24) * sizeof(float));
    ck_assert(case_get(&c, 3, c.count[3] - 1) != case_get(&other, 3, c.count[3] - 1));
    kernel_case_clear(&other);
    kernel_case_clear(&c);
}
END_TEST

/* Scores of +-4000 would overflow e^s. */
START_TEST(attention_survives_large_scores)
{
    KernelCase c = case_of_attention(DTYPE_FP32, attention_sizes[2]);

    for (guint64 i = 0; i < c.count[0]; i++)
        case_set(&c, 0, i, 1000 * case_get(&c, 0, i));
    case_run(&c, 1);
    for (guint64 i = 0; i < c.count[3]; i++)
        ck_assert(fabs(case_get(&c, 3, i)) <= 1.0001);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(attention_passes_a_nan_on)
{
    KernelCase c = case_of_attention(DTYPE_FP32, attention_sizes[2]);

    case_set(&c, 0, c.count[0] - 1, (double)NAN); /* the last query of the last head */
    case_run(&c, 1);
    ck_assert(isnan(case_get(&c, 3, c.count[3] - 1)));
    ck_assert(isnan(case_get(&c, 4, c.count[4] - 1)));
    ck_assert(!isnan(case_get(&c, 4, c.count[4] - 2)));
    kernel_case_clear(&c);
}
END_TEST

/* ---- swiglu ---- */

START_TEST(swiglu_equals_plain_loops)
{
    const OpSizes s = {.rows = 9, .in = 250};
    KernelCase c = kernel_case(OP_SWIGLU, dtypes[_i], s);
    g_autofree double *want = g_new(double, 9 * 250);

    case_add(&c, ACCESS_READ, c.op.dtype, 9 * 250);
    case_add(&c, ACCESS_READ, c.op.dtype, 9 * 250);
    case_add(&c, ACCESS_WRITE, c.op.dtype, 9 * 250);
    for (guint64 i = 0; i < c.count[0]; i++)
        case_set(&c, 0, i, 150 * case_get(&c, 0, i)); /* e^150 overflows */
    g_autofree double *gate = case_values(&c, 0), *up = case_values(&c, 1);
    reference_swiglu(&s, gate, up, want);
    case_run(&c, 2);
    case_check(&c, 2, want, 1e-6, 4);
    case_check_threads(&c);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(the_exponential_is_within_two_ulp_and_keeps_what_is_not_finite)
{
    for (double x = -87; x < 88.7; x += 0.001) {
        const double want = exp((double)(float)x), got = (double)cpu_exp((float)x);

        if (fabs(got - want) > 2 * 0x1p-23 * want)
            ck_abort_msg("e^%g is %.9g, not %.9g", x, got, want);
    }
    ck_assert(cpu_exp(0) == 1.0f);
    ck_assert(isnan(cpu_exp(NAN)));
    ck_assert(cpu_exp(INFINITY) == INFINITY);
    ck_assert(cpu_exp(89) == INFINITY);
    ck_assert(cpu_exp(-INFINITY) == 0.0f);
    ck_assert(cpu_exp(-1000) == 0.0f);
}
END_TEST

/* ---- head ---- */

static KernelCase head_case(DType dtype, DType dtype_out, OpSizes s)
{
    KernelCase c = kernel_case(OP_HEAD_LOSS, dtype, s);

    c.op.dtype_out = dtype_out;
    case_add(&c, ACCESS_READ, dtype, s.rows * s.in);
    case_add(&c, ACCESS_READ, dtype, s.out * s.in);
    case_add(&c, ACCESS_READ, DTYPE_INT32, s.rows);
    case_add(&c, ACCESS_READ, DTYPE_FP64, 1);
    case_add(&c, ACCESS_ACCUMULATE, DTYPE_FP64, 1);
    case_add(&c, ACCESS_WRITE, dtype, s.rows * s.in);
    case_add(&c, ACCESS_ACCUMULATE, dtype_out, s.out * s.in);
    case_add_scratch(&c);
    for (guint64 n = 0; n < s.rows; n++)
        case_set(&c, 2, n, n % 5 == 3 ? -1 : (double)(n * 101 % s.out));
    case_set(&c, 3, 0, (double)s.rows);
    return c;
}

/* dx and dW by plain loops: dz = (softmax - onehot) / valid. */
static void head_want(const KernelCase *c, double *dx, double *dw)
{
    const OpSizes *s = &c->op.sizes;
    g_autofree double *x = case_values(c, 0), *w = case_values(c, 1);
    g_autofree double *z = g_new(double, s->rows * s->out);

    reference_linear(s, x, w, z);
    for (guint64 n = 0; n < s->rows; n++) {
        const double label = case_get(c, 2, n);
        double sum = 0;

        for (guint64 v = 0; v < s->out; v++)
            sum += exp(z[n * s->out + v]);
        for (guint64 v = 0; v < s->out && label >= 0; v++) {
            const double p = exp(z[n * s->out + v]) / sum - ((double)v == label ? 1 : 0);

            for (guint64 i = 0; i < s->in; i++) {
                dx[n * s->in + i] += p / case_get(c, 3, 0) * w[v * s->in + i];
                dw[v * s->in + i] += p / case_get(c, 3, 0) * x[n * s->in + i];
            }
        }
    }
}

/* One row; chunks that do not divide the rows; more rows of vocabulary than CPU_HEAD_VOCAB. */
static const OpSizes head_sizes[] = {
    {.rows = 1, .in = 6, .out = 257, .chunk = 64},
    {.rows = 37, .in = 24, .out = 257, .chunk = 16},
    {.rows = 10, .in = 5, .out = 2500, .chunk = 10},
};

START_TEST(head_loss_and_its_gradients_equal_plain_loops)
{
    const DType dtype = _i % 3 == 0 ? DTYPE_FP32 : DTYPE_BF16;
    const DType dtype_out = _i % 3 == 1 ? DTYPE_BF16 : DTYPE_FP32;
    KernelCase c = head_case(dtype, dtype_out, head_sizes[_i / 3]);
    g_autofree double *dx = g_new0(double, c.count[5]), *dw = g_new0(double, c.count[6]);
    g_autofree double *x = case_values(&c, 0), *w = case_values(&c, 1);
    g_autofree double *labels = case_values(&c, 2);
    const double loss = reference_loss(&c.op.sizes, x, w, labels);

    head_want(&c, dx, dw);
    case_run(&c, 2);
    ck_assert_double_eq_tol(case_get(&c, 4, 0), loss, 1e-5 * loss);
    case_check(&c, 5, dx, 1e-6, 1);
    case_check(&c, 6, dw, 1e-6, 1);

    case_run_first(&c, 2, FALSE); /* once more on top: loss and dW double, dx is written again */
    for (guint64 i = 0; i < c.count[6]; i++)
        dw[i] *= 2;
    ck_assert_double_eq_tol(case_get(&c, 4, 0), 2 * loss, 2e-5 * loss);
    case_check(&c, 5, dx, 1e-6, 1);
    case_check(&c, 6, dw, 2e-6, 2);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(rows_without_a_label_have_no_loss_and_no_gradient)
{
    KernelCase c = head_case(DTYPE_FP32, DTYPE_FP32, head_sizes[1]);

    case_fill(&c, 2, -1);
    case_set(&c, 3, 0, 0); /* nothing valid: divided by 1, not by 0 */
    case_run(&c, 1);
    ck_assert(case_get(&c, 4, 0) == 0);
    for (guint64 i = 0; i < c.count[5]; i++)
        ck_assert(case_get(&c, 5, i) == 0);
    for (guint64 i = 0; i < c.count[6]; i++)
        ck_assert(case_get(&c, 6, i) == 0);
    kernel_case_clear(&c);
}
END_TEST

START_TEST(a_nan_or_an_infinity_reaches_the_loss)
{
    const double bad[] = {(double)NAN, (double)INFINITY};

    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        KernelCase c = head_case(DTYPE_FP32, DTYPE_FP32, head_sizes[1]);

        case_set(&c, 1, 100, bad[i]);
        case_run(&c, 1);
        ck_assert(!isfinite(case_get(&c, 4, 0)));
        kernel_case_clear(&c);
    }
}
END_TEST

/* ---- embedding ---- */

START_TEST(embed_copies_the_rows_of_its_tokens)
{
    KernelCase c = kernel_case(OP_EMBED, dtypes[_i], (OpSizes){.rows = 9, .in = 4, .out = 10});
    double want[90];

    case_add(&c, ACCESS_READ, DTYPE_INT32, 9);
    case_add(&c, ACCESS_READ, c.op.dtype, 40);
    case_add(&c, ACCESS_WRITE, c.op.dtype, 90);
    for (guint64 n = 0; n < 9; n++)
        case_set(&c, 0, n, (double)(n * n % 4));
    for (guint64 i = 0; i < 90; i++)
        want[i] = case_get(&c, 1, i / 10 * (i / 10) % 4 * 10 + i % 10);
    case_run(&c, 2);
    case_check(&c, 2, want, 0, 0);
    kernel_case_clear(&c);
}
END_TEST

static KernelCase embed_backward_case(DType dtype, OpSizes s)
{
    KernelCase c = kernel_case(OP_EMBED_BACKWARD, dtype, s);

    case_add(&c, ACCESS_READ, DTYPE_INT32, s.rows);
    case_add(&c, ACCESS_READ, dtype, s.rows * s.out);
    case_add(&c, ACCESS_ACCUMULATE, dtype, s.in * s.out);
    for (guint64 n = 0; n < s.rows; n++)
        case_set(&c, 0, n, (double)(n * 7 % (s.in - 1))); /* the last row of dW has no token */
    return c;
}

START_TEST(embed_backward_adds_rows_to_their_tokens_and_zeroes_the_others)
{
    const OpSizes s = {.rows = 100, .in = 20, .out = 1030};
    KernelCase c = embed_backward_case(dtypes[_i], s);
    g_autofree double *want = g_new0(double, c.count[2]);

    for (guint64 i = 0; i < c.count[1]; i++)
        want[i / s.out * 7 % 19 * s.out + i % s.out] += case_get(&c, 1, i);
    case_check_threads(&c);
    case_run_first(&c, 2, TRUE);
    case_check(&c, 2, want, 1e-6, 1);

    g_autofree double *old = case_values(&c, 2);
    for (guint64 i = 0; i < c.count[2]; i++)
        want[i] += old[i];
    case_run_first(&c, 2, FALSE);
    case_check(&c, 2, want, 2e-6, 1);
    kernel_case_clear(&c);
}
END_TEST

/* 3000 ones: a running sum in bf16 would stop at 256; sums of 1024, 2048, 2992 (3000 is between
 * 2992 and 3008) do not. */
START_TEST(a_frequent_token_keeps_its_gradient_in_bf16)
{
    KernelCase c = embed_backward_case(DTYPE_BF16, (OpSizes){.rows = 3000, .in = 2, .out = 1});
    const double want[] = {3000, 0};

    case_fill(&c, 1, 1);
    case_run(&c, 2);
    case_check(&c, 2, want, 0, 1);
    kernel_case_clear(&c);
}
END_TEST

/* ---- sums, casts ---- */

START_TEST(accumulate_adds_in_fp32)
{
    KernelCase c = kernel_case(OP_ACCUMULATE, dtypes[_i % 2], (OpSizes){.elements = 2500});
    g_autofree double *want = g_new(double, 2500);

    c.op.dtype_out = dtypes[_i / 2 % 2];
    case_add(&c, ACCESS_READ, c.op.dtype, 2500);
    if (_i / 4 == 0) {
        case_add(&c, ACCESS_UPDATE, c.op.dtype_out, 2500);
    } else {
        case_add(&c, ACCESS_WRITE, c.op.dtype_out, 2500);
        case_add(&c, ACCESS_READ, c.op.dtype_out, 2500);
    }
    for (guint64 i = 0; i < 2500; i++)
        want[i] = case_get(&c, 0, i) + case_get(&c, _i / 4 == 0 ? 1 : 2, i);
    case_check_threads(&c);
    case_run(&c, 1);
    case_check(&c, 1, want, 0, 1);
    kernel_case_clear(&c);
}
END_TEST

/* By hand: a unit in the last place of bf16 at 1 is 2^-7. */
static const struct {
    double value, rounded;
} casts[] = {
    {0, 0},
    {1 + 0x1p-8, 1},                    /* a tie, to even */
    {1 + 3 * 0x1p-8, 1 + 2 * 0x1p-7},   /* a tie, to even, up */
    {1 + 0x1p-8 + 0x1p-20, 1 + 0x1p-7}, /* above the tie */
    {-1 - 0x1p-8, -1},
    {0x1.fffffep127, (double)INFINITY}, /* the largest fp32 */
    {(double)-INFINITY, (double)-INFINITY},
    {0x1p-149, 0}, /* the smallest fp32 */
};

START_TEST(cast_rounds_to_nearest_even)
{
    KernelCase c = kernel_case(OP_CAST, DTYPE_FP32, (OpSizes){.elements = G_N_ELEMENTS(casts) + 1});

    c.op.dtype_out = DTYPE_BF16;
    case_add(&c, ACCESS_READ, DTYPE_FP32, G_N_ELEMENTS(casts) + 1);
    case_add(&c, ACCESS_WRITE, DTYPE_BF16, G_N_ELEMENTS(casts) + 1);
    for (guint64 i = 0; i < G_N_ELEMENTS(casts); i++)
        case_set(&c, 0, i, casts[i].value);
    ((float *)c.data[0])[G_N_ELEMENTS(casts)] = float_from_bits(0x7fffffff); /* a NaN */
    case_run(&c, 1);
    for (guint64 i = 0; i < G_N_ELEMENTS(casts); i++)
        ck_assert(case_get(&c, 1, i) == casts[i].rounded);
    ck_assert(isnan(case_get(&c, 1, G_N_ELEMENTS(casts))));
    kernel_case_clear(&c);
}
END_TEST

START_TEST(a_cast_there_and_back_changes_nothing_that_bf16_holds)
{
    KernelCase there = kernel_case(OP_CAST, DTYPE_BF16, (OpSizes){.elements = 65536});
    KernelCase back = kernel_case(OP_CAST, DTYPE_FP32, (OpSizes){.elements = 65536});

    there.op.dtype_out = DTYPE_FP32;
    back.op.dtype_out = DTYPE_BF16;
    case_add(&there, ACCESS_READ, DTYPE_BF16, 65536);
    case_add(&there, ACCESS_WRITE, DTYPE_FP32, 65536);
    case_add(&back, ACCESS_READ, DTYPE_FP32, 65536);
    case_add(&back, ACCESS_WRITE, DTYPE_BF16, 65536);
    for (guint i = 0; i < 65536; i++)
        ((guint16 *)there.data[0])[i] = (guint16)i;
    case_run(&there, 2);
    memcpy(back.data[0], there.data[1], 65536 * sizeof(float));
    case_run(&back, 2);
    for (guint i = 0; i < 65536; i++)
        if (isnan(case_get(&there, 0, i)))
            ck_assert(isnan(case_get(&back, 1, i)));
        else if (((guint16 *)back.data[1])[i] != i)
            ck_abort_msg("%#x became %#x", i, ((guint16 *)back.data[1])[i]);
    kernel_case_clear(&there);
    kernel_case_clear(&back);
}
END_TEST

/* ---- device ---- */

START_TEST(a_device_says_what_multiplies_for_it)
{
    g_autoptr(Device) device = device_open(DEVICE_CPU, 1, NULL);

    ck_assert_ptr_nonnull(device);
    ck_assert_msg(g_str_has_prefix(device_library(device), "OpenBLAS "), "%s",
                  device_library(device));
}
END_TEST

static void add_products(TCase *tcase)
{
    const int linear = 2 * G_N_ELEMENTS(linear_sizes);

    tcase_add_loop_test(tcase, linear_equals_plain_loops, 0, linear);
    tcase_add_loop_test(tcase, gradient_of_a_linears_input_equals_plain_loops, 0, linear);
    tcase_add_loop_test(tcase, gradient_of_a_linears_weight_equals_plain_loops, 0, linear);
    tcase_add_test(tcase, first_turns_an_accumulated_weight_gradient_into_a_written_one);
    tcase_add_test(tcase, a_weight_gradient_is_summed_in_fp32_and_rounded_once);
    tcase_add_loop_test(tcase, attention_equals_plain_loops, 0, 2 * G_N_ELEMENTS(attention_sizes));
    tcase_add_test(tcase, attention_does_not_see_later_keys);
    tcase_add_test(tcase, attention_survives_large_scores);
    tcase_add_test(tcase, attention_passes_a_nan_on);
    tcase_add_loop_test(tcase, head_loss_and_its_gradients_equal_plain_loops, 0,
                        3 * G_N_ELEMENTS(head_sizes));
    tcase_add_test(tcase, rows_without_a_label_have_no_loss_and_no_gradient);
    tcase_add_test(tcase, a_nan_or_an_infinity_reaches_the_loss);
}

static void add_elementwise(TCase *tcase)
{
    tcase_add_loop_test(tcase, rmsnorm_equals_plain_loops_and_apply_repeats_it, 0,
                        2 * G_N_ELEMENTS(norm_sizes));
    tcase_add_test(tcase, rmsnorm_passes_a_nan_on_in_its_own_row_only);
    tcase_add_loop_test(tcase, rope_equals_plain_loops, 0, 2);
    tcase_add_test(tcase, rope_backward_turns_back);
    tcase_add_loop_test(tcase, swiglu_equals_plain_loops, 0, 2);
    tcase_add_test(tcase, the_exponential_is_within_two_ulp_and_keeps_what_is_not_finite);
    tcase_add_loop_test(tcase, embed_copies_the_rows_of_its_tokens, 0, 2);
    tcase_add_loop_test(tcase, embed_backward_adds_rows_to_their_tokens_and_zeroes_the_others, 0,
                        2);
    tcase_add_test(tcase, a_frequent_token_keeps_its_gradient_in_bf16);
    tcase_add_loop_test(tcase, accumulate_adds_in_fp32, 0, 8);
    tcase_add_test(tcase, cast_rounds_to_nearest_even);
    tcase_add_test(tcase, a_cast_there_and_back_changes_nothing_that_bf16_holds);
    tcase_add_test(tcase, a_device_says_what_multiplies_for_it);
}

int main(void)
{
    Suite *suite = suite_create("kernels");
    TCase *products = tcase_create("products"), *elementwise = tcase_create("elementwise");

    tcase_set_timeout(products, 60);
    tcase_set_timeout(elementwise, 30);
    add_products(products);
    add_elementwise(elementwise);
    suite_add_tcase(suite, products);
    suite_add_tcase(suite, elementwise);
    return suite_run(suite);
}
