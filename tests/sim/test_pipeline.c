#include "sim/layout/pipeline.h"
#include "tests/suite.h"

#include <string.h>

static Schedule schedule_of(ScheduleKind kind, guint virtual_stages, guint micro_batches)
{
    return (Schedule){.micro_batch = 1,
                      .micro_batches = micro_batches,
                      .kind = kind,
                      .virtual_stages = virtual_stages};
}

static const Action *action_at(const Timetable *table, guint i)
{
    return &g_array_index(table->actions, Action, i);
}

static const Transfer *transfer_at(const Timetable *table, guint i)
{
    return &g_array_index(table->transfers, Transfer, i);
}

/* "[a0.1>1 g0.0<1]": activation of chunk 0, micro-batch 1 to stage 1; gradient from there. */
static void append_transfers(GString *text, const Timetable *table, const Action *action)
{
    for (guint i = 0; i < action->num_transfers; i++) {
        const Transfer *t = transfer_at(table, action->first_transfer + i);

        g_string_append_printf(text, "%s%c%u.%u%c%u", i == 0 ? "[" : " ", t->gradient ? 'g' : 'a',
                               t->chunk, t->micro_batch, t->send ? '>' : '<', t->peer);
    }
    g_string_append(text, "]");
}

/* "F0.1 B0.0 W0.0": kind, chunk, micro-batch. */
static char *table_text(const Timetable *table, gboolean exchanges)
{
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < table->actions->len; i++) {
        const Action *action = action_at(table, i);

        if (action->kind == ACTION_EXCHANGE && !exchanges)
            continue;
        if (text->len > 0)
            g_string_append_c(text, ' ');
        if (action->kind == ACTION_EXCHANGE)
            append_transfers(text, table, action);
        else
            g_string_append_printf(text, "%c%u.%u", "FBW"[action->kind], action -> chunk,
                                   action -> micro_batch);
    }
    return g_string_free(text, FALSE);
}

static void assert_orders(const Schedule *schedule, guint pp, gboolean exchanges,
                          const char *const *orders)
{
    Timetable *tables = timetables_new(schedule, pp);

    for (guint s = 0; s < pp; s++) {
        g_autofree char *text = table_text(&tables[s], exchanges);

        ck_assert_str_eq(text, orders[s]);
    }
    timetables_free(tables, pp);
}

/* ---- small cases, by hand ---- */

/* Narayanan et al. 2021 (arXiv 2104.04473), fig. 4, upper half: pp - stage - 1 forwards, then one
 * forward and one backward in turn. */
START_TEST(one_forward_one_backward_is_the_published_order)
{
    static const char *const orders[] = {
        "F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 B0.3 B0.4 B0.5",
        "F1.0 F1.1 F1.2 B1.0 F1.3 B1.1 F1.4 B1.2 F1.5 B1.3 B1.4 B1.5",
        "F2.0 F2.1 B2.0 F2.2 B2.1 F2.3 B2.2 F2.4 B2.3 F2.5 B2.4 B2.5",
        "F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3 F3.4 B3.4 F3.5 B3.5",
    };
    const Schedule schedule = schedule_of(SCHEDULE_1F1B, 1, 6);

    assert_orders(&schedule, 4, FALSE, orders);
}
END_TEST

START_TEST(gpipe_does_all_forwards_first)
{
    static const char *const orders[] = {
        "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3",
        "F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3",
        "F2.0 F2.1 F2.2 F2.3 B2.0 B2.1 B2.2 B2.3",
    };
    const Schedule schedule = schedule_of(SCHEDULE_GPIPE, 1, 4);

    assert_orders(&schedule, 3, FALSE, orders);
}
END_TEST

/* Two chunks a stage: 2 (pp - stage - 1) + pp forwards, micro-batches in pairs. */
START_TEST(interleaved_is_the_published_order)
{
    static const char *const orders[] = {
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3",
    };
    const Schedule schedule = schedule_of(SCHEDULE_INTERLEAVED, 2, 4);

    assert_orders(&schedule, 2, FALSE, orders);
}
END_TEST

/* Qi et al. 2023 (arXiv 2401.10241), fig. 2, upper half: as 1f1b, and weights of stage s as many
 * micro-batches late. */
