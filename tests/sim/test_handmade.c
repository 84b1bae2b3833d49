/* Programs of shapes that no pass builds yet: the concepts carry them, and faults in them are
 * found. */
#include "sim/cost/simulate.h"
#include "sim/program/check_parts.h"
#include "tests/handmade.h"
#include "tests/sim/spec_case.h"

/* 125000 fp32 elements, each rank's share of memory 1 GB/s, links 500 MB/s + 10 us, 1 us an op:
 * a copy moves 1 MB, an addition 1.5 MB (its target twice), a message 0.5 MB. */
enum { ELEMENTS = 125000 };
static const double copy_s = 1.001e-3, add_s = 1.501e-3, message_s = 1.01e-3;

static const double tolerance_s = 1e-9;

/* Two threads a rank have cores, or (not @overlaps) the ranks' own only. */
static void simulate(const ProgramSet *set, gboolean overlaps, StepTime *times)
{
    const guint ranks = set->num_ranks;
    g_autoptr(Topology) topology = case_cpu_topology(overlaps ? 2 * ranks : ranks, ranks);
    const SimulateContext context = {.topology = topology, .ranks_per_node = ranks, .threads = 1};

    ck_assert_int_eq(simulate_overlaps(&context), overlaps);
    simulate_set(set, &context, times, NULL);
}

/* ---- two stages ---- */

/* Micro-batch after micro-batch: forward or nothing, message, addition, copy + addition, message,
 * addition; stage 0's next forward hides behind stage 1's work. */
START_TEST(a_two_stage_pipeline_passes_and_takes_the_hand_worked_time)
{
    const guint m = (guint)_i;
    g_autoptr(ProgramSet) set = handmade_pipeline(m, ELEMENTS);
    const double step_s = (m + 1) * (copy_s + message_s) + (2 * m + 1) * add_s;
    StepTime times[2];

    assert_proven(set, "pipeline");
    for (guint overlaps = 0; overlaps < 2; overlaps++) {
        simulate(set, overlaps == 1, times);
        ck_assert_double_eq_tol(times[0].step_s, step_s, tolerance_s);
        ck_assert_double_eq_tol(times[1].step_s, step_s, tolerance_s);
        ck_assert_double_eq_tol(times[0].exposed_s, step_s - m * (copy_s + add_s), tolerance_s);
        ck_assert_double_eq_tol(times[1].exposed_s, step_s - m * (copy_s + 2 * add_s), tolerance_s);
        ck_assert_double_eq_tol(times[0].busy_s[OP_CLASS_COMMUNICATION], (m + 1) * message_s,
                                tolerance_s);
    }
}
END_TEST

START_TEST(a_stage_receives_what_its_neighbour_sends)
{
    for (guint m = 1; m <= 4; m++) {
        g_autoptr(ProgramSet) set = handmade_pipeline(m, ELEMENTS);

        for (guint c = 0; c < 2; c++) {
            guint64 bytes[NUM_VOLUMES];

            program_volume(set->classes[c], bytes);
            ck_assert_uint_eq(bytes[VOLUME_EXCHANGE], m * 4 * ELEMENTS);
        }
    }
}
END_TEST

static Op *op_of(const ProgramSet *set, guint c, const char *segment, guint op)
{
    const gint found = find_segment(set->classes[c], segment);

    ck_assert_int_ge(found, 0);
    return &program_segment(set->classes[c], (guint)found)->ops[op];
}

START_TEST(a_message_without_its_counterpart_is_caught)
{
    g_autoptr(ProgramSet) set = handmade_pipeline(3, ELEMENTS);
    Op *op = op_of(set, 1, "exchange", 0);
    Message *message = &op->messages[0];

    message->direction = HANDMADE_FORWARD;
    assert_caught(set, "no counterpart");
    message->direction = HANDMADE_BACKWARD;
    message->chunk = 1;
    assert_caught(set, "no counterpart");
    message->chunk = 0;
    message->micro_batch_shift = 1;
    assert_caught(set, "no counterpart");
    message->micro_batch_shift = 0;
    message->peer_shift = 0; /* to itself */
    assert_caught(set, "no counterpart");
    message->peer_shift = 1;
    assert_proven(set, "as it was");
    op->operands[0].access = ACCESS_WRITE;
    assert_caught(set, "no counterpart");
}
END_TEST

