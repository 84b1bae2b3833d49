#include "sim/formula.h"
#include "sim/layout/pipeline.h"
#include "tests/sim/spec_case.h"

#include <math.h>

/* ---- the bubble, against timetables run on clocks ---- */

enum { NEVER = G_MAXUINT };

/* When each chunk's pass over each micro-batch ends, in forwards of a chunk. */
typedef struct {
    const Schedule *schedule;
    guint pp, chunks;
    guint *forward_end, *backward_end;
} Ends;

static guint *end_of(const Ends *ends, ActionKind kind, guint chunk, guint micro_batch)
{
    guint *all = kind == ACTION_FORWARD ? ends->forward_end : ends->backward_end;

    return &all[chunk * ends->schedule->micro_batches + micro_batch];
}

/* When what an action needs is there; NEVER while it is not known yet. */
static guint ready_at(const Ends *ends, const Action *action)
{
    if (action->kind == ACTION_WEIGHTS)
        return 0; /* on this stage, before it in order */
    if (action->kind == ACTION_FORWARD)
        return action->chunk == 0
                   ? 0
                   : *end_of(ends, ACTION_FORWARD, action->chunk - 1, action->micro_batch);
    return action->chunk + 1 == ends->chunks
               ? *end_of(ends, ACTION_FORWARD, action->chunk, action->micro_batch)
               : *end_of(ends, ACTION_BACKWARD, action->chunk + 1, action->micro_batch);
}

/* Runs a stage as far as it gets; returns how many actions were left before. */
static guint advance(Ends *ends, const GArray *actions, guint *next, guint *free_at)
{
    const gboolean split = ends->schedule->kind == SCHEDULE_ZB_H1;
    const guint left = actions->len - *next;

    for (; *next < actions->len; (*next)++) {
        const Action *action = &g_array_index(actions, Action, *next);
        const guint takes = action->kind == ACTION_BACKWARD && !split ? 2 : 1;

        if (action->kind == ACTION_EXCHANGE)
            continue;
        if (ready_at(ends, action) == NEVER)
            break;
        *free_at = MAX(*free_at, ready_at(ends, action)) + takes;
        if (action->kind != ACTION_WEIGHTS)
            *end_of(ends, action->kind, action->chunk, action->micro_batch) = *free_at;
    }
    return left;
}

/* The share of the step in which a stage waits. */
static double bubble_on_clocks(const Schedule *schedule, guint pp)
{
    const guint chunks = schedule_chunks(schedule, pp);
    const gsize passes = (gsize)chunks * schedule->micro_batches;
    g_autofree guint *forward_end = g_new(guint, passes), *backward_end = g_new(guint, passes);
    g_autofree guint *next = g_new0(guint, pp), *free_at = g_new0(guint, pp);
    Ends ends = {schedule, pp, chunks, forward_end, backward_end};
    Timetable *timetables = timetables_new(schedule, pp);
    guint left = 1, step = 0;

    memset(forward_end, 0xff, passes * sizeof *forward_end);
    memset(backward_end, 0xff, passes * sizeof *backward_end);
    while (left > 0) {
        left = 0;
        for (guint s = 0; s < pp; s++)
            left += advance(&ends, timetables[s].actions, &next[s], &free_at[s]);
    }
    for (guint s = 0; s < pp; s++)
        step = MAX(step, free_at[s]);
    timetables_free(timetables, pp);
    return 1 - 3.0 * schedule_virtual_stages(schedule) * schedule->micro_batches / step;
}

/* Those of one chunk a stage and whole backward passes are exact; the others are ideals. */
START_TEST(bubbles_are_those_of_the_timetables_or_a_little_less)
{
    const ScheduleKind kind = (ScheduleKind)_i;
    const gboolean exact = kind == SCHEDULE_GPIPE || kind == SCHEDULE_1F1B;

    for (guint pp = 2; pp <= 6; pp++)
        for (guint m = 1; m <= 24; m++) {
            const Schedule schedule = {.micro_batch = 1,
                                       .micro_batches = m,
                                       .kind = kind,
                                       .virtual_stages = kind == SCHEDULE_INTERLEAVED ? 3 : 1};
            const double formula = formula_bubble(&schedule, pp);
            const double clocks = bubble_on_clocks(&schedule, pp);

            if (exact)
                ck_assert_double_eq_tol(formula, clocks, 1e-12);
            ck_assert_double_ge(clocks, formula - 1e-12);
            if (kind == SCHEDULE_ZB_H1)
                ck_assert_double_le(clocks, (pp - 1.0) / (m + pp - 1) + 1e-12);
        }
}
END_TEST

