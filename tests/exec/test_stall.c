/* Who is named, from states written by hand. */
#include "exec/run/op_number.h"
#include "exec/run/stall.h"
#include "tests/handmade.h"
#include "tests/suite.h"

#include <string.h>

enum { ELEMENTS = 8, MAX_RANKS = 4 };

/* Number of the op that call @c of the step begins with, plus @op. */
static guint32 number_of(const Program *program, guint c, guint op)
{
    g_autofree guint32 *first = program_first_ops(program);

    return first[c] + op;
}

/* Runs, and is within op @number of @step on that lane. */
static void put(RankState *state, ProgressLane lane, guint64 step, guint32 number, gboolean within)
{
    state->seen = state->runs = TRUE;
    state->lane[lane].at = progress_at(step, number);
    state->lane[lane].count = within ? 7 : 8;
}

static void assert_ranks(GArray *ranks, guint num, const guint *want)
{
    ck_assert_uint_eq(ranks->len, num);
    for (guint i = 0; i < num; i++)
        ck_assert_uint_eq(g_array_index(ranks, guint, i), want[i]);
    g_array_unref(ranks);
}

static void assert_culprit(const ProgramSet *set, const RankState *states, guint want)
{
    assert_ranks(stall_culprits(set, states), 1, &want);
}

/* ---- collectives: the block of tests/handmade.h, three calls of one segment ---- */

/* The n-th op of the segment that communicates. */
static guint collective(const Program *program, guint n)
{
    const Segment *segment =
        program_segment(program, g_array_index(program->step.calls, Call, 0).segment);

    for (guint i = 0; i < segment->num_ops; i++)
        if (op_kind_is_communication(segment->ops[i].kind) && n-- == 0)
            return i;
    ck_abort_msg("no such op");
}

START_TEST(who_has_not_entered_a_collective_is_waited_for_and_named)
{
    g_autoptr(ProgramSet) set = handmade_block(3, 3, ELEMENTS);
    const Program *program = set->classes[0];
    RankState states[MAX_RANKS] = {0};
    const guint late = 2;

    for (guint r = 0; r < 3; r++)
        put(&states[r], LANE_COMMUNICATION, 5, number_of(program, 1, collective(program, 1)), TRUE);
    put(&states[late], LANE_COMMUNICATION, 5, number_of(program, 1, collective(program, 0)), FALSE);
    put(&states[late], LANE_COMPUTE, 5, number_of(program, 1, 0), TRUE);
    assert_ranks(stall_waits_for(set, states, 0, NULL), 1, &late);
    assert_ranks(stall_waits_for(set, states, late, NULL), 0, NULL);
    assert_culprit(set, states, late);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "no progress for 5 s, held up by rank 2;"));
    ck_assert_ptr_nonnull(strstr(report, "fsdp-run: rank 2 (pid 0), idle 0.0 s: computes "));
    ck_assert_ptr_nonnull(strstr(report, "group tp (ranks 0 1 2), waits for rank 2\n"));
}
END_TEST

/* The same op of the step before is another one. */
START_TEST(a_rank_that_is_a_whole_step_behind_is_named)
{
    g_autoptr(ProgramSet) set = handmade_block(2, 3, ELEMENTS);
    const guint32 number = number_of(set->classes[0], 0, collective(set->classes[0], 0));
    RankState states[MAX_RANKS] = {0};

    put(&states[0], LANE_COMMUNICATION, 4, number, TRUE);
    put(&states[1], LANE_COMMUNICATION, 5, number, TRUE);
    assert_culprit(set, states, 0);
}
END_TEST

START_TEST(a_rank_that_does_not_run_is_named_wherever_it_is)
{
    g_autoptr(ProgramSet) set = handmade_block(3, 3, ELEMENTS);
    const guint32 number = number_of(set->classes[0], 0, collective(set->classes[0], 0));
    RankState states[MAX_RANKS] = {0};

    for (guint r = 0; r < 3; r++)
        put(&states[r], LANE_COMMUNICATION, 1, number, TRUE);
    states[1].runs = FALSE;
    states[1].process = 'T';
    assert_culprit(set, states, 1);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "rank 1 (pid 0), idle 0.0 s: its process is stopped;"));
    ck_assert_ptr_nonnull(strstr(report, "all of them are in it"));
}
END_TEST