START_TEST(a_message_of_another_size_is_caught)
{
    g_autoptr(ProgramSet) set = handmade_pipeline(2, ELEMENTS);

    program_tensor(set->classes[1], (guint)find_tensor(set->classes[1], "activation"))->elements--;
    assert_caught(set, "no counterpart");
}
END_TEST

/* The same send twice would find the one receive twice. */
START_TEST(a_send_too_many_is_caught)
{
    g_autoptr(ProgramSet) set = program_set_new(2);
    Program *first = handmade_first_stage(1, ELEMENTS);

    handmade_call(first, (guint)find_segment(first, "exchange.first"), 0);
    handmade_add_rank(set, 0, first);
    handmade_add_rank(set, 1, handmade_last_stage(1, ELEMENTS));
    handmade_group_of_all(set, "pp");
    assert_caught(set, "no counterpart");
}
END_TEST

START_TEST(a_stage_that_sends_before_it_has_received_blocks)
{
    g_autoptr(ProgramSet) set = handmade_pipeline(1, ELEMENTS);
    const GArray *calls = set->classes[1]->step.calls; /* receive, forward, backward, send */
    Call *receive = &g_array_index(calls, Call, 0), *send = &g_array_index(calls, Call, 3);
    const guint segment = receive->segment;

    receive->segment = send->segment;
    send->segment = segment;
    g_array_set_size(set->classes[1]->step.waits, 0);
    for (guint c = 0; c < calls->len; c++)
        g_array_index(calls, Call, c).num_waits = 0;
    program_tensor(set->classes[1], 0)->persistence = PERSIST_STATE; /* leave only the circle */
    program_tensor(set->classes[1], 1)->persistence = PERSIST_STATE;
    order_add_waits(set->classes[1]);
    program_place(set->classes[1]);
    assert_caught(set, "deadlock");
}
END_TEST

START_TEST(streams_of_one_name_but_two_numbers_are_two_communicators)
{
    g_autoptr(ProgramSet) set = handmade_pipeline(1, ELEMENTS);
    Program *program = set->classes[1];

    program_add_stream(program, "pp.other", STREAM_COMMUNICATION, 0);
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            Op *op = &program_segment(program, s)->ops[i];

            op->stream = op->stream == 1 ? 2 : op->stream;
        }
    assert_caught(set, "no counterpart");
}
END_TEST

START_TEST(a_rank_outside_its_group_is_caught)
{
    g_autoptr(ProgramSet) set = program_set_new(2);
    const guint alone = 0;

    handmade_add_rank(set, 0, handmade_first_stage(1, ELEMENTS));
    handmade_add_rank(set, 1, handmade_last_stage(1, ELEMENTS));
    program_set_add_group(set, "pp", &alone, 1);
    assert_caught(set, "rank 1 is in no group \"pp\" of 2");
    assert_caught(set, "rank 0 is in no group \"pp\" of 2");
}
END_TEST

/* Every wait of a pipeline is needed: order adds none that others imply. */
START_TEST(a_pipeline_without_one_of_its_waits_is_caught)
{
    for (guint m = 1; m <= 4; m++) {
        g_autoptr(ProgramSet) set = handmade_pipeline(m, ELEMENTS);

        for (guint c = 0; c < 2; c++)
            for (guint w = 0; w < set->classes[c]->step.waits->len; w++) {
                Wait *wait = &g_array_index(set->classes[c]->step.waits, Wait, w);
                const Wait before = *wait;

                wait->before = G_MAXUINT32;
                g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);
                check_data(set->classes[c], problems);
                ck_assert_msg(problems->len > 0, "class %u of M = %u, wait %u", c, m, w);
                *wait = before;
            }
    }
}
END_TEST

/* ---- three and more ---- */

/* Each rank between receives m + 1 while it sends m: copy + addition + message a micro-batch, and
 * a message to fill. */
START_TEST(a_relay_through_ranks_that_exchange_with_two_neighbours_takes_the_hand_worked_time)
{
    const guint ranks = 3 + (guint)_i;

    for (guint m = 1; m <= 4; m++) {
        g_autoptr(ProgramSet) set = handmade_relay(ranks, m, ELEMENTS);
        g_autofree StepTime *times = g_new0(StepTime, ranks);
        const double step_s = (m + 1) * message_s + m * (copy_s + add_s);

        assert_proven(set, "relay");
        simulate(set, TRUE, times);
        for (guint r = 0; r < ranks; r++)
            ck_assert_double_eq_tol(times[r].step_s, step_s, tolerance_s);
    }
}
END_TEST

