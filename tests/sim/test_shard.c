#include "sim/base/data_dirs.h"
#include "sim/summary/summary.h"
#include "tests/sim/spec_case.h"

/* vocabulary 257, hidden 24, ffn 40, 4 heads, 2 kv heads, 3 layers, worked by hand:
 *     root   2 x 257 x 24 + 24                                    = 12360
 *     block  24 + 24x24 + 2 x 12x24 + 24x24 + 24 + 3 x 40x24      =  4656
 *     Psi    12360 + 3 x 4656                                     = 26328
 * on 3 ranks, by rows: root 2 x 86x24 + 8 = 4136; block 8 + 8x24 + 2 x 4x24 + 8x24 + 8 + 2 x 14x24
 *     + 8x40 = 1584; together 4136 + 3 x 1584 = 8888
 * on 3 ranks, flat: 4120 + 3 x 1552 = 8776
 * on 30 ranks, by rows (no tensor but the vocabulary's and the ffn's has so many): root 2 x 9x24 +
 *     1 = 433; block 1 + 4 x 24 + 1 + 2 x 2x24 + 40 = 234; together 433 + 3 x 234 = 1135 */
static const struct {
    guint ranks;
    Form form;
    guint64 shard;
} shards[] = {{1, FORM_PER_PARAMETER, 26328}, {1, FORM_FLAT, 26328},
              {3, FORM_PER_PARAMETER, 8888},  {3, FORM_FLAT, 8776},
              {30, FORM_PER_PARAMETER, 1135}, {30, FORM_FLAT, 412 + 3 * 156}};

static const Strategy all_strategies[] = {STRATEGY_NO_SHARD, STRATEGY_SHARD_OPTIMIZER,
                                          STRATEGY_SHARD_GRAD_OP, STRATEGY_FULL_SHARD,
                                          STRATEGY_HYBRID_SHARD};

START_TEST(the_hand_worked_shards_are_what_the_formulas_of_these_tests_give)
{
    g_autoptr(Model) model = case_model(&case_shape);

    ck_assert_uint_eq(hand_psi(model), 26328);
    ck_assert_uint_eq(hand_psi_shard(model, shards[_i].ranks, shards[_i].form), shards[_i].shard);
}
END_TEST

/* ---- state ---- */

/* Bytes of each state term: DESIGN 4's table with what ceil() rounds up. */
typedef struct {
    guint64 parameters, gradients, master, moments;
} State;

/* @p, @g, @o: bytes a parameter of stored parameter, gradient, master; moments have 4 each. */
static State hand_state(const Case *from, guint64 p, guint64 g, guint64 o)
{
    const guint ranks = from->layout.size[AXIS_DP_SHARD];
    const Form form = from->sharding.form;
    const Strategy strategy = from->sharding.strategy;
    const guint64 shard = hand_psi_shard(from->model, ranks, form);
    const guint64 whole = strategy == STRATEGY_NO_SHARD ? hand_psi(from->model) : ranks * shard;
    const gboolean keeps_whole =
        strategy == STRATEGY_NO_SHARD || strategy == STRATEGY_SHARD_OPTIMIZER;
    const guint64 moments = from->workload.optimizer == OPTIMIZER_ADAMW ? 8 : 0;

    return (State){
        .parameters = p * (keeps_whole ? whole : shard),
        .gradients = g * (keeps_whole || !from->sharding.accumulate_sharded ? whole : shard),
        .master = o * (strategy == STRATEGY_NO_SHARD ? whole : shard),
        .moments = moments * (strategy == STRATEGY_NO_SHARD ? whole : shard),
    };
}

static void assert_state(const Case *from, const State *state)
{
    g_autoptr(Program) program = case_build(from);
    g_autofree char *text = case_text(from);
    const MemoryUse use = program_memory(program);

    ck_assert_msg(use.term[TERM_PARAMETERS] == state->parameters, "%s", text);
    ck_assert_msg(use.term[TERM_GRADIENTS] == state->gradients, "%s", text);
    ck_assert_msg(use.term[TERM_MASTER] == state->master, "%s", text);
    ck_assert_msg(use.term[TERM_OPTIMIZER] == state->moments, "%s", text);
    ck_assert_uint_eq(kind_bytes(program, TENSOR_PARAMETER), state->parameters);
    ck_assert_uint_eq(kind_bytes(program, TENSOR_GRADIENT), state->gradients);
    ck_assert_uint_eq(kind_bytes(program, TENSOR_MASTER), state->master);
    ck_assert_uint_eq(kind_bytes(program, TENSOR_MOMENT), state->moments);
}

