#include "sim/program/builder.h"
#include "sim/program/check.h"
#include "sim/program/check_parts.h"
#include "tests/sim/family_case.h"
#include "tests/sim/hazards.h"

static GPtrArray *data_problems(const Program *program)
{
    GPtrArray *problems = g_ptr_array_new_with_free_func(g_free);

    check_data(program, problems);
    return problems;
}

/* ---- what the passes build is proven ---- */

/* One of strategies x recompute x M x accumulate x keep x prefetch; forms, recipes and meshes take
 * turns so that each meets each. */
static Case matrix_case(Model *model, guint i)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_fp32};
    static const guint meshes[][2] = {{1, 2}, {2, 3}, {3, 1}, {1, 4}, {2, 2}};
    const guint strategy = i % NUM_STRATEGIES, rest = i / NUM_STRATEGIES;
    const guint turn = rest + rest / 16 + rest / 64;
    Case made = case_of(model, meshes[turn % 5][0], meshes[turn % 5][1], 1 + rest / 2 % 4);

    made.schedule.recompute = (Recompute)(rest % 2);
    made.sharding.strategy = (Strategy)strategy;
    made.sharding.accumulate_sharded = rest / 8 % 2 == 0;
    made.sharding.keep_root = rest / 16 % 2 == 0;
    made.sharding.keep_last = rest / 32 % 2 == 0;
    made.sharding.prefetch = rest / 64 % 4;
    made.sharding.live_units = made.sharding.prefetch + 1 + turn / 5 % 2;
    made.sharding.form = (Form)(turn / 3 % 2);
    made.workload.recipe = recipes[turn / 2 % 3];
    if (strategy <= STRATEGY_SHARD_OPTIMIZER && made.workload.recipe == &recipe_fsdp2)
        made.workload.recipe = &recipe_zero;
    if (strategy == STRATEGY_NO_SHARD)
        made.layout.size[AXIS_DP_SHARD] = 1;
    if (strategy == STRATEGY_HYBRID_SHARD)
        made.layout.size[AXIS_DP_REPLICATE] = 2;
    made.workload.global_batch = layout_data_ranks(&made.layout) * 2 * made.schedule.micro_batches;
    sharding_normalise(&made.sharding, &made.layout, &made.schedule);
    return made;
}

enum { MATRIX = NUM_STRATEGIES * 2 * 4 * 2 * 2 * 2 * 4, SLICES = 4 };

START_TEST(every_combination_of_choices_is_proven)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint i = (guint)_i; i < MATRIX; i += SLICES) {
        const Case one = matrix_case(model, i);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);

        assert_proven(set, text);
    }
}
END_TEST

/* With those of test_member_faults, test_experts and test_plannable more than 1,000. */
START_TEST(random_choices_of_all_kinds_are_proven)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(31);

    for (guint i = 0; i < 400; i++) {
        guint16 stages[MAX_CHUNKS];
        g_autoptr(Model) model = NULL;
        const Case one = draw_of_all(random, &model, stages);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);

        assert_proven(set, text);
    }
}
END_TEST

/* ---- one wait fewer ---- */

/* Without the wait, check and the slow search for races must agree.  Returns whether it was
 * needed. */
static gboolean try_without(Program *program, Wait *wait, const char *text)
{
    const Wait before = *wait;

    wait->before = G_MAXUINT32; /* no op of that number */
    g_autoptr(GPtrArray) problems = data_problems(program);
    const gboolean needed = hazards_races(program) > 0;
    *wait = before;
    ck_assert_msg((problems->len > 0) == needed, "%s: call %u op %u: check found %u problems", text,
                  wait->call, wait->op, problems->len);
    return needed;
}

START_TEST(a_program_without_one_of_its_waits_is_caught_or_has_no_race)
{
    static const Strategy strategies[] = {STRATEGY_NO_SHARD, STRATEGY_SHARD_OPTIMIZER,
                                          STRATEGY_SHARD_GRAD_OP, STRATEGY_FULL_SHARD,
                                          STRATEGY_HYBRID_SHARD};
    CaseShape shape = case_shape;
    guint needed = 0, all = 0;

    shape.layers = 2;
    g_autoptr(Model) model = case_model(&shape);
    for (guint i = 0; i < 4; i++) {
        Case one = case_with(model, strategies[_i], 2, 1 + i % 2);
        g_autofree char *text = case_text(&one);

        one.schedule.recompute = (Recompute)(i / 2);
        one.sharding.prefetch = i % 3;
        one.sharding.live_units = 3;
        g_autoptr(Program) program = case_build(&one);
        ck_assert_uint_eq(hazards_races(program), 0);
        for (guint w = 0; w < program->step.waits->len; w++, all++)
            needed +=
                try_without(program, &g_array_index(program->step.waits, Wait, w), text) ? 1 : 0;
    }
    ck_assert_uint_gt(all, 0);
    ck_assert_msg(needed * 10 >= all * 9, "%u of %u waits are needed", needed, all);
}
END_TEST

