#include "sim/base/error.h"
#include "tests/suite.h"

#undef fail /* check.h still has an old macro of that name */

START_TEST(exit_statuses_are_those_of_the_command_lines)
{
    static const struct {
        ErrorCode code;
        int status;
    } expected[] = {{ERROR_INPUT, 2}, {ERROR_INFEASIBLE, 1}, {ERROR_RUNTIME, 3}};

    for (guint i = 0; i < G_N_ELEMENTS(expected); i++) {
        g_autoptr(GError) error = NULL;

        ck_assert(!fail(&error, expected[i].code, "%s:%d", "file", 7));
        ck_assert_str_eq(error->message, "file:7");
        ck_assert_int_eq(error_exit_status(error), expected[i].status);
    }
}
END_TEST

START_TEST(errors_of_other_domains_are_bad_usage)
{
    g_autoptr(GError) error =
        g_error_new_literal(G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION, "unknown option");

    ck_assert_int_eq(error_exit_status(error), 2);
}
END_TEST

START_TEST(a_caller_may_ignore_the_error)
{
    ck_assert(!fail(NULL, ERROR_RUNTIME, "%d", 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("error");
    TCase *tcase = tcase_create("error");

    tcase_add_test(tcase, exit_statuses_are_those_of_the_command_lines);
    tcase_add_test(tcase, errors_of_other_domains_are_bad_usage);
    tcase_add_test(tcase, a_caller_may_ignore_the_error);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
