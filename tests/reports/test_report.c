/* Joining predicted and measured; formats, ranking, text and JSON. */
#include "reports/report/report.h"

#include "reports/report/format.h"
#include "reports/report/plan_text.h"
#include "sim/base/error.h"
#include "tests/reports/fabricate.h"
#include "tests/suite.h"

#include <string.h>

static const ReportRun *latest(const Report *report)
{
    return report_find(report, 0, NULL);
}

/* A store with one run of that plan, and no rows yet. */
static Store *store_with_plan(const char *path, const char *plan, gint64 *run)
{
    g_autoptr(GError) error = NULL;
    Store *store = store_open(path, FALSE, &error);
    const StoreRun row = {.plan_json = plan, .ranks = 4};

    must(store != NULL, error);
    *run = store_add_run(store, &row, &error);
    must(*run > 0, error);
    return store;
}

static void add_term(Store *store, gint64 run, guint rank, const char *term, double predicted,
                     double measured)
{
    fabricate_term(store, run, rank, term, (double[]){predicted, measured},
                   strstr(term, "bytes") != NULL ? "bytes" : "s");
}

/* ---- formats ---- */

START_TEST(values_read_as_people_write_them)
{
    static const struct {
        const char *term, *unit;
        double value, reference;
        const char *text;
    } worked[] = {
        {"step_seconds", "s", 1.5, 1.5, "1.500 s"},
        {"step_seconds", "s", 0.0125, 0.0125, "12.50 ms"},
        {"step_seconds", "s", 0.9, 1.1, "0.900 s"}, /* in the unit of its pair */
        {"x", "s", 2.5e-6, 2.5e-6, "2.500 µs"},
        {"memory_bytes.total", "bytes", 1610612736, 1610612736, "1.500 GiB"},
        {"memory_bytes.total", "bytes", 1048576, 1048576, "1.000 MiB"},
        {"memory_bytes.master", "bytes", 0, 0, "0 B"},
        {"mfu", "", 0.4125, 0.4125, "41.25 %"},
        {"tokens_per_second", "tokens/s", 123456, 123456, "123456 tokens/s"},
        {"mfu", "", NAN, 0.4, "-"},
    };
    g_autofree char *text =
        format_term(worked[_i].term, worked[_i].unit, worked[_i].value, worked[_i].reference);

    ck_assert_str_eq(text, worked[_i].text);
}
END_TEST

START_TEST(errors_are_percent_of_the_prediction_or_exact)
{
    static const struct {
        const char *unit;
        double predicted, measured;
        const char *text;
    } worked[] = {
        {"s", 2, 2.1, "+5.0 %"},
        {"s", 2, 1.5, "-25.0 %"},
        {"s", 2, 2, "+0.0 %"}, /* equal times are luck */
        {"bytes", 4096, 4096, "exact"},
        {"bytes", 1000000000, 1000000004, "+4e-07 %"},
        {"bytes", 0, 0, "exact"},
        {"s", 0, 0, "exact"},
        {"bytes", 0, 8, "unpredicted"},
        {"s", 1, NAN, "-"},
        {"s", NAN, 1, "-"},
    };
    g_autofree char *text =
        format_error(worked[_i].unit, worked[_i].predicted, worked[_i].measured);

    ck_assert_str_eq(text, worked[_i].text);
}
END_TEST

/* ---- ranking ---- */

static Ranking rank(const double (*values_s)[2], guint count)
{
    g_autoptr(GArray) pairs = g_array_new(FALSE, FALSE, sizeof(RankedPair));

    for (guint i = 0; i < count; i++) {
        const RankedPair pair = {values_s[i][0], values_s[i][1]};

        g_array_append_val(pairs, pair);
    }
    return ranking_of(pairs);
}

