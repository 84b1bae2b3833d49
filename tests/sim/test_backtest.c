/* Published runs: how tables are read, how rows become plans, how predictions are scored. */
#include "sim/backtest/backtest.h"
#include "sim/backtest/cluster.h"
#include "sim/backtest/score.h"
#include "sim/backtest/setup.h"
#include "sim/base/error.h"
#include "sim/cost/framework.h"
#include "sim/search/price.h"
#include "sim/search/search.h"
#include "tests/suite.h"

#include <string.h>

static const char *const header =
    "id,model,params_b,layers,hidden,heads,kv_heads,ffn_hidden,vocab,seq_len,gpu,gpu_mem_gb,gpus,"
    "gpus_per_node,network,framework,dp,fsdp_strategy,tp,sp,pp,vpp,cp,ep,micro_batch,global_batch,"
    "precision,compile_or_flash,tokens_per_s_per_gpu,tflops_per_gpu,mfu_pct,step_time_s,"
    "peak_mem_gb,status,active_params_b,trust,flags,strategy_kind,recompute_kind,precision_kind,"
    "mem_kind,group\n";

/* Two layers on eight A100, fully sharded, a step of two seconds. */
static const char *const row =
    "T-1,tiny,,2,1024,8,8,4096,32000,2048,A100,80,8,8,,torchtitan,8,,1,,1,,"
    "1,,1,8,bf16,,,,,2,,ok,,high,,full_shard,none,bf16,,g\n";

/* @row with one column changed. */
static char *with(const char *text, const char *column, const char *value)
{
    g_auto(GStrv) names = g_strsplit(header, ",", -1);
    g_auto(GStrv) fields = g_strsplit(text, ",", -1);

    for (guint i = 0; names[i] != NULL; i++)
        if (strcmp(g_strchomp(names[i]), column) == 0) {
            g_free(fields[i]);
            fields[i] = g_strdup_printf("%s%s", value, names[i + 1] == NULL ? "\n" : "");
            return g_strjoinv(",", fields);
        }
    g_assert_not_reached();
}

static Csv *table(const char *rows)
{
    g_autofree char *text = g_strconcat(header, rows, NULL);
    g_autoptr(GError) error = NULL;
    Csv *csv = csv_parse(text, "t.csv", &error);

    ck_assert_msg(csv != NULL, "%s", error != NULL ? error->message : "");
    return csv;
}

static GArray *records(const Csv *csv)
{
    g_autoptr(GError) error = NULL;
    GArray *read = records_read(csv, &error);

    ck_assert_msg(read != NULL, "%s", error != NULL ? error->message : "");
    return read;
}

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
    {"HDR 200 Gb/s InfiniBand (DGX A100 nodes)", 8, 200},
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

/* Two layers of it on eight H100. */
static const char *const sparse_row =
    "T-2,Qwen3_30B_a3B,,2,2048,32,4,768,32000,2048,H100,80,8,8,,Megatron-Core,8,,1,,1,,"
    "1,8,1,8,bf16,,,,,2,,ok,3.3,high,,shard_optimizer,none,bf16,,g\n";

static Plan *plan_of(const char *text, double *share, char **reason)
{
    g_autoptr(Csv) csv = table(text);
    g_autoptr(GArray) read = records(csv);

    return setup_plan(&g_array_index(read, Record, 0), "topologies", share, reason);
}

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

static const struct {
    const char *framework, *model, *name;
} usages[] = {
    {"Megatron-Bridge", "GPT OSS 120B", "nemo-gpt-oss"},
    {"Megatron-Bridge", "gpt-oss-20b", "nemo-gpt-oss"},
    {"Megatron-Bridge", "Qwen3_30B_a3B", "nemo"},
    {"Megatron-Core", "GPT OSS 120B", "megatron"},
};

START_TEST(a_framework_is_told_by_its_name_and_the_models)
{
    g_autofree char *named = with(sparse_row, "framework", usages[_i].framework);
    g_autofree char *text = with(named, "model", usages[_i].model);
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    ck_assert_msg(plan != NULL, "%s", reason);
    ck_assert_str_eq(plan->framework->name, usages[_i].name);
}
END_TEST

