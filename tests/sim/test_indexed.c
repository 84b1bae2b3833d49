/* Attention to keys that an indexer chooses: work, memory, communication and time by hand.  The
 * case has a sequence of 8 tokens, of which a query reads 5; C 32, 4 heads of 8 + 4 for queries and
 * keys and of 6 for values, ranks 20 of queries and 16 + 4 of keys and values; the indexer's 2
 * heads of
 * 10.  In the latent space queries and keys have 20 values, of which 16 are what is read. */
#include "sim/layout/tensor_parallel.h"
#include "tests/sim/compute_case.h"
#include "tests/sim/expert_case.h"

/* 5 of 8: 32 pairs of the causal half less 3^2 / 2, of each of two sequences. */
static const double pairs = 2 * 27.5;

static Program *program_of(Model *model, guint cp, guint tp)
{
    const Case one = expert_case(model, 1, cp, tp, 1);

    return case_build(&one);
}

/* Of the first op of that kind in a segment; NULL: none. */
static const Op *find_op(const Program *program, const char *name, OpKind kind)
{
    const Segment *segment = program_segment(program, (guint)find_segment(program, name));

    for (guint i = 0; i < segment->num_ops; i++)
        if (segment->ops[i].kind == kind)
            return &segment->ops[i];
    return NULL;
}

/* A multiply and an add: scores of all keys; attention's two products, its backward pass' five;
 * scores again and again with their two gradients. */
START_TEST(each_op_costs_its_products)
{
    static const struct {
        const char *segment;
        OpKind kind;
        double heads, columns;
        gboolean all;
    } worked[] = {
        {"block.forward", OP_INDEX, 2, 10, TRUE},
        {"block.forward", OP_INDEXED_ATTENTION, 4, 20 + 16, FALSE},
        {"block.backward", OP_INDEXED_ATTENTION_BACKWARD, 4, 3 * 20 + 2 * 16, FALSE},
        {"block.backward", OP_INDEX_TARGET, 4, 20, FALSE},
        {"block.backward", OP_INDEX_BACKWARD, 2, 3 * 10, FALSE},
    };
    g_autoptr(Model) model = expert_model(INDEXED);
    g_autoptr(Program) program = program_of(model, 1, 1);

    for (guint i = 0; i < G_N_ELEMENTS(worked); i++) {
        const Op *op = find_op(program, worked[i].segment, worked[i].kind);
        const double of = worked[i].all ? 2 * 32 : pairs;

        ck_assert_double_eq_tol(op_flops(op), 2 * of * worked[i].heads * worked[i].columns, 1e-9);
    }
}
END_TEST

/* Up with each head's 8 x 16 and down with 16 x 6 instead of one matrix of 16 x 4 (8 + 6); the
 * indexer's from ranks 20 and C 32. */
START_TEST(products_of_heads_replace_the_matrix_of_keys_and_values)
{
    const double matrices = 32 * 20 + 32 * 20 + 20 * 48 + 24 * 32 + 3 * 32 * 48;
    const double indexer = 20 * 20 + 32 * 10 + 32 * 2;
    g_autoptr(Model) model = expert_model(INDEXED);
    g_autoptr(Program) program = program_of(model, 1, 1);
    const Segment *forward =
        program_segment(program, (guint)find_segment(program, "block.forward"));
    double linear = 0, of_heads = 0;

    for (guint i = 0; i < forward->num_ops; i++) {
        linear += forward->ops[i].kind == OP_LINEAR ? op_flops(&forward->ops[i]) : 0;
        of_heads += forward->ops[i].kind == OP_GROUPED_LINEAR ? op_flops(&forward->ops[i]) : 0;
    }
    ck_assert_double_eq(linear, 2 * 16 * (matrices + indexer));
    ck_assert_double_eq(of_heads, 2 * 16 * 4 * (8 * 16 + 16 * 6));
}
END_TEST

/* A token's values: q, a latent key, q up and what attention gives there, o, mid, both latents
 * before their norms, the indexer's q, k before and after its norm, weights; gate and up.  fp32:
 * lse, rstd of 4 norms, mean and rstd of another; int32: the keys. */
START_TEST(forward_saves_what_is_worked_out_by_hand)
{
    const guint64 values = 48 + 20 + 80 + 64 + 24 + 32 + 20 + 20 + (20 + 10 + 10 + 2) + 2 * 48;
    g_autoptr(Model) model = expert_model(INDEXED);
    g_autoptr(Program) program = program_of(model, 1, 1);

    ck_assert_uint_eq(space_copy_bytes(program, "saved"), 16 * (2 * values + 4 * (4 + 4 + 2 + 5)));
}
END_TEST

