/* Pictures and the page: whole, harmless whatever the names are, or not there at all. */
#include "reports/picture/plot.h"

#include "reports/picture/html.h"
#include "reports/picture/picture.h"
#include "sim/base/error.h"
#include "tests/reports/fabricate.h"
#include "tests/suite.h"

#include <string.h>

/* All that a shell, gnuplot, HTML or printf could trip over. */
static const char hostile[] = "x <b>&\\\"`touch pwned`' $HOME @a_b ${y} %s\nü</script>";

static void ignore_element(GMarkupParseContext *context G_GNUC_UNUSED,
                           const char *name G_GNUC_UNUSED, const char **names G_GNUC_UNUSED,
                           const char **values G_GNUC_UNUSED, gpointer data G_GNUC_UNUSED,
                           GError **error G_GNUC_UNUSED)
{
}

/* Well-formed XML that begins with <svg. */
static void assert_svg(GBytes *svg)
{
    const GMarkupParser parser = {.start_element = ignore_element};
    g_autoptr(GMarkupParseContext) context = g_markup_parse_context_new(&parser, 0, NULL, NULL);
    g_autoptr(GError) error = NULL;
    gsize size = 0;
    const char *data = g_bytes_get_data(svg, &size);

    ck_assert(size > 4 && strncmp(data, "<svg", 4) == 0);
    must(g_markup_parse_context_parse(context, data, (gssize)size, &error) &&
             g_markup_parse_context_end_parse(context, &error),
         error);
}

static GBytes *render(const char *script, PlotFormat format, GError **error)
{
    Plot plot = {.name = (char[]){"test"}, .width = 400, .height = 300};

    plot.script = (char *)(guintptr)script;
    return plot_render(&plot, format, error);
}

/* ---- gnuplot ---- */

START_TEST(a_quoted_text_is_one_string_whatever_is_in_it)
{
    g_autofree char *quoted = plot_quote("it's `x` \"y\" \\n\n");
    g_autofree char *title = plot_quote(hostile);
    g_autofree char *script = g_strdup_printf("set title %s\nplot x\n", title);
    g_autoptr(GError) error = NULL;
    g_autoptr(GBytes) svg = render(script, PLOT_SVG, &error);

    ck_assert_str_eq(quoted, "'it''s `x` \"y\" \\n '");
    must(svg != NULL, error);
    assert_svg(svg);
    ck_assert(!g_file_test("pwned", G_FILE_TEST_EXISTS));

    g_autofree char *text = g_strndup(g_bytes_get_data(svg, NULL), g_bytes_get_size(svg));
    ck_assert_ptr_nonnull(strstr(text, "`touch pwned`' $HOME @a_b ${y} %s"));
}
END_TEST

START_TEST(ids_begin_with_the_name_of_the_plot)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GBytes) svg = render("plot x with points\n", PLOT_SVG, &error);
    must(svg != NULL, error);
    g_autofree char *text = g_strndup(g_bytes_get_data(svg, NULL), g_bytes_get_size(svg));

    ck_assert_ptr_nonnull(strstr(text, "id='test_gpPt0'"));
    ck_assert_ptr_nonnull(strstr(text, "href='#test_gpPt"));
    ck_assert_ptr_null(strstr(text, "'#gpPt"));
    ck_assert_ptr_null(strstr(text, "id='gp"));
}
END_TEST

START_TEST(a_png_has_twice_the_pixels)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GBytes) png = render("plot x\n", PLOT_PNG, &error);
    must(png != NULL, error);
    const guint8 *data = g_bytes_get_data(png, NULL);

    ck_assert_mem_eq(data, "\x89PNG\r\n\x1a\n", 8);
    ck_assert_uint_eq(data[18] * 256u + data[19], 800); /* IHDR: width, then height */
    ck_assert_uint_eq(data[22] * 256u + data[23], 600);
}
END_TEST