/* A table may have the column that says where in its source a run stands, or not. */
START_TEST(a_version_is_told_by_where_the_source_has_it)
{
    static const char *const places[][2] = {
        {"github.com/NVIDIA/JAX-Toolbox@62799732 L155", "paxml-unfused"},
        {"github.com/NVIDIA/JAX-Toolbox@28603900 L160", "paxml"}};
    g_autofree char *named = with(row, "framework", "Pax");

    for (guint i = 0; i < G_N_ELEMENTS(places); i++) {
        g_autofree char *text =
            g_strdup_printf("source_locator,%s%s,%s", header, places[i][0], named);
        g_autoptr(GError) error = NULL;
        g_autoptr(Csv) csv = csv_parse(text, "t.csv", &error);
        g_autoptr(GArray) read = records(csv);
        g_autofree char *reason = NULL;
        double share;
        g_autoptr(Plan) plan =
            setup_plan(&g_array_index(read, Record, 0), "topologies", &share, &reason);

        ck_assert_msg(plan != NULL, "%s", reason);
        ck_assert_str_eq(plan->framework->name, places[i][1]);
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
        .sharding = {.prefetch = 1,
                     .live_units = 2,
                     .keep_root = TRUE,
                     .keep_last = TRUE,
                     .accumulate_sharded = TRUE},
        .framework = framework_from_name("torchtitan"),
    };
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) estimate = search_estimate(&request, &error);
    g_autoptr(Csv) csv = table(row);
    g_autoptr(GArray) read = records(csv);
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE);
    const Outcome *outcome = &g_array_index(backtest->outcomes, Outcome, 0);

    ck_assert_msg(estimate != NULL, "%s", error != NULL ? error->message : "");
    ck_assert_ptr_null(outcome->skipped);
    ck_assert_double_eq_tol(outcome->step_s, estimate->prediction.step_seconds, 1e-12);
    ck_assert_double_eq_tol(outcome->memory_gb, (double)estimate->prediction.memory_total / 1e9,
                            1e-12);
}
END_TEST

/* ---- scores ---- */

START_TEST(scores_are_those_worked_by_hand)
{
    const double values[] = {4, 1, 3, 2};
    /* ranks 0 1 2 3 and 1 0 2 3: 1 - 6 (1 + 1) / (4 (16 - 1)) */
    const double a[] = {1, 2, 3, 4}, b[] = {6, 5, 7, 8};
    /* chosen: the third, measured 3; the best is 2 */
    const double predicted[] = {5, 6, 4}, measured[] = {2, 9, 3};

    ck_assert_double_eq_tol(score_error(1.1, 1), 0.1, 1e-12);
    ck_assert_double_eq_tol(score_error(0.5, 2), 0.75, 1e-12);
    ck_assert_double_eq_tol(score_mean(values, 4), 2.5, 1e-12);
    ck_assert_double_eq_tol(score_median(values, 4), 2.5, 1e-12);
    ck_assert_double_eq_tol(score_median(values, 3), 3, 1e-12);
    ck_assert_double_eq_tol(score_spearman(a, b, 4), 0.8, 1e-12);
    ck_assert_double_eq_tol(score_regret(predicted, measured, 3), 0.5, 1e-12);
    ck_assert_double_eq_tol(score_mean(values, 0), 0, 1e-15);
    ck_assert_double_eq_tol(score_median(values, 0), 0, 1e-15);
}
END_TEST

START_TEST(equal_values_share_a_rank)
{
    const double a[] = {1, 2, 2, 3}, same[] = {5, 5, 5, 5};
    /* ranks 0 1.5 1.5 3 against 0 1 2 3: 4.5 / sqrt(4.5 * 5) */
    const double b[] = {1, 2, 3, 4};

    ck_assert_double_eq_tol(score_spearman(a, a, 4), 1, 1e-12);
    ck_assert_double_eq_tol(score_spearman(a, b, 4), 4.5 / 4.743416490252569, 1e-12);
    ck_assert_double_eq_tol(score_spearman(a, same, 4), 0, 1e-15);
}
END_TEST

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
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE);
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
        g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE);

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
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE);
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

/* ---- frameworks ---- */

START_TEST(a_framework_without_differences_changes_nothing)
{
    const Framework *own = framework_default();

    ck_assert_ptr_eq(framework_from_name("fsdp-run"), own);
    ck_assert_ptr_eq(framework_or_default(NULL), own);
    ck_assert_ptr_null(framework_from_name("fsdp"));
    for (guint kind = 0; kind < NUM_OPS; kind++) {
        const Op op = {.kind = (OpKind)kind};

        ck_assert_double_eq_tol(framework_passes(own, &op), 1, 1e-15);
    }
    ck_assert_double_eq_tol(framework_exposed(own, "tp", OP_ALL_REDUCE), 1, 1e-15);
    ck_assert_double_eq_tol(framework_blocks(own, "shard.reduce"), 0, 1e-15);
}
END_TEST

