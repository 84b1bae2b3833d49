/* Kernels without neighbours, and the rotary embedding, against plain loops. */
#include "exec/device/cpu_fp8.h"
#include "sim/program/op.h"
#include "tests/cuda/cuda_case.h"

/* One; a tail behind vectors of 8; several blocks. */
static const guint64 counts[] = {1, 1003, 5000};

enum { LOOPS = 4 * G_N_ELEMENTS(counts) };

static CudaCase loop_case(int i)
{
    CudaCase c = cuda_case();

    c.unaligned = i / 2 % 2;
    return c;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

START_TEST(swiglu_equals_plain_loops)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 n = counts[_i / 4];
    const DType dtype = loop_dtype(_i);
    Array *gate = case_noise(&c, dtype, n), *up = case_noise(&c, dtype, n);
    Array *h = case_output(&c, dtype, n);
    double *want = case_values(&c, n);

    for (guint64 i = 0; i < n; i++)
        want[i] = gate->was[i] * sigmoid(gate->was[i]) * up->was[i];
    cuda_swiglu(dtype, n, gate->p, up->p, h->p, c.stream);
    array_check(&c, h, want, 1e-13, BF16_ROUNDED);
}
END_TEST

START_TEST(gradient_of_swiglu_equals_differences)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 n = counts[_i / 4];
    const DType dtype = loop_dtype(_i);
    Array *dh = case_noise(&c, dtype, n), *gate = case_noise(&c, dtype, n);
    Array *up = case_noise(&c, dtype, n);
    double *dgate = case_values(&c, n), *dup = case_values(&c, n);

    for (guint64 i = 0; i < n; i++) {
        const double g = gate->was[i], e = 1e-5;

        dgate[i] = dh->was[i] * up->was[i] * ((g + e) * sigmoid(g + e) - (g - e) * sigmoid(g - e)) /
                   (2 * e);
        dup[i] = dh->was[i] * g * sigmoid(g);
    }
    cuda_swiglu_backward(dtype, n, dh->p, gate->p, up->p, c.stream);
    array_check(&c, gate, dgate, 1e-12, BF16_ROUNDED);
    array_check(&c, up, dup, 1e-13, BF16_ROUNDED);
}
END_TEST

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / G_PI) * (x + 0.044715 * x * x * x)));
}

START_TEST(gelu_and_its_gradient_equal_plain_loops_and_differences)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 n = counts[_i / 4];
    const DType dtype = loop_dtype(_i);
    Array *dh = case_noise(&c, dtype, n), *x = case_noise(&c, dtype, n);
    Array *h = case_output(&c, dtype, n);
    double *want = case_values(&c, n), *dx = case_values(&c, n);

    for (guint64 i = 0; i < n; i++) {
        const double v = x->was[i], e = 1e-5;

        want[i] = gelu(v);
        dx[i] = dh->was[i] * (gelu(v + e) - gelu(v - e)) / (2 * e);
    }
    cuda_gelu(dtype, n, x->p, h->p, c.stream);
    cuda_gelu_backward(dtype, n, dh->p, x->p, c.stream);
    array_check(&c, h, want, 1e-13, BF16_ROUNDED);
    array_check(&c, x, dx, 1e-12, BF16_ROUNDED);
}
END_TEST

START_TEST(bias_is_added_to_every_row)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 rows = 5, columns = counts[_i / 4];
    const DType dtype = loop_dtype(_i);
    Array *bias = case_noise(&c, dtype, columns), *y = case_noise(&c, dtype, rows * columns);
    double *want = case_values(&c, rows * columns);

    for (guint64 i = 0; i < rows * columns; i++)
        want[i] = y->was[i] + bias->was[i % columns];
    cuda_add_bias(dtype, rows, columns, bias->p, y->p, c.stream);
    array_check(&c, y, want, 1e-14, BF16_ROUNDED);
}
END_TEST

START_TEST(accumulate_adds)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 n = counts[_i / 4];
    const DType from = loop_dtype(_i), types[] = {DTYPE_FP32, DTYPE_BF16};

    for (guint to = 0; to < G_N_ELEMENTS(types); to++) {
        Array *src = case_noise(&c, from, n), *dst = case_noise(&c, types[to], n);
        Array *sum = case_output(&c, types[to], n);
        double *want = case_values(&c, n);

        for (guint64 i = 0; i < n; i++)
            want[i] = src->was[i] + dst->was[i];
        cuda_accumulate(from, types[to], n, src->p, dst->p, sum->p, c.stream);
        cuda_accumulate(from, types[to], n, src->p, dst->p, dst->p, c.stream);
        array_check(&c, sum, want, 1e-14, BF16_ROUNDED);
        array_check(&c, dst, want, 1e-14, BF16_ROUNDED);
    }
}
END_TEST

