/* Programs of models that no kernel runs yet. */
#include "sim/layout/tensor_parallel.h"
#include "tests/sim/family_case.h"

#include <math.h>

/* All parameters of the ranks of a tp group, each once, and of all that share experts. */
static double program_parameters(const Program *program, guint tp, guint ep)
{
    double elements = 0;

    for (guint u = 0; u < program->units->len; u++) {
        const UnitClass *unit = program_unit(program, u);

        for (guint p = 0; p < unit->map->num_params; p++)
            elements +=
                (double)(unit->map->params[p].rows * unit->map->params[p].cols) * unit->count *
                (unit->kind == UNIT_EXPERTS ? ep : (double)tp / unit->map->params[p].copies);
    }
    return elements;
}

/* Bytes of one copy of what forward leaves for backward. */
static guint64 saved_bytes(const Program *program)
{
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (strcmp(g_array_index(program->spaces, Space, tensor->space).name, "saved") == 0)
            bytes += tensor_copy_bytes(tensor);
    }
    return bytes;
}

START_TEST(a_program_has_the_models_parameters_and_saves_what_is_worked_out_by_hand)
{
    g_autoptr(Model) model = family_model((guint)_i);
    const Case one = case_of(model, 1, 2, 1);
    g_autoptr(Program) program = case_build(&one);
    const guint64 tokens = 2 * 8;

    ck_assert_double_eq(program_parameters(program, 1, 1), (double)model_parameters(model));
    ck_assert_uint_eq(saved_bytes(program),
                      tokens * (2 * families[_i].values + 4 * families[_i].statistics));
}
END_TEST

/* Two ranks that split each matrix hold all of them once, and what is copied twice. */
START_TEST(tensor_parallel_ranks_hold_the_model_together)
{
    g_autoptr(Model) model = family_model((guint)_i);
    Case one = case_of(model, 1, 2, 1);

    one.layout.size[AXIS_TP] = 2;
    for (guint sequence = 0; sequence < 2; sequence++) {
        one.sequence_parallel = sequence == 1;
        g_autoptr(Program) program = case_build(&one);

        ck_assert_double_eq(program_parameters(program, 2, 1), (double)model_parameters(model));
    }
}
END_TEST

/* Of any layout, stages included: both copies of an embedding that is tied over them are one. */
START_TEST(ranks_of_random_layouts_hold_the_model_together)
{
    const guint index = (guint)_i, num = G_N_ELEMENTS(families);
    const guint all = num + G_N_ELEMENTS(expert_cases);
    g_autoptr(GRand) random = g_rand_new_with_seed(381 + index);
    g_autoptr(Model) model = index < num   ? family_model(index)
                             : index < all ? expert_model(index - num)
                                           : mixed_model(random, 8, 4);

    for (guint i = 0; i < 12; i++) {
        const Case one = case_random_4d(random, model);
        const ProgramSpec spec = case_spec(&one);
        g_autofree char *text = case_text(&one);
        double elements = 0;

        for (guint stage = 0; stage < spec.layout.size[AXIS_PP]; stage++) {
            g_autoptr(Program) program = program_build(&spec, stage);

            elements +=
                program_parameters(program, spec.layout.size[AXIS_TP], layout_ep(&spec.layout));
        }
        ck_assert_msg(elements == (double)model_parameters(model), "%s: %.0f", text, elements);
    }
}
END_TEST

/* A norm of all heads: ranks have its weights with their heads (two share a kv head of 8 where
 * there are 4 of them) and sum over their columns, of queries and of keys, forward and backward, an
 * fp32 value of each of 16 tokens. */