/* @text's plan, priced for @framework. */
static Prediction text_priced_for(const char *text, const Framework *framework)
{
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);

    plan->framework = framework;
    plan_price_quickly(plan);
    return plan->prediction;
}

static Prediction priced_for(const Framework *framework)
{
    return text_priced_for(row, framework);
}

/* Two layers; a second forward and two backward is far more than their kernels take. */
START_TEST(a_layer_takes_as_long_as_the_host_issues_it)
{
    Framework slow = *framework_default();
    const Prediction own = priced_for(&slow);

    slow.host_forward_s = 1;
    slow.host_backward_s = 2;
    const Prediction with_host = priced_for(&slow);
    ck_assert_double_ge(with_host.step_seconds, 2 * (1 + 2));
    ck_assert_double_le(with_host.step_seconds, 2 * (1 + 2) + own.step_seconds);
}
END_TEST

/* Two layers, whose kernels and the experts' take milliseconds: so the host's seconds are the
 * step's but for the rest of it. */
START_TEST(a_layer_with_experts_waits_for_the_host_once)
{
    Framework slow = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &slow);

    slow.host_sparse_forward_s = 1;
    slow.host_sparse_backward_s = 2;
    const Prediction with_host = text_priced_for(sparse_row, &slow);
    ck_assert_double_eq_tol(with_host.step_seconds, 2 * (1 + 2), own.step_seconds);
    const Prediction dense = priced_for(&slow);
    ck_assert_double_lt(dense.step_seconds, 1);
}
END_TEST

/* Attention's part of a block is shorter than these, the block with its experts longer. */
START_TEST(experts_count_against_what_the_host_takes)
{
    Framework slow = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &slow);

    slow.host_sparse_forward_s = 0.04 * own.step_seconds;
    slow.host_sparse_backward_s = 0.08 * own.step_seconds;
    const Prediction with_host = text_priced_for(sparse_row, &slow);
    ck_assert_double_eq_tol(with_host.step_seconds, own.step_seconds, 1e-12);
}
END_TEST

/* Eight rows of a token among eight ranks: 1 - (7/8)^8 = 66% of them go. */
START_TEST(rows_that_are_sent_once_take_less_time)
{
    Framework once = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &once);

    once.sends_once = TRUE;
    const Prediction less = text_priced_for(sparse_row, &once);
    ck_assert_double_lt(less.exposed_communication_seconds, own.exposed_communication_seconds);
    ck_assert_double_gt(less.exposed_communication_seconds,
                        0.6 * own.exposed_communication_seconds);
}
END_TEST

/* A router has logits too: they stay as they are. */
START_TEST(logits_that_are_held_are_the_heads)
{
    Framework holds = *framework_default();
    const Prediction own = text_priced_for(sparse_row, &holds);

    holds.logit_held_bytes = 6;
    const Prediction more = text_priced_for(sparse_row, &holds);
    ck_assert_uint_eq(more.memory_bytes[TERM_ACTIVATIONS], own.memory_bytes[TERM_ACTIVATIONS]);
}
END_TEST

START_TEST(traffic_that_is_exposed_makes_a_step_longer_and_compute_as_it_was)
{
    Framework exposed = *framework_default();
    const Prediction own = priced_for(&exposed);

    exposed.gather_exposed = exposed.reduce_exposed = 1;
    const Prediction longer = priced_for(&exposed);
    ck_assert_double_gt(longer.step_seconds, own.step_seconds);
    ck_assert_double_eq_tol(longer.time_seconds[OP_CLASS_GEMM], own.time_seconds[OP_CLASS_GEMM],
                            1e-12);
    ck_assert_double_eq_tol(longer.exposed_communication_seconds -
                                own.exposed_communication_seconds,
                            longer.step_seconds - own.step_seconds, 1e-12);
}
END_TEST

