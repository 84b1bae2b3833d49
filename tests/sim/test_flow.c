#include "sim/summary/flow.h"
#include "tests/suite.h"

#include <string.h>

static Schedule schedule_of(ScheduleKind kind, guint virtual_stages, guint micro_batches)
{
    return (Schedule){.micro_batch = 1,
                      .micro_batches = micro_batches,
                      .kind = kind,
                      .virtual_stages = virtual_stages};
}

static Flow *flow_of_fewer(const Schedule *schedule, guint pp, guint micro_batches)
{
    Schedule fewer = *schedule;

    fewer.micro_batches = micro_batches;
    return flow_new(&fewer, pp);
}

static void compare(const Schedule *schedule, guint pp)
{
    const guint filled_at = flow_filled(schedule->micro_batches, pp);

    if (filled_at == 0)
        return;
    g_autoptr(Flow) filled = flow_of_fewer(schedule, pp, filled_at);
    g_autoptr(Flow) one_more = flow_of_fewer(schedule, pp, filled_at + pp);
    g_autoptr(Flow) some = flow_extended(schedule, pp, filled, one_more);
    g_autoptr(Flow) all = flow_new(schedule, pp);

    for (guint s = 0; s < pp; s++)
        ck_assert_msg(memcmp(&some->stages[s], &all->stages[s], sizeof(StageFlow)) == 0,
                      "%s, %u chunks a stage, %u micro-batches, stage %u of %u",
                      schedule_name(schedule->kind), schedule->virtual_stages,
                      schedule->micro_batches, s, pp);
    for (guint c = 0; c < schedule_chunks(schedule, pp); c++)
        ck_assert_msg(some->opened[c] == all->opened[c],
                      "%s, %u micro-batches, chunk %u of %u stages: %u, not %u",
                      schedule_name(schedule->kind), schedule->micro_batches, c, pp,
                      some->opened[c], all->opened[c]);
}

static const guint stages[] = {1, 2, 3, 4, 5, 8};

START_TEST(a_filled_pipeline_repeats_itself)
{
    const guint pp = stages[_i];

    for (guint kind = 0; kind < NUM_SCHEDULES; kind++)
        for (guint v = 1; v <= 6; v++)
            for (guint m = 1; m <= 9 * pp; m++) {
                const Schedule schedule = schedule_of((ScheduleKind)kind, v, m);

                if ((pp == 1 && kind != SCHEDULE_1F1B) || (kind == SCHEDULE_INTERLEAVED) != (v > 1))
                    continue;
                compare(&schedule, pp);
            }
}
END_TEST

/* 1f1b: a stage has as many micro-batches in flight as stages follow it, itself included. */
START_TEST(worked_values)
{
    const Schedule schedule = schedule_of(SCHEDULE_1F1B, 1, 100);
    g_autoptr(Flow) flow = flow_new(&schedule, 4);

    for (guint s = 0; s < 4; s++) {
        ck_assert_uint_eq(flow->stages[s].in_flight, 4 - s);
        ck_assert_uint_eq(flow->stages[s].activations_received, s == 0 ? 0 : 100);
        ck_assert_uint_eq(flow->stages[s].gradients_received, s == 3 ? 0 : 100);
        ck_assert_uint_eq(flow->opened[s], s == 3 ? 100 : 1);
        ck_assert(flow->stages[s].refills);
    }
    const Schedule all_first = schedule_of(SCHEDULE_GPIPE, 1, 100);
    g_autoptr(Flow) gpipe = flow_new(&all_first, 4);
    ck_assert_uint_eq(gpipe->stages[3].in_flight, 100);
    ck_assert(!gpipe->stages[0].refills);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("flow");
    TCase *tcase = tcase_create("flow");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, a_filled_pipeline_repeats_itself, 0, G_N_ELEMENTS(stages));
    tcase_add_test(tcase, worked_values);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