START_TEST(norms_of_all_heads_are_summed_over_ranks)
{
    g_autoptr(Model) model = family_model(4);
    const gint q = model_param_index(model, UNIT_BLOCK, PARAM_Q_NORM);
    const gint k = model_param_index(model, UNIT_BLOCK, PARAM_K_NORM);
    Case one = case_of(model, 1, 2, 1);

    ck_assert_str_eq(model->model_type, "olmo2");
    ck_assert_uint_eq(tensor_split(model, UNIT_BLOCK, (guint)q, 4).chunk, 8);
    ck_assert_uint_eq(tensor_split(model, UNIT_BLOCK, (guint)k, 4).chunk, 8);
    ck_assert_uint_eq(tensor_copies(model, PARAM_Q_NORM, 4), 1);
    ck_assert_uint_eq(tensor_copies(model, PARAM_K_NORM, 4), 2);
    ck_assert_int_eq(tensor_gradient_sum(model, PARAM_Q_NORM, TRUE), SUM_NONE);
    ck_assert_int_eq(tensor_gradient_sum(model, PARAM_K_NORM, TRUE), SUM_OVER_KV);
    one.layout.size[AXIS_TP] = 2;
    one.sequence_parallel = TRUE;
    g_autoptr(Program) program = case_build(&one);
    for (guint pass = 0; pass < 2; pass++) {
        const Segment *segment = program_segment(
            program, (guint)find_segment(program, pass == 0 ? "block.forward" : "block.backward"));
        guint sums = 0;

        for (guint i = 0; i < segment->num_ops; i++)
            sums += segment->ops[i].kind == OP_ALL_REDUCE && segment->ops[i].dtype == DTYPE_FP32 &&
                    segment->ops[i].sizes.elements == 16;
        ck_assert_uint_eq(sums, 2);
    }
}
END_TEST

/* 2 of the backward pass's 5 attention products are the forward's scores again, which model FLOPs
 * leave out: 7 of 6 x 2 H D T a pair's half. */
START_TEST(flops_are_the_models_and_the_scores_again)
{
    g_autoptr(Model) model = family_model((guint)_i);
    const Case one = case_of(model, 1, 1, 2);
    g_autoptr(Program) program = case_build(&one);
    const double tokens = 2 * 2 * 8, scores = 3 * tokens * 8 * 4 * 8; /* L N T H D */
    const double flops = model_step_flops(model, (guint64)tokens, 8);

    ck_assert_double_eq_tol(program_flops(program), flops + scores, 1e-9 * flops);
}
END_TEST

/* Sequences of 8 in windows of 2 in two of three layers: of 32 pairs 18 are hidden there; the third
 * layer sees all.  Ring and gathered attention divide what is left. */
START_TEST(windows_leave_the_pairs_inside_them)
{
    g_autoptr(Model) model = family_model(0);
    const double seen = (32 + 2 * (32 - 18)) / (3 * 32.0);
    const double all = model_step_flops(model, 32, 8), scores = 3 * 32 * 8 * 4 * 8; /* as above */
    const double attention = 6 * scores; /* products of the model: forward 2, backward 4 */

    model->sliding_window = 2;
    model->full_every = 3;
    ck_assert_double_eq_tol(model_seen_pairs(model, 8), seen, 1e-15);
    ck_assert_double_eq(model_seen_pairs(model, 2), 1);
    ck_assert_double_eq_tol(model_step_flops(model, 32, 8), all - (1 - seen) * attention, 1e-6);
    for (guint cp = 1; cp <= 2; cp++) {
        Case one = case_of(model, 1, 1, 2);

        one.layout.size[AXIS_CP] = cp;
        one.context = _i == 0 ? CONTEXT_RING : CONTEXT_ALL_GATHER;
        g_autoptr(Program) program = case_build(&one);
        ck_assert_double_eq_tol(cp * program_flops(program),
                                all - (1 - seen) * attention + seen * scores, 1e-6);
    }
}
END_TEST

START_TEST(check_proves_random_plans)
{
    g_autoptr(Model) model = family_model((guint)_i);
    g_autoptr(GRand) random = g_rand_new_with_seed(7 + (guint)_i);

    for (guint i = 0; i < 12; i++) {
        const Case one = case_random_4d(random, model);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);

        assert_proven(set, text);
    }
}
END_TEST

