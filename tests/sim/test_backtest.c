/* Published runs: how tables are read, how rows become plans, how predictions are scored. */
#include "sim/backtest/cluster.h"
#include "sim/base/error.h"
#include "sim/cost/framework.h"
#include "sim/search/search.h"
#include "tests/sim/backtest_case.h"

/* ---- tables ---- */

START_TEST(quoted_fields_hold_commas_quotes_and_lines)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Csv) csv = csv_parse("a,b\r\n\"1,\"\"2\"\"\n3\",x\r\n\r\n,y", "f", &error);

    ck_assert_ptr_nonnull(csv);
    ck_assert_uint_eq(csv->rows->len, 2);
    ck_assert_str_eq(g_array_index(csv->rows, CsvRow, 0).fields[0], "1,\"2\"\n3");
    ck_assert_str_eq(g_array_index(csv->rows, CsvRow, 0).fields[1], "x");
    ck_assert_str_eq(g_array_index(csv->rows, CsvRow, 1).fields[0], "");
    ck_assert_str_eq(g_array_index(csv->rows, CsvRow, 1).fields[1], "y");
    ck_assert_uint_eq(g_array_index(csv->rows, CsvRow, 1).line, 5);
}
END_TEST

static const struct {
    const char *text, *message;
} broken[] = {
    {"a,b\n1\n", "f:2: 1 fields; the header has 2"},
    {"a,b\n1,2,3\n", "f:2: 3 fields; the header has 2"},
    {"a,b\n1,\"2\n", "f:2: a quote that is never closed"},
    {"a,b\n1,\"2\"x\n", "f:2: field 2: \"x\" after the closing quote"},
    {"a,b\n1,2\"\n", "f:2: field 2: a quote within a field"},
    {"a,a\n", "f:1: column \"a\" twice"},
};

START_TEST(a_broken_table_names_file_and_line)
{
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(csv_parse(broken[_i].text, "f", &error));
    ck_assert_str_eq(error->message, broken[_i].message);
}
END_TEST

static const struct {
    const char *column, *value, *message;
} wrong[] = {
    {"tp", "two", "column \"tp\" = \"two\": must be a whole number from 1 to 268435456, or empty"},
    {"tp", "0", "column \"tp\" = \"0\": must be a whole number from 1 to 268435456, or empty"},
    {"step_time_s", "-2",
     "column \"step_time_s\" = \"-2\": must be a number of 0 or more, or empty"},
    {"status", "fine",
     "column \"status\" = \"fine\": must be ok, oom, oom_or_crash, failed, or empty"},
    {"status", "", "columns \"id\" and \"status\" must not be empty"},
    {"sp", "yes", "column \"sp\" = \"yes\": must be 0, 1, or empty"},
};

START_TEST(a_bad_value_names_line_column_value_and_what_is_allowed)
{
    g_autofree char *bad = with(row, wrong[_i].column, wrong[_i].value);
    g_autofree char *rows = g_strconcat(row, bad, NULL);
    g_autofree char *message = g_strconcat("t.csv:3: ", wrong[_i].message, NULL);
    g_autoptr(Csv) csv = table(rows);
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_null(records_read(csv, &error));
    ck_assert_str_eq(error->message, message);
}
END_TEST

START_TEST(a_table_without_a_needed_column_is_refused)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Csv) csv = csv_parse("id,status\n", "f", &error);

    ck_assert_ptr_null(records_read(csv, &error));
    ck_assert_str_eq(error->message, "f:1: no column \"model\"");
}
END_TEST

/* ---- the filter ---- */

static const struct {
    const char *column, *value;
    gboolean timed, trusted;
} filtered[] = {
    {"id", "T-1", TRUE, TRUE},
    {"id", "USP-1", FALSE, TRUE},
    {"id", "USPB-1", FALSE, TRUE},
    {"status", "oom", FALSE, TRUE},
    {"trust", "low", FALSE, FALSE},
    {"trust", "medium", TRUE, TRUE},
    {"flags", "ARITH: 9%", FALSE, FALSE},
    {"flags", "TP across nodes", TRUE, TRUE},
    {"flags", "tiny; deterministic mode", FALSE, FALSE},
    {"flags", "old software", FALSE, FALSE},
    {"step_time_s", "", FALSE, TRUE},
};

