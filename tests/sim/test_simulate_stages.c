/* Steps of pipelines, and of sequences over ranks, on virtual clocks. */
#include "sim/cost/simulate.h"
#include "tests/sim/plan_case.h"

#include <math.h>

/* Blocks are nearly all of the work: a head of 64 words is 0.2% of a stage of two. */
static const CaseShape deep = {
    .vocab = 64, .hidden = 1024, .ffn = 2816, .layers = 8, .heads = 16, .kv_heads = 16};

/* One rank a stage; 2 sequences of 2048 tokens a micro-batch. */
static Case pipelined(Model *model, guint pp, ScheduleKind kind, guint micro_batches)
{
    Case one = case_with(model, STRATEGY_NO_SHARD, 1, micro_batches);

    one.device = DEVICE_CUDA;
    one.workload.seq_len = 2048;
    one.layout.size[AXIS_PP] = pp;
    one.schedule.kind = kind;
    one.schedule.virtual_stages = kind == SCHEDULE_INTERLEAVED ? 2 : 1;
    return one;
}

static double compute_of(const StepTime *time)
{
    double sum = 0;

    for (guint c = 0; c < OP_CLASS_COMMUNICATION; c++)
        sum += time->busy_s[c];
    return sum;
}

typedef struct {
    double step_s, compute_s; /* of the slowest stage each */
} Slowest;

static Slowest simulated(const Case *from, gboolean free_communication)
{
    g_autoptr(Topology) topology = case_gpu_topology(8, 80000, 100000);
    const SimulateContext context = {.topology = topology,
                                     .ranks_per_node = 4,
                                     .threads = 1,
                                     .free_communication = free_communication};
    g_autoptr(ProgramSet) set = case_compile(from);
    g_autofree StepTime *times = g_new0(StepTime, set->num_classes);
    Slowest slowest = {0, 0};

    simulate_set(set, &context, times, NULL);
    for (guint c = 0; c < set->num_classes; c++) {
        slowest.step_s = MAX(slowest.step_s, times[c].step_s);
        slowest.compute_s = MAX(slowest.compute_s, compute_of(&times[c]));
        ck_assert_double_eq_tol(times[c].exposed_s, times[c].step_s - compute_of(&times[c]), 1e-9);
    }
    return slowest;
}

static void assert_stretched(const Case *from, double by)
{
    const Slowest slowest = simulated(from, TRUE);
    g_autofree char *text = case_text(from);

    ck_assert_msg(fabs(slowest.step_s / slowest.compute_s / by - 1) < 0.01,
                  "%s: %.4f of a stage's compute, not %.4f", text,
                  slowest.step_s / slowest.compute_s, by);
}

/* m micro-batches of work, pp - 1 of waiting. */
START_TEST(a_balanced_pipeline_waits_for_pp_less_one_micro_batches)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint pp = 2; pp <= 4; pp += 2)
        for (guint m = 2; m <= 12; m += 5) {
            const Case alternating = pipelined(model, pp, SCHEDULE_1F1B, m);
            const Case gpipe = pipelined(model, pp, SCHEDULE_GPIPE, m);

            assert_stretched(&alternating, (m + pp - 1.0) / m);
            assert_stretched(&gpipe, (m + pp - 1.0) / m);
        }
}
END_TEST

START_TEST(two_chunks_a_stage_halve_the_waiting)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint pp = 2; pp <= 4; pp += 2)
        for (guint groups = 1; groups <= 3; groups++) {
            const guint m = groups * pp;
            const Case one = pipelined(model, pp, SCHEDULE_INTERLEAVED, m);

            assert_stretched(&one, (m + (pp - 1) / 2.0) / m);
        }
}
END_TEST

/* Compute ops of a segment. */
static double segment_s(const Case *from, const char *name)
{
    g_autoptr(Topology) topology = case_gpu_topology(8, 80000, 100000);
    const SimulateContext context = {.topology = topology, .ranks_per_node = 4, .threads = 1};
    const ProgramSpec spec = case_spec(from);
    g_autoptr(Program) program = program_build(&spec, 1);
    g_autofree guint *spans = case_spans(program, from);
    const gint segment = find_segment(program, name);
    double **durations = durations_new(program, &context, spans);
    double sum = 0;

    ck_assert_int_ge(segment, 0);
    for (guint i = 0; i < program_segment(program, (guint)segment)->num_ops; i++)
        sum += durations[segment][i];
    durations_free(durations, program);
    return sum;
}

/* Qi et al. 2023, sec. 3.1: (pp - 1) (tf + tb - tw) of waiting in place of (pp - 1) (tf + tb + tw).
 * Attention makes tb longer than tf and tw, so more micro-batches wait a little for each other's
 * transfers, too. */
