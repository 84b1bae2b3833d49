/* Tensor parallelism: who holds what, what is exchanged, and that its programs are sound. */
#include "sim/layout/tensor_parallel.h"
#include "tests/sim/spec_case.h"

/* 8 heads of 8 in a hidden size of 64, 2 kv heads, ffn 250, vocabulary 257. */
static const CaseShape shape = {
    .vocab = 257, .hidden = 64, .ffn = 250, .layers = 3, .heads = 8, .kv_heads = 2};

static Model *model;

static void setup(void)
{
    model = case_model(&shape);
}

static void teardown(void)
{
    g_clear_pointer(&model, model_free);
}

static const struct {
    UnitKind unit;
    ParamRole role;
    guint tp;
    Split split;
    guint64 chunk;
    guint parts, copies;
} worked[] = {
    {UNIT_BLOCK, PARAM_Q, 4, SPLIT_ROWS, 16, 4, 1},    /* 2 of 8 heads x 8 */
    {UNIT_BLOCK, PARAM_K, 2, SPLIT_ROWS, 8, 2, 1},     /* one kv head each */
    {UNIT_BLOCK, PARAM_V, 8, SPLIT_ROWS, 8, 2, 4},     /* four ranks share a kv head */
    {UNIT_BLOCK, PARAM_O, 4, SPLIT_COLUMNS, 16, 4, 1}, /* the columns of its heads */
    {UNIT_BLOCK, PARAM_GATE, 4, SPLIT_ROWS, 63, 4, 1}, /* ceil(250 / 4), the last has 61 */
    {UNIT_BLOCK, PARAM_DOWN, 8, SPLIT_COLUMNS, 32, 8, 1},
    {UNIT_BLOCK, PARAM_INPUT_NORM, 4, SPLIT_NONE, 64, 1, 4},
    {UNIT_ROOT, PARAM_EMBEDDING, 2, SPLIT_ROWS, 129, 2, 1}, /* ceil(257 / 2), the last has 128 */
};

START_TEST(parts_have_the_worked_sizes)
{
    const gint param = model_param_index(model, worked[_i].unit, worked[_i].role);
    const TensorSplit s = tensor_split(model, worked[_i].unit, (guint)param, worked[_i].tp);

    ck_assert_int_eq(s.split, worked[_i].split);
    ck_assert_uint_eq(s.chunk, worked[_i].chunk);
    ck_assert_uint_eq(s.parts, worked[_i].parts);
    ck_assert_uint_eq(s.copies, worked[_i].copies);
}
END_TEST

/* Real elements of part @p. */
static guint64 part_elements(const TensorSplit *s, guint p)
{
    const guint64 whole = s->split == SPLIT_COLUMNS ? s->cols : s->rows;
    const guint64 other = s->split == SPLIT_COLUMNS ? s->rows : s->cols;
    const guint64 first = MIN(p * s->chunk, whole), end = MIN((p + 1) * s->chunk, whole);

    return (end - first) * other;
}

START_TEST(parts_of_every_parameter_add_up_to_the_whole)
{
    const guint tp = 1u << _i;
    const UnitKind units[] = {UNIT_ROOT, UNIT_BLOCK};

    for (guint u = 0; u < G_N_ELEMENTS(units); u++) {
        g_autoptr(GArray) params = model_unit_params(model, units[u]);

        for (guint i = 0; i < params->len; i++) {
            const ParamShape *p = &g_array_index(params, ParamShape, i);
            const TensorSplit s = tensor_split(model, units[u], i, tp);
            guint64 sum = 0;

            ck_assert_uint_eq(s.parts * s.copies, tp);
            for (guint part = 0; part < s.parts; part++)
                sum += part_elements(&s, part);
            ck_assert_uint_eq(sum, p->rows * p->cols);
        }
    }
}
END_TEST

static ProgramSpec spec_of(Case *made, guint tp, gboolean sequence)
{
    made->layout.size[AXIS_TP] = tp;
    ProgramSpec spec = case_spec(made);
    spec.sequence_parallel = sequence;
    return spec;
}

static guint64 all_reduce(guint64 elements, guint64 ranks)
{
    return 2 * (ranks - 1) * ((elements + ranks - 1) / ranks);
}

/* One micro-batch of N = 2 x 8 tokens, C = 64, fp32, no_shard on one data rank: every block reduces
 * twice forward and twice backward, the root once for the embedding and once for the head's input
 * gradient; three statistics a token are gathered; one scalar sums the norm. */
START_TEST(without_sequence_parallelism_partial_sums_are_all_reduced)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    guint64 bytes[NUM_VOLUMES];

    made.workload.recipe = &recipe_fp32;
    const guint64 tp = 2u << _i, tokens = 16, hidden = 64;
    const ProgramSpec spec = spec_of(&made, (guint)tp, FALSE);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    const guint copies = tp > 2 ? (guint)tp / 2 : 1; /* of a kv head; their gradients are summed */
    const guint64 kv = copies == 1 ? 0 : 3 * 2 * all_reduce(8 * hidden, copies);

    program_volume(set->classes[0], bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE], (3 * 4 + 2) * all_reduce(tokens * hidden, tp) * 4 +
                                                    kv * 4 + all_reduce(1, tp) * 8);
    ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER], (tp - 1) * tokens * 3 * 4);
    ck_assert_uint_eq(bytes[VOLUME_REDUCE_SCATTER], 0);
}
END_TEST