START_TEST(state_is_the_table_of_the_design_to_the_byte)
{
    static const guint ranks[] = {1, 2, 3, 4, 30};
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint r = 0; r < G_N_ELEMENTS(ranks); r++)
        for (guint form = 0; form < NUM_FORMS; form++)
            for (guint accumulate = 0; accumulate < 2; accumulate++) {
                Case one = case_with(model, all_strategies[_i], ranks[r], 2);

                one.sharding.form = (Form)form;
                one.sharding.accumulate_sharded &= accumulate == 1;
                const State state = hand_state(&one, 2, 2, 4);
                assert_state(&one, &state);
            }
}
END_TEST

START_TEST(recipe_zero_keeps_16_bytes_a_parameter_and_the_others_theirs)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);
    State state = hand_state(&one, 2, 2, 4);

    ck_assert_uint_eq(state.parameters + state.gradients + state.master + state.moments, 16 * 8888);
    assert_state(&one, &state);
    one.workload.recipe = &recipe_fsdp2;
    state = hand_state(&one, 4, 4, 0);
    ck_assert_uint_eq(state.parameters + state.gradients + state.moments, 16 * 8888);
    assert_state(&one, &state);
    one.workload.recipe = &recipe_fp32;
    assert_state(&one, &state);
    one.workload.optimizer = OPTIMIZER_SGD;
    state.moments = 0;
    assert_state(&one, &state);
    one.workload.recipe = &recipe_zero;
    state = (State){2 * 8888, 2 * 8888, 4 * 8888, 0};
    assert_state(&one, &state);
}
END_TEST

/* 6 + 12 / d with shard_optimizer: 3 x 8888 whole with padding, 8888 of the rest. */
START_TEST(megatron_keeps_6_bytes_whole_and_12_of_a_shard)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_SHARD_OPTIMIZER, 3, 2);
    const State state = {2 * 26664, 4 * 26664, 4 * 8888, 8 * 8888};

    one.workload.recipe = &recipe_megatron;
    assert_state(&one, &state);
    ck_assert_uint_eq(state.parameters + state.gradients, 6 * 3 * 8888);
}
END_TEST

/* Root 4136 = 16 x 256 + 40 elements: 17 scales; a block 1584 = 6 x 256 + 48: 7. */
START_TEST(eight_bit_moments_take_a_byte_and_their_scales)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 2);
    const State state = {2 * 8888, 2 * 8888, 4 * 8888, 2 * (4136 + 4 * 17 + 3 * (1584 + 4 * 7))};

    one.workload.optimizer = OPTIMIZER_ADAM8BIT;
    assert_state(&one, &state);
}
END_TEST

static guint64 case_volume(const Case *one, Volume volume)
{
    g_autoptr(Program) program = case_build(one);

    return volume_of(program, volume);
}

/* 3 ranks, 2 micro-batches: 2 x 1584 elements of a block arrive with each of 2 gathers, and 2 x
 * 4136 of the root; nothing else is gathered. */
START_TEST(blocks_gathered_in_fp8_move_exactly_half)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 2);
    const guint64 root = 2 * 2 * 2 * 2 * 4136, blocks = 2 * 2 * 2 * 2 * 3 * 1584;

    one.workload.recipe = recipe_with_precision(&recipe_zero, DTYPE_FP8);
    ck_assert_uint_eq(case_volume(&one, VOLUME_ALL_GATHER), root + blocks);
    const guint64 reduced = case_volume(&one, VOLUME_REDUCE_SCATTER);
    one.sharding.gather_fp8 = TRUE;
    ck_assert_uint_eq(case_volume(&one, VOLUME_ALL_GATHER), root + blocks / 2);
    ck_assert_uint_eq(case_volume(&one, VOLUME_REDUCE_SCATTER), reduced);
    g_autoptr(Program) program = case_build(&one);
    const gint gathered = find_tensor(program, "block.gathered");
    ck_assert_uint_eq(tensor_copy_bytes(program_tensor(program, (guint)gathered)), 3 * 1584);
}
END_TEST