/* Of q, o and what gives it both gradients are products of this pass; what the matrices read and
 * the gradients of what they gave, but for o's, which is dmid: C 32 twice, 20 of queries' rank; 32,
 * 32, 20, 48, 20; of heads 24 and 80, of the indexer 20, 10 and 2; the MLP's h 48. */
START_TEST(what_weights_need_is_worked_out_by_hand)
{
    const guint64 kept = 48 + 24 + 64 + 2 * 48;
    const guint64 left = 32 + 32 + 20 + 32 + 32 + 20 + 48 + 20 + (24 + 80) + (20 + 10 + 2) + 48;
    g_autoptr(Model) model = expert_model(INDEXED);
    Case one = expert_case(model, 2, 1, 1, 1);

    one.layout.size[AXIS_PP] = 2;
    one.schedule.kind = SCHEDULE_ZB_H1;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    g_autoptr(Program) program = case_build(&one);
    ck_assert_uint_eq(space_copy_bytes(program, "kept"), 16 * 2 * kept);
    ck_assert_uint_eq(space_copy_bytes(program, "weights"), 16 * 2 * left);
}
END_TEST

/* Elements of collectives of that kind in the segments of blocks without experts. */
static guint64 collected(const Program *program, const char *segment, const char *purpose,
                         OpKind kind)
{
    const Segment *found = program_segment(program, (guint)find_segment(program, segment));
    guint64 elements = 0;

    for (guint i = 0; i < found->num_ops; i++) {
        const Op *op = &found->ops[i];

        if (op->kind == kind &&
            g_str_has_prefix(program_stream(program, op->stream)->name, purpose))
            elements += op->sizes.elements;
    }
    return elements;
}

/* Latent keys and the indexer's, 20 + 10 values of a token whatever the heads are. */
START_TEST(ranks_of_a_sequence_gather_narrow_keys)
{
    const guint64 keys = 16 * (20 + 10);
    g_autoptr(Model) model = expert_model(INDEXED);
    g_autoptr(Program) program = program_of(model, 2, 1);

    ck_assert_uint_eq(collected(program, "block.forward", "cp", OP_ALL_GATHER), keys);
    ck_assert_uint_eq(collected(program, "block.backward", "cp", OP_ALL_GATHER), keys);
    ck_assert_uint_eq(collected(program, "block.backward", "cp", OP_REDUCE_SCATTER), keys);
    ck_assert_uint_eq(op_key_blocks(find_op(program, "block.forward", OP_INDEX)), 2);
}
END_TEST

START_TEST(a_ring_has_not_the_keys_to_choose_from)
{
    g_autofree char *reason = NULL;
    g_autoptr(Model) model = expert_model(INDEXED);
    Case one = expert_case(model, 1, 2, 1, 1);

    one.context = CONTEXT_RING;
    ck_assert_int_eq(case_verdict(&one, &reason), VERDICT_CONTEXT);
    ck_assert_ptr_nonnull(strstr(reason, "cp = 2 by ring: the indexer chooses among the keys of "
                                         "all ranks; allowed: all_gather"));
}
END_TEST

/* Each rank of a tp group has the whole indexer and scores all tokens; what its heads gave the 5
 * keys of 16 tokens is summed, and so is no gradient of the indexer. */
START_TEST(ranks_that_share_heads_have_the_indexer_each)
{
    g_autoptr(Model) model = expert_model(INDEXED);
    g_autoptr(Program) one = program_of(model, 1, 1), two = program_of(model, 1, 2);

    ck_assert_double_eq(op_flops(find_op(two, "block.forward", OP_INDEX)),
                        op_flops(find_op(one, "block.forward", OP_INDEX)));
    ck_assert_double_eq(2 * op_flops(find_op(two, "block.forward", OP_INDEXED_ATTENTION)),
                        op_flops(find_op(one, "block.forward", OP_INDEXED_ATTENTION)));
    ck_assert_uint_eq(collected(two, "block.backward", "tp", OP_ALL_REDUCE), 16 * 5);
    for (ParamRole role = PARAM_INDEX_Q; role <= PARAM_INDEX_WEIGHTS_BIAS; role++) {
        ck_assert_int_eq(tensor_gradient_sum(model, role, TRUE), SUM_NONE);
        ck_assert_uint_eq(tensor_copies(model, role, 2), 2);
    }
}
END_TEST

/* As many keys as a sequence has, or more: all are read. */
START_TEST(of_short_sequences_all_keys_are_read)
{
    g_autoptr(Model) model = expert_model(INDEXED);

    ck_assert_double_eq(model_seen_pairs(model, 5), 1);
    ck_assert_double_eq(model_seen_pairs(model, 4), 1);
    ck_assert_double_eq(model_seen_pairs(model, 8), 27.5 / 32);
}
END_TEST