START_TEST(a_wait_for_a_call_that_is_issued_later_is_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);
    Wait *wait = &g_array_index(set->classes[0]->step.waits, Wait, 0);

    wait->back = 0;
    wait->call = set->classes[0]->step.calls->len - 1;
    assert_caught(set, "which is issued later");
}
END_TEST

/* ---- memory ---- */

START_TEST(an_arena_that_is_too_small_is_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);
    guint64 *arena = &set->classes[0]->arena_bytes[TIER_DEVICE];
    g_autoptr(GPtrArray) fits = program_set_check(set, *arena);
    g_autoptr(GPtrArray) too_large = program_set_check(set, *arena - 1);

    ck_assert_uint_eq(fits->len, 0);
    ck_assert_uint_eq(too_large->len, 1);
    ck_assert(strstr(g_ptr_array_index(too_large, 0), "does not fit in") != NULL);
    *arena -= ARENA_ALIGNMENT;
    assert_caught(set, "of an arena of");
}
END_TEST

/* Moves each step tensor over every other one and asks both checkers. */
START_TEST(tensors_that_share_bytes_while_both_are_needed_are_caught)
{
    CaseShape shape = case_shape;
    guint caught = 0, all = 0;

    shape.layers = 2;
    g_autoptr(Model) model = case_model(&shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(Program) program = case_build(&one);
    for (guint t = 0; t < program->tensors->len; t++) {
        Tensor *tensor = program_tensor(program, t);
        const guint64 offset = tensor->offset;

        for (guint other = 0; other < program->tensors->len; other += 7) {
            const Tensor *there = program_tensor(program, other);

            if (other == t || tensor_bytes(program, tensor) == 0 ||
                there->offset + tensor->stride * copies_of(program, t) >
                    program->arena_bytes[TIER_DEVICE])
                continue;
            tensor->offset = there->offset;
            g_autoptr(GPtrArray) problems = data_problems(program);
            const gboolean wrong = hazards_races(program) + hazards_wrong_reads(program) > 0;
            ck_assert_msg((problems->len > 0) == wrong, "%s over %s: %u problems", tensor->name,
                          there->name, problems->len);
            caught += wrong ? 1 : 0;
            all++;
        }
        tensor->offset = offset;
    }
    ck_assert_uint_gt(all, 200);
    ck_assert_uint_gt(caught, all / 2);
}
END_TEST

START_TEST(a_read_of_what_nobody_wrote_is_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);
    const Program *program = set->classes[0];
    const gint gather = find_segment(program, "root.gather");

    ck_assert_int_ge(gather, 0);
    program_segment(program, (guint)gather)->num_ops = 0;
    assert_caught(set, "root.gathered[0] is read before it is written");
}
END_TEST

/* Gradients of a unit are written one by one: a missing one must not pass as written. */
START_TEST(a_reduction_of_gradients_of_which_one_was_not_written_is_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);
    const Segment *backward =
        program_segment(set->classes[0], (guint)find_segment(set->classes[0], "block.backward"));
    guint dropped = 0;

    for (guint i = 0; i < backward->num_ops; i++) {
        Op *op = &backward->ops[i];

        if (op->kind != OP_LINEAR_BACKWARD_WEIGHT)
            continue;
        const guint operands = op->num_operands;
        op->num_operands = 2; /* neither the gradient nor the scratch */
        assert_caught(set, "block.unit_gradients[0] is read before it is written");
        op->num_operands = operands;
        dropped++;
    }
    ck_assert_uint_eq(dropped, 7);
}
END_TEST

