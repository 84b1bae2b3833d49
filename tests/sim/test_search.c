#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "tests/sim/everything.h"
#include "tests/sim/least_recompute.h"

#include <math.h>

/* Of a GPU 3500 MB are the framework's and 33.6 MB cuBLAS's; a rank of this model then needs 1.1 MB
 * alone, 0.6 MB where 2 shard it, 0.3 MB where 8 do. */
static const CaseShape small = {
    .vocab = 300, .hidden = 48, .ffn = 128, .layers = 1, .heads = 4, .kv_heads = 4};

/* ---- against every choice ---- */

static gboolean same_choice(const Plan *a, const Plan *b)
{
    return memcmp(&a->layout, &b->layout, sizeof a->layout) == 0 &&
           a->sharding.strategy == b->sharding.strategy &&
           a->schedule.micro_batch == b->schedule.micro_batch &&
           a->schedule.recompute == b->schedule.recompute &&
           schedule_has_rest(&a->schedule) == schedule_has_rest(&b->schedule);
}

/* The list is the best of all, in order; of equal ones any. */
static void compare(const SearchRequest *request)
{
    g_autoptr(GPtrArray) all = price_everything(request);
    g_autoptr(GPtrArray) fitting = g_ptr_array_new();
    g_autoptr(SearchResult) result = search(request);
    const guint least = request->sort == SORT_MEMORY ? 0 : add_least_recomputes(all);

    for (guint i = 0; i < all->len; i++)
        if (((Plan *)g_ptr_array_index(all, i))->reasons->len == 0)
            g_ptr_array_add(fitting, g_ptr_array_index(all, i));
    g_ptr_array_sort_with_data(fitting, by_key, (gpointer)request);
    ck_assert_uint_ge(result->candidates, all->len - least); /* and what may need less */
    ck_assert_uint_eq(result->candidates, result->feasible + result->rejected[VERDICT_MEMORY] +
                                              result->rejected[VERDICT_SLOWER]);
    ck_assert_uint_eq(result->plans->len, MIN(fitting->len, request->top));
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(result->plans, i);
        const double key = key_of(request, plan);
        gboolean found = FALSE;

        ck_assert_double_eq_tol(key, key_of(request, g_ptr_array_index(fitting, i)), 1e-10 * key);
        for (guint j = 0; j < fitting->len; j++) {
            const Plan *other = g_ptr_array_index(fitting, j);

            found |= same_choice(plan, other) && key_of(request, other) == key &&
                     strcmp(plan->hash, other->hash) == 0;
        }
        ck_assert_msg(found, "plan %u is none of those that fit", i);
    }
}

static const guint gpu_counts[] = {1, 2, 3, 4, 5, 6, 7, 12};

START_TEST(search_finds_what_pricing_everything_finds)
{
    const guint gpus = gpu_counts[_i];
    g_autoptr(Model) model = case_model(&small);

    for (guint i = 0; i < 6; i++) {
        /* On CPUs and on GPUs of 3535 MB all fit, on those of 3534 some. */
        g_autoptr(Topology) topology = i % 3 == 0 ? case_cpu_topology(2 * gpus, 10)
                                                  : case_gpu_topology(4, 3533 + i % 3, 20000);
        SearchRequest request = request_of(model, topology, gpus);

        request.global_batch = i % 2 == 0 ? 4 * gpus : 0;
        request.sort = i < 3 ? SORT_TIME : SORT_MEMORY;
        request.top = 1 + 2 * i;
        compare(&request);
    }
}
END_TEST

START_TEST(the_same_request_gives_the_same_plans)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 8);

    request.global_batch = 32;
    g_autoptr(SearchResult) first = search(&request), second = search(&request);
    ck_assert_uint_eq(first->plans->len, second->plans->len);
    for (guint i = 0; i < first->plans->len; i++) {
        g_autofree char *a = plan_print(g_ptr_array_index(first->plans, i));
        g_autofree char *b = plan_print(g_ptr_array_index(second->plans, i));

        ck_assert_msg(strcmp(a, b) == 0, "plan %u differs", i);
    }
}
END_TEST