START_TEST(of_ranks_within_one_op_the_one_that_got_least_far_is_named)
{
    g_autoptr(ProgramSet) set = handmade_block(3, 3, ELEMENTS);
    const guint32 number = number_of(set->classes[0], 0, collective(set->classes[0], 0));
    RankState states[MAX_RANKS] = {0};

    for (guint r = 0; r < 3; r++) {
        put(&states[r], LANE_COMMUNICATION, 1, number, TRUE);
        states[r].moves = r == 1 ? 1 : 2;
    }
    assert_culprit(set, states, 1);
}
END_TEST

START_TEST(a_rank_of_another_machine_is_named_when_nothing_else_explains_the_wait)
{
    g_autoptr(ProgramSet) set = handmade_block(2, 3, ELEMENTS);
    RankState states[MAX_RANKS] = {0};

    put(&states[0], LANE_COMMUNICATION, 1,
        number_of(set->classes[0], 0, collective(set->classes[0], 0)), TRUE);
    assert_culprit(set, states, 1);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "with (on another machine) rank 1\n"));
    ck_assert_ptr_null(strstr(report, "fsdp-run: rank 1"));
}
END_TEST

START_TEST(to_wait_for_a_rank_that_makes_progress_is_no_stall)
{
    g_autoptr(ProgramSet) set = handmade_block(2, 3, ELEMENTS);
    RankState states[MAX_RANKS] = {0};

    put(&states[0], LANE_COMMUNICATION, 1,
        number_of(set->classes[0], 0, collective(set->classes[0], 0)), TRUE);
    put(&states[1], LANE_COMPUTE, 1, 0, TRUE);
    ck_assert(!stall_is_real(set, states, 5));
    states[0].idle_s = 6;
    states[1].idle_s = 0.1; /* computes */
    ck_assert(!stall_is_real(set, states, 5));
    states[1].idle_s = 5;
    ck_assert(stall_is_real(set, states, 5));
    states[1] = (RankState){0}; /* of another machine */
    ck_assert(stall_is_real(set, states, 5));
}
END_TEST

/* ---- exchanges ---- */

/* Stages differ, so the same message is another op on each side. */
START_TEST(an_exchange_waits_for_the_peer_that_has_not_reached_its_message)
{
    g_autoptr(ProgramSet) set = handmade_pipeline(4, ELEMENTS);
    const Program *last = set->classes[1];
    RankState states[MAX_RANKS] = {0};

    /* rank 1 waits for the first activation; rank 0 still makes it */
    put(&states[1], LANE_COMMUNICATION, 1, number_of(last, 0, 0), TRUE);
    put(&states[0], LANE_COMPUTE, 1, 0, TRUE);
    assert_culprit(set, states, 0);
    /* rank 0 has sent it; rank 1 has received it and computes; rank 0 waits for the gradient */
    put(&states[0], LANE_COMMUNICATION, 1, number_of(set->classes[0], 3, 0), TRUE);
    put(&states[1], LANE_COMMUNICATION, 1, number_of(last, 0, 0), FALSE);
    put(&states[1], LANE_COMPUTE, 1, number_of(last, 1, 0), TRUE);
    assert_culprit(set, states, 1);
}
END_TEST

START_TEST(the_end_of_a_chain_of_waits_is_named)
{
    g_autoptr(ProgramSet) set = handmade_relay(4, 4, ELEMENTS);
    RankState states[MAX_RANKS] = {0};

    for (guint r = 1; r < 4; r++)
        put(&states[r], LANE_COMMUNICATION, 1, 0, TRUE); /* each receives from the left */
    put(&states[0], LANE_COMPUTE, 1, 0, TRUE);
    assert_culprit(set, states, 0);
}
END_TEST

START_TEST(ranks_that_wait_for_each_other_are_said_to)
{
    g_autoptr(ProgramSet) set = handmade_block(2, 3, ELEMENTS);
    const guint32 number = number_of(set->classes[0], 0, collective(set->classes[0], 0));
    RankState states[MAX_RANKS] = {0};

    put(&states[0], LANE_COMMUNICATION, 1, number, TRUE);
    put(&states[1], LANE_COMMUNICATION, 0, PROGRESS_AGREE, TRUE);
    assert_ranks(stall_culprits(set, states), 0, NULL);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "ranks wait for each other"));
}
END_TEST

/* ---- between ops ---- */

