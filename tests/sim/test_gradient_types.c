/* Accumulators and reductions in another type than the recipe's. */
#include "tests/sim/family_case.h"

static Case case_in(Model *model, const Recipe *recipe, DType gradient, DType reduce)
{
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);

    one.workload.recipe = recipe_with_gradients(recipe, gradient, reduce);
    return one;
}

/* Gathers and reductions of units, divided by (n - 1) / n of all parameters with padding. */
static double psi_moved(const Program *program)
{
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    return (double)(bytes[VOLUME_ALL_GATHER] + bytes[VOLUME_REDUCE_SCATTER]) / (2 * 8888);
}

/* 2 + 2 gathered, 4 reduced: 8 Psi; of 3 ranks each holds 8888 elements. */
START_TEST(fsdp2_with_bf16_reductions_moves_6_psi_rather_than_8)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case own = case_in(model, &recipe_fsdp2, DTYPE_FP32, DTYPE_FP32);
    const Case bf16 = case_in(model, &recipe_fsdp2, DTYPE_FP32, DTYPE_BF16);
    g_autoptr(Program) eight = case_build(&own);
    g_autoptr(Program) six = case_build(&bf16);

    ck_assert_double_eq(psi_moved(eight), 8);
    ck_assert_double_eq(psi_moved(six), 6);
    ck_assert_uint_eq(program_memory(six).term[TERM_GRADIENTS], 4 * 8888);
    /* two copies of a block's whole gradients and the root's */
    ck_assert_uint_eq(kind_bytes(eight, TENSOR_UNIT_GRADIENT), 4 * 3 * (4136 + 2 * 1584));
    ck_assert_uint_eq(kind_bytes(six, TENSOR_UNIT_GRADIENT), 2 * 3 * (4136 + 2 * 1584));
}
END_TEST

START_TEST(zero_with_fp32_gradients_keeps_2_bytes_a_parameter_more)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case own = case_in(model, &recipe_zero, DTYPE_BF16, DTYPE_BF16);
    const Case fp32 = case_in(model, &recipe_zero, DTYPE_FP32, DTYPE_BF16);
    g_autoptr(Program) two = case_build(&own);
    g_autoptr(Program) four = case_build(&fp32);

    for (guint t = 0; t < TERM_ACTIVATIONS; t++)
        ck_assert_uint_eq(program_memory(four).term[t],
                          program_memory(two).term[t] + (t == TERM_GRADIENTS ? 2 * 8888 : 0));
    ck_assert_double_eq(psi_moved(two), 6);
    ck_assert_double_eq(psi_moved(four), 6);
}
END_TEST

/* --grad-reduce-in-bf16 is recipe zero under another name. */
START_TEST(megatron_in_bf16_is_the_program_of_zero)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint s = 0; s <= STRATEGY_FULL_SHARD; s++) {
        Case zero = case_with(model, (Strategy)s, 3, 2), megatron = zero;

        megatron.workload.recipe = recipe_with_gradients(&recipe_megatron, DTYPE_BF16, DTYPE_BF16);
        g_autoptr(ProgramSet) a = case_compile(&zero);
        g_autoptr(ProgramSet) b = case_compile(&megatron);
        g_autofree char *hash = program_set_hash(a), *other = program_set_hash(b);
        ck_assert_str_eq(hash, other);
    }
}
END_TEST

/* ---- types ---- */

static DType type_of(const Program *program, const Op *op, guint operand)
{
    return program_tensor(program, op->operands[operand].tensor)->dtype;
}

static gboolean is_gradient(const Program *program, const Op *op, guint operand)
{
    const Tensor *tensor = program_tensor(program, op->operands[operand].tensor);

    return tensor->kind == TENSOR_GRADIENT || tensor->kind == TENSOR_UNIT_GRADIENT ||
           g_str_has_prefix(tensor->name, "no_gradient");
}

/* What an op says of its operands' types is what their tensors have. */
static void assert_types(const Program *program, const Op *op, const char *text)
{
    const gboolean both = op->kind == OP_CAST || op->kind == OP_ACCUMULATE;

    if (both)
        ck_assert_msg(type_of(program, op, 0) == op->dtype &&
                          type_of(program, op, 1) == op->dtype_out,
                      "%s: %s", text, op_kind_name(op->kind));
    for (guint o = 0; o < op->num_operands && !both; o++)
        if (is_gradient(program, op, o))
            ck_assert_msg(type_of(program, op, o) ==
                              (op_kind_is_communication(op->kind) ? op->dtype : op->dtype_out),
                          "%s: %s", text, op_kind_name(op->kind));
}

