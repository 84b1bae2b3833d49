#include "sim/cost/simulate.h"
#include "sim/program/builder.h"
#include "sim/summary/summary.h"
#include "tests/sim/spec_case.h"

static const double tolerance_s = 1e-12;

/* ---- a hand-made fork ---- */

/* a: x := in; b: x reduced by another stream; c: y := in, beside it; d: z := x. */
static Program *fork_program(guint64 reduced, guint64 beside)
{
    Program *program = program_new();
    const guint stream = program_add_stream(program, "data.reduce", STREAM_COMMUNICATION,
                                            program_add_group(program, "data", 2));
    const guint in = program_add_tensor(program, "in", TENSOR_INPUT, DTYPE_FP32, 0, reduced);
    const guint in2 = program_add_tensor(program, "in2", TENSOR_INPUT, DTYPE_FP32, 0, beside);
    const guint x = program_add_tensor(program, "x", TENSOR_ACTIVATION, DTYPE_FP32, 0, reduced);
    const guint y = program_add_tensor(program, "y", TENSOR_GRADIENT, DTYPE_FP32, 0, beside);
    const guint z = program_add_tensor(program, "z", TENSOR_GRADIENT, DTYPE_FP32, 0, reduced);
    const guint from[] = {in, x, in2, x}, to[] = {x, x, y, z};

    for (guint i = 0; i < 4; i++) {
        const guint segment = program_add_segment(program, "segment");
        Op *op = segment_add_op(program, segment, i == 1 ? OP_ALL_REDUCE : OP_CAST,
                                i == 1 ? stream : COMPUTE_STREAM, DTYPE_FP32);

        op->sizes.elements = i == 2 ? beside : reduced;
        op_add_operand(op, from[i], i == 1 ? ACCESS_UPDATE : ACCESS_READ, 0, WHOLE_TENSOR);
        if (i != 1)
            op_add_operand(op, to[i], ACCESS_WRITE, 0, WHOLE_TENSOR);
        call_list_add(&program->step, segment, 0, 0);
    }
    order_add_waits(program);
    program_place(program);
    return program;
}

/* 1 GB/s a rank; 500 MB/s + 10 us a link: copies of 8 bytes an element, all-reduce of 2 x half. */
static double copy_s(guint64 elements)
{
    return 8e-9 * (double)elements + 1e-6;
}

static double reduce_s(guint64 elements)
{
    return 2 * (10e-6 + 2.0 * (double)elements / 500e6);
}

START_TEST(what_runs_beside_hides_communication_and_the_rest_is_exposed)
{
    static const guint64 beside[] = {1000, 1000000};
    const guint spans[] = {2};
    g_autoptr(Topology) topology = case_cpu_topology(4, 2);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 2, .threads = 1};
    const guint64 reduced = 125000;

    for (guint i = 0; i < G_N_ELEMENTS(beside); i++) {
        g_autoptr(Program) program = fork_program(reduced, beside[i]);
        const double a = copy_s(reduced), b = reduce_s(reduced), c = copy_s(beside[i]);
        const StepTime time = simulate_program(program, &context, spans);

        ck_assert_double_eq_tol(time.step_s, a + MAX(b, c) + a, tolerance_s);
        ck_assert_double_eq_tol(time.exposed_s, MAX(b - c, 0), tolerance_s);
        ck_assert_double_eq_tol(time.busy_s[OP_CLASS_COMMUNICATION], b, tolerance_s);
        ck_assert_double_eq_tol(time.busy_s[OP_CLASS_MEMORY_BOUND], 2 * a + c, tolerance_s);
    }
}
END_TEST

START_TEST(threads_without_cores_take_turns)
{
    const guint spans[] = {2};
    g_autoptr(Topology) topology = case_cpu_topology(3, 2);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 2, .threads = 1};
    g_autoptr(Program) program = fork_program(125000, 1000000);
    const StepTime time = simulate_program(program, &context, spans);

    ck_assert(!simulate_overlaps(&context));
    ck_assert_double_eq_tol(time.step_s, 2 * copy_s(125000) + copy_s(1000000) + reduce_s(125000),
                            tolerance_s);
    ck_assert_double_eq_tol(time.exposed_s, reduce_s(125000), tolerance_s);
}
END_TEST

