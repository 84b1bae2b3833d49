/* What search prints beside the ranking. */
#include "sim/base/data_dirs.h"
#include "sim/search/cheapest.h"
#include "sim/search/price.h"
#include "sim/table.h"
#include "tests/sim/spec_case.h"

#include <string.h>

static GString *captured;

static void capture(const char *text)
{
    g_string_append(captured, text);
}

static char *printed(void (*print)(const SearchAnswer *), const SearchAnswer *answer)
{
    captured = g_string_new(NULL);
    const GPrintFunc before = g_set_print_handler(capture);
    print(answer);
    g_set_print_handler(before);
    return g_string_free(g_steal_pointer(&captured), FALSE);
}

static SearchRequest request_of(const Model *model, const Topology *topology)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = 4,
        .global_batch = 16,
        .seq_len = 64,
        .recipe = &recipe_zero,
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .fixed = {1, 1, 4, 1, 1},
        .fixed_ep = 1,
        .sharding = {.prefetch = 1, .live_units = 2, .accumulate_sharded = TRUE},
        .top = 10,
    };
}

/* Makes a plan need all there is, so that it is at risk. */
static void fill(const SearchResult *result, guint i)
{
    Prediction *p = &((Plan *)g_ptr_array_index(result->plans, i))->prediction;

    p->memory_total = p->memory_limit;
}

/* All strategies take as long where communication is hidden. */
START_TEST(a_plan_as_fast_as_one_at_risk_is_named_where_it_is_not)
{
    g_autoptr(Model) model = case_shipped_model("llama-3.2-1b");
    g_autoptr(Topology) topology = case_gpu_topology(1, 80000, 1000000);
    const SearchRequest request = request_of(model, topology);
    g_autoptr(SearchResult) result = search(&request);
    const SearchAnswer answer = {.request = &request, .result = result};
    g_autofree char *none = printed(table_print_search, &answer);
    fill(result, 0);
    g_autofree char *second = printed(table_print_search, &answer);
    fill(result, 1);
    g_autofree char *third = printed(table_print_search, &answer);
    ((Plan *)g_ptr_array_index(result->plans, 0))->prediction.tokens_per_second *= 2;
    g_autofree char *alone = printed(table_print_search, &answer);

    ck_assert_ptr_null(strstr(none, "not at risk"));
    ck_assert_msg(strstr(second, "\n2 is as fast but for noise, and not at risk (estimate --layout "
                                 "dp_shard=4 --strategy ") != NULL,
                  "%s", second);
    ck_assert_msg(strstr(third, "\n3 is as fast but for noise, and not at risk") != NULL, "%s",
                  third);
    ck_assert_ptr_null(strstr(alone, "not at risk"));
}
END_TEST

START_TEST(a_batch_that_is_faster_is_printed_with_the_option_that_takes_it)
{
    g_autoptr(Model) model = case_shipped_model("tiny-1m");
    g_autoptr(Topology) topology = case_gpu_topology(3, 80000, 1000000);
    SearchRequest request = request_of(model, topology);

    request.gpus = 3;
    request.global_batch = 13;
    memset(request.fixed, 0, sizeof request.fixed);
    g_autoptr(SearchResult) result = search(&request);
    g_autoptr(Plan) other = search_other_batch(&request, result);
    const SearchAnswer answer = {.request = &request, .result = result, .batch = other};
    g_autofree char *text = printed(table_print_search, &answer);

    ck_assert_ptr_nonnull(other);
    g_autofree char *said = g_strdup_printf(
        "(search --global-batch %u); 13 is no multiple of 3 GPUs", other->workload.global_batch);
    ck_assert_msg(strstr(text, "another batch is faster: of ") != NULL, "%s", text);
    ck_assert_msg(strstr(text, said) != NULL, "%s", text);
}
END_TEST

/* Whether the host would do, and who shares what, is said of machines where it matters. */
static const struct {
    const char *topology, *says, *says_not;
} hosts[] = {
    {"pcie-8x-rtx-4090",
     "topology pcie-8x-rtx-4090 does not say what that has: cpu_memory and host_link under [node]",
     "Ranks of"},
    {"dgx-h100", "LoRA keeps less on the GPU", "does not say what that has"},
    {"localhost", "Ranks of localhost share this machine's memory", "LoRA"},
};

