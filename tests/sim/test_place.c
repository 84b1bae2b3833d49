#include "sim/program/builder.h"
#include "tests/sim/hazards.h"
#include "tests/sim/spec_case.h"

START_TEST(no_two_tensors_share_bytes_that_both_need)
{
    CaseShape shape = case_shape;
    g_autoptr(GRand) random = g_rand_new_with_seed(51 + (guint)_i);

    shape.layers = 2;
    for (guint i = 0; i < 25; i++) {
        shape.tied = draw(random, 1) == 1;
        g_autoptr(Model) model = case_model(&shape);
        const Case one = case_random_4d(random, model);
        g_autofree char *text = case_text(&one);

        if (one.schedule.micro_batches > 2) /* the slow search is quadratic */
            continue;
        g_autoptr(Program) program = case_build(&one);
        ck_assert_msg(hazards_races(program) == 0, "%s", text);
        ck_assert_msg(hazards_wrong_reads(program) == 0, "%s", text);
    }
}
END_TEST

START_TEST(copies_are_aligned_and_lie_inside_the_arena)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(61);

    for (guint i = 0; i < 100; i++) {
        const Case one = case_random_4d(random, model);
        g_autoptr(Program) program = case_build(&one);

        for (guint t = 0; t < program->tensors->len; t++) {
            const Tensor *tensor = program_tensor(program, t);

            ck_assert_uint_eq(tensor->offset % ARENA_ALIGNMENT, 0);
            ck_assert_uint_ge(tensor->stride, tensor_copy_bytes(tensor));
            if (copies_of(program, t) > 1)
                ck_assert_uint_eq(tensor->stride % ARENA_ALIGNMENT, 0);
            ck_assert_uint_le(tensor->offset + tensor->stride * copies_of(program, t),
                              program->arena_bytes[tensor->tier]);
        }
    }
}
END_TEST

/* State lies at the bottom, one after the other, and nothing else there. */
START_TEST(state_is_never_shared)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(62);

    for (guint i = 0; i < 50; i++) {
        const Case one = case_random_4d(random, model);
        g_autoptr(Program) program = case_build(&one);
        guint64 state_end[NUM_TIERS] = {0};

        for (guint t = 0; t < program->tensors->len; t++) {
            const Tensor *tensor = program_tensor(program, t);
            guint64 *end = &state_end[tensor->tier];

            if (tensor->persistence != PERSIST_STATE)
                continue;
            ck_assert_uint_ge(tensor->offset, *end);
            ck_assert_uint_lt(tensor->offset, *end + ARENA_ALIGNMENT);
            *end = tensor->offset + tensor->stride * copies_of(program, t);
        }
        for (guint t = 0; t < program->tensors->len; t++) {
            if (program_tensor(program, t)->persistence == PERSIST_STATE)
                continue;
            ck_assert_int_eq(program_tensor(program, t)->tier, TIER_DEVICE);
            ck_assert_uint_ge(program_tensor(program, t)->offset, state_end[TIER_DEVICE]);
        }
    }
}
END_TEST

START_TEST(terms_add_up_to_the_arena_and_the_state_is_in_them_whole)
{
    static const MemoryTerm terms[] = {TERM_PARAMETERS, TERM_GRADIENTS, TERM_MASTER,
                                       TERM_OPTIMIZER};
    static const TensorKind kinds[] = {TENSOR_PARAMETER, TENSOR_GRADIENT, TENSOR_MASTER,
                                       TENSOR_MOMENT};
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(63);

    for (guint i = 0; i < 150; i++) {
        const Case one = case_random_4d(random, model);
        g_autofree char *text = case_text(&one);
        g_autoptr(Program) program = case_build(&one);
        const MemoryUse use = program_memory(program);
        guint64 sum = 0;

        for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
            sum += use.term[t];
        ck_assert_msg(sum == use.total, "%s", text);
        ck_assert_uint_eq(use.total, program->arena_bytes[TIER_DEVICE]);
        ck_assert_msg(use.live_peak <= use.total, "%s", text);
        ck_assert_uint_eq(use.term[TERM_FRAMEWORK], 0);
        for (guint t = 0; t < G_N_ELEMENTS(terms); t++)
            ck_assert_uint_eq(use.term[terms[t]], device_bytes(program, kinds[t]));
    }
}
END_TEST

/* Sizes at which 256-byte alignment is small change, as it is for real ones. */
static const CaseShape larger = {
    .vocab = 2000, .hidden = 256, .ffn = 704, .layers = 4, .heads = 8, .kv_heads = 4};

static double excess(const Case *from)
{
    g_autoptr(Program) program = case_build(from);
    const MemoryUse use = program_memory(program);

    return (double)use.total / (double)use.live_peak - 1;
}