/* Which of the accesses the calls of a step make to any copy of @tensor. */
static void find_access(const Program *program, guint tensor, gboolean *written, gboolean *is_read)
{
    *written = *is_read = FALSE;
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint i = 0; i < segment->num_ops; i++)
            for (guint o = 0; o < segment->ops[i].num_operands; o++) {
                const Operand *operand = &segment->ops[i].operands[o];

                *written |= operand->tensor == tensor && operand->access != ACCESS_READ;
                *is_read |= operand->tensor == tensor && operand->access != ACCESS_WRITE;
            }
    }
}

/* What nobody touches takes no room in the arena, so a bound that counts rings would be wrong. */
static void assert_rings_are_used(const Case *from)
{
    const ProgramSpec spec = case_spec(from);
    g_autofree char *text = case_text(from);

    for (guint stage = 0; stage < spec.layout.size[AXIS_PP]; stage++) {
        g_autoptr(Program) program = program_build(&spec, stage);

        for (guint t = 0; t < program->tensors->len; t++) {
            const Tensor *tensor = program_tensor(program, t);
            gboolean written, is_read;

            if (tensor->persistence != PERSIST_STEP || tensor->space == NO_SPACE)
                continue;
            find_access(program, t, &written, &is_read);
            ck_assert_msg(written && is_read, "stage %u of %s: nobody %s %s", stage, text,
                          written ? "reads" : "writes", tensor->name);
        }
    }
}

/* Over all that decides which tensors a block has. */
START_TEST(each_tensor_of_a_ring_is_written_and_read)
{
    const guint index = (guint)_i, num = G_N_ELEMENTS(families);
    g_autoptr(Model) model = index < num ? family_model(index) : expert_model(index - num);
    guint legal = 0;

    for (guint choice = 0; choice < 2 * 3 * 3 * NUM_RECOMPUTES; choice++) {
        const guint tensor = choice / 2 % 3, context = choice / 6 % 3;
        Case one = case_of(model, 1, 1, 2);

        one.layout.size[AXIS_PP] = 2;
        one.layout.size[AXIS_TP] = tensor == 0 ? 1 : 2;
        one.layout.size[AXIS_CP] = context == 0 ? 1 : 2;
        one.sequence_parallel = tensor == 2;
        one.context = context == 2 ? CONTEXT_RING : CONTEXT_ALL_GATHER;
        one.schedule.kind = choice % 2 == 0 ? SCHEDULE_1F1B : SCHEDULE_ZB_H1;
        one.schedule.recompute = (Recompute)(choice / 18);
        sharding_normalise(&one.sharding, &one.layout, &one.schedule);
        if (case_verdict(&one, NULL) != VERDICT_OK)
            continue;
        assert_rings_are_used(&one);
        legal++;
    }
    ck_assert_uint_ge(legal, 2 * 3 * NUM_RECOMPUTES);
}
END_TEST

/* Rotating 2 of 8 values of a head moves a quarter of the bytes. */
START_TEST(rotation_touches_what_is_rotated)
{
    g_autoptr(Model) model = family_model(5);
    const Case one = case_of(model, 1, 1, 1);
    g_autoptr(Program) program = case_build(&one);
    const Segment *forward =
        program_segment(program, (guint)find_segment(program, "block.forward"));

    ck_assert_uint_eq(model->rotary_dim, 2);
    for (guint i = 0; i < forward->num_ops; i++)
        if (forward->ops[i].kind == OP_ROPE)
            ck_assert_double_eq(op_memory_bytes(&forward->ops[i], 0),
                                2 * 2 * 2.0 * 16 * 4 * 2 + 4 * 8 * 2); /* q, k: r, w; table */
    ck_assert_uint_eq(program_tensor(program, (guint)find_tensor(program, "rope_table"))->elements,
                      8 * 2);
}
END_TEST