START_TEST(zb_h1_is_the_published_order)
{
    static const char *const orders[] = {
        "F0.0 F0.1 F0.2 F0.3 B0.0 W0.0 F0.4 B0.1 W0.1 F0.5 B0.2 W0.2 B0.3 W0.3 B0.4 W0.4 B0.5 W0.5",
        "F1.0 F1.1 F1.2 B1.0 F1.3 B1.1 W1.0 F1.4 B1.2 W1.1 F1.5 B1.3 W1.2 B1.4 W1.3 B1.5 W1.4 W1.5",
        "F2.0 F2.1 B2.0 F2.2 B2.1 F2.3 B2.2 W2.0 F2.4 B2.3 W2.1 F2.5 B2.4 W2.2 B2.5 W2.3 W2.4 W2.5",
        "F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3 W3.0 F3.4 B3.4 W3.1 F3.5 B3.5 W3.2 W3.3 W3.4 W3.5",
    };
    const Schedule schedule = schedule_of(SCHEDULE_ZB_H1, 1, 6);

    assert_orders(&schedule, 4, FALSE, orders);
}
END_TEST

START_TEST(fewer_micro_batches_than_stages_leave_stages_idle)
{
    static const char *const orders[] = {"F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1",
                                         "F2.0 F2.1 B2.0 B2.1", "F3.0 B3.0 F3.1 B3.1"};
    static const char *const alone[] = {"F0.0 B0.0", "F1.0 B1.0", "F2.0 B2.0", "F3.0 B3.0"};
    const Schedule two = schedule_of(SCHEDULE_1F1B, 1, 2), one = schedule_of(SCHEDULE_GPIPE, 1, 1);

    assert_orders(&two, 4, FALSE, orders);
    assert_orders(&one, 4, FALSE, alone);
}
END_TEST

START_TEST(one_stage_has_nothing_to_exchange)
{
    static const char *const orders[] = {"F0.0 B0.0 F0.1 B0.1"};
    const Schedule schedule = schedule_of(SCHEDULE_1F1B, 1, 2);

    assert_orders(&schedule, 1, TRUE, orders);
}
END_TEST

/* Clock by clock: the first stage's third forward ends at 7, when the second's second backward
 * does, so the two transfers are one exchange. */
START_TEST(transfers_that_are_ready_at_the_same_time_are_one_exchange)
{
    static const char *const orders[] = {
        "F0.0 [a0.0>1] F0.1 [a0.1>1] [g0.0<1] B0.0 F0.2 [a0.2>1 g0.1<1] B0.1 [g0.2<1] B0.2",
        "[a1.0<0] [a1.1<0] F1.0 B1.0 [g1.0>0] F1.1 B1.1 [a1.2<0 g1.1>0] F1.2 B1.2 [g1.2>0]",
    };
    const Schedule schedule = schedule_of(SCHEDULE_1F1B, 1, 3);

    assert_orders(&schedule, 2, TRUE, orders);
}
END_TEST

/* With two stages, a chunk's input and its output go to the same neighbour. */
START_TEST(chunks_follow_each_other_around)
{
    static const char *const orders[] = {
        "F0.0 [a0.0>1] [a2.0<1] F2.0 [a2.0>1] [g2.0<1] B2.0 [g2.0>1] [g0.0<1] B0.0",
        "[a1.0<0] F1.0 [a1.0>0] [a3.0<0] F3.0 B3.0 [g3.0>0] [g1.0<0] B1.0 [g1.0>0]",
    };
    const Schedule schedule = schedule_of(SCHEDULE_INTERLEAVED, 2, 1);

    assert_orders(&schedule, 2, TRUE, orders);
}
END_TEST

/* ---- published orders of any size ---- */

/* The nth pass of a stage in one direction; with several chunks, where pp divides m. */
static void append_pass(GString *text, const Schedule *schedule, guint pp, guint stage, char kind,
                        guint n)
{
    const guint v = schedule->virtual_stages, group = n / (pp * v), within = n % (pp * v);
    const guint nth = within / pp;
    const guint chunk = (kind == 'F' ? nth : v - 1 - nth) * pp + stage;

    g_string_append_printf(text, "%s%c%u.%u", text->len == 0 ? "" : " ", kind, chunk,
                           group * pp + within % pp);
}

