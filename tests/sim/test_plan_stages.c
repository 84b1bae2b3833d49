/* The plan file of pipelines, sequences over ranks, and tensor parallelism. */
#include "sim/base/error.h"
#include "sim/search/plan_json.h"
#include "tests/sim/plan_case.h"

static const CaseShape six_layers = {
    .vocab = 257, .hidden = 24, .ffn = 40, .layers = 6, .heads = 4, .kv_heads = 2};

/* A priced plan on GPUs, with every choice of the case. */
static Plan *plan_of(const Case *from)
{
    g_autofree char *reason = NULL;

    ck_assert_msg(case_verdict(from, &reason) == VERDICT_OK, "%s", reason);
    Plan *plan = case_plan(from, case_gpu_topology(8, 80000, 100000));
    plan_price(plan);
    return plan;
}

static Case pipelined(Model *model, ScheduleKind kind, const guint16 *chunk_layers)
{
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 4);

    one.layout.size[AXIS_PP] = 2;
    one.schedule.kind = kind;
    one.schedule.virtual_stages = kind == SCHEDULE_INTERLEAVED ? 2 : 1;
    one.schedule.chunk_layers = chunk_layers;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    return one;
}

static Plan *parse(const char *text, GError **error)
{
    return plan_parse(text, "the plan", error);
}

/* ---- reads back ---- */

static void assert_reads_back(const Case *from)
{
    g_autofree char *what = case_text(from);
    g_autoptr(Plan) plan = plan_of(from);
    g_autofree char *text = plan_print(plan);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = parse(text, &error);
    const guint pp = from->layout.size[AXIS_PP];

    ck_assert_msg(read != NULL, "%s: %s", what, error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read);
    ck_assert_msg(strcmp(again, text) == 0, "%s: %s", what, again);
    ck_assert_int_eq(read->schedule.kind, from->schedule.kind);
    ck_assert_uint_eq(schedule_virtual_stages(&read->schedule),
                      schedule_virtual_stages(&from->schedule));
    ck_assert_int_eq(read->sequence_parallel, from->sequence_parallel);
    ck_assert_int_eq(read->context, from->context);
    ck_assert_uint_eq(read->stages->len, pp);
    for (guint c = 0; c < schedule_chunks(&from->schedule, pp); c++)
        ck_assert_uint_eq(schedule_chunk(&read->schedule, read->model->layers, pp, c).count,
                          schedule_chunk(&from->schedule, from->model->layers, pp, c).count);
    g_autoptr(ProgramSet) set = plan_compile(read, &error); /* to the same hash */
    ck_assert_msg(set != NULL, "%s: %s", what, error == NULL ? "" : error->message);
}

START_TEST(each_schedule_reads_back_with_its_stages)
{
    static const guint16 two[] = {4, 2}, four[] = {1, 1, 1, 3};
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++) {
        const Case balanced = pipelined(model, (ScheduleKind)kind, NULL);
        const Case given =
            pipelined(model, (ScheduleKind)kind, kind == SCHEDULE_INTERLEAVED ? four : two);

        assert_reads_back(&balanced);
        assert_reads_back(&given);
    }
}
END_TEST

START_TEST(all_axes_read_back_together)
{
    g_autoptr(Model) model = case_model(&six_layers);

    for (guint i = 0; i < 16; i++) {
        Case one = pipelined(model, (ScheduleKind)(i % NUM_SCHEDULES), NULL);

        one.layout.size[AXIS_CP] = 2;
        one.layout.size[AXIS_TP] = 1 + i / 4 % 2;
        one.context = (ContextKind)(i / 8);
        one.sequence_parallel = i / 4 % 2 == 1;
        assert_reads_back(&one);
    }
}
END_TEST