/* Of the op on the embedding's or the head's matrix: half of 256 words, on each of two ranks. */
static guint64 embed_columns(const Program *program, const char *segment, OpKind kind)
{
    const Segment *of = program_segment(program, (guint)find_segment(program, segment));

    for (guint i = 0; i < of->num_ops; i++) {
        const OpSizes *s = &of->ops[i].sizes;

        if (of->ops[i].kind == kind && (s->in == 128 || s->out == 128))
            return s->in == 128 ? s->out : s->in;
    }
    ck_abort_msg("no %s in %s", op_kind_name(kind), segment);
}

/* An embedding of 20 for a stream of 32: words are looked up and predicted in 20, of 256 words; the
 * stream keeps 32.  Gathers of tokens and sums over tp are of 20 there: over 2 ranks with 16
 * tokens, half of 16 x 20 values, in all 2 + 2 reductions (the look-up again for backward) and 2
 * gathers. */
START_TEST(a_projected_embedding_is_looked_up_and_predicted_in_its_own_width)
{
    g_autoptr(Model) model = family_model(14);
    Case one = case_of(model, 1, 1, 1);
    guint64 bytes[NUM_VOLUMES], whole[NUM_VOLUMES];

    ck_assert_uint_eq(model->embedding, 20);
    one.layout.size[AXIS_TP] = 2;
    one.sequence_parallel = TRUE;
    g_autoptr(Program) program = case_build(&one);
    ck_assert_uint_eq(embed_columns(program, "embed.forward", OP_EMBED), 20);
    ck_assert_uint_eq(embed_columns(program, "embed.backward", OP_EMBED_BACKWARD), 20);
    ck_assert_uint_eq(embed_columns(program, "head", OP_HEAD_LOSS), 20);
    program_volume(program, bytes);

    g_autoptr(Model) wide = family_model(16); /* the same in 32, with no projection */
    one = case_of(wide, 1, 1, 1);
    one.layout.size[AXIS_TP] = 2;
    one.sequence_parallel = TRUE;
    g_autoptr(Program) other = case_build(&one);
    program_volume(other, whole);
    const guint64 narrow = 16 * 20 / 2 * 2, full = 16 * 32 / 2 * 2; /* bytes of bf16 */
    ck_assert_uint_eq(whole[VOLUME_ALL_GATHER] - bytes[VOLUME_ALL_GATHER], 2 * (full - narrow));
    ck_assert_uint_eq(whole[VOLUME_REDUCE_SCATTER] - bytes[VOLUME_REDUCE_SCATTER],
                      2 * full - 3 * narrow);
}
END_TEST

/* Halves in parallel leave one sum to reduce, not two; their gradients too where one norm serves
 * both. */
START_TEST(parallel_halves_are_reduced_at_once)
{
    static const struct {
        guint family, reductions; /* forward and backward of 3 blocks, embedding, head */
    } worked[] = {{8, 3 * 4}, {5, 3 * 3}, {6, 3 * 2}};

    for (guint i = 0; i < G_N_ELEMENTS(worked); i++) {
        g_autoptr(Model) model = family_model(worked[i].family);
        Case one = case_of(model, 1, 1, 1);
        guint reduced = 0;

        one.layout.size[AXIS_TP] = 2;
        g_autoptr(Program) program = case_build(&one);
        for (guint c = 0; c < program->step.calls->len; c++) {
            const Call *call = &g_array_index(program->step.calls, Call, c);
            const Segment *segment = program_segment(program, call->segment);

            for (guint o = 0; o < segment->num_ops && call->unit != ROOT_UNIT; o++)
                reduced += segment->ops[o].kind == OP_ALL_REDUCE && segment->ops[o].unit < 0 &&
                           segment->ops[o].operands[0].param == WHOLE_TENSOR;
        }
        ck_assert_uint_eq(reduced, worked[i].reductions);
    }
}
END_TEST

/* Four blocks: whole, without attention, whole, without MLP, which is the first kind but for its
 * width.  Hidden 48 in 4 heads that share 2 kv heads, F 256 and 512. */
