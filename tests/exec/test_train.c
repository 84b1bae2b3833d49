#include "exec/run/train.h"
#include "tests/suite.h"

static const double tolerance = 1e-15;

START_TEST(the_rate_is_constant_unless_a_cosine_is_asked_for)
{
    const TrainOptions options = {.lr = 3e-4, .lr_steps = 100, .warmup = 10, .steps = 50};

    ck_assert_double_eq(train_learning_rate(&options, 1), 3e-4);
    ck_assert_double_eq(train_learning_rate(&options, 1000), 3e-4);
}
END_TEST

/* Warm-up of 10 steps, then half a cosine over 100 - 10 steps from 1 down to 0.1. */
static const struct {
    guint step;
    double rate;
} worked[] = {{1, 0.1},     {5, 0.5},
              {10, 1},      {40, 0.1 + 0.9 * 0.75},
              {55, 0.55},   {70, 0.1 + 0.9 * 0.25},
              {100, 0.1},   {101, 0.1},
              {100000, 0.1}};

START_TEST(a_cosine_warms_up_and_ends_at_a_tenth)
{
    const TrainOptions options = {.lr = 1, .cosine = TRUE, .lr_steps = 100, .warmup = 10};

    ck_assert_double_eq_tol(train_learning_rate(&options, worked[_i].step), worked[_i].rate,
                            tolerance);
}
END_TEST

START_TEST(the_rate_of_a_step_does_not_depend_on_where_a_run_stops)
{
    TrainOptions options = {.lr = 1e-3, .cosine = TRUE, .lr_steps = 100, .warmup = 10};

    for (guint step = 1; step < 200; step++) {
        options.steps = step;
        const double early = train_learning_rate(&options, step);
        options.steps = 1000;
        ck_assert_double_eq(train_learning_rate(&options, step), early);
    }
}
END_TEST

START_TEST(without_warm_up_the_first_step_is_already_on_the_cosine)
{
    const TrainOptions options = {.lr = 1, .cosine = TRUE, .lr_steps = 2};

    ck_assert_double_eq_tol(train_learning_rate(&options, 1), 0.55, tolerance);
    ck_assert_double_eq_tol(train_learning_rate(&options, 2), 0.1, tolerance);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train");
    TCase *tcase = tcase_create("learning_rate");

    tcase_add_test(tcase, the_rate_is_constant_unless_a_cosine_is_asked_for);
    tcase_add_loop_test(tcase, a_cosine_warms_up_and_ends_at_a_tenth, 0, G_N_ELEMENTS(worked));
    tcase_add_test(tcase, the_rate_of_a_step_does_not_depend_on_where_a_run_stops);
    tcase_add_test(tcase, without_warm_up_the_first_step_is_already_on_the_cosine);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
