#define _GNU_SOURCE 1 /* posix_openpt() */
#include "sim/base/progress.h"
#include "tests/suite.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is written to stderr goes to a terminal from here on, whose other end is returned. */
static int take_terminal(void)
{
    const int end = posix_openpt(O_RDWR | O_NOCTTY);

    ck_assert_int_ge(end, 0);
    ck_assert_int_eq(grantpt(end), 0);
    ck_assert_int_eq(unlockpt(end), 0);
    const int terminal = open(ptsname(end), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(terminal, 0);
    ck_assert_int_ge(dup2(terminal, STDERR_FILENO), 0);
    return end;
}

static char *said(int end)
{
    static char text[1024];
    const ssize_t length = read(end, text, sizeof text - 1);

    text[MAX(length, 0)] = '\0';
    return text;
}

START_TEST(a_bar_grows_on_a_terminal_and_goes_away)
{
    const int end = take_terminal();
    g_autoptr(Progress) progress = progress_new("search");

    ck_assert_ptr_nonnull(progress);
    ck_assert(!progress_is_due(progress)); /* short work says nothing */
    progress_show(progress, 0.25);
    ck_assert_str_eq(said(end), "\rsearch [##########..............................]  25%  0 s");
    progress_show(progress, 7);
    ck_assert_str_eq(said(end), "\rsearch [########################################] 100%  0 s");
    progress_hide(progress);
    ck_assert_str_eq(said(end), "\r\033[K");
    close(end);
}
END_TEST

START_TEST(it_is_due_after_a_second)
{
    const int end = take_terminal();
    g_autoptr(Progress) progress = progress_new("search");

    g_usleep(1100 * 1000);
    ck_assert(progress_is_due(progress));
    progress_show(progress, 0);
    ck_assert(!progress_is_due(progress));
    close(end);
}
END_TEST

START_TEST(nothing_is_said_to_a_file)
{
    const int file = open("/dev/null", O_WRONLY);

    ck_assert_int_ge(dup2(file, STDERR_FILENO), 0);
    Progress *progress = progress_new("search");
    ck_assert_ptr_null(progress);
    ck_assert(!progress_is_due(progress));
    progress_show(progress, 0.5);
    progress_hide(progress);
    progress_free(progress);
    close(file);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress");
    TCase *tcase = tcase_create("progress");

    tcase_add_test(tcase, a_bar_grows_on_a_terminal_and_goes_away);
    tcase_add_test(tcase, it_is_due_after_a_second);
    tcase_add_test(tcase, nothing_is_said_to_a_file);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
