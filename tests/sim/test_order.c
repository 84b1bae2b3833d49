#include "sim/program/builder.h"
#include "tests/sim/spec_case.h"

/* What a step does with units between its first reduction of scalars and the last one: G gather, E
 * embedding, F forward, C recompute, H head, B backward, R reduce, D embedding's backward; and the
 * number of the unit. */
static char *order_text(const Program *program)
{
    static const struct {
        const char *suffix;
        char letter;
    } letters[] = {{"_gather", 'U'},        {".gather", 'G'},      {"embed.forward", 'E'},
                   {".forward", 'F'},       {".recompute", 'C'},   {"head", 'H'},
                   {"embed.backward", 'D'}, {".backward", 'B'},    {"block.reduce", 'R'},
                   {"root.reduce", 'R'},    {".reduce.last", 'R'}, {".reduce.add.last", 'R'},
                   {".reduce.add", 'R'}};
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);
        const char *name = program_segment(program, call->segment)->name;
        guint i = 0;

        while (i < G_N_ELEMENTS(letters) && !g_str_has_suffix(name, letters[i].suffix))
            i++;
        if (i < G_N_ELEMENTS(letters))
            g_string_append_printf(text, "%s%c%u", text->len == 0 ? "" : " ", letters[i].letter,
                                   call->unit);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Two blocks, one micro-batch, worked by hand: before each use the gathers of the next `prefetch`
 * uses, as far as the unit is free and a copy is. */
static const struct {
    guint prefetch, live_units;
    gboolean keep;
    Recompute recompute;
    const char *order;
} worked[] = {
    {0, 1, FALSE, RECOMPUTE_NONE, "G0 E0 G1 F1 G2 F2 G0 H0 G2 B2 R2 G1 B1 R1 D0 R0"},
    {1, 2, FALSE, RECOMPUTE_NONE, "G0 G1 E0 G2 F1 G0 F2 G2 H0 G1 B2 R2 B1 R1 D0 R0"},
    {2, 3, FALSE, RECOMPUTE_NONE, "G0 G1 G2 E0 G0 F1 F2 G2 G1 H0 B2 R2 B1 R1 D0 R0"},
    {0, 1, TRUE, RECOMPUTE_NONE, "G0 E0 G1 F1 G2 F2 H0 B2 R2 G1 B1 R1 D0 R0"},
    {1, 2, TRUE, RECOMPUTE_NONE, "G0 G1 E0 G2 F1 F2 H0 G1 B2 R2 B1 R1 D0 R0"},
    {0, 1, FALSE, RECOMPUTE_FULL, "G0 E0 G1 F1 G2 F2 G0 H0 G2 C2 B2 R2 G1 C1 B1 R1 D0 R0"},
    {1, 2, FALSE, RECOMPUTE_FULL, "G0 G1 E0 G2 F1 G0 F2 G2 H0 C2 G1 B2 R2 C1 B1 R1 D0 R0"},
};