/* Products in bf16: of a block's 1584 elements a rank, those of two norms of 24 are gathered as
 * they are; the matrices' largest magnitudes, a row a unit, are reduced once over 3 ranks. */
START_TEST(codes_are_exactly_half_of_the_matrices_in_bf16)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 2);
    const guint64 gathers = 2 * 2 * 3, norms = 2 * 8;
    const guint64 whole = case_volume(&one, VOLUME_ALL_GATHER);
    const guint64 reduced = case_volume(&one, VOLUME_ALL_REDUCE);

    ck_assert_uint_eq(model->hidden, 24);
    one.sharding.gather_fp8 = TRUE;
    ck_assert_uint_eq(whole - case_volume(&one, VOLUME_ALL_GATHER), gathers * 2 * (1584 - norms));
    ck_assert_uint_eq(case_volume(&one, VOLUME_ALL_REDUCE) - reduced,
                      2 * 2 * ((4 * NUM_PARAM_ROLES + 2) / 3) * 4);
    g_autoptr(Program) program = case_build(&one);
    const gint gathered = find_tensor(program, "block.gathered");
    ck_assert_int_eq(program_tensor(program, (guint)gathered)->dtype, DTYPE_BF16);
}
END_TEST

/* Casts of a block's forward: x of q, k and v at once, o, x of gate and up, h: 4; a weight each: 7.
 * Backward: dy of down, gate, up, o, q, k, v and x of down, gate and up, o, q k v: 11; weights 7.
 */
START_TEST(fp8_products_read_what_was_rounded_once)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);

    one.workload.recipe = recipe_with_precision(&recipe_zero, DTYPE_FP8);
    g_autoptr(Program) program = case_build(&one);
    const guint casts[] = {4 + 7, 11 + 7};
    static const char *const names[] = {"block.forward", "block.backward"};

    for (guint s = 0; s < 2; s++) {
        const Segment *segment = program_segment(program, (guint)find_segment(program, names[s]));
        guint count = 0;

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];

            count += op->kind == OP_CAST && op->dtype_out == DTYPE_FP8;
            if (op_class(op->kind) != OP_CLASS_GEMM)
                continue;
            ck_assert_int_eq(op->dtype, DTYPE_FP8);
            ck_assert_int_eq(op->dtype_out, DTYPE_BF16);
            ck_assert_int_eq(program_tensor(program, op->operands[0].tensor)->dtype, DTYPE_FP8);
            ck_assert_int_eq(program_tensor(program, op->operands[1].tensor)->dtype, DTYPE_FP8);
        }
        ck_assert_uint_eq(count, casts[s]);
    }
}
END_TEST

START_TEST(the_hash_tells_precisions_gathers_and_moments_apart)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case cases[5];
    g_autoptr(GHashTable) hashes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
        cases[i] = case_with(model, STRATEGY_FULL_SHARD, 3, 2);
    cases[1].workload.recipe = recipe_with_precision(&recipe_zero, DTYPE_FP16);
    cases[2].workload.recipe = recipe_with_precision(&recipe_zero, DTYPE_FP8);
    cases[3].workload.recipe = cases[2].workload.recipe;
    cases[3].sharding.gather_fp8 = TRUE;
    cases[4].workload.optimizer = OPTIMIZER_ADAM8BIT;
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Program) program = case_build(&cases[i]);

        ck_assert(g_hash_table_add(hashes, program_hash(program)));
    }
}
END_TEST

START_TEST(fp32_keeps_16_bytes_where_nothing_is_sharded)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_NO_SHARD, 4, 1);
    const State state = {4 * 26328, 4 * 26328, 0, 8 * 26328};

    one.workload.recipe = &recipe_fp32;
    assert_state(&one, &state);
}
END_TEST

START_TEST(a_tied_embedding_is_stored_once)
{
    CaseShape shape = case_shape;

    shape.tied = TRUE;
    g_autoptr(Model) model = case_model(&shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);
    const State state = hand_state(&one, 2, 2, 4);

    ck_assert_uint_eq(state.parameters, 2 * (8888 - 86 * 24));
    assert_state(&one, &state);
}
END_TEST