/* One stream sums a scalar; on the other an op computes that knows nothing of it: *op. */
static ProgramSet *set_with_a_sum(const char *name, guint *scalar, Op **op)
{
    ProgramSet *set = program_set_new(1);
    Program *program = program_new();
    const guint rank = 0;
    const guint data = program_add_tensor(program, "data", TENSOR_GRADIENT, DTYPE_FP64, 0, 1);
    const guint stream = program_add_stream(program, "shard.reduce", STREAM_COMMUNICATION,
                                            program_add_group(program, "shard", 1));
    const guint segment = program_add_segment(program, "segment");

    *scalar = program_add_tensor(program, name, TENSOR_SCALAR, DTYPE_FP64, 0, 1);
    *op = segment_add_op(program, segment, OP_ALL_REDUCE, stream, DTYPE_FP64);
    (*op)->sizes.elements = 1;
    op_add_operand(*op, *scalar, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    *op = segment_add_op(program, segment, OP_CAST, COMPUTE_STREAM, DTYPE_FP64);
    op_add_operand(*op, data, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    call_list_add(&program->step, segment, 0, 0);
    program_place(program);
    program_set_add_class(set, program);
    program_set_add_group(set, "shard", &rank, 1);
    return set;
}

START_TEST(a_predicate_that_another_stream_may_still_write_is_caught)
{
    guint flag;
    Op *op;
    g_autoptr(ProgramSet) set = set_with_a_sum("flag", &flag, &op);

    op->predicate = (gint)flag;
    assert_caught(set, "flag[0] is read while another stream may still write it");
    order_add_waits(set->classes[0]);
    assert_proven(set, "with waits");
}
END_TEST

/* Nothing on the rank needs the sum but the host, which looks when the rank's compute is done. */
START_TEST(a_scalar_that_the_host_may_read_too_early_is_caught)
{
    guint sum;
    Op *op;
    g_autoptr(ProgramSet) set = set_with_a_sum("sum", &sum, &op);

    assert_caught(set, "sum is read by the host while another stream may still write it");
    op_add_operand(op, sum, ACCESS_READ, 0, WHOLE_TENSOR);
    order_add_waits(set->classes[0]);
    assert_proven(set, "with a reader");
}
END_TEST

/* ---- two classes ---- */

/* The program of a case twice: even ranks run the one, odd ranks the other. */
static ProgramSet *two_classes(const Case *from)
{
    ProgramSet *set = case_compile(from);

    program_set_add_class(set, case_build(from));
    for (guint rank = 1; rank < set->num_ranks; rank += 2)
        program_set_assign(set, rank, 1);
    assert_proven(set, "two equal classes");
    return set;
}

static Op *first_op(const Program *program, const char *segment)
{
    const gint found = find_segment(program, segment);

    ck_assert_int_ge(found, 0);
    return &program_segment(program, (guint)found)->ops[0];
}

START_TEST(members_that_disagree_on_kind_type_or_size_are_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 4, 1);
    g_autoptr(ProgramSet) set = two_classes(&one);
    Op *gather = first_op(set->classes[1], "root.gather");
    Op *scalar = first_op(set->classes[1], "loss.reduce");

    gather->kind = OP_REDUCE_SCATTER;
    assert_caught(set, "is all_gather of 12504 bf16 in class 0 and reduce_scatter of 12504 bf16");
    gather->kind = OP_ALL_GATHER;
    gather->dtype = DTYPE_FP32;
    assert_caught(set, "bf16 in class 0 and all_gather of 12504 fp32 in class 1");
    gather->dtype = DTYPE_BF16;
    gather->unit = 1;
    assert_caught(set, "is all_gather of 12504 bf16 in class 0 and all_gather of 4656");
    gather->unit = 0;
    scalar->sizes.elements = 2; /* one element or two: a chunk of one on 4 ranks */
    assert_caught(set, "is all_reduce of 1 fp64 in class 0 and all_reduce of 2 fp64 in class 1");
}
END_TEST

START_TEST(collectives_in_another_order_or_number_are_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = two_classes(&one);
    const Program *program = set->classes[1];
    const Op gather = *first_op(program, "root.gather");

    *first_op(program, "root.gather") = *first_op(program, "block.gather");
    first_op(program, "root.gather")->operands[0] = gather.operands[0];
    first_op(program, "root.gather")->operands[1] = gather.operands[1];
    assert_caught(set, "is all_gather of 12408 bf16 in class 0 and all_gather of 4656 bf16");
    *first_op(program, "root.gather") = gather;
    assert_proven(set, "as it was");
    program_segment(program, (guint)find_segment(program, "loss.reduce"))->num_ops = 0;
    assert_caught(set, "class 0 issues all_reduce 1 times more than class 1");
    program_set_assign(set, 0, 1); /* the other one is first now */
    program_set_assign(set, 1, 0);
    assert_caught(set, "issues all_reduce that class 1 does not");
}
END_TEST

/* Alike in kind and bytes. */
START_TEST(equal_blocks_gathered_in_another_order_are_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = two_classes(&one);
    const GArray *calls = set->classes[1]->step.calls;
    const gint gather = find_segment(set->classes[1], "block.gather");
    Call *found[2] = {NULL};

    for (guint c = 0; c < calls->len && found[1] == NULL; c++) {
        Call *call = &g_array_index(calls, Call, c);

        if ((gint)call->segment == gather)
            found[found[0] == NULL ? 0 : 1] = call;
    }
    ck_assert_ptr_nonnull(found[1]);
    found[0]->unit = 2;
    found[1]->unit = 1;
    assert_caught(set, "shard.gather: block.parameters of unit 1 micro-batch 0 in class 0 meets "
                       "block.parameters of unit 2 micro-batch 0 in class 1");
}
END_TEST

START_TEST(a_group_that_does_not_exist_is_caught)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_HYBRID_SHARD, 2, 1);
    g_autoptr(ProgramSet) set = case_compile(&one);
    GroupRef *group = &g_array_index(set->classes[0]->groups, GroupRef, 0);

    group->size++;
    assert_caught(set, "is in no group");
    group->size--;
    group->purpose = "nobody";
    assert_caught(set, "rank 3 is in no group \"nobody\"");
}
END_TEST

