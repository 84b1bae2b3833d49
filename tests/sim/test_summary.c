#include "sim/cost/framework_memory.h"
#include "sim/summary/probe.h"
#include "tests/sim/summary_case.h"

#include <math.h>

static guint64 unit_state_bytes(const Program *program)
{
    return device_bytes(program, TENSOR_PARAMETER) + device_bytes(program, TENSOR_GRADIENT) +
           device_bytes(program, TENSOR_MASTER) + device_bytes(program, TENSOR_MOMENT);
}

static void compare_stage(const StageSummary *summary, const Program *program, const char *text)
{
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        ck_assert_msg(summary->volume_bytes[v] == bytes[v],
                      "%s: %s %" G_GUINT64_FORMAT ", program %" G_GUINT64_FORMAT, text,
                      volume_name((Volume)v), summary->volume_bytes[v], bytes[v]);
    ck_assert_msg(summary->state_bytes == unit_state_bytes(program), "%s", text);
    ck_assert_msg(summary->floor_bytes <= program->arena_bytes[TIER_DEVICE],
                  "%s: floor %" G_GUINT64_FORMAT ", arena %" G_GUINT64_FORMAT, text,
                  summary->floor_bytes, program->arena_bytes[TIER_DEVICE]);
    ck_assert_msg(summary->floor_bytes >= summary->state_bytes, "%s", text);
}

/* For its timeline all steps of the simulation are run: without, it must not end before it is
 * steady. */
static void compare_steps(const ProgramSet *set, const SimulateContext *context,
                          const StepTime *times, const char *text)
{
    g_autofree StepTime *whole = g_new(StepTime, set->num_classes);
    g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));

    simulate_set(set, context, whole, ops);
    for (guint c = 0; c < set->num_classes; c++)
        ck_assert_msg(fabs(times[c].step_s - whole[c].step_s) <= 1e-9 * whole[c].step_s,
                      "%s: step %.12g, all steps %.12g", text, times[c].step_s, whole[c].step_s);
}

static double slowest_s(const ProgramSet *set, const ProgramSpec *spec,
                        const SimulateContext *context, const char *text)
{
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);
    double step_s = 0;

    simulate_set(set, context, times, NULL);
    compare_steps(set, context, times, text);
    if (set->num_classes == 1) {
        g_autofree guint *spans = program_spans(set->classes[0], spec);

        return simulate_program(set->classes[0], context, spans).step_s;
    }
    for (guint c = 0; c < set->num_classes; c++)
        step_s = MAX(step_s, times[c].step_s);
    return step_s;
}

/* What is found to be too large by state alone, or by passes over fewer sequences, is; more, which
 * were looked at too, say nothing.  @closest is what is found without a limit, @floor_bytes the
 * largest stage's. */
static void compare_too_large(const ProgramSpec *spec, const SimulateContext *context,
                              guint64 closest, guint64 floor_bytes)
{
    enum { PARTS = 20 };
    g_autoptr(Summariser) summariser = summariser_new(context, NULL);
    ProgramSpec other = *spec;

    for (guint s = 1; s <= spec->schedule.micro_batch + 1; s++) {
        other.schedule.micro_batch = s;
        if (s != spec->schedule.micro_batch)
            summarise(summariser, &other, G_MAXUINT64);
    }
    for (guint part = 0; part < PARTS; part++) {
        const guint64 limit_bytes = closest / PARTS * part;
        const guint64 bytes = summarise(summariser, spec, limit_bytes).floor_bytes;

        ck_assert_msg(bytes > limit_bytes && bytes <= floor_bytes,
                      "%" G_GUINT64_FORMAT " above %" G_GUINT64_FORMAT ", floor %" G_GUINT64_FORMAT,
                      bytes, limit_bytes, floor_bytes);
    }
}

/* One of each family; then those whose blocks are of several kinds. */
enum { NUM_MODELS = G_N_ELEMENTS(families) + G_N_ELEMENTS(expert_cases) + 1 };

