#include "sim/base/data_dirs.h"
#include "sim/search/cheapest.h"
#include "sim/search/plan_cost.h"
#include "sim/search/plan_json.h"
#include "sim/search/price.h"
#include "tests/mutate.h"
#include "tests/sim/spec_case.h"

#include <math.h>
#include <string.h>

/* ---- formulas ---- */

/* sqrt(2 x 300 s x 1 day) = 7200 s. */
START_TEST(youngs_interval_is_the_worked_value)
{
    const Failures failures = {.checkpoint = 300, .mtbf = 86400};

    ck_assert_double_eq_tol(goodput_young_s(&failures), 7200, 1e-9);
}
END_TEST

/* Daly 2006, captions of figures 3, 4 and 5: checkpoints of 5 minutes. */
static const struct {
    double mtbf_minutes, minutes, digits;
} published[] = {{24 * 60, 117, 0.5}, {6 * 60, 57, 0.5}, {15, 9.1, 0.05}};

START_TEST(dalys_interval_is_what_he_published)
{
    const Failures failures = {.checkpoint = 300, .mtbf = 60 * published[_i].mtbf_minutes};

    ck_assert_double_eq_tol(goodput_daly_s(&failures) / 60, published[_i].minutes,
                            published[_i].digits);
}
END_TEST

START_TEST(checkpoints_longer_than_two_mtbf_leave_one_mtbf_between_them)
{
    const Failures failures = {.checkpoint = 1000, .mtbf = 500};
    const Failures longer = {.checkpoint = 5000, .mtbf = 500};

    ck_assert_double_eq(goodput_daly_s(&failures), 500);
    ck_assert_double_eq(goodput_daly_s(&longer), 500);
}
END_TEST

START_TEST(without_failures_only_checkpoints_are_lost)
{
    const Failures failures = {.checkpoint = 10, .restart = 1000, .mtbf = 1e12};

    ck_assert_double_eq_tol(goodput_useful(&failures, 90), 0.9, 1e-6);
}
END_TEST

/* 1000 s of work with a checkpoint of 100 s, MTBF 1000 s, restart 50 s:
 * 1 / (e^0.05 (e^1.1 - 1)) = 1 / (1.051271 x 2.004166) = 0.474626 */
START_TEST(the_useful_share_is_the_worked_value)
{
    const Failures failures = {.checkpoint = 100, .restart = 50, .mtbf = 1000};

    ck_assert_double_eq_tol(goodput_useful(&failures, 1000), 0.474626, 1e-6);
}
END_TEST

START_TEST(no_interval_is_much_better_than_dalys)
{
    for (double mtbf = 100; mtbf < 1e7; mtbf *= 3) {
        const Failures failures = {.checkpoint = 60, .restart = 30, .mtbf = mtbf};
        const double best = goodput_useful(&failures, goodput_daly_s(&failures));

        for (double interval = 1; interval < 1e6; interval *= 1.1)
            ck_assert_double_le(goodput_useful(&failures, interval), best * 1.005);
        ck_assert(best > 0 && best < 1);
    }
}
END_TEST

/* 4 groups, each lost every 4000 s and away for 200 s; a step of 10 s, MTBF of the job 1000 s:
 * 4000 / 4200 e^-0.01 = 0.952381 x 0.990050 = 0.942905; all are away (200 / 4200)^4 = 5.1418e-6. */
START_TEST(the_share_that_survivors_do_is_the_worked_value)
{
    const Survivors survivors = {
        .groups = 4, .mtbf = 1000, .group_mtbf = 4000, .restart = 150, .heal = 50, .step = 10};

    ck_assert_double_eq_tol(goodput_surviving(&survivors), 0.942905, 1e-6);
    ck_assert_double_eq_tol(goodput_none_left(&survivors), 5.1418e-6, 1e-9);
}
END_TEST