/* Two all-reduces on two communicators, in the order of @order. */
static Program *two_streams(const guint order[2])
{
    Program *program = program_new();
    guint segments[2];

    for (guint i = 0; i < 2; i++) {
        const guint group = program_add_group(program, i == 0 ? "x" : "y", 2);
        const guint stream =
            program_add_stream(program, i == 0 ? "x" : "y", STREAM_COMMUNICATION, group);
        const guint data = program_add_tensor(program, i == 0 ? "data x" : "data y",
                                              TENSOR_GRADIENT, DTYPE_FP32, NO_SPACE, 8);

        segments[i] = program_add_segment(program, "reduce");
        Op *op = segment_add_op(program, segments[i], OP_ALL_REDUCE, stream, DTYPE_FP32);
        op->sizes.elements = 8;
        op_add_operand(op, data, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    }
    for (guint i = 0; i < 2; i++)
        call_list_add(&program->step, segments[order[i]], 0, 0);
    order_add_waits(program);
    program_place(program);
    return program;
}

START_TEST(two_communicators_crossed_in_two_classes_are_a_deadlock)
{
    static const guint orders[2][2] = {{0, 1}, {1, 0}}, ranks[2] = {0, 1};
    g_autoptr(ProgramSet) same = program_set_new(2);
    g_autoptr(ProgramSet) crossed = program_set_new(2);

    for (guint rank = 0; rank < 2; rank++) {
        program_set_assign(same, rank, program_set_add_class(same, two_streams(orders[0])));
        program_set_assign(crossed, rank,
                           program_set_add_class(crossed, two_streams(orders[rank])));
    }
    for (guint i = 0; i < 2; i++) {
        program_set_add_group(same, i == 0 ? "x" : "y", ranks, 2);
        program_set_add_group(crossed, i == 0 ? "x" : "y", ranks, 2);
    }
    assert_proven(same, "the same order");
    assert_caught(crossed, "deadlock: 4 of");
}
END_TEST

START_TEST(problems_are_limited_to_a_few_dozen_lines)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 4);
    g_autoptr(ProgramSet) set = case_compile(&one);

    for (guint w = 0; w < set->classes[0]->step.waits->len; w++)
        g_array_index(set->classes[0]->step.waits, Wait, w).before = G_MAXUINT32;
    g_autoptr(GPtrArray) problems = program_set_check(set, 1);
    ck_assert_uint_eq(problems->len, MAX_PROBLEMS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("check");
    TCase *tcase = tcase_create("check");

    tcase_set_timeout(tcase, 200);
    tcase_add_loop_test(tcase, every_combination_of_choices_is_proven, 0, SLICES);
    tcase_add_test(tcase, random_choices_of_all_kinds_are_proven);
    tcase_add_loop_test(tcase, a_program_without_one_of_its_waits_is_caught_or_has_no_race, 0,
                        NUM_STRATEGIES);
    tcase_add_test(tcase, a_wait_for_a_call_that_is_issued_later_is_caught);
    tcase_add_test(tcase, an_arena_that_is_too_small_is_caught);
    tcase_add_test(tcase, tensors_that_share_bytes_while_both_are_needed_are_caught);
    tcase_add_test(tcase, a_read_of_what_nobody_wrote_is_caught);
    tcase_add_test(tcase, a_reduction_of_gradients_of_which_one_was_not_written_is_caught);
    tcase_add_test(tcase, a_predicate_that_another_stream_may_still_write_is_caught);
    tcase_add_test(tcase, a_scalar_that_the_host_may_read_too_early_is_caught);
    tcase_add_test(tcase, members_that_disagree_on_kind_type_or_size_are_caught);
    tcase_add_test(tcase, collectives_in_another_order_or_number_are_caught);
    tcase_add_test(tcase, equal_blocks_gathered_in_another_order_are_caught);
    tcase_add_test(tcase, a_group_that_does_not_exist_is_caught);
    tcase_add_test(tcase, two_communicators_crossed_in_two_classes_are_a_deadlock);
    tcase_add_test(tcase, problems_are_limited_to_a_few_dozen_lines);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
