#include "sim/base/samples.h"
#include "tests/suite.h"

#include <math.h>

START_TEST(means_and_medians_are_those_worked_by_hand)
{
    double values[] = {4, 1, 3, 2}, three[] = {4, 1, 3};

    ck_assert_double_eq_tol(samples_mean(values, 4), 2.5, 1e-12);
    ck_assert_double_eq(samples_mean(values, 0), 0);
    ck_assert_double_eq_tol(samples_median(values, 4), 2.5, 1e-12);
    ck_assert_double_eq(values[0], 1); /* sorted */
    ck_assert_double_eq(values[3], 4);
    ck_assert_double_eq_tol(samples_median(three, 3), 3, 1e-12);
    ck_assert_double_eq(samples_median(three, 1), 1);
}
END_TEST

/* A quarter of 9 rounds down to 2: 1 2 | 3 4 5 6 7 | 100 1000. */
START_TEST(the_middle_mean_leaves_out_the_fastest_and_the_slowest)
{
    double nine[] = {1000, 3, 1, 5, 4, 100, 7, 6, 2}, one[] = {42}, three[] = {1, 2, 6};

    ck_assert_double_eq(samples_middle_mean(nine, 9), 5);
    ck_assert_double_eq(samples_middle_mean(one, 1), 42);
    ck_assert_double_eq(samples_middle_mean(three, 3), 2);
}
END_TEST

START_TEST(measurements_keep_four_digits)
{
    ck_assert_double_eq(samples_round(12345678), 12350000);
    ck_assert_double_eq(samples_round(1.23449e-7), 1.234e-7);
}
END_TEST

START_TEST(errors_and_regrets_are_those_worked_by_hand)
{
    /* chosen: the third, measured 3; the best is 2 */
    const double predicted[] = {5, 6, 4}, measured[] = {2, 9, 3};

    ck_assert_double_eq_tol(samples_error(1.1, 1), 0.1, 1e-12);
    ck_assert_double_eq_tol(samples_error(0.5, 2), 0.75, 1e-12);
    ck_assert_double_eq_tol(samples_regret(predicted, measured, 3), 0.5, 1e-12);
    ck_assert_double_eq(samples_regret(predicted, measured, 1), 0);
}
END_TEST

START_TEST(equal_values_share_a_rank)
{
    /* ranks 0 1 2 3 and 1 0 2 3: 1 - 6 (1 + 1) / (4 (16 - 1)) */
    const double a[] = {1, 2, 3, 4}, b[] = {6, 5, 7, 8};
    /* ranks 0 1.5 1.5 3 against 0 1 2 3: 4.5 / sqrt(4.5 * 5) */
    const double ties[] = {1, 2, 2, 3}, same[] = {5, 5, 5, 5};

    ck_assert_double_eq_tol(samples_spearman(a, b, 4), 0.8, 1e-12);
    ck_assert_double_eq_tol(samples_spearman(ties, ties, 4), 1, 1e-12);
    ck_assert_double_eq_tol(samples_spearman(ties, a, 4), 4.5 / 4.743416490252569, 1e-12);
    ck_assert(isnan(samples_spearman(a, same, 4)));
    ck_assert(isnan(samples_spearman(a, b, 1)));
    ck_assert(isnan(samples_spearman(a, b, 0)));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("samples");
    TCase *tcase = tcase_create("samples");

    tcase_add_test(tcase, means_and_medians_are_those_worked_by_hand);
    tcase_add_test(tcase, the_middle_mean_leaves_out_the_fastest_and_the_slowest);
    tcase_add_test(tcase, measurements_keep_four_digits);
    tcase_add_test(tcase, errors_and_regrets_are_those_worked_by_hand);
    tcase_add_test(tcase, equal_values_share_a_rank);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
