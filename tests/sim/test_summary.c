#include "sim/cost/summary.h"
#include "tests/sim/spec_case.h"

/* On GPUs; on CPUs with cores for both threads of a rank; on CPUs without. */
static SimulateContext draw_context(GRand *random, Case *from, Topology **topology)
{
    const guint world = layout_world(&from->layout);

    if (from->device == DEVICE_CUDA) {
        *topology = case_gpu_topology(8, 80000, 1000 << draw(random, 8));
        return (SimulateContext){
            .topology = *topology, .ranks_per_node = MIN(world, 4), .threads = 1};
    }
    *topology = case_cpu_topology(world * (1 + draw(random, 1)), 1 + draw(random, 20));
    return (SimulateContext){.topology = *topology, .ranks_per_node = world, .threads = 1};
}

/* Compares a choice's summary with its program, placed and simulated. */
static void compare(const Case *from, const SimulateContext *context)
{
    const ProgramSpec spec = case_spec(from);
    g_autofree char *text = case_text(from);
    const Summary summary = summarise(&spec, context);
    g_autoptr(Program) program = case_build(from);
    g_autofree guint *spans = case_spans(program, from);
    const StepTime time = simulate_program(program, context, spans);
    guint64 bytes[NUM_VOLUMES];

    program_volume(program, bytes);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        ck_assert_msg(summary.volume_bytes[v] == bytes[v], "%s: %s", text, volume_name((Volume)v));
    ck_assert_msg(summary.state_bytes ==
                      kind_bytes(program, TENSOR_PARAMETER) + kind_bytes(program, TENSOR_GRADIENT) +
                          kind_bytes(program, TENSOR_MASTER) + kind_bytes(program, TENSOR_MOMENT),
                  "%s", text);
    ck_assert_msg(summary.floor_bytes <= program->arena_bytes[TIER_DEVICE],
                  "%s: floor %" G_GUINT64_FORMAT ", arena %" G_GUINT64_FORMAT, text,
                  summary.floor_bytes, program->arena_bytes[TIER_DEVICE]);
    ck_assert_msg(summary.floor_bytes >= summary.state_bytes, "%s", text);
    ck_assert_msg(summary.bound_s <= time.step_s * (1 + 1e-9), "%s: bound %.9g, step %.9g", text,
                  summary.bound_s, time.step_s);
    if (!simulate_overlaps(context))
        ck_assert_double_eq_tol(summary.bound_s, time.step_s, 1e-9 * time.step_s);
}

/* Random models too: a bound that holds for one shape only would drop the best of another. */
START_TEST(state_and_volume_are_exact_and_the_bounds_hold)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(81 + (guint)_i);

    for (guint i = 0; i < 100; i++) {
        const CaseShape shape = {
            .vocab = 256 + draw(random, 600),
            .hidden = 24 * (1 + draw(random, 3)),
            .ffn = 8 + draw(random, 200),
            .layers = 1 + draw(random, 4),
            .heads = 4,
            .kv_heads = 1u << draw(random, 2),
            .tied = draw(random, 1) == 1,
        };
        g_autoptr(Model) model = case_model(&shape);
        g_autoptr(Topology) topology = NULL;
        Case one = case_random(random, model);

        one.workload.seq_len = 1 + draw(random, 63);
        const SimulateContext context = draw_context(random, &one, &topology);
        compare(&one, &context);
    }
}
END_TEST

START_TEST(the_memory_bound_is_not_far_below_the_arena)
{
    const CaseShape shape = {
        .vocab = 512, .hidden = 256, .ffn = 704, .layers = 8, .heads = 8, .kv_heads = 8};
    g_autoptr(Model) model = case_model(&shape);
    g_autoptr(Topology) topology = case_cpu_topology(8, 10);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};

    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        Case one = case_with(model, (Strategy)s, 2, 1);

        one.workload.seq_len = 128;
        const ProgramSpec spec = case_spec(&one);
        g_autoptr(Program) program = case_build(&one);
        const Summary summary = summarise(&spec, &context);

        ck_assert_double_ge((double)summary.floor_bytes,
                            0.8 * (double)program->arena_bytes[TIER_DEVICE]);
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

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, state_and_volume_are_exact_and_the_bounds_hold, 0, 4);
    tcase_add_test(tcase, the_memory_bound_is_not_far_below_the_arena);
    tcase_add_test(tcase, spans_are_strides_times_members);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
