/* The program of a GPT-2: LayerNorm, biases, GELU, learned positions, alone and split over ranks.
 */
#include "sim/layout/tensor_parallel.h"
#include "tests/sim/spec_case.h"

/* 257 words and an inner size of 250 divide by nothing; 40 positions for sequences of 8. */
enum { VOCAB = 257, C = 64, HEADS = 8, F = 250, LAYERS = 3, POSITIONS = 40, TOKENS = 2 * 8 };

static Model *model;

static void setup(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *config = g_strdup_printf(
        "{\"model_type\": \"gpt2\", \"n_embd\": %d, \"n_layer\": %d, \"n_head\": %d, "
        "\"n_inner\": %d, \"vocab_size\": %d, \"n_positions\": %d}",
        C, LAYERS, HEADS, F, VOCAB, POSITIONS);

    model = model_parse(config, "case", "case", &error);
    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
}

static void teardown(void)
{
    g_clear_pointer(&model, model_free);
}

static ProgramSpec spec_of(Case *made, guint tp, gboolean sequence)
{
    made->layout.size[AXIS_TP] = tp;
    ProgramSpec spec = case_spec(made);
    spec.sequence_parallel = sequence;
    return spec;
}

static const Segment *segment_of(const Program *program, const char *name)
{
    const gint segment = find_segment(program, name);

    ck_assert_msg(segment >= 0, "%s", name);
    return program_segment(program, (guint)segment);
}

static const Tensor *tensor_of(const Program *program, const char *name)
{
    const gint tensor = find_tensor(program, name);

    ck_assert_msg(tensor >= 0, "%s", name);
    return program_tensor(program, (guint)tensor);
}

static const struct {
    guint tp;
    const char *segment, *kinds;
} listed[] = {
    {1, "embed.forward", "embed embed"},
    {1, "block.forward",
     "layernorm linear linear linear attention cast linear layernorm linear "
     "gelu cast linear"},
    {1, "head", "layernorm head_loss layernorm_backward"},
    {1, "block.backward",
     "gelu linear_backward_weight linear_backward_input gelu_backward layernorm_apply "
     "linear_backward_weight linear_backward_input layernorm_backward linear_backward_weight "
     "linear_backward_input attention_backward layernorm_apply linear_backward_weight "
     "linear_backward_weight linear_backward_weight linear_backward_input linear_backward_input "
     "linear_backward_input layernorm_backward"},
    {1, "embed.backward", "embed_backward embed_backward"},
    /* what the rows of o and of the MLP's second matrix give is summed, then gets its bias; the
       second norm adds it to the residual stream itself */
    {2, "block.forward",
     "layernorm linear linear linear attention linear all_reduce add_bias "
     "layernorm linear gelu linear all_reduce add_bias accumulate"},
};

START_TEST(segments_are_the_ops_of_a_gpt2_block)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    const ProgramSpec spec = spec_of(&made, listed[_i].tp, FALSE);
    g_autoptr(Program) program = program_build(&spec, 0);
    g_autofree char *kinds = kinds_of(segment_of(program, listed[_i].segment));

    ck_assert_str_eq(kinds, listed[_i].kinds);
}
END_TEST

/* Every product of a block has a bias, but not where it is a part of a sum; every gradient has. */
START_TEST(biases_are_added_once)
{
    for (guint tp = 1; tp <= 2; tp++) {
        Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
        const ProgramSpec spec = spec_of(&made, tp, FALSE);
        g_autoptr(Program) program = program_build(&spec, 0);
        const Segment *forward = segment_of(program, "block.forward");
        const Segment *backward = segment_of(program, "block.backward");
        guint with_bias = 0, gradients = 0;

        for (guint i = 0; i < forward->num_ops; i++)
            with_bias += forward->ops[i].kind == OP_LINEAR && forward->ops[i].num_operands == 5;
        for (guint i = 0; i < backward->num_ops; i++)
            gradients += backward->ops[i].kind == OP_LINEAR_BACKWARD_WEIGHT &&
                         backward->ops[i].num_operands == 5;
        ck_assert_uint_eq(with_bias, tp == 1 ? 6 : 4);
        ck_assert_uint_eq(gradients, 6);
    }
}
END_TEST

/* A token and layer: q, k, v, o and mid C each, up F in bf16; in fp32 mean and rstd of two norms
 * and H logsumexps.  No gate, no rotary table. */
START_TEST(saved_activations_are_the_hand_formula)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    const ProgramSpec spec = spec_of(&made, 1, FALSE);
    g_autoptr(Program) program = program_build(&spec, 0);
    static const struct {
        const char *name;
        guint64 bytes_a_token;
    } saved[] = {{"q", 2 * C},     {"k", 2 * C},     {"v", 2 * C},
                 {"o", 2 * C},     {"mid", 2 * C},   {"up", 2 * F},
                 {"rstd1", 4 * 2}, {"rstd2", 4 * 2}, {"lse", 4 * HEADS}};

    for (guint i = 0; i < G_N_ELEMENTS(saved); i++) {
        const Tensor *tensor = tensor_of(program, saved[i].name);

        ck_assert_uint_eq(tensor_bytes(program, tensor), LAYERS * TOKENS * saved[i].bytes_a_token);
    }
    ck_assert_int_lt(find_tensor(program, "gate"), 0);
    ck_assert_int_lt(find_tensor(program, "rope_table"), 0);
    ck_assert_uint_eq(tensor_of(program, "positions")->elements, TOKENS);
}
END_TEST