/* To first order each failure costs the absent group's share, T / R, and one step. */
START_TEST(rare_failures_cost_survivors_one_share_and_one_step)
{
    for (guint groups = 2; groups <= 128; groups *= 2) {
        const double mtbf = 1e6, away = 300, step = 20;
        const Survivors survivors = {.groups = groups,
                                     .mtbf = mtbf,
                                     .group_mtbf = groups * mtbf,
                                     .restart = away,
                                     .step = step};

        ck_assert_double_eq_tol(goodput_surviving(&survivors), 1 - (away / groups + step) / mtbf,
                                1e-7);
    }
}
END_TEST

/* A rollback costs all groups the restart, and what came after a checkpoint. */
START_TEST(going_on_beats_going_back_with_more_groups_the_more)
{
    for (double mtbf = 1000; mtbf < 1e6; mtbf *= 3) {
        const Failures failures = {.checkpoint = 20, .restart = 300, .mtbf = mtbf};
        double before = goodput_useful(&failures, goodput_daly_s(&failures));

        for (guint groups = 2; groups <= 64; groups *= 2) {
            const Survivors survivors = {.groups = groups,
                                         .mtbf = mtbf,
                                         .group_mtbf = groups * mtbf,
                                         .restart = 300,
                                         .step = 10};

            ck_assert_double_gt(goodput_surviving(&survivors), before);
            before = goodput_surviving(&survivors);
        }
        ck_assert_double_lt(before, 1);
    }
}
END_TEST

/* ---- plans ---- */

static const char failing[] = "[cluster]\nname = c\nsource = s\nnodes = 8\n[node]\ngpus = 4\ngpu = "
                              "g\n[gpu g]\nsource = s\nkind = cuda\nfp32 = 10 TFLOP/s\nbf16 = 20 "
                              "TFLOP/s\nmemory = 80 GB\nmemory_bandwidth = 1 TB/s\n[network n]\n"
                              "kind = k\nbandwidth = 10 GB/s\nlatency = 1 us\n"
                              "[cost]\nprice_per_gpu_hour = 2\ncurrency = EUR\npower_per_gpu = 500 "
                              "W\n[reliability]\ngpu_mtbf = 2000000 s\nnode_mtbf = 1000000 s\n"
                              "checkpoint_bandwidth = 100 MB/s\nrestart = 120 s\n";

static Topology *parse_topology(const char *text)
{
    g_autoptr(GError) error = NULL;
    Topology *topology = topology_parse(text, "t", "topologies", &error);

    ck_assert_msg(topology != NULL, "%s", error == NULL ? "" : error->message);
    return topology;
}

static SearchRequest request_on(const Model *model, const Topology *topology)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .seq_len = 64,
        .recipe = &recipe_zero,
        .strategy = -1,
        .micro_batch = 1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .fixed = {1, 1, 0, 1, 1},
        .sequence_parallel = TRUE,
        .sharding = sharding_default,
        .top = 3,
    };
}

static Model *tiny(void)
{
    g_autofree char *models = data_dir("models");
    g_autoptr(GError) error = NULL;
    Model *model = model_load("tiny-1m", models, &error);

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    return model;
}

/* 8 GPUs on 2 nodes: 8 / 2e6 + 2 / 1e6 = 6e-6 failures a second.  fp32 master and two moments. */
START_TEST(failures_of_gpus_and_nodes_add_up_and_ranks_share_a_checkpoint)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = parse_topology(failing);
    SearchRequest request = request_on(model, topology);
    PlanGoodput run;

    request.gpus = 8;
    g_autoptr(SearchResult) result = search(&request);
    Plan *plan = g_ptr_array_index(result->plans, 0);
    const guint64 bytes = 12 * model_parameters(model);

    ck_assert(plan_goodput(plan, &run));
    ck_assert_double_eq_tol(run.failures.mtbf, 1 / 6e-6, 1e-3);
    ck_assert_double_eq(run.failures.restart, 120);
    ck_assert_uint_eq(run.checkpoint_bytes, bytes);
    ck_assert_double_eq_tol(run.failures.checkpoint, (double)bytes / 8e8, 1e-12);
    ck_assert_uint_eq(plan_survivors(plan).replicas, 1);
    plan->layout.size[AXIS_DP_REPLICATE] = 4;
    ck_assert_uint_eq(plan_survivors(plan).replicas, 4);
    plan->workload.recipe = &recipe_fsdp2; /* the fp32 shard is the master */
    plan->workload.optimizer = OPTIMIZER_SGD;
    ck_assert(plan_goodput(plan, &run));
    ck_assert_uint_eq(run.checkpoint_bytes, 4 * model_parameters(model));
}
END_TEST