static Model *any_model(GRand *random, guint i)
{
    const guint num = G_N_ELEMENTS(families), all = NUM_MODELS - 1;

    return i < num ? family_model(i) : i < all ? expert_model(i - num) : mixed_model(random, 6, 4);
}

/* Compares a choice's summary with its programs, placed and simulated. */
static void compare(const Case *from, const SimulateContext *context)
{
    const ProgramSpec spec = case_spec(from);
    g_autofree char *text = case_text(from);
    g_autoptr(Summariser) summariser = summariser_new(context, NULL);
    g_autoptr(ProgramSet) set = case_compile(from);
    const Summary summary = summarise(summariser, &spec, G_MAXUINT64);
    const double step_s = slowest_s(set, &spec, context, text);
    guint64 floor_bytes = 0;

    for (guint c = 0; c < set->num_classes; c++) {
        const StageSummary stage = summarise_stage(summariser, &spec, c);
        g_autofree char *name = g_strdup_printf("stage %u of %s", c, text);

        compare_stage(&stage, set->classes[c], name);
        compare_peak(summarise_peak(summariser, &spec, c),
                     program_memory(set->classes[c]).live_peak,
                     set->classes[c]->arena_bytes[TIER_DEVICE], name);
        floor_bytes = MAX(floor_bytes, stage.floor_bytes);
    }
    ck_assert_msg(summary.floor_bytes <= floor_bytes, "%s", text);
    ck_assert_msg(summary.bound_s <= step_s * (1 + 1e-9), "%s: bound %.9g, step %.9g", text,
                  summary.bound_s, step_s);
    compare_too_large(&spec, context, summary.floor_bytes, floor_bytes);
    const double calls_s = summarise_calls(summariser, &spec);
    ck_assert_msg(calls_s <= step_s * (1 + 1e-9), "%s: calls %.9g, step %.9g", text, calls_s,
                  step_s);
    if (!simulate_overlaps(context) && set->num_classes == 1 && from->sharding.num_overrides == 0 &&
        !sharding_offloads(&from->sharding))
        ck_assert_double_eq_tol(summary.bound_s, step_s, 1e-9 * step_s);
}

static void compare_drawn(GRand *random, Model *model)
{
    g_autoptr(Topology) topology = NULL;
    guint16 stages[MAX_CHUNKS];
    Case one = draw_case(random, model, stages);
    const SimulateContext context = draw_context(random, &one, &topology);

    compare(&one, &context);
}

/* Random models too: a bound that holds for one shape only would drop the best of another. */
START_TEST(state_and_volume_are_exact_and_the_bounds_hold)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(81 + (guint)_i);

    for (guint i = 0; i < layouts_of_a_group(); i++) {
        const CaseShape shape = draw_shape(random);
        g_autoptr(Model) model = case_model(&shape);

        compare_drawn(random, model);
    }
}
END_TEST

START_TEST(they_hold_for_blocks_of_other_families)
{
    g_autoptr(Model) model = family_model((guint)_i);
    g_autoptr(GRand) random = g_rand_new_with_seed(181 + (guint)_i);

    for (guint i = 0; i < layouts_of_a_group() / 6; i++)
        compare_drawn(random, model);
}
END_TEST

/* Largest magnitudes, their reduction, codes and what they become again. */
START_TEST(they_hold_where_matrices_are_gathered_in_fp8)
{
    const CaseShape shape = {
        .vocab = 256, .hidden = 48, .ffn = 100, .layers = 5, .heads = 4, .kv_heads = 2};
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(281 + (guint)_i);

    for (guint i = 0; i < layouts_of_a_group() / 6;) {
        g_autoptr(Topology) topology = NULL;
        guint16 stages[MAX_CHUNKS];
        Case one = draw_case(random, model, stages);

        one.sharding.gather_fp8 = TRUE;
        if (case_verdict(&one, NULL) != VERDICT_OK)
            continue;
        const SimulateContext context = draw_context(random, &one, &topology);
        compare(&one, &context);
        i++;
    }
}
END_TEST