START_TEST(the_filter_takes_what_the_readme_says)
{
    g_autofree char *text = with(row, filtered[_i].column, filtered[_i].value);
    g_autoptr(Csv) csv = table(text);
    g_autoptr(GArray) read = records(csv);
    const Record *record = &g_array_index(read, Record, 0);

    ck_assert_int_eq(record_is_timed(record), filtered[_i].timed);
    ck_assert_int_eq(record_is_trusted(record), filtered[_i].trusted);
}
END_TEST

START_TEST(tokens_per_second_give_the_step_where_it_is_not_printed)
{
    g_autofree char *none = with(row, "step_time_s", "");
    g_autofree char *text = with(none, "tokens_per_s_per_gpu", "1024");
    g_autoptr(Csv) csv = table(text);
    g_autoptr(GArray) read = records(csv);

    /* 8 sequences of 2048 tokens over 8 GPUs */
    ck_assert_double_eq_tol(record_step_seconds(&g_array_index(read, Record, 0)), 2, 1e-12);
}
END_TEST

/* ---- rows as plans ---- */

static const struct {
    const char *network;
    guint gpus_per_node;
    double gbits;
} fabrics[] = {
    {"", 8, 0},
    {"HDR 200 Gb/s InfiniBand (DGX A100 nodes)", 8, 25},
    {"A100 80G 128 GPUs with 400Gbps", 8, 50},
    {"InfiniBand; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", 8, 0},
    {"800 Gb/s inter-node (repo validation configs)", 8, 100},
    {"1600 Gb/s RoCE per node", 8, 200},
    {"4x100 Gb/s RoCE per node", 8, 50},
    {"400 Gb/s RDMA per GPU (RoCE Grand Teton)", 8, 400},
    {"Omni-Path 100 Gb/s x4 per node (Jean Zay), NVLink inside", 8, 50},
    {"8x HDR 200Gb/s IB (DGX SuperPOD)", 8, 200},
    {"4x HDR 200Gb/s IB", 8, 100},
    {"AWS p5 EFA 3200 Gb/s per node (HF cluster, hopper-prod)", 8, 400},
    {"4x ConnectX-7 IB NDR 400Gb/s", 4, 400},
};

START_TEST(a_fabric_in_words_is_what_one_gpu_has)
{
    const Record record = {.network = fabrics[_i].network};

    ck_assert_double_eq_tol(cluster_fabric_gbits(&record, fabrics[_i].gpus_per_node),
                            fabrics[_i].gbits, 1e-9);
}
END_TEST

static const struct {
    const char *column, *value, *reason;
} lacking[] = {
    {"layers", "", "no layers, hidden or seq_len"},
    {"gpu", "", "gpu not stated"},
    {"gpu", "Abacus", "gpu not known"},
    {"micro_batch", "", "no micro_batch or global_batch"},
    {"dp", "4", "axes do not multiply to gpus"},
    {"heads", "7", "a shape that is not a model's"},
    {"ep", "2", "a mixture of experts that is not known"},
    {"active_params_b", "1", "a mixture of experts that is not known"},
};

START_TEST(a_row_that_lacks_what_is_needed_is_skipped_with_the_reason)
{
    g_autofree char *text = with(row, lacking[_i].column, lacking[_i].value);
    g_autofree char *reason = NULL;
    double share;

    ck_assert_ptr_null(plan_of(text, &share, &reason));
    ck_assert_str_eq(reason, lacking[_i].reason);
}
END_TEST