static const char mixed_config[] =
    "{\"model_type\": \"nemotron-nas\", \"vocab_size\": 300, \"hidden_size\": 48, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"hidden_act\": \"silu\", "
    "\"block_configs\": ["
    "{\"attention\": {\"n_heads_in_group\": 2}, \"ffn\": {\"ffn_mult\": 2}}, "
    "{\"attention\": {\"no_op\": true}, \"ffn\": {\"ffn_mult\": 10}}, "
    "{\"attention\": {\"n_heads_in_group\": 2}, \"ffn\": {\"ffn_mult\": 2}}, "
    "{\"attention\": {\"n_heads_in_group\": 2}, \"ffn\": {\"no_op\": true}}]}";

static guint ops_of(const Program *program, const char *segment, OpKind kind)
{
    guint ops = 0;

    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; strcmp(program_segment(program, s)->name, segment) == 0 &&
                          i < program_segment(program, s)->num_ops;
             i++)
            ops += program_segment(program, s)->ops[i].kind == kind ? 1 : 0;
    return ops;
}

/* By kind: units, their parameters, and ops of forward: products, norms, attention.  Where a half
 * is missing so are its norm and its sum with x. */
START_TEST(blocks_have_only_the_parts_that_they_are_made_of)
{
    static const struct {
        const char *unit;
        guint count;
        guint64 elements;
        guint products, norms, attentions, activations;
    } kinds[] = {
        {"block", 2, 2 * 48 * (48 + 24) + 3 * 48 * 256 + 2 * 48, 7, 2, 1, 1},
        {"block2", 1, 3 * 48 * 512 + 48, 3, 1, 0, 1},
        {"block3", 1, 2 * 48 * (48 + 24) + 48, 4, 1, 1, 0},
    };
    g_autoptr(Model) model = plannable_model("mixed", mixed_config);
    const Case one = case_of(model, 1, 2, 1);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(program->units->len, 1 + G_N_ELEMENTS(kinds));
    for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
        const UnitClass *unit = program_unit(program, 1 + k);
        g_autofree char *forward = g_strconcat(kinds[k].unit, ".forward", NULL);

        ck_assert_str_eq(unit->name, kinds[k].unit);
        ck_assert_uint_eq(unit->count, kinds[k].count);
        ck_assert_uint_eq(unit->map->elements, kinds[k].elements);
        ck_assert_uint_eq(ops_of(program, forward, OP_LINEAR), kinds[k].products);
        ck_assert_uint_eq(ops_of(program, forward, OP_RMSNORM), kinds[k].norms);
        ck_assert_uint_eq(ops_of(program, forward, OP_ATTENTION), kinds[k].attentions);
        ck_assert_uint_eq(ops_of(program, forward, OP_SWIGLU), kinds[k].activations);
    }
    ck_assert_double_eq(program_parameters(program, 1, 1), (double)model_parameters(model));
}
END_TEST

/* By the names of its tensors; and, where it has queries, what half of a sequence's keys cost. */
static double work_of_block(const Model *model, guint block)
{
    g_autoptr(GArray) tensors = model_tensors(model);
    g_autofree char *prefix = g_strdup_printf("model.layers.%u.", block);
    double work = 0;

    for (guint i = 0; i < tensors->len; i++) {
        const ParamShape *shape = &g_array_index(tensors, ParamShape, i);

        if (!g_str_has_prefix(shape->name, prefix))
            continue;
        work += (double)(shape->rows * shape->cols);
        if (strstr(shape->name, "q_proj") != NULL)
            work += (double)model->heads * model->head_dim * model->max_seq;
    }
    return work;
}

/* Of all ways to cut the blocks from @first on, the least of their largest pieces. */
static double least_of_largest(const double *work, guint first, guint layers, guint pieces,
                               double head)
{
    double least = INFINITY, piece = pieces == 1 ? head : 0;

    for (guint last = first; last + pieces <= layers; last++) {
        piece += work[last];
        if (pieces > 1)
            least =
                MIN(least, MAX(piece, least_of_largest(work, last + 1, layers, pieces - 1, head)));
    }
    return pieces == 1 ? piece : least;
}

