/* What a report says in words of figures that users of other trainers took for noise. */
#include "reports/report/report.h"

#include "tests/reports/fabricate.h"
#include "tests/suite.h"

#include <string.h>

/* A run of @ranks, dp_shard = ranks, of a model of @parameters. */
typedef struct {
    const char *model, *strategy;
    guint64 parameters;
    guint ranks, nodes;
} Job;

/* gpt-j-6b, ZeRO-3 (DeepSpeed issue 4093). */
static const Job gptj = {"gpt-j-6b", "full_shard", 6050882784, 2, 1};

static gint64 add_job(Store *store, const Job *job)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *plan = g_strdup_printf(
        "{\"model\": {\"name\": \"%s\", \"parameters\": %" G_GUINT64_FORMAT "}, \"topology\": "
        "{\"name\": \"box\"}, \"target\": {\"ranks_per_node\": %u}, \"layout\": {\"dp_shard\": %u},"
        " \"sharding\": {\"strategy\": \"%s\"}, \"workload\": {\"global_batch\": 8, \"seq_len\": "
        "32768, \"precision\": \"bf16\"}, \"prediction\": {\"rank\": 0}}",
        job->model, job->parameters, job->ranks / job->nodes, job->ranks, job->strategy);
    const StoreRun row = {.plan_json = plan, .ranks = job->ranks};
    const gint64 run = store_add_run(store, &row, &error);

    must(run > 0, error);
    return run;
}

static void add_memory(Store *store, gint64 run, const char *name, double predicted,
                       double measured)
{
    g_autofree char *term = g_strconcat("memory_bytes.", name, NULL);

    fabricate_term(store, run, 0, term, (double[]){predicted, measured}, "bytes");
}

static void add_seconds(Store *store, gint64 run, const char *term, double predicted,
                        double measured)
{
    fabricate_term(store, run, 0, term, (double[]){predicted, measured}, "s");
}

static Store *open_store(const char *path)
{
    g_autoptr(GError) error = NULL;
    Store *store = store_open(path, FALSE, &error);

    must(store != NULL, error);
    return store;
}

/* The remarks on run @id, joined; takes the store. */
static char *remarks_on(Store *store, const char *path, gint64 id)
{
    g_autoptr(GError) error = NULL;

    store_free(store);
    g_autoptr(Report) report = report_load(path, &error);
    must(report != NULL, error);
    const ReportRun *run = report_find(report, id, &error);
    g_autoptr(GPtrArray) remarks = report_remarks(report, run);
    g_autofree char *text = report_text(report, run);
    g_autofree char *json = report_json(report, run);

    for (guint i = 0; i < remarks->len; i++)
        ck_assert_ptr_nonnull(strstr(text, g_ptr_array_index(remarks, i)));
    ck_assert_ptr_nonnull(strstr(json, "\"remarks\""));
    scratch_remove(path);
    g_ptr_array_add(remarks, NULL);
    return g_strjoinv("\n", (char **)remarks->pdata);
}

static void check_says(const char *remarks, const char *what)
{
    ck_assert_msg(strstr(remarks, what) != NULL, "\"%s\"\nlacks: %s", remarks, what);
}

START_TEST(parameters_as_large_as_the_model_on_any_number_of_ranks_are_not_sharded)
{
    const double whole = 2.0 * (double)gptj.parameters;
    const Job four = {gptj.model, gptj.strategy, gptj.parameters, 4, 1};
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 first = add_job(store, &gptj), second = add_job(store, &four);

    add_memory(store, first, "parameters", whole / 2, whole);
    add_memory(store, second, "parameters", whole / 4, whole * 1.01);
    g_autofree char *remarks = remarks_on(store, path, first);
    check_says(remarks, "parameters seem not to be sharded: memory_bytes.parameters measured as "
                        "11.27 GiB means all of them on each rank (11.27 GiB, 2 bytes for each of "
                        "6050882784), where 2 ranks should have 5.635 GiB each");
    check_says(remarks, "so does run 2 on 4 ranks: it does not depend on their number");
}
END_TEST

START_TEST(where_only_totals_are_known_what_is_missing_shows_it)
{
    const double whole = 2.0 * (double)gptj.parameters;
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 run = add_job(store, &gptj);

    add_memory(store, run, "parameters", whole / 2, NAN);
    add_memory(store, run, "total", 7.5e9, 7.5e9 + whole / 2 * 1.02);
    g_autofree char *remarks = remarks_on(store, path, run);
    check_says(remarks, "not to be sharded: memory_bytes.total");
    ck_assert_ptr_null(strstr(remarks, "unexplained"));
}
END_TEST

