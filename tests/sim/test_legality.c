#include "sim/layout/legality.h"
#include "tests/sim/spec_case.h"

static void assert_refused(const Case *from, Verdict verdict, const char *reason)
{
    g_autofree char *got = NULL;

    ck_assert_str_eq(verdict_name(case_verdict(from, &got)), verdict_name(verdict));
    ck_assert_ptr_nonnull(got);
    ck_assert_msg(strstr(got, reason) != NULL, "\"%s\" lacks \"%s\"", got, reason);
    ck_assert_ptr_null(strchr(got, '\n'));
}

START_TEST(every_strategy_is_legal_on_its_mesh)
{
    g_autoptr(Model) model = case_model(&case_shape);

    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint ranks = 1; ranks <= 5; ranks++) {
            const Case one = case_with(model, (Strategy)s, ranks, 2);

            ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
        }
}
END_TEST

/* 3 layers; 8 tokens a sequence. */
START_TEST(stages_and_pieces_of_a_sequence_must_exist)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    one.layout.size[AXIS_PP] = 4;
    assert_refused(&one, VERDICT_PIPELINE, "pp = 4 x virtual_stages = 1: at most 3");
    one.layout.size[AXIS_PP] = 3;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.layout.size[AXIS_PP] = 1;
    one.layout.size[AXIS_CP] = 3;
    assert_refused(&one, VERDICT_CONTEXT, "cp = 3");
    one.layout.size[AXIS_CP] = 4;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
}
END_TEST

START_TEST(schedules_go_with_stages_and_virtual_stages)
{
    static const guint16 short_by_one[] = {1, 1}, empty[] = {3, 0}, uneven[] = {1, 2};
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    one.schedule.kind = SCHEDULE_GPIPE;
    assert_refused(&one, VERDICT_PIPELINE, "gpipe needs pp > 1");
    one.layout.size[AXIS_PP] = 2;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.schedule.virtual_stages = 2;
    assert_refused(&one, VERDICT_PIPELINE, "at most 3 chunks");
    one.schedule.kind = SCHEDULE_INTERLEAVED;
    one.schedule.virtual_stages = 1;
    assert_refused(&one, VERDICT_PIPELINE, "virtual_stages of at least 2");
    one.schedule.kind = SCHEDULE_ZB_H1;
    assert_refused(&one, VERDICT_PIPELINE, "accumulate = unsharded");
    sharding_normalise(&one.sharding, &one.layout, &one.schedule);
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.schedule.chunk_layers = short_by_one;
    assert_refused(&one, VERDICT_PIPELINE, "2 layers together; the model has 3");
    one.schedule.chunk_layers = empty;
    assert_refused(&one, VERDICT_PIPELINE, "chunk 1 of 2 has no layer");
    one.schedule.chunk_layers = uneven;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
}
END_TEST

/* 4 query heads and 2 kv heads; 2 x 8 tokens a micro-batch. */
START_TEST(tensor_parallel_must_divide_what_it_splits)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    for (guint tp = 1; tp <= 4; tp *= 2) {
        one.layout.size[AXIS_TP] = tp;
        ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    }
    one.layout.size[AXIS_TP] = 3;
    assert_refused(&one, VERDICT_TENSOR, "tp = 3: must divide the model's 4 query heads");
    one.layout.size[AXIS_TP] = 8;
    assert_refused(&one, VERDICT_TENSOR, "tp = 8: must divide the model's 4 query heads");
}
END_TEST

/* Public complaints: 40 heads on 3 ranks, 52 on 8, 12 heads of 2 kv heads on 4 and 3. */
static const struct {
    guint heads, kv_heads, tp;
    const char *allowed;
} heads[] = {
    {40, 40, 3, "40 query heads; allowed: 1, 2, 4, 5, 8, 10, 20, 40"},
    {52, 52, 8, "52 query heads; allowed: 1, 2, 4, 13, 26, 52"},
    {12, 2, 8, "12 query heads; allowed: 1, 2, 4, 6, 12"},
    {12, 2, 3, "2 kv heads; allowed: 1, 2, 4, 6, 12"},
    {1, 1, 2, "1 query heads; allowed: 1"},
};