/* Leaves of @plan what a row of a table shows. */
static void strip(Plan *plan)
{
    Prediction *p = &plan->prediction;

    g_clear_pointer(&plan->hash, g_free);
    p->bubble_fraction = 0;
    memset(p->memory_bytes, 0, sizeof p->memory_bytes);
    memset(p->moment, 0, sizeof p->moment);
}

/* On GPUs that all fit on, and of a memory of which some are refused. */
START_TEST(a_table_shows_what_whole_plans_say)
{
    g_autoptr(Model) model = case_model(&small);
    g_autoptr(Topology) topology = case_gpu_topology(4, _i < 2 ? 80000 : 3534, 20);
    SearchRequest request = request_of(model, topology, 4);

    request.global_batch = _i % 2 == 0 ? 16 : 64; /* of 64 not every micro-batch is listed */
    request.searches_units = TRUE;
    g_autoptr(SearchResult) whole = search(&request);
    request.briefly = TRUE;
    g_autoptr(SearchResult) rows = search(&request);
    ck_assert_uint_gt(rows->plans->len, 0);
    ck_assert_uint_eq(whole->plans->len, rows->plans->len);
    ck_assert_uint_eq(whole->feasible, rows->feasible);
    ck_assert_mem_eq(whole->rejected, rows->rejected, sizeof whole->rejected);
    ck_assert_str_eq(whole->example[VERDICT_SLOWER], rows->example[VERDICT_SLOWER]);
    if (whole->example[VERDICT_MEMORY] != NULL)
        ck_assert_str_eq(whole->example[VERDICT_MEMORY], rows->example[VERDICT_MEMORY]);
    for (guint i = 0; i < whole->plans->len; i++) {
        Plan *plan = g_ptr_array_index(whole->plans, i), *row = g_ptr_array_index(rows->plans, i);

        ck_assert(plan->hash != NULL && row->hash == NULL);
        if (plan->prediction.bubble_fraction > 0)
            ck_assert_double_eq(plan_bubble_fraction(row), plan->prediction.bubble_fraction);
        strip(plan);
        strip(row);
        g_autofree char *a = plan_print(plan), *b = plan_print(row);
        ck_assert_str_eq(a, b);
    }
}
END_TEST

/* Steps that are equal but for rounding are told apart by memory. */
static void assert_sorted(const SearchRequest *request, const Plan *before, const Plan *after)
{
    const double step_s = key_of(request, before), next_s = key_of(request, after);

    ck_assert_double_ge(next_s, step_s * (1 - 1e-9));
    if (next_s < step_s * (1 + 1e-11))
        ck_assert_uint_ge(after->prediction.memory_total, before->prediction.memory_total);
}

START_TEST(the_list_is_as_long_as_asked_for_and_sorted)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);

    for (guint top = 1; top <= 30; top += 7) {
        SearchRequest request = request_of(model, topology, 4);

        request.global_batch = 16;
        request.top = top;
        g_autoptr(SearchResult) result = search(&request);
        ck_assert_uint_le(result->plans->len, top);
        for (guint i = 1; i < result->plans->len; i++)
            assert_sorted(&request, g_ptr_array_index(result->plans, i - 1),
                          g_ptr_array_index(result->plans, i));
    }
}
END_TEST

/* One sequence leaves no data axis: without it each rank would hold all state.  And where links are
 * slow, ranks of two nodes may split a matrix all the same: it is for the bounds to say no. */