/* Megatron-LM's order (Narayanan et al. 2021, sec. 2.2): so many forwards, then one of each. */
static char *one_of_each(const Schedule *schedule, guint pp, guint stage)
{
    const guint passes = schedule->virtual_stages * schedule->micro_batches;
    const guint warm_up = schedule->kind == SCHEDULE_1F1B
                              ? pp - stage - 1
                              : 2 * (pp - stage - 1) + (schedule->virtual_stages - 1) * pp;
    GString *text = g_string_new(NULL);
    guint forward = 0;

    while (forward < MIN(warm_up, passes))
        append_pass(text, schedule, pp, stage, 'F', forward++);
    for (guint backward = 0; backward < passes; backward++) {
        if (forward < passes)
            append_pass(text, schedule, pp, stage, 'F', forward++);
        append_pass(text, schedule, pp, stage, 'B', backward);
    }
    return g_string_free(text, FALSE);
}

/* The published order of all actions, or of those up to the first backward. */
static void assert_published(const Schedule *schedule, guint pp, gboolean whole)
{
    Timetable *tables = timetables_new(schedule, pp);

    for (guint s = 0; s < pp; s++) {
        g_autofree char *text = table_text(&tables[s], FALSE);
        g_autofree char *published = one_of_each(schedule, pp, s);

        if (!whole) {
            *strchr(text, 'B') = '\0';
            *strchr(published, 'B') = '\0';
        }
        ck_assert_str_eq(text, published);
    }
    timetables_free(tables, pp);
}

START_TEST(one_forward_one_backward_is_the_published_order_at_all_sizes)
{
    for (guint pp = 1; pp <= 9; pp++)
        for (guint m = 1; m <= 24; m++) {
            const Schedule schedule = schedule_of(SCHEDULE_1F1B, 1, m);

            assert_published(&schedule, pp, TRUE);
        }
}
END_TEST

/* 2 (pp - stage - 1) + (v - 1) pp forwards, and the first of those in turn. */
START_TEST(interleaved_warms_up_as_published_where_stages_divide_the_micro_batches)
{
    for (guint pp = 2; pp <= 9; pp++)
        for (guint groups = 1; groups <= 4; groups++)
            for (guint v = 2; v <= 4; v++) {
                const Schedule schedule = schedule_of(SCHEDULE_INTERLEAVED, v, groups * pp);

                assert_published(&schedule, pp, FALSE);
            }
}
END_TEST

/* ---- time ---- */

typedef struct {
    guint forward, backward, weights;
} Units;

typedef struct {
    const Schedule *schedule;
    guint pp, chunks;
    Units units;
    guint *forward_end, *backward_end; /* by chunk x micro-batch; 0: not yet */
} Replay;

/* When @action can start, whatever its stage does; G_MAXUINT: not known yet. */
static guint ready_at(const Replay *replay, const Action *action)
{
    const guint m = replay->schedule->micro_batches, at = action->chunk * m + action->micro_batch;
    guint end = 1;

    if (action->kind == ACTION_FORWARD && action->chunk > 0)
        end = replay->forward_end[at - m];
    else if (action->kind == ACTION_BACKWARD)
        end = action->chunk + 1 == replay->chunks ? replay->forward_end[at]
                                                  : replay->backward_end[at + m];
    if (end == 0)
        return G_MAXUINT;
    return action->kind == ACTION_BACKWARD || action->chunk > 0 ? end : 0;
}

static guint perform(Replay *replay, const Action *action, guint start)
{
    const guint at = action->chunk * replay->schedule->micro_batches + action->micro_batch;

    if (action->kind == ACTION_FORWARD)
        return replay->forward_end[at] = start + replay->units.forward;
    if (action->kind == ACTION_BACKWARD)
        return replay->backward_end[at] = start + replay->units.backward;
    return start + replay->units.weights;
}

/* Each stage does its actions in order, each as soon as what it needs is there; transfers take no
 * time.  Fails when a stage never gets on. */