/* Nothing of the row's model is padded: all of its sizes are multiples of 8. */
START_TEST(state_of_a_framework_is_bytes_a_parameter)
{
    Framework keeps = *framework_default();
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(row, &share, &reason);
    const Prediction own = priced_for(&keeps);

    keeps.whole_bytes = 2;
    keeps.shard_bytes = 8;
    const Prediction more = priced_for(&keeps);
    const guint64 parameters = model_parameters(plan->model);
    ck_assert_uint_eq(more.memory_total - own.memory_total, 2 * parameters + 8 * parameters / 8);
    ck_assert_uint_eq(more.memory_bytes[TERM_GRADIENTS] - own.memory_bytes[TERM_GRADIENTS],
                      more.memory_total - own.memory_total);
}
END_TEST

/* 2048 tokens x 1024 x 4 bytes for each of two blocks. */
START_TEST(what_blocks_keep_beside_is_there_once_a_block)
{
    Framework keeps = *framework_default();
    const Prediction own = priced_for(&keeps);

    keeps.saved.hidden = 4;
    const Prediction more = priced_for(&keeps);
    ck_assert_uint_eq(more.memory_bytes[TERM_ACTIVATIONS] - own.memory_bytes[TERM_ACTIVATIONS],
                      2 * 2048 * 1024 * 4);
}
END_TEST

/* 8 heads x 2048 x 2048, of one block and micro-batch however many there are, and where gradients
 * for the weights wait. */
START_TEST(gradients_of_scores_are_there_for_one_block)
{
    g_autofree char *staged = with(row, "pp", "2");
    g_autofree char *text = with(staged, "dp", "4");
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);
    Framework keeps = *framework_default();
    guint64 total[2];

    plan->framework = &keeps;
    plan->schedule.kind = _i == 0 ? SCHEDULE_1F1B : SCHEDULE_ZB_H1;
    for (guint i = 0; i < G_N_ELEMENTS(total); i++) {
        keeps.saved.gradient = 100 * (i + 1); /* more than all else: memory peaks there */
        plan_price_quickly(plan);
        total[i] = plan->prediction.memory_total;
    }
    ck_assert_uint_eq(total[1] - total[0], 100ul * 8 * 2048 * 2048);
}
END_TEST

/* Two ranks, each with a half of 2048 tokens x 1024 between matrices: the other half too, 4 bytes,
 * in two blocks. */
START_TEST(what_is_kept_gathered_is_whole_on_each_rank)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");
    Framework keeps = *framework_default();

    keeps.saved.hidden = 4;
    const Prediction half = text_priced_for(text, &keeps);
    keeps.keeps_gathered = TRUE;
    const Prediction whole = text_priced_for(text, &keeps);
    ck_assert_uint_eq(whole.memory_bytes[TERM_ACTIVATIONS] - half.memory_bytes[TERM_ACTIVATIONS],
                      2 * 1024 * 1024 * 4);
}
END_TEST

/* Two buffers of 2048 tokens x 1024 in bf16; none where nothing is gathered. */
START_TEST(buffers_of_gathers_are_there_once_where_a_group_gathers)
{
    g_autofree char *split = with(row, "tp", "2");
    g_autofree char *text = with(split, "dp", "4");
    Framework keeps = *framework_default();
    const Prediction own = text_priced_for(text, &keeps), alone = priced_for(&keeps);

    keeps.gather_bytes = 4;
    ck_assert_uint_eq(text_priced_for(text, &keeps).memory_total - own.memory_total,
                      2048 * 1024 * 4);
    ck_assert_uint_eq(priced_for(&keeps).memory_total, alone.memory_total);
}
END_TEST

/* nanotron writes what its first rank holds, which has no logits: the last stage may not fit all
 * the same. */
START_TEST(memory_of_nanotron_is_that_of_the_first_stage)
{
    g_autofree char *named = with(row, "framework", "nanotron");
    g_autofree char *staged = with(named, "pp", "2");
    g_autofree char *split = with(staged, "dp", "4");
    g_autofree char *wide = with(split, "vocab", "1000000");
    g_autofree char *text = with(wide, "mem_kind", "stated");
    g_autofree char *reason = NULL;
    double share;
    g_autoptr(Plan) plan = plan_of(text, &share, &reason);
    g_autoptr(Csv) csv = table(text);
    g_autoptr(GArray) read = records(csv);
    g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE);
    const Outcome *outcome = &g_array_index(backtest->outcomes, Outcome, 0);

    ck_assert_msg(plan != NULL, "%s", reason);
    plan_price_quickly(plan);
    ck_assert_uint_lt(plan->prediction.memory_first, plan->prediction.memory_total);
    ck_assert_double_eq_tol(outcome->memory_gb, (double)plan->prediction.memory_first / 1e9, 1e-9);
    ck_assert_double_eq_tol(outcome->total_gb, (double)plan->prediction.memory_total / 1e9, 1e-9);
}
END_TEST