/* @replicate replicas of 2 ranks in each of @pp stages, on nodes of 4, steps of 10 s. */
static Plan replicated(const Model *model, Topology *topology, guint replicate, guint pp)
{
    return (Plan){.model = (Model *)model,
                  .topology = topology,
                  .gpus = 2 * pp * replicate,
                  .ranks_per_node = 4,
                  .workload = {.recipe = &recipe_zero},
                  .layout = {.size = {pp, replicate, 2, 1, 1}},
                  .sharding = sharding_default,
                  .prediction = {.step_seconds = 10, .tokens_per_second_per_gpu = 2000}};
}

/* Of 2 GPUs on a node, 2 / 2e6 + 1 / 1e6 = 2e-6 a second; with two stages on 2 nodes twice that.  A
 * rank gets half of the 12 bytes a parameter, or a quarter, over a link of 10 GB/s of which 0.8 are
 * reached, less 3% for two nodes. */
START_TEST(a_lost_replica_heals_from_another_over_the_network)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = parse_topology(failing);
    const double state = 12.0 * (double)model_parameters(model);

    for (guint pp = 1; pp <= 2; pp++) {
        const Plan plan = replicated(model, topology, 4, pp);
        const PlanSurvivors all = plan_survivors(&plan);

        ck_assert(all.go_on);
        ck_assert_uint_eq(all.formula.groups, 4);
        ck_assert_uint_eq(all.lost_with_node, 2);
        ck_assert_double_eq_tol(all.formula.group_mtbf, 5e5 / pp, 1e-3);
        ck_assert_double_eq_tol(all.formula.mtbf, plan_mtbf_s(&plan), 1e-9);
        ck_assert_double_eq_tol((double)all.heal_bytes, state / (2 * pp), 1);
        ck_assert_double_eq_tol(all.formula.heal, 1e-6 + state / (2 * pp) / (8e9 / 1.03), 1e-7);
        ck_assert_double_eq_tol(
            all.useful,
            5e5 / pp / (5e5 / pp + 120 + all.formula.heal) * exp(-10 / plan_mtbf_s(&plan)), 1e-9);
    }
}
END_TEST

/* Two replicas on one node, which fails: none is left.  Where only GPUs are said to fail, one is.
 */
START_TEST(replicas_of_one_node_do_not_survive_it)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = parse_topology(failing);
    const Plan plan = replicated(model, topology, 2, 1), one = replicated(model, topology, 1, 1);

    ck_assert(!plan_survivors(&plan).go_on);
    topology->reliability.node_mtbf_s = 0;
    ck_assert(plan_survivors(&plan).go_on);
    ck_assert_double_eq_tol(plan_survivors(&plan).formula.group_mtbf, 1e6, 1e-3);
    ck_assert(!plan_survivors(&one).go_on);
}
END_TEST

/* An MTBF of a thousandth of the checkpoint, and one that leaves a share too small for a price. */
START_TEST(tokens_of_which_nothing_is_useful_have_no_cost)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = parse_topology(failing);
    const Plan plan = replicated(model, topology, 4, 1);
    const double mtbf[] = {1e-3, 0.1};
    PlanGoodput run;

    topology->reliability.checkpoint_bytes_per_s =
        12.0 * (double)model_parameters(model) / plan.gpus;
    topology->reliability.restart_s = 0;
    topology->reliability.node_mtbf_s = 0;
    for (guint i = 0; i < G_N_ELEMENTS(mtbf); i++) {
        topology->reliability.gpu_mtbf_s = mtbf[i] * plan.gpus;
        ck_assert(plan_goodput(&plan, &run));
        ck_assert_double_eq_tol(run.failures.checkpoint, 1, 1e-6);
        ck_assert(run.useful >= 0 && run.useful < GOODPUT_LEAST);
        ck_assert(isinf(plan_money_per_million(&plan)));
        ck_assert(isinf(plan_kwh_per_million(&plan)));
    }
    topology->cost = (RunningCost){.currency = topology->cost.currency};
    ck_assert_double_eq(plan_money_per_million(&plan), 0); /* and not 0 x infinity */
    ck_assert_double_eq(plan_kwh_per_million(&plan), 0);
}
END_TEST

