#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/base/json_members.h"
#include "tests/suite.h"

#include <math.h>
#include <string.h>

/* What json-glib or its scanner accept, and JSON does not allow. */
static const struct {
    const char *text, *message;
} invalid[] = {
    {"", "t:1:1: the text ends"},
    {"{\"a\": 010}", "t:1:7:"},
    {"{\"a\": 0x10}", "t:1:8:"},
    {"{\"a\": $10}", "t:1:7:"},
    {"{\"a\": .5}", "t:1:7:"},
    {"{\"a\": 1.}", "t:1:9:"},
    {"{\"a\": - 1}", "t:1:8:"},
    {"{\"a\": NaN}", "t:1:7:"},
    {"{\"a\": 99999999999999999999}", "t:1:7:"},
    {"{\"a\": 9223372036854775808}", "t:1:7:"},
    {"{\"a\": 1e400}", "t:1:7:"},
    {"{'a': 1}", "t:1:2:"},
    {"{\"a\": 1,}", "t:1:9:"},
    {"{\"a\": 1} {}", "t:1:10:"},
    {"{\"a\": 1\n\"b\": 2}", "t:2:1:"},
    {"var x = {\"a\": 1};", "t:1:1:"},
    {"/* c */ {}", "t:1:1:"},
    {"{\"a\": \"x\ny\"}", "t:1:9:"},
    {"{\"a\": \"\\u0000\"}", "t:1:14:"},
    {"{\"a\": \"\\ud800\"}", "t:1:14:"},
    {"{\"a\": \"\xff\"}", "byte 7 is not UTF-8"},
    {"{\"a\": 1,\n\"b\": 2,\n\"a\": 3}", "\"a\" is there twice"},
    {"{\"a\": {\"b\": 1, \"\\u0062\": 2}}", "\"b\" is there twice"},
    {"[1]", "not a JSON object"},
};

START_TEST(lax_json_is_refused_with_its_place)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(json_parse(invalid[_i].text, "t", &error));
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(strstr(error->message, invalid[_i].message) != NULL, "%s", error->message);
}
END_TEST

START_TEST(deep_nesting_is_refused_before_it_can_exhaust_the_stack)
{
    g_autofree char *text = g_strnfill(5000000, '[');
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(json_parse(text, "t", &error));
    ck_assert_ptr_nonnull(strstr(error->message, "at most 64 deep"));
}
END_TEST

static const char *const sample =
    "{\"n\": 7, \"real\": 4096.0, \"half\": 0.5, \"text\": \"4096\", \"yes\": true, \"no\": null,"
    " \"minus\": -1, \"deep\": {\"list\": [[0, 31], [32, 63]], \"name\": \"x\"}}";

START_TEST(paths_reach_into_objects_and_arrays)
{
    g_autoptr(JsonText) json = json_parse(sample, "t", NULL);
    const char *name = NULL;
    guint length = 0;
    guint64 value = 0;

    ck_assert(json_uint(json, "deep.list.1.0", 0, 100, &value, NULL));
    ck_assert_uint_eq(value, 32);
    ck_assert(json_length(json, "deep.list", &length, NULL));
    ck_assert_uint_eq(length, 2);
    ck_assert(json_string(json, "deep.name", &name, NULL));
    ck_assert_str_eq(name, "x");
    ck_assert(!json_has(json, "deep.list.2"));
    ck_assert(!json_has(json, "deep.name.x"));
    ck_assert(!json_has(json, "deep.list.-1"));
}
END_TEST

START_TEST(integral_reals_are_integers_and_null_is_absent)
{
    g_autoptr(JsonText) json = json_parse(sample, "t", NULL);
    guint64 value = 5;
    guint kept = 7;

    ck_assert(json_uint(json, "real", 0, 5000, &value, NULL));
    ck_assert_uint_eq(value, 4096);
    ck_assert(json_optional_uint32(json, "no", 0, 1, &kept, NULL));
    ck_assert(json_optional_uint32(json, "nothing", 0, 1, &kept, NULL));
    ck_assert_uint_eq(kept, 7);
    ck_assert(!json_has(json, "no") && json_is_null(json, "no"));
    ck_assert(!json_is_null(json, "nothing") && !json_is_null(json, "n"));
}
END_TEST

static const struct {
    const char *field, *message;
} not_uint[] = {
    {"text", "t: field \"text\" is \"4096\" (a string); allowed: an integer from 1 to 4000"},
    {"real", "t: field \"real\" is 4096.0; allowed: an integer from 1 to 4000"},
    {"half", "is 0.5;"},
    {"minus", "is -1;"},
    {"yes", "is true;"},
    {"no", "is null;"},
    {"nothing", "is missing;"},
    {"deep", "is an object;"},
    {"deep.list", "field \"deep.list\" is an array;"},
    {"deep.list.0.0", "is 0;"},
};