START_TEST(ranks_that_share_a_sequence_share_parameters_too)
{
    static const CaseShape eight_heads = {
        .vocab = 257, .hidden = 64, .ffn = 40, .layers = 3, .heads = 8, .kv_heads = 2};
    g_autoptr(Model) model = case_model(&eight_heads);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 8);
    guint sharded = 0, wide = 0;

    request.seq_len = 4096;
    request.global_batch = 1;
    request.fixed[AXIS_PP] = 1;
    request.top = 1000;
    request.sort = SORT_MEMORY;
    g_autoptr(SearchResult) result = search(&request);
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(result->plans, i);

        sharded += plan->sharding.strategy != STRATEGY_NO_SHARD;
        wide += plan->layout.size[AXIS_TP] > topology->gpus_per_node;
    }
    ck_assert_uint_gt(sharded, 0);
    ck_assert_uint_gt(wide, 0);
}
END_TEST

/* Nothing of these may be whole, on one rank and on one rank of each stage neither. */
START_TEST(what_refuses_no_shard_is_sharded_over_one_rank)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    const guint gpus = 1 + (guint)_i / 3;
    SearchRequest request = request_of(model, topology, gpus);

    request.fixed[AXIS_PP] = gpus;
    if (_i % 3 == 0)
        request.recipe = &recipe_fsdp2;
    else if (_i % 3 == 1)
        request.sharding.offload.parameters = TIER_HOST;
    else
        request.sharding.gather_fp8 = TRUE;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_gt(result->plans->len, 0);
    const Plan *plan = g_ptr_array_index(result->plans, 0);
    ck_assert_uint_eq(layout_shard_ranks(&plan->layout), 1);
    ck_assert_int_ge(plan->sharding.strategy, STRATEGY_SHARD_GRAD_OP);
}
END_TEST

START_TEST(what_is_fixed_is_not_searched)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 12);

    request.fixed[AXIS_DP_SHARD] = 4;
    request.fixed[AXIS_PP] = 1;
    request.strategy = STRATEGY_SHARD_GRAD_OP;
    request.recompute = RECOMPUTE_FULL;
    request.micro_batch = 2;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_eq(result->candidates, 1);
    ck_assert_uint_eq(result->plans->len, 1);
    const Plan *plan = g_ptr_array_index(result->plans, 0);
    ck_assert_uint_eq(plan->layout.size[AXIS_DP_REPLICATE], 3);
    ck_assert_int_eq(plan->sharding.strategy, STRATEGY_SHARD_GRAD_OP);
    ck_assert_int_eq(plan->schedule.recompute, RECOMPUTE_FULL);
    ck_assert_uint_eq(plan->schedule.micro_batch, 2);
    ck_assert_uint_eq(plan->workload.global_batch, 24);
}
END_TEST

START_TEST(a_batch_that_no_layout_divides_is_refused_with_an_example)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 4);

    request.global_batch = 10;
    request.fixed[AXIS_TP] = request.fixed[AXIS_CP] = request.fixed[AXIS_PP] = 1;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_eq(result->candidates, 0);
    ck_assert_uint_gt(result->rejected[VERDICT_BATCH], 0);
    ck_assert(strstr(result->example[VERDICT_BATCH], "global batch 10") != NULL);
}
END_TEST

START_TEST(defaults_are_those_of_the_design)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 0);

    request.seq_len = 0;
    ck_assert_uint_eq(search_seq_len(&request), 4096); /* the model's maximum */
    ck_assert_uint_eq(search_gpus(&request), 16);
    model->max_seq = 100000;
    ck_assert_uint_eq(search_seq_len(&request), 8192);
}
END_TEST

/* ---- one layout ---- */

START_TEST(an_estimate_is_the_best_of_its_mesh)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 4);
    g_autoptr(GError) error = NULL;

    request.fixed[AXIS_DP_SHARD] = 4;
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    request.top = 1;
    request.fixed[AXIS_DP_REPLICATE] = 1;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_uint_eq(plan->gpus, 4);
    ck_assert_str_eq(plan->hash, ((Plan *)g_ptr_array_index(result->plans, 0))->hash);
}
END_TEST

START_TEST(an_illegal_layout_is_refused_with_the_reason)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 0);
    g_autoptr(GError) error = NULL;

    request.fixed[AXIS_PP] = 4; /* of 3 layers */
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    ck_assert_ptr_null(plan);
    ck_assert(g_error_matches(error, ERROR_DOMAIN, ERROR_INFEASIBLE));
    ck_assert_msg(strstr(error->message, "pp = 4") != NULL, "%s", error->message);
}
END_TEST