/* 2000 tokens/s a GPU: 500 GPU-seconds a million; at 2 EUR an hour 0.2778 EUR, at 500 W 0.06944
 * kWh; over the useful share. */
START_TEST(money_and_energy_are_those_of_the_time_with_what_is_lost)
{
    g_autoptr(Topology) topology = parse_topology(failing);
    g_autoptr(Model) model = tiny();
    Plan plan = {.model = model,
                 .topology = topology,
                 .gpus = 8,
                 .ranks_per_node = 4,
                 .workload = {.recipe = &recipe_zero},
                 .layout = {.size = {1, 1, 8, 1, 1}},
                 .prediction = {.tokens_per_second_per_gpu = 2000}};
    PlanGoodput run;

    ck_assert(plan_goodput(&plan, &run));
    ck_assert_double_lt(run.useful, 1);
    ck_assert_double_eq_tol(plan_money_per_million(&plan), 500.0 * 2 / 3600 / run.useful, 1e-12);
    ck_assert_double_eq_tol(plan_kwh_per_million(&plan), 500.0 * 500 / 3.6e6 / run.useful, 1e-12);
    topology->reliability = (Reliability){.gpu_mtbf_s = 1e6}; /* no checkpoint's bandwidth */
    ck_assert(!plan_goodput(&plan, &run));
    ck_assert_double_eq_tol(plan_money_per_million(&plan), 500.0 * 2 / 3600, 1e-12);
}
END_TEST

/* 54 days x 16,384 / 419 interruptions are 3.09 hours on 16,384 GPUs; and "more than 90%". */
START_TEST(llama_3_is_interrupted_every_three_hours_and_useful_for_90_percent)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autofree char *models = data_dir("models");
    g_autoptr(Topology) meta = topology_load("meta-24k-h100", topologies, NULL);
    g_autoptr(Model) model = model_load("llama-3.1-405b", models, NULL);
    const Plan plan = {.model = model,
                       .topology = meta,
                       .gpus = 16384,
                       .ranks_per_node = 8,
                       .workload = {.recipe = &recipe_zero},
                       .layout = {.size = {16, 1, 128, 1, 8}}};
    PlanGoodput run;

    ck_assert(plan_goodput(&plan, &run));
    ck_assert_double_eq_tol(run.failures.mtbf / 3600, 54.0 * 24 / 419, 1e-4);
    ck_assert_double_eq_tol(run.failures.checkpoint, 12 * 405.853e9 / 2e12, 0.01);
    ck_assert(run.useful > 0.90 && run.useful < 1);
}
END_TEST

/* 6.5 failures in 1,000 days of nodes: 2,048 of them fail every 1.8 hours, as the paper says; and
 * of checkpoints it says nothing. */
START_TEST(metas_research_cluster_fails_as_published)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) meta = topology_load("meta-rsc-1", topologies, NULL);
    const Plan plan = {.model = model,
                       .topology = meta,
                       .gpus = 16384,
                       .ranks_per_node = 8,
                       .workload = {.recipe = &recipe_zero},
                       .layout = {.size = {1, 128, 128, 1, 1}},
                       .sharding = sharding_default};
    PlanGoodput run;

    ck_assert_double_eq_tol(plan_mtbf_s(&plan) / 3600, 1.8, 0.01);
    ck_assert(!plan_goodput(&plan, &run));
    ck_assert(plan_survivors(&plan).go_on);
}
END_TEST