START_TEST(an_overridden_unit_has_the_state_of_its_own_strategy)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);

    one.sharding.num_overrides = 2;
    one.sharding.overrides[0] = (UnitOverride){2, 2, STRATEGY_NO_SHARD, -1};
    one.sharding.overrides[1] = (UnitOverride){3, 3, STRATEGY_SHARD_OPTIMIZER, -1};
    /* Root and block 0 in shards; block 1 whole; block 2 whole with padding, its optimiser not. */
    const State state = {2 * (4136 + 1584 + 4656 + 3 * 1584), 2 * (4136 + 1584 + 4656 + 3 * 1584),
                         4 * (4136 + 1584 + 4656 + 1584), 8 * (4136 + 1584 + 4656 + 1584)};
    assert_state(&one, &state);
}
END_TEST

/* ---- gathered and whole gradients ---- */

START_TEST(shard_grad_op_holds_2_psi_of_gathered_parameters_in_the_step)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_SHARD_GRAD_OP, 3, 2);
    g_autoptr(Program) program = case_build(&one);

    ck_assert_uint_eq(kind_bytes(program, TENSOR_GATHERED), 2 * 3 * 8888);
    ck_assert_uint_eq(program_memory(program).term[TERM_GATHERED], 2 * 3 * 8888);
}
END_TEST

START_TEST(full_shard_holds_live_units_and_the_root)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);

    for (guint live = 1; live <= 5; live++) {
        one.sharding.prefetch = 0;
        one.sharding.live_units = live;
        g_autoptr(Program) program = case_build(&one);
        ck_assert_uint_eq(kind_bytes(program, TENSOR_GATHERED),
                          2 * 3 * (4136 + MIN(live, 3) * 1584));
    }
}
END_TEST

START_TEST(without_sharding_nothing_is_gathered_and_no_gradient_is_held_twice)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint s = STRATEGY_NO_SHARD; s <= STRATEGY_SHARD_OPTIMIZER; s++) {
        const Case one = case_with(model, (Strategy)s, 3, 2);
        g_autoptr(Program) program = case_build(&one);

        ck_assert_uint_eq(kind_bytes(program, TENSOR_GATHERED), 0);
        ck_assert_uint_eq(kind_bytes(program, TENSOR_UNIT_GRADIENT), 0);
    }
}
END_TEST

/* ---- volume ---- */

static Strategy hand_strategy(const Sharding *sharding, guint unit)
{
    Strategy strategy = sharding->strategy;

    for (guint i = 0; i < sharding->num_overrides; i++)
        if (sharding->overrides[i].first <= unit && unit <= sharding->overrides[i].last &&
            sharding->overrides[i].strategy >= 0)
            strategy = (Strategy)sharding->overrides[i].strategy;
    return strategy;
}

static gboolean hand_kept(const Sharding *sharding, guint unit, guint layers)
{
    gboolean kept = unit == 0 ? sharding->keep_root : unit == layers && sharding->keep_last;

    for (guint i = 0; i < sharding->num_overrides; i++)
        if (sharding->overrides[i].first <= unit && unit <= sharding->overrides[i].last &&
            sharding->overrides[i].keep >= 0)
            kept = sharding->overrides[i].keep == 1;
    return kept;
}

static guint64 hand_all_reduce(guint64 elements, guint64 ranks)
{
    return 2 * (ranks - 1) * ((elements + ranks - 1) / ranks);
}

/* The replicas' sum of a reduced gradient: a shard's is one run; a chunk of a whole gradient lies
 * in as many runs as the unit has tensors. */
static guint64 hand_replica_sum(const Case *from, const HandUnit *unit, gboolean in_runs)
{
    const guint ranks = from->layout.size[AXIS_DP_SHARD];
    const guint replicas = from->layout.size[AXIS_DP_REPLICATE];
    guint64 elements = 0;

    if (!in_runs || from->sharding.form == FORM_FLAT)
        return hand_all_reduce(hand_shard(unit, ranks, from->sharding.form), replicas);
    if (ranks == 1)
        return hand_all_reduce(hand_elements(unit), replicas);
    for (guint i = 0; i < unit->num; i++)
        elements += hand_all_reduce((unit->rows[i] + ranks - 1) / ranks * unit->cols[i], replicas);
    return elements;
}

typedef struct {
    guint64 bytes[NUM_VOLUMES];
    guint calls[NUM_VOLUMES]; /* collectives on units */
    gboolean any_sharded;
} Traffic;