START_TEST(a_layout_that_does_not_fit_is_priced_all_the_same)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 3500, 20000);
    SearchRequest request = request_of(model, topology, 0);
    g_autoptr(GError) error = NULL;

    request.fixed[AXIS_DP_SHARD] = 4;
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_uint_eq(plan->reasons->len, 1);
    ck_assert(g_str_has_prefix(g_ptr_array_index(plan->reasons, 0), "memory: a rank needs"));
    ck_assert_double_gt(plan->prediction.step_seconds, 0);
    ck_assert_uint_eq(plan->prediction.memory_limit, G_GUINT64_CONSTANT(3500000000));
}
END_TEST

/* A byte too little, whether its floor shows that or only its program does. */
START_TEST(a_layout_that_almost_fits_is_priced_all_the_same)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 2);

    request.fixed[AXIS_DP_REPLICATE] = 2;
    request.global_batch = 16;
    request.micro_batch = 4;
    request.strategy = STRATEGY_FULL_SHARD;
    request.recompute = RECOMPUTE_NONE;
    if (_i == 1)
        request.sharding.offload = (Offload){TIER_HOST, TIER_HOST};
    g_autoptr(Plan) fits = search_estimate(&request, NULL);
    ck_assert_uint_eq(fits->reasons->len, 0);
    topology->gpu.memory_bytes -= fits->prediction.memory_limit - fits->prediction.memory_total + 1;
    g_autoptr(Plan) plan = search_estimate(&request, NULL);
    ck_assert_uint_eq(plan->reasons->len, 1);
    ck_assert_str_eq(plan->hash, fits->hash);
    ck_assert_uint_eq(plan->prediction.memory_total, fits->prediction.memory_total);
}
END_TEST

/* ---- predictions ---- */

START_TEST(terms_of_a_prediction_add_up)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 20000);
    SearchRequest request = request_of(model, topology, 6);

    request.global_batch = 12;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_gt(result->plans->len, 5);
    for (guint i = 0; i < result->plans->len; i++) {
        const Prediction *p = &((Plan *)g_ptr_array_index(result->plans, i))->prediction;
        guint64 memory = 0;
        double time = 0;

        for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
            memory += p->memory_bytes[t];
        for (guint t = 0; t < NUM_OP_CLASSES; t++)
            time += p->time_seconds[t];
        ck_assert_uint_eq(memory, p->memory_total);
        ck_assert_double_eq_tol(time, p->step_seconds, 1e-12);
        ck_assert_double_eq_tol(p->tokens_per_second, 12 * 16 / p->step_seconds,
                                1e-9 * p->tokens_per_second);
        ck_assert_double_eq_tol(p->tokens_per_second_per_gpu * 6, p->tokens_per_second,
                                1e-9 * p->tokens_per_second);
        /* 20 TFLOP/s of bf16. */
        ck_assert_double_eq_tol(p->mfu, p->model_tflops_per_gpu / 20, 1e-12);
        ck_assert_double_eq(p->exposed_communication_seconds,
                            p->time_seconds[OP_CLASS_COMMUNICATION]);
    }
}
END_TEST

START_TEST(mfu_is_finite_where_the_device_states_no_peak_of_that_type)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_cpu_topology(4, 10); /* fp32 only */
    SearchRequest request = request_of(model, topology, 2);

    request.recipe = &recipe_zero;
    request.top = 1;
    g_autoptr(SearchResult) result = search(&request);
    const Prediction *p = &((Plan *)g_ptr_array_index(result->plans, 0))->prediction;
    ck_assert(isfinite(p->mfu));
    ck_assert_double_gt(p->mfu, 0);
    ck_assert_double_lt(p->mfu, 1);
}
END_TEST

/* ---- how many GPUs ---- */