START_TEST(tensor_parallel_that_heads_refuse_names_what_they_allow)
{
    const CaseShape shape = {64,   4 * heads[_i].heads, 64, 1, heads[_i].heads, heads[_i].kv_heads,
                             FALSE};
    g_autoptr(Model) model = case_model(&shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 1, 1);
    const char *sizes = strchr(heads[_i].allowed, ':') + 2;

    one.sequence_parallel = FALSE;
    one.layout.size[AXIS_TP] = heads[_i].tp;
    assert_refused(&one, VERDICT_TENSOR, heads[_i].allowed);
    for (guint tp = 1; tp <= heads[_i].heads + 1; tp++) {
        g_autofree char *listed = g_strdup_printf(", %u,", tp);
        g_autofree char *list = g_strdup_printf(", %s,", sizes);

        one.layout.size[AXIS_TP] = tp;
        ck_assert_int_eq(case_verdict(&one, NULL) == VERDICT_OK, strstr(list, listed) != NULL);
    }
}
END_TEST

START_TEST(context_parallel_names_the_nearest_sequences)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 1, 1);

    one.layout.size[AXIS_CP] = 8;
    one.workload.seq_len = 3002;
    assert_refused(&one, VERDICT_CONTEXT, "seq_len = 3002; the nearest are 2992 and 3008");
    one.workload.seq_len = 10;
    assert_refused(&one, VERDICT_CONTEXT, "seq_len = 10; the nearest are 16 and 32");
}
END_TEST

/* 3 ranks x 2 sequences: 6 or 12, not 8; and 12 is two micro-batches, not one. */
START_TEST(a_batch_that_does_not_divide_names_its_neighbours)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 1);

    one.workload.global_batch = 8;
    assert_refused(&one, VERDICT_BATCH,
                   "global batch 8 is not a multiple of 3 data-parallel ranks x micro-batch 2; the "
                   "nearest are 6 and 12");
    one.workload.global_batch = 5;
    assert_refused(&one, VERDICT_BATCH,
                   "global batch 5 is less than 3 data-parallel ranks x micro-batch 2 = 6; "
                   "allowed: as much, or at most 2 such ranks");
    one.workload.global_batch = 1;
    assert_refused(&one, VERDICT_BATCH,
                   "global batch 1 is less than a micro-batch of 2; allowed: one that divides it");
    one.workload.global_batch = 12;
    assert_refused(&one, VERDICT_BATCH, "micro_batches = 1: global batch 12 over 3 ranks");
}
END_TEST

START_TEST(strategies_that_contradict_the_mesh_are_refused)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_of(model, 1, 2, 1);

    one.sharding.strategy = STRATEGY_NO_SHARD;
    assert_refused(&one, VERDICT_STRATEGY, "no_shard needs dp_shard = 1, not 2");
    one.sharding.strategy = STRATEGY_HYBRID_SHARD;
    assert_refused(&one, VERDICT_STRATEGY, "hybrid_shard needs dp_replicate > 1");
}
END_TEST

START_TEST(recipe_fsdp2_needs_every_unit_sharded)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_SHARD_OPTIMIZER, 2, 1);

    one.workload.recipe = &recipe_fsdp2;
    assert_refused(&one, VERDICT_RECIPE, "recipe fsdp2 with shard_optimizer");
    one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    one.workload.recipe = &recipe_fsdp2;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.sharding.num_overrides = 1;
    one.sharding.overrides[0] = (UnitOverride){2, 2, STRATEGY_NO_SHARD, -1};
    assert_refused(&one, VERDICT_RECIPE, "recipe fsdp2 with no_shard");
}
END_TEST

START_TEST(fp8_gathers_are_of_sharded_parameters)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    one.sharding.gather_fp8 = TRUE;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.sharding.form = FORM_FLAT;
    assert_refused(&one, VERDICT_RECIPE, "gather = fp8 with precision bf16 needs form");
    one.sharding.form = FORM_PER_PARAMETER;
    one.sharding.offload.parameters = TIER_HOST;
    assert_refused(&one, VERDICT_RECIPE, "bf16 needs parameters on the device, not on host");
    one.sharding.offload.parameters = TIER_DEVICE;
    one.workload.recipe = recipe_with_precision(&recipe_fsdp2, DTYPE_FP8);
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.workload.recipe = recipe_with_precision(&recipe_zero, DTYPE_FP8);
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.sharding.num_overrides = 1;
    one.sharding.overrides[0] = (UnitOverride){0, 0, STRATEGY_NO_SHARD, -1};
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK); /* the root is gathered in bf16 */
    one.sharding.overrides[0] = (UnitOverride){2, 2, STRATEGY_NO_SHARD, -1};
    assert_refused(&one, VERDICT_RECIPE, "gather = fp8 with no_shard");
    one = case_with(model, STRATEGY_SHARD_OPTIMIZER, 2, 1);
    one.workload.recipe = recipe_with_precision(&recipe_zero, DTYPE_FP8);
    one.sharding.gather_fp8 = TRUE;
    assert_refused(&one, VERDICT_RECIPE, "gather = fp8 with shard_optimizer");
}
END_TEST

