#include "tests/sim/spec_case.h"

static Case recomputed(Model *model, guint micro_batches)
{
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, micro_batches);

    one.schedule.recompute = RECOMPUTE_FULL;
    return one;
}

/* All that the backward pass reads: the block's output, and the product that leads to it, are not.
 */
START_TEST(the_recomputed_segment_leaves_out_what_nobody_saves)
{
    static const OpKind kinds[] = {OP_RMSNORM, OP_LINEAR,    OP_LINEAR, OP_LINEAR,
                                   OP_ROPE,    OP_ATTENTION, OP_CAST,   OP_LINEAR,
                                   OP_RMSNORM, OP_LINEAR,    OP_LINEAR};
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = recomputed(model, 1);
    g_autoptr(Program) program = case_build(&one);
    const gint found = find_segment(program, "block.recompute");

    ck_assert_int_ge(found, 0);
    const Segment *segment = program_segment(program, (guint)found);
    ck_assert_uint_eq(segment->num_ops, G_N_ELEMENTS(kinds));
    for (guint i = 0; i < segment->num_ops; i++)
        ck_assert_str_eq(op_kind_name(segment->ops[i].kind), op_kind_name(kinds[i]));
}
END_TEST

START_TEST(the_recomputed_segment_writes_every_saved_tensor_and_not_the_residual)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = recomputed(model, 1);
    g_autoptr(Program) program = case_build(&one);
    const Segment *segment =
        program_segment(program, (guint)find_segment(program, "block.recompute"));
    static const char *const saved[] = {"rstd1", "q",   "k",     "v",    "o",
                                        "lse",   "mid", "rstd2", "gate", "up"};

    for (guint s = 0; s < G_N_ELEMENTS(saved) + 1; s++) {
        const gboolean is_saved = s < G_N_ELEMENTS(saved);
        const gint tensor = find_tensor(program, is_saved ? saved[s] : "residual");
        gboolean written = FALSE;

        ck_assert_int_ge(tensor, 0);
        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++)
                written |= segment->ops[i].operands[o].tensor == (guint)tensor &&
                           segment->ops[i].operands[o].access != ACCESS_READ;
        ck_assert_msg(written == is_saved, "%s", program_tensor(program, (guint)tensor)->name);
    }
}
END_TEST

START_TEST(each_blocks_backward_is_preceded_by_its_own_recomputation)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = recomputed(model, 3);
    g_autoptr(Program) program = case_build(&one);
    guint backward = 0;
    const Call *recompute = NULL;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const char *name = program_segment(program, call->segment)->name;

        if (strcmp(name, "block.recompute") == 0)
            recompute = call;
        if (strcmp(name, "block.backward") != 0)
            continue;
        ck_assert_ptr_nonnull(recompute);
        ck_assert_uint_eq(recompute->unit, call->unit);
        ck_assert_uint_eq(recompute->micro_batch, call->micro_batch);
        recompute = NULL;
        backward++;
    }
    ck_assert_uint_eq(backward, 3 * 3);
    ck_assert_uint_eq(count_calls(program, "block.recompute"), 3 * 3);
}
END_TEST

/* A token: 2 C for each block's input, and one block's saved activations, whatever the depth. */
START_TEST(saved_activations_are_those_of_one_block)
{
    for (guint layers = 1; layers <= 9; layers += 4) {
        CaseShape shape = case_shape;

        shape.layers = layers;
        g_autoptr(Model) model = case_model(&shape);
        const Case one = recomputed(model, 1);
        g_autoptr(Program) program = case_build(&one);
        const guint q = (guint)find_tensor(program, "q"), up = (guint)find_tensor(program, "up");
        const guint residual = (guint)find_tensor(program, "residual");

        ck_assert_uint_eq(tensor_bytes(program, program_tensor(program, q)), 16 * 24 * 2);
        ck_assert_uint_eq(tensor_bytes(program, program_tensor(program, up)), 16 * 40 * 2);
        ck_assert_uint_eq(tensor_bytes(program, program_tensor(program, residual)),
                          (layers + 1) * 16 * 24 * 2);
    }
}
END_TEST

static double step_flops(const Case *from, OpKind kind)
{
    g_autoptr(Program) program = case_build(from);
    double flops = 0;

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            flops += segment->ops[i].kind == kind ? op_flops(&segment->ops[i]) : 0;
    }
    return flops;
}

/* Twice the forward pass but for the down projection, which nothing reads again. */
START_TEST(it_costs_one_more_forward_pass_without_the_last_product)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case none = case_with(model, STRATEGY_FULL_SHARD, 2, 2), full = recomputed(model, 2);
    const double down = 2.0 * 2 * 3 * 16 * 24 * 40;

    ck_assert_double_eq_tol(step_flops(&full, OP_LINEAR), 2 * step_flops(&none, OP_LINEAR) - down,
                            0.5);
    ck_assert_double_eq_tol(step_flops(&full, OP_ATTENTION), 2 * step_flops(&none, OP_ATTENTION),
                            0.5);
    ck_assert_double_eq_tol(step_flops(&full, OP_LINEAR_BACKWARD_WEIGHT),
                            step_flops(&none, OP_LINEAR_BACKWARD_WEIGHT), 0.5);
    ck_assert_double_eq_tol(step_flops(&full, OP_HEAD_LOSS), step_flops(&none, OP_HEAD_LOSS), 0.5);
}
END_TEST

START_TEST(the_backward_gather_comes_before_the_recomputation_and_serves_both)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = recomputed(model, 1);

    one.sharding.prefetch = 0;
    one.sharding.live_units = 1;
    g_autoptr(Program) program = case_build(&one);
    guint served = 0;
    for (guint c = 2; c < program->step.calls->len; c++) {
        const Call *calls = &g_array_index(program->step.calls, Call, c - 2);

        if (strcmp(program_segment(program, calls[2].segment)->name, "block.backward") != 0)
            continue;
        ck_assert_str_eq(program_segment(program, calls[1].segment)->name, "block.recompute");
        ck_assert_str_eq(program_segment(program, calls[0].segment)->name, "block.gather");
        ck_assert_uint_eq(calls[0].unit, calls[2].unit);
        served++;
    }
    ck_assert_uint_eq(served, 3);
}
END_TEST

START_TEST(without_recomputation_no_such_segment_exists)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_int_eq(find_segment(program, "block.recompute"), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recompute");
    TCase *tcase = tcase_create("recompute");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, the_recomputed_segment_leaves_out_what_nobody_saves);
    tcase_add_test(tcase, the_recomputed_segment_writes_every_saved_tensor_and_not_the_residual);
    tcase_add_test(tcase, each_blocks_backward_is_preceded_by_its_own_recomputation);
    tcase_add_test(tcase, saved_activations_are_those_of_one_block);
    tcase_add_test(tcase, it_costs_one_more_forward_pass_without_the_last_product);
    tcase_add_test(tcase, the_backward_gather_comes_before_the_recomputation_and_serves_both);
    tcase_add_test(tcase, without_recomputation_no_such_segment_exists);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