/* Qwen3's report, table 2: 128 experts of 768, 8 a token; heads of 128, not of hidden / heads. */
START_TEST(experts_are_those_of_the_model_of_that_name)
{
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(sparse_row, &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_uint_eq(plan->layout.ep, 8);
    ck_assert_uint_eq(plan->model->layers, 2);
    ck_assert_uint_eq(plan->model->experts.count, 128);
    ck_assert_uint_eq(plan->model->experts.top_k, 8);
    ck_assert_uint_eq(plan->model->experts.ffn, 768);
    ck_assert_uint_eq(plan->model->head_dim, 128);
}
END_TEST

/* gpt-oss' report, sec. 2.2: every other block sees 128 tokens; no other mixture has windows. */
START_TEST(windows_are_those_of_gpt_oss)
{
    g_autofree char *text = with(sparse_row, "model", "gpt-oss-20b");
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason),
                    other = plan_of(sparse_row, &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    const double hidden = 1 - 128.0 / plan->workload.seq_len;
    ck_assert_double_eq_tol(model_seen_pairs(plan->model, plan->workload.seq_len),
                            1 - hidden * hidden / 2, 1e-12);
    ck_assert_double_eq(model_seen_pairs(other->model, other->workload.seq_len), 1);
}
END_TEST

/* Examples of 180 tokens in a sequence of 2048: 180 / 2048 of all pairs, but for the diagonal. */
START_TEST(packed_examples_see_only_themselves)
{
    static const struct {
        const char *framework, *model;
        double seen;
    } packed[] = {{"NeMo 24.07 / Megatron-Core", "LLAMA2-7B SFT", 180.0 / 2048},
                  {"NeMo 24.07 / Megatron-Core", "LLAMA2-7B", 1},
                  {"Paxml (JAX/XLA)", "Llama 2 7B SFT", 1}};

    for (guint i = 0; i < G_N_ELEMENTS(packed); i++) {
        g_autofree char *named = with(row, "framework", packed[i].framework);
        g_autofree char *text = with(named, "model", packed[i].model);
        g_autofree char *reason = NULL;
        double share;
        g_autoptr(Plan) plan = plan_of(text, &share, &reason);

        ck_assert_msg(plan != NULL, "%s", reason);
        ck_assert_double_eq_tol(model_seen_pairs(plan->model, 2048), packed[i].seen, 0.003);
    }
}
END_TEST

/* NeMo's configurations have virtual stages only since October 2022; Megatron-Bridge's tables say
 * where there are none. */
START_TEST(stages_that_a_table_leaves_open_are_what_the_framework_has)
{
    static const struct {
        const char *framework;
        guint chunks;
    } open[] = {{"NeMo Megatron", 1}, {"NeMo", 2}, {"Megatron-Bridge", 1}, {"Megatron-LM", 1}};
    g_autofree char *deep = with(row, "layers", "4");
    g_autofree char *staged = with(deep, "pp", "2");
    g_autofree char *split = with(staged, "dp", "4");
    g_autofree char *open_strategy = with(split, "strategy_kind", "");

    for (guint i = 0; i < G_N_ELEMENTS(open); i++) {
        g_autofree char *text = with(open_strategy, "framework", open[i].framework);
        g_autofree char *reason = NULL;
        double share;
        g_autoptr(Plan) plan = plan_of(text, &share, &reason);

        ck_assert_msg(plan != NULL, "%s", reason);
        ck_assert_uint_eq(plan->schedule.virtual_stages, open[i].chunks);
    }
}
END_TEST

/* Parameters of whole published models, in billions, as their names and reports say them. */
static const struct {
    const char *name, *layers, *hidden, *vocab;
    double billions;
} published[] = {
    {"DeepSeek V3 671B MoE", "61", "7168", "129280", 671},
    {"Kimi-K2", "61", "7168", "163840", 1026},
    {"Qwen3-235B-A22B", "94", "4096", "151936", 235},
    {"Qwen3_30B_a3B (tokendrop)", "48", "2048", "151936", 30.5},
    {"GPT OSS 120B", "36", "2880", "201088", 116.8},
    {"gpt-oss-20b", "24", "2880", "201088", 20.9},
    {"Mixtral 8x22B", "56", "6144", "32768", 141},
    {"mixtral_8x7b", "32", "4096", "32000", 46.7},
    {"Grok-1 314B MoE", "64", "6144", "131072", 314},
};

START_TEST(known_mixtures_of_experts_have_their_published_size)
{
    g_autofree char *a = with(sparse_row, "model", published[_i].name);
    g_autofree char *b = with(a, "layers", published[_i].layers);
    g_autofree char *c = with(b, "hidden", published[_i].hidden);
    g_autofree char *text = with(c, "vocab", published[_i].vocab);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    ck_assert_msg(plan != NULL, "%s: %s", published[_i].name, reason);
    ck_assert_double_eq_tol((double)model_parameters(plan->model) / 1e9, published[_i].billions,
                            0.01 * published[_i].billions);
}
END_TEST

/* 16 layers of 2048 with an inner width of 4 x 2048 and 131072 words: a gate and a tied head have
 * as many parameters as neither. */
START_TEST(a_llama_has_a_gate_where_parameters_do_not_tell)
{
    static const char *const cells[][2] = {{"layers", "16"},       {"hidden", "2048"},
                                           {"heads", "32"},        {"kv_heads", "32"},
                                           {"ffn_hidden", "8192"}, {"vocab", "131072"},
                                           {"params_b", "1.342"},  {"model", "Llama-style 1B"}};
    g_autofree char *text = g_strdup(row);
    g_autofree char *reason = NULL;
    double share;

    for (guint i = 0; i < G_N_ELEMENTS(cells); i++) {
        char *next = with(text, cells[i][0], cells[i][1]);
        g_free(text);
        text = next;
    }
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);
    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_uint_ne(plan->model->features & FEATURE_GATED, 0);
    ck_assert(plan->model->tied);
}
END_TEST