START_TEST(the_timeline_says_when_each_op_ran)
{
    g_autoptr(ProgramSet) set = program_set_new(2);
    g_autoptr(Topology) topology = case_cpu_topology(4, 2);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 2, .threads = 1};
    g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));
    const double a = copy_s(125000), b = reduce_s(125000), c = copy_s(50000);
    const double start[] = {0, a, a, a + b}, end[] = {a, a + b, a + c, a + b + a};
    const guint ranks[] = {0, 1};
    StepTime time;

    program_set_add_class(set, fork_program(125000, 50000));
    program_set_add_group(set, "data", ranks, 2);
    simulate_set(set, &context, &time, ops);
    ck_assert_uint_eq(ops->len, 4);
    for (guint i = 0; i < 4; i++) {
        const SimulatedOp *op = &g_array_index(ops, SimulatedOp, i);

        ck_assert_uint_eq(op->call, i);
        ck_assert_double_eq_tol(op->start_s, start[i], tolerance_s);
        ck_assert_double_eq_tol(op->end_s, end[i], tolerance_s);
    }
}
END_TEST

/* The slower class has twice the copy before the reduction, the faster waits for it there. */
START_TEST(a_collective_starts_when_the_last_member_reaches_it)
{
    g_autoptr(ProgramSet) set = program_set_new(2);
    g_autoptr(Topology) topology = case_cpu_topology(4, 2);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 2, .threads = 1};
    Program *slow = fork_program(125000, 1000);
    const guint ranks[] = {0, 1};
    StepTime times[2];

    call_list_add(&slow->step, 2, 0, 0); /* y := in2 once more, at the end: before the next step */
    program_tensor(slow, 1)->elements = program_tensor(slow, 3)->elements = 1000;
    program_segment(slow, 2)->ops[0].sizes.elements = 300000;
    program_set_assign(set, 0, program_set_add_class(set, fork_program(125000, 1000)));
    program_set_assign(set, 1, program_set_add_class(set, slow));
    program_set_add_group(set, "data", ranks, 2);
    simulate_set(set, &context, times, NULL);
    const double step_s =
        2 * copy_s(125000) + MAX(reduce_s(125000), copy_s(300000)) + copy_s(300000);
    ck_assert_double_eq_tol(times[1].step_s, step_s, tolerance_s);
    ck_assert_double_eq_tol(times[0].step_s, step_s, tolerance_s);
    ck_assert_double_gt(times[0].exposed_s, copy_s(300000));
}
END_TEST

/* ---- compiled programs ---- */

/* Sum of what every op of a step takes, by whether it is communication. */
static void sum_durations(const Program *program, double **durations, double sums[2])
{
    sums[0] = sums[1] = 0;
    for (guint c = 0; c < program->step.calls->len; c++) {
        const guint s = g_array_index(program->step.calls, Call, c).segment;

        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            const Op *op = &program_segment(program, s)->ops[i];

            sums[op->stream == COMPUTE_STREAM ? 0 : 1] += durations[s][i];
        }
    }
}

static double compute_of(const StepTime *time)
{
    double sum = 0;

    for (guint c = 0; c < OP_CLASS_COMMUNICATION; c++)
        sum += time->busy_s[c];
    return sum;
}

START_TEST(without_overlap_a_step_is_the_sum_of_its_ops)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(71);

    for (guint i = 0; i < 60; i++) {
        Case one = case_random(random, model);
        const guint world = layout_world(&one.layout);

        one.sharding.offload = (Offload){TIER_DEVICE, TIER_DEVICE}; /* a CPU has no other */
        g_autoptr(Topology) topology = case_cpu_topology(world, 10);
        const SimulateContext context = {
            .topology = topology, .ranks_per_node = world, .threads = 1};
        g_autoptr(Program) program = case_build(&one);
        g_autofree guint *spans = case_spans(program, &one);
        double **durations = durations_new(program, &context, spans);
        const StepTime time = simulate_program(program, &context, spans);
        double sums[2];

        sum_durations(program, durations, sums);
        ck_assert_double_eq_tol(time.step_s, sums[0] + sums[1], 1e-9 * time.step_s);
        ck_assert_double_eq_tol(time.exposed_s, sums[1], 1e-9 * time.step_s);
        durations_free(durations, program);
    }
}
END_TEST