/* Half of the time and a third of the memory of a plan that recomputes nothing, the rest of one
 * that recomputes all; torchtitan's where the table says nothing. */
START_TEST(selective_of_torchtitan_is_between_none_and_all)
{
    static const char *const kinds[] = {"none", "full", "selective", ""};
    double step_s[G_N_ELEMENTS(kinds)], memory_gb[G_N_ELEMENTS(kinds)];

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autofree char *text = with(row, "recompute_kind", kinds[i]);
        g_autoptr(Csv) csv = table(text);
        g_autoptr(GArray) read = records(csv);
        g_autoptr(Backtest) backtest = backtest_run(read, "topologies", FALSE);
        const Outcome *outcome = &g_array_index(backtest->outcomes, Outcome, 0);

        step_s[i] = outcome->step_s;
        memory_gb[i] = outcome->memory_gb;
    }
    ck_assert_double_gt(step_s[1], step_s[0]);
    ck_assert_double_lt(memory_gb[1], memory_gb[0]);
    for (guint i = 2; i < G_N_ELEMENTS(kinds); i++) {
        ck_assert_double_eq_tol(step_s[i], (step_s[0] + step_s[1]) / 2, 1e-12);
        ck_assert_double_eq_tol(memory_gb[i], (memory_gb[0] + 2 * memory_gb[1]) / 3, 1e-9);
    }
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
    tcase_add_test(test, a_version_is_told_by_where_the_source_has_it);
    tcase_add_loop_test(test, a_framework_is_told_by_its_name_and_the_models, 0,
                        G_N_ELEMENTS(usages));
    tcase_add_loop_test(test, known_mixtures_of_experts_have_their_published_size, 0,
                        G_N_ELEMENTS(published));
    tcase_add_test(test, a_layer_with_experts_waits_for_the_host_once);
    tcase_add_test(test, experts_count_against_what_the_host_takes);
    tcase_add_test(test, rows_that_are_sent_once_take_less_time);
    tcase_add_test(test, logits_that_are_held_are_the_heads);
    tcase_add_test(test, what_is_kept_gathered_is_whole_on_each_rank);
    tcase_add_test(test, buffers_of_gathers_are_there_once_where_a_group_gathers);
    tcase_add_test(test, memory_of_nanotron_is_that_of_the_first_stage);
    tcase_add_test(test, a_llama_has_a_gate_where_parameters_do_not_tell);
    tcase_add_test(test, selective_of_torchtitan_is_between_none_and_all);
    tcase_add_test(test, tokens_per_second_give_the_step_where_it_is_not_printed);
    tcase_add_loop_test(test, a_fabric_in_words_is_what_one_gpu_has, 0, G_N_ELEMENTS(fabrics));
    tcase_add_loop_test(test, a_row_that_lacks_what_is_needed_is_skipped_with_the_reason, 0,
                        G_N_ELEMENTS(lacking));
    tcase_add_test(test, a_batch_that_does_not_divide_is_scaled);
    tcase_add_test(test, a_row_is_predicted_as_estimate_predicts_it);
    tcase_add_test(test, scores_are_those_worked_by_hand);
    tcase_add_test(test, equal_values_share_a_rank);
    tcase_add_test(test, labels_are_counted_as_found_missed_and_wrongly_said);
    tcase_add_test(test, only_groups_of_four_are_choices);
    tcase_add_test(test, the_json_has_the_keys_of_the_design);
    tcase_add_test(test, a_framework_without_differences_changes_nothing);
    tcase_add_test(test, a_layer_takes_as_long_as_the_host_issues_it);
    tcase_add_test(test, traffic_that_is_exposed_makes_a_step_longer_and_compute_as_it_was);
    tcase_add_test(test, state_of_a_framework_is_bytes_a_parameter);
    tcase_add_test(test, what_blocks_keep_beside_is_there_once_a_block);
    tcase_add_loop_test(test, gradients_of_scores_are_there_for_one_block, 0, 2);
    suite_add_tcase(suite, test);
    return suite;
}

int main(void)
{
    return suite_run(backtest_suite());
}
