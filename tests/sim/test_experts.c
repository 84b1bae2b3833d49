/* Mixtures of experts and latent attention: parameters, state, volume, work and memory by hand. */
#include "sim/layout/tensor_parallel.h"
#include "sim/search/price.h"
#include "tests/sim/expert_case.h"

/* ---- parameters and state ---- */

/* What one rank has of a unit, times the ranks that have other parts. */
START_TEST(ranks_hold_the_models_parameters_together)
{
    static const struct {
        guint shard, cp, tp, ep;
    } layouts[] = {{1, 1, 1, 1}, {4, 1, 1, 1}, {4, 1, 1, 4}, {4, 1, 2, 2},
                   {2, 1, 2, 4}, {1, 2, 2, 4}, {2, 2, 1, 2}};
    g_autoptr(Model) model = expert_model((guint)_i);

    for (guint l = 0; l < G_N_ELEMENTS(layouts); l++) {
        const guint tp = layouts[l].tp, ep = layouts[l].ep;
        const Case one = expert_case(model, layouts[l].shard, layouts[l].cp, tp, ep);
        g_autoptr(Program) program = case_build(&one);
        double elements = 0;

        for (guint u = 0; u < program->units->len; u++) {
            const UnitClass *unit = program_unit(program, u);
            const gboolean experts = unit->kind == UNIT_EXPERTS;

            ck_assert_uint_eq(unit->map->ranks, experts ? layouts[l].shard * layouts[l].cp * tp / ep
                                                        : layouts[l].shard * layouts[l].cp);
            for (guint p = 0; p < unit->map->num_params; p++)
                elements += (double)(unit->map->params[p].rows * unit->map->params[p].cols) *
                            unit->count * (experts ? ep : tp) / unit->map->params[p].copies;
        }
        ck_assert_double_eq(elements, (double)model_parameters(model));
    }
}
END_TEST

/* Mixtral's case: vocabulary 256, C 32, 4 heads and 2 kv heads of 8, 4 experts of ffn 48, 4 blocks,
 * over dp_shard 4.  Of each matrix a quarter of the rows; of 2 experts, which 4 / 2 ranks share, a
 * half.  16 bytes a parameter. */
START_TEST(state_is_what_is_worked_out_by_hand)
{
    const guint64 root = 2 * 64 * 32 + 8;
    const guint64 sparse = 8 + 8 * 32 + 2 * 4 * 32 + 8 * 32 + 8 + 1 * 32;
    const guint64 experts = 48 * 32 + 48 * 32 + 32 * 48;
    g_autoptr(Model) model = expert_model(MIXTRAL);
    const Case one = expert_case(model, 4, 1, 1, 2);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(bytes_of_state(program), 16 * (root + 4 * (sparse + experts)));
}
END_TEST

/* Of the case above: blocks whole but for their experts.  2 of 4 ranks gather each of these twice,
 * and the root is gathered by all. */
START_TEST(experts_are_sharded_where_the_rest_of_their_blocks_is_whole)
{
    const guint64 root = 2 * 64 * 32 + 8, experts = 48 * 32 + 48 * 32 + 32 * 48;
    const guint64 sparse = 2 * 32 + 32 * 32 + 2 * 16 * 32 + 32 * 32 + 4 * 32;
    g_autoptr(Model) model = expert_model(MIXTRAL);
    Case one = expert_case(model, 4, 1, 1, 2);
    guint64 bytes[NUM_VOLUMES];

    one.sharding.num_overrides = 1;
    one.sharding.overrides[0] =
        (UnitOverride){REST_UNITS + 1, REST_UNITS + 4, STRATEGY_NO_SHARD, -1};
    g_autoptr(Program) program = case_build(&one);
    ck_assert_uint_eq(bytes_of_state(program), 16 * (root + 4 * (sparse + experts)));
    program_volume(program, bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER], 2 * 2 * (3 * root + 4 * experts));
    ck_assert_uint_eq(bytes[VOLUME_REDUCE_SCATTER], 2 * (3 * root + 4 * experts));
}
END_TEST

/* ---- volume ---- */

/* 16 tokens go to 2 experts each as rows of 32 bf16: of 2048 bytes a rank gets 3/4 from the others;
 * there and back, forward and backward.  Weights, fp32, go there and their gradients back. */