/* In files, which threads and disks move beside all else, and in a pool. */
START_TEST(they_hold_where_state_is_in_other_tiers)
{
    const CaseShape shape = {
        .vocab = 256, .hidden = 48, .ffn = 100, .layers = 5, .heads = 4, .kv_heads = 2};
    static const Offload offloads[] = {
        {TIER_NVME, TIER_DEVICE}, {TIER_DEVICE, TIER_NVME}, {TIER_NVME, TIER_NVME},
        {TIER_CXL, TIER_DEVICE},  {TIER_CXL, TIER_CXL},     {TIER_CXL, TIER_NVME},
        {TIER_NVME, TIER_HOST},   {TIER_HOST, TIER_NVME},   {TIER_HOST, TIER_CXL}};
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(581 + (guint)_i);

    for (guint i = 0; i < layouts_of_a_group() / 6;) {
        g_autoptr(Topology) topology = NULL;
        guint16 stages[MAX_CHUNKS];
        Case one = draw_case(random, model, stages);

        one.sharding.offload = offloads[draw(random, one.device == DEVICE_CUDA ? 8 : 5)];
        if (case_verdict(&one, NULL) != VERDICT_OK)
            continue;
        const SimulateContext context = draw_context(random, &one, &topology);
        compare(&one, &context);
        i++;
    }
}
END_TEST

/* Else a search prices all layouts whose steps are mostly copies. */
START_TEST(a_bound_counts_copies_of_state)
{
    const CaseShape shape = {
        .vocab = 256, .hidden = 96, .ffn = 256, .layers = 16, .heads = 4, .kv_heads = 4};
    static const Tier tiers[] = {TIER_HOST, TIER_NVME};
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(1, 80000, 100000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
    g_autoptr(Summariser) summariser = summariser_new(&context, NULL);
    Case one = case_with(model, STRATEGY_SHARD_GRAD_OP, 4, 2);

    one.device = DEVICE_CUDA;
    one.sharding.offload.optimizer = tiers[_i];
    const ProgramSpec spec = case_spec(&one);
    g_autoptr(ProgramSet) set = case_compile(&one);
    g_autofree char *text = case_text(&one);
    const double step_s = slowest_s(set, &spec, &context, text);
    const Summary summary = summarise(summariser, &spec, G_MAXUINT64);
    const double copied = summary.bound_s / step_s;
    ck_assert_msg(copied > 0.9 && copied <= 1 + 1e-9, "%s: %g of a step", text, copied);
}
END_TEST

/* By streams of their own: over links as slow as these their sum is longer than the step. */
START_TEST(units_that_are_not_sharded_are_reduced_beside_the_others)
{
    const CaseShape shape = {
        .vocab = 256, .hidden = 96, .ffn = 256, .layers = 8, .heads = 4, .kv_heads = 4};
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(1, 80000, 100);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
    Case one = case_with(model, STRATEGY_SHARD_GRAD_OP, 4, 1);

    one.device = DEVICE_CUDA;
    one.workload.recipe = &recipe_megatron;
    one.sharding.num_overrides = 1;
    one.sharding.overrides[0] = (UnitOverride){5, 8, STRATEGY_NO_SHARD, -1};
    compare(&one, &context);
}
END_TEST

static const guint16 few_recomputed[][3] = {{1, 1, 1}, {2, 2, 2}, {1, 0, 2}, {0, 2, 1}};

/* All that is recomputed, of lists or not, of one to three micro-batches. */
static void compare_split(Model *model, gboolean of_lists)
{
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 1000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 2, .threads = 1};

    for (guint i = 0; i < (of_lists ? G_N_ELEMENTS(few_recomputed) : 1) * NUM_RECOMPUTES * 3; i++) {
        Case one = case_with(model, STRATEGY_SHARD_GRAD_OP, 2, 1 + i % 3);

        one.device = DEVICE_CUDA;
        one.layout.size[AXIS_PP] = 3;
        one.schedule.kind = SCHEDULE_ZB_H1;
        one.schedule.recompute = (Recompute)(i / 3 % NUM_RECOMPUTES);
        one.schedule.recompute_layers = of_lists ? few_recomputed[i / (3 * NUM_RECOMPUTES)] : NULL;
        sharding_normalise(&one.sharding, &one.layout, &one.schedule);
        compare(&one, &context);
    }
}

