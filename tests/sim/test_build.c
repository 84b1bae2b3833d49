#include "sim/program/builder.h"
#include "tests/sim/spec_case.h"

/* The plain program alone, before any pass. */
typedef struct {
    Case from;
    ProgramSpec spec;
    Timetable *timetable;
    Builder builder;
} Plain;

static void plain_init(Plain *plain, Model *model, guint micro_batches)
{
    plain->from = case_with(model, STRATEGY_FULL_SHARD, 1, micro_batches);
    plain->spec = case_spec(&plain->from);
    plain->timetable = timetables_new(&plain->spec.schedule, 1);
    plain->builder = (Builder){.spec = &plain->spec,
                               .timetable = plain->timetable,
                               .program = program_new(),
                               .drafts = g_array_new(FALSE, FALSE, sizeof(Draft))};
    build_plain(&plain->builder);
}

static void plain_clear(Plain *plain)
{
    program_free(plain->builder.program);
    builder_clear(&plain->builder);
    timetables_free(plain->timetable, 1);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Plain, plain_clear)

static const struct {
    const char *segment, *kinds;
} listed[] = {
    {"count_valid", "count_valid"},
    {"embed.forward", "embed"},
    {"block.forward", "rmsnorm linear linear linear rope attention cast linear rmsnorm linear "
                      "linear swiglu cast linear"},
    {"head", "rmsnorm head_loss rmsnorm_backward"},
    {"block.backward",
     "swiglu linear_backward_weight linear_backward_input swiglu_backward rmsnorm_apply "
     "linear_backward_weight linear_backward_weight linear_backward_input linear_backward_input "
     "rmsnorm_backward linear_backward_weight linear_backward_input attention_backward "
     "rope_backward rmsnorm_apply linear_backward_weight linear_backward_weight "
     "linear_backward_weight linear_backward_input linear_backward_input linear_backward_input "
     "rmsnorm_backward"},
    {"embed.backward", "embed_backward"},
};

START_TEST(segments_are_the_ops_of_a_llama_block)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_auto(Plain) plain = {0};

    plain_init(&plain, model, 1);
    const Program *program = plain.builder.program;
    const gint segment = find_segment(program, listed[_i].segment);
    ck_assert_int_ge(segment, 0);
    g_autofree char *kinds = kinds_of(program_segment(program, (guint)segment));
    ck_assert_str_eq(kinds, listed[_i].kinds);
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++)
            ck_assert_uint_eq(program_segment(program, s)->ops[i].stream, COMPUTE_STREAM);
}
END_TEST

/* "V V E F1 F2 H B2 B1 D" and so on, by segment and unit. */
static char *step_text(const Builder *builder)
{
    static const struct {
        const char *segment;
        char letter;
        gboolean numbered;
    } letters[] = {{"count_valid", 'V', FALSE},   {"embed.forward", 'E', FALSE},
                   {"block.forward", 'F', TRUE},  {"head", 'H', FALSE},
                   {"block.backward", 'B', TRUE}, {"embed.backward", 'D', FALSE}};
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint d = 0; d < builder->drafts->len; d++) {
        const Draft *draft = builder_draft(builder, d);
        const char *name = program_segment(builder->program, draft->segment)->name;

        for (guint i = 0; i < G_N_ELEMENTS(letters); i++)
            if (strcmp(letters[i].segment, name) == 0)
                g_string_append_printf(text, "%c%.*u ", letters[i].letter,
                                       letters[i].numbered ? 1 : 0,
                                       letters[i].numbered ? draft->unit : 0);
    }
    return g_string_free(g_steal_pointer(&text), FALSE);
}

START_TEST(a_step_counts_the_valid_tokens_then_runs_each_micro_batch_forward_and_backward)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_auto(Plain) plain = {0};

    plain_init(&plain, model, 2);
    g_autofree char *text = step_text(&plain.builder);
    ck_assert_str_eq(text, "V V E F1 F2 F3 H B3 B2 B1 D E F1 F2 F3 H B3 B2 B1 D ");
    for (guint d = 0; d < plain.builder.drafts->len; d++) {
        const Draft *draft = builder_draft(&plain.builder, d);

        ck_assert_int_eq(draft->first, draft->micro_batch == 0);
        ck_assert_int_eq(draft->last, draft->micro_batch == 1);
    }
}
END_TEST