static const struct {
    Recompute recompute;
    guint64 rows, weights; /* times in a block and micro-batch */
} exchanged[] = {{RECOMPUTE_NONE, 4, 2}, {RECOMPUTE_SELECTIVE, 4, 2}, {RECOMPUTE_FULL, 5, 3}};

START_TEST(rows_go_to_their_experts_and_back)
{
    g_autoptr(Model) model = expert_model(MIXTRAL);

    for (guint ep = 2; ep <= 4; ep *= 2) { /* two experts a rank, or one */
        const guint64 rows = 16 * 2 * 32 * 2 * (ep - 1) / ep, weights = 16 * 2 * 4 * (ep - 1) / ep;
        Case one = expert_case(model, 4, 1, 1, ep);
        guint64 bytes[NUM_VOLUMES];

        one.schedule.recompute = exchanged[_i].recompute;
        one.schedule.micro_batches = 3;
        one.workload.global_batch *= 3;
        g_autoptr(Program) program = case_build(&one);
        program_volume(program, bytes);
        ck_assert_uint_eq(bytes[VOLUME_ALL_TO_ALL],
                          3 * 4 * (exchanged[_i].rows * rows + exchanged[_i].weights * weights));
    }
}
END_TEST

/* With ep 4 the 4 experts' ranks are neighbours and nobody has the same; gathers and reductions are
 * of all else: (4 - 1) / 4 of each, padded. */
START_TEST(experts_on_all_ranks_are_not_gathered)
{
    const guint64 sparse = 8 + 8 * 32 + 2 * 4 * 32 + 8 * 32 + 8 + 1 * 32, root = 2 * 64 * 32 + 8;
    g_autoptr(Model) model = expert_model(MIXTRAL);
    const Case one = expert_case(model, 4, 1, 1, 4);
    g_autoptr(Program) program = case_build(&one);
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER], 2 * 3 * 2 * (root + 4 * sparse));
    ck_assert_uint_eq(bytes[VOLUME_REDUCE_SCATTER], 3 * 2 * (root + 4 * sparse));
}
END_TEST

static void assert_group(const ProgramSet *set, const char *purpose, guint rank,
                         const guint *members, guint size)
{
    const Group *group = program_set_group(set, purpose, rank);

    ck_assert_ptr_nonnull(group);
    ck_assert_uint_eq(group->size, size);
    for (guint i = 0; i < size; i++)
        ck_assert_uint_eq(group->ranks[i], members[i]);
}

/* Ranks 8 to 15 are the second replica of dp_shard 2 x cp 2 x tp 2. */
START_TEST(neighbours_share_experts)
{
    g_autoptr(Model) model = expert_model(MIXTRAL);
    Case one = expert_case(model, 2, 2, 2, 4);

    one.layout.size[AXIS_DP_REPLICATE] = 2;
    one.workload.global_batch *= 2;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    g_autoptr(ProgramSet) set = case_compile(&one);
    assert_group(set, "ep", 5, (const guint[]){4, 5, 6, 7}, 4);
    assert_group(set, "ep", 8, (const guint[]){8, 9, 10, 11}, 4);
    assert_group(set, "expert_shard", 5, (const guint[]){1, 5}, 2);
    assert_group(set, "expert_shard", 15, (const guint[]){11, 15}, 2);
    assert_group(set, "shard", 5, (const guint[]){1, 3, 5, 7}, 4);
}
END_TEST

/* ---- work and memory ---- */

/* The backward pass's scores are computed again: N T H D a block, D of keys.  Of chosen keys three
 * times: for attention and for the indexer's target those of 4 heads of 16 + 4, and those of the
 * indexer's 2 heads of 10; 5 of 8 leave 32 - 3^2 / 2 pairs in each of two sequences. */
START_TEST(flops_are_the_models_and_the_scores_again)
{
    g_autoptr(Model) model = expert_model((guint)_i);
    const Case one = expert_case(model, 1, 1, 1, 1);
    g_autoptr(Program) program = case_build(&one);
    const double scores = _i == INDEXED ? model->layers * 2 * 27.5 * 2 * (2 * 4 * 20 + 2 * 10)
                                        : model->layers * 16.0 * 8 * 4 * model->head_dim;
    const double flops = model_step_flops(model, 16, 8);

    ck_assert_double_eq_tol(program_flops(program), flops + scores, 1e-9 * flops);
}
END_TEST