START_TEST(a_script_that_gnuplot_refuses_is_an_error_with_its_words)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(render("plot $nothing using 1\n", PLOT_SVG, &error));
    ck_assert_int_eq(error_exit_status(error), 3);
    ck_assert_ptr_nonnull(strstr(error->message, "nothing"));
    ck_assert_ptr_null(strchr(error->message, '\n'));
}
END_TEST

START_TEST(without_gnuplot_one_line_says_so_and_no_file_is_made)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autofree char *folder = g_path_get_dirname(path);
    g_autofree char *page = g_build_filename(folder, "page", NULL);
    g_autoptr(GError) error = NULL;

    fabricate_store(path, 1, 3);
    g_autoptr(Report) report = must_load(path);
    g_setenv("PATH", folder, TRUE);
    ck_assert(!html_write(report, report_find(report, 0, NULL), page, FALSE, &error));
    ck_assert_int_eq(error_exit_status(error), 3);
    ck_assert_ptr_nonnull(strstr(error->message, "gnuplot is not installed"));
    ck_assert_ptr_null(strchr(error->message, '\n'));
    ck_assert(!g_file_test(page, G_FILE_TEST_EXISTS));
    scratch_remove(path);
}
END_TEST

/* ---- pictures ---- */

/* Names of the pictures, in order, separated by spaces; each is drawn and checked. */
static char *draw_all(const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) pictures = picture_all(report, run);
    GString *names = g_string_new(NULL);

    for (guint i = 0; i < pictures->len; i++) {
        const Picture *picture = g_ptr_array_index(pictures, i);
        g_autoptr(GError) error = NULL;
        g_autoptr(GBytes) svg = plot_render(picture->plot, PLOT_SVG, &error);

        must(svg != NULL, error);
        assert_svg(svg);
        g_string_append_printf(names, "%s%s", i > 0 ? " " : "", picture->plot->name);
    }
    return g_string_free(names, FALSE);
}

START_TEST(one_run_or_many_have_their_pictures)
{
    static const struct {
        guint runs;
        const char *names;
    } expected[] = {
        {1, "step_time memory timeline loss"},
        {2, "step_time memory timeline loss ranking accuracy"},
        {50, "step_time memory timeline loss ranking accuracy"},
    };
    g_autofree char *path = scratch_path("runs.db");

    fabricate_store(path, expected[_i].runs, 4);
    g_autoptr(Report) report = must_load(path);
    g_autofree char *names = draw_all(report, report_find(report, 0, NULL));

    ck_assert_str_eq(names, expected[_i].names);
    scratch_remove(path);
}
END_TEST

START_TEST(a_run_without_rows_has_no_pictures_but_a_page)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autofree char *folder = g_path_get_dirname(path);
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = store_open(path, FALSE, &error);
    const StoreRun row = {.ranks = 1};

    must(store_add_run(store, &row, &error) > 0, error);
    g_autoptr(Report) report = must_load(path);
    g_autofree char *names = draw_all(report, report_find(report, 0, NULL));

    ck_assert_str_eq(names, "");
    must(html_write(report, report_find(report, 0, NULL), folder, FALSE, &error), error);
    scratch_remove(path);
}
END_TEST

START_TEST(odd_values_are_drawn_or_left_out)
{
    static const double values[][2] = {{0, 0}, {NAN, 2}, {3, NAN}, {1e-7, 1e5}, {NAN, NAN}};
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = store_open(path, FALSE, &error);

    for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
        const StoreRun row = {.ranks = 1};
        const StoreStep step = {1, NAN, i % 2 == 0 ? NAN : INFINITY, NAN, NAN, NAN, FALSE};
        const gint64 run = store_add_run(store, &row, &error);

        must(run > 0 && store_add_step(store, run, &step, &error), error);
        fabricate_term(store, run, 0, "step_seconds", values[i], "s");
        fabricate_term(store, run, 0, "time_seconds.gemm", values[i], "s");
        fabricate_term(store, run, 0, "memory_bytes.total", values[i], "bytes");
        fabricate_op(store, run, "compute", "x", (double[]){0, 0});
    }
    g_autoptr(Report) report = must_load(path);
    for (guint i = 0; i < report->runs->len; i++)
        g_free(draw_all(report, g_ptr_array_index(report->runs, i)));
    scratch_remove(path);
}
END_TEST