START_TEST(a_topology_says_what_it_costs_and_prints_the_same)
{
    g_autoptr(Topology) topology = parse_topology(failing);
    g_autofree char *text = topology_print(topology);
    g_autoptr(Topology) again = parse_topology(text);
    g_autofree char *text_again = topology_print(again);

    ck_assert_str_eq(text_again, text);
    ck_assert_double_eq(again->cost.price_per_gpu_hour, 2);
    ck_assert_double_eq(again->cost.power_per_gpu_w, 500);
    ck_assert_str_eq(again->cost.currency, "EUR");
    ck_assert_double_eq(again->reliability.gpu_mtbf_s, 2e6);
    ck_assert_double_eq(again->reliability.node_mtbf_s, 1e6);
    ck_assert_double_eq(again->reliability.checkpoint_bytes_per_s, 1e8);
    ck_assert_double_eq(again->reliability.restart_s, 120);
}
END_TEST

START_TEST(unknown_keys_of_cost_and_reliability_are_refused)
{
    static const char *const wrong[][2] = {{"power_per_gpu", "power"}, {"node_mtbf", "node_mtfb"}};

    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autofree char *text = replaced(failing, wrong[i][0], wrong[i][1]);
        g_autoptr(GError) error = NULL;

        ck_assert_ptr_null(topology_parse(text, "t", "topologies", &error));
        ck_assert_msg(strstr(error->message, wrong[i][1]) != NULL, "%s", error->message);
    }
}
END_TEST

/* Communication costs more on more ranks, so one GPU's tokens are the cheapest. */
START_TEST(the_cheapest_token_is_looked_for_on_fewer_gpus_too)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = parse_topology(failing);
    SearchRequest request = request_on(model, topology);

    request.sort = SORT_COST;
    request.top = 4;
    g_autoptr(SearchResult) result = search_cheapest(&request);
    double before = 0;

    ck_assert_uint_eq(result->plans->len, 4);
    for (guint i = 0; i < result->plans->len; i++) {
        const double money = plan_money_per_million(g_ptr_array_index(result->plans, i));

        ck_assert_double_ge(money, before);
        before = money;
    }
    request.gpus = 32;
    g_autoptr(SearchResult) all = search(&request);
    const Plan *best = g_ptr_array_index(result->plans, 0);
    ck_assert_uint_lt(best->gpus, 32);
    ck_assert_double_lt(plan_money_per_million(best),
                        plan_money_per_million(g_ptr_array_index(all->plans, 0)));
    ck_assert_uint_gt(result->candidates, all->candidates);
}
END_TEST

/* The fastest of one GPU, a node's four and half; where links are fast nothing is. */
START_TEST(fewer_gpus_are_named_where_they_are_faster)
{
    const guint megabytes_per_s[] = {1, 1000000};
    g_autoptr(Model) model = tiny();

    for (guint i = 0; i < 2; i++) {
        g_autoptr(Topology) topology = case_gpu_topology(4, 8000, megabytes_per_s[i]);
        SearchRequest request = request_on(model, topology);

        request.gpus = 16;
        request.global_batch = 16;
        request.top = 1;
        g_autoptr(SearchResult) all = search(&request);
        const Plan *best = g_ptr_array_index(all->plans, 0);
        g_autoptr(Plan) faster = search_fewer_faster(&request, best);
        ck_assert_int_eq(faster != NULL, i == 0);
        if (faster == NULL)
            continue;
        ck_assert_double_gt(faster->prediction.tokens_per_second,
                            best->prediction.tokens_per_second);
        for (request.gpus = 1; request.gpus <= 8; request.gpus *= request.gpus == 1 ? 4 : 2) {
            g_autoptr(SearchResult) fewer = search(&request);
            const Plan *one = g_ptr_array_index(fewer->plans, 0);

            ck_assert_double_le(one->prediction.tokens_per_second,
                                faster->prediction.tokens_per_second);
        }
        request.gpus = 16;
        request.sort = SORT_MEMORY; /* says nothing of who is faster */
        ck_assert_ptr_null(search_fewer_faster(&request, best));
    }
}
END_TEST

/* 13 is a prime: a pipeline of as many stages is all that keeps 12 sequences whole.  12 GPUs, three
 * nodes, share them. */