START_TEST(what_would_help_follows_from_the_machine)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autoptr(Model) model = case_shipped_model("gpt-3-175b");
    g_autoptr(Topology) topology = topology_load(hosts[_i].topology, topologies, NULL);
    SearchRequest request = request_of(model, topology);

    if (topology->gpu.kind == DEVICE_CPU)
        request.recipe = &recipe_fp32;
    g_autoptr(SearchResult) result = search(&request);
    const SearchAnswer answer = {.request = &request, .result = result};
    g_autofree char *text = printed(table_print_nothing_fits, &answer);

    ck_assert_uint_eq(result->plans->len, 0);
    ck_assert_msg(strstr(text, hosts[_i].says) != NULL, "%s", text);
    ck_assert_msg(strstr(text, hosts[_i].says_not) == NULL, "%s", text);
}
END_TEST

/* Of each number that is searched, the first of all its plans that is not at risk, or any: where it
 * makes more tokens than all before it. */
static void assert_buys(SearchRequest request, const GArray *searched, const GPtrArray *listed)
{
    double most = 0, most_roomy = 0;
    guint num = 0;

    request.sort = SORT_TIME;
    for (guint i = 0; i < searched->len; i++) {
        request.gpus = g_array_index(searched, guint, i);
        g_autoptr(SearchResult) result = search(&request);
        gboolean has_roomy = FALSE;

        for (guint k = 0; k < result->plans->len && !has_roomy; k++) {
            const Plan *plan = g_ptr_array_index(result->plans, k);
            const double tokens = plan->prediction.tokens_per_second;
            const gboolean is_roomy = has_roomy = !plan_is_tight(plan);

            if ((!is_roomy && k > 0) || tokens <= (is_roomy ? most_roomy : most))
                continue;
            ck_assert_uint_lt(num, listed->len);
            const Plan *there = g_ptr_array_index(listed, num++);
            ck_assert_uint_eq(there->gpus, request.gpus);
            ck_assert_double_eq_tol(there->prediction.tokens_per_second, tokens, 1e-9 * tokens);
            most = MAX(most, tokens);
            most_roomy = is_roomy ? tokens : most_roomy;
        }
    }
    ck_assert_uint_eq(num, listed->len);
}

/* Over slow links more GPUs soon make no more; of little memory the fastest may be at risk. */
START_TEST(each_number_of_gpus_is_listed_that_makes_more_tokens_than_fewer)
{
    const guint megabytes_per_s[] = {10, 100000}, megabytes[] = {80000, 22000};
    g_autoptr(Model) model = case_shipped_model("llama-3.2-1b");
    g_autoptr(Topology) topology = case_gpu_topology(2, megabytes[_i / 2], megabytes_per_s[_i % 2]);
    SearchRequest request = request_of(model, topology);
    g_autoptr(GArray) searched = g_array_new(FALSE, FALSE, sizeof(guint));

    memset(request.fixed, 0, sizeof request.fixed);
    request.fixed[AXIS_PP] = request.fixed[AXIS_CP] = 1;
    request.global_batch = 48;
    request.sort = SORT_PARETO;
    request.gpus = search_smallest_gpus(&request, 1);
    g_autoptr(SearchResult) result = search_numbers(&request, searched);
    ck_assert_uint_eq(g_array_index(searched, guint, 0), request.gpus);
    for (guint i = 1; i < searched->len; i++) {
        const guint gpus = g_array_index(searched, guint, i);

        ck_assert_uint_gt(gpus, g_array_index(searched, guint, i - 1));
        ck_assert_uint_eq(gpus <= 4 ? 0 : gpus % 4, 0);
    }
    ck_assert_uint_ge(g_array_index(searched, guint, searched->len - 1), 8);
    assert_buys(request, searched, result->plans);
    if (_i == 0)
        ck_assert_uint_lt(result->plans->len, searched->len);
    const SearchAnswer answer = {.request = &request, .result = result, .searched = searched};
    g_autofree char *table = printed(table_print_search, &answer);
    ck_assert_ptr_nonnull(strstr(table, "\n GPUs   tokens/s layout"));
    ck_assert_ptr_nonnull(strstr(table, "\nsearched: "));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("table");
    TCase *tcase = tcase_create("table");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_plan_as_fast_as_one_at_risk_is_named_where_it_is_not);
    tcase_add_loop_test(tcase, each_number_of_gpus_is_listed_that_makes_more_tokens_than_fewer, 0,
                        4);
    tcase_add_test(tcase, a_batch_that_is_faster_is_printed_with_the_option_that_takes_it);
    tcase_add_loop_test(tcase, what_would_help_follows_from_the_machine, 0, G_N_ELEMENTS(hosts));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