START_TEST(models_are_cut_where_the_largest_piece_is_smallest)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(17);

    for (guint i = 0; i < 60; i++) {
        const guint layers = 2 + draw(random, 7);
        g_autoptr(Model) model = mixed_model(random, layers, 5);
        const double head = (double)model->vocab * model->hidden;
        double work[9], all = head;

        for (guint b = 0; b < layers; b++)
            all += work[b] = work_of_block(model, b);
        ck_assert_ptr_null(model_even_work(model, 1));
        ck_assert_ptr_null(model_even_work(model, layers + 1));
        for (guint pieces = 2; pieces <= layers && model->num_kinds > 1; pieces++) {
            const guint16 *cut = model_even_work(model, pieces);
            const double least = least_of_largest(work, 0, layers, pieces, head);
            double largest = 0;
            guint block = 0;

            for (guint p = 0; p < pieces; p++) {
                double piece = p + 1 == pieces ? head : 0;

                ck_assert_uint_ge(cut[p], 1);
                for (guint b = 0; b < cut[p]; b++)
                    piece += work[block++];
                largest = MAX(largest, piece);
            }
            ck_assert_uint_eq(block, layers);
            ck_assert_double_ge(largest, least);
            ck_assert_double_le(largest, least + all / 1000);
        }
    }
}
END_TEST

/* The group of ranks that hold the same keys and values is one for all blocks: 4 and 2 kv heads
 * allow tp 2, and not 4, which would copy those of some. */
START_TEST(kv_heads_of_all_blocks_limit_tensor_parallelism)
{
    g_autofree char *other = g_strdup(mixed_config);
    char *last = g_strrstr(other, "\"n_heads_in_group\": 2");

    last[strlen("\"n_heads_in_group\": ")] = '1';
    g_autoptr(Model) model = plannable_model("mixed", other);
    Case one = case_of(model, 1, 2, 1);

    for (guint tp = 1; tp <= 4; tp *= 2) {
        g_autofree char *reason = NULL;

        one.layout.size[AXIS_TP] = tp;
        ck_assert_int_eq(case_verdict(&one, &reason), tp < 4 ? VERDICT_OK : VERDICT_TENSOR);
        if (tp == 4)
            ck_assert_ptr_nonnull(strstr(reason, "4 kv heads, in all blocks alike; allowed: 1, 2"));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plannable");
    TCase *tcase = tcase_create("plannable");
    const int num = G_N_ELEMENTS(families);

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(
        tcase, a_program_has_the_models_parameters_and_saves_what_is_worked_out_by_hand, 0, num);
    tcase_add_loop_test(tcase, tensor_parallel_ranks_hold_the_model_together, 0, num);
    tcase_add_loop_test(tcase, ranks_of_random_layouts_hold_the_model_together, 0,
                        num + (int)G_N_ELEMENTS(expert_cases) + 1);
    tcase_add_test(tcase, norms_of_all_heads_are_summed_over_ranks);
    tcase_add_loop_test(tcase, flops_are_the_models_and_the_scores_again, 0, num);
    tcase_add_loop_test(tcase, windows_leave_the_pairs_inside_them, 0, 2);
    tcase_add_loop_test(tcase, check_proves_random_plans, 0, num);
    tcase_add_loop_test(tcase, each_tensor_of_a_ring_is_written_and_read, 0,
                        num + (int)G_N_ELEMENTS(expert_cases));
    tcase_add_test(tcase, rotation_touches_what_is_rotated);
    tcase_add_test(tcase, a_projected_embedding_is_looked_up_and_predicted_in_its_own_width);
    tcase_add_test(tcase, parallel_halves_are_reduced_at_once);
    tcase_add_test(tcase, blocks_have_only_the_parts_that_they_are_made_of);
    tcase_add_test(tcase, models_are_cut_where_the_largest_piece_is_smallest);
    tcase_add_test(tcase, kv_heads_of_all_blocks_limit_tensor_parallelism);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