static guint64 tensor_elements(const Program *program, const char *name)
{
    const gint tensor = find_tensor(program, name);

    ck_assert_msg(tensor >= 0, "%s", name);
    return program_tensor(program, (guint)tensor)->elements;
}

/* From forward to backward, a token and layer: x C, q A, k K, v K, o A, mid C, gate F, up F in
 * bf16; in fp32 the norms' two rstd and H logsumexps. */
START_TEST(saved_activations_are_the_hand_formula)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_auto(Plain) plain = {0};

    plain_init(&plain, model, 3);
    const Program *program = plain.builder.program;
    const guint64 tokens = 2 * 8, c = 24, a = 24, k = 12, f = 40, heads = 4, layers = 3;
    const guint64 in_bf16 = 2 * a + 2 * k + c + 2 * f, in_fp32 = 2 + heads;
    guint64 saved = 0;

    for (guint t = 0; t < program->tensors->len; t++)
        if (program_tensor(program, t)->space == builder_ring_space(&plain.builder, RING_SAVED))
            saved += tensor_bytes(program, program_tensor(program, t));
    ck_assert_uint_eq(saved, layers * tokens * (2 * in_bf16 + 4 * in_fp32));
    const Tensor *residual = program_tensor(program, plain.builder.residual);
    ck_assert_uint_eq(tensor_bytes(program, residual), (layers + 1) * tokens * 2 * c);
    ck_assert_uint_eq(tensor_elements(program, "q"), tokens * a);
    ck_assert_uint_eq(tensor_elements(program, "k"), tokens * k);
    ck_assert_uint_eq(tensor_elements(program, "gate"), tokens * f);
    ck_assert_uint_eq(tensor_elements(program, "lse"), tokens * heads);
}
END_TEST

START_TEST(inputs_have_a_copy_a_micro_batch_and_the_step_scalars_one)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_auto(Plain) plain = {0};

    plain_init(&plain, model, 3);
    const Program *program = plain.builder.program;
    ck_assert_uint_eq(copies_of(program, plain.builder.tokens), 3);
    ck_assert_uint_eq(copies_of(program, plain.builder.labels), 3);
    ck_assert_uint_eq(tensor_elements(program, "tokens"), 2 * 8);
    ck_assert_uint_eq(tensor_elements(program, "rope_table"), 8 * 6);
    ck_assert_uint_eq(tensor_elements(program, "hyper"), NUM_HYPER);
    ck_assert_uint_eq(tensor_elements(program, "valid"), 1);
    ck_assert_uint_eq(copies_of(program, plain.builder.loss), 1);
}
END_TEST

/* An op on a weight (O, I): out = its rows, in = its columns. */
START_TEST(sizes_of_every_product_are_those_of_its_weight)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_auto(Plain) plain = {0};
    guint products = 0;

    plain_init(&plain, model, 1);
    const Program *program = plain.builder.program;
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];
            const guint at = op->kind == OP_LINEAR_BACKWARD_WEIGHT ? 2 : 1;

            if (op->kind != OP_LINEAR && op->kind != OP_LINEAR_BACKWARD_INPUT &&
                op->kind != OP_LINEAR_BACKWARD_WEIGHT && op->kind != OP_HEAD_LOSS)
                continue;
            const Tensor *weights = program_tensor(program, op->operands[at].tensor);
            const UnitParam *param =
                &program_unit(program, (guint)weights->unit)->map->params[op->operands[at].param];
            ck_assert_uint_eq(op->sizes.out, param->rows);
            ck_assert_uint_eq(op->sizes.in, param->cols);
            ck_assert_uint_eq(op->sizes.rows, 2 * 8);
            products++;
        }
    ck_assert_uint_eq(products, 7 + 14 + 1);
}
END_TEST