START_TEST(prefetch_needs_a_live_unit_more)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    one.sharding.prefetch = 3;
    one.sharding.live_units = 3;
    assert_refused(&one, VERDICT_PREFETCH, "prefetch 3 needs at least 4 gathered units alive");
    one.sharding.live_units = 4;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.sharding.prefetch = G_MAXUINT;
    assert_refused(&one, VERDICT_PREFETCH, "live_units = 4");
}
END_TEST

START_TEST(overrides_of_units_that_do_not_exist_are_refused)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    one.sharding.num_overrides = 1;
    one.sharding.overrides[0] = (UnitOverride){1, 3, STRATEGY_SHARD_GRAD_OP, -1};
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one.sharding.overrides[0].last = 4;
    assert_refused(&one, VERDICT_STRATEGY, "block 3 is not one of the model's 0 .. 2");
}
END_TEST

START_TEST(sequences_are_limited_by_learned_positions_alone)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);

    model->sliding_window = 100;
    one.workload.seq_len = 4097; /* of max_position_embeddings = 4096 */
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    model->features |= FEATURE_POSITIONS;
    assert_refused(&one, VERDICT_SEQUENCE, "seq_len = 4097: the model has 4096 learned positions");
    one.workload.seq_len = 4096;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
}
END_TEST

/* 17 activations a micro-batch, with the head's: 3855 x 17 = 65535. */
START_TEST(gpipe_says_how_many_micro_batches_it_can_hold)
{
    const CaseShape deep = {
        .vocab = 257, .hidden = 24, .ffn = 40, .layers = 16, .heads = 4, .kv_heads = 2};
    g_autoptr(Model) model = case_model(&deep);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 3856);

    one.layout.size[AXIS_PP] = 2;
    one.schedule.kind = SCHEDULE_GPIPE;
    assert_refused(&one, VERDICT_LIMIT, "allowed: 3855 micro-batches, or 1f1b");
    one.schedule.kind = SCHEDULE_1F1B;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one = case_with(model, STRATEGY_FULL_SHARD, 2, 3855);
    one.layout.size[AXIS_PP] = 2;
    one.schedule.kind = SCHEDULE_GPIPE;
    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
}
END_TEST

START_TEST(what_a_program_cannot_count_is_refused)
{
    g_autoptr(Model) model = case_model(&case_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 2, 4096);

    ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
    one = case_with(model, STRATEGY_FULL_SHARD, 2, 4097);
    assert_refused(&one, VERDICT_LIMIT, "micro_batches = 4097");
    one = case_with(model, STRATEGY_FULL_SHARD, 2, 1);
    one.sharding.live_units = 1025;
    assert_refused(&one, VERDICT_LIMIT, "live_units = 1025");
    one.sharding.live_units = 2;
    one.workload.seq_len = 4096;
    one.schedule.micro_batch = 1u << 19;
    one.workload.global_batch = 1u << 20;
    assert_refused(&one, VERDICT_LIMIT, "fewer than 2^31 tokens");
}
END_TEST

START_TEST(full_shard_in_replicas_is_hybrid_shard_and_is_called_so)
{
    Layout layout = {.size = {1, 2, 4, 1, 1}};
    const Schedule schedule = {.kind = SCHEDULE_1F1B};
    Sharding sharding = {.strategy = STRATEGY_FULL_SHARD, .accumulate_sharded = TRUE};

    sharding_normalise(&sharding, &layout, &schedule);
    ck_assert_int_eq(sharding.strategy, STRATEGY_HYBRID_SHARD);
    ck_assert(sharding.accumulate_sharded);
    layout.size[AXIS_DP_REPLICATE] = 1;
    sharding.strategy = STRATEGY_FULL_SHARD;
    sharding_normalise(&sharding, &layout, &schedule);
    ck_assert_int_eq(sharding.strategy, STRATEGY_FULL_SHARD);
}
END_TEST

START_TEST(strategies_with_whole_gradients_accumulate_unsharded)
{
    static const gboolean sharded[NUM_STRATEGIES] = {FALSE, FALSE, TRUE, TRUE, TRUE};
    const Layout layout = {.size = {1, 1, 4, 1, 1}};
    const Schedule schedule = {.kind = SCHEDULE_1F1B};

    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        Sharding sharding = {.strategy = (Strategy)s, .accumulate_sharded = TRUE};

        sharding_normalise(&sharding, &layout, &schedule);
        ck_assert_int_eq(sharding.accumulate_sharded, sharded[s]);
    }
}
END_TEST

/* ---- names ---- */