/* Balanced stages that were written down are balanced stages: the same hash, nothing stored. */
START_TEST(balanced_stages_are_no_choice_of_their_own)
{
    static const guint16 balanced[] = {3, 3}, other[] = {2, 4};
    g_autoptr(Model) model = case_model(&six_layers);
    const Case plain = pipelined(model, SCHEDULE_1F1B, NULL);
    const Case given = pipelined(model, SCHEDULE_1F1B, balanced);
    const Case uneven = pipelined(model, SCHEDULE_1F1B, other);
    g_autoptr(Plan) one = plan_of(&plain), two = plan_of(&given), three = plan_of(&uneven);
    g_autofree char *text = plan_print(two), *uneven_text = plan_print(three);
    g_autoptr(Plan) read = parse(text, NULL), uneven_read = parse(uneven_text, NULL);

    ck_assert_str_eq(one->hash, two->hash);
    ck_assert_str_ne(one->hash, three->hash);
    ck_assert_ptr_null(read->schedule.chunk_layers);
    ck_assert_ptr_nonnull(uneven_read->schedule.chunk_layers);
}
END_TEST

/* ---- refused ---- */

static JsonNode *printed(ScheduleKind kind)
{
    g_autoptr(Model) model = case_model(&six_layers);
    const Case one = pipelined(model, kind, NULL);
    g_autoptr(Plan) plan = plan_of(&one);

    return plan_node(plan);
}

static void set_member(JsonNode *root, const char *object, const char *member, const char *value)
{
    JsonObject *holder = json_object_get_object_member(json_node_get_object(root), object);

    json_object_set_member(holder, member, json_from_string(value, NULL));
}

/* One line that starts with the file and has all of @words (separated by '|'). */
static void assert_refused(JsonNode *root, const char *value, const char *words)
{
    g_autofree char *text = json_to_string(root, FALSE);
    g_auto(GStrv) wanted = g_strsplit(words, "|", -1);
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) plan = parse(text, &error);

    ck_assert_msg(plan == NULL, "%s was accepted", value);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
    ck_assert_msg(g_str_has_prefix(error->message, "the plan: "), "%s", error->message);
    ck_assert_msg(strchr(error->message, '\n') == NULL, "%s", error->message);
    for (guint i = 0; wanted[i] != NULL; i++)
        ck_assert_msg(strstr(error->message, wanted[i]) != NULL, "%s: \"%s\" lacks \"%s\"", value,
                      error->message, wanted[i]);
}

/* pp 2, 6 layers. */
static const struct {
    const char *stages, *words;
} wrong_stages[] = {
    {"[[0, 2]]", "\"schedule.stages\"|1 entries|is 2"},
    {"[[0, 1], [2, 3], [4, 5]]", "\"schedule.stages\"|3 entries|is 2"},
    {"[]", "\"schedule.stages\"|0 entries|is 2"},
    {"[[0, 2], [4, 5]]", "\"schedule.stages.1.0\" is 4|from 3 to 3"}, /* a gap */
    {"[[0, 2], [2, 5]]", "\"schedule.stages.1.0\" is 2|from 3 to 3"}, /* twice */
    {"[[1, 2], [3, 5]]", "\"schedule.stages.0.0\" is 1|from 0 to 0"},
    {"[[0, 2], [3, 6]]", "\"schedule.stages.1.1\" is 6|from 3 to 5"},
    {"[[0, 2], [3, 2]]", "\"schedule.stages.1.1\" is 2|from 3 to 5"},
    {"[[0, 5], [6, 5]]", "stages: chunk 1 of 2 has no layer"},
    {"[[0, 2], [3, 4]]", "stages: 2 chunks have 5 layers together|the model has 6"},
    {"[[0, 2], [3]]", "\"schedule.stages.1.1\" is missing"},
    {"[[0, 2], [3, 5, 5]]", "\"schedule.stages.1\": 3 entries|[first block, last block]"},
    {"[[0, 2], []]", "\"schedule.stages.1.0\" is missing"},
    {"[[0, 2], 3]", "\"schedule.stages.1\""},
    {"[0, 3]", "\"schedule.stages.0\""},
    {"[[0, 2], [3, 4.5]]", "\"schedule.stages.1.1\""},
    {"[[0, 2], [3, \"5\"]]", "\"schedule.stages.1.1\""},
    {"{\"0\": [0, 2], \"1\": [3, 5]}", "\"schedule.stages\""},
};