/* A GPU's grouped products take 128 rows of each expert; 16 tokens x 2 of 2 ranks are 16 rows of
 * each of 4. */
START_TEST(experts_have_room_for_whole_tiles)
{
    g_autoptr(Model) model = expert_model(MIXTRAL);
    Case one = expert_case(model, 2, 1, 1, 2);
    g_autoptr(Program) on_cpu = case_build(&one);

    one.device = DEVICE_CUDA;
    g_autoptr(Program) on_gpu = case_build(&one);
    const gint cpu = find_tensor(on_cpu, "sparse.expert_rows");
    const gint gpu = find_tensor(on_gpu, "sparse.expert_rows");
    ck_assert_uint_eq(program_tensor(on_cpu, (guint)cpu)->elements, 2 * 16 * 32);
    ck_assert_uint_eq(program_tensor(on_gpu, (guint)gpu)->elements, 2 * 128 * 32);
    ck_assert_uint_eq(op_expert_rows(129, DEVICE_CUDA), 256);
}
END_TEST

/* DeepSeek's case, a token: 4 heads of 8 + 4 for queries and keys and of 6 for values; ranks 20 of
 * queries, 16 + 4 of keys and values; the first block has an MLP of 48, the others 8 experts of 24,
 * of which a token visits 2, and a shared one of 24.  fp32: lse 4, rstd of 4 norms; of the router
 * the weights, twice, and int32 choices. */
START_TEST(latent_attention_and_experts_save_what_is_worked_out_by_hand)
{
    const guint64 attention = 2 * 4 * 12 + 2 * 4 * 6 + 32 + 20 + 20, statistics = 4 + 4;
    const guint64 dense = 2 * (attention + 2 * 48) + 4 * statistics;
    const guint64 sparse =
        2 * (attention + 2 * 24 + 8 + 2 * (32 + 2 * 24)) + 4 * (statistics + 2 + 2 + 2);
    g_autoptr(Model) model = expert_model(DEEPSEEK);
    const Case one = expert_case(model, 2, 1, 1, 2);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(space_copy_bytes(program, "saved"), 16 * dense);
    ck_assert_uint_eq(space_copy_bytes(program, "sparse_saved"), 16 * sparse);
    ck_assert_uint_eq(copies_of(program, (guint)find_tensor(program, "q")), 1);
    ck_assert_uint_eq(copies_of(program, (guint)find_tensor(program, "sparse.q")), 3);
}
END_TEST

/* Qwen2-MoE's case, a token: 4 heads of 8, 2 of keys and values, a shared MLP of 40, 2 of 4 experts
 * of 16; fp32: lse 4, rstd of 2 norms, the scale of what the shared ones give; of the router as
 * above.  The scale's gradient is summed over tp, whose ranks have parts of that MLP. */
START_TEST(a_gate_of_shared_experts_saves_a_value_a_token)
{
    const guint64 values = 32 + 16 + 16 + 32 + 32 + 2 * 40 + 4 + 2 * (32 + 2 * 16);
    g_autoptr(Model) model = expert_model(QWEN_SHARED);
    Case one = expert_case(model, 2, 1, 1, 2);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(space_copy_bytes(program, "sparse_saved"),
                      16 * (2 * values + 4 * (4 + 2 + 1 + 2 + 2 + 2)));
    for (guint sequence = 0; sequence <= 1; sequence++)
        ck_assert_int_eq(tensor_gradient_sum(model, PARAM_SHARED_SCALE, sequence != 0),
                         SUM_OVER_TP);
}
END_TEST

/* gpt-oss' case, a token: Mixtral's with experts of 48.  With the weights' backward apart that
 * reads the rows' weights too: a bias of what experts give is taken by them. */