/* What was asked for may well hold all of it. */
static const struct {
    const char *strategy;
    double predicted, measured; /* parts of the whole */
} innocent[] = {
    {"full_shard", 0.5, 0.5}, {"full_shard", 0.5, 0.8},  {"full_shard", 0.5, NAN},
    {"no_shard", 1, 1},       {"shard_optimizer", 1, 1},
};

START_TEST(parameters_where_they_should_be_are_no_remark)
{
    const double whole = 2.0 * (double)gptj.parameters;
    const Job job = {gptj.model, innocent[_i].strategy, gptj.parameters, 2, 1};
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 run = add_job(store, &job);

    add_memory(store, run, "parameters", innocent[_i].predicted * whole,
               innocent[_i].measured * whole);
    add_memory(store, run, "total", 2 * whole, 2.05 * whole);
    g_autofree char *remarks = remarks_on(store, path, run);
    ck_assert_str_eq(remarks, "");
}
END_TEST

/* ROCm/Megatron-LM 162: terms explain 38.8 GiB of 82.0 measured. */
START_TEST(memory_in_no_term_is_said_to_be_unexplained)
{
    const double gib = 1024.0 * 1024 * 1024;
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 run = add_job(store, &gptj);

    add_memory(store, run, "parameters", 8 * gib, 8 * gib);
    add_memory(store, run, "activations", 27.8 * gib, 27.8 * gib);
    add_memory(store, run, "framework", 3 * gib, 46.2 * gib);
    add_memory(store, run, "total", 38.8 * gib, 82 * gib);
    g_autofree char *remarks = remarks_on(store, path, run);
    check_says(remarks, "43.20 GiB of memory_bytes.total are unexplained");
}
END_TEST

/* What a term itself has too much is shown there, and explains the total. */
START_TEST(memory_that_a_term_has_is_explained)
{
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 run = add_job(store, &gptj);

    add_memory(store, run, "activations", 10e9, 20e9);
    add_memory(store, run, "total", 20e9, 30e9);
    g_autofree char *remarks = remarks_on(store, path, run);
    ck_assert_str_eq(remarks, "");
}
END_TEST

/* fms-fsdp 78: 1,000 tokens/s a GPU on 8 nodes of 8 H100, where 7,500 were expected. */
START_TEST(a_slow_step_names_what_it_waits_for)
{
    const Job job = {"llama-2-7b", "hybrid_shard", 6738415616, 64, 8};
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 run = add_job(store, &job);

    add_seconds(store, run, "step_seconds", 1, 7.5);
    add_seconds(store, run, "time_seconds.gemm", 0.8, 0.9);
    add_seconds(store, run, "time_seconds.communication", 0.2, 6.6);
    g_autofree char *remarks = remarks_on(store, path, run);
    check_says(remarks, "a step takes 7.5 times what was predicted (0.13 of the speed); 98% of "
                        "what it takes longer is in time_seconds.communication");
    check_says(remarks, "links between nodes");
}
END_TEST

START_TEST(a_slow_step_of_one_node_blames_no_links_between_nodes)
{
    static const char *const classes[] = {"time_seconds.gemm", "time_seconds.communication"};

    for (guint i = 0; i < G_N_ELEMENTS(classes); i++) {
        g_autofree char *path = scratch_path("runs.db");
        Store *store = open_store(path);
        const gint64 run = add_job(store, &gptj);

        add_seconds(store, run, "step_seconds", 1, 2);
        add_seconds(store, run, classes[i], 0.5, 1.5);
        g_autofree char *remarks = remarks_on(store, path, run);
        check_says(remarks, classes[i]);
        ck_assert_ptr_null(strstr(remarks, "between nodes"));
    }
}
END_TEST

