#include "exec/base/random.h"
#include "tests/suite.h"

#include <math.h>
#include <string.h>

/* From a second implementation (Python) of the definition in the design: SplitMix64's finaliser,
 * FNV-1a, Box and Muller. */
static const struct {
    guint64 seed;
    const char *name;
    guint64 element;
    double std;
    float value;
} worked[] = {
    {1234, "embed", 0, 1.0, -0.861271441f},
    {1234, "embed", 1, 1.0, -0.235546395f},
    {1234, "embed", G_GUINT64_CONSTANT(1) << 40, 1.0, 0.389425188f},
    {0, "layers.3.attention.query", 7, 0.02, 0.0462962836f},
    {G_MAXUINT64, "embed", 0, 1.0, -0.72711581f},
    {1234, "", 0, 1.0, -1.67160082f},
};

START_TEST(normal_values_are_those_of_a_second_implementation)
{
    float value = 0.0f;

    random_normal_fill(&value, worked[_i].seed, worked[_i].name, worked[_i].element, 1,
                       worked[_i].std);
    ck_assert_float_eq_tol(value, worked[_i].value, 1e-6f * fabsf(worked[_i].value));
}
END_TEST

START_TEST(a_value_does_not_depend_on_how_the_tensor_is_cut)
{
    enum { N = 1000 };
    float whole[N], pieces[N];

    random_normal_fill(whole, 7, "w", 100, N, 0.5);
    for (guint64 at = 0; at < N; at += 7)
        random_normal_fill(pieces + at, 7, "w", 100 + at, MIN(7, N - at), 0.5);
    ck_assert_mem_eq(whole, pieces, sizeof whole);
}
END_TEST

START_TEST(seeds_and_names_give_unrelated_values)
{
    enum { N = 100000 };
    static const struct {
        guint64 seed;
        const char *name;
    } others[] = {{1, "layers.1.up"}, {2, "layers.0.up"}, {1, "layers.0.pu"}};
    g_autofree float *a = g_new(float, N), *b = g_new(float, N);

    random_normal_fill(a, 1, "layers.0.up", 0, N, 1.0);
    random_normal_fill(b, others[_i].seed, others[_i].name, 0, N, 1.0);

    double product = 0.0;
    for (guint i = 0; i < N; i++)
        product += (double)a[i] * (double)b[i];
    ck_assert_double_lt(fabs(product / N), 5.0 / sqrt(N)); /* 5 standard errors */
}
END_TEST

START_TEST(values_have_the_moments_of_a_normal_distribution)
{
    enum { N = 1000000 };
    const double std = 0.02;
    g_autofree float *x = g_new(float, N);
    double sum[5] = {0};

    random_normal_fill(x, 1234, "moments", 0, N, std);
    for (guint i = 0; i < N; i++) {
        const double z = (double)x[i] / std;
        for (guint k = 1; k <= 4; k++)
            sum[k] += pow(z, k) / N;
    }
    /* Standard errors of the first moments of N(0, 1): sqrt(1, 2, 15, 96 / N); five of them. */
    ck_assert_double_eq_tol(sum[1], 0.0, 0.005);
    ck_assert_double_eq_tol(sum[2], 1.0, 0.008);
    ck_assert_double_eq_tol(sum[3], 0.0, 0.02);
    ck_assert_double_eq_tol(sum[4], 3.0, 0.05);
}
END_TEST

START_TEST(no_elements_write_nothing)
{
    float value = 42.0f;

    random_normal_fill(&value, 1, "w", 0, 0, 1.0);
    ck_assert_float_eq(value, 42.0f);
}
END_TEST