/* Whole fp32 accumulators of one recomputed micro-batch: the tensors that meet one another in pairs
 * never meet all at once, so no arena with one place a tensor is as small as the peak. */
static gboolean is_exempt(const Case *from)
{
    return from->schedule.recompute == RECOMPUTE_FULL && from->schedule.micro_batches == 1 &&
           !from->sharding.accumulate_sharded && from->workload.recipe == &recipe_fp32;
}

START_TEST(the_arena_is_within_2_percent_of_what_is_alive_at_the_peak)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_fp32};
    g_autoptr(Model) model = case_model(&larger);

    for (guint i = 0; i < 2 * 2 * 3 * 3 * 2 * 3; i++) {
        Case one = case_with(model, (Strategy)_i, 2 + i % 3, 1 + i / 4 % 3);

        one.schedule.recompute = i % 2 == 0 ? RECOMPUTE_NONE : RECOMPUTE_FULL;
        one.sharding.keep_root = one.sharding.keep_last = i / 2 % 2 == 1;
        one.workload.seq_len = 64 << (i / 12 % 3);
        one.sharding.accumulate_sharded &= i / 36 % 2 == 1;
        one.workload.recipe = recipes[i / 72];
        if (case_verdict(&one, NULL) != VERDICT_OK)
            continue;
        g_autofree char *text = case_text(&one);
        ck_assert_msg(excess(&one) <= (is_exempt(&one) ? 0.05 : 0.02), "%s: %.2f%%", text,
                      100 * excess(&one));
    }
}
END_TEST

/* Block classes of their own have gathered copies and gradients of their own. */
START_TEST(with_overrides_the_arena_is_within_10_percent)
{
    g_autoptr(Model) model = case_model(&larger);
    g_autoptr(GRand) random = g_rand_new_with_seed(64);

    for (guint i = 0; i < 60; i++) {
        Case one = case_random_4d(random, model);

        one.workload.seq_len = 64 << draw(random, 2);
        g_autofree char *text = case_text(&one);
        ck_assert_msg(excess(&one) <= 0.10, "%s: %.2f%%", text, 100 * excess(&one));
    }
}
END_TEST

/* ---- the peak, by hand ---- */

/* One stream: a(100 kB) -> b(100 kB) -> c(300 kB) -> out; a is dead once b is there. */
static Program *chain(void)
{
    static const guint64 elements[] = {25600, 25600, 76800};
    Program *program = program_new();
    const guint in = program_add_tensor(program, "in", TENSOR_INPUT, DTYPE_FP32, NO_SPACE, 64);
    guint previous = in;

    for (guint i = 0; i < G_N_ELEMENTS(elements) + 1; i++) {
        g_autofree char *name = g_strdup_printf("t%u", i);
        const gboolean last = i == G_N_ELEMENTS(elements);
        const guint next =
            program_add_tensor(program, name, last ? TENSOR_GRADIENT : TENSOR_ACTIVATION,
                               DTYPE_FP32, NO_SPACE, last ? 64 : elements[i]);
        const guint segment = program_add_segment(program, name);
        Op *op = segment_add_op(program, segment, OP_CAST, COMPUTE_STREAM, DTYPE_FP32);

        op_add_operand(op, previous, ACCESS_READ, 0, WHOLE_TENSOR);
        op_add_operand(op, next, ACCESS_WRITE, 0, WHOLE_TENSOR);
        call_list_add(&program->step, segment, 0, 0);
        previous = next;
    }
    order_add_waits(program);
    program_place(program);
    return program;
}

START_TEST(a_chain_needs_its_two_largest_neighbours)
{
    g_autoptr(Program) program = chain();
    const MemoryUse use = program_memory(program);

    ck_assert_uint_eq(use.term[TERM_ACTIVATIONS], 4 * (25600 + 76800));
    ck_assert_uint_eq(use.term[TERM_GRADIENTS], 256);
    ck_assert_uint_eq(use.live_peak, 4 * (25600 + 76800) + 2 * 256);
    ck_assert_uint_eq(use.total, use.live_peak); /* all sizes are multiples of the alignment */
    ck_assert_str_eq(use.moment, "t2");
    /* The first and the third are never alive at once. */
    ck_assert_uint_eq(program_tensor(program, 1)->offset, program_tensor(program, 3)->offset);
}
END_TEST

/* Bytes of step tensors alive while each op of the second repetition runs, where nothing runs
 * beside it: a ring whole from a first write to a last read. */