START_TEST(biases_of_experts_keep_the_weights_of_rows)
{
    const guint64 values = 32 + 16 + 16 + 32 + 32 + 4 + 2 * (32 + 2 * 48);
    g_autoptr(Model) model = expert_model(GPT_OSS);
    Case one = expert_case(model, 2, 1, 1, 2);
    g_autoptr(Program) whole = case_build(&one);

    ck_assert_uint_eq(space_copy_bytes(whole, "sparse_saved"),
                      16 * (2 * values + 4 * (4 + 2 + 2 + 2 + 2)));
    one.layout.size[AXIS_PP] = 2;
    one.schedule.kind = SCHEDULE_ZB_H1;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    g_autoptr(Program) split = case_build(&one);
    ck_assert_uint_eq(space_copy_bytes(split, "sparse_kept"),
                      16 * (2 * (32 + 2 * (32 + 2 * 48)) + 4 * 2));
}
END_TEST

/* Scores of sinks are the same for each block of keys that a ring brings: one step takes them, and
 * they neither hide positions nor look like them. */
START_TEST(sinks_are_taken_once)
{
    g_autoptr(Model) model = expert_model(GPT_OSS);

    for (guint cp = 1; cp <= 4; cp *= 2) {
        const Case one = expert_case(model, 1, cp, 1, 1);
        g_autoptr(Program) program = case_build(&one);
        guint with[2] = {0, 0}, all[2] = {0, 0}, gradients = 0;

        for (guint s = 0; s < program->segments->len; s++)
            for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
                const Op *op = &program_segment(program, s)->ops[i];

                gradients += op->kind == OP_SINKS_BACKWARD ? 1 : 0;
                if (op_class(op->kind) != OP_CLASS_ATTENTION)
                    continue;
                all[op->kind == OP_ATTENTION ? 0 : 1]++;
                with[op->kind == OP_ATTENTION ? 0 : 1] += op->sizes.sinks == 4 ? 1 : 0;
                ck_assert_int_eq(op_has_positions(op), cp > 1);
            }
        ck_assert_uint_eq(all[0], cp);
        ck_assert_uint_eq(all[1], cp);
        ck_assert_uint_eq(with[0], 1);
        ck_assert_uint_eq(with[1], 0);
        ck_assert_uint_eq(gradients, 1);
    }
}
END_TEST

/* By hand, of 16 tokens in DeepSeek's case: down to 20 and to 16 + 4, up to 4 heads of 12 and of
 * 8 + 6, out of 4 x 6. */
START_TEST(latent_projections_cost_their_matrices)
{
    const double matrices = 32 * 20 + 32 * 20 + 20 * 48 + 16 * 4 * 14 + 24 * 32;
    g_autoptr(Model) model = expert_model(DEEPSEEK);
    const Case one = expert_case(model, 1, 1, 1, 1);
    g_autoptr(Program) program = case_build(&one);
    const Segment *forward =
        program_segment(program, (guint)find_segment(program, "block.forward"));
    double flops = 0, attention = 0;

    for (guint i = 0; i < forward->num_ops; i++) {
        if (forward->ops[i].kind == OP_LINEAR)
            flops += op_flops(&forward->ops[i]);
        if (forward->ops[i].kind == OP_ATTENTION)
            attention += op_flops(&forward->ops[i]);
    }
    ck_assert_double_eq(flops, 2 * 16 * (matrices + 3 * 32 * 48));
    ck_assert_double_eq(attention, 2.0 * 16 * 8 * 4 * (12 + 6) / 2);
}
END_TEST