/* On CPUs with cores to spare, and on GPUs. */
static SimulateContext wide_context(const Case *from, Topology **topology)
{
    const guint world = layout_world(&from->layout);

    if (from->device == DEVICE_CUDA) {
        *topology = case_gpu_topology(8, 80000, 100000);
        return (SimulateContext){
            .topology = *topology, .ranks_per_node = MIN(world, 4), .threads = 1};
    }
    *topology = case_cpu_topology(2 * world, 10);
    return (SimulateContext){.topology = *topology, .ranks_per_node = world, .threads = 1};
}

START_TEST(with_overlap_a_step_lies_between_its_longest_stream_and_the_sum)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(72);

    for (guint i = 0; i < 100; i++) {
        const Case one = case_random(random, model);
        g_autoptr(Topology) topology = NULL;
        const SimulateContext context = wide_context(&one, &topology);
        g_autoptr(Program) program = case_build(&one);
        g_autofree guint *spans = case_spans(program, &one);
        double **durations = durations_new(program, &context, spans);
        const StepTime time = simulate_program(program, &context, spans);
        double sums[2];

        sum_durations(program, durations, sums);
        ck_assert_double_eq_tol(compute_of(&time), sums[0], 1e-9 * sums[0]);
        ck_assert_double_eq_tol(time.busy_s[OP_CLASS_COMMUNICATION], sums[1],
                                1e-9 * (sums[0] + sums[1]));
        ck_assert_double_eq_tol(time.exposed_s, time.step_s - sums[0], 1e-9 * time.step_s);
        ck_assert_double_ge(time.step_s, sums[0] * (1 - 1e-9));
        ck_assert_double_le(time.step_s, (sums[0] + sums[1]) * (1 + 1e-9));
        durations_free(durations, program);
    }
}
END_TEST

START_TEST(a_set_of_one_class_takes_what_its_program_takes)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(73);

    for (guint i = 0; i < 100; i++) {
        const Case one = case_random(random, model);
        g_autofree char *text = case_text(&one);
        g_autoptr(Topology) topology = NULL;
        const SimulateContext context = wide_context(&one, &topology);
        g_autoptr(ProgramSet) set = case_compile(&one);
        g_autofree guint *spans = case_spans(set->classes[0], &one);
        const StepTime alone = simulate_program(set->classes[0], &context, spans);
        StepTime time;

        simulate_set(set, &context, &time, NULL);
        ck_assert_msg(time.step_s == alone.step_s, "%s: %.9g, %.9g", text, time.step_s,
                      alone.step_s);
        ck_assert_double_eq(time.exposed_s, alone.exposed_s);
        ck_assert_double_eq(time.busy_s[OP_CLASS_COMMUNICATION],
                            alone.busy_s[OP_CLASS_COMMUNICATION]);
    }
}
END_TEST

static StepTime gpu_step(const Case *from, guint link_megabytes_per_s)
{
    g_autoptr(Topology) topology = case_gpu_topology(8, 80000, link_megabytes_per_s);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
    g_autoptr(Program) program = case_build(from);
    g_autofree guint *spans = case_spans(program, from);

    return simulate_program(program, &context, spans);
}

static const CaseShape real_shape = {
    .vocab = 8192, .hidden = 2048, .ffn = 5632, .layers = 8, .heads = 16, .kv_heads = 16};

/* Blocks compute longer than they are gathered: with prefetch 1 only the first gather of each pass
 * and what a short root op does not hide are left. */