START_TEST(ranking_gives_the_worked_values)
{
    /* Ranks 1 2 3 4 against 2 1 3 4: 1 - 6 * 2 / (4 * 15) = 0.8; one pair of six is swapped; the
     * first took 6 where the best took 5. */
    const Ranking ranking = rank((const double[][2]){{1, 6}, {2, 5}, {3, 7}, {4, 8}}, 4);

    ck_assert_uint_eq(ranking.count, 4);
    ck_assert_double_eq_tol(ranking.spearman, 0.8, 1e-12);
    ck_assert_uint_eq(ranking.pairs, 6);
    ck_assert_uint_eq(ranking.in_order, 5);
    ck_assert_double_eq_tol(ranking.regret, 0.2, 1e-12);
}
END_TEST

START_TEST(equal_predictions_share_their_rank_and_are_no_pair)
{
    /* Ranks 1.5 1.5 3 against 1 2 3: 1.5 / sqrt(1.5 * 2). */
    const Ranking ranking = rank((const double[][2]){{1, 5}, {1, 6}, {2, 7}}, 3);

    ck_assert_double_eq_tol(ranking.spearman, 1.5 / sqrt(3), 1e-12);
    ck_assert_uint_eq(ranking.pairs, 2);
    ck_assert_uint_eq(ranking.in_order, 2);
}
END_TEST

START_TEST(order_reversed_is_minus_one_and_few_runs_have_none)
{
    const Ranking reversed = rank((const double[][2]){{1, 3}, {2, 2}, {3, 1}}, 3);
    const Ranking one = rank((const double[][2]){{1, 3}}, 1), none = rank(NULL, 0);

    ck_assert_double_eq_tol(reversed.spearman, -1, 1e-12);
    ck_assert_uint_eq(reversed.in_order, 0);
    ck_assert_double_eq_tol(reversed.regret, 2, 1e-12);
    ck_assert_double_nan(one.spearman);
    ck_assert_double_nan(none.spearman);
    ck_assert_double_nan(none.regret);
}
END_TEST

/* ---- plans ---- */

START_TEST(a_plan_that_is_missing_or_odd_reads_as_unknown)
{
    static const char *const plans[] = {
        NULL, "", "no JSON", "[1, 2]", "{}", "{\"model\": 3, \"layout\": [8], \"sharding\": null}",
    };
    g_autofree char *path = scratch_path("runs.db");
    gint64 id;

    store_free(store_with_plan(path, plans[_i], &id));
    g_autoptr(Report) report = must_load(path);
    const ReportRun *run = latest(report);
    g_autofree char *text = report_text(report, run);
    g_autofree char *json = report_json(report, NULL);

    ck_assert_str_eq(run->model, "-");
    ck_assert_str_eq(run->layout, "-");
    ck_assert_str_eq(run->strategy, "-");
    ck_assert_uint_eq(run->terms->len, 0);
    ck_assert_ptr_nonnull(strstr(text, "running or killed"));
    ck_assert_ptr_nonnull(strstr(json, "\"model\" : null"));
    scratch_remove(path);
}
END_TEST

START_TEST(a_layout_names_schedule_and_context_where_there_are_stages_and_pieces)
{
    g_autoptr(JsonParser) plan = plan_text_parse(
        "{\"layout\": {\"dp_shard\": 2, \"cp\": 2, \"pp\": 4}, \"schedule\": {\"name\": "
        "\"interleaved\", \"virtual_stages\": 2}, \"context_parallel\": {\"kind\": \"ring\"}}");
    g_autoptr(JsonParser) plain =
        plan_text_parse("{\"layout\": {\"dp_shard\": 2}, \"schedule\": {\"name\": \"1f1b\", "
                        "\"virtual_stages\": 1}, \"context_parallel\": {\"kind\": \"ring\"}}");
    g_autofree char *text = plan_text_layout(plan), *plain_text = plan_text_layout(plain);

    ck_assert_str_eq(text, "pp=4 interleaved x2 dp_shard=2 cp=2 ring");
    ck_assert_str_eq(plain_text, "dp_shard=2");
}
END_TEST

START_TEST(a_layout_names_the_axes_larger_than_one)
{
    g_autoptr(JsonParser) some = plan_text_parse(
        "{\"layout\": {\"dp_replicate\": 1, \"dp_shard\": 8, \"tp\": 2, \"pp\": 4}}");
    g_autoptr(JsonParser) one = plan_text_parse("{\"layout\": {\"dp_shard\": 1, \"tp\": 1}}");
    g_autofree char *some_text = plan_text_layout(some), *one_text = plan_text_layout(one);

    ck_assert_str_eq(some_text, "pp=4 dp_shard=8 tp=2");
    ck_assert_str_eq(one_text, "1 rank");
}
END_TEST