/* DESIGN 4, "In general". */
static void add_unit_traffic(const Case *from, guint unit, Traffic *traffic)
{
    const Sharding *s = &from->sharding;
    const guint layers = from->model->layers, micro_batches = from->schedule.micro_batches;
    const Strategy strategy = hand_strategy(s, unit);
    const HandUnit shapes = unit == 0 ? hand_root(from->model) : hand_block(from->model);
    const guint ranks = from->layout.size[AXIS_DP_SHARD];
    const guint64 replicas = from->layout.size[AXIS_DP_REPLICATE];
    const guint64 chunk = (ranks - 1) * hand_shard(&shapes, ranks, s->form);
    const guint64 gradient = from->workload.recipe->reduce == DTYPE_FP32 ? 4 : 2;
    const gboolean fp8 = s->gather_fp8 && unit > 0 && strategy > STRATEGY_SHARD_OPTIMIZER;
    const guint64 gathered = from->workload.recipe == &recipe_fp32 ? 4 : fp8 ? 1 : 2;
    guint gathers = micro_batches * (hand_kept(s, unit, layers) ? 1 : 2), reductions = 1;

    if (strategy == STRATEGY_NO_SHARD) {
        traffic->bytes[VOLUME_ALL_REDUCE] +=
            gradient * hand_all_reduce(hand_elements(&shapes), ranks * replicas);
        traffic->calls[VOLUME_ALL_REDUCE]++;
        return;
    }
    traffic->any_sharded = TRUE;
    if (strategy == STRATEGY_SHARD_OPTIMIZER || strategy == STRATEGY_SHARD_GRAD_OP)
        gathers = 1;
    if (strategy != STRATEGY_SHARD_OPTIMIZER && s->accumulate_sharded)
        reductions = micro_batches;
    traffic->bytes[VOLUME_ALL_GATHER] += gathers * chunk * gathered;
    traffic->bytes[VOLUME_REDUCE_SCATTER] += reductions * chunk * gradient;
    traffic->calls[VOLUME_ALL_GATHER] += gathers;
    traffic->calls[VOLUME_REDUCE_SCATTER] += reductions;
    if (replicas == 1)
        return;
    traffic->calls[VOLUME_ALL_REDUCE]++;
    traffic->bytes[VOLUME_ALL_REDUCE] +=
        gradient * hand_replica_sum(from, &shapes,
                                    strategy == STRATEGY_SHARD_OPTIMIZER || !s->accumulate_sharded);
}

/* Valid tokens and loss over all ranks, the squared norm over those that share shards: one fp64
 * value each, 2 (n - 1) of them received. */
static Traffic hand_traffic(const Case *from)
{
    const guint64 ranks = from->layout.size[AXIS_DP_SHARD];
    const guint64 world = ranks * from->layout.size[AXIS_DP_REPLICATE];
    Traffic traffic = {0};

    for (guint unit = 0; unit <= from->model->layers; unit++)
        add_unit_traffic(from, unit, &traffic);
    traffic.bytes[VOLUME_ALL_REDUCE] += 2 * 8 * 2 * (world - 1);
    traffic.bytes[VOLUME_ALL_REDUCE] += traffic.any_sharded ? 8 * 2 * (ranks - 1) : 0;
    traffic.calls[VOLUME_ALL_REDUCE] += traffic.any_sharded ? 3 : 2;
    return traffic;
}

static void assert_traffic(const Case *from)
{
    g_autoptr(Program) program = case_build(from);
    g_autofree char *text = case_text(from);
    const Traffic hand = hand_traffic(from);
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        ck_assert_msg(bytes[v] == hand.bytes[v],
                      "%s: %s %" G_GUINT64_FORMAT ", by hand %" G_GUINT64_FORMAT, text,
                      volume_name((Volume)v), bytes[v], hand.bytes[v]);
    ck_assert_msg(count_ops(program, OP_ALL_GATHER) == hand.calls[VOLUME_ALL_GATHER] &&
                      count_ops(program, OP_REDUCE_SCATTER) == hand.calls[VOLUME_REDUCE_SCATTER] &&
                      count_ops(program, OP_ALL_REDUCE) == hand.calls[VOLUME_ALL_REDUCE],
                  "%s: another number of collectives", text);
}