/* A row for each choice; 2 experts of 5 x 3; 8 tokens of 3 heads of 7. */
START_TEST(ops_of_experts_move_what_is_worked_out_by_hand)
{
    const OpSizes sizes = {.rows = 16,
                           .batch = 2,
                           .seq = 4,
                           .heads = 3,
                           .head_dim = 7,
                           .in = 3,
                           .out = 5,
                           .groups = 2,
                           .top_k = 4};
    const struct {
        OpKind kind;
        guint operands;
        double bytes;
    } worked[] = {
        {OP_ROUTE, 3, 2 * 16 * 3 + 4 * 16 * 4 + 4 * 16 * 4},
        {OP_PERMUTE, 3, 2 * 16 * 3 + 4 * 16 * 4 + 2 * 64 * 3},
        {OP_UNPERMUTE, 3, 2 * 64 * 3 + 4 * 16 * 4 + 2 * 16 * 3},
        {OP_GROUPED_LINEAR, 4, 2 * (16 * 3 + 2 * 5 * 3 + 16 * 5)},
        {OP_SWIGLU, 4, 2 * 3 * 16 * 3 + 4 * 16},
        {OP_ALL_TO_ALL, 2, 0},
        {OP_GROUPED_LINEAR, 6, 2 * (16 * 3 + 2 * 5 * 3 + 16 * 5 + 2 * 5) + 4 * 16}, /* a bias */
        {OP_GROUPED_LINEAR_BACKWARD_INPUT, 6, 2 * (16 * 3 + 2 * 5 * 3 + 16 * 5 + 2 * 5) + 4 * 16},
        {OP_GROUPED_LINEAR_BACKWARD_WEIGHT, 6, 2 * (16 * 3 + 2 * 5 * 3 + 16 * 5 + 2 * 5) + 4 * 16},
        {OP_SINKS_BACKWARD, 5, 2 * 2 * 24 * 7 + 4 * 24 + 2 * 2 * 3},
        {OP_SIGMOID, 2, 2 * 16 + 4 * 16},
        {OP_SIGMOID_BACKWARD, 3, 4 * 16 + 4 * 16 + 2 * 16},
    };

    for (guint i = 0; i < G_N_ELEMENTS(worked); i++) {
        Op op = {.kind = worked[i].kind,
                 .dtype = DTYPE_BF16,
                 .dtype_out = DTYPE_BF16,
                 .sizes = sizes,
                 .num_operands = worked[i].operands};

        ck_assert_msg(op_memory_bytes(&op, 0) == worked[i].bytes, "%s: %g", op_kind_name(op.kind),
                      op_memory_bytes(&op, 0));
    }
}
END_TEST

/* ---- backward in two parts ---- */

/* Two stages: the dense block and one with experts; two with experts. */
static Case split_case(Model *model, guint ep)
{
    Case one = expert_case(model, 2, 1, 1, ep);

    one.layout.size[AXIS_PP] = 2;
    one.schedule.kind = SCHEDULE_ZB_H1;
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    return one;
}

/* As above, in a token's values.  The weights' backward reads o, gates and ups, which are gradients
 * by then, and the experts' rows; and what backward for inputs left: of each matrix what it reads,
 * unless it is one of those, and the gradient of what it gives. */
START_TEST(what_weights_need_of_experts_is_worked_out_by_hand)
{
    const guint64 attention = 32 + 20 + 16 + 32 + (20 + 4 * 12 + 16 + 4) + 4 * (8 + 6);
    const guint64 dense_kept = 4 * 6 + 2 * 48, dense_left = attention + 32 + 32 + 48;
    const guint64 sparse_kept = 4 * 6 + 2 * 24 + 2 * (32 + 2 * 24);
    const guint64 sparse_left = attention + 32 + 32 + 24 + 8 + 2 * (32 + 24);
    g_autoptr(Model) model = expert_model(DEEPSEEK);

    for (guint ep = 1; ep <= 2; ep++) {
        const Case one = split_case(model, ep);
        g_autoptr(Program) program = case_build(&one);

        ck_assert_uint_eq(space_copy_bytes(program, "kept"), 16 * 2 * dense_kept);
        ck_assert_uint_eq(space_copy_bytes(program, "weights"), 16 * 2 * dense_left);
        ck_assert_uint_eq(space_copy_bytes(program, "sparse_kept"), 16 * 2 * sparse_kept);
        ck_assert_uint_eq(space_copy_bytes(program, "sparse_weights"), 16 * 2 * sparse_left);
    }
}
END_TEST

static double segment_flops(const Program *program, const char *unit, const char *what)
{
    g_autofree char *name = g_strconcat(unit, what, NULL);
    const gint found = find_segment(program, name);
    double flops = 0;

    for (guint i = 0; found >= 0 && i < program_segment(program, (guint)found)->num_ops; i++) {
        const Op *op = &program_segment(program, (guint)found)->ops[i];

        flops += op_class(op->kind) < OP_CLASS_MEMORY_BOUND ? op_flops(op) : 0;
    }
    return flops;
}