START_TEST(a_batch_that_does_not_divide_is_scaled)
{
    g_autofree char *text = with(row, "global_batch", "20"); /* 2.5 micro-batches a rank */
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    ck_assert_ptr_nonnull(plan);
    ck_assert_uint_eq(plan->schedule.micro_batches, 3);
    ck_assert_double_eq_tol(share, 20.0 / 24, 1e-12);
}
END_TEST

/* The same choices by hand: what fsdp-plan estimate --framework torchtitan is asked. */
START_TEST(a_row_is_predicted_as_estimate_predicts_it)
{
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(row, &share, &reason);
    SearchRequest request = {
        .model = plan->model,
        .topology = plan->topology,
        .global_batch = 8,
        .seq_len = 2048,
        .recipe = &recipe_fsdp2,
        .strategy = STRATEGY_FULL_SHARD,
        .micro_batch = 1,
        .recompute = RECOMPUTE_NONE,
        .schedule = SCHEDULE_1F1B,
        .context = CONTEXT_RING,
        .fixed = {1, 1, 8, 1, 1},
        .sequence_parallel = TRUE,
        .sharding = sharding_default,
        .framework = framework_from_name("torchtitan"),
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) estimate = search_estimate(&request, &error);
    g_autoptr(Csv) csv = table(row);
    g_autoptr(GArray) read = records(csv);
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE, NULL);
    const Outcome *outcome = &g_array_index(backtest->outcomes, Outcome, 0);

    ck_assert_msg(estimate != NULL, "%s", error != NULL ? error->message : "");
    ck_assert_ptr_null(outcome->skipped);
    ck_assert_double_eq_tol(outcome->step_s, estimate->prediction.step_seconds, 1e-12);
    ck_assert_double_eq_tol(outcome->memory_gb, (double)estimate->prediction.memory_total / 1e9,
                            1e-12);
}
END_TEST

/* ---- scores ---- */

/* Four rows: a tiny model that fits or is said not to, one of 100 layers of 16384 that cannot. */
START_TEST(labels_are_counted_as_found_missed_and_wrongly_said)
{
    g_autofree char *large = with(row, "hidden", "16384");
    g_autofree char *larger = with(large, "layers", "100");
    g_autofree char *oom = with(larger, "status", "oom");
    g_autofree char *missed = with(row, "status", "oom");
    g_autofree char *crash = with(larger, "status", "oom_or_crash");
    g_autofree char *rows = g_strconcat(row, oom, missed, larger, crash, NULL);
    g_autoptr(Csv) csv = table(rows);
    g_autoptr(GArray) read = records(csv);
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE, NULL);
    const TotalScore *total = &backtest->total;

    ck_assert_uint_eq(total->labels, 4);
    ck_assert_uint_eq(total->labels_right, 2);
    ck_assert_uint_eq(total->oom, 2);
    ck_assert_uint_eq(total->oom_found, 1);
    ck_assert_uint_eq(total->oom_said, 2);
    ck_assert_uint_eq(total->crashes, 1);
    ck_assert_uint_eq(total->crashes_found, 1);
}
END_TEST