static const struct {
    guint megabytes, replicate, shard, batch;
} scarce[] = {{3534, 0, 0, 0}, {3534, 2, 0, 0}, {3534, 3, 0, 0},  {3534, 0, 6, 0},
              {3534, 0, 8, 0}, {3534, 5, 0, 0}, {3534, 0, 0, 24}, {3534, 0, 0, 18}};

START_TEST(the_smallest_number_of_gpus_is_what_trying_each_gives)
{
    g_autoptr(Model) model = case_model(&small);
    g_autoptr(Topology) topology = case_gpu_topology(16, scarce[_i].megabytes, 20000);
    SearchRequest request = request_of(model, topology, 0);
    guint smallest = 0;

    request.fixed[AXIS_DP_REPLICATE] = scarce[_i].replicate;
    request.fixed[AXIS_DP_SHARD] = scarce[_i].shard;
    request.global_batch = scarce[_i].batch;
    for (guint gpus = 1; gpus <= 64 && smallest == 0; gpus++) {
        SearchRequest one = request;

        one.gpus = gpus;
        one.top = 1;
        one.sort = SORT_MEMORY;
        g_autoptr(SearchResult) result = search(&one);
        smallest = result->plans->len > 0 ? gpus : 0;
    }
    ck_assert_uint_gt(smallest, 1);
    for (guint from = 1; from <= smallest; from += 1 + smallest / 3)
        ck_assert_uint_eq(search_smallest_gpus(&request, from), smallest);
}
END_TEST

/* By trying each number.  Of what is illegal on any number nothing is found, soon. */
static const struct {
    guint gpus, batch, tp, cp, below, above;
} illegal[] = {{7, 24, 1, 1, 6, 8}, {5, 18, 1, 1, 3, 6}, {8, 0, 3, 1, 0, 0},     {7, 0, 4, 1, 4, 8},
               {64, 5, 1, 1, 5, 0}, {3, 0, 4, 1, 0, 4},  {1000, 24, 1, 1, 24, 0}};

START_TEST(where_nothing_is_legal_the_nearest_numbers_that_fit_are_found)
{
    g_autoptr(Model) model = case_model(&small);
    g_autoptr(Topology) topology = case_gpu_topology(2000, 80000, 20000);
    SearchRequest request = request_of(model, topology, illegal[_i].gpus);

    request.global_batch = illegal[_i].batch;
    request.fixed[AXIS_PP] = 1;
    request.fixed[AXIS_TP] = illegal[_i].tp;
    request.fixed[AXIS_CP] = illegal[_i].cp;
    g_autoptr(SearchResult) result = search(&request);
    guint said = 0;

    ck_assert_uint_eq(result->candidates, 0);
    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++)
        said += result->rejected[v] > 0 && result->example[v] != NULL;
    ck_assert_uint_ge(said, 1);
    ck_assert_uint_eq(search_nearest_gpus(&request, illegal[_i].gpus, FALSE), illegal[_i].below);
    ck_assert_uint_eq(search_nearest_gpus(&request, illegal[_i].gpus, TRUE), illegal[_i].above);
}
END_TEST

START_TEST(where_no_number_fits_the_answer_is_none)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(4, 3500, 20000);
    SearchRequest request = request_of(model, topology, 0);

    request.global_batch = 24;
    ck_assert_uint_eq(search_smallest_gpus(&request, 1), 0);
    request.fixed[AXIS_DP_SHARD] = 100000;
    ck_assert_uint_eq(search_smallest_gpus(&request, 1), 0);
}
END_TEST

/* 16 Psi / 8 = 141 GB of state do not fit in 80 GB; norms are whole on every rank of
 * tp, and stages are not all of one size. */