START_TEST(what_is_computed_again_is_named_by_stage_where_stages_differ)
{
    static const char *const plans[][2] = {
        {"{\"recompute\": \"full\"}", "full"},
        {"{\"recompute\": {\"kind\": \"full\", \"layers\": [4, 14]}}", "full:4/14"},
        {"{\"recompute\": {\"kind\": \"selective\", \"layers\": [4, 4]}}", "selective:4"},
        {"{\"recompute\": {\"layers\": []}}", "-"},
        {"{}", "-"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(plans); i++) {
        g_autoptr(JsonParser) plan = plan_text_parse(plans[i][0]);
        g_autofree char *text = plan_text_recompute(plan);

        ck_assert_str_eq(text, plans[i][1]);
    }
}
END_TEST

/* ---- joining ---- */

START_TEST(the_rank_named_by_the_prediction_is_shown)
{
    g_autofree char *path = scratch_path("runs.db");
    gint64 id;
    g_autoptr(Store) store = store_with_plan(path, "{\"prediction\": {\"rank\": 1}}", &id);

    add_term(store, id, 0, "memory_bytes.total", 300, 300);
    add_term(store, id, 1, "memory_bytes.total", 200, 210);
    g_autoptr(Report) report = must_load(path);

    ck_assert_uint_eq(latest(report)->rank, 1);
    ck_assert_double_eq(report_measured(latest(report), "memory_bytes.total"), 210);
    ck_assert_double_nan(report_measured(latest(report), "step_seconds"));
    scratch_remove(path);
}
END_TEST

START_TEST(without_that_rank_the_largest_memory_total_is_shown)
{
    g_autofree char *path = scratch_path("runs.db");
    gint64 id;
    g_autoptr(Store) store = store_with_plan(path, "{\"prediction\": {\"rank\": 7}}", &id);

    add_term(store, id, 0, "memory_bytes.total", 100, 100);
    add_term(store, id, 2, "memory_bytes.total", 300, 300);
    add_term(store, id, 3, "memory_bytes.total", 200, 200);
    g_autoptr(Report) report = must_load(path);

    ck_assert_uint_eq(latest(report)->rank, 2);
    scratch_remove(path);
}
END_TEST

START_TEST(terms_are_in_the_order_of_the_prediction)
{
    static const char *const written[] = {"communication_bytes.exchange",
                                          "strange",
                                          "memory_bytes.total",
                                          "memory_bytes.parameters",
                                          "time_seconds.gemm",
                                          "mfu",
                                          "step_seconds"};
    static const char *const expected[] = {"step_seconds",
                                           "mfu",
                                           "time_seconds.gemm",
                                           "memory_bytes.parameters",
                                           "memory_bytes.total",
                                           "communication_bytes.exchange",
                                           "strange"};
    g_autofree char *path = scratch_path("runs.db");
    gint64 id;
    g_autoptr(Store) store = store_with_plan(path, "{}", &id);

    for (guint i = 0; i < G_N_ELEMENTS(written); i++)
        add_term(store, id, 0, written[i], 1, 1);
    g_autoptr(Report) report = must_load(path);
    for (guint i = 0; i < G_N_ELEMENTS(expected); i++)
        ck_assert_str_eq(g_array_index(latest(report)->terms, StoreTerm, i).term, expected[i]);
    scratch_remove(path);
}
END_TEST

START_TEST(a_run_without_terms_shows_what_its_plan_predicts)
{
    g_autofree char *path = scratch_path("runs.db");
    gint64 id;

    store_free(store_with_plan(path,
                               "{\"prediction\": {\"step_seconds\": 2.5, \"rank\": 3, "
                               "\"memory_bytes\": {\"total\": 1024, \"odd\": \"text\"}}}",
                               &id));
    g_autoptr(Report) report = must_load(path);
    const ReportRun *run = latest(report);
    g_autofree char *text = report_text(report, run);

    ck_assert_uint_eq(run->terms->len, 2);
    ck_assert_double_eq(report_predicted(run, "step_seconds"), 2.5);
    ck_assert_double_eq(report_predicted(run, "memory_bytes.total"), 1024);
    ck_assert_double_nan(report_measured(run, "step_seconds"));
    ck_assert_ptr_nonnull(strstr(text, "1.000 KiB"));
    ck_assert_ptr_nonnull(strstr(text, "Nothing is measured yet"));
    scratch_remove(path);
}
END_TEST

START_TEST(the_first_step_is_not_counted_and_the_median_is_the_middle)
{
    static const double seconds[] = {9, 4, 1, 3, 2};
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    gint64 id;
    g_autoptr(Store) store = store_with_plan(path, "{}", &id);

    for (guint i = 0; i < G_N_ELEMENTS(seconds); i++) {
        const StoreStep step = {.step = i + 1, .seconds = seconds[i], .loss = 10 - i};

        must(store_add_step(store, id, &step, &error), error);
    }
    g_autoptr(Report) report = must_load(path);
    const ReportSteps steps = report_steps(latest(report));

    ck_assert_uint_eq(steps.count, 4);
    ck_assert_double_eq(steps.median_s, 2.5);
    ck_assert_double_eq(steps.min_s, 1);
    ck_assert_double_eq(steps.max_s, 4);
    ck_assert_double_eq(steps.first_loss, 10);
    ck_assert_double_eq(steps.last_loss, 6);
    scratch_remove(path);
}
END_TEST

START_TEST(the_worst_error_is_looked_for_on_all_ranks)
{
    g_autofree char *path = scratch_path("runs.db");
    gint64 id;
    g_autoptr(Store) store = store_with_plan(path, "{}", &id);

    add_term(store, id, 0, "memory_bytes.total", 100, 101);
    add_term(store, id, 1, "memory_bytes.total", 100, 93);
    add_term(store, id, 1, "memory_bytes.workspace", 100, 102);
    add_term(store, id, 0, "communication_bytes.exchange", 0, 0);
    add_term(store, id, 1, "communication_bytes.exchange", 0, 8);
    add_term(store, id, 0, "step_seconds", 1, NAN);
    g_autoptr(Report) report = must_load(path);
    g_autoptr(GArray) worst = report_worst(latest(report));
    const ReportWorst *got = (const ReportWorst *)(gconstpointer)worst->data;

    ck_assert_uint_eq(worst->len, 3);
    ck_assert_str_eq(got[0].group, "step_seconds");
    ck_assert_ptr_null(got[0].worst);
    ck_assert_str_eq(got[1].group, "memory_bytes");
    ck_assert_uint_eq(got[1].worst->rank, 1);
    ck_assert_double_eq(got[1].worst->measured, 93);
    ck_assert_double_eq(got[2].worst->measured, 8); /* what nobody predicted is worst */
    scratch_remove(path);
}
END_TEST

START_TEST(ops_are_summed_by_the_last_word_of_their_name)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    gint64 id;
    g_autoptr(Store) store = store_with_plan(path, "{}", &id);
    const StoreOp ops[] = {{0, 2, "block.forward layers.0 linear", "compute", 0, 1, 10, 100},
                           {0, 2, "block.forward layers.1 linear", "compute", 1, 3, 10, NAN},
                           {0, 2, "block.gather layers.1 all_gather", "shard", 0, 2.5, 7, 0}};

    for (guint i = 0; i < G_N_ELEMENTS(ops); i++)
        must(store_add_op(store, id, &ops[i], &error), error);
    g_autoptr(Report) report = must_load(path);
    g_autoptr(GArray) sums = report_ops(latest(report));
    const ReportOps *got = (const ReportOps *)(gconstpointer)sums->data;

    ck_assert_uint_eq(sums->len, 2);
    ck_assert_str_eq(got[0].kind, "linear");
    ck_assert_uint_eq(got[0].count, 2);
    ck_assert(got[0].seconds == 3 && got[0].bytes == 20 && got[0].flops == 100);
    ck_assert_str_eq(got[1].kind, "all_gather");
    scratch_remove(path);
}
END_TEST