/* One or two blocks of a kind: what one leaves for its weights' gradients is not there while all of
 * the others is saved. */
START_TEST(they_hold_where_a_split_backward_has_few_blocks)
{
    for (guint layers = 1; layers <= 4; layers++) {
        const CaseShape shape = {.vocab = 300,
                                 .hidden = 48,
                                 .ffn = 100,
                                 .layers = 3 * layers,
                                 .heads = 4,
                                 .kv_heads = 2};
        g_autoptr(Model) model = case_model(&shape);

        compare_split(model, _i == 1);
    }
}
END_TEST

START_TEST(they_hold_where_a_split_backward_has_few_blocks_with_experts)
{
    g_autoptr(Model) model = expert_model((guint)_i);

    compare_split(model, FALSE);
    compare_split(model, TRUE);
}
END_TEST

/* Blocks of a strategy may all be among those that are computed again, or all among the others. */
/* The first block of a backward pass, or the last, is the one with another strategy: what it leaves
 * for weights, or what others saved, is not all there. */
START_TEST(they_hold_where_experts_of_a_split_backward_differ)
{
    g_autoptr(Model) model = expert_model((guint)_i);
    g_autoptr(Topology) topology = case_cpu_topology(8, 10);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 8, .threads = 1};

    for (guint i = 0; i < model->layers * STRATEGY_HYBRID_SHARD; i++) {
        const guint unit = EXPERTS_UNITS + 1 + i % model->layers;
        const guint16 layers[] = {(guint16)(model->layers - 1), 1};
        Case one = case_with(model, STRATEGY_SHARD_OPTIMIZER, 4, 1);

        one.layout.size[AXIS_PP] = 2;
        one.layout.ep = 2;
        one.schedule.kind = SCHEDULE_ZB_H1;
        one.schedule.micro_batch = 3;
        one.schedule.chunk_layers = layers;
        one.workload.global_batch = 4 * 3;
        one.workload.seq_len = 20;
        one.sharding.num_overrides = 1;
        one.sharding.overrides[0] = (UnitOverride){unit, unit, (gint)(i / model->layers), -1};
        if (case_verdict(&one, NULL) == VERDICT_OK)
            compare(&one, &context);
    }
}
END_TEST

START_TEST(they_hold_where_units_and_recomputed_layers_are_cut_in_two_places)
{
    static const guint16 lists[] = {1, 2, 3, 4, 5};
    const CaseShape shape = {
        .vocab = 256, .hidden = 96, .ffn = 400, .layers = 6, .heads = 4, .kv_heads = 4};
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_gpu_topology(1, 80000, 100);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};

    for (guint i = 0; i < 6 * NUM_STRATEGIES * G_N_ELEMENTS(lists); i++) {
        Case one = case_with(model, STRATEGY_SHARD_GRAD_OP, 4, 1);

        one.device = DEVICE_CUDA;
        one.schedule.recompute = _i == 0 ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL;
        one.schedule.recompute_layers = &lists[i % G_N_ELEMENTS(lists)];
        one.sharding.num_overrides = 1;
        one.sharding.overrides[0] = (UnitOverride){1 + i / G_N_ELEMENTS(lists) % 6, 6,
                                                   (gint)(i / 6 / G_N_ELEMENTS(lists)), -1};
        if (case_verdict(&one, NULL) == VERDICT_OK)
            compare(&one, &context);
    }
}
END_TEST