START_TEST(stages_that_do_not_cover_the_model_in_order_are_refused)
{
    g_autoptr(JsonNode) root = printed(SCHEDULE_1F1B);

    set_member(root, "schedule", "stages", wrong_stages[_i].stages);
    assert_refused(root, wrong_stages[_i].stages, wrong_stages[_i].words);
}
END_TEST

START_TEST(chunks_must_be_as_many_as_virtual_stages_say)
{
    g_autoptr(JsonNode) root = printed(SCHEDULE_INTERLEAVED);

    set_member(root, "schedule", "virtual_stages", "3");
    assert_refused(root, "3", "\"schedule.stages\"|4 entries|virtual_stages is 6");
    set_member(root, "schedule", "virtual_stages", "129");
    assert_refused(root, "129", "\"schedule.virtual_stages\" = 129|pp = 2|at most 128");
    set_member(root, "schedule", "virtual_stages", "2");
    set_member(root, "schedule", "stages", "[[0, 0], [1, 1], [2, 2], [3, 4]]");
    assert_refused(root, "stages", "4 chunks have 5 layers together|the model has 6");
}
END_TEST

START_TEST(times_must_be_of_as_many_stages_as_there_are)
{
    static const char *const times =
        "{\"gemm\": 1, \"attention\": 1, \"memory_bound\": 1, \"optimizer\": 1, "
        "\"communication\": 1, \"communication_seconds\": {\"all_gather\": 1, "
        "\"reduce_scatter\": 1, \"all_reduce\": 1, \"all_to_all\": 1, \"exchange\": 1}}";
    g_autofree char *one = g_strdup_printf("[%s]", times);
    g_autofree char *two = g_strdup_printf("[%s, %s]", times, times);
    g_autofree char *three = g_strdup_printf("[%s, %s, %s]", times, times, times);
    g_autoptr(JsonNode) root = printed(SCHEDULE_1F1B);
    g_autoptr(GError) error = NULL;

    set_member(root, "prediction", "stages", "[]");
    assert_refused(root, "[]", "\"prediction.stages\"|0 entries|pp is 2");
    set_member(root, "prediction", "stages", one);
    assert_refused(root, one, "\"prediction.stages\"|1 entries|pp is 2");
    set_member(root, "prediction", "stages", three);
    assert_refused(root, three, "\"prediction.stages\"|3 entries|pp is 2");
    set_member(root, "prediction", "stages", "[{}, {}]");
    assert_refused(root, "{}", "prediction.stages.0.gemm");
    set_member(root, "prediction", "stages", two);
    g_autofree char *text = json_to_string(root, FALSE);
    g_autoptr(Plan) plan = parse(text, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
}
END_TEST

START_TEST(schedules_that_do_not_go_with_the_rest_are_refused)
{
    g_autoptr(JsonNode) root = printed(SCHEDULE_1F1B);

    set_member(root, "schedule", "name", "\"dualpipe\"");
    assert_refused(root, "dualpipe",
                   "\"schedule.name\"|dualpipe|gpipe, 1f1b, interleaved or zb_h1");
    set_member(root, "schedule", "name", "\"interleaved\"");
    assert_refused(root, "interleaved", "interleaved needs virtual_stages of at least 2");
    set_member(root, "schedule", "name", "\"zb_h1\"");
    assert_refused(root, "zb_h1", "zb_h1 needs accumulate = unsharded");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plan_stages");
    TCase *tcase = tcase_create("plan_stages");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, each_schedule_reads_back_with_its_stages);
    tcase_add_test(tcase, all_axes_read_back_together);
    tcase_add_test(tcase, balanced_stages_are_no_choice_of_their_own);
    tcase_add_loop_test(tcase, stages_that_do_not_cover_the_model_in_order_are_refused, 0,
                        G_N_ELEMENTS(wrong_stages));
    tcase_add_test(tcase, chunks_must_be_as_many_as_virtual_stages_say);
    tcase_add_test(tcase, times_must_be_of_as_many_stages_as_there_are);
    tcase_add_test(tcase, schedules_that_do_not_go_with_the_rest_are_refused);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