START_TEST(llama_3_70b_is_refused_on_8_gpus_with_a_number_that_fits)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *models = data_dir("models"), *topologies = data_dir("topologies");
    g_autoptr(Model) model = model_load("llama-3.1-70b", models, &error);
    g_autoptr(Topology) topology = topology_load("dgx-h100", topologies, &error);

    ck_assert_msg(model != NULL && topology != NULL, "%s", error == NULL ? "" : error->message);
    SearchRequest request = request_of(model, topology, 8);
    request.seq_len = 0;
    request.fixed[AXIS_TP] = request.fixed[AXIS_PP] = (guint)_i; /* 0: any */
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_eq(result->plans->len, 0);
    ck_assert_uint_eq(result->rejected[VERDICT_MEMORY], result->candidates);
    ck_assert_ptr_nonnull(result->closest);
    const Prediction *closest = &result->closest->prediction;
    const guint64 state =
        closest->memory_bytes[TERM_PARAMETERS] + closest->memory_bytes[TERM_GRADIENTS] +
        closest->memory_bytes[TERM_MASTER] + closest->memory_bytes[TERM_OPTIMIZER];
    ck_assert_uint_ge(state, G_GUINT64_CONSTANT(141107412992));
    if (_i == 1)
        ck_assert_uint_eq(state, G_GUINT64_CONSTANT(141107412992));
    ck_assert(strstr(g_ptr_array_index(result->closest->reasons, 0), "optimizer") != NULL);

    const guint gpus = search_smallest_gpus(&request, 9);
    ck_assert_uint_gt(gpus, 1128859303936 / 85899345920); /* its state alone needs 14 */
    ck_assert_uint_le(gpus, 64);
    request.gpus = gpus;
    g_autoptr(SearchResult) larger = search(&request);
    ck_assert_uint_gt(larger->plans->len, 0);
    const Plan *best = g_ptr_array_index(larger->plans, 0);
    memcpy(request.fixed, best->layout.size, sizeof request.fixed);
    g_autoptr(Plan) fits = search_estimate(&request, &error);
    ck_assert_msg(fits != NULL && fits->reasons->len == 0, "%u GPUs", gpus);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search");
    TCase *tcase = tcase_create("search");

    tcase_set_timeout(tcase, 200);
    tcase_add_loop_test(tcase, search_finds_what_pricing_everything_finds, 0,
                        G_N_ELEMENTS(gpu_counts));
    tcase_add_test(tcase, ranks_that_share_a_sequence_share_parameters_too);
    tcase_add_test(tcase, the_same_request_gives_the_same_plans);
    tcase_add_loop_test(tcase, a_table_shows_what_whole_plans_say, 0, 4);
    tcase_add_test(tcase, the_list_is_as_long_as_asked_for_and_sorted);
    tcase_add_test(tcase, what_is_fixed_is_not_searched);
    tcase_add_loop_test(tcase, what_refuses_no_shard_is_sharded_over_one_rank, 0, 6);
    tcase_add_test(tcase, a_batch_that_no_layout_divides_is_refused_with_an_example);
    tcase_add_test(tcase, defaults_are_those_of_the_design);
    tcase_add_test(tcase, an_estimate_is_the_best_of_its_mesh);
    tcase_add_test(tcase, an_illegal_layout_is_refused_with_the_reason);
    tcase_add_test(tcase, a_layout_that_does_not_fit_is_priced_all_the_same);
    tcase_add_loop_test(tcase, a_layout_that_almost_fits_is_priced_all_the_same, 0, 2);
    tcase_add_test(tcase, terms_of_a_prediction_add_up);
    tcase_add_test(tcase, mfu_is_finite_where_the_device_states_no_peak_of_that_type);
    tcase_add_loop_test(tcase, the_smallest_number_of_gpus_is_what_trying_each_gives, 0,
                        G_N_ELEMENTS(scarce));
    tcase_add_loop_test(tcase, where_nothing_is_legal_the_nearest_numbers_that_fit_are_found, 0,
                        G_N_ELEMENTS(illegal));
    tcase_add_test(tcase, where_no_number_fits_the_answer_is_none);
    tcase_add_loop_test(tcase, llama_3_70b_is_refused_on_8_gpus_with_a_number_that_fits, 0, 2);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