START_TEST(an_odd_gpu_is_better_left_out)
{
    g_autofree char *models = data_dir("models");
    g_autoptr(Model) model = model_load("llama-3.2-1b", models, NULL);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 1000000);
    SearchRequest request = request_on(model, topology);

    memset(request.fixed, 0, sizeof request.fixed);
    request.gpus = 13;
    request.global_batch = 12;
    request.top = 1;
    g_autoptr(SearchResult) all = search(&request);
    ck_assert_uint_gt(all->plans->len, 0);
    const Plan *best = g_ptr_array_index(all->plans, 0);
    g_autoptr(Plan) faster = search_fewer_faster(&request, best);
    ck_assert_uint_eq(best->layout.size[AXIS_PP], 13);
    ck_assert_ptr_nonnull(faster);
    ck_assert_uint_eq(faster->gpus, 12);
}
END_TEST

/* 13 of 3 GPUs: only a pipeline keeps it whole; 12 and 15 are shared by all ranks.  As many as are
 * shared anyway, or a number far from any such, have nothing to gain. */
START_TEST(a_batch_that_all_ranks_share_is_named_where_it_is_faster)
{
    const guint batches[] = {13, 15, 1};
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = case_gpu_topology(3, 8000, 1000000);
    SearchRequest request = request_on(model, topology);

    request.gpus = 3;
    request.fixed[AXIS_PP] = 0;
    request.top = 1;
    for (guint i = 0; i < G_N_ELEMENTS(batches); i++) {
        request.global_batch = batches[i];
        g_autoptr(SearchResult) result = search(&request);
        const Plan *best = g_ptr_array_index(result->plans, 0);
        g_autoptr(Plan) other = search_other_batch(&request, result);

        ck_assert_int_eq(other != NULL, i == 0);
        if (other == NULL)
            continue;
        ck_assert_uint_eq(other->workload.global_batch, 12);
        ck_assert_double_gt(other->prediction.tokens_per_second,
                            1.1 * best->prediction.tokens_per_second);
    }
}
END_TEST

/* A card as large as what two ranks need leaves nothing to spare on two: on three there is. */
START_TEST(the_smallest_number_with_memory_to_spare_is_named)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 100000);
    SearchRequest request = request_on(model, topology);

    request.gpus = 2;
    request.global_batch = 0;
    request.micro_batch = 1;
    request.strategy = STRATEGY_FULL_SHARD;
    request.recompute = RECOMPUTE_FULL;
    request.fixed[AXIS_PP] = request.fixed[AXIS_TP] = request.fixed[AXIS_CP] = 1;
    request.fixed[AXIS_DP_REPLICATE] = 1;
    g_autoptr(SearchResult) large = search(&request);
    ck_assert_uint_eq(search_roomy_gpus(&request, large, 2), 0); /* plenty here */
    const Plan *plan = g_ptr_array_index(large->plans, 0);

    topology->gpu.memory_bytes = plan->prediction.memory_total;
    g_autoptr(SearchResult) full = search(&request);
    ck_assert_uint_gt(full->plans->len, 0);
    const guint roomy = search_roomy_gpus(&request, full, 2);
    request.gpus = roomy;
    g_autoptr(SearchResult) more = search(&request);
    ck_assert_uint_eq(search_roomy_gpus(&request, more, roomy), 0);
    ck_assert_uint_gt(more->plans->len, 0);
    for (request.gpus = 3; request.gpus < roomy; request.gpus++) {
        g_autoptr(SearchResult) between = search(&request);

        for (guint i = 0; i < between->plans->len; i++)
            ck_assert(plan_is_tight(g_ptr_array_index(between->plans, i)));
    }
}
END_TEST

/* What follows from the rest of the plan is printed, and found again. */
START_TEST(a_plan_with_costs_reads_back_as_it_was_printed)
{
    g_autoptr(Model) model = tiny();
    g_autoptr(Topology) topology = parse_topology(failing);
    SearchRequest request = request_on(model, topology);
    g_autoptr(GError) error = NULL;

    request.gpus = 8;
    g_autoptr(SearchResult) result = search(&request);
    g_autofree char *text = plan_print(g_ptr_array_index(result->plans, 0));
    g_autoptr(Plan) read = plan_parse(text, "plan", &error);

    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read);
    ck_assert_str_eq(again, text);
    ck_assert_ptr_nonnull(strstr(text, "\"useful_fraction\""));
    ck_assert_ptr_nonnull(strstr(text, "\"currency\" : \"EUR\""));
    ck_assert_ptr_nonnull(strstr(text, "\"restart_seconds\" : 120"));
}
END_TEST