START_TEST(prefetch_hides_gathers_behind_longer_compute)
{
    g_autoptr(Model) model = case_model(&real_shape);
    Case one = case_with(model, STRATEGY_FULL_SHARD, 4, 1);
    StepTime times[2];

    one.device = DEVICE_CUDA;
    one.workload.seq_len = 2048;
    for (guint prefetch = 0; prefetch < 2; prefetch++) {
        one.sharding.prefetch = prefetch;
        one.sharding.live_units = prefetch + 1;
        times[prefetch] = gpu_step(&one, 100000);
    }
    ck_assert_double_eq_tol(compute_of(&times[0]), compute_of(&times[1]), 1e-9);
    ck_assert_double_lt(times[1].exposed_s, 0.35 * times[0].exposed_s);
}
END_TEST

START_TEST(slower_links_never_make_a_step_shorter)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(74);

    for (guint i = 0; i < 40; i++) {
        Case one = case_random(random, model);

        one.device = DEVICE_CUDA;
        const StepTime fast = gpu_step(&one, 200000), slow = gpu_step(&one, 20000);
        ck_assert_double_ge(slow.step_s, fast.step_s * (1 - 1e-12));
        ck_assert_double_eq_tol(compute_of(&slow), compute_of(&fast), 1e-12);
    }
}
END_TEST

/* One queue on a CPU: reductions delay gathers; on a GPU each stream is a clock of its own, and
 * links of one node don't delay those between nodes. */
START_TEST(a_gpu_runs_gathers_and_reductions_side_by_side)
{
    g_autoptr(Model) model = case_model(&real_shape);
    Case one = case_of(model, 2, 4, 1);
    g_autoptr(Topology) topology = case_gpu_topology(2, 80000, 1000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};

    one.device = DEVICE_CUDA;
    one.sharding.prefetch = 2;
    one.sharding.live_units = 3;
    g_autoptr(Program) program = case_build(&one);
    g_autofree guint *spans = case_spans(program, &one);
    const StepTime time = simulate_program(program, &context, spans);
    /* All communication, one after the other, would take longer. */
    ck_assert_double_lt(time.step_s, 0.95 * time.busy_s[OP_CLASS_COMMUNICATION]);
}
END_TEST

/* ---- links ---- */

static void add_call(Program *program, OpKind kind, guint stream, guint tensor, guint64 elements)
{
    const guint segment = program_add_segment(program, "segment");
    Op *op = segment_add_op(program, segment, kind, stream, DTYPE_FP32);

    op->sizes.elements = elements;
    op_add_operand(op, tensor, kind == OP_CAST ? ACCESS_READ : ACCESS_UPDATE, 0, WHOLE_TENSOR);
    if (kind == OP_CAST)
        op_add_operand(op, tensor, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    call_list_add(&program->step, segment, 0, 0);
}

/* By two streams: what compute wrote is summed; then compute reads both sums. */
static Program *two_reductions(const guint64 elements[2])
{
    static const char *const purposes[] = {"data", "tp"};
    Program *program = program_new();
    guint x[2];

    for (guint i = 0; i < 2; i++) {
        const guint group = program_add_group(program, purposes[i], 2);
        const guint stream = program_add_stream(program, purposes[i], STREAM_COMMUNICATION, group);

        x[i] = program_add_tensor(program, "x", TENSOR_ACTIVATION, DTYPE_FP32, 0, elements[i]);
        add_call(program, OP_CAST, COMPUTE_STREAM, x[i], 1000);
        add_call(program, OP_ALL_REDUCE, stream, x[i], elements[i]);
    }
    for (guint i = 0; i < 2; i++)
        add_call(program, OP_CAST, COMPUTE_STREAM, x[i], 1000);
    order_add_waits(program);
    program_place(program);
    return program;
}

/* Their six ops in a steady step; @far: the rank that the first one's other member is. */
static GArray *timeline_of(const guint64 elements[2], guint far, const SimulateContext *context)
{
    g_autoptr(ProgramSet) set = program_set_new(8);
    GArray *ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));
    const guint data[] = {0, far}, tp[] = {0, 1};
    StepTime time;

    program_set_add_class(set, two_reductions(elements));
    program_set_add_group(set, "data", data, 2);
    program_set_add_group(set, "tp", tp, 2);
    simulate_set(set, context, &time, ops);
    ck_assert_uint_eq(ops->len, 6);
    return ops;
}