START_TEST(casts_round_to_nearest_even)
{
    static const DType types[] = {DTYPE_FP32, DTYPE_BF16};

    for (guint to = 0; to < 2; to++) {
        g_auto(CudaCase) c = loop_case(_i);
        const guint64 n = counts[_i / 4];
        Array *src = case_noise(&c, loop_dtype(_i), n), *dst = case_output(&c, types[to], n);
        double *want = case_values(&c, n);

        for (guint64 i = 0; i < n; i++)
            want[i] = stored(types[to], src->was[i]);
        cuda_cast(loop_dtype(_i), types[to], n, src->p, dst->p, c.stream);
        array_check(&c, dst, want, 0, 0);
    }
}
END_TEST

/* The nearest e4m3 value: 3 bits of mantissa, exponents from -6, up to 448. */
static double nearest_e4m3(double x)
{
    const double size = fmin(fabs(x), 448);
    const double step = ldexp(1, (size < ldexp(1, -6) ? -6 : ilogb(size)) - 3);

    return copysign(fmin(nearbyint(size / step) * step, 448), x);
}

static double e4m3_value(guint8 bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 7 - 3);

    return (bits & 128) != 0 ? -size : size;
}

START_TEST(fp8_values_are_the_nearest_and_amax_is_the_largest)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 n = counts[_i / 4];
    Array *src = case_noise(&c, loop_dtype(_i), n), *scale = case_noise(&c, DTYPE_FP32, 1);
    Array *amax = case_noise(&c, DTYPE_FP32, 1);
    g_autofree guint8 *got = g_malloc(n);
    guint8 *dst = case_scratch(&c, n + 8);
    double largest = 0.25;

    dst += c.unaligned;
    scale->was[0] = 600; /* saturates */
    array_fill(scale);
    amax->was[0] = largest;
    array_fill(amax);
    for (guint64 i = 0; i < n; i++)
        largest = fmax(largest, fabs(src->was[i]));
    cuda_cast_fp8(&(CudaCastFp8){.dtype = loop_dtype(_i),
                                 .elements = n,
                                 .src = src->p,
                                 .scale = scale->p,
                                 .dst = dst,
                                 .amax = amax->p},
                  c.stream);
    case_sync();
    ck_assert(cudaMemcpy(got, dst, n, cudaMemcpyDeviceToHost) == cudaSuccess);
    ck_assert(array_now(&c, amax)[0] == largest);
    for (guint64 i = 0; i < n; i++)
        ck_assert_double_eq(e4m3_value(got[i]),
                            nearest_e4m3((double)((float)src->was[i] * 600.0f)));
}
END_TEST

/* Noise, between the values of all codes, their middles, and what has none. */
static void fill_for_codes(Array *src)
{
    for (guint code = 0; code < 0x7e && 2 * code + 4 < src->count; code++) {
        src->was[2 * code] = e4m3_value((guint8)code);
        src->was[2 * code + 1] = -(e4m3_value((guint8)code) + e4m3_value((guint8)(code + 1))) / 2;
    }
    src->was[src->count - 1] = (double)NAN;
    array_fill(src);
}

/* @amax 448: values are their codes' own.  0: all saturates but zeros. */
START_TEST(codes_of_a_matrix_are_the_cpus)
{
    static const float largest[] = {448, 0, 3};
    g_auto(CudaCase) c = loop_case(_i);
    const DType dtype = loop_dtype(_i);
    const guint64 n = MAX(counts[_i / 4], 1);

    for (guint a = 0; a < G_N_ELEMENTS(largest); a++) {
        Array *src = case_noise(&c, dtype, n), *amax = case_noise(&c, DTYPE_FP32, 1);
        Array *back = case_noise(&c, dtype, n);
        const double most = MAX((double)largest[a], AMAX_LEAST);
        g_autofree guint8 *got = g_malloc(n);
        guint8 *codes = (guint8 *)case_scratch(&c, n + 8) + c.unaligned;

        fill_for_codes(src);
        amax->was[0] = (double)largest[a];
        array_fill(amax);
        cuda_quantise(dtype, n, src->p, amax->p, codes, c.stream);
        cuda_dequantise(dtype, n, codes, amax->p, back->p, c.stream);
        case_sync();
        ck_assert(cudaMemcpy(got, codes, n, cudaMemcpyDeviceToHost) == cudaSuccess);
        const double *now = array_now(&c, back);
        for (guint64 i = 0; i < n; i++) {
            const guint8 want = cpu_e4m3_from_float((float)src->was[i] * (float)(448 / most));
            const float value = cpu_e4m3_to_float(got[i]) * (float)(most / 448);

            ck_assert_uint_eq(got[i], want);
            ck_assert(isnan(value) ? isnan(now[i])
                                   : fabs(now[i] - (double)value) <=
                                         (dtype == DTYPE_BF16 ? 0x1p-8 : 0) * fabs((double)value));
        }
    }
}
END_TEST