/* Compute is faster than predicted, and the time is lost in waiting. */
START_TEST(a_step_that_waits_says_so_though_it_is_no_slower)
{
    const Job job = {"llama-3.1-70b", "full_shard", 70553706496, 32, 4};
    const double waits_s[] = {0.5, 0.1};

    for (guint i = 0; i < G_N_ELEMENTS(waits_s); i++) {
        g_autofree char *path = scratch_path("runs.db");
        Store *store = open_store(path);
        const gint64 run = add_job(store, &job);

        add_seconds(store, run, "step_seconds", 1, 1);
        add_seconds(store, run, "time_seconds.gemm", 0.9, 1 - waits_s[i]);
        add_seconds(store, run, "time_seconds.communication", 0.05, waits_s[i]);
        g_autofree char *remarks = remarks_on(store, path, run);
        if (i == 0)
            check_says(remarks, "a step waits 500.0 ms of its 1.000 s, where 50.00 ms were "
                                "predicted, for other ranks, first to be looked at are the links "
                                "between nodes");
        else
            ck_assert_str_eq(remarks, "");
    }
}
END_TEST

/* ms-swift 4360: Qwen3-8B took thousands of seconds where Qwen3-14B took 42. */
START_TEST(a_larger_model_that_is_faster_is_pointed_out_in_the_smaller_ones_run)
{
    const Job small = {"qwen3-8b", "full_shard", 8190735360, 8, 1},
              large = {"qwen3-14b", "full_shard", 14768307200, 8, 1};
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 first = add_job(store, &small), second = add_job(store, &large);

    add_seconds(store, first, "step_seconds", 25, 2000);
    add_seconds(store, second, "step_seconds", 40, 42);
    g_autofree char *remarks = remarks_on(store, path, first);
    check_says(remarks, "run 2 of qwen3-14b, 1.8 times the parameters, takes 0.021 of this run's "
                        "step on as many ranks");
}
END_TEST

START_TEST(more_than_all_of_the_peak_asks_for_calibration)
{
    g_autofree char *path = scratch_path("runs.db");
    Store *store = open_store(path);
    const gint64 run = add_job(store, &gptj);

    fabricate_term(store, run, 0, "mfu", (double[]){0.43, 1.42}, "");
    g_autofree char *remarks = remarks_on(store, path, run);
    check_says(remarks, "mfu 142% is more than there can be");
    check_says(remarks, "fsdp-run calibrate");
}
END_TEST

/* Megatron-Bridge 3164: the last rank's memory was read as the job's peak. */
START_TEST(the_most_the_least_the_first_and_the_last_ranks_memory_are_told_apart)
{
    static const double gib[] = {30, 69.1, 20, 50};
    g_autofree char *path = scratch_path("runs.db");
    g_autoptr(GError) error = NULL;
    Store *store = open_store(path);
    const gint64 id = add_job(store, &gptj);

    for (guint rank = 0; rank < G_N_ELEMENTS(gib); rank++)
        fabricate_term(store, id, rank, "memory_bytes.total",
                       (double[]){60e9, gib[rank] * 1024 * 1024 * 1024}, "bytes");
    store_free(store);
    g_autoptr(Report) report = report_load(path, &error);
    must(report != NULL, error);
    g_autofree char *text = report_text(report, report_find(report, id, &error));
    check_says(text, "Peak memory measured: most 69.10 GiB (rank 1), least 20.00 GiB (rank 2), "
                     "first 30.00 GiB (rank 0), last 50.00 GiB (rank 3).");
    scratch_remove(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("remarks");
    TCase *tcase = tcase_create("remarks");

    tcase_add_test(tcase, parameters_as_large_as_the_model_on_any_number_of_ranks_are_not_sharded);
    tcase_add_test(tcase, where_only_totals_are_known_what_is_missing_shows_it);
    tcase_add_loop_test(tcase, parameters_where_they_should_be_are_no_remark, 0,
                        G_N_ELEMENTS(innocent));
    tcase_add_test(tcase, memory_in_no_term_is_said_to_be_unexplained);
    tcase_add_test(tcase, memory_that_a_term_has_is_explained);
    tcase_add_test(tcase, a_slow_step_names_what_it_waits_for);
    tcase_add_test(tcase, a_slow_step_of_one_node_blames_no_links_between_nodes);
    tcase_add_test(tcase, a_step_that_waits_says_so_though_it_is_no_slower);
    tcase_add_test(tcase, a_larger_model_that_is_faster_is_pointed_out_in_the_smaller_ones_run);
    tcase_add_test(tcase, more_than_all_of_the_peak_asks_for_calibration);
    tcase_add_test(tcase, the_most_the_least_the_first_and_the_last_ranks_memory_are_told_apart);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