static guint makespan(const Schedule *schedule, guint pp, Units units)
{
    Timetable *tables = timetables_new(schedule, pp);
    const gsize ends = (gsize)schedule_chunks(schedule, pp) * schedule->micro_batches;
    g_autofree guint *forward_end = g_new0(guint, ends), *backward_end = g_new0(guint, ends);
    g_autofree guint *next = g_new0(guint, pp), *free_at = g_new0(guint, pp);
    Replay replay = {schedule, pp, schedule_chunks(schedule, pp), units, forward_end, backward_end};
    gboolean moved = TRUE;
    guint last = 0;

    while (moved) {
        moved = FALSE;
        for (guint s = 0; s < pp; s++)
            for (; next[s] < tables[s].actions->len; next[s]++, moved = TRUE) {
                const Action *action = action_at(&tables[s], next[s]);
                const guint ready = action->kind == ACTION_EXCHANGE ? 0 : ready_at(&replay, action);

                if (ready == G_MAXUINT)
                    break;
                if (action->kind != ACTION_EXCHANGE)
                    free_at[s] = perform(&replay, action, MAX(ready, free_at[s]));
                last = MAX(last, free_at[s]);
            }
    }
    for (guint s = 0; s < pp; s++)
        ck_assert_uint_eq(next[s], tables[s].actions->len);
    timetables_free(tables, pp);
    return last;
}

/* m (tf + tb) of work and (pp - 1) (tf + tb) of waiting. */
START_TEST(a_stage_waits_for_pp_less_one_micro_batches)
{
    static const Units units[] = {{1, 2, 0}, {1, 1, 0}, {5, 9, 0}, {2, 1, 0}};

    for (guint u = 0; u < G_N_ELEMENTS(units); u++)
        for (guint pp = 1; pp <= 9; pp++)
            for (guint m = 1; m <= 20; m++) {
                const Schedule gpipe = schedule_of(SCHEDULE_GPIPE, 1, m);
                const Schedule alternating = schedule_of(SCHEDULE_1F1B, 1, m);
                const guint both = units[u].forward + units[u].backward;

                ck_assert_uint_eq(makespan(&gpipe, pp, units[u]), (m + pp - 1) * both);
                ck_assert_uint_eq(makespan(&alternating, pp, units[u]), (m + pp - 1) * both);
            }
}
END_TEST

/* In units of one of a stage's v chunks the work is v m (tf + tb), and the waiting as before: a
 * v-th of the bubble. */
START_TEST(virtual_stages_divide_the_bubble)
{
    const Units units = {1, 2, 0};

    for (guint pp = 2; pp <= 8; pp++)
        for (guint v = 2; v <= 4; v++)
            for (guint m = 1; m <= 24; m++) {
                const Schedule schedule = schedule_of(SCHEDULE_INTERLEAVED, v, m);
                const guint took = makespan(&schedule, pp, units), ideal = 3 * (v * m + pp - 1);

                if (m % pp == 0)
                    ck_assert_uint_eq(took, ideal);
                ck_assert_uint_ge(took, ideal);
                ck_assert_uint_le(took, v * 3 * (m + pp - 1));
            }
}
END_TEST

/* Qi et al. 2023, sec. 3.1: (pp - 1) (tf + tb - tw) is what a stage waits, a third of 1f1b's when
 * all three are equal. */
START_TEST(zb_h1_leaves_a_third_of_the_bubble)
{
    const Units units = {1, 1, 1};

    for (guint pp = 2; pp <= 9; pp++)
        for (guint m = 1; m <= 24; m++) {
            const Schedule schedule = schedule_of(SCHEDULE_ZB_H1, 1, m);
            const guint took = makespan(&schedule, pp, units);

            if (m >= pp)
                ck_assert_uint_eq(took, 3 * m + pp - 1);
            ck_assert_uint_lt(took, 3 * (m + pp - 1));
        }
}
END_TEST

/* ---- micro-batches in flight ---- */