/* What is not stated, and what has no end, is null: JSON knows neither. */
START_TEST(costs_without_end_are_null_in_a_plan)
{
    g_autoptr(Model) model = tiny();
    g_autofree char *often = replaced(failing, "gpu_mtbf = 2000000 s", "gpu_mtbf = 1 s");
    g_autofree char *slow = replaced(often, "100 MB/s", "1 kB/s");
    g_autofree char *silent = replaced(slow, "restart = 120 s\n", "");
    g_autoptr(Topology) topology = parse_topology(silent);
    SearchRequest request = request_on(model, topology);
    g_autoptr(GError) error = NULL;

    request.gpus = 8;
    request.fixed[AXIS_DP_REPLICATE] = 4;
    g_autoptr(SearchResult) result = search(&request);
    g_autofree char *text = plan_print(g_ptr_array_index(result->plans, 0));
    g_autoptr(Plan) read = plan_parse(text, "plan", &error);

    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_ptr_nonnull(strstr(text, "\"money\" : null"));
    ck_assert_ptr_nonnull(strstr(text, "\"kwh\" : null"));
    ck_assert_ptr_nonnull(strstr(text, "\"restart_seconds\" : null"));
    ck_assert_ptr_nonnull(strstr(text, "\"none_left_fraction\""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("goodput");
    TCase *tcase = tcase_create("goodput");

    tcase_add_test(tcase, youngs_interval_is_the_worked_value);
    tcase_add_loop_test(tcase, dalys_interval_is_what_he_published, 0, G_N_ELEMENTS(published));
    tcase_add_test(tcase, checkpoints_longer_than_two_mtbf_leave_one_mtbf_between_them);
    tcase_add_test(tcase, without_failures_only_checkpoints_are_lost);
    tcase_add_test(tcase, the_useful_share_is_the_worked_value);
    tcase_add_test(tcase, no_interval_is_much_better_than_dalys);
    tcase_add_test(tcase, the_share_that_survivors_do_is_the_worked_value);
    tcase_add_test(tcase, rare_failures_cost_survivors_one_share_and_one_step);
    tcase_add_test(tcase, going_on_beats_going_back_with_more_groups_the_more);
    tcase_add_test(tcase, a_lost_replica_heals_from_another_over_the_network);
    tcase_add_test(tcase, replicas_of_one_node_do_not_survive_it);
    tcase_add_test(tcase, tokens_of_which_nothing_is_useful_have_no_cost);
    tcase_add_test(tcase, costs_without_end_are_null_in_a_plan);
    tcase_add_test(tcase, failures_of_gpus_and_nodes_add_up_and_ranks_share_a_checkpoint);
    tcase_add_test(tcase, money_and_energy_are_those_of_the_time_with_what_is_lost);
    tcase_add_test(tcase, llama_3_is_interrupted_every_three_hours_and_useful_for_90_percent);
    tcase_add_test(tcase, metas_research_cluster_fails_as_published);
    tcase_add_test(tcase, a_topology_says_what_it_costs_and_prints_the_same);
    tcase_add_test(tcase, unknown_keys_of_cost_and_reliability_are_refused);
    tcase_add_test(tcase, the_cheapest_token_is_looked_for_on_fewer_gpus_too);
    tcase_add_test(tcase, the_smallest_number_with_memory_to_spare_is_named);
    tcase_add_test(tcase, fewer_gpus_are_named_where_they_are_faster);
    tcase_add_test(tcase, an_odd_gpu_is_better_left_out);
    tcase_add_test(tcase, a_batch_that_all_ranks_share_is_named_where_it_is_faster);
    tcase_add_test(tcase, a_plan_with_costs_reads_back_as_it_was_printed);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