/* DeepSeek-V3.2, 61 layers, one token more of a sequence twice as long: 128 heads of 576 + 512 and
 * the indexer's 64 of 128 read 2048 - 2048^2 / 2 T keys of it, the indexer all T / 2 before. */
START_TEST(longer_sequences_cost_the_scores_of_their_keys)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model =
        model_load("tests/sim/data/models/deepseek-v3.2.json", "models", &error);

    ck_assert_msg(model != NULL, "%s", error != NULL ? error->message : "");
    const double longer = model_step_flops(model, 65536, 65536) / 65536;
    const double shorter = model_step_flops(model, 32768, 32768) / 32768;
    const double read = 2048.0 * 2048 / 2 * (1.0 / 32768 - 1.0 / 65536);
    const double attention = 3.0 * 2 * 128 * (576 + 512) * read;
    const double index = 2.0 * 64 * 128 * (16384 + 2 * read);

    ck_assert_double_eq_tol(longer - shorter, 61 * (attention + index), 1e4);
}
END_TEST

/* At the clock of a step: FlashMLA's 640 TFLOP/s on H800 and 1450 on B200 forward, cuDNN's 642 to
 * 659 backward; forward 64 or 128 heads at a time. */
START_TEST(gpus_reach_the_published_rates)
{
    static const struct {
        const char *gpu;
        double peak, clock, rate;
        OpKind kind;
        guint64 heads;
    } rows[] = {
        {"h800", 989e12, 0.85, 640e12, OP_INDEXED_ATTENTION, 64},
        {"h800", 989e12, 0.85, 160e12, OP_INDEXED_ATTENTION, 16}, /* padded: a quarter */
        {"b200", 2250e12, 0.75, 1450e12, OP_INDEXED_ATTENTION, 128},
        {"b200", 2250e12, 0.75, 725e12, OP_INDEXED_ATTENTION, 64},
        {"b200", 2250e12, 0.75, 650e12, OP_INDEXED_ATTENTION_BACKWARD, 64},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(Topology) topology = test_topology(DEVICE_CUDA, (char *)rows[i].gpu);
        const Op op = {
            .kind = rows[i].kind,
            .dtype = DTYPE_BF16,
            .dtype_out = DTYPE_BF16,
            .sizes = {.batch = 1,
                      .seq = 8192,
                      .heads = rows[i].heads,
                      .kv_heads = 1,
                      .head_dim = 576,
                      .value_dim = 512,
                      .top_k = 2048,
                      .seen = 1 - 0.75 * 0.75},
        };

        topology.gpu.peak_flops[DTYPE_BF16] = rows[i].peak;
        const double rate = op_flops(&op) / (compute_op_seconds(&op, &topology, &alone) - LAUNCH_S);
        ck_assert_double_eq_tol(rate / (rows[i].clock * rows[i].rate), 1, 0.01);
    }
}
END_TEST

/* Scores of 512 queries at a time, of all keys of a long sequence; sums of dk and the gradients of
 * 5 scores a token. */
START_TEST(scratch_is_that_of_some_queries)
{
    const OpSizes sizes = {.rows = 8192,
                           .batch = 1,
                           .seq = 8192,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_dim = 10,
                           .top_k = 5,
                           .chunk = 2};
    const Op index = {.kind = OP_INDEX, .sizes = sizes};
    const Op backward = {.kind = OP_INDEX_BACKWARD, .sizes = sizes};

    ck_assert_uint_eq(op_workspace_bytes(&index, DEVICE_CUDA, 1), 4 * 512 * 2 * 8192);
    ck_assert_uint_eq(op_workspace_bytes(&backward, DEVICE_CUDA, 1),
                      4 * (2 * 8192 * 10 + 8192 * 5));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("indexed");
    TCase *tcase = tcase_create("indexed");

    tcase_add_test(tcase, each_op_costs_its_products);
    tcase_add_test(tcase, products_of_heads_replace_the_matrix_of_keys_and_values);
    tcase_add_test(tcase, forward_saves_what_is_worked_out_by_hand);
    tcase_add_test(tcase, what_weights_need_is_worked_out_by_hand);
    tcase_add_test(tcase, ranks_of_a_sequence_gather_narrow_keys);
    tcase_add_test(tcase, a_ring_has_not_the_keys_to_choose_from);
    tcase_add_test(tcase, ranks_that_share_heads_have_the_indexer_each);
    tcase_add_test(tcase, of_short_sequences_all_keys_are_read);
    tcase_add_test(tcase, longer_sequences_cost_the_scores_of_their_keys);
    tcase_add_test(tcase, gpus_reach_the_published_rates);
    tcase_add_test(tcase, scratch_is_that_of_some_queries);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