START_TEST(a_bubble_is_told_with_its_numbers)
{
    const Schedule plain = {.micro_batches = 16, .kind = SCHEDULE_1F1B};
    const Schedule twice = {.micro_batches = 16, .kind = SCHEDULE_INTERLEAVED, .virtual_stages = 2};
    const Schedule split = {.micro_batches = 16, .kind = SCHEDULE_ZB_H1};
    g_autofree char *plain_text = formula_bubble_text(&plain, 4);
    g_autofree char *twice_text = formula_bubble_text(&twice, 4);
    g_autofree char *split_text = formula_bubble_text(&split, 4);

    ck_assert_str_eq(plain_text, "(p - 1) / (m + p - 1) = 3 / (16 + 3)");
    ck_assert_str_eq(twice_text, "(p - 1) / (v m + p - 1) = 3 / (2 x 16 + 3)");
    ck_assert_str_eq(split_text, "(p - 1) / (3 m + p - 1) = 3 / (3 x 16 + 3)");
    ck_assert_double_eq_tol(formula_bubble(&plain, 4), 3.0 / 19, 1e-12);
    ck_assert_double_eq_tol(formula_bubble(&twice, 4), 3.0 / 35, 1e-12);
    ck_assert_double_eq_tol(formula_bubble(&split, 4), 3.0 / 51, 1e-12);
    ck_assert_double_eq(formula_bubble(&plain, 1), 0);
}
END_TEST

/* ---- state and volume, against programs ---- */

static Plan plan_of(const Case *from)
{
    return (Plan){
        .model = from->model,
        .workload = from->workload,
        .layout = from->layout,
        .sharding = from->sharding,
        .schedule = from->schedule,
        .sequence_parallel = from->sequence_parallel,
        .context = from->context,
    };
}

static void check_received(const Plan *plan, const Program *program, guint stage)
{
    guint64 all[NUM_VOLUMES], sum[NUM_VOLUMES] = {0}, handed[NUM_VOLUMES];

    program_volume(program, all);
    for (guint g = 0; g < program->groups->len; g++) {
        const char *purpose = g_array_index(program->groups, GroupRef, g).purpose;
        guint64 some[NUM_VOLUMES];

        program_purpose_volume(program, purpose, some);
        for (guint v = 0; v < NUM_VOLUMES; v++)
            sum[v] += some[v];
    }
    for (guint v = 0; v < NUM_VOLUMES; v++)
        ck_assert_uint_eq(sum[v], all[v]);
    program_purpose_volume(program, "pp", handed);
    ck_assert_uint_eq(handed[VOLUME_EXCHANGE], plan->layout.size[AXIS_PP] == 1
                                                   ? 0
                                                   : formula_handed_bytes(plan) *
                                                         plan->schedule.micro_batches *
                                                         formula_neighbours(plan, stage));
}

/* Rows of half a matrix, of all heads' keys too, are multiples of 60: over its divisors nothing is
 * padded. */
static const CaseShape even_shape = {
    .vocab = 480, .hidden = 240, .ffn = 480, .layers = 6, .heads = 4, .kv_heads = 2};

START_TEST(state_and_exchanges_are_those_of_the_programs)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(4100 + (guint32)_i);
    CaseShape shape = even_shape;
    guint staged = 0;

    shape.tied = _i % 2 == 1;
    g_autoptr(Model) model = case_model(&shape);
    for (guint i = 0; i < 60; i++) {
        const Case made = case_random_4d(random, model);
        const Plan plan = plan_of(&made);
        g_autofree char *text = case_text(&made);
        const guint d = layout_shard_ranks(&made.layout);

        if (60 % d != 0)
            continue;
        g_autoptr(ProgramSet) set = case_compile(&made);
        for (guint s = 0; s < set->num_classes; s++) {
            const double formula = formula_state_bytes(&plan, set->classes[s]);

            ck_assert_msg(fabs(formula - (double)bytes_of_state(set->classes[s])) < 1,
                          "%s: stage %u: %.1f, %" G_GUINT64_FORMAT, text, s, formula,
                          bytes_of_state(set->classes[s]));
            check_received(&plan, set->classes[s], s);
        }
        staged += set->num_classes > 1;
    }
    ck_assert_uint_ge(staged, 10);
}
END_TEST

/* By hand: a block has 4 matrices of attention (of keys and values half as wide), 3 of the MLP, 2
 * norms. */
START_TEST(parameters_of_a_stage_are_its_layers_and_its_ends)
{
    enum { C = 240, F = 480, V = 480, BLOCK_MATRICES = 3 * C * C + 3 * C * F };
    g_autoptr(Model) model = case_model(&even_shape);
    Case made = case_of(model, 1, 2, 4);

    made.layout.size[AXIS_PP] = 3;
    made.layout.size[AXIS_TP] = 2;
    g_autoptr(ProgramSet) set = case_compile(&made);
    const guint64 blocks = 2 * (BLOCK_MATRICES / 2 + 2 * C);
    ck_assert_uint_eq(formula_parameters(set->classes[0]), blocks + V / 2 * C);
    ck_assert_uint_eq(formula_parameters(set->classes[1]), blocks);
    ck_assert_uint_eq(formula_parameters(set->classes[2]), blocks + V / 2 * C + C);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("formulas");
    TCase *tcase = tcase_create("formulas");

    tcase_add_loop_test(tcase, bubbles_are_those_of_the_timetables_or_a_little_less, 0,
                        NUM_SCHEDULES);
    tcase_add_test(tcase, a_bubble_is_told_with_its_numbers);
    tcase_add_loop_test(tcase, state_and_exchanges_are_those_of_the_programs, 0, 4);
    tcase_add_test(tcase, parameters_of_a_stage_are_its_layers_and_its_ends);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