START_TEST(gathers_move_ahead_by_the_prefetch_depth)
{
    CaseShape shape = case_shape;

    shape.layers = 2;
    g_autoptr(Model) model = case_model(&shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    one.sharding.prefetch = worked[_i].prefetch;
    one.sharding.live_units = worked[_i].live_units;
    one.sharding.keep_root = one.sharding.keep_last = worked[_i].keep;
    one.schedule.recompute = worked[_i].recompute;
    g_autoptr(Program) program = case_build(&one);
    g_autofree char *text = order_text(program);
    ck_assert_str_eq(text, worked[_i].order);
}
END_TEST

START_TEST(the_other_strategies_order_their_calls_so)
{
    static const struct {
        Strategy strategy;
        guint micro_batches;
        gboolean sharded;
        const char *order;
    } listed[] = {
        {STRATEGY_NO_SHARD, 1, TRUE, "E0 F1 F2 H0 B2 R2 B1 R1 D0 R0"},
        {STRATEGY_SHARD_OPTIMIZER, 1, TRUE, "E0 F1 F2 H0 B2 R2 B1 R1 D0 R0 U0 U1 U2"},
        {STRATEGY_SHARD_GRAD_OP, 1, TRUE, "G0 G1 E0 G2 F1 F2 H0 B2 R2 B1 R1 D0 R0"},
        {STRATEGY_SHARD_GRAD_OP, 2, TRUE,
         "G0 G1 E0 G2 F1 F2 H0 B2 R2 B1 R1 D0 R0 E0 F1 F2 H0 B2 R2 B1 R1 D0 R0"},
        {STRATEGY_SHARD_GRAD_OP, 2, FALSE,
         "G0 G1 E0 G2 F1 F2 H0 B2 B1 D0 E0 F1 F2 H0 B2 R2 B1 R1 D0 R0"},
    };
    CaseShape shape = case_shape;

    shape.layers = 2;
    g_autoptr(Model) model = case_model(&shape);
    for (guint i = 0; i < G_N_ELEMENTS(listed); i++) {
        Case one = case_with(model, listed[i].strategy, 2, listed[i].micro_batches);

        one.sharding.accumulate_sharded &= listed[i].sharded;
        g_autoptr(Program) program = case_build(&one);
        g_autofree char *text = order_text(program);
        ck_assert_str_eq(text, listed[i].order);
    }
}
END_TEST

/* In place: one reduction a unit, with the last micro-batch, right after its last backward. */
START_TEST(whole_gradients_are_reduced_with_the_last_micro_batch_only)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        Case one = case_with(model, (Strategy)s, 2, 3);

        one.sharding.accumulate_sharded = FALSE;
        g_autoptr(Program) program = case_build(&one);
        guint reduced = 0;
        for (guint c = 0; c < program->step.calls->len; c++) {
            const Call *call = &g_array_index(program->step.calls, Call, c);
            const char *name = program_segment(program, call->segment)->name;

            if (strcmp(name, "block.reduce") != 0 && strcmp(name, "root.reduce") != 0)
                continue;
            ck_assert_uint_eq(call->micro_batch, 2);
            ck_assert(call->last);
            reduced++;
        }
        ck_assert_uint_eq(reduced, 4);
    }
}
END_TEST

/* A unit's copy is taken by its gather and freed by its last reader; none is taken twice. */
START_TEST(no_more_units_are_alive_than_their_ring_has_copies)
{
    CaseShape shape = case_shape;
    g_autoptr(GRand) random = g_rand_new_with_seed(41);

    shape.layers = 5;
    g_autoptr(Model) model = case_model(&shape);
    for (guint i = 0; i < 200; i++) {
        const Case one = case_random_4d(random, model);
        g_autoptr(Program) program = case_build(&one);

        for (guint u = 0; u < program->units->len; u++) {
            const UnitClass *unit = program_unit(program, u);

            if (unit->gathered == NO_TENSOR || unit->kind == UNIT_ROOT ||
                unit->strategy == STRATEGY_SHARD_GRAD_OP)
                continue;
            guint kept = 0;
            for (guint b = 1; b < model->layers; b++)
                kept += program_unit_ref(program, b)->unit_class == u &&
                                sharding_unit_kept(&one.sharding, b, model->layers)
                            ? 1
                            : 0;
            ck_assert_uint_le(copies_of(program, (guint)unit->gathered),
                              one.sharding.live_units + kept);
        }
    }
}
END_TEST

START_TEST(more_prefetch_never_delays_a_gather)
{
    g_autoptr(Model) model = case_model(&case_shape);
    guint behind[4]; /* sum over gathers of the compute calls issued before them */

    for (guint prefetch = 0; prefetch < 4; prefetch++) {
        Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 2);
        guint computed = 0;

        one.sharding.prefetch = prefetch;
        one.sharding.live_units = prefetch + 1;
        g_autoptr(Program) program = case_build(&one);
        behind[prefetch] = 0;
        for (guint c = 0; c < program->step.calls->len; c++) {
            const Segment *segment =
                program_segment(program, g_array_index(program->step.calls, Call, c).segment);

            if (g_str_has_suffix(segment->name, ".gather"))
                behind[prefetch] += computed;
            else if (segment->ops[0].stream == COMPUTE_STREAM)
                computed++;
        }
        ck_assert(prefetch == 0 || behind[prefetch] <= behind[prefetch - 1]);
    }
    ck_assert_uint_lt(behind[1], behind[0]);
    ck_assert_uint_lt(behind[2], behind[1]);
}
END_TEST