/* ---- several runs ---- */

START_TEST(an_unknown_run_names_those_there_are)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;

    fabricate_store(path, 3, 2);
    g_autoptr(Report) report = must_load(path);

    ck_assert_ptr_null(report_find(report, 9, &error));
    ck_assert_int_eq(error_exit_status(error), 2);
    ck_assert_ptr_nonnull(strstr(error->message, "no run 9; there are 1, 2, 3"));
    ck_assert_int_eq(report_find(report, 0, NULL)->row->id, 3);
    ck_assert_int_eq(report_find(report, 2, NULL)->row->id, 2);
    scratch_remove(path);
}
END_TEST

START_TEST(a_store_without_runs_says_so)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;

    fabricate_store(path, 0, 0);
    g_autoptr(Report) report = must_load(path);
    g_autofree char *json = report_json(report, NULL);

    ck_assert_ptr_null(report_find(report, 0, &error));
    ck_assert_ptr_nonnull(strstr(error->message, "no runs"));
    ck_assert_ptr_nonnull(strstr(json, "\"ranking\" : null"));
    scratch_remove(path);
}
END_TEST

START_TEST(only_runs_of_the_same_model_are_ranked_together)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    fabricate_store(path, 4, 3);
    g_autoptr(Store) store = store_open(path, FALSE, &error);
    fabricate_run(store, "other", 5, 3);

    g_autoptr(Report) report = must_load(path);
    g_autoptr(GPtrArray) same = report_comparable(report, report_find(report, 1, NULL));
    g_autoptr(GPtrArray) groups = report_groups(report, latest(report));

    ck_assert_uint_eq(same->len, 4);
    for (guint i = 1; i < same->len; i++)
        ck_assert_double_le(report_predicted(g_ptr_array_index(same, i - 1), "step_seconds"),
                            report_predicted(g_ptr_array_index(same, i), "step_seconds"));
    ck_assert_uint_eq(groups->len, 2);
    ck_assert_ptr_eq(g_ptr_array_index(groups, 0), latest(report));
    scratch_remove(path);
}
END_TEST

