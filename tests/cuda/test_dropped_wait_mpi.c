/* Run under mpirun with 2 ranks, on the simulated device only: a program that lacks one of its
 * waits races, and the checked build says so under any schedule. */
#include "tests/cuda/train_case.h"
#include "tests/cudasim/cudasim.h"

static TrainTest under_test;

static const TrainLayout layout = {
    .name = "full_shard", .layout = {{1, 1, 2, 1, 1}}, .strategy = STRATEGY_FULL_SHARD};
static const TrainLayout offloaded = {.name = "full_shard, all in the host",
                                      .layout = {{1, 1, 2, 1, 1}},
                                      .strategy = STRATEGY_FULL_SHARD,
                                      .offload = {TIER_HOST, TIER_HOST}};

static OpKind kind_of(const Program *program, guint call, guint op)
{
    const Call *of = &g_array_index(program->step.calls, Call, call);
    const Segment *segment = program_segment(program, of->segment);

    return segment->ops[op == LAST_OP ? segment->num_ops - 1 : op].kind;
}

/* Whether the dropped wait is the one: of a reduction for what computes its gradients, or of an
 * update for the copy of what it updates. */
static gboolean is_to_drop(OpKind waits, OpKind waited_for, gboolean of_copy)
{
    if (of_copy)
        return waits == OP_ADAMW && waited_for == OP_COPY;
    return waits == OP_REDUCE_SCATTER && !op_kind_is_communication(waited_for);
}

/* The first of its kind happens never. */
static gboolean drop_wait(Program *program, gboolean of_copy)
{
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);

        for (guint w = call->first_wait; w < call->first_wait + call->num_waits; w++) {
            Wait *wait = &g_array_index(program->step.waits, Wait, w);

            if (!is_to_drop(kind_of(program, c, wait->before),
                            kind_of(program, wait->call, wait->op), of_copy))
                continue;
            wait->before = G_MAXUINT;
            return TRUE;
        }
    }
    return FALSE;
}

/* Whether something is reported, or the loss of the second step is another. */
static gboolean is_found(const TrainLayout *of, gboolean dropped)
{
    const LayoutTask task = train_task(&under_test);
    TrainParts parts;
    const ProgramSpec spec = train_spec(&under_test, of, DEVICE_CUDA, &parts);
    g_autoptr(LayoutRun) run = layout_run_new(under_test.runtime, &spec, &task);
    const guint reports = cudasim_all_reports();
    double want[TRAIN_STEPS];
    gint64 found = 0;
    g_autoptr(GError) error = NULL;

    if (dropped)
        g_assert(drop_wait(run->set->classes[0], of == &offloaded));
    while (run->steps < 2)
        layout_step(run, FALSE);
    layout_drain(run);
    train_reference(&under_test, FALSE, want);
    for (guint i = 0; i < run->steps; i++)
        found |= !(fabs(run->loss[i] - want[i]) <= 1e-5 * fabs(want[i]));
    found |= cudasim_all_reports() > reports;
    gboolean ok = runtime_agree_max(under_test.runtime, &found, &error);
    g_assert_no_error(error);
    return ok && found != 0;
}

START_TEST(a_program_without_one_of_its_waits_is_found)
{
    const TrainLayout *of = _i == 0 ? &layout : &offloaded;

    cudasim_expect_reports();
    ck_assert(!is_found(of, FALSE));
    const gboolean found = is_found(of, TRUE);
#ifdef CUDASIM_CHECK
    ck_assert(found);
#else
    if (under_test.rank == 0)
        printf("the schedule %s the missing wait\n", found ? "shows" : "hides");
#endif
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("a dropped wait");
    TCase *tcase = tcase_create("waits");

    tcase_add_loop_test(tcase, a_program_without_one_of_its_waits_is_found, 0, 2);
    suite_add_tcase(suite, tcase);
    return train_suite_run(&under_test, suite);
}
