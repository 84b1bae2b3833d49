#include "sim/base/error.h"
#include "sim/base/text_file.h"
#include "tests/suite.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* ---- files that are written ---- */

static char *read_back(const char *path)
{
    char *text = NULL;

    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

static void assert_written(const char *path, const char *text)
{
    g_autoptr(GError) error = NULL;

    ck_assert_msg(text_file_write(path, text, strlen(text), &error), "%s",
                  error == NULL ? "" : error->message);
}

START_TEST(a_file_is_replaced_and_a_link_still_points_to_it)
{
    g_autofree char *folder = g_dir_make_tmp("text_file_XXXXXX", NULL);
    g_autofree char *file = g_build_filename(folder, "file", NULL);
    g_autofree char *link = g_build_filename(folder, "link", NULL);

    assert_written(file, "one");
    ck_assert_int_eq(symlink("file", link), 0);
    assert_written(link, "two");
    g_autofree char *text = read_back(file);
    ck_assert_str_eq(text, "two");
    ck_assert(g_file_test(link, G_FILE_TEST_IS_SYMLINK));
    g_autoptr(GDir) left = g_dir_open(folder, 0, NULL);
    guint entries = 0;
    while (g_dir_read_name(left) != NULL)
        entries++;
    ck_assert_uint_eq(entries, 2); /* nothing beside them */
    ck_assert_int_eq(g_unlink(link) | g_unlink(file) | g_rmdir(folder), 0);
}
END_TEST

/* A pipe stands for terminals and devices, of which a test that fails would take the place. */
START_TEST(what_is_no_file_is_written_to_and_stays)
{
    g_autofree char *folder = g_dir_make_tmp("text_file_XXXXXX", NULL);
    g_autofree char *pipe = g_build_filename(folder, "pipe", NULL);
    GStatBuf status;
    char text[8] = "";

    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    const int fd = g_open(pipe, O_RDWR | O_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    assert_written(pipe, "three");
    ck_assert_int_eq(read(fd, text, sizeof text - 1), 5);
    ck_assert_str_eq(text, "three");
    ck_assert_int_eq(g_stat(pipe, &status), 0);
    ck_assert(S_ISFIFO(status.st_mode));
    ck_assert_int_eq(close(fd) | g_unlink(pipe) | g_rmdir(folder), 0);
}
END_TEST

/* As the shell's <(...) names it. */
START_TEST(a_pipe_is_read_to_its_end)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "from a pipe", 11), 11);
    ck_assert_int_eq(close(ends[1]), 0);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", ends[0]);
    g_autoptr(GError) error = NULL;
    g_autofree char *text = text_file_read(path, &error);
    ck_assert_msg(text != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_str_eq(text, "from a pipe");
    ck_assert_int_eq(close(ends[0]), 0);
}
END_TEST

START_TEST(where_no_file_can_be_is_refused_by_its_name)
{
    g_autofree char *folder = g_dir_make_tmp("text_file_XXXXXX", NULL);
    g_autofree char *inside = g_build_filename(folder, "no", "file", NULL);
    const char *const wrong[][2] = {{"", "no file has that name"},
                                    {folder, ": a folder; allowed: a file to write"},
                                    {inside, "/no/file: can't be written: No such file"}};

    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autoptr(GError) error = NULL;

        ck_assert(!text_file_write(wrong[i][0], "x", 1, &error));
        ck_assert_msg(strstr(error->message, wrong[i][1]) != NULL, "%s", error->message);
        ck_assert_int_eq(error_exit_status(error), 2);
    }
    ck_assert_int_eq(g_rmdir(folder), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("error");
    TCase *tcase = tcase_create("error");

    tcase_add_test(tcase, exit_statuses_are_those_of_the_command_lines);
    tcase_add_test(tcase, errors_of_other_domains_are_bad_usage);
    tcase_add_test(tcase, a_caller_may_ignore_the_error);
    tcase_add_test(tcase, a_file_is_replaced_and_a_link_still_points_to_it);
    tcase_add_test(tcase, what_is_no_file_is_written_to_and_stays);
    tcase_add_test(tcase, a_pipe_is_read_to_its_end);
    tcase_add_test(tcase, where_no_file_can_be_is_refused_by_its_name);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