START_TEST(volume_of_one_micro_batch_is_the_table_of_the_design)
{
    g_autoptr(Model) model = case_model(&case_shape);
    /* 3 ranks; 2 (gathers) or 1 (reductions) times 2 x 8888 each; all-reduce 4 x ceil(e / 3). */
    static const guint64 gathers[] = {0, 1, 1, 2, 2}, reductions[] = {0, 1, 1, 1, 1};
    const Case one = case_with(model, all_strategies[_i], 3, 1);
    g_autoptr(Program) program = case_build(&one);
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER], gathers[_i] * 2 * 2 * 8888);
    ck_assert_uint_eq(bytes[VOLUME_REDUCE_SCATTER], reductions[_i] * 2 * 2 * 8888);
    ck_assert_uint_eq(bytes[VOLUME_ALL_TO_ALL] + bytes[VOLUME_EXCHANGE], 0);
    if (one.sharding.strategy == STRATEGY_NO_SHARD) /* 12360 / 3 + 3 x 4656 / 3; two scalars */
        ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE], 2 * 4 * (4120 + 3 * 1552) + 2 * 32);
    else if (one.sharding.strategy == STRATEGY_HYBRID_SHARD) /* 2 x (2068 + 3 x 792); 6 ranks */
        ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE], 2 * 2 * (2068 + 3 * 792) + 2 * 80 + 32);
    else
        ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE], 3 * 32);
}
END_TEST

START_TEST(volume_and_calls_are_those_of_the_hand_formulas)
{
    static const guint ranks[] = {1, 2, 3, 30}, micro_batches[] = {1, 2, 4};
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint i = 0; i < 4 * 3 * 2 * 2 * 4; i++) {
        Case one = case_with(model, all_strategies[_i], ranks[i % 4], micro_batches[i / 4 % 3]);

        one.sharding.form = (Form)(i / 12 % 2);
        one.sharding.accumulate_sharded &= i / 24 % 2 == 0;
        one.sharding.keep_root = (i / 48 & 1) != 0;
        one.sharding.keep_last = (i / 48 & 2) != 0;
        assert_traffic(&one);
    }
}
END_TEST

START_TEST(prefetch_live_units_and_recomputation_move_no_byte_more)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint i = 0; i < 4 * 3 * 2; i++) {
        Case one = case_with(model, all_strategies[_i], 3, 2);

        one.sharding.prefetch = i % 4;
        one.sharding.live_units = one.sharding.prefetch + 1 + i / 4 % 3;
        one.schedule.recompute = (Recompute)(i / 12);
        assert_traffic(&one);
    }
}
END_TEST

START_TEST(overrides_and_recipes_are_priced_by_unit)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(21);

    for (guint i = 0; i < 300; i++) {
        const Case one = case_random(random, model);

        assert_traffic(&one);
    }
}
END_TEST

/* PEERS 62: a framework that gathers again for the recomputed forward has 3 a block. */
START_TEST(full_shard_gathers_each_block_twice_and_a_kept_one_once)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint recompute = 0; recompute < NUM_RECOMPUTES; recompute++) {
        Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

        one.schedule.recompute = (Recompute)recompute;
        g_autoptr(Program) none = case_build(&one);
        ck_assert_uint_eq(count_calls(none, "block.gather"), 2 * 3);
        ck_assert_uint_eq(count_calls(none, "root.gather"), 2);
        one.sharding.keep_root = one.sharding.keep_last = TRUE;
        g_autoptr(Program) kept = case_build(&one);
        ck_assert_uint_eq(count_calls(kept, "block.gather"), 2 * 3 - 1);
        ck_assert_uint_eq(count_calls(kept, "root.gather"), 1);
        ck_assert_uint_eq(count_ops(kept, OP_REDUCE_SCATTER), 3 + 1);
    }
}
END_TEST

