/* Trace files as Chrome and Perfetto read them. */
#include "reports/store/trace.h"

#include "sim/base/error.h"
#include "tests/reports/fabricate.h"
#include "tests/suite.h"

#include <string.h>

static JsonParser *read_trace(const char *path)
{
    g_autoptr(GError) error = NULL;
    JsonParser *parser = json_parser_new();

    must(json_parser_load_from_file(parser, path, &error), error);
    return parser;
}

static JsonArray *events_of(JsonParser *parser)
{
    return json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)),
                                        "traceEvents");
}

/* The event number @i of phase "X" (an op) or "M" (a name); NULL when there are fewer. */
static JsonObject *event_of(JsonParser *parser, const char *phase, guint i)
{
    JsonArray *events = events_of(parser);

    for (guint j = 0; j < json_array_get_length(events); j++) {
        JsonObject *event = json_array_get_object_element(events, j);

        if (strcmp(json_object_get_string_member(event, "ph"), phase) == 0 && i-- == 0)
            return event;
    }
    return NULL;
}

static GArray *make_events(const TraceEvent *events, guint count)
{
    GArray *array = g_array_new(FALSE, FALSE, sizeof(TraceEvent));

    g_array_append_vals(array, events, count);
    return array;
}

START_TEST(an_op_keeps_its_name_rank_times_and_work)
{
    g_autofree char *path = scratch_path("trace.json");
    g_autoptr(GError) error = NULL;
    const TraceEvent event = {3, "compute", "block.forward layers.1 linear", 0.5, 0.75, 1e9, 2e12};
    g_autoptr(GArray) events = make_events(&event, 1);

    must(trace_write(path, "a step", events, &error), error);
    g_autoptr(JsonParser) parser = read_trace(path);
    JsonObject *op = event_of(parser, "X", 0);
    JsonObject *args = json_object_get_object_member(op, "args");

    ck_assert_str_eq(json_object_get_string_member(op, "name"), event.name);
    ck_assert_int_eq(json_object_get_int_member(op, "pid"), 3);
    ck_assert_double_eq(json_object_get_double_member(op, "ts"), 500000); /* microseconds */
    ck_assert_double_eq(json_object_get_double_member(op, "dur"), 250000);
    ck_assert_double_eq(json_object_get_double_member(args, "bytes"), 1e9);
    ck_assert_double_eq(json_object_get_double_member(args, "flops"), 2e12);
    scratch_remove(path);
}
END_TEST

START_TEST(streams_are_threads_of_their_rank_with_names)
{
    g_autofree char *path = scratch_path("trace.json");
    g_autoptr(GError) error = NULL;
    const TraceEvent list[] = {{0, "compute", "a", 0, 1, 0, 0},
                               {0, "gather", "b", 0, 1, 0, 0},
                               {1, "compute", "c", 0, 1, 0, 0},
                               {0, "compute", "d", 1, 2, 0, 0}};
    const gint64 threads[] = {1, 2, 1, 1};
    g_autoptr(GArray) events = make_events(list, G_N_ELEMENTS(list));
    guint names = 0;

    must(trace_write(path, "t", events, &error), error);
    g_autoptr(JsonParser) parser = read_trace(path);
    for (guint i = 0; i < G_N_ELEMENTS(list); i++)
        ck_assert_int_eq(json_object_get_int_member(event_of(parser, "X", i), "tid"), threads[i]);

    JsonObject *meta;
    for (guint i = 0; (meta = event_of(parser, "M", i)) != NULL; i++)
        names += strcmp(json_object_get_string_member(meta, "name"), "thread_name") == 0;
    ck_assert_uint_eq(names, 3); /* once each */
    scratch_remove(path);
}
END_TEST

START_TEST(names_with_quotes_and_line_breaks_stay_json)
{
    static const char name[] = "a \"quoted\" \\ name\nwith\tall\x01 ü";
    g_autofree char *path = scratch_path("trace.json");
    g_autoptr(GError) error = NULL;
    const TraceEvent event = {0, name, name, 0, 1, NAN, NAN};
    g_autoptr(GArray) events = make_events(&event, 1);

    must(trace_write(path, name, events, &error), error);
    g_autoptr(JsonParser) parser = read_trace(path);
    ck_assert_str_eq(json_object_get_string_member(event_of(parser, "X", 0), "name"), name);
    scratch_remove(path);
}
END_TEST

START_TEST(no_events_are_an_empty_list)
{
    g_autofree char *path = scratch_path("trace.json");
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) events = make_events(NULL, 0);

    must(trace_write(path, "nothing", events, &error), error);
    g_autoptr(JsonParser) parser = read_trace(path);
    ck_assert_uint_eq(json_array_get_length(events_of(parser)), 0);
    scratch_remove(path);
}
END_TEST

START_TEST(an_event_without_a_time_is_refused_and_nothing_is_written)
{
    static const double spans_s[][2] = {{NAN, 1}, {0, INFINITY}, {2, 1}};
    g_autofree char *path = scratch_path("trace.json");
    g_autoptr(GError) error = NULL;
    const TraceEvent event = {0, "compute", "odd", spans_s[_i][0], spans_s[_i][1], 0, 0};
    g_autoptr(GArray) events = make_events(&event, 1);

    ck_assert(!trace_write(path, "t", events, &error));
    ck_assert_ptr_nonnull(strstr(error->message, "\"odd\""));
    ck_assert(!g_file_test(path, G_FILE_TEST_EXISTS));
    scratch_remove(path);
}
END_TEST

START_TEST(a_file_is_replaced_whole_or_stays)
{
    g_autofree char *path = scratch_path("trace.json");
    g_autofree char *folder = g_path_get_dirname(path);
    g_autofree char *missing = g_build_filename(folder, "no", "trace.json", NULL);
    g_autoptr(GError) error = NULL, refused = NULL;
    g_autoptr(GArray) events = make_events(NULL, 0);
    g_autoptr(GDir) dir = NULL;

    ck_assert(g_file_set_contents(path, "old", -1, NULL));
    must(trace_write(path, "new", events, &error), error);
    g_autoptr(JsonParser) parser = read_trace(path);
    dir = g_dir_open(folder, 0, NULL);
    ck_assert_str_eq(g_dir_read_name(dir), "trace.json"); /* and no temporary file */
    ck_assert_ptr_null(g_dir_read_name(dir));

    ck_assert(!trace_write(missing, "t", events, &refused));
    ck_assert_ptr_nonnull(strstr(refused->message, "no/trace.json"));
    ck_assert_int_eq(error_exit_status(refused), 2);
    scratch_remove(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *tcase = tcase_create("trace");

    tcase_add_test(tcase, an_op_keeps_its_name_rank_times_and_work);
    tcase_add_test(tcase, streams_are_threads_of_their_rank_with_names);
    tcase_add_test(tcase, names_with_quotes_and_line_breaks_stay_json);
    tcase_add_test(tcase, no_events_are_an_empty_list);
    tcase_add_loop_test(tcase, an_event_without_a_time_is_refused_and_nothing_is_written, 0, 3);
    tcase_add_test(tcase, a_file_is_replaced_whole_or_stays);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