/* Most passes of @stage between a forward and an action of that kind. */
static guint most_in_flight(const Timetable *table, ActionKind until)
{
    guint now = 0, most = 0;

    for (guint i = 0; i < table->actions->len; i++) {
        const ActionKind kind = action_at(table, i)->kind;

        now += kind == ACTION_FORWARD ? 1 : 0;
        most = MAX(most, now);
        now -= kind == until ? 1 : 0;
    }
    return most;
}

static void assert_in_flight(const Schedule *schedule, guint pp, guint stage, guint m)
{
    Timetable *tables = timetables_new(schedule, pp);
    const guint v = schedule->virtual_stages, passes = v * m, behind = pp - stage;
    const guint backward = most_in_flight(&tables[stage], ACTION_BACKWARD);

    switch (schedule->kind) {
    case SCHEDULE_GPIPE:
        ck_assert_uint_eq(backward, m);
        break;
    case SCHEDULE_1F1B:
        ck_assert_uint_eq(backward, MIN(behind, m));
        break;
    case SCHEDULE_ZB_H1:
        ck_assert_uint_eq(backward, MIN(behind, m));
        ck_assert_uint_eq(most_in_flight(&tables[stage], ACTION_WEIGHTS), MIN(pp, m));
        break;
    case SCHEDULE_INTERLEAVED:
    default:
        if (m % pp == 0)
            ck_assert_uint_eq(backward, MIN(2 * (behind - 1) + (v - 1) * pp + 1, passes));
        ck_assert_uint_le(backward, 2 * (behind - 1) + (v - 1) * MIN(pp, m) + 1);
    }
    timetables_free(tables, pp);
}

START_TEST(no_more_micro_batches_are_in_flight_than_published)
{
    for (guint pp = 2; pp <= 8; pp++)
        for (guint m = 1; m <= 20; m++)
            for (guint stage = 0; stage < pp; stage++)
                for (guint k = 0; k < NUM_SCHEDULES; k++) {
                    const gboolean interleaved = k == SCHEDULE_INTERLEAVED;
                    const Schedule schedule =
                        schedule_of((ScheduleKind)k, interleaved ? 2 + m % 3 : 1, m);

                    assert_in_flight(&schedule, pp, stage, m);
                }
}
END_TEST

/* ---- what holds for all ---- */

/* One side of a message. */
typedef struct {
    guint times, stage, peer, action;
} End;

/* All messages of a pipeline, by direction, receiving chunk, micro-batch. */
typedef struct {
    const Schedule *schedule;
    guint pp, chunks;
    Timetable *tables;
    End *sent, *received;
} Pipeline;

static guint message_key(const Pipeline *pipeline, const Transfer *t)
{
    const guint receiver = !t->send ? t->chunk : t->gradient ? t->chunk - 1 : t->chunk + 1;

    return ((t->gradient ? pipeline->chunks : 0) + receiver) * pipeline->schedule->micro_batches +
           t->micro_batch;
}

static Pipeline pipeline_of(const Schedule *schedule, guint pp)
{
    Pipeline pipeline = {schedule, pp,  schedule_chunks(schedule, pp), timetables_new(schedule, pp),
                         NULL,     NULL};
    const guint keys = 2 * pipeline.chunks * schedule->micro_batches;

    pipeline.sent = g_new0(End, keys);
    pipeline.received = g_new0(End, keys);
    for (guint s = 0; s < pp; s++)
        for (guint a = 0; a < pipeline.tables[s].actions->len; a++) {
            const Action *action = action_at(&pipeline.tables[s], a);

            for (guint i = 0; action->kind == ACTION_EXCHANGE && i < action->num_transfers; i++) {
                const Transfer *t = transfer_at(&pipeline.tables[s], action->first_transfer + i);
                End *end =
                    &(t->send ? pipeline.sent : pipeline.received)[message_key(&pipeline, t)];

                *end = (End){end->times + 1, s, t->peer, a};
            }
        }
    return pipeline;
}

static void pipeline_clear(Pipeline *pipeline)
{
    timetables_free(pipeline->tables, pipeline->pp);
    g_free(pipeline->sent);
    g_free(pipeline->received);
}

static char *pipeline_text(const Pipeline *pipeline)
{
    return g_strdup_printf("%s pp %u v %u m %u", schedule_name(pipeline->schedule->kind),
                           pipeline->pp, pipeline->schedule->virtual_stages,
                           pipeline->schedule->micro_batches);
}