/* One summariser is asked about many choices, as a search of units does. */
START_TEST(overrides_are_told_apart)
{
    g_autoptr(Model) model = expert_model(4);
    g_autoptr(Topology) topology = case_gpu_topology(1, 80000, 100);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
    g_autoptr(Summariser) all = summariser_new(&context, NULL);

    for (guint i = 0; i < 2 * 3 * STRATEGY_FULL_SHARD; i++) {
        const guint part = (guint[]){0, REST_UNITS, EXPERTS_UNITS}[i / 2 % 3];
        Case one = case_of(model, 1, 4, 2);

        one.device = DEVICE_CUDA;
        one.sharding.num_overrides = i % 2;
        one.sharding.overrides[0] = (UnitOverride){part + 3, part + 4, (gint)(i / 6), -1};
        const ProgramSpec spec = case_spec(&one);
        g_autoptr(Summariser) alone = summariser_new(&context, NULL);
        const Summary got = summarise(all, &spec, G_MAXUINT64);
        const Summary wanted = summarise(alone, &spec, G_MAXUINT64);
        ck_assert_uint_eq(got.floor_bytes, wanted.floor_bytes);
        ck_assert_double_eq(got.bound_s, wanted.bound_s);
        ck_assert_uint_eq(summarise_stage(all, &spec, 0).state_bytes,
                          summarise_stage(alone, &spec, 0).state_bytes);
    }
}
END_TEST

START_TEST(they_hold_for_mixtures_of_experts)
{
    g_autoptr(Model) model = expert_model((guint)_i);
    g_autoptr(GRand) random = g_rand_new_with_seed(281 + (guint)_i);

    for (guint i = 0; i < layouts_of_a_group() / 3; i++)
        compare_drawn(random, model);
}
END_TEST

START_TEST(they_hold_for_blocks_of_several_kinds)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(681 + (guint)_i);

    for (guint i = 0; i < layouts_of_a_group() / 3; i++) {
        g_autoptr(Model) model = mixed_model(random, 1 + draw(random, 11), 2 + draw(random, 6));

        compare_drawn(random, model);
    }
}
END_TEST

/* Wide MLPs in two of twelve blocks, attention in the others. */
static Model *model_with_mlps_in(guint chunk)
{
    g_autoptr(GString) blocks = g_string_new(NULL);

    for (guint i = 0; i < 12; i++) {
        const gboolean mlp = i / 3 == chunk && i % 3 < 2;

        g_string_append_printf(blocks, "%s{\"attention\": {%s}, \"ffn\": {%s}}", i > 0 ? ", " : "",
                               mlp ? "\"no_op\": true" : "\"n_heads_in_group\": 2",
                               mlp ? "\"ffn_mult\": 30" : "\"no_op\": true");
    }
    g_autofree char *config = g_strdup_printf(
        "{\"model_type\": \"nemotron-nas\", \"vocab_size\": 300, \"hidden_size\": 48, "
        "\"num_hidden_layers\": 12, \"num_attention_heads\": 4, \"hidden_act\": \"silu\", "
        "\"block_configs\": [%s]}",
        blocks->str);
    return plannable_model("mlps", config);
}

/* Each of the four chunks of two stages in turn is the one with other blocks. */
START_TEST(they_hold_where_one_chunk_has_blocks_of_its_own)
{
    static const guint16 chunks[] = {3, 3, 3, 3};
    g_autoptr(Model) model = model_with_mlps_in((guint)_i);
    g_autoptr(Topology) topology = case_gpu_topology(4, 80000, 1000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 2, .threads = 1};

    for (guint i = 0; i < NUM_RECOMPUTES * 3; i++) {
        Case one = case_with(model, STRATEGY_SHARD_OPTIMIZER, 2, 1 + i / NUM_RECOMPUTES);

        one.device = DEVICE_CUDA;
        one.layout.size[AXIS_PP] = 2;
        one.schedule.kind = SCHEDULE_INTERLEAVED;
        one.schedule.virtual_stages = 2;
        one.schedule.chunk_layers = chunks;
        one.schedule.recompute = (Recompute)(i % NUM_RECOMPUTES);
        ck_assert_int_eq(case_verdict(&one, NULL), VERDICT_OK);
        compare(&one, &context);
    }
}
END_TEST