static guint64 sequential_peak(const Program *program)
{
    Hazards h = hazards_new(program);
    const guint num_tensors = program->tensors->len;
    g_autofree gint64 *delta = g_new0(gint64, h.num_ops + 1);
    gint64 live = 0, peak = 0;

    for (guint t = 0; t < num_tensors; t++) {
        const Tensor *tensor = program_tensor(program, t);
        g_autofree gboolean *alive = g_new0(gboolean, h.num_ops);

        for (guint copy = 0; copy < copies_of(program, t); copy++)
            for (guint i = 0, start = 0, used = FALSE; i < h.touched->len; i++) {
                const Touched *touched = hazards_touched(&h, i);

                if (touched->tensor != t || touched->copy != copy)
                    continue;
                if (!touched->reads || !used)
                    start = touched->op;
                used = TRUE;
                for (guint op = start; op <= touched->op; op++)
                    alive[op] = TRUE;
                start = touched->op;
            }
        for (guint op = 0; op < h.num_ops; op++)
            delta[op] += alive[op] && tensor->persistence != PERSIST_STATE
                             ? (gint64)tensor_bytes(program, tensor)
                             : 0;
    }
    for (guint op = h.num_ops / 2; op < h.num_ops; op++) {
        live = delta[op];
        peak = MAX(peak, live);
    }
    hazards_clear(&h);
    return (guint64)peak;
}

START_TEST(where_nothing_overlaps_the_peak_is_that_of_a_plain_walk)
{
    CaseShape shape = case_shape;

    shape.layers = 3;
    g_autoptr(Model) model = case_model(&shape);
    for (guint recompute = 0; recompute < NUM_RECOMPUTES; recompute++)
        for (guint micro_batches = 1; micro_batches <= 2; micro_batches++) {
            Case one = case_with(model, STRATEGY_NO_SHARD, 1, micro_batches);

            one.schedule.recompute = (Recompute)recompute;
            g_autoptr(Program) program = case_build(&one);
            guint64 state = 0;
            for (guint t = 0; t < program->tensors->len; t++)
                if (program_tensor(program, t)->persistence == PERSIST_STATE)
                    state += tensor_bytes(program, program_tensor(program, t));
            ck_assert_uint_eq(program_memory(program).live_peak, state + sequential_peak(program));
        }
}
END_TEST

/* The step has no other phase, and what the optimiser holds is state and what starts there. */
START_TEST(the_peak_is_that_of_one_of_the_phases)
{
    g_autoptr(Model) model = case_model(&case_shape);
    g_autoptr(GRand) random = g_rand_new_with_seed(66);

    for (guint i = 0; i < 100; i++) {
        const Case one = case_random_4d(random, model);
        g_autofree char *text = case_text(&one);
        g_autoptr(Program) program = case_build(&one);
        guint64 peak[NUM_PHASES];

        program_phase_peaks(program, peak);
        ck_assert_msg(MAX(peak[PHASE_PASSES], peak[PHASE_OPTIMIZER]) ==
                          program_memory(program).live_peak,
                      "%s", text);
        for (guint phase = 0; phase < NUM_PHASES; phase++)
            ck_assert_uint_ge(peak[phase], program_state_bytes(program));
        ck_assert_uint_gt(peak[PHASE_PASSES], program_state_bytes(program));
    }
}
END_TEST

START_TEST(placing_twice_gives_the_same_offsets)
{
    g_autoptr(Model) model = case_model(&case_shape);
    const Case one = case_with(model, STRATEGY_FULL_SHARD, 3, 2);
    g_autoptr(Program) program = case_build(&one);
    g_autofree char *hash = program_hash(program);

    program_place(program);
    g_autofree char *again = program_hash(program);
    ck_assert_str_eq(hash, again);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("place");
    TCase *tcase = tcase_create("place");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, no_two_tensors_share_bytes_that_both_need, 0, 4);
    tcase_add_test(tcase, copies_are_aligned_and_lie_inside_the_arena);
    tcase_add_test(tcase, state_is_never_shared);
    tcase_add_test(tcase, terms_add_up_to_the_arena_and_the_state_is_in_them_whole);
    tcase_add_loop_test(tcase, the_arena_is_within_2_percent_of_what_is_alive_at_the_peak, 0,
                        NUM_STRATEGIES);
    tcase_add_test(tcase, with_overrides_the_arena_is_within_10_percent);
    tcase_add_test(tcase, a_chain_needs_its_two_largest_neighbours);
    tcase_add_test(tcase, where_nothing_overlaps_the_peak_is_that_of_a_plain_walk);
    tcase_add_test(tcase, the_peak_is_that_of_one_of_the_phases);
    tcase_add_test(tcase, placing_twice_gives_the_same_offsets);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