/* Where a stage does something: index of the action; G_MAXUINT where it is not done once. */
static guint place_of(const Pipeline *pipeline, ActionKind kind, guint chunk, guint micro_batch)
{
    const Timetable *table = &pipeline->tables[chunk % pipeline->pp];
    guint found = G_MAXUINT, times = 0;

    for (guint a = 0; a < table->actions->len; a++) {
        const Action *action = action_at(table, a);

        if (action->kind != kind || action->chunk != chunk || action->micro_batch != micro_batch)
            continue;
        found = a;
        times++;
    }
    return times == 1 ? found : G_MAXUINT;
}

/* What is passed on: after it is made, before it is used; nothing where both chunks are of one
 * stage. */
static gboolean is_passed_on(const Pipeline *pipeline, ActionKind kind, guint chunk, guint to,
                             guint micro_batch)
{
    const gboolean gradient = kind == ACTION_BACKWARD;
    const Transfer t = {.gradient = gradient, .chunk = to, .micro_batch = micro_batch};
    const End *sent = &pipeline->sent[message_key(pipeline, &t)];
    const End *received = &pipeline->received[message_key(pipeline, &t)];
    const guint from_stage = chunk % pipeline->pp, to_stage = to % pipeline->pp;

    if (from_stage == to_stage)
        return sent->times == 0 && received->times == 0;
    return sent->times == 1 && received->times == 1 && sent->stage == from_stage &&
           sent->peer == to_stage && received->stage == to_stage && received->peer == from_stage &&
           sent->action > place_of(pipeline, kind, chunk, micro_batch) &&
           received->action < place_of(pipeline, kind, to, micro_batch);
}

static gboolean passes_once(const Pipeline *pipeline, guint chunk, guint m)
{
    const guint forward = place_of(pipeline, ACTION_FORWARD, chunk, m);
    const guint backward = place_of(pipeline, ACTION_BACKWARD, chunk, m);
    const guint weights = place_of(pipeline, ACTION_WEIGHTS, chunk, m);
    const gboolean split = pipeline->schedule->kind == SCHEDULE_ZB_H1;

    if (backward == G_MAXUINT || forward >= backward ||
        (split ? weights == G_MAXUINT || backward >= weights : weights != G_MAXUINT))
        return FALSE;
    return (chunk + 1 == pipeline->chunks ||
            is_passed_on(pipeline, ACTION_FORWARD, chunk, chunk + 1, m)) &&
           (chunk == 0 || is_passed_on(pipeline, ACTION_BACKWARD, chunk, chunk - 1, m));
}

static guint num_actions(const Pipeline *pipeline)
{
    guint actions = 0;

    for (guint s = 0; s < pipeline->pp; s++)
        for (guint a = 0; a < pipeline->tables[s].actions->len; a++)
            actions += action_at(&pipeline->tables[s], a)->kind != ACTION_EXCHANGE;
    return actions;
}

/* Whether the other side of each transfer has been reached. */
static gboolean can_complete(const Pipeline *pipeline, guint stage, const Action *action,
                             const guint *next)
{
    const Timetable *table = &pipeline->tables[stage];

    for (guint i = 0; i < action->num_transfers; i++) {
        const Transfer *t = transfer_at(table, action->first_transfer + i);
        const End *other =
            &(t->send ? pipeline->received : pipeline->sent)[message_key(pipeline, t)];

        if (next[other->stage] < other->action)
            return FALSE;
    }
    return TRUE;
}

/* A stage does one action after the other and stays in an exchange until each partner is in it too,
 * or has been. */
static gboolean ends_with_rendezvous(const Pipeline *pipeline)
{
    g_autofree guint *next = g_new0(guint, pipeline->pp);
    gboolean moved = TRUE, ended = TRUE;

    while (moved) {
        moved = FALSE;
        for (guint s = 0; s < pipeline->pp; s++)
            for (; next[s] < pipeline->tables[s].actions->len; next[s]++, moved = TRUE) {
                const Action *action = action_at(&pipeline->tables[s], next[s]);

                if (action->kind == ACTION_EXCHANGE && !can_complete(pipeline, s, action, next))
                    break;
            }
    }
    for (guint s = 0; s < pipeline->pp; s++)
        ended &= next[s] == pipeline->tables[s].actions->len;
    return ended;
}