static JsonObject *object_at(JsonArray *array, guint i)
{
    return json_array_get_object_element(array, i);
}

START_TEST(json_has_runs_terms_steps_ops_and_the_ranking)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(JsonParser) parser = json_parser_new();
    fabricate_store(path, 3, 5);
    g_autoptr(Report) report = must_load(path);
    g_autofree char *json = report_json(report, NULL);
    g_autofree char *one = report_json(report, report_find(report, 2, NULL));

    ck_assert(json_parser_load_from_data(parser, json, -1, NULL));
    JsonObject *root = json_node_get_object(json_parser_get_root(parser));
    JsonArray *runs = json_object_get_array_member(root, "runs");
    ck_assert_uint_eq(json_array_get_length(runs), 3);

    JsonObject *run = object_at(runs, 0);
    JsonObject *layout = json_object_get_object_member(run, "layout");
    JsonArray *terms = json_object_get_array_member(run, "terms");
    ck_assert_str_eq(json_object_get_string_member(run, "model"), "llama-3.2-1b");
    ck_assert_int_eq(json_object_get_int_member(layout, "dp_shard"), 8);
    ck_assert_uint_eq(json_array_get_length(terms), FABRICATED_RANKS * 25);

    JsonObject *first = object_at(terms, 0);
    const double predicted = json_object_get_double_member(first, "predicted");
    const double measured = json_object_get_double_member(first, "measured");
    ck_assert_str_eq(json_object_get_string_member(first, "term"), "step_seconds");
    ck_assert_double_eq_tol(json_object_get_double_member(first, "error"), measured / predicted - 1,
                            1e-12);

    JsonObject *steps = json_object_get_object_member(run, "steps");
    ck_assert_int_eq(json_object_get_int_member(steps, "count"), 5);
    ck_assert_uint_gt(json_array_get_length(json_object_get_array_member(run, "ops")), 5);

    JsonObject *ranking = json_object_get_object_member(root, "ranking");
    ck_assert_int_eq(json_object_get_int_member(ranking, "pairs"), 3);
    ck_assert_uint_eq(json_array_get_length(json_object_get_array_member(ranking, "runs")), 3);

    ck_assert(json_parser_load_from_data(parser, one, -1, NULL));
    root = json_node_get_object(json_parser_get_root(parser));
    runs = json_object_get_array_member(root, "runs");
    ck_assert_uint_eq(json_array_get_length(runs), 1);
    ck_assert_int_eq(json_object_get_int_member(object_at(runs, 0), "id"), 2);
    scratch_remove(path);
}
END_TEST