/* So what was looked at once serves all places; and the root whatever becomes of blocks. */
static void compare_probes(const ProgramSpec *spec, const SimulateContext *context,
                           const char *text)
{
    ProgramSpec whole = *spec, other = *spec;

    whole.layout.ep = other.layout.ep = 0;
    other.context = CONTEXT_RING;
    other.schedule.kind = SCHEDULE_1F1B;
    other.schedule.recompute = RECOMPUTE_NONE;
    for (guint kind = 0; kind < model_num_kinds(spec->model); kind++) {
        const gboolean sparse = model_kind_is_sparse(spec->model, kind);

        if (!model_has_kind(spec->model, kind))
            continue;
        const BlockCost one = probe_block(sparse ? spec : &whole, context, STAGE_MIDDLE, kind);

        for (guint place = 0; place < NUM_STAGE_PLACES; place++) {
            const BlockCost here = probe_block(spec, context, (StagePlace)place, kind);

            ck_assert_msg(memcmp(&one, &here, sizeof one) == 0, "block at place %u of %s", place,
                          text);
        }
    }
    for (guint place = 0; place < STAGE_MIDDLE; place++) {
        const RootCost one = probe_root(spec, context, (StagePlace)place, 1 << 20);
        const RootCost same = probe_root(&other, context, (StagePlace)place, 1 << 20);

        ck_assert_msg(memcmp(&one, &same, sizeof one) == 0, "root at place %u of %s", place, text);
    }
}

START_TEST(blocks_are_the_same_at_every_place)
{
    enum { DRAWS = 30 };
    g_autoptr(GRand) random = g_rand_new_with_seed(781 + (guint)_i);
    g_autoptr(Model) model = any_model(random, (guint)_i);

    for (guint i = 0; i < DRAWS; i++) {
        g_autoptr(Topology) topology = NULL;
        guint16 stages[MAX_CHUNKS];
        const Case one = draw_case(random, model, stages);
        const SimulateContext context = draw_context(random, &one, &topology);
        const ProgramSpec spec = case_spec(&one);
        g_autofree char *text = case_text(&one);

        compare_probes(&spec, &context, text);
    }
}
END_TEST

/* As sim/search/price.c prices it: its tensors grown, its memory with what no tensor stands for. */
static void compare_foreign(const Case *from, const SimulateContext *context)
{
    const ProgramSpec spec = case_spec(from);
    g_autofree char *text = case_text(from);
    g_autoptr(Summariser) summariser = summariser_new(context, NULL);
    g_autoptr(ProgramSet) set = case_compile(from);
    const double step_s = slowest_s(set, &spec, context, text);
    const Summary summary = summarise(summariser, &spec, G_MAXUINT64);
    guint64 most_bytes = 0;

    ck_assert_msg(summary.bound_s <= step_s * (1 + 1e-9), "%s as %s", text,
                  context->framework->name);
    ck_assert_msg(summarise_calls(summariser, &spec) <= step_s * (1 + 1e-9), "%s as %s", text,
                  context->framework->name);
    for (guint c = 0; c < set->num_classes; c++) {
        framework_grow(context->framework, set->classes[c]);
        program_place(set->classes[c]);
        MemoryUse use = program_memory(set->classes[c]), live = use;
        live.total = use.live_peak;
        framework_add_memory(context->framework, set->classes[c], &use);
        framework_add_memory(context->framework, set->classes[c], &live);
        const guint64 floor_bytes = summarise_stage(summariser, &spec, c).floor_bytes;
        ck_assert_msg(floor_bytes <= use.total,
                      "stage %u of %s as %s: floor %" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT, c,
                      text, context->framework->name, floor_bytes, use.total);
        compare_peak(summarise_peak(summariser, &spec, c), live.total, use.total, text);
        most_bytes = MAX(most_bytes, floor_bytes);
    }
    compare_too_large(&spec, context, summary.floor_bytes, most_bytes);
}