/* From the same second implementation. */
static const struct {
    guint64 seed, step, sample, length, start;
} starts[] = {
    {1234, 1, 0, 1000, 39},
    {1234, 1, 1, 1000, 962},
    {1234, 2, 0, 1000, 691},
    {0, 0, 0, (G_GUINT64_CONSTANT(1) << 40) + 15, G_GUINT64_CONSTANT(914672422462)},
    {G_MAXUINT64, G_MAXUINT64, G_MAXUINT64, 7, 0},
    {5, 6, 7, 1, 0}, /* nowhere else to start */
};

START_TEST(samples_start_where_a_second_implementation_says)
{
    ck_assert_uint_eq(
        random_sample_start(starts[_i].seed, starts[_i].step, starts[_i].sample, starts[_i].length),
        starts[_i].start);
}
END_TEST

START_TEST(samples_start_everywhere_equally_often)
{
    enum { LENGTH = 16, N = 160000 };
    guint count[LENGTH] = {0};

    for (guint64 i = 0; i < N; i++)
        count[random_sample_start(3, i / 8, i % 8, LENGTH)]++;
    for (guint i = 0; i < LENGTH; i++)
        ck_assert_int_le(ABS((gint)count[i] - N / LENGTH), 500); /* 5 standard deviations */
}
END_TEST

/* Each of the 16 bits is set half of the time, whatever the step; 65,536 draws, 5 standard
 * deviations of 128. */
START_TEST(bits_for_rounding_are_as_often_0_as_1)
{
    enum { N = 1 << 16 };
    g_autofree guint16 *bits = g_new(guint16, N);
    guint set[16] = {0};

    random_bits_fill(bits, (guint64)_i, random_numbers(1, "w"), N);
    for (guint i = 0; i < N; i++)
        for (guint b = 0; b < 16; b++)
            set[b] += bits[i] >> b & 1;
    for (guint b = 0; b < 16; b++)
        ck_assert_int_le(ABS((gint)set[b] - N / 2), 640);
}
END_TEST

/* Of equal numbers 1 in 65,536 would be chance. */
START_TEST(bits_for_rounding_depend_on_seed_name_step_and_element)
{
    enum { N = 1000 };
    static const struct {
        guint64 seed, step, element;
        const char *name;
    } others[] = {{2, 5, 0, "w"}, {1, 6, 0, "w"}, {1, 5, 1, "w"}, {1, 5, 0, "v"}};
    guint16 one[N], other[N], cut[N];
    guint same = 0;

    random_bits_fill(one, 5, random_numbers(1, "w"), N);
    random_bits_fill(other, others[_i].step,
                     random_numbers(others[_i].seed, others[_i].name) + others[_i].element, N);
    for (guint i = 0; i < N; i++)
        same += one[i] == other[i];
    ck_assert_uint_le(same, 2);
    for (guint i = 0; i < N; i++)
        random_bits_fill(&cut[i], 5, random_numbers(1, "w") + i, 1);
    ck_assert_mem_eq(one, cut, sizeof one);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("random");
    TCase *normal = tcase_create("normal");
    TCase *sample = tcase_create("sample");

    tcase_add_loop_test(normal, normal_values_are_those_of_a_second_implementation, 0,
                        G_N_ELEMENTS(worked));
    tcase_add_test(normal, a_value_does_not_depend_on_how_the_tensor_is_cut);
    tcase_add_loop_test(normal, seeds_and_names_give_unrelated_values, 0, 3);
    tcase_add_test(normal, values_have_the_moments_of_a_normal_distribution);
    tcase_add_test(normal, no_elements_write_nothing);
    tcase_add_loop_test(sample, samples_start_where_a_second_implementation_says, 0,
                        G_N_ELEMENTS(starts));
    tcase_add_test(sample, samples_start_everywhere_equally_often);
    tcase_add_loop_test(sample, bits_for_rounding_are_as_often_0_as_1, 0, 3);
    tcase_add_loop_test(sample, bits_for_rounding_depend_on_seed_name_step_and_element, 0, 4);
    suite_add_tcase(suite, normal);
    suite_add_tcase(suite, sample);
    return suite_run(suite);
}
