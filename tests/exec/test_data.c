#include "exec/base/random.h"
#include "exec/run/data.h"
#include "sim/base/error.h"
#include "tests/suite.h"

#include <glib/gstdio.h>
#include <string.h>

static const gint32 in_order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static char *folder;
static char *path;

static void make_folder(void)
{
    folder = g_dir_make_tmp("test_data.XXXXXX", NULL);
    path = g_build_filename(folder, "text", NULL);
}

static void remove_folder(void)
{
    g_remove(path);
    g_rmdir(folder);
    g_free(path);
    g_free(folder);
}

static void write_text(const char *text, gsize bytes)
{
    ck_assert(g_file_set_contents(path, text, (gssize)bytes, NULL));
}

/* Opens what must be refused with one line that names the file and says @wanted. */
static void assert_refused(const char *name, guint vocab, const char *wanted)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Data) data = data_open(name, vocab, 4, &error);

    ck_assert_ptr_null(data);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_ptr_nonnull(strstr(error->message, name));
    ck_assert_msg(strstr(error->message, wanted) != NULL, "%s", error->message);
    ck_assert_ptr_null(strchr(error->message, '\n'));
}

START_TEST(labels_are_the_tokens_that_follow_and_windows_wrap)
{
    enum { T = 12 };
    const char text[] = "abcde"; /* shorter than a window: it wraps twice */
    const gsize length = strlen(text);
    gint32 tokens[T], labels[T];

    write_text(text, length);
    g_autoptr(Data) data = data_open(path, 256, T, NULL);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(data_bytes(data), length);

    for (guint64 sample = 0; sample < 20; sample++) {
        const guint64 start = random_sample_start(9, 3, sample, length);

        data_fill(data, &(Sample){9, 3, sample}, in_order, T, tokens, labels);
        for (guint j = 0; j < T; j++) {
            ck_assert_int_eq(tokens[j], text[(start + j) % length]);
            ck_assert_int_eq(labels[j], text[(start + j + 1) % length]);
        }
    }
}
END_TEST

START_TEST(positions_choose_and_either_side_may_be_left_out)
{
    const gint32 positions[] = {1, 6, 7};
    gint32 tokens[3], labels[3];

    write_text("abcdefghij", 10);
    g_autoptr(Data) data = data_open(path, 256, 8, NULL);
    ck_assert_ptr_nonnull(data);
    const guint64 start = random_sample_start(2, 5, 4, 10);
    data_fill(data, &(Sample){2, 5, 4}, positions, 3, tokens, NULL);
    data_fill(data, &(Sample){2, 5, 4}, positions, 3, NULL, labels);
    for (guint i = 0; i < 3; i++) {
        ck_assert_int_eq(tokens[i], 'a' + (gint)((start + (guint)positions[i]) % 10));
        ck_assert_int_eq(labels[i], 'a' + (gint)((start + (guint)positions[i] + 1) % 10));
    }
}
END_TEST

START_TEST(a_text_of_one_byte_will_do)
{
    gint32 tokens[3], labels[3];

    write_text("x", 1);
    g_autoptr(Data) data = data_open(path, 256, 3, NULL);
    ck_assert_ptr_nonnull(data);
    data_fill(data, &(Sample){1, 1, 0}, in_order, 3, tokens, labels);
    for (guint j = 0; j < 3; j++)
        ck_assert(tokens[j] == 'x' && labels[j] == 'x');
}
END_TEST

START_TEST(bytes_above_127_and_nul_are_tokens_too)
{
    const char text[] = "\0\xc3\xa9\xf0\x9f\x98\x80"; /* NUL, e with acute, a face */
    gboolean seen[256] = {FALSE};
    gint32 token, label;

    write_text(text, 7);
    g_autoptr(Data) data = data_open(path, 256, 1, NULL);
    ck_assert_ptr_nonnull(data);
    for (guint64 sample = 0; sample < 200; sample++) {
        data_fill(data, &(Sample){1, 1, sample}, in_order, 1, &token, &label);
        seen[token] = TRUE;
    }
    for (guint i = 0; i < 7; i++)
        ck_assert(seen[(guchar)text[i]]);
}
END_TEST

START_TEST(what_is_not_utf8_is_refused_with_its_offset)
{
    static const struct {
        const char *text;
        gsize bytes;
        const char *offset;
    } bad[] = {
        {"\xff\xfe", 2, "offset 0"},                     /* a UTF-16 file */
        {"abc\xe9t\xe9", 6, "offset 3"},                 /* Latin-1 */
        {"ab\0\xc3", 4, "offset 3"},                     /* after NUL; the last letter is cut off */
        {"\xed\xa0\x80", 3, "offset 0"},                 /* a surrogate */
        {"ok \xc3\xa9 \xc0\x80", 8, "0xc0 at offset 6"}, /* an overlong NUL */
    };

    write_text(bad[_i].text, bad[_i].bytes);
    assert_refused(path, 256, bad[_i].offset);
}
END_TEST

START_TEST(an_empty_file_is_refused)
{
    write_text("", 0);
    assert_refused(path, 256, "empty");
}
END_TEST

START_TEST(a_missing_file_is_refused)
{
    assert_refused(path, 256, "No such file");
}
END_TEST

START_TEST(a_folder_is_refused)
{
    assert_refused(folder, 256, "folder");
}
END_TEST

START_TEST(a_device_is_refused)
{
    assert_refused("/dev/null", 256, "not a regular file");
}
END_TEST

START_TEST(a_vocabulary_without_every_byte_is_refused)
{
    write_text("abc", 3);
    assert_refused(path, 255, "vocab_size is 255");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("data");
    TCase *text = tcase_create("text");

    tcase_add_checked_fixture(text, make_folder, remove_folder);
    tcase_add_test(text, labels_are_the_tokens_that_follow_and_windows_wrap);
    tcase_add_test(text, positions_choose_and_either_side_may_be_left_out);
    tcase_add_test(text, a_text_of_one_byte_will_do);
    tcase_add_test(text, bytes_above_127_and_nul_are_tokens_too);
    tcase_add_loop_test(text, what_is_not_utf8_is_refused_with_its_offset, 0, 5);
    tcase_add_test(text, an_empty_file_is_refused);
    tcase_add_test(text, a_missing_file_is_refused);
    tcase_add_test(text, a_folder_is_refused);
    tcase_add_test(text, a_device_is_refused);
    tcase_add_test(text, a_vocabulary_without_every_byte_is_refused);
    suite_add_tcase(suite, text);
    return suite_run(suite);
}