static double lasts(const GArray *ops, guint i)
{
    const SimulatedOp *op = &g_array_index(ops, SimulatedOp, i);

    return op->end_s - op->start_s;
}

/* The second begins when what is left of the first would take r alone.  Each has half of the link
 * while both are under way: both lose what the shorter of r and the second takes.  Latencies and
 * other levels are nobody's loss. */
START_TEST(ops_of_two_axes_share_the_links_of_a_level)
{
    static const guint64 sizes[][2] = {
        {10000000, 1000000}, {1000000, 10000000}, {3000000, 3000000}};
    g_autoptr(Topology) topology = case_gpu_topology(2, 80000, 1000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
    const CollectiveContext near = {
        .topology = topology, .ranks = 2, .span = 2, .ranks_per_node = 4};
    const CollectiveContext across = {
        .topology = topology, .ranks = 2, .span = 8, .ranks_per_node = 4};

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        g_autoptr(GArray) both = timeline_of(sizes[i], 1, &context);
        g_autoptr(GArray) apart = timeline_of(sizes[i], 4, &context);
        const double before_s = g_array_index(both, SimulatedOp, 3).start_s -
                                g_array_index(both, SimulatedOp, 1).start_s;
        double alone_s[2], link_s[2];

        for (guint k = 0; k < 2; k++) {
            const guint64 bytes = 4 * sizes[i][k];

            alone_s[k] = collective_seconds(VOLUME_ALL_REDUCE, bytes, DTYPE_FP32, &near);
            link_s[k] = collective_link_seconds(VOLUME_ALL_REDUCE, bytes, DTYPE_FP32, &near);
            ck_assert_double_eq_tol(alone_s[k] - link_s[k], 2e-6, 1e-12);
        }
        const double lost_s = MIN(link_s[0] - before_s, link_s[1]);
        ck_assert_double_gt(before_s, 0);
        ck_assert_double_eq_tol(lasts(both, 1), alone_s[0] + lost_s, 1e-9);
        ck_assert_double_eq_tol(lasts(both, 3), alone_s[1] + lost_s, 1e-9);
        ck_assert_double_eq_tol(
            lasts(apart, 1),
            collective_seconds(VOLUME_ALL_REDUCE, 4 * sizes[i][0], DTYPE_FP32, &across), 1e-9);
        ck_assert_double_eq_tol(lasts(apart, 3), alone_s[1], 1e-9);
    }
}
END_TEST

/* Ranks of a CPU move bytes themselves, by one thread each. */
START_TEST(ops_of_a_cpu_share_no_links)
{
    static const guint64 sizes[] = {1000000, 1000000};
    g_autoptr(Topology) topology = case_cpu_topology(16, 2);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 8, .threads = 1};
    g_autoptr(GArray) ops = timeline_of(sizes, 1, &context);

    ck_assert_double_eq_tol(lasts(ops, 1), reduce_s(sizes[0]), tolerance_s);
    ck_assert_double_eq_tol(lasts(ops, 3), reduce_s(sizes[1]), tolerance_s);
}
END_TEST