/* Forward 2, backward 4 FLOPs a token and matrix element; the embedding is looked up. */
START_TEST(products_of_a_step_are_6_flops_a_token_and_matrix_element)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_auto(Plain) plain = {0};
    double flops = 0;

    plain_init(&plain, model, 3);
    for (guint d = 0; d < plain.builder.drafts->len; d++) {
        const Segment *segment =
            program_segment(plain.builder.program, builder_draft(&plain.builder, d)->segment);

        for (guint i = 0; i < segment->num_ops; i++)
            if (segment->ops[i].kind != OP_ATTENTION &&
                segment->ops[i].kind != OP_ATTENTION_BACKWARD)
                flops += op_flops(&segment->ops[i]);
    }
    /* A block's matrices: 4656 less two norms; the head 257 x 24. */
    ck_assert_double_eq_tol(flops, 6.0 * 3 * 16 * (3 * (4656 - 48) + 257 * 24), 0.5);
}
END_TEST

/* Every gradient is written first, or added to, once a micro-batch. */
START_TEST(each_gradient_is_accumulated_once_and_a_tied_one_twice)
{
    for (guint tied = 0; tied < 2; tied++) {
        CaseShape shape = case_shape;
        g_auto(Plain) plain = {0};
        guint accumulated = 0, updated = 0;

        shape.tied = tied == 1;
        g_autoptr(Model) model = case_model(&shape);
        plain_init(&plain, model, 1);
        const Program *program = plain.builder.program;
        for (guint s = 0; s < program->segments->len; s++)
            for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
                const Op *op = &program_segment(program, s)->ops[i];

                for (guint o = 0; o < op->num_operands; o++) {
                    const Operand *operand = &op->operands[o];

                    if (program_tensor(program, operand->tensor)->kind != TENSOR_GRADIENT)
                        continue;
                    accumulated += operand->access == ACCESS_ACCUMULATE ? 1 : 0;
                    updated += operand->access == ACCESS_UPDATE ? 1 : 0;
                }
            }
        /* 9 of a block; embedding, final norm, head; the head first where tied. */
        ck_assert_uint_eq(accumulated, 9 + 3 - tied);
        ck_assert_uint_eq(updated, tied);
    }
}
END_TEST

START_TEST(blocks_of_one_strategy_share_their_segments_whatever_their_number)
{
    CaseShape shape = case_shape;

    shape.layers = 12;
    g_autoptr(Model) many = case_model(&shape);
    g_autoptr(Model) few = case_model(&case_shape);
    g_auto(Plain) long_plain = {0};
    g_auto(Plain) short_plain = {0};

    plain_init(&long_plain, many, 4);
    plain_init(&short_plain, few, 1);
    ck_assert_uint_eq(long_plain.builder.program->segments->len,
                      short_plain.builder.program->segments->len);
    ck_assert_uint_eq(long_plain.builder.program->tensors->len,
                      short_plain.builder.program->tensors->len);
    ck_assert_uint_eq(program_unit(long_plain.builder.program, 1)->count, 12);
}
END_TEST

/* Memory of logits is bound by a chunk of rows, not by the micro-batch. */
START_TEST(logits_are_chunked)
{
    const CaseShape shape = {
        .vocab = 100000, .hidden = 24, .ffn = 40, .layers = 1, .heads = 4, .kv_heads = 2};
    g_autoptr(Model) model = case_model(&shape);
    Case one = case_with(model, STRATEGY_NO_SHARD, 1, 1);

    one.workload.seq_len = 4096;
    g_autoptr(Program) program = case_build(&one);
    const guint64 rows = 2 * 4096, whole = rows * 100000 * 4;
    ck_assert_uint_lt(kind_bytes(program, TENSOR_LOGITS), whole / 20);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("build");
    TCase *tcase = tcase_create("build");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, segments_are_the_ops_of_a_llama_block, 0, G_N_ELEMENTS(listed));
    tcase_add_test(tcase,
                   a_step_counts_the_valid_tokens_then_runs_each_micro_batch_forward_and_backward);
    tcase_add_test(tcase, saved_activations_are_the_hand_formula);
    tcase_add_test(tcase, inputs_have_a_copy_a_micro_batch_and_the_step_scalars_one);
    tcase_add_test(tcase, sizes_of_every_product_are_those_of_its_weight);
    tcase_add_test(tcase, products_of_a_step_are_6_flops_a_token_and_matrix_element);
    tcase_add_test(tcase, each_gradient_is_accumulated_once_and_a_tied_one_twice);
    tcase_add_test(tcase, blocks_of_one_strategy_share_their_segments_whatever_their_number);
    tcase_add_test(tcase, logits_are_chunked);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
