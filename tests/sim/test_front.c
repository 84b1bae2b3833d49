#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "tests/sim/everything.h"

/* The front of time and memory. */

static gboolean is_no_worse(const Plan *plan, const Plan *than, double step)
{
    return plan->prediction.step_seconds <= than->prediction.step_seconds * (1 + step) &&
           (double)plan->prediction.memory_total <=
               (double)than->prediction.memory_total * (1 + step);
}

/* By at least one of the list. */
static gboolean is_reached(const Plan *plan, const GPtrArray *listed, double step)
{
    for (guint i = 0; i < listed->len; i++)
        if (g_ptr_array_index(listed, i) != plan &&
            is_no_worse(g_ptr_array_index(listed, i), plan, step))
            return TRUE;
    return FALSE;
}

/* Whether another is no slower, but for rounding, and smaller. */
static gboolean is_beaten(const GPtrArray *all, const Plan *plan)
{
    for (guint i = 0; i < all->len; i++) {
        const Plan *by = g_ptr_array_index(all, i);

        if (by->reasons->len == 0 && by->prediction.memory_total < plan->prediction.memory_total &&
            by->prediction.step_seconds <= plan->prediction.step_seconds * (1 + 1e-9))
            return TRUE;
    }
    return FALSE;
}

/* From the fastest on, what needs less than the one before by more than a step: exactly these. */
static void assert_front(const SearchRequest *request, const GPtrArray *all, const GPtrArray *front)
{
    g_autoptr(GPtrArray) sorted = g_ptr_array_new();
    guint64 least_bytes = G_MAXUINT64;
    guint num = 0;

    for (guint i = 0; i < all->len; i++)
        if (((Plan *)g_ptr_array_index(all, i))->reasons->len == 0)
            g_ptr_array_add(sorted, g_ptr_array_index(all, i));
    g_ptr_array_sort_with_data(sorted, by_key, (gpointer)request);
    for (guint i = 0; i < sorted->len; i++) {
        const Prediction *p = &((Plan *)g_ptr_array_index(sorted, i))->prediction;

        if ((double)least_bytes <= (double)p->memory_total * (1 + SEARCH_FRONT_STEP) ||
            is_beaten(all, g_ptr_array_index(sorted, i)))
            continue;
        ck_assert_uint_lt(num, front->len);
        const Prediction *listed = &((Plan *)g_ptr_array_index(front, num++))->prediction;
        ck_assert_double_eq_tol(listed->step_seconds, p->step_seconds, 1e-9 * p->step_seconds);
        ck_assert_uint_eq(listed->memory_total, p->memory_total);
        least_bytes = p->memory_total;
    }
    ck_assert_uint_eq(num, front->len);
}

/* Nothing that fits is better than all of the list by more than its step; the fastest of all is
 * there, and nothing that another beats. */
START_TEST(the_front_leaves_out_only_what_is_beaten)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_cpu_topology(8, 1u << _i);
    SearchRequest request = request_of(model, topology, 4);

    /* what a process holds beside its arena would hide all differences */
    topology->measured.framework_bytes = topology->measured.framework_alone_bytes = 1;
    request.global_batch = 8;
    request.fixed[AXIS_PP] = request.fixed[AXIS_CP] = 1;
    g_autoptr(GPtrArray) all = price_everything(&request);
    request.sort = SORT_PARETO;
    g_autoptr(SearchResult) result = search(&request);
    const GPtrArray *front = result->plans;

    ck_assert_uint_gt(front->len, 2);
    for (guint i = 0; i < all->len; i++) {
        const Plan *plan = g_ptr_array_index(all, i), *fastest = g_ptr_array_index(front, 0);

        if (plan->reasons->len > 0)
            continue;
        ck_assert(is_reached(plan, front, SEARCH_FRONT_STEP + 1e-9));
        ck_assert_double_ge(plan->prediction.step_seconds,
                            fastest->prediction.step_seconds * (1 - 1e-9));
    }
    for (guint i = 0; i < front->len; i++)
        ck_assert(!is_reached(g_ptr_array_index(front, i), front, -1e-9));
    assert_front(&request, all, front);
}
END_TEST

/* Over fast links and slow ones, and of memory that not all fit in. */
START_TEST(a_front_is_that_of_all_plans_in_whatever_order_they_are_priced)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const guint gpus = 2 + 2 * (guint)(_i % 3);
    g_autoptr(Topology) topology =
        case_gpu_topology(4, _i < 6 ? 80000 : 3536, _i % 2 == 0 ? 20000 : 20);
    SearchRequest request = request_of(model, topology, gpus);

    topology->measured.framework_bytes = topology->measured.framework_alone_bytes = 1;
    request.global_batch = 2 * gpus;
    request.fixed[AXIS_PP] = request.fixed[AXIS_CP] = 1;
    request.recompute = _i % 4 == 0 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    g_autoptr(GPtrArray) all = price_everything(&request);
    for (guint i = all->len; i-- > 0;)
        if (((Plan *)g_ptr_array_index(all, i))->schedule.recompute != (Recompute)request.recompute)
            g_ptr_array_remove_index(all, i);
    request.sort = SORT_PARETO;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_eq(result->candidates, result->feasible + result->rejected[VERDICT_MEMORY] +
                                              result->rejected[VERDICT_SLOWER]);
    ck_assert_uint_gt(result->plans->len, 0);
    assert_front(&request, all, result->plans);
}
END_TEST

/* Plans of many micro-batches are found by a straight line, and priced whole when they are listed.
 */
START_TEST(none_of_a_front_of_pipelines_is_beaten)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("llama-3.1-70b", "models", &error);
    g_autoptr(Topology) topology = topology_load("perlmutter", "topologies", &error);

    ck_assert_msg(error == NULL, "%s", error == NULL ? "" : error->message);
    SearchRequest request = request_of(model, topology, 128);
    request.seq_len = 0;
    request.schedule = -1;
    request.sequence_parallel = TRUE;
    request.global_batch = 1024;
    request.fixed[AXIS_PP] = request.fixed[AXIS_TP] = 2;
    request.fixed[AXIS_CP] = request.fixed[AXIS_DP_REPLICATE] = 1;
    request.micro_batch = 1;
    request.sort = SORT_PARETO;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_gt(result->plans->len, 2);
    for (guint i = 0; i < result->plans->len; i++)
        ck_assert(!is_reached(g_ptr_array_index(result->plans, i), result->plans, -1e-9));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("front");
    TCase *tcase = tcase_create("all");

    tcase_set_timeout(tcase, 200);
    tcase_add_loop_test(tcase, the_front_leaves_out_only_what_is_beaten, 0, 6);
    tcase_add_loop_test(tcase, a_front_is_that_of_all_plans_in_whatever_order_they_are_priced, 0,
                        12);
    tcase_add_test(tcase, none_of_a_front_of_pipelines_is_beaten);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