/* Lines of the boxes of the picture's category, which its key names at that place. */
static guint count_boxes(const Plot *plot, guint category)
{
    g_autofree char *begin = g_strdup_printf("$boxes%u << END\n", category);
    const char *at = strstr(plot->script, begin);
    guint lines = 0;

    if (at == NULL)
        return 0;
    for (at += strlen(begin); !g_str_has_prefix(at, "END\n"); at = strchr(at, '\n') + 1)
        lines++;
    return lines;
}

/* As a run of stages stores them, and one of a kind that is new. */
START_TEST(ops_between_stages_are_communication_and_copies_on_them_are_kernels)
{
    static const struct {
        const char *stream, *name;
    } ops[] = {{"compute", "input unit 0 micro-batch 0 cast"},
               {"pp.exchange", "exchange unit 0 micro-batch 1 exchange"},
               {"cp.exchange", "block.forward unit 3 micro-batch 0 exchange"},
               {"tp.gather", "block.forward unit 3 micro-batch 0 all_gather"},
               {"ep.dispatch", "block.forward unit 3 micro-batch 0 all_to_all"},
               {"compute", "block.forward unit 3 micro-batch 0 linear"}};
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = store_open(path, FALSE, &error);
    const StoreRun row = {.ranks = 4};
    const gint64 run = store_add_run(store, &row, &error);

    for (guint i = 0; i < G_N_ELEMENTS(ops); i++)
        fabricate_op(store, run, ops[i].stream, ops[i].name, (double[]){i, i + 1.0});
    g_autoptr(Report) report = must_load(path);
    g_autoptr(GPtrArray) pictures = picture_all(report, report_find(report, 0, NULL));
    ck_assert_uint_eq(pictures->len, 1);
    const Plot *plot = ((const Picture *)g_ptr_array_index(pictures, 0))->plot;
    ck_assert_str_eq(plot->name, "timeline");
    ck_assert_uint_eq(count_boxes(plot, 0), 1); /* matrix products */
    ck_assert_uint_eq(count_boxes(plot, 2), 1); /* memory-bound kernels */
    ck_assert_uint_eq(count_boxes(plot, 4), 4); /* communication */
    scratch_remove(path);
}
END_TEST

/* ---- page ---- */

static char *write_page(const char *path, gboolean png)
{
    g_autofree char *folder = g_path_get_dirname(path);
    g_autofree char *file = g_build_filename(folder, "index.html", NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(Report) report = must_load(path);
    char *page = NULL;

    must(html_write(report, report_find(report, 0, NULL), folder, png, &error), error);
    ck_assert(g_file_get_contents(file, &page, NULL, NULL));
    return page;
}

START_TEST(the_page_stands_alone)
{
    g_autofree char *path = scratch_path("runs.db");
    fabricate_store(path, 3, 4);
    g_autofree char *page = write_page(path, FALSE);
    g_autoptr(GRegex) outside =
        g_regex_new("<script|<link|<img|@import|url\\((?!#)|src=|href=['\"](?!#)", 0, 0, NULL);
    g_autoptr(GRegex) svg = g_regex_new("<svg", 0, 0, NULL);
    g_autoptr(GMatchInfo) match = NULL;
    guint pictures = 0;

    ck_assert(!g_regex_match(outside, page, 0, NULL));
    for (g_regex_match(svg, page, 0, &match); g_match_info_matches(match);
         g_match_info_next(match, NULL))
        pictures++;
    ck_assert_uint_eq(pictures, 6);
    ck_assert(g_str_has_suffix(page, "</html>\n"));
    scratch_remove(path);
}
END_TEST

START_TEST(names_from_the_store_are_text_in_the_page)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    g_autoptr(Store) store = store_open(path, FALSE, &error);
    const gint64 run = fabricate_run(store, hostile, 0, 3);

    fabricate_run(store, hostile, 1, 3);
    fabricate_op(store, run + 1, hostile, hostile, (double[]){0, 1});
    fabricate_term(store, run + 1, 0, hostile, (double[]){1, 1}, hostile);
    g_autofree char *page = write_page(path, FALSE);

    ck_assert_ptr_null(strstr(page, "<b>&"));
    ck_assert_ptr_null(strstr(page, "</script"));
    ck_assert_ptr_nonnull(strstr(page, "x &lt;b&gt;&amp;"));
    ck_assert(!g_file_test("pwned", G_FILE_TEST_EXISTS));
    scratch_remove(path);
}
END_TEST