/* ---- waits ---- */

/* x := input on the compute stream, x reduced on another, y := x where @reads. */
static Program *copy_reduce_read(gboolean reads)
{
    Program *program = program_new();
    const guint group = program_add_group(program, "data", 2);
    const guint stream = program_add_stream(program, "data.reduce", STREAM_COMMUNICATION, group);
    const guint in = program_add_tensor(program, "in", TENSOR_INPUT, DTYPE_FP32, NO_SPACE, 8);
    const guint x = program_add_tensor(program, "x", TENSOR_ACTIVATION, DTYPE_FP32, NO_SPACE, 8);
    const guint y = program_add_tensor(program, "y", TENSOR_GRADIENT, DTYPE_FP32, NO_SPACE, 8);
    const guint copy = program_add_segment(program, "copy");
    const guint reduce = program_add_segment(program, "reduce");
    const guint read = program_add_segment(program, "read");
    Op *op = segment_add_op(program, copy, OP_CAST, COMPUTE_STREAM, DTYPE_FP32);

    op_add_operand(op, in, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, x, ACCESS_WRITE, 0, WHOLE_TENSOR);
    op = segment_add_op(program, reduce, OP_ALL_REDUCE, stream, DTYPE_FP32);
    op_add_operand(op, x, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    op = segment_add_op(program, read, OP_CAST, COMPUTE_STREAM, DTYPE_FP32);
    op_add_operand(op, x, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, y, ACCESS_WRITE, 0, WHOLE_TENSOR);
    call_list_add(&program->step, copy, 0, 0);
    call_list_add(&program->step, reduce, 0, 0);
    if (reads)
        call_list_add(&program->step, read, 0, 0);
    order_add_waits(program);
    return program;
}

static void assert_wait(const Program *program, guint c, guint event_call, guint back)
{
    const Call *call = &g_array_index(program->step.calls, Call, c);

    ck_assert_uint_eq(call->num_waits, 1);
    const Wait *wait = &g_array_index(program->step.waits, Wait, call->first_wait);
    ck_assert_uint_eq(wait->call, event_call);
    ck_assert_uint_eq(wait->op, 0);
    ck_assert_uint_eq(wait->before, 0);
    ck_assert_uint_eq(wait->back, back);
}

START_TEST(a_read_waits_for_its_writer_and_a_wait_that_others_imply_is_not_added)
{
    g_autoptr(Program) program = copy_reduce_read(TRUE);

    ck_assert_uint_eq(program->step.waits->len, 2);
    assert_wait(program, 1, 0, 0);
    assert_wait(program, 2, 1, 0);
    /* The next step's copy follows the read on its own stream, which waited. */
    ck_assert_uint_eq(g_array_index(program->step.calls, Call, 0).num_waits, 0);
}
END_TEST

START_TEST(an_overwrite_waits_for_the_step_before)
{
    g_autoptr(Program) program = copy_reduce_read(FALSE);

    ck_assert_uint_eq(program->step.waits->len, 2);
    assert_wait(program, 0, 1, 1);
    assert_wait(program, 1, 0, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("order");
    TCase *tcase = tcase_create("order");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, gathers_move_ahead_by_the_prefetch_depth, 0, G_N_ELEMENTS(worked));
    tcase_add_test(tcase, the_other_strategies_order_their_calls_so);
    tcase_add_test(tcase, whole_gradients_are_reduced_with_the_last_micro_batch_only);
    tcase_add_test(tcase, no_more_units_are_alive_than_their_ring_has_copies);
    tcase_add_test(tcase, more_prefetch_never_delays_a_gather);
    tcase_add_test(tcase, a_read_waits_for_its_writer_and_a_wait_that_others_imply_is_not_added);
    tcase_add_test(tcase, an_overwrite_waits_for_the_step_before);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
