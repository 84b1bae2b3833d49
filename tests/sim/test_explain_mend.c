/* What explain says to make a plan fit: of single changes the cheapest, found by pricing. */
#include "sim/base/data_dirs.h"
#include "sim/explain_mend.h"
#include "sim/search/price.h"
#include "sim/search/search.h"
#include "tests/sim/spec_case.h"

#include <string.h>

/* 4 x 2 sequences a rank, nothing computed again; on @nodes of 4 GPUs with plenty of memory. */
static Plan *roomy_plan(guint nodes, const guint axes[NUM_AXES], Strategy strategy)
{
    g_autofree char *models = data_dir("models");
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("llama-3.2-1b", models, &error);
    g_autoptr(Topology) topology = case_gpu_topology(nodes, 400000, 100000);
    SearchRequest request = {.model = model,
                             .topology = topology,
                             .gpus = axes[AXIS_DP_REPLICATE] * axes[AXIS_DP_SHARD],
                             .seq_len = 2048,
                             .recipe = &recipe_zero,
                             .strategy = strategy,
                             .micro_batch = 4,
                             .recompute = RECOMPUTE_NONE,
                             .schedule = -1,
                             .context = -1,
                             .fixed_ep = 1,
                             .sequence_parallel = TRUE,
                             .sharding = sharding_default};

    memcpy(request.fixed, axes, sizeof request.fixed);
    request.global_batch = 8 * request.gpus;
    Plan *plan = search_estimate(&request, &error);
    ck_assert_msg(plan != NULL, "%s", error == NULL ? "" : error->message);
    return plan;
}

static const guint sharded[NUM_AXES] = {1, 1, 4, 1, 1}, replicated[NUM_AXES] = {1, 4, 1, 1, 1};

/* The same with so much memory. */
static Plan *plan_with(const Plan *plan, double bytes)
{
    g_autofree char *text = plan_print(plan);
    Plan *smaller = plan_parse(text, "plan", NULL);

    smaller->topology->gpu.memory_bytes = (guint64)bytes;
    plan_price(smaller);
    return smaller;
}

/* It is a plan of its own that fits, or, where it says that it does not, one that does not. */
static void assert_priced(const Mend *mend)
{
    g_autofree char *text = plan_print(mend->plan);
    g_autoptr(Plan) read = plan_parse(text, mend->name, NULL);
    const gboolean fits = mend->plan->reasons->len == 0;

    ck_assert_msg(plan_price(read) == fits, "%s", mend->name);
    ck_assert_msg((read->prediction.memory_total <= read->prediction.memory_limit) == fits, "%s",
                  mend->name);
}

/* From one that just does not fit down to one that nothing makes fit: the change costs more and
 * more time. */
START_TEST(less_memory_takes_a_dearer_change)
{
    g_autoptr(Plan) plan = roomy_plan(4, sharded, STRATEGY_FULL_SHARD);
    g_autoptr(GHashTable) names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    double bytes = (double)plan->prediction.memory_total * 0.999, before_s = 0;
    gboolean fits = TRUE;

    for (; fits && bytes > 1e9; bytes *= 0.85) {
        g_autoptr(Plan) smaller = plan_with(plan, bytes);
        g_auto(Mend) mend = mend_find(smaller);

        ck_assert_uint_gt(smaller->reasons->len, 0);
        ck_assert_ptr_nonnull(mend.plan);
        assert_priced(&mend);
        fits = mend.plan->reasons->len == 0;
        if (!fits || mend.plan->gpus != plan->gpus)
            continue;
        g_hash_table_add(names, g_strdup(mend.name));
        ck_assert_double_ge(mend.plan->prediction.step_seconds, before_s * (1 - 1e-9));
        before_s = mend.plan->prediction.step_seconds;
    }
    ck_assert(!fits);
    ck_assert_uint_ge(g_hash_table_size(names), 3);
}
END_TEST

/* One sequence at a time, all computed again, all sharded, nowhere to offload to: only ranks are
 * left, the fewest that do; where the networks join no more of them nothing is. */
START_TEST(what_nothing_else_mends_takes_more_ranks)
{
    for (guint nodes = 1; nodes <= 4; nodes *= 4) {
        g_autoptr(Plan) plan = roomy_plan(nodes, sharded, STRATEGY_FULL_SHARD);
        const guint64 state = plan->prediction.memory_bytes[TERM_OPTIMIZER];

        plan->topology->cpu_memory_bytes = 0;
        g_array_set_size(plan->topology->memories, 0);
        plan->schedule.micro_batch = 1;
        plan->schedule.micro_batches = 8;
        plan_set_recompute(plan, RECOMPUTE_FULL, NULL, 0);
        if (nodes == 1)
            g_array_set_size(plan->topology->networks, 1);
        plan_price(plan);
        g_autoptr(Plan) smaller =
            plan_with(plan, (double)(plan->prediction.memory_total - state / 4));
        g_auto(Mend) mend = mend_find(smaller);

        if (nodes == 1) {
            ck_assert(mend.plan == NULL || mend.plan->reasons->len > 0);
            continue;
        }
        ck_assert_str_eq(mend.name, "twice the ranks");
        ck_assert_uint_eq(mend.plan->gpus, 8);
        ck_assert_uint_eq(mend.plan->workload.global_batch, 32);
        assert_priced(&mend);
    }
}
END_TEST

/* What is whole on each rank is sharded over the same ranks; more of them would hold as much. */
START_TEST(whole_state_is_mended_by_sharding_it)
{
    g_autoptr(Plan) plan = roomy_plan(4, replicated, STRATEGY_NO_SHARD);
    const guint64 state = plan->prediction.memory_bytes[TERM_OPTIMIZER] / 4;
    g_autoptr(Plan) smaller = plan_with(plan, (double)(plan->prediction.memory_total - state));
    g_auto(Mend) mend = mend_find(smaller);

    ck_assert_uint_eq(mend.plan->reasons->len, 0);
    ck_assert_msg(strstr(mend.name, " over the replicas") != NULL, "%s", mend.name);
    ck_assert_uint_eq(mend.plan->layout.size[AXIS_DP_SHARD], 4);
    assert_priced(&mend);
}
END_TEST

/* As few layers as fit are computed again, not all. */
START_TEST(a_little_too_large_takes_a_little_recomputation)
{
    g_autoptr(Plan) plan = roomy_plan(1, sharded, STRATEGY_FULL_SHARD);
    g_autoptr(Plan) smaller = plan_with(plan, (double)plan->prediction.memory_total - 1);
    smaller->topology->cpu_memory_bytes = 0; /* no host to offload to */
    smaller->schedule.micro_batch = 1;       /* no half of it */
    smaller->schedule.micro_batches = 2;
    smaller->workload.global_batch = 8;
    plan_price(smaller);
    smaller->topology->gpu.memory_bytes = smaller->prediction.memory_total - 1;
    plan_price(smaller);
    g_auto(Mend) mend = mend_find(smaller);
    ck_assert_uint_eq(mend.plan->reasons->len, 0);
    ck_assert_msg(g_str_has_prefix(mend.name, "recompute "), "%s", mend.name);
    ck_assert(schedule_has_rest(&mend.plan->schedule));
    assert_priced(&mend);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("explain_mend");
    TCase *tcase = tcase_create("explain_mend");

    tcase_add_test(tcase, less_memory_takes_a_dearer_change);
    tcase_add_test(tcase, what_nothing_else_mends_takes_more_ranks);
    tcase_add_test(tcase, whole_state_is_mended_by_sharding_it);
    tcase_add_test(tcase, a_little_too_large_takes_a_little_recomputation);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
