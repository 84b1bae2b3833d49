#include "tests/bench/bench_plan.h"
#include "tests/sim/plan_case.h"
#include "tests/sim/summary_case.h"

#include <math.h>

/* Layouts of many micro-batches are priced by a straight line through two smaller numbers. */

/* Memory but for what alignment adds to a micro-batch's inputs: a plan that is said to be too large
 * is not looked at again.  Time to within 2%: a few steps that wait for their gathers repeat after
 * several groups of micro-batches only.  Returns how far it is off. */
static double compare_line(Plan *plan, const char *text)
{
    enum { ALIGNMENT = 1024 };
    const Prediction *all = &plan->prediction;

    plan_price_quickly(plan);
    const double step_s = all->step_seconds;
    const gint64 bytes = (gint64)all->memory_total;
    plan_price(plan);
    const double error = fabs(step_s / all->step_seconds - 1);
    const gint64 more = (gint64)all->memory_total - bytes;
    ck_assert_msg(ABS(more) <= ALIGNMENT * (gint64)plan->schedule.micro_batches,
                  "%s: %" G_GINT64_FORMAT " bytes more than by the line", text, more);
    ck_assert_msg(error < 0.02, "%s: %g s by the line, %g s", text, step_s, all->step_seconds);
    return error;
}

enum { FAMILIES = 6 };

/* Pipelines that such a line is drawn for, however slow the network. */
static Case draw_pipeline(GRand *random, Model *model, guint16 *stages)
{
    for (;;) {
        Case one = draw_case(random, model, stages);
        Schedule *schedule = &one.schedule;
        const guint pp = one.layout.size[AXIS_PP];

        if (pp == 1 || schedule->kind == SCHEDULE_GPIPE)
            continue;
        one.device = DEVICE_CUDA;
        schedule->micro_batches = pp * (10 + draw(random, 6));
        one.workload.global_batch =
            layout_data_ranks(&one.layout) * schedule->micro_batch * schedule->micro_batches;
        if (case_verdict(&one, NULL) == VERDICT_OK)
            return one;
    }
}

START_TEST(the_line_says_what_all_micro_batches_say)
{
    enum { DRAWS = 30 };
    g_autoptr(Model) model = family_model((guint)_i);
    g_autoptr(GRand) random = g_rand_new_with_seed(4711 + (guint)_i);
    guint off = 0;

    for (guint i = 0; i < DRAWS; i++) {
        g_autoptr(Topology) topology = NULL;
        guint16 stages[MAX_CHUNKS];
        const Case one = draw_pipeline(random, model, stages);
        g_autofree char *text = case_text(&one);
        draw_context(random, &one, &topology);
        g_autoptr(Plan) plan = case_plan(&one, g_steal_pointer(&topology));

        off += compare_line(plan, text) > 0.005;
    }
    ck_assert_uint_le(off, 1);
}
END_TEST

/* 70B, whose chunks wait for their units: what a stage holds, and its steps, settle after three
 * groups of micro-batches or four only. */
static const struct {
    const char *topology;
    guint gpus, batch, dp_shard, virtual_stages, cp, tp, micro_batch;
    Recompute recompute;
} waiting[] = {
    {"perlmutter", 128, 1024, 1, 4, 8, 8, 32, RECOMPUTE_FULL},
    {"perlmutter", 128, 1024, 2, 4, 16, 2, 16, RECOMPUTE_FULL},
    {"perlmutter", 128, 1024, 4, 4, 16, 1, 8, RECOMPUTE_FULL},
    {"dgx-h100", 64, 512, 4, 5, 2, 4, 1, RECOMPUTE_FULL},
    {"dgx-h100", 64, 512, 16, 10, 2, 1, 1, RECOMPUTE_NONE},
};

START_TEST(so_it_does_where_chunks_wait_for_their_units)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("llama-3.1-70b", "models", &error);
    g_autoptr(Topology) topology = topology_load(waiting[_i].topology, "topologies", &error);

    ck_assert_msg(error == NULL, "%s", error == NULL ? "" : error->message);
    SearchRequest request = bench_request(model, topology, waiting[_i].gpus, waiting[_i].batch);
    request.fixed[AXIS_DP_REPLICATE] = 1;
    request.fixed[AXIS_DP_SHARD] = waiting[_i].dp_shard;
    request.fixed[AXIS_PP] = 2;
    request.fixed[AXIS_CP] = waiting[_i].cp;
    request.fixed[AXIS_TP] = waiting[_i].tp;
    request.strategy = STRATEGY_FULL_SHARD;
    request.schedule = SCHEDULE_INTERLEAVED;
    request.virtual_stages = waiting[_i].virtual_stages;
    request.context = CONTEXT_ALL_GATHER;
    request.micro_batch = waiting[_i].micro_batch;
    request.recompute = (gint)waiting[_i].recompute;
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    compare_line(plan, waiting[_i].topology);
}
END_TEST

/* 8B, whose state goes to a disk and back for longer than a few micro-batches take: stages that
 * wait for it take no longer for one more of them. */
static const struct {
    guint pp, cp, tp;
    ScheduleKind schedule;
    Strategy strategy;
    Offload offload;
} copied[] = {
    {2, 4, 2, SCHEDULE_ZB_H1, STRATEGY_SHARD_GRAD_OP, {TIER_NVME, TIER_DEVICE}},
    {2, 8, 1, SCHEDULE_1F1B, STRATEGY_FULL_SHARD, {TIER_NVME, TIER_DEVICE}},
    {4, 4, 1, SCHEDULE_INTERLEAVED, STRATEGY_SHARD_OPTIMIZER, {TIER_NVME, TIER_DEVICE}},
    {1, 16, 1, SCHEDULE_1F1B, STRATEGY_SHARD_GRAD_OP, {TIER_NVME, TIER_DEVICE}},
};

START_TEST(so_it_does_where_copies_take_longer_than_few_micro_batches)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("llama-3.1-8b", "models", &error);
    g_autoptr(Topology) topology = topology_load("aws-p4d", "topologies", &error);

    ck_assert_msg(error == NULL, "%s", error == NULL ? "" : error->message);
    SearchRequest request = bench_request(model, topology, 16, 64);
    request.fixed[AXIS_PP] = copied[_i].pp;
    request.fixed[AXIS_CP] = copied[_i].cp;
    request.fixed[AXIS_TP] = copied[_i].tp;
    request.strategy = (gint)copied[_i].strategy;
    request.schedule = (gint)copied[_i].schedule;
    request.virtual_stages = copied[_i].schedule == SCHEDULE_INTERLEAVED ? 2 : 0;
    request.context = CONTEXT_ALL_GATHER;
    request.micro_batch = 1;
    request.recompute = RECOMPUTE_NONE;
    request.sharding.offload = copied[_i].offload;
    g_autoptr(Plan) plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    compare_line(plan, "copies");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("price_line");
    TCase *tcase = tcase_create("price_line");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, the_line_says_what_all_micro_batches_say, 0, FAMILIES);
    tcase_add_loop_test(tcase, so_it_does_where_chunks_wait_for_their_units, 0,
                        G_N_ELEMENTS(waiting));
    tcase_add_loop_test(tcase, so_it_does_where_copies_take_longer_than_few_micro_batches, 0,
                        G_N_ELEMENTS(copied));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