START_TEST(amax_is_the_largest_so_far_and_a_nan_above_it)
{
    g_auto(CudaCase) c = loop_case(_i);
    const guint64 n = counts[_i / 4];
    Array *src = case_noise(&c, loop_dtype(_i), n), *amax = case_noise(&c, DTYPE_FP32, 1);
    double most = 0.25;

    amax->was[0] = most;
    array_fill(amax);
    for (guint64 i = 0; i < n; i++)
        most = fmax(most, fabs(src->was[i]));
    cuda_amax(loop_dtype(_i), n, src->p, amax->p, c.stream);
    case_sync();
    ck_assert(array_now(&c, amax)[0] == most);
    if (n == 0)
        return;
    src->was[n / 2] = (double)NAN;
    array_fill(src);
    cuda_amax(loop_dtype(_i), n, src->p, amax->p, c.stream);
    case_sync();
    ck_assert(isnan(array_now(&c, amax)[0]));
}
END_TEST

/* ---- rotary embedding ---- */

static const struct {
    guint64 batch, seq, heads, kv_heads, head_dim;
} rope_sizes[] = {{1, 1, 1, 1, 2}, {2, 5, 3, 1, 6}, {2, 9, 4, 2, 64}};

static void rotate(guint64 row, guint64 seq, guint64 dim, const double *table, double *head)
{
    const double *angles = table + row % seq * dim;

    for (guint64 i = 0; i < dim / 2; i++) {
        const double a = head[i], b = head[i + dim / 2];

        head[i] = a * angles[i] - b * angles[dim / 2 + i];
        head[i + dim / 2] = b * angles[i] + a * angles[dim / 2 + i];
    }
}

START_TEST(rope_turns_and_backward_turns_back)
{
    g_auto(CudaCase) c = loop_case(_i);
    const DType dtype = loop_dtype(_i);
    const guint64 seq = rope_sizes[_i / 4].seq, dim = rope_sizes[_i / 4].head_dim;
    const guint64 rows = rope_sizes[_i / 4].batch * seq, heads = rope_sizes[_i / 4].heads;
    const guint64 kv_heads = rope_sizes[_i / 4].kv_heads;
    Array *q = case_noise(&c, dtype, rows * heads * dim);
    Array *k = case_noise(&c, dtype, rows * kv_heads * dim);
    Array *table = case_noise(&c, DTYPE_FP32, seq * dim);
    double *want_q = case_values(&c, q->count), *want_k = case_values(&c, k->count);
    const CudaRope rope = {dtype,   rope_sizes[_i / 4].batch, seq, heads, kv_heads, dim, q->p, k->p,
                           table->p};

    for (guint64 i = 0; i < seq * dim; i++) {
        const double angle = (double)(i % (dim / 2)) + (double)(i / dim);

        table->was[i] = i % dim < dim / 2 ? cos(angle) : sin(angle);
    }
    array_fill(table);
    memcpy(want_q, q->was, q->count * sizeof(double));
    memcpy(want_k, k->was, k->count * sizeof(double));
    for (guint64 row = 0; row < rows; row++) {
        for (guint64 h = 0; h < heads; h++)
            rotate(row, seq, dim, table->was, want_q + (row * heads + h) * dim);
        for (guint64 h = 0; h < kv_heads; h++)
            rotate(row, seq, dim, table->was, want_k + (row * kv_heads + h) * dim);
    }
    cuda_rope(&rope, c.stream);
    array_check(&c, q, want_q, 1e-13, 8e-6);
    array_check(&c, k, want_k, 1e-13, 8e-6);
    cuda_rope_backward(&rope, c.stream);
    array_check(&c, q, q->was, 1e-13, 2e-5);
    array_check(&c, k, k->was, 1e-13, 2e-5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda elementwise");
    TCase *tests = tcase_create("elementwise");

    tcase_add_loop_test(tests, swiglu_equals_plain_loops, 0, LOOPS);
    tcase_add_loop_test(tests, gradient_of_swiglu_equals_differences, 0, LOOPS);
    tcase_add_loop_test(tests, gelu_and_its_gradient_equal_plain_loops_and_differences, 0, LOOPS);
    tcase_add_loop_test(tests, bias_is_added_to_every_row, 0, LOOPS);
    tcase_add_loop_test(tests, accumulate_adds, 0, LOOPS);
    tcase_add_loop_test(tests, casts_round_to_nearest_even, 0, LOOPS);
    tcase_add_loop_test(tests, codes_of_a_matrix_are_the_cpus, 0, LOOPS);
    tcase_add_loop_test(tests, amax_is_the_largest_so_far_and_a_nan_above_it, 0, LOOPS);
    tcase_add_loop_test(tests, fp8_values_are_the_nearest_and_amax_is_the_largest, 0, LOOPS);
    tcase_add_loop_test(tests, rope_turns_and_backward_turns_back, 0, 4 * G_N_ELEMENTS(rope_sizes));
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