static void assert_invariants(const Schedule *schedule, guint pp)
{
    Pipeline pipeline = pipeline_of(schedule, pp);
    const guint kinds = schedule->kind == SCHEDULE_ZB_H1 ? 3 : 2;
    g_autofree char *text = pipeline_text(&pipeline);

    ck_assert_msg(num_actions(&pipeline) == kinds * pipeline.chunks * schedule->micro_batches, "%s",
                  text);
    for (guint c = 0; c < pipeline.chunks; c++)
        for (guint m = 0; m < schedule->micro_batches; m++)
            ck_assert_msg(passes_once(&pipeline, c, m), "%s: chunk %u micro-batch %u", text, c, m);
    ck_assert_msg(ends_with_rendezvous(&pipeline), "%s: a circle", text);
    makespan(schedule, pp, (Units){1, 1, 1}); /* no stage waits for ever */
    pipeline_clear(&pipeline);
}

START_TEST(every_pass_happens_once_in_order_and_no_exchange_waits_in_a_circle)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(81 + (guint)_i);

    for (guint i = 0; i < 60; i++) {
        const guint pp = (guint)g_rand_int_range(random, 1, 10);
        const guint m = (guint)g_rand_int_range(random, 1, 34);
        const guint v = _i == SCHEDULE_INTERLEAVED ? (guint)g_rand_int_range(random, 1, 5) : 1;
        const Schedule schedule = schedule_of((ScheduleKind)_i, v, m);

        assert_invariants(&schedule, pp);
    }
}
END_TEST

/* The proof must be able to fail: stages that exchange the same two messages in another order. */
START_TEST(exchanges_that_cross_are_a_circle)
{
    const Schedule schedule = schedule_of(SCHEDULE_1F1B, 1, 2);
    Pipeline pipeline = pipeline_of(&schedule, 2);
    Action *first = &g_array_index(pipeline.tables[1].actions, Action, 0);
    Action *second = &g_array_index(pipeline.tables[1].actions, Action, 1);
    const Action kept = *first;

    ck_assert(ends_with_rendezvous(&pipeline));
    ck_assert_int_eq(second->kind, ACTION_EXCHANGE);
    *first = *second;
    *second = kept;
    for (guint m = 0; m < 2; m++)
        pipeline.received[2 + m].action = 1 - m; /* activations of chunk 1 */
    ck_assert(!ends_with_rendezvous(&pipeline));
    pipeline_clear(&pipeline);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline");
    TCase *tcase = tcase_create("pipeline");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, one_forward_one_backward_is_the_published_order);
    tcase_add_test(tcase, gpipe_does_all_forwards_first);
    tcase_add_test(tcase, interleaved_is_the_published_order);
    tcase_add_test(tcase, zb_h1_is_the_published_order);
    tcase_add_test(tcase, fewer_micro_batches_than_stages_leave_stages_idle);
    tcase_add_test(tcase, one_stage_has_nothing_to_exchange);
    tcase_add_test(tcase, transfers_that_are_ready_at_the_same_time_are_one_exchange);
    tcase_add_test(tcase, chunks_follow_each_other_around);
    tcase_add_test(tcase, one_forward_one_backward_is_the_published_order_at_all_sizes);
    tcase_add_test(tcase, interleaved_warms_up_as_published_where_stages_divide_the_micro_batches);
    tcase_add_test(tcase, a_stage_waits_for_pp_less_one_micro_batches);
    tcase_add_test(tcase, virtual_stages_divide_the_bubble);
    tcase_add_test(tcase, zb_h1_leaves_a_third_of_the_bubble);
    tcase_add_test(tcase, no_more_micro_batches_are_in_flight_than_published);
    tcase_add_loop_test(tcase, every_pass_happens_once_in_order_and_no_exchange_waits_in_a_circle,
                        0, NUM_SCHEDULES);
    tcase_add_test(tcase, exchanges_that_cross_are_a_circle);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