/* 6 Psi of full_shard are per rank: 2 Psi (d - 1) / d received in each of three collectives. */
START_TEST(six_psi_of_full_shard_are_per_rank_not_of_the_cluster)
{
    const CaseShape even = {
        .vocab = 512, .hidden = 64, .ffn = 128, .layers = 2, .heads = 4, .kv_heads = 4};
    g_autoptr(Model) model = case_model(&even);
    const guint64 psi = hand_psi(model);

    for (guint ranks = 2; ranks <= 32; ranks *= 2) {
        const Case one = case_with(model, STRATEGY_FULL_SHARD, ranks, 1);
        g_autoptr(Program) program = case_build(&one);
        guint64 bytes[NUM_VOLUMES];

        program_volume(program, bytes);
        ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER] + bytes[VOLUME_REDUCE_SCATTER],
                          6 * psi / ranks * (ranks - 1));
    }
}
END_TEST

static guint64 state_bytes(const Model *model, guint ranks)
{
    const Case one = case_with((Model *)model, STRATEGY_FULL_SHARD, ranks, 1);
    const ProgramSpec spec = case_spec(&one);
    g_autoptr(Sketch) sketch = program_sketch(&spec, 0);

    return kind_bytes(sketch->program, TENSOR_PARAMETER) +
           kind_bytes(sketch->program, TENSOR_GRADIENT) +
           kind_bytes(sketch->program, TENSOR_MASTER) + kind_bytes(sketch->program, TENSOR_MOMENT);
}

START_TEST(llama_3_70b_has_1_13_terabytes_of_state_and_17_6_gigabytes_on_64)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *models = data_dir("models");
    g_autoptr(Model) model = model_load("llama-3.1-70b", models, &error);
    const guint64 psi = G_GUINT64_CONSTANT(70553706496);

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_uint_eq(model_parameters(model), psi);
    ck_assert_uint_eq(hand_psi(model), psi);
    ck_assert_uint_eq(state_bytes(model, 1), G_GUINT64_CONSTANT(1128859303936));
    ck_assert_uint_eq(state_bytes(model, 8), G_GUINT64_CONSTANT(141107412992));
    ck_assert_uint_eq(state_bytes(model, 64), G_GUINT64_CONSTANT(17638426624));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard");
    TCase *tcase = tcase_create("shard");
    const int strategies = G_N_ELEMENTS(all_strategies);

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, the_hand_worked_shards_are_what_the_formulas_of_these_tests_give, 0,
                        G_N_ELEMENTS(shards));
    tcase_add_loop_test(tcase, state_is_the_table_of_the_design_to_the_byte, 0, strategies);
    tcase_add_test(tcase, recipe_zero_keeps_16_bytes_a_parameter_and_the_others_theirs);
    tcase_add_test(tcase, megatron_keeps_6_bytes_whole_and_12_of_a_shard);
    tcase_add_test(tcase, eight_bit_moments_take_a_byte_and_their_scales);
    tcase_add_test(tcase, blocks_gathered_in_fp8_move_exactly_half);
    tcase_add_test(tcase, codes_are_exactly_half_of_the_matrices_in_bf16);
    tcase_add_test(tcase, fp8_products_read_what_was_rounded_once);
    tcase_add_test(tcase, the_hash_tells_precisions_gathers_and_moments_apart);
    tcase_add_test(tcase, fp32_keeps_16_bytes_where_nothing_is_sharded);
    tcase_add_test(tcase, a_tied_embedding_is_stored_once);
    tcase_add_test(tcase, an_overridden_unit_has_the_state_of_its_own_strategy);
    tcase_add_test(tcase, shard_grad_op_holds_2_psi_of_gathered_parameters_in_the_step);
    tcase_add_test(tcase, full_shard_holds_live_units_and_the_root);
    tcase_add_test(tcase, without_sharding_nothing_is_gathered_and_no_gradient_is_held_twice);
    tcase_add_loop_test(tcase, volume_of_one_micro_batch_is_the_table_of_the_design, 0, strategies);
    tcase_add_loop_test(tcase, volume_and_calls_are_those_of_the_hand_formulas, 0, strategies);
    tcase_add_loop_test(tcase, prefetch_live_units_and_recomputation_move_no_byte_more, 0,
                        strategies);
    tcase_add_test(tcase, overrides_and_recipes_are_priced_by_unit);
    tcase_add_test(tcase, full_shard_gathers_each_block_twice_and_a_kept_one_once);
    tcase_add_test(tcase, six_psi_of_full_shard_are_per_rank_not_of_the_cluster);
    tcase_add_test(tcase, llama_3_70b_has_1_13_terabytes_of_state_and_17_6_gigabytes_on_64);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