/* Of products: a weight's gradient costs what its input's does. */
START_TEST(both_parts_of_backward_are_its_work)
{
    static const char *const units[] = {"block", "sparse", "experts"};
    g_autoptr(Model) model = expert_model((guint)_i);
    Case one = split_case(model, 2);
    g_autoptr(Program) split = case_build(&one);

    one.schedule.kind = SCHEDULE_1F1B;
    g_autoptr(Program) whole = case_build(&one);
    for (guint u = 0; u < G_N_ELEMENTS(units); u++) {
        const double forward = segment_flops(whole, units[u], ".forward");
        const double backward = segment_flops(whole, units[u], ".backward");
        const double weights = segment_flops(split, units[u], ".weights");

        ck_assert_double_eq(segment_flops(split, units[u], ".backward") + weights, backward);
        ck_assert((weights > 0) == (forward > 0) && weights <= forward);
        if (u == 2)
            ck_assert_double_eq(weights, forward);
    }
    ck_assert_double_eq(segment_flops(whole, "experts", ".weights"), 0);
}
END_TEST

/* ---- what is proven, what is refused ---- */

/* "experts.weights", "block.no_shard.rest.forward": that pass of a kind of unit, in either lot. */
static gboolean is_pass_of(const char *segment, const char *unit, const char *pass, gboolean rest)
{
    g_autofree char *ending = g_strdup_printf(".%s", pass);

    return g_str_has_prefix(segment, unit) && g_str_has_suffix(segment, ending) &&
           (strstr(segment, ".rest.") != NULL) == rest;
}

/* What one pass leaves in a copy of a ring nobody else writes before another has read it: check,
 * which knows no values, would not see it. */
static void assert_kept(const Program *program, const char *what)
{
    static const struct {
        const char *ring, *unit, *from, *to;
        gboolean rest;
    } rings[] = {
        {"saved", "block", "forward", "backward", FALSE},
        {"kept", "block", "forward", "weights", FALSE},
        {"again_kept", "block", "recompute", "weights", FALSE},
        {"weights", "block", "backward", "weights", FALSE},
        {"sparse_saved", "sparse", "forward", "backward", FALSE},
        {"sparse_kept", "sparse", "forward", "weights", FALSE},
        {"sparse_kept", "experts", "forward", "weights", FALSE},
        {"sparse_again_kept", "sparse", "recompute", "weights", FALSE},
        {"sparse_weights", "sparse", "backward", "weights", FALSE},
        {"sparse_weights", "experts", "backward", "weights", FALSE},
        {"rest_saved", "block", "forward", "backward", TRUE},
        {"rest_kept", "block", "forward", "weights", TRUE},
        {"rest_weights", "block", "backward", "weights", TRUE},
        {"rest_sparse_saved", "sparse", "forward", "backward", TRUE},
        {"rest_sparse_kept", "experts", "forward", "weights", TRUE},
        {"rest_sparse_weights", "experts", "backward", "weights", TRUE},
    };
    const GArray *calls = program->step.calls;

    for (guint r = 0; r < G_N_ELEMENTS(rings); r++) {
        const guint space = find_space(program, rings[r].ring);
        gint owner[4096];

        memset(owner, -1, sizeof owner);
        for (guint c = 0; space != NO_SPACE && c < calls->len; c++) {
            const Call *call = &g_array_index(calls, Call, c);
            const char *segment = program_segment(program, call->segment)->name;
            const gboolean from = is_pass_of(segment, rings[r].unit, rings[r].from, rings[r].rest);
            const gint own = (gint)(call->unit * 64 + call->micro_batch);
            gint *of_copy = &owner[call->index[program_space(program, space)->slot]];

            if (!from && !is_pass_of(segment, rings[r].unit, rings[r].to, rings[r].rest))
                continue;
            ck_assert_msg(*of_copy == (from ? -1 : own), "%s: %s of unit %u", what, segment,
                          call->unit);
            *of_copy = from ? own : -1;
        }
    }
}

/* Experts are treated otherwise than the rest of their block. */
static gboolean has_part(const Sharding *sharding)
{
    for (guint i = 0; i < sharding->num_overrides; i++)
        if (sharding->overrides[i].first >= REST_UNITS)
            return TRUE;
    return FALSE;
}