/* Whatever is late for whom: a stream runs its ops in order, and one at a time. */
START_TEST(a_timeline_has_one_op_of_a_stream_at_a_time)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(75);

    for (guint i = 0; i < 60; i++) {
        Case one = case_random_4d(random, model);

        one.device = DEVICE_CUDA;
        if (case_verdict(&one, NULL) != VERDICT_OK)
            continue;
        g_autoptr(Topology) topology = case_gpu_topology(64, 80000, 1000 << draw(random, 6));
        const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
        g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));
        g_autofree char *text = case_text(&one);
        g_autoptr(ProgramSet) set = case_compile(&one);
        g_autofree StepTime *times = g_new(StepTime, set->num_classes);
        g_autofree double *ended = g_new0(double, set->num_classes *MAX_STREAMS);

        simulate_set(set, &context, times, ops);
        for (guint k = 0; k < ops->len; k++) {
            const SimulatedOp *op = &g_array_index(ops, SimulatedOp, k);
            const Program *program = set->classes[op->class_index];
            const Call *call = &g_array_index(program->step.calls, Call, op->call);
            const guint stream = program_segment(program, call->segment)->ops[op->op].stream;
            double *end_s = &ended[op->class_index * MAX_STREAMS + stream];

            ck_assert_msg(*end_s == 0 || op->start_s >= *end_s - 1e-12, "%s: %.9g before %.9g",
                          text, op->start_s, *end_s);
            *end_s = op->end_s;
        }
    }
}
END_TEST

static const char *stream_of(const Program *program, const SimulatedOp *op)
{
    const Call *call = &g_array_index(program->step.calls, Call, op->call);

    return program_stream(program, program_segment(program, call->segment)->ops[op->op].stream)
        ->name;
}

/* Fails where ops of those streams run at once. */
static void assert_take_turns(const Program *program, const GArray *ops, const char *const *streams)
{
    for (guint i = 0; i < ops->len; i++)
        for (guint j = 0; j < i; j++) {
            const SimulatedOp *a = &g_array_index(ops, SimulatedOp, i);
            const SimulatedOp *b = &g_array_index(ops, SimulatedOp, j);

            if (g_strv_contains(streams, stream_of(program, a)) &&
                g_strv_contains(streams, stream_of(program, b)))
                ck_assert(a->start_s >= b->end_s - 1e-12 || b->start_s >= a->end_s - 1e-12);
        }
}

/* They share the links: a step gains nothing by spreading its units over streams. */
START_TEST(units_that_are_not_sharded_are_reduced_in_turn_with_those_that_are)
{
    static const char *const reduces[] = {"shard.reduce", "data.reduce", "replicate.reduce", NULL};
    g_autoptr(Model) model = case_model(&real_shape);
    g_autoptr(Topology) topology = case_gpu_topology(2, 80000, 1000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};

    for (guint replicate = 1; replicate <= 2; replicate++) {
        g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));
        Case one = case_of(model, replicate, 4, 2);
        StepTime time;

        one.device = DEVICE_CUDA;
        one.sharding.num_overrides = 1;
        one.sharding.overrides[0] = (UnitOverride){3, 6, STRATEGY_NO_SHARD, -1};
        g_autoptr(ProgramSet) set = case_compile(&one);
        simulate_set(set, &context, &time, ops);
        ck_assert_uint_gt(count_calls(set->classes[0], ".reduce"), 4);
        assert_take_turns(set->classes[0], ops, reduces);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *tcase = tcase_create("simulate");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, what_runs_beside_hides_communication_and_the_rest_is_exposed);
    tcase_add_test(tcase, threads_without_cores_take_turns);
    tcase_add_test(tcase, the_timeline_says_when_each_op_ran);
    tcase_add_test(tcase, a_collective_starts_when_the_last_member_reaches_it);
    tcase_add_test(tcase, without_overlap_a_step_is_the_sum_of_its_ops);
    tcase_add_test(tcase, with_overlap_a_step_lies_between_its_longest_stream_and_the_sum);
    tcase_add_test(tcase, a_set_of_one_class_takes_what_its_program_takes);
    tcase_add_test(tcase, prefetch_hides_gathers_behind_longer_compute);
    tcase_add_test(tcase, slower_links_never_make_a_step_shorter);
    tcase_add_test(tcase, a_gpu_runs_gathers_and_reductions_side_by_side);
    tcase_add_test(tcase, ops_of_two_axes_share_the_links_of_a_level);
    tcase_add_test(tcase, ops_of_a_cpu_share_no_links);
    tcase_add_test(tcase, a_timeline_has_one_op_of_a_stream_at_a_time);
    tcase_add_test(tcase, units_that_are_not_sharded_are_reduced_in_turn_with_those_that_are);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