START_TEST(only_groups_of_four_are_choices)
{
    g_autofree char *other = with(row, "group", "h");
    g_autofree char *three = g_strconcat(row, row, row, other, NULL);
    g_autofree char *four = g_strconcat(three, row, NULL);
    const char *const texts[] = {three, four};

    for (guint i = 0; i < 2; i++) {
        g_autoptr(Csv) csv = table(texts[i]);
        g_autoptr(GArray) read = records(csv);
        g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE, NULL);

        ck_assert_uint_eq(backtest->total.choices, i);
        ck_assert_double_eq_tol(backtest->total.regret_max, 0, 1e-15);
    }
}
END_TEST

START_TEST(the_json_has_the_keys_of_the_design)
{
    static const char *const keys[] = {"rows", "skipped", "groups", "total"};
    static const char *const totals[] = {"n_time",      "mape_time",     "median_time",
                                         "n_memory",    "mape_memory",   "under_memory_max",
                                         "oom_recall",  "oom_precision", "choices",
                                         "regret_mean", "regret_max",    "spearman_mean"};
    g_autofree char *skipped = with(row, "layers", "");
    g_autofree char *rows = g_strconcat(row, skipped, NULL);
    g_autoptr(Csv) csv = table(rows);
    g_autoptr(GArray) read = records(csv);
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE, NULL);
    g_autoptr(JsonNode) node = backtest_node(backtest);
    JsonObject *object = json_node_get_object(node);

    for (guint i = 0; i < G_N_ELEMENTS(keys); i++)
        ck_assert_msg(json_object_has_member(object, keys[i]), "%s", keys[i]);
    for (guint i = 0; i < G_N_ELEMENTS(totals); i++)
        ck_assert_msg(
            json_object_has_member(json_object_get_object_member(object, "total"), totals[i]), "%s",
            totals[i]);
    JsonArray *array = json_object_get_array_member(object, "rows");
    JsonObject *first = json_array_get_object_element(array, 0);
    JsonObject *second = json_array_get_object_element(array, 1);
    ck_assert_str_eq(json_object_get_string_member(first, "id"), "T-1");
    ck_assert(json_object_get_null_member(first, "skipped"));
    ck_assert_str_eq(json_object_get_string_member(second, "skipped"), lacking[0].reason);
    ck_assert(json_object_get_null_member(json_object_get_object_member(second, "error"), "time"));
}
END_TEST

static Suite *backtest_suite(void)
{
    Suite *suite = suite_create("backtest");
    TCase *test = tcase_create("backtest");

    tcase_add_test(test, quoted_fields_hold_commas_quotes_and_lines);
    tcase_add_loop_test(test, a_broken_table_names_file_and_line, 0, G_N_ELEMENTS(broken));
    tcase_add_loop_test(test, a_bad_value_names_line_column_value_and_what_is_allowed, 0,
                        G_N_ELEMENTS(wrong));
    tcase_add_test(test, a_table_without_a_needed_column_is_refused);
    tcase_add_loop_test(test, the_filter_takes_what_the_readme_says, 0, G_N_ELEMENTS(filtered));
    tcase_add_test(test, experts_are_those_of_the_model_of_that_name);
    tcase_add_test(test, windows_are_those_of_gpt_oss);
    tcase_add_test(test, packed_examples_see_only_themselves);
    tcase_add_test(test, stages_that_a_table_leaves_open_are_what_the_framework_has);
    tcase_add_loop_test(test, known_mixtures_of_experts_have_their_published_size, 0,
                        G_N_ELEMENTS(published));
    tcase_add_test(test, a_llama_has_a_gate_where_parameters_do_not_tell);
    tcase_add_test(test, tokens_per_second_give_the_step_where_it_is_not_printed);
    tcase_add_loop_test(test, a_fabric_in_words_is_what_one_gpu_has, 0, G_N_ELEMENTS(fabrics));
    tcase_add_loop_test(test, a_row_that_lacks_what_is_needed_is_skipped_with_the_reason, 0,
                        G_N_ELEMENTS(lacking));
    tcase_add_test(test, a_batch_that_does_not_divide_is_scaled);
    tcase_add_test(test, a_row_is_predicted_as_estimate_predicts_it);
    tcase_add_test(test, labels_are_counted_as_found_missed_and_wrongly_said);
    tcase_add_test(test, only_groups_of_four_are_choices);
    tcase_add_test(test, the_json_has_the_keys_of_the_design);
    suite_add_tcase(suite, test);
    return suite;
}

int main(void)
{
    return suite_run(backtest_suite());
}