START_TEST(check_proves_random_plans)
{
    g_autoptr(Model) model = expert_model((guint)_i);
    g_autoptr(GRand) random = g_rand_new_with_seed(31 + (guint)_i);
    guint shared = 0, split = 0, apart = 0;

    for (guint i = 0; i < 60; i++) {
        const Case one = case_random_4d(random, model);
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);

        assert_proven(set, text);
        for (guint c = 0; c < set->num_classes; c++)
            assert_kept(set->classes[c], text);
        shared += layout_ep(&one.layout) > 1;
        split += one.schedule.kind == SCHEDULE_ZB_H1;
        apart += has_part(&one.sharding) ? 1 : 0;
    }
    ck_assert_uint_ge(shared, 5);
    ck_assert_uint_ge(split, 2);
    ck_assert(apart >= 5 || model_num_sparse(model) == 0);
}
END_TEST

typedef struct {
    const char *reason;
    guint model; /* of expert_cases */
    guint shard, tp, ep;
    gboolean tokens_whole, no_shard;
    const char *unit; /* that is not sharded */
} Refused;

static const Refused refused[] = {
    {"ep = 3: must divide the model's 4 experts; allowed: 1, 2, 4", MIXTRAL, 3, 1, 3, FALSE, FALSE,
     NULL},
    {"ep = 4: must divide dp_shard x cp x tp = 2", MIXTRAL, 2, 1, 4, FALSE, FALSE, NULL},
    {"ep = 2 with no_shard", MIXTRAL, 1, 2, 2, FALSE, TRUE, NULL},
    {"ep = 2 with no_shard", MIXTRAL, 2, 1, 2, FALSE, FALSE, "experts.3"},
    {"ep = 2 with no_shard", MIXTRAL, 2, 1, 2, FALSE, FALSE, "layers.0-1"},
    {"a mixture of experts needs sequence parallelism", MIXTRAL, 2, 2, 1, TRUE, FALSE, NULL},
    {"latent attention needs sequence parallelism", DEEPSEEK, 2, 2, 1, TRUE, FALSE, NULL},
    {"units: experts.0: none of these blocks has experts", DEEPSEEK, 2, 1, 2, FALSE, FALSE,
     "experts.0"},
    {"units: block 4 is not one of the model's 0 .. 3", DEEPSEEK, 2, 1, 2, FALSE, FALSE,
     "rest.3-4"},
};

START_TEST(what_does_not_go_with_experts_is_refused)
{
    const Refused *r = &refused[_i];
    g_autoptr(Model) model = expert_model(r->model);
    Case one = expert_case(model, r->shard, 1, r->tp, r->ep);
    g_autofree char *reason = NULL;

    one.sequence_parallel = !r->tokens_whole;
    if (r->no_shard)
        one.sharding.strategy = STRATEGY_NO_SHARD;
    if (r->unit != NULL) {
        ck_assert(unit_override_parse(r->unit, &one.sharding.overrides[0]));
        one.sharding.overrides[one.sharding.num_overrides++].strategy = STRATEGY_NO_SHARD;
    }
    ck_assert_int_ne(case_verdict(&one, &reason), VERDICT_OK);
    ck_assert_msg(strstr(reason, r->reason) != NULL, "%s", reason);
}
END_TEST

START_TEST(a_model_without_experts_has_no_ep)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = expert_case(model, 2, 1, 1, 2);
    g_autofree char *reason = NULL;

    ck_assert_int_eq(case_verdict(&one, &reason), VERDICT_EXPERTS);
    ck_assert_str_eq(reason, "ep = 2: the model has no experts");
}
END_TEST

/* ---- search and plan files ---- */

START_TEST(search_tries_every_ep_and_a_plan_file_has_it)
{
    g_autoptr(Model) model = expert_model(QWEN);
    g_autoptr(Topology) topology = case_gpu_topology(2, 8000, 1000);
    const SearchRequest request = request_for(model, topology);
    SearchRequest fixed = request;
    g_autoptr(SearchResult) all = search(&request);
    guint found[9] = {0};

    for (guint p = 0; p < all->plans->len; p++)
        found[layout_ep(&((Plan *)g_ptr_array_index(all->plans, p))->layout)]++;
    for (guint ep = 1; ep <= 8; ep++)
        ck_assert_msg((found[ep] > 0) == (8 % ep == 0), "ep %u: %u plans", ep, found[ep]);
    guint i = 0;
    while (layout_ep(&((Plan *)g_ptr_array_index(all->plans, i))->layout) != 4)
        i++;
    g_autofree char *text = plan_print(g_ptr_array_index(all->plans, i));
    g_autoptr(GError) error = NULL;
    g_autoptr(Plan) read = plan_parse(text, "plan", &error);
    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read), *layout = plan_layout_text(read);
    ck_assert_str_eq(again, text);
    ck_assert_ptr_nonnull(strstr(layout, " ep=4"));

    fixed.fixed_ep = 4;
    g_autoptr(SearchResult) some = search(&fixed);
    ck_assert_uint_eq(some->plans->len, found[4]);
}
END_TEST