START_TEST(the_bounds_hold_for_other_frameworks)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(381 + (guint)_i);
    g_autoptr(Model) model = any_model(random, (guint)_i);
    g_autofree char *names = framework_names();
    g_auto(GStrv) name = g_strsplit(names, ", ", -1);

    for (guint i = 0; i < layouts_of_a_group() / 6; i++) {
        g_autoptr(Topology) topology = case_gpu_topology(64, 80000, 1000 << draw(random, 8));
        guint16 stages[MAX_CHUNKS];
        Case one = draw_case(random, model, stages);
        const SimulateContext context = {
            .topology = topology,
            .ranks_per_node = MIN(layout_world(&one.layout), 4),
            .threads = 1,
            .framework = framework_from_name(name[draw(random, g_strv_length(name) - 1)])};

        one.device = DEVICE_CUDA;
        if (framework_is_foreign(context.framework))
            compare_foreign(&one, &context);
    }
}
END_TEST

/* tp innermost, then cp, dp_shard, dp_replicate: a group's members are as far apart as all axes
 * inside its own. */
START_TEST(spans_are_strides_times_members)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_of(model, 2, 4, 1);
    g_autoptr(Program) program = case_build(&one);
    g_autofree guint *spans = case_spans(program, &one);

    ck_assert_uint_eq(program->groups->len, 3);
    for (guint g = 0; g < program->groups->len; g++) {
        const GroupRef *group = &g_array_index(program->groups, GroupRef, g);

        if (strcmp(group->purpose, "shard") == 0)
            ck_assert_uint_eq(spans[g], 4);
        else
            ck_assert_uint_eq(spans[g], 8);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("summary");
    TCase *tcase = tcase_create("summary");

    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, state_and_volume_are_exact_and_the_bounds_hold, 0, GROUPS);
    tcase_add_loop_test(tcase, they_hold_for_blocks_of_other_families, 0, G_N_ELEMENTS(families));
    tcase_add_loop_test(tcase, they_hold_where_a_split_backward_has_few_blocks, 0, 2);
    tcase_add_loop_test(tcase, they_hold_where_a_split_backward_has_few_blocks_with_experts, 0,
                        G_N_ELEMENTS(expert_cases));
    tcase_add_loop_test(tcase, they_hold_where_experts_of_a_split_backward_differ, 0,
                        G_N_ELEMENTS(expert_cases));
    tcase_add_loop_test(tcase, they_hold_where_units_and_recomputed_layers_are_cut_in_two_places, 0,
                        2);
    tcase_add_test(tcase, units_that_are_not_sharded_are_reduced_beside_the_others);
    tcase_add_loop_test(tcase, they_hold_where_matrices_are_gathered_in_fp8, 0, 4);
    tcase_add_loop_test(tcase, they_hold_where_state_is_in_other_tiers, 0, 4);
    tcase_add_loop_test(tcase, a_bound_counts_copies_of_state, 0, 2);
    tcase_add_test(tcase, overrides_are_told_apart);
    tcase_add_loop_test(tcase, they_hold_for_mixtures_of_experts, 0, G_N_ELEMENTS(expert_cases));
    tcase_add_loop_test(tcase, they_hold_for_blocks_of_several_kinds, 0, 4);
    tcase_add_loop_test(tcase, they_hold_where_one_chunk_has_blocks_of_its_own, 0, 4);
    tcase_add_loop_test(tcase, blocks_are_the_same_at_every_place, 0, NUM_MODELS);
    tcase_add_loop_test(tcase, the_bounds_hold_for_other_frameworks, 0, NUM_MODELS + 1);
    tcase_add_test(tcase, spans_are_strides_times_members);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