START_TEST(zb_h1_waits_for_what_is_left_without_weights)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint pp = 2; pp <= 4; pp += 2)
        for (guint m = pp; m <= 12; m += 4) {
            const Case plain = pipelined(model, pp, SCHEDULE_1F1B, m);
            const Case split = pipelined(model, pp, SCHEDULE_ZB_H1, m);
            const Slowest a = simulated(&plain, TRUE), b = simulated(&split, TRUE);
            const double waits_s =
                (pp - 1) * (8 / pp) *
                (segment_s(&split, "block.forward") + segment_s(&split, "block.backward") -
                 segment_s(&split, "block.weights"));

            if (m == pp)
                ck_assert_double_eq_tol((b.step_s - b.compute_s) / waits_s, 1, 0.01);
            ck_assert_double_ge(b.step_s - b.compute_s, 0.99 * waits_s);
            ck_assert_double_lt(b.step_s, a.step_s);
            ck_assert_double_lt(simulated(&split, FALSE).step_s, simulated(&plain, FALSE).step_s);
        }
}
END_TEST

/* 8 more micro-batches are 8 more of the stage with 3 blocks. */
START_TEST(the_stage_with_most_blocks_sets_the_pace)
{
    static const guint16 layers[] = {2, 3, 2, 1};
    g_autoptr(Model) model = case_model(&deep);
    Case few = pipelined(model, 4, SCHEDULE_1F1B, 8), many = pipelined(model, 4, SCHEDULE_1F1B, 16);

    few.schedule.chunk_layers = many.schedule.chunk_layers = layers;
    const double block_s = segment_s(&few, "block.forward") + segment_s(&few, "block.backward");
    ck_assert_double_eq_tol((simulated(&many, TRUE).step_s - simulated(&few, TRUE).step_s) /
                                (8 * 3 * block_s),
                            1, 0.01);
}
END_TEST

START_TEST(free_communication_is_never_slower)
{
    CaseShape shape = case_shape;
    g_autoptr(GRand) random = g_rand_new_with_seed(111);

    for (guint i = 0; i < 40; i++) {
        shape.layers = 2 + draw(random, 4);
        g_autoptr(Model) model = case_model(&shape);
        Case one = case_random_4d(random, model);

        one.device = DEVICE_CUDA;
        g_autofree char *text = case_text(&one);
        const Slowest real = simulated(&one, FALSE), without = simulated(&one, TRUE);
        ck_assert_msg(without.step_s <= real.step_s * (1 + 1e-9), "%s", text);
        ck_assert_double_eq_tol(without.compute_s, real.compute_s, 1e-12);
        ck_assert_double_ge(without.step_s, without.compute_s * (1 - 1e-9));
    }
}
END_TEST

/* ---- as plans say it ---- */

static Plan *priced_with_links(const Case *from, gboolean (*price)(Plan *), guint megabytes_per_s)
{
    Plan *plan = case_plan(from, case_gpu_topology(8, 80000, megabytes_per_s));

    price(plan);
    return plan;
}

static Plan *priced(const Case *from, gboolean (*price)(Plan *))
{
    return priced_with_links(from, price, 100000);
}

/* Share of a step, transfers included, which take little here. */
START_TEST(a_plan_names_the_bubble)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint m = 4; m <= 12; m += 4) {
        const Case alone = pipelined(model, 1, SCHEDULE_1F1B, m);
        const Case plain = pipelined(model, 4, SCHEDULE_1F1B, m);
        const Case chunks = pipelined(model, 4, SCHEDULE_INTERLEAVED, m);
        g_autoptr(Plan) one = priced(&alone, plan_price), two = priced(&plain, plan_price);
        g_autoptr(Plan) three = priced(&chunks, plan_price);

        ck_assert_double_eq(one->prediction.bubble_fraction, 0);
        ck_assert_double_eq_tol(two->prediction.bubble_fraction, 3.0 / (m + 3), 0.015);
        ck_assert_double_eq_tol(three->prediction.bubble_fraction, 1.5 / (m + 1.5), 0.015);
    }
}
END_TEST

/* What transfers take is exposed communication, not bubble: 50 times slower links leave its seconds
 * as they are. */
START_TEST(the_bubble_is_without_transfers)
{
    g_autoptr(Model) model = case_model(&deep);
    const Case one = pipelined(model, 4, SCHEDULE_1F1B, 8);
    g_autoptr(Plan) fast_plan = priced(&one, plan_price);
    g_autoptr(Plan) slow_plan = priced_with_links(&one, plan_price, 2000);
    const Prediction *fast = &fast_plan->prediction, *slow = &slow_plan->prediction;

    ck_assert_double_eq_tol(slow->bubble_fraction * slow->step_seconds,
                            fast->bubble_fraction * fast->step_seconds, 1e-9);
    ck_assert_double_gt(slow->exposed_communication_seconds,
                        1.2 * fast->exposed_communication_seconds);
}
END_TEST