static gboolean is_data_reduction(const Program *program, const Op *op)
{
    const Stream *stream = program_stream(program, op->stream);

    return op->unit != NO_UNIT && (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE) &&
           !g_str_has_prefix(stream->name, "embedding");
}

static void assert_program_types(const Case *from, const Program *program)
{
    const Recipe *recipe = from->workload.recipe;
    g_autofree char *text = case_text(from);

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->kind == TENSOR_GRADIENT && tensor->elements > 0)
            ck_assert_msg(tensor->dtype == recipe->gradient, "%s: %s", text, tensor->name);
    }
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            assert_types(program, op, text);
            if (is_data_reduction(program, op))
                ck_assert_msg(op->dtype == recipe->reduce, "%s: %s", text, op_kind_name(op->kind));
        }
}

/* Of all families: norms without weights or biases have gradients that go to nobody. */
START_TEST(tensors_have_the_types_that_their_ops_name)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(91 + (guint)_i);

    for (guint tried = 0; tried < 40;) {
        g_autoptr(Model) model = NULL;
        guint16 stages[MAX_CHUNKS];
        const Case one = draw_of_all(random, &model, stages);

        if (one.workload.recipe->gradient == one.workload.recipe->reduce)
            continue;
        tried++;
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);
        for (guint c = 0; c < set->num_classes; c++)
            assert_program_types(&one, set->classes[c]);
        assert_proven(set, text);
    }
}
END_TEST

/* "reduce_scatter block.unit_gradients block.reduced; ...": what each op reads and writes. */
static char *segment_text(const Program *program, const char *name)
{
    const gint index = find_segment(program, name);
    GString *text = g_string_new(NULL);

    ck_assert_msg(index >= 0, "no segment %s", name);
    const Segment *segment = program_segment(program, (guint)index);
    for (guint i = 0; i < segment->num_ops; i++) {
        g_string_append_printf(text, "%s%s", i == 0 ? "" : "; ",
                               op_kind_name(segment->ops[i].kind));
        for (guint o = 0; o < segment->ops[i].num_operands; o++)
            g_string_append_printf(
                text, " %s", program_tensor(program, segment->ops[i].operands[o].tensor)->name);
    }
    return g_string_free(text, FALSE);
}

/* By hand: two replicas of two ranks; replicas sum what was accumulated over all micro-batches, or
 * what the only one has reduced. */
static const struct {
    Strategy strategy;
    guint micro_batches;
    const char *segment, *ops;
} reductions[] = {
    {STRATEGY_HYBRID_SHARD, 1, "block.reduce.last",
     "reduce_scatter block.unit_gradients block.reduced.last; all_reduce block.reduced.last; cast "
     "block.reduced.last block.gradients"},
    {STRATEGY_HYBRID_SHARD, 3, "block.reduce",
     "reduce_scatter block.unit_gradients block.reduced.first; cast block.reduced.first "
     "block.gradients"},
    {STRATEGY_HYBRID_SHARD, 3, "block.reduce.add",
     "reduce_scatter block.unit_gradients block.reduced; accumulate block.reduced "
     "block.gradients"},
    {STRATEGY_HYBRID_SHARD, 3, "block.reduce.add.last",
     "reduce_scatter block.unit_gradients block.reduced.last; accumulate block.reduced.last "
     "block.gradients; cast block.gradients block.reduced.last; all_reduce block.reduced.last; "
     "cast block.reduced.last block.gradients"},
    {STRATEGY_SHARD_OPTIMIZER, 3, "block.reduce",
     "cast block.gradients block.summed; reduce_scatter block.summed; all_reduce block.summed; "
     "cast block.summed block.gradients"},
    {STRATEGY_NO_SHARD, 3, "block.reduce",
     "cast block.gradients block.summed; all_reduce block.summed; cast block.summed "
     "block.gradients"},
};