START_TEST(positions_are_of_the_tokens_that_a_rank_keeps)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    const ProgramSpec split = spec_of(&made, 4, TRUE), whole = spec_of(&made, 4, FALSE);
    g_autoptr(Program) with = program_build(&split, 0);
    g_autoptr(Program) without = program_build(&whole, 0);

    ck_assert_uint_eq(tensor_of(with, "positions")->elements, TOKENS / 4);
    ck_assert_uint_eq(tensor_of(without, "positions")->elements, TOKENS);
}
END_TEST

static guint64 all_reduce(guint64 elements, guint64 ranks)
{
    return 2 * (ranks - 1) * ((elements + ranks - 1) / ranks);
}

/* fp32, one data rank.  Partial sums: four a block, two of the root.  With tokens split, the
 * gradients of what sees only a rank's own are summed beside: two norms a block and the final one,
 * weight and bias, and the table of positions; those of o's and the MLP's last bias never. */
START_TEST(gradients_of_biases_are_not_summed_over_ranks)
{
    const guint64 tp = 2, norms = (2 * 2 * LAYERS + 2) * all_reduce(C, tp);
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    guint64 bytes[NUM_VOLUMES];

    made.workload.recipe = &recipe_fp32;
    const ProgramSpec whole = spec_of(&made, (guint)tp, FALSE);
    const ProgramSpec split = spec_of(&made, (guint)tp, TRUE);
    g_autoptr(Program) without = program_build(&whole, 0);
    g_autoptr(Program) with = program_build(&split, 0);

    program_volume(without, bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE],
                      (4 * LAYERS + 2) * all_reduce(TOKENS * C, tp) * 4 + all_reduce(1, tp) * 8);
    program_volume(with, bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE],
                      (norms + all_reduce(POSITIONS * C, tp)) * 4 + all_reduce(1, tp) * 8);
}
END_TEST

static const struct {
    UnitKind unit;
    ParamRole role;
    Split split;
    guint64 chunk; /* of tp = 4 */
    guint copies;
    PartialSum split_tokens;
} worked[] = {
    {UNIT_BLOCK, PARAM_Q_BIAS, SPLIT_ROWS, 16, 1, SUM_NONE},
    {UNIT_BLOCK, PARAM_UP_BIAS, SPLIT_ROWS, 63, 1, SUM_NONE}, /* ceil(250 / 4), the last has 61 */
    {UNIT_BLOCK, PARAM_O_BIAS, SPLIT_NONE, C, 4, SUM_NONE},
    {UNIT_BLOCK, PARAM_DOWN_BIAS, SPLIT_NONE, C, 4, SUM_NONE},
    {UNIT_BLOCK, PARAM_POST_NORM_BIAS, SPLIT_NONE, C, 4, SUM_OVER_TP},
    {UNIT_ROOT, PARAM_FINAL_NORM_BIAS, SPLIT_NONE, C, 4, SUM_OVER_TP},
    {UNIT_ROOT, PARAM_POSITIONS, SPLIT_NONE, POSITIONS, 4, SUM_OVER_TP},
};

START_TEST(biases_go_with_their_rows_or_are_whole)
{
    const gint param = model_param_index(model, worked[_i].unit, worked[_i].role);
    const TensorSplit split = tensor_split(model, worked[_i].unit, (guint)param, 4);

    ck_assert_int_eq(split.split, worked[_i].split);
    ck_assert_uint_eq(split.chunk, worked[_i].chunk);
    ck_assert_uint_eq(split.copies, worked[_i].copies);
    ck_assert_int_eq(tensor_gradient_sum(model, worked[_i].role, TRUE), worked[_i].split_tokens);
    ck_assert_int_eq(tensor_gradient_sum(model, worked[_i].role, FALSE), SUM_NONE);
}
END_TEST

START_TEST(every_gpt2_program_is_proven)
{
    const guint tp = 1u << (_i % 3);
    const Strategy strategy = (Strategy)(_i / 3);

    for (guint choice = 0; choice < 16; choice++) {
        Case made = case_with(model, strategy, 2, 1 + choice % 3);

        made.schedule.recompute = (choice & 4) != 0 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        made.sharding.form = (choice & 2) != 0 ? FORM_FLAT : FORM_PER_PARAMETER;
        const ProgramSpec spec = spec_of(&made, tp, (choice & 8) != 0);
        g_autoptr(ProgramSet) set = program_compile(&spec);
        g_autoptr(GPtrArray) problems = program_set_check(set, 0);

        ck_assert_msg(problems->len == 0, "tp %u, %s, choice %u: %s", tp, strategy_name(strategy),
                      choice, problems->len > 0 ? (char *)g_ptr_array_index(problems, 0) : "");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("build of a GPT-2");
    TCase *tcase = tcase_create("gpt2");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, segments_are_the_ops_of_a_gpt2_block, 0, G_N_ELEMENTS(listed));
    tcase_add_test(tcase, biases_are_added_once);
    tcase_add_test(tcase, saved_activations_are_the_hand_formula);
    tcase_add_test(tcase, positions_are_of_the_tokens_that_a_rank_keeps);
    tcase_add_test(tcase, gradients_of_biases_are_not_summed_over_ranks);
    tcase_add_loop_test(tcase, biases_go_with_their_rows_or_are_whole, 0, G_N_ELEMENTS(worked));
    tcase_add_loop_test(tcase, every_gpt2_program_is_proven, 0, 3 * NUM_STRATEGIES);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