START_TEST(wrong_values_are_refused_with_field_value_and_range)
{
    g_autoptr(JsonText) json = json_parse(sample, "t", NULL);
    g_autoptr(GError) error = NULL;
    guint64 value = 5;

    ck_assert(!json_uint(json, not_uint[_i].field, 1, 4000, &value, &error));
    ck_assert_uint_eq(value, 5);
    ck_assert_msg(strstr(error->message, not_uint[_i].message) != NULL, "%s", error->message);
}
END_TEST

START_TEST(each_type_refuses_the_others)
{
    g_autoptr(JsonText) json = json_parse(sample, "t", NULL);
    g_autofree char *object = json_object_text(json, "deep.list", NULL);
    const char *text = NULL;
    double real = 0.0;
    gboolean flag = FALSE;
    guint length;

    ck_assert(!json_string(json, "n", &text, NULL));
    ck_assert(!json_double(json, "text", 0, 1e9, &real, NULL));
    ck_assert(!json_double(json, "half", 0.6, 1, &real, NULL));
    ck_assert(!json_bool(json, "n", &flag, NULL));
    ck_assert(!json_length(json, "deep", &length, NULL));
    ck_assert_ptr_null(object);
    ck_assert(json_double(json, "n", 0, 10, &real, NULL) && real == 7.0);
    ck_assert(json_bool(json, "yes", &flag, NULL) && flag);
}
END_TEST

START_TEST(members_are_built_as_they_read_and_what_is_not_known_is_null)
{
    g_autoptr(JsonBuilder) json = json_builder_new();

    json_builder_begin_object(json);
    json_member_integer(json, "id", -1);
    json_member_object(json, "of");
    json_member_uint(json, "bytes", 1ull << 40);
    json_member_number(json, "seconds", 0.5);
    json_member_number(json, "measured", NAN);
    json_member_number(json, "ratio", INFINITY);
    json_builder_end_object(json);
    json_member_array(json, "runs");
    json_builder_end_array(json);
    json_member_bool(json, "done", TRUE);
    json_member_string(json, "name", "a");
    json_member_string(json, "unit", NULL);
    json_builder_end_object(json);
    g_autoptr(JsonNode) root = json_builder_get_root(json);
    g_autofree char *text = json_to_string(root, FALSE);
    ck_assert_str_eq(text, "{\"id\":-1,\"of\":{\"bytes\":1099511627776,\"seconds\":0.5,"
                           "\"measured\":null,\"ratio\":null},\"runs\":[],\"done\":true,"
                           "\"name\":\"a\",\"unit\":null}");
}
END_TEST

/* json-glib alone would write 1e+30.0. */
START_TEST(large_numbers_are_written_as_json_and_strings_as_they_are)
{
    g_autoptr(JsonBuilder) json = json_builder_new();
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    static const double numbers[] = {1e30, -1e17, 99999999999999999999.0, 1e-7, 5};

    json_builder_begin_object(json);
    for (guint i = 0; i < G_N_ELEMENTS(numbers); i++)
        json_member_number(json, names[i], numbers[i]);
    json_member_string(json, "name", "1e+30.0, \\\"2e+30.0\\\"");
    json_builder_end_object(json);
    g_autoptr(JsonNode) root = json_builder_get_root(json);
    for (guint indented = 0; indented < 2; indented++) {
        g_autofree char *text = json_node_text(root, indented == 1);
        g_autoptr(GError) error = NULL;
        g_autoptr(JsonText) read = json_parse(text, "t", &error);
        const char *name = NULL;

        ck_assert_msg(read != NULL, "%s: %s", text, error == NULL ? "" : error->message);
        for (guint i = 0; i < G_N_ELEMENTS(numbers); i++) {
            double number = 0;

            ck_assert(json_double(read, names[i], -1e31, 1e31, &number, NULL));
            ck_assert_double_eq(number, numbers[i]);
        }
        ck_assert(json_string(read, "name", &name, NULL));
        ck_assert_str_eq(name, "1e+30.0, \\\"2e+30.0\\\"");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json");
    TCase *tcase = tcase_create("json");

    g_log_set_always_fatal(G_LOG_LEVEL_CRITICAL | G_LOG_FLAG_FATAL);
    tcase_add_loop_test(tcase, lax_json_is_refused_with_its_place, 0, G_N_ELEMENTS(invalid));
    tcase_add_test(tcase, deep_nesting_is_refused_before_it_can_exhaust_the_stack);
    tcase_add_test(tcase, paths_reach_into_objects_and_arrays);
    tcase_add_test(tcase, integral_reals_are_integers_and_null_is_absent);
    tcase_add_loop_test(tcase, wrong_values_are_refused_with_field_value_and_range, 0,
                        G_N_ELEMENTS(not_uint));
    tcase_add_test(tcase, each_type_refuses_the_others);
    tcase_add_test(tcase, large_numbers_are_written_as_json_and_strings_as_they_are);
    tcase_add_test(tcase, members_are_built_as_they_read_and_what_is_not_known_is_null);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