/* The same sums are scattered over tokens: a block gathers twice forward, and backward twice its
 * norms' output again and twice its output's gradient; the root gathers the head's input and the
 * embedding's gradient.  Norm gradients (2 a block and the final one) are summed over the ranks. */
START_TEST(with_sequence_parallelism_tokens_are_gathered_and_sums_scattered)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    guint64 bytes[NUM_VOLUMES];

    made.workload.recipe = &recipe_fp32;
    const guint64 tp = 2, tokens = 16, hidden = 64, part = (tp - 1) * (tokens / tp) * hidden * 4;
    const ProgramSpec spec = spec_of(&made, (guint)tp, TRUE);
    g_autoptr(ProgramSet) set = program_compile(&spec);

    program_volume(set->classes[0], bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER], (3 * 6 + 2) * part + (tp - 1) * tokens * 3 * 4);
    ck_assert_uint_eq(bytes[VOLUME_REDUCE_SCATTER], (3 * 4 + 2) * part);
    ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE],
                      (3 * 2 + 1) * all_reduce(hidden, tp) * 4 + all_reduce(1, tp) * 8);
}
END_TEST

/* Sequence parallelism divides what tokens of the residual stream and the norms take. */
START_TEST(sequence_parallelism_needs_less_memory)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    const ProgramSpec with = spec_of(&made, 4, TRUE), without = spec_of(&made, 4, FALSE);
    g_autoptr(Program) split = program_build(&with, 0);
    g_autoptr(Program) whole = program_build(&without, 0);

    ck_assert_uint_lt(split->arena_bytes[TIER_DEVICE], whole->arena_bytes[TIER_DEVICE]);
}
END_TEST

START_TEST(every_tensor_parallel_program_is_proven)
{
    const guint tp = 2u << (_i % 3);
    const Strategy strategy = (Strategy)(_i / 3);

    for (guint choice = 0; choice < 32; choice++) {
        Case made = case_with(model, strategy, 2, 1 + choice % 3);

        made.schedule.recompute = (choice & 4) != 0 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        made.sharding.form = (choice & 8) != 0 ? FORM_FLAT : FORM_PER_PARAMETER;
        const ProgramSpec spec = spec_of(&made, tp, (choice & 16) != 0);
        g_autoptr(ProgramSet) set = program_compile(&spec);
        g_autoptr(GPtrArray) problems = program_set_check(set, 0);

        ck_assert_msg(problems->len == 0, "tp %u, %s, choice %u: %s", tp, strategy_name(strategy),
                      choice, problems->len > 0 ? (char *)g_ptr_array_index(problems, 0) : "");
    }
}
END_TEST

static const struct {
    guint tp, seq_len;
    gboolean sequence;
    const char *names; /* what the reason must name */
} illegal[] = {
    {3, 8, TRUE, "8 query heads"},
    {16, 8, FALSE, "8 query heads"},
    {8, 7, TRUE, "14 tokens"},
};

START_TEST(what_tp_cannot_split_is_refused_with_the_reason)
{
    Case made = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    g_autofree char *reason = NULL;

    made.layout.size[AXIS_TP] = illegal[_i].tp;
    made.workload.seq_len = illegal[_i].seq_len;
    const Choice choice = {.model = model,
                           .workload = &made.workload,
                           .layout = &made.layout,
                           .sharding = &made.sharding,
                           .schedule = &made.schedule,
                           .sequence_parallel = illegal[_i].sequence};
    ck_assert_int_eq(legality_check(&choice, &reason), VERDICT_TENSOR);
    ck_assert_ptr_nonnull(strstr(reason, illegal[_i].names));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor_parallel");
    TCase *tcase = tcase_create("tensor_parallel");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, parts_have_the_worked_sizes, 0, G_N_ELEMENTS(worked));
    tcase_add_loop_test(tcase, parts_of_every_parameter_add_up_to_the_whole, 0, 4);
    tcase_add_loop_test(tcase, without_sequence_parallelism_partial_sums_are_all_reduced, 0, 3);
    tcase_add_test(tcase, with_sequence_parallelism_tokens_are_gathered_and_sums_scattered);
    tcase_add_test(tcase, sequence_parallelism_needs_less_memory);
    tcase_add_loop_test(tcase, every_tensor_parallel_program_is_proven, 0, 3 * NUM_STRATEGIES);
    tcase_add_loop_test(tcase, what_tp_cannot_split_is_refused_with_the_reason, 0,
                        G_N_ELEMENTS(illegal));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