START_TEST(what_was_not_measured_is_null_in_json_and_a_dash_in_text)
{
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(JsonParser) parser = json_parser_new();
    fabricate_store(path, 1, 2);
    g_autoptr(Report) report = must_load(path);
    g_autofree char *json = report_json(report, NULL);
    g_autofree char *text = report_text(report, latest(report));
    const char *line = strstr(text, "memory_bytes.framework");
    g_auto(GStrv) lines = g_strsplit(line, "\n", 2);

    ck_assert_ptr_nonnull(strstr(lines[0], "150.0 MiB"));
    ck_assert(g_str_has_suffix(lines[0], "-"));
    ck_assert(json_parser_load_from_data(parser, json, -1, NULL));
    JsonArray *runs =
        json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)), "runs");
    JsonArray *terms = json_object_get_array_member(object_at(runs, 0), "terms");
    for (guint i = 0; i < 25; i++)
        if (strcmp(json_object_get_string_member(object_at(terms, i), "term"),
                   "memory_bytes.framework") == 0) {
            ck_assert(json_object_get_null_member(object_at(terms, i), "measured"));
            ck_assert(json_object_get_null_member(object_at(terms, i), "error"));
        }
    scratch_remove(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report");
    TCase *figures = tcase_create("figures"), *join = tcase_create("join"),
          *several = tcase_create("several");

    tcase_add_loop_test(figures, values_read_as_people_write_them, 0, 10);
    tcase_add_loop_test(figures, errors_are_percent_of_the_prediction_or_exact, 0, 10);
    tcase_add_test(figures, ranking_gives_the_worked_values);
    tcase_add_test(figures, equal_predictions_share_their_rank_and_are_no_pair);
    tcase_add_test(figures, order_reversed_is_minus_one_and_few_runs_have_none);
    suite_add_tcase(suite, figures);

    tcase_add_loop_test(join, a_plan_that_is_missing_or_odd_reads_as_unknown, 0, 6);
    tcase_add_test(join, a_layout_names_the_axes_larger_than_one);
    tcase_add_test(join, what_is_computed_again_is_named_by_stage_where_stages_differ);
    tcase_add_test(join, a_layout_names_schedule_and_context_where_there_are_stages_and_pieces);
    tcase_add_test(join, the_rank_named_by_the_prediction_is_shown);
    tcase_add_test(join, without_that_rank_the_largest_memory_total_is_shown);
    tcase_add_test(join, terms_are_in_the_order_of_the_prediction);
    tcase_add_test(join, a_run_without_terms_shows_what_its_plan_predicts);
    tcase_add_test(join, the_first_step_is_not_counted_and_the_median_is_the_middle);
    tcase_add_test(join, the_worst_error_is_looked_for_on_all_ranks);
    tcase_add_test(join, ops_are_summed_by_the_last_word_of_their_name);
    suite_add_tcase(suite, join);

    tcase_add_test(several, an_unknown_run_names_those_there_are);
    tcase_add_test(several, a_store_without_runs_says_so);
    tcase_add_test(several, only_runs_of_the_same_model_are_ranked_together);
    tcase_add_test(several, json_has_runs_terms_steps_ops_and_the_ranking);
    tcase_add_test(several, what_was_not_measured_is_null_in_json_and_a_dash_in_text);
    suite_add_tcase(suite, several);
    return suite_run(suite);
}