START_TEST(neighbours_on_a_ring_exchange_in_one_op_and_all_at_once)
{
    for (guint ranks = 2; ranks <= 5; ranks++) {
        g_autoptr(ProgramSet) set = handmade_ring(ranks, ELEMENTS);
        g_autofree StepTime *times = g_new0(StepTime, ranks);

        assert_proven(set, "ring");
        simulate(set, TRUE, times);
        for (guint r = 0; r < ranks; r++) {
            ck_assert_double_eq_tol(times[r].step_s, 2 * copy_s + add_s + message_s, tolerance_s);
            ck_assert_double_eq_tol(times[r].exposed_s, message_s, tolerance_s);
        }
    }
}
END_TEST

/* Cuts each rank's exchange in two: receive, then send. */
static void split_exchange(Program *program)
{
    Segment *segment = program_segment(program, 0);
    const Op exchange = segment->ops[1];

    segment_add_op(program, 0, OP_EXCHANGE, 1, DTYPE_FP32);
    memmove(&segment->ops[2], &segment->ops[1], 3 * sizeof(Op)); /* room for one more */
    segment->ops[1].num_operands = 1;
    segment->ops[1].operands[0] = exchange.operands[1];
    segment->ops[1].messages[0] = exchange.messages[1];
    segment->ops[2].num_operands = 1;
    segment->ops[3].waits[0] = 2;
}

START_TEST(receiving_first_on_all_ranks_is_the_deadlock_that_the_one_op_avoids)
{
    for (guint ranks = 2; ranks <= 4; ranks++) {
        g_autoptr(ProgramSet) set = handmade_ring(ranks, ELEMENTS);

        for (guint c = 0; c < ranks; c++)
            split_exchange(set->classes[c]);
        assert_caught(set, "deadlock");
    }
}
END_TEST

/* ---- within a block ---- */

/* Links move 500 MB/s: all of 0.5 MB by halves, 2 ways for the all-reduce. */
START_TEST(collectives_within_a_segment_take_the_hand_worked_time)
{
    g_autoptr(ProgramSet) set = handmade_block(2, 3, ELEMENTS / 2);
    const double half_copy_s = 0.501e-3;
    const double call_s = 2 * copy_s + 2 * half_copy_s + 1.02e-3 + 0.51e-3 + 0.51e-3;
    StepTime time;

    assert_proven(set, "block");
    simulate(set, TRUE, &time);
    ck_assert_double_eq_tol(time.step_s, 3 * call_s, tolerance_s);
    ck_assert_double_eq_tol(time.exposed_s, 3 * 2.04e-3, tolerance_s);
}
END_TEST

START_TEST(a_wait_that_is_missing_within_a_segment_is_caught)
{
    for (guint ranks = 1; ranks <= 3; ranks++)
        for (guint i = 0; i < 7; i++) {
            g_autoptr(ProgramSet) set = handmade_block(ranks, 2, 100);
            Op *op = op_of(set, 0, "block", i);

            if (op->num_waits == 0)
                continue;
            op->num_waits = 0;
            assert_caught(set, "another stream may still");
        }
}
END_TEST

START_TEST(a_wait_for_a_later_op_of_the_segment_is_a_deadlock)
{
    g_autoptr(ProgramSet) set = handmade_block(2, 1, 100);
    Op *op = op_of(set, 0, "block", 1);

    op->waits[op->num_waits++] = 2; /* which waits for it */
    assert_caught(set, "deadlock");
}
END_TEST

START_TEST(volume_of_collectives_that_are_not_on_a_unit)
{
    g_autoptr(ProgramSet) set = handmade_block(3, 2, 100);
    guint64 bytes[NUM_VOLUMES];

    program_volume(set->classes[0], bytes);
    ck_assert_uint_eq(bytes[VOLUME_ALL_REDUCE], 2 * 2 * 2 * 100 * 4);
    ck_assert_uint_eq(bytes[VOLUME_ALL_GATHER], 2 * 2 * 100 * 4);
    ck_assert_uint_eq(bytes[VOLUME_REDUCE_SCATTER], 2 * 2 * 100 * 4);
}
END_TEST