START_TEST(a_rank_alone_is_named_itself)
{
    g_autoptr(ProgramSet) set = handmade_block(1, 3, ELEMENTS);
    RankState states[MAX_RANKS] = {0};

    put(&states[0], LANE_COMPUTE, 1, 0, FALSE);
    assert_culprit(set, states, 0);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "rank 0 (pid 0), idle 0.0 s: after "));
}
END_TEST

START_TEST(a_rank_that_the_others_want_to_agree_with_is_named)
{
    g_autoptr(ProgramSet) set = handmade_block(3, 3, ELEMENTS);
    const Program *program = set->classes[0];
    RankState states[MAX_RANKS] = {0};

    for (guint r = 0; r < 3; r++)
        put(&states[r], LANE_COMMUNICATION, 2, PROGRESS_AGREE, TRUE);
    put(&states[1], LANE_COMMUNICATION, 2, number_of(program, 2, collective(program, 0)), FALSE);
    assert_culprit(set, states, 1);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "agrees with all ranks after step 2, waits for rank 1\n"));
}
END_TEST

/* Its main thread waits, its communication thread has not begun the collective that waits for the
 * file. */
START_TEST(a_rank_that_waits_for_its_file_is_named_with_the_copy)
{
    g_autoptr(ProgramSet) set = handmade_block(3, 3, ELEMENTS);
    const Program *program = set->classes[0];
    RankState states[MAX_RANKS] = {0};
    const guint slow = 1;

    for (guint r = 0; r < 3; r++)
        put(&states[r], LANE_COMMUNICATION, 5, number_of(program, 1, collective(program, 1)), TRUE);
    put(&states[slow], LANE_COMMUNICATION, 5, number_of(program, 1, collective(program, 0)), FALSE);
    put(&states[slow], LANE_STORAGE, 5, number_of(program, 1, 0), TRUE);
    assert_culprit(set, states, slow);
    g_autofree char *report = stall_report(set, states, 5);
    ck_assert_ptr_nonnull(strstr(report, "held up by rank 1; what each does:\n"));
    ck_assert_ptr_nonnull(strstr(report, "; waits for its file: block unit "));
}
END_TEST

/* ---- numbers of ops ---- */

START_TEST(every_op_has_a_number_of_its_own)
{
    g_autoptr(ProgramSet) set = handmade_prefetch(2, ELEMENTS);
    const Program *program = set->classes[0];
    const OpNumbers numbers = op_numbers(program);
    g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
    const Call *call;
    const Op *op;

    ck_assert_uint_eq(numbers.epilogue, program_num_ops(program));
    ck_assert_uint_gt(numbers.prologue, numbers.epilogue);
    ck_assert_uint_gt(numbers.end, numbers.prologue);
    for (guint32 n = 0; n < numbers.end; n++) {
        ck_assert(op_number_find(program, n, &call, &op));
        ck_assert_ptr_eq(program_segment(program, call->segment)->ops +
                             (op - program_segment(program, call->segment)->ops),
                         op);
        g_hash_table_add(seen, (gpointer)call);
    }
    ck_assert(!op_number_find(program, numbers.end, &call, &op));
    ck_assert_uint_eq(g_hash_table_size(seen), program->step.calls->len +
                                                   program->epilogue.calls->len +
                                                   program->prologue.calls->len);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stall");
    TCase *tcase = tcase_create("stall");

    tcase_add_test(tcase, who_has_not_entered_a_collective_is_waited_for_and_named);
    tcase_add_test(tcase, a_rank_that_is_a_whole_step_behind_is_named);
    tcase_add_test(tcase, a_rank_that_does_not_run_is_named_wherever_it_is);
    tcase_add_test(tcase, of_ranks_within_one_op_the_one_that_got_least_far_is_named);
    tcase_add_test(tcase, a_rank_of_another_machine_is_named_when_nothing_else_explains_the_wait);
    tcase_add_test(tcase, to_wait_for_a_rank_that_makes_progress_is_no_stall);
    tcase_add_test(tcase, an_exchange_waits_for_the_peer_that_has_not_reached_its_message);
    tcase_add_test(tcase, the_end_of_a_chain_of_waits_is_named);
    tcase_add_test(tcase, ranks_that_wait_for_each_other_are_said_to);
    tcase_add_test(tcase, a_rank_alone_is_named_itself);
    tcase_add_test(tcase, a_rank_that_the_others_want_to_agree_with_is_named);
    tcase_add_test(tcase, a_rank_that_waits_for_its_file_is_named_with_the_copy);
    tcase_add_test(tcase, every_op_has_a_number_of_its_own);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