START_TEST(what_is_reduced_in_another_type_is_cast_before_and_behind)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Strategy strategy = reductions[_i].strategy;
    const guint shard = strategy == STRATEGY_NO_SHARD ? 1 : 2;
    Case one = case_of(model, 2, shard, reductions[_i].micro_batches);

    one.sharding.strategy = strategy;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    for (guint i = 0; i < 2; i++) {
        one.workload.recipe = recipe_with_gradients(&recipe_zero, i == 0 ? DTYPE_FP32 : DTYPE_BF16,
                                                    i == 0 ? DTYPE_BF16 : DTYPE_FP32);
        g_autoptr(Program) program = case_build(&one);
        g_autofree char *ops = segment_text(program, reductions[_i].segment);
        ck_assert_str_eq(ops, reductions[_i].ops);
    }
}
END_TEST

/* ---- what is allowed ---- */

START_TEST(gradients_are_in_fp32_or_in_what_is_computed_with)
{
    static const DType all[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP32, DTYPE_FP8, DTYPE_FP64};
    static const Recipe *const names[] = {&recipe_zero, &recipe_fsdp2, &recipe_megatron,
                                          &recipe_fp32};
    static const DType precisions[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP8, DTYPE_FP32};

    for (guint n = 0; n < G_N_ELEMENTS(names); n++)
        for (guint p = 0; p < G_N_ELEMENTS(precisions); p++) {
            const Recipe *recipe = recipe_with_precision(names[n], precisions[p]);

            for (guint i = 0; recipe != NULL && i < G_N_ELEMENTS(all) * G_N_ELEMENTS(all); i++) {
                const DType gradient = all[i / G_N_ELEMENTS(all)],
                            reduce = all[i % G_N_ELEMENTS(all)];
                const gboolean allowed = (gradient == recipe->compute || gradient == DTYPE_FP32) &&
                                         (reduce == recipe->compute || reduce == DTYPE_FP32);
                const Recipe *chosen = recipe_with_gradients(recipe, gradient, reduce);

                ck_assert_int_eq(chosen != NULL, allowed);
                if (chosen == NULL)
                    continue;
                ck_assert_str_eq(chosen->name, recipe->name);
                ck_assert(chosen->precision == recipe->precision &&
                          chosen->compute == recipe->compute && chosen->stored == recipe->stored &&
                          chosen->master == recipe->master);
                ck_assert(chosen->gradient == gradient && chosen->reduce == reduce);
                if (gradient == recipe->gradient && reduce == recipe->reduce)
                    ck_assert_ptr_eq(chosen, recipe);
            }
        }
}
END_TEST

/* Backward passes write one type. */
START_TEST(units_that_accumulate_otherwise_are_refused_where_types_differ)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_in(model, &recipe_zero, DTYPE_FP32, DTYPE_BF16);

    one.sharding.num_overrides = 1;
    for (guint s = 0; s <= STRATEGY_FULL_SHARD; s++)
        for (guint unit = 0; unit <= model->layers; unit++) {
            g_autofree char *reason = NULL;
            const gboolean whole = s <= STRATEGY_SHARD_OPTIMIZER;

            one.sharding.overrides[0] = (UnitOverride){unit, unit, (gint)s, -1};
            if (s == STRATEGY_NO_SHARD)
                continue; /* not with dp_shard > 1 */
            ck_assert_int_eq(case_verdict(&one, &reason), whole ? VERDICT_RECIPE : VERDICT_OK);
            if (whole)
                ck_assert_ptr_nonnull(
                    strstr(reason, "gradient_dtype = fp32 with reduce_dtype = bf16"));
            one.sharding.accumulate_sharded = FALSE;
            ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
            one.sharding.accumulate_sharded = TRUE;
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradient types");
    TCase *tcase = tcase_create("gradient types");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, fsdp2_with_bf16_reductions_moves_6_psi_rather_than_8);
    tcase_add_test(tcase, zero_with_fp32_gradients_keeps_2_bytes_a_parameter_more);
    tcase_add_test(tcase, megatron_in_bf16_is_the_program_of_zero);
    tcase_add_loop_test(tcase, tensors_have_the_types_that_their_ops_name, 0, 4);
    tcase_add_loop_test(tcase, what_is_reduced_in_another_type_is_cast_before_and_behind, 0,
                        G_N_ELEMENTS(reductions));
    tcase_add_test(tcase, gradients_are_in_fp32_or_in_what_is_computed_with);
    tcase_add_test(tcase, units_that_accumulate_otherwise_are_refused_where_types_differ);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
