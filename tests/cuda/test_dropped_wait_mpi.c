/* Run under mpirun with 2 ranks, on the simulated device only: a program that lacks one of its
 * waits races, and the checked build says so under any schedule. */
#include "tests/cuda/train_case.h"
#include "tests/cudasim/cudasim.h"

static TrainTest under_test;

static const TrainLayout layout = {
    .name = "full_shard", .layout = {{1, 1, 2, 1, 1}}, .strategy = STRATEGY_FULL_SHARD};

static OpKind kind_of(const Program *program, guint call, guint op)
{
    const Call *of = &g_array_index(program->step.calls, Call, call);
    const Segment *segment = program_segment(program, of->segment);

    return segment->ops[op == LAST_OP ? segment->num_ops - 1 : op].kind;
}

/* The first wait of a reduction for what computes its gradients happens never. */
static gboolean drop_wait(Program *program)
{
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Call *call = &g_array_index(program->step.calls, Call, c);

        for (guint w = call->first_wait; w < call->first_wait + call->num_waits; w++) {
            Wait *wait = &g_array_index(program->step.waits, Wait, w);

            if (kind_of(program, c, wait->before) != OP_REDUCE_SCATTER ||
                op_kind_is_communication(kind_of(program, wait->call, wait->op)))
                continue;
            wait->before = G_MAXUINT;
            return TRUE;
        }
    }
    return FALSE;
}

/* Whether something is reported, or the loss of the second step is another. */
static gboolean is_found(gboolean dropped)
{
    const LayoutTask task = train_task(&under_test);
    TrainParts parts;
    const ProgramSpec spec = train_spec(&under_test, &layout, DEVICE_CUDA, &parts);
    g_autoptr(LayoutRun) run = layout_run_new(under_test.runtime, &spec, &task);
    double want[TRAIN_STEPS];
    gint64 found = 0;
    g_autoptr(GError) error = NULL;

    if (dropped)
        g_assert(drop_wait(run->set->classes[0]));
    while (run->steps < 2)
        layout_step(run, FALSE);
    layout_drain(run);
    train_reference(&under_test, &(TrainLayout){.bf16 = FALSE}, want);
    for (guint i = 0; i < run->steps; i++)
        found |= !(fabs(run->loss[i] - want[i]) <= 1e-5 * fabs(want[i]));
    found |= cudasim_all_reports() > 0;
    gboolean ok = runtime_agree_max(under_test.runtime, &found, &error);
    g_assert_no_error(error);
    return ok && found != 0;
}

START_TEST(a_program_without_one_of_its_waits_is_found)
{
    cudasim_expect_reports();
    ck_assert(!is_found(FALSE));
    const gboolean found = is_found(TRUE);
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

    tcase_add_test(tcase, a_program_without_one_of_its_waits_is_found);
    suite_add_tcase(suite, tcase);
    return train_suite_run(&under_test, suite);
}
