/* Tokens that are not balanced over the ranks that share experts. */
#include "tests/sim/expert_case.h"

/* 16 tokens a rank go to 2 experts each: 32 rows.  Of two ranks that share 4 experts the busiest
 * one has @arriving of their 64, as many of each of its 2. */
static const struct {
    double imbalance;
    guint ep;
    guint64 arriving;
} busiest[] = {
    {1, 2, 32},    /* balanced */
    {1.25, 2, 40}, /* 32 x 1.25 */
    {1.3, 2, 42},  /* 41.6, a part of a row is a row */
    {2, 2, 64},    /* all */
    {2, 4, 64},    /* of four ranks' 128 half, on one expert */
    {1.5, 1, 32},  /* a rank that has all experts has its own tokens */
};

static guint64 elements_of(const Program *program, const char *name)
{
    return program_tensor(program, (guint)find_tensor(program, name))->elements;
}

/* Gate, up and down are products of (rows, 32) with (32, 48); forward, and twice that backward. */
static double experts_flops(const Program *program)
{
    double flops = 0;

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++) {
            const OpKind kind = segment->ops[i].kind;

            if (kind == OP_GROUPED_LINEAR || kind == OP_GROUPED_LINEAR_BACKWARD_INPUT ||
                kind == OP_GROUPED_LINEAR_BACKWARD_WEIGHT)
                flops += op_flops(&segment->ops[i]);
        }
    }
    return flops;
}

START_TEST(the_busiest_rank_has_what_is_worked_out_by_hand)
{
    const guint ep = busiest[_i].ep;
    const guint64 rows = busiest[_i].arriving;
    g_autoptr(Model) model = expert_model(MIXTRAL);
    Case one = expert_case(model, 4, 1, 1, ep);

    one.workload.expert_imbalance = busiest[_i].imbalance;
    g_autoptr(Program) program = case_build(&one);
    guint64 bytes[NUM_VOLUMES];

    ck_assert_uint_eq(elements_of(program, "sparse.expert_rows"), rows * 32);
    ck_assert_uint_eq(elements_of(program, "sparse.expert_gate"), rows * 48);
    ck_assert_double_eq_tol(experts_flops(program), 3.0 * 3 * 2 * (double)rows * 32 * 48, 1e-6);
    program_volume(program, bytes);
    /* of 4 blocks: rows of 32 bf16 four times, of an fp32 weight twice, from the other ranks */
    ck_assert_uint_eq(bytes[VOLUME_ALL_TO_ALL],
                      4 * (4 * (rows * 64 / ep) + 2 * (rows * 4 / ep)) * (ep - 1));
    if (ep == 2) {
        ck_assert_uint_eq(elements_of(program, "sparse.sent"), 32 * 32);
        ck_assert_uint_eq(elements_of(program, "sparse.received"), rows * 32);
    }
}
END_TEST

/* What a plan says of balanced routing is what it said before there was a choice. */
START_TEST(balanced_plans_do_not_name_it_and_others_do)
{
    g_autoptr(Model) model = expert_model(MIXTRAL);
    g_autoptr(Topology) topology = case_gpu_topology(2, 8000, 1000);
    SearchRequest request = request_for(model, topology);
    char *text[3];
    static const double imbalances[] = {0, 1, 1.5};

    request.fixed[AXIS_DP_SHARD] = 8;
    request.fixed_ep = 4;
    for (guint i = 0; i < 3; i++) {
        request.expert_imbalance = imbalances[i];
        g_autoptr(Plan) plan = search_estimate(&request, NULL);
        text[i] = plan_print(plan);
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) read = plan_parse(text[i], "plan", &error);
        ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
        g_autofree char *again = plan_print(read);
        ck_assert_str_eq(again, text[i]);
        g_autoptr(ProgramSet) set = plan_compile(read, &error);
        ck_assert_msg(set != NULL, "%s", error == NULL ? "" : error->message);
        ck_assert_int_eq(strstr(text[i], "\"expert_imbalance\" : 1.5") != NULL, i == 2);
    }
    ck_assert_str_eq(text[0], text[1]);
    ck_assert_str_ne(text[0], text[2]);
    for (guint i = 0; i < 3; i++)
        g_free(text[i]);
}
END_TEST

START_TEST(an_imbalance_that_cannot_be_is_refused_in_a_plan)
{
    static const char *const wrong[] = {"0.99", "2.01", "-1", "\"1.5\"", "1e999"};
    g_autoptr(Model) model = expert_model(MIXTRAL); /* 4 experts, 2 a token: at most 2 */
    g_autoptr(Topology) topology = case_gpu_topology(2, 8000, 1000);
    SearchRequest request = request_for(model, topology);

    request.fixed[AXIS_DP_SHARD] = 8;
    request.fixed_ep = 4;
    request.expert_imbalance = 1.5;
    g_autoptr(Plan) plan = search_estimate(&request, NULL);
    g_autofree char *text = plan_print(plan);
    char *at = strstr(text, "\"expert_imbalance\" : 1.5");
    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autofree char *before = g_strndup(text, (gsize)(at - text));
        g_autofree char *changed =
            g_strdup_printf("%s\"expert_imbalance\" : %s%s", before, wrong[i],
                            at + strlen("\"expert_imbalance\" : 1.5"));
        g_autoptr(GError) error = NULL;
        g_autoptr(Plan) read = plan_parse(changed, "plan", &error);

        ck_assert_ptr_null(read);
        ck_assert_msg(strstr(error->message, "expert_imbalance") != NULL ||
                          strstr(error->message, "plan:") != NULL,
                      "%s", error->message);
    }
    ck_assert_double_eq(workload_most_imbalance(0, 0), 1);
    ck_assert_double_eq(workload_most_imbalance(256, 8), 32);
}
END_TEST

/* More rows take no less time and memory. */
START_TEST(imbalance_costs_time_and_memory)
{
    g_autoptr(Model) model = expert_model((guint)_i);
    g_autoptr(Topology) topology = case_gpu_topology(2, 8000, 1000);
    SearchRequest request = request_for(model, topology);
    double step_s = 0;
    guint64 bytes = 0;

    if (!model_is_sparse(model, model->layers - 1))
        return; /* latent attention alone */
    request.seq_len = 512;
    request.fixed[AXIS_DP_SHARD] = 8;
    request.fixed_ep = 4;
    for (guint i = 0; i < 4; i++) {
        request.expert_imbalance = 1 + i / 3.0;
        g_autoptr(Plan) plan = search_estimate(&request, NULL);
        ck_assert_double_gt(plan->prediction.step_seconds, step_s);
        ck_assert_uint_gt(plan->prediction.memory_total, bytes);
        step_s = plan->prediction.step_seconds;
        bytes = plan->prediction.memory_total;
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("imbalance");
    TCase *tcase = tcase_create("imbalance");

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, the_busiest_rank_has_what_is_worked_out_by_hand, 0,
                        G_N_ELEMENTS(busiest));
    tcase_add_test(tcase, balanced_plans_do_not_name_it_and_others_do);
    tcase_add_test(tcase, an_imbalance_that_cannot_be_is_refused_in_a_plan);
    tcase_add_loop_test(tcase, imbalance_costs_time_and_memory, 0, G_N_ELEMENTS(expert_cases));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