START_TEST(verdicts_and_recomputations_have_names_of_their_own)
{
    Recompute recompute = RECOMPUTE_NONE;

    for (guint v = 0; v < NUM_VERDICTS; v++)
        for (guint other = 0; other < v; other++)
            ck_assert_str_ne(verdict_name((Verdict)v), verdict_name((Verdict)other));
    for (guint r = 0; r < NUM_RECOMPUTES; r++) {
        ck_assert(recompute_from_name(recompute_name((Recompute)r), &recompute));
        ck_assert_uint_eq(recompute, r);
    }
    ck_assert(!recompute_from_name("some", &recompute));
    ck_assert(!recompute_from_name("", &recompute));
}
END_TEST

static const struct {
    const char *text;
    gboolean valid;
    guint first, last;
} ranges[] = {
    {"root", TRUE, 0, 0},
    {"layers.0", TRUE, 1, 1},
    {"layers.7", TRUE, 8, 8},
    {"layers.0-7", TRUE, 1, 8},
    {"layers.3-3", TRUE, 4, 4},
    {"experts.0", TRUE, EXPERTS_UNITS + 1, EXPERTS_UNITS + 1},
    {"experts.3-60", TRUE, EXPERTS_UNITS + 4, EXPERTS_UNITS + 61},
    {"rest.2-7", TRUE, REST_UNITS + 3, REST_UNITS + 8},
    {"experts", FALSE, 0, 0},
    {"expert.3", FALSE, 0, 0},
    {"rest.3-", FALSE, 0, 0},
    {"layers.7-3", FALSE, 0, 0},
    {"layers.", FALSE, 0, 0},
    {"layers.x", FALSE, 0, 0},
    {"layers.1-", FALSE, 0, 0},
    {"layers.-1", FALSE, 0, 0},
    {"layers.1,2", FALSE, 0, 0},
    {"layers.1 ", FALSE, 0, 0},
    {"layers", FALSE, 0, 0},
    {"", FALSE, 0, 0},
    {"Root", FALSE, 0, 0},
    {"layers.1-2-3", FALSE, 0, 0},
    {"layers.99999999999999999999", FALSE, 0, 0},
};

START_TEST(unit_ranges_are_read_strictly)
{
    UnitOverride unit;

    ck_assert_int_eq(unit_override_parse(ranges[_i].text, &unit), ranges[_i].valid);
    if (!ranges[_i].valid)
        return;
    ck_assert_uint_eq(unit.first, ranges[_i].first);
    ck_assert_uint_eq(unit.last, ranges[_i].last);
    ck_assert_int_eq(unit.strategy, -1);
    ck_assert_int_eq(unit.keep, -1);
    g_autofree char *back = unit_override_units(&unit);
    ck_assert_str_eq(back,
                     g_str_equal(ranges[_i].text, "layers.3-3") ? "layers.3" : ranges[_i].text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("legality");
    TCase *tcase = tcase_create("legality");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, every_strategy_is_legal_on_its_mesh);
    tcase_add_test(tcase, stages_and_pieces_of_a_sequence_must_exist);
    tcase_add_test(tcase, schedules_go_with_stages_and_virtual_stages);
    tcase_add_test(tcase, tensor_parallel_must_divide_what_it_splits);
    tcase_add_loop_test(tcase, tensor_parallel_that_heads_refuse_names_what_they_allow, 0,
                        G_N_ELEMENTS(heads));
    tcase_add_test(tcase, context_parallel_names_the_nearest_sequences);
    tcase_add_test(tcase, a_batch_that_does_not_divide_names_its_neighbours);
    tcase_add_test(tcase, strategies_that_contradict_the_mesh_are_refused);
    tcase_add_test(tcase, recipe_fsdp2_needs_every_unit_sharded);
    tcase_add_test(tcase, fp8_gathers_are_of_sharded_parameters);
    tcase_add_test(tcase, prefetch_needs_a_live_unit_more);
    tcase_add_test(tcase, overrides_of_units_that_do_not_exist_are_refused);
    tcase_add_test(tcase, sequences_are_limited_by_learned_positions_alone);
    tcase_add_test(tcase, gpipe_says_how_many_micro_batches_it_can_hold);
    tcase_add_test(tcase, what_a_program_cannot_count_is_refused);
    tcase_add_test(tcase, full_shard_in_replicas_is_hybrid_shard_and_is_called_so);
    tcase_add_test(tcase, strategies_with_whole_gradients_accumulate_unsharded);
    tcase_add_test(tcase, verdicts_and_recomputations_have_names_of_their_own);
    tcase_add_loop_test(tcase, unit_ranges_are_read_strictly, 0, G_N_ELEMENTS(ranges));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