/* ---- prologue and epilogue ---- */

START_TEST(a_gather_that_the_next_step_awaits_takes_the_hand_worked_time)
{
    g_autoptr(ProgramSet) set = handmade_prefetch(2, ELEMENTS / 2);
    StepTime time;

    assert_proven(set, "prefetch");
    simulate(set, TRUE, &time);
    ck_assert_double_eq_tol(time.step_s, add_s + 0.751e-3 + 0.51e-3, tolerance_s);
}
END_TEST

START_TEST(what_the_first_step_finds_must_come_from_the_prologue)
{
    g_autoptr(ProgramSet) set = handmade_prefetch(2, 100);

    g_array_set_size(set->classes[0]->prologue.calls, 0);
    assert_caught(set, "whole[0] is read before it is written");
}
END_TEST

START_TEST(what_the_epilogue_uses_is_nobody_elses_memory)
{
    g_autoptr(ProgramSet) set = handmade_prefetch(2, 100);
    Program *program = set->classes[0];
    Tensor *whole = program_tensor(program, (guint)find_tensor(program, "whole"));
    Tensor *drained = program_tensor(program, (guint)find_tensor(program, "drained"));

    ck_assert(drained->offset >= whole->offset + 800 || whole->offset >= drained->offset + 800);
    program_tensor(program, (guint)find_tensor(program, "own"))->offset = whole->offset;
    assert_caught(set, "read before it is written");
}
END_TEST

START_TEST(classes_must_agree_on_their_prologues_and_epilogues)
{
    for (guint list = 0; list < 2; list++) {
        g_autoptr(ProgramSet) set = program_set_new(2);

        handmade_add_rank(set, 0, handmade_prefetch_rank(2, 100));
        handmade_add_rank(set, 1, handmade_prefetch_rank(2, 100));
        handmade_group_of_all(set, "shard");
        assert_proven(set, "two equal classes");
        Program *program = set->classes[1];
        call_list_add(list == 0 ? &program->prologue : &program->epilogue,
                      (guint)find_segment(program, "gather"), 0, 0);
        assert_caught(set, "class 1 issues all_gather that class 0 does not");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handmade");
    TCase *tcase = tcase_create("handmade");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, a_two_stage_pipeline_passes_and_takes_the_hand_worked_time, 1, 5);
    tcase_add_test(tcase, a_stage_receives_what_its_neighbour_sends);
    tcase_add_test(tcase, a_message_without_its_counterpart_is_caught);
    tcase_add_test(tcase, a_message_of_another_size_is_caught);
    tcase_add_test(tcase, a_send_too_many_is_caught);
    tcase_add_test(tcase, a_stage_that_sends_before_it_has_received_blocks);
    tcase_add_test(tcase, streams_of_one_name_but_two_numbers_are_two_communicators);
    tcase_add_test(tcase, a_rank_outside_its_group_is_caught);
    tcase_add_test(tcase, a_pipeline_without_one_of_its_waits_is_caught);
    tcase_add_loop_test(
        tcase, a_relay_through_ranks_that_exchange_with_two_neighbours_takes_the_hand_worked_time,
        0, 3);
    tcase_add_test(tcase, neighbours_on_a_ring_exchange_in_one_op_and_all_at_once);
    tcase_add_test(tcase, receiving_first_on_all_ranks_is_the_deadlock_that_the_one_op_avoids);
    tcase_add_test(tcase, collectives_within_a_segment_take_the_hand_worked_time);
    tcase_add_test(tcase, a_wait_that_is_missing_within_a_segment_is_caught);
    tcase_add_test(tcase, a_wait_for_a_later_op_of_the_segment_is_a_deadlock);
    tcase_add_test(tcase, volume_of_collectives_that_are_not_on_a_unit);
    tcase_add_test(tcase, a_gather_that_the_next_step_awaits_takes_the_hand_worked_time);
    tcase_add_test(tcase, what_the_first_step_finds_must_come_from_the_prologue);
    tcase_add_test(tcase, what_the_epilogue_uses_is_nobody_elses_memory);
    tcase_add_test(tcase, classes_must_agree_on_their_prologues_and_epilogues);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