START_TEST(a_plan_file_has_strategies_of_experts)
{
    g_autoptr(Model) model = expert_model(QWEN);
    g_autoptr(Topology) topology = case_gpu_topology(2, 8000, 1000);
    SearchRequest request = request_for(model, topology);
    g_autoptr(GError) error = NULL;

    request.top = 1;
    request.strategy = STRATEGY_FULL_SHARD;
    request.sharding.num_overrides = 2;
    request.sharding.overrides[0] =
        (UnitOverride){REST_UNITS + 1, REST_UNITS + 1, STRATEGY_NO_SHARD, -1};
    request.sharding.overrides[1] =
        (UnitOverride){EXPERTS_UNITS + 2, EXPERTS_UNITS + 4, STRATEGY_SHARD_GRAD_OP, -1};
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_eq(result->plans->len, 1);
    g_autofree char *text = plan_print(g_ptr_array_index(result->plans, 0));
    g_autoptr(Plan) read = plan_parse(text, "plan", &error);
    ck_assert_msg(read != NULL, "%s", error == NULL ? "" : error->message);
    g_autofree char *again = plan_print(read), *units = plan_units_text(read);
    ck_assert_str_eq(again, text);
    ck_assert_str_eq(units, "rest.0 no_shard, experts.1-3 shard_grad_op");
}
END_TEST

START_TEST(plans_without_ep_do_not_name_it)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(Topology) topology = case_gpu_topology(2, 8000, 1000);
    SearchRequest request = request_for(model, topology);

    request.top = 1;
    g_autoptr(SearchResult) result = search(&request);
    ck_assert_uint_eq(result->plans->len, 1);
    g_autofree char *text = plan_print(g_ptr_array_index(result->plans, 0));
    ck_assert_ptr_null(strstr(text, "\"ep\""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("experts");
    TCase *tcase = tcase_create("experts");
    const int num = G_N_ELEMENTS(expert_cases);

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, ranks_hold_the_models_parameters_together, 0, num);
    tcase_add_test(tcase, state_is_what_is_worked_out_by_hand);
    tcase_add_test(tcase, experts_are_sharded_where_the_rest_of_their_blocks_is_whole);
    tcase_add_loop_test(tcase, rows_go_to_their_experts_and_back, 0, G_N_ELEMENTS(exchanged));
    tcase_add_test(tcase, experts_on_all_ranks_are_not_gathered);
    tcase_add_test(tcase, neighbours_share_experts);
    tcase_add_loop_test(tcase, flops_are_the_models_and_the_scores_again, 0, num);
    tcase_add_test(tcase, experts_have_room_for_whole_tiles);
    tcase_add_test(tcase, latent_attention_and_experts_save_what_is_worked_out_by_hand);
    tcase_add_test(tcase, a_gate_of_shared_experts_saves_a_value_a_token);
    tcase_add_test(tcase, biases_of_experts_keep_the_weights_of_rows);
    tcase_add_test(tcase, sinks_are_taken_once);
    tcase_add_test(tcase, latent_projections_cost_their_matrices);
    tcase_add_test(tcase, ops_of_experts_move_what_is_worked_out_by_hand);
    tcase_add_test(tcase, what_weights_need_of_experts_is_worked_out_by_hand);
    tcase_add_loop_test(tcase, both_parts_of_backward_are_its_work, 0, num);
    tcase_add_loop_test(tcase, check_proves_random_plans, 0, num);
    tcase_add_loop_test(tcase, what_does_not_go_with_experts_is_refused, 0, G_N_ELEMENTS(refused));
    tcase_add_test(tcase, a_model_without_experts_has_no_ep);
    tcase_add_test(tcase, search_tries_every_ep_and_a_plan_file_has_it);
    tcase_add_test(tcase, a_plan_file_has_strategies_of_experts);
    tcase_add_test(tcase, plans_without_ep_do_not_name_it);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