/* All ranks of a pipeline end a step together, and time by class adds up to it on each stage. */
START_TEST(times_of_each_stage_add_up_to_the_step)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++) {
        const Case one = pipelined(model, 4, (ScheduleKind)kind, 8);
        g_autoptr(Plan) plan = priced(&one, plan_price);

        ck_assert_uint_eq(plan->stages->len, 4);
        for (guint s = 0; s < 4; s++) {
            const StageTime *stage = &g_array_index(plan->stages, StageTime, s);
            double sum = 0;

            for (guint c = 0; c < NUM_OP_CLASSES; c++)
                sum += stage->time_seconds[c];
            ck_assert_double_eq_tol(sum, plan->prediction.step_seconds, 1e-9);
        }
    }
}
END_TEST

static gboolean price_among_many(Plan *plan)
{
    const PriceLimit none = {.limit_s = INFINITY};

    return plan_price_below(plan, &none) == PRICE_FITS;
}

/* Further micro-batches of a full pipeline are alike, so their price is a straight line. */
START_TEST(many_micro_batches_cost_what_the_steady_ones_say)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++)
        for (guint m = 20; m <= 25; m++) {
            const Case one = pipelined(model, 4, (ScheduleKind)kind, m);
            g_autoptr(Plan) whole = priced(&one, plan_price);
            g_autoptr(Plan) line = priced(&one, price_among_many);
            const Prediction *a = &whole->prediction, *b = &line->prediction;
            g_autofree char *text = case_text(&one);

            ck_assert_msg(fabs(a->step_seconds / b->step_seconds - 1) < 1e-3, "%s: %.6g %.6g", text,
                          a->step_seconds, b->step_seconds);
            ck_assert_msg(a->memory_total == b->memory_total, "%s", text);
            for (guint v = 0; v < NUM_VOLUMES; v++)
                ck_assert_msg(a->communication_bytes[v] == b->communication_bytes[v], "%s", text);
        }
}
END_TEST

/* ---- sequences over ranks ---- */

static double attention_s(Model *model, DeviceKind device, guint cp, ContextKind context)
{
    Case one = case_with(model, STRATEGY_NO_SHARD, 1, 1);
    g_autoptr(Topology) topology =
        device == DEVICE_CPU ? case_cpu_topology(8, 100) : case_gpu_topology(1, 80000, 100000);
    const SimulateContext where = {.topology = topology, .ranks_per_node = cp, .threads = 1};

    one.device = device;
    one.workload.seq_len = 4096;
    one.layout.size[AXIS_CP] = cp;
    one.context = context;
    g_autoptr(Program) program = case_build(&one);
    g_autofree guint *spans = case_spans(program, &one);
    return simulate_program(program, &where, spans).busy_s[OP_CLASS_ATTENTION];
}

/* Half of the queries see half of all pairs, in a ring in two pieces; on a GPU pieces of half the
 * keys reach 2048 / (2048 + 1024) of the rate in place of 4096 / (4096 + 1024). */
START_TEST(two_ranks_a_sequence_halve_the_time_of_attention)
{
    g_autoptr(Model) model = case_model(&deep);

    for (guint device = 0; device <= 1; device++) {
        const DeviceKind kind = device == 0 ? DEVICE_CPU : DEVICE_CUDA;
        const double alone_s = attention_s(model, kind, 1, CONTEXT_RING);
        const double pieces = kind == DEVICE_CPU ? 1 : (4096.0 / 5120) / (2048.0 / 3072);

        ck_assert_double_eq_tol(attention_s(model, kind, 2, CONTEXT_RING) / alone_s, 0.5 * pieces,
                                0.005);
        for (guint cp = 2; cp <= 4; cp += 2)
            ck_assert_double_eq_tol(attention_s(model, kind, cp, CONTEXT_ALL_GATHER) / alone_s,
                                    1.0 / cp, 0.005);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate_stages");
    TCase *tcase = tcase_create("simulate_stages");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_balanced_pipeline_waits_for_pp_less_one_micro_batches);
    tcase_add_test(tcase, two_chunks_a_stage_halve_the_waiting);
    tcase_add_test(tcase, zb_h1_waits_for_what_is_left_without_weights);
    tcase_add_test(tcase, the_stage_with_most_blocks_sets_the_pace);
    tcase_add_test(tcase, free_communication_is_never_slower);
    tcase_add_test(tcase, a_plan_names_the_bubble);
    tcase_add_test(tcase, the_bubble_is_without_transfers);
    tcase_add_test(tcase, times_of_each_stage_add_up_to_the_step);
    tcase_add_test(tcase, many_micro_batches_cost_what_the_steady_ones_say);
    tcase_add_test(tcase, two_ranks_a_sequence_halve_the_time_of_attention);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
