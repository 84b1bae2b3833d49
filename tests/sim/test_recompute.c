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

/* ---- of the first blocks of each chunk ---- */

/* Full recomputation of one of three blocks: its activations are one block's for the moment, the
 * others keep theirs, a copy each; the residual stream is that of all. */
START_TEST(the_rest_keeps_what_the_first_blocks_compute_again)
{
    static const guint16 one_block[] = {1};
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = recomputed(model, 2);

    one.schedule.recompute_layers = one_block;
    g_autoptr(Program) program = case_build(&one);
    ck_assert_uint_eq(copies_of(program, (guint)find_tensor(program, "q")), 1);
    ck_assert_uint_eq(copies_of(program, (guint)find_tensor(program, "rest.q")), 2);
    ck_assert_uint_eq(copies_of(program, (guint)find_tensor(program, "residual")), 4);
    ck_assert_uint_eq(count_calls(program, "block.recompute"), 2);
    ck_assert_uint_eq(count_calls(program, "block.forward"), 2);
    ck_assert_uint_eq(count_calls(program, "block.rest.forward"), 2 * 2);
    ck_assert_uint_eq(count_calls(program, "block.rest.backward"), 2 * 2);
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);

        if (call->segment == (guint)find_segment(program, "block.recompute"))
            ck_assert_uint_eq(call->unit, 1);
    }
}
END_TEST

/* A block's forward pass without its last product, once a micro-batch and block. */
START_TEST(each_block_more_costs_one_more_forward_pass)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = recomputed(model, 2);
    const Case none = case_with(model, STRATEGY_FULL_SHARD, 2, 2);
    const double block = (step_flops(&one, OP_LINEAR) - step_flops(&none, OP_LINEAR)) / 3;

    for (guint16 layers = 0; layers <= 3; layers++) {
        one.schedule.recompute_layers = &layers;
        ck_assert_double_eq_tol(step_flops(&one, OP_LINEAR),
                                step_flops(&none, OP_LINEAR) + layers * block, 0.5);
    }
}
END_TEST

static char *stage_hash(const Case *from)
{
    g_autoptr(Program) program = case_build(from);

    return program_hash(program);
}

/* A stage of which all or none are computed again has the program of that choice. */
START_TEST(all_and_none_of_a_stage_are_the_plain_programs)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const guint16 all = 3, none = 0;

    for (gint r = RECOMPUTE_SELECTIVE; r < NUM_RECOMPUTES; r++) {
        Case plain = recomputed(model, 2), by_layers = plain;

        plain.schedule.recompute = by_layers.schedule.recompute = (Recompute)r;
        by_layers.schedule.recompute_layers = &all;
        g_autofree char *plain_all = stage_hash(&plain), *given_all = stage_hash(&by_layers);
        ck_assert_str_eq(plain_all, given_all);
        plain.schedule.recompute = RECOMPUTE_NONE;
        by_layers.schedule.recompute_layers = &none;
        g_autofree char *plain_none = stage_hash(&plain), *given_none = stage_hash(&by_layers);
        ck_assert_str_eq(plain_none, given_none);
        ck_assert_str_ne(plain_all, plain_none);
    }
}
END_TEST

static const struct {
    const char *text, *again; /* read, set for 10 layers in 4 stages (2, 3, 3, 2), printed */
} texts[] = {
    {"none", "none"},
    {"full", "full"},
    {"selective:1", "selective:1"},
    {"full:2/1/0/2", "full:2/1/0/2"},
    {"full:9/0/0/0", "full:2/0/0/0"}, /* no more than there are */
    {"full:3", "full"},
    {"selective:0", "none"},
};

START_TEST(it_is_read_and_printed_in_one_form)
{
    guint16 layers[MAX_CHUNKS];
    Schedule schedule = {.virtual_stages = 1};
    guint num;

    ck_assert(recompute_parse(texts[_i].text, &schedule.recompute, layers, &num));
    for (guint s = 0; num > 0 && s < 4; s++)
        layers[s] = layers[num == 1 ? 0 : s];
    if (num > 0)
        schedule_set_recompute(&schedule, schedule.recompute, layers, 10, 4);
    g_autofree char *again = schedule_recompute_text(&schedule, 4);
    ck_assert_str_eq(again, texts[_i].again);
}
END_TEST

START_TEST(what_is_no_number_of_layers_is_refused)
{
    static const char *const wrong[] = {"",        "all",      "none:1",   "full:",     "full:1/",
                                        "full:-1", "full:1:2", "full:1,2", "full:70000"};
    guint16 layers[MAX_CHUNKS];
    Recompute recompute;
    guint num;

    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++)
        ck_assert_msg(!recompute_parse(wrong[i], &recompute, layers, &num), "%s", wrong[i]);
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
    tcase_add_test(tcase, the_rest_keeps_what_the_first_blocks_compute_again);
    tcase_add_test(tcase, each_block_more_costs_one_more_forward_pass);
    tcase_add_test(tcase, all_and_none_of_a_stage_are_the_plain_programs);
    tcase_add_loop_test(tcase, it_is_read_and_printed_in_one_form, 0, G_N_ELEMENTS(texts));
    tcase_add_test(tcase, what_is_no_number_of_layers_is_refused);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