START_TEST(each_picture_is_a_file_and_no_temporary_one_stays)
{
    static const char *const expected[] = {
        "accuracy.png",  "accuracy.svg",  "index.html",   "loss.png",    "loss.svg",
        "memory.png",    "memory.svg",    "ranking.png",  "ranking.svg", "runs.db",
        "step_time.png", "step_time.svg", "timeline.png", "timeline.svg"};
    g_autofree char *path = scratch_path("runs.db");
    g_autofree char *folder = g_path_get_dirname(path);
    guint found = 0;

    fabricate_store(path, 2, 4);
    g_free(write_page(path, TRUE));
    g_free(write_page(path, TRUE)); /* over the old files */
    for (guint i = 0; i < G_N_ELEMENTS(expected); i++) {
        g_autofree char *file = g_build_filename(folder, expected[i], NULL);

        ck_assert_msg(g_file_test(file, G_FILE_TEST_IS_REGULAR), "%s is missing", expected[i]);
    }
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    while (g_dir_read_name(dir) != NULL)
        found++;
    ck_assert_uint_eq(found, G_N_ELEMENTS(expected));
    scratch_remove(path);
}
END_TEST

int main(void)
{
    g_autofree char *gnuplot = g_find_program_in_path("gnuplot");
    if (gnuplot == NULL) {
        puts("SKIP: gnuplot is not installed");
        return EXIT_SUCCESS;
    }

    Suite *suite = suite_create("plot");
    TCase *plots = tcase_create("plots"), *pictures = tcase_create("pictures"),
          *page = tcase_create("page");

    tcase_add_test(plots, a_quoted_text_is_one_string_whatever_is_in_it);
    tcase_add_test(plots, ids_begin_with_the_name_of_the_plot);
    tcase_add_test(plots, a_png_has_twice_the_pixels);
    tcase_add_test(plots, a_script_that_gnuplot_refuses_is_an_error_with_its_words);
    tcase_add_test(plots, without_gnuplot_one_line_says_so_and_no_file_is_made);
    suite_add_tcase(suite, plots);

    tcase_set_timeout(pictures, 60);
    tcase_add_loop_test(pictures, one_run_or_many_have_their_pictures, 0, 3);
    tcase_add_test(pictures, a_run_without_rows_has_no_pictures_but_a_page);
    tcase_add_test(pictures, odd_values_are_drawn_or_left_out);
    tcase_add_test(pictures, ops_between_stages_are_communication_and_copies_on_them_are_kernels);
    suite_add_tcase(suite, pictures);

    tcase_set_timeout(page, 60);
    tcase_add_test(page, the_page_stands_alone);
    tcase_add_test(page, names_from_the_store_are_text_in_the_page);
    tcase_add_test(page, each_picture_is_a_file_and_no_temporary_one_stays);
    suite_add_tcase(suite, page);
    return suite_run(suite);
}
