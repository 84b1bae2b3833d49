/* Run under mpirun with 1, 2 or 4 ranks: on the CUDA device, joined by MPI through pinned memory,
 * every strategy and axis trains as one rank does on the CPU, moves the bytes that its program says
 * and touches the memory that was planned. */
#include "tests/cuda/train_case.h"

static TrainTest under_test;

static const TrainLayout layouts[] = {
    {.name = "plain", .ranks = 1, .layout = {{1, 1, 1, 1, 1}}},
    {.name = "plain bf16",
     .ranks = 1,
     .layout = {{1, 1, 1, 1, 1}},
     .micro_batches = 2,
     .bf16 = TRUE},
    {.name = "recompute", .ranks = 1, .layout = {{1, 1, 1, 1, 1}}, .recompute = RECOMPUTE_FULL},

    {.name = "no_shard", .ranks = 2, .layout = {{1, 2, 1, 1, 1}}},
    {.name = "shard_optimizer",
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.name = "shard_grad_op",
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_SHARD_GRAD_OP,
     .micro_batches = 2,
     .recompute = RECOMPUTE_SELECTIVE},
    {.name = "full_shard",
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .recompute = RECOMPUTE_FULL},
    {.name = "full_shard flat bf16",
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .micro_batches = 2,
     .flat = TRUE,
     .unsharded = TRUE,
     .bf16 = TRUE},
    {.name = "tp", .ranks = 2, .layout = {{1, 1, 1, 1, 2}}},
    {.name = "tp sequence bf16",
     .ranks = 2,
     .layout = {{1, 1, 1, 1, 2}},
     .sequence = TRUE,
     .bf16 = TRUE},
    {.name = "pp 1f1b", .ranks = 2, .layout = {{2, 1, 1, 1, 1}}, .micro_batches = 4},
    {.name = "pp zb_h1",
     .ranks = 2,
     .layout = {{2, 1, 1, 1, 1}},
     .micro_batches = 4,
     .schedule = SCHEDULE_ZB_H1},
    {.name = "cp ring", .ranks = 2, .layout = {{1, 1, 1, 2, 1}}, .strategy = STRATEGY_FULL_SHARD},
    {.name = "cp all_gather bf16",
     .ranks = 2,
     .layout = {{1, 1, 1, 2, 1}},
     .context = CONTEXT_ALL_GATHER,
     .bf16 = TRUE},

    {.name = "full_shard of 4",
     .ranks = 4,
     .layout = {{1, 1, 4, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD},
    {.name = "hybrid_shard",
     .ranks = 4,
     .layout = {{1, 2, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .bf16 = TRUE},
    {.name = "shard_optimizer, tp sequence",
     .ranks = 4,
     .layout = {{1, 1, 2, 1, 2}},
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
    {.name = "pp interleaved, cp ring",
     .ranks = 4,
     .layout = {{2, 1, 1, 2, 1}},
     .strategy = STRATEGY_SHARD_GRAD_OP,
     .micro_batches = 2,
     .schedule = SCHEDULE_INTERLEAVED,
     .virtual_stages = 2},
};

static gboolean say(const TrainLayout *of, const char *problem)
{
    fprintf(stderr, "rank %u: %s: %s\n", under_test.rank, of->name, problem);
    return FALSE;
}

static gboolean is_fine(const TrainLayout *of, char *problem)
{
    g_autofree char *owned = problem;

    return owned == NULL || say(of, owned);
}

static gboolean losses_are_near(const TrainLayout *of, const LayoutRun *run, const double *want)
{
    const double tolerance = of->bf16 ? 1e-2 : 1e-5;

    for (guint i = 0; i < TRAIN_STEPS; i++)
        if (!(fabs(run->loss[i] - want[i]) <= tolerance * fabs(want[i]))) {
            g_autofree char *text =
                g_strdup_printf("loss of step %u is %.9g, on the CPU %.9g: off by %.2g", i + 1,
                                run->loss[i], want[i], fabs(run->loss[i] / want[i] - 1));
            return say(of, text);
        }
    return TRUE;
}

static gboolean trains_as_the_cpu(const TrainLayout *of)
{
    const LayoutTask task = train_task(&under_test);
    TrainParts parts;
    const ProgramSpec spec = train_spec(&under_test, of, DEVICE_CUDA, &parts);
    g_autoptr(LayoutRun) run = layout_run_new(under_test.runtime, &spec, &task);
    double want[TRAIN_STEPS];
    gboolean ok = TRUE;

    layout_step(run, FALSE); /* and a step whose prefetch comes from the one before */
    while (run->steps < TRAIN_STEPS)
        ok &= is_fine(of, layout_counted_step(run, run->steps == 1));
    ok &= is_fine(of, layout_memory_problem(run));
    train_reference(&under_test, of->bf16, want);
    return losses_are_near(of, run, want) && ok;
}

START_TEST(layouts_train_on_the_device_as_one_rank_on_the_cpu)
{
    const char *only = g_getenv("LAYOUT");
    g_autoptr(GError) error = NULL;
    gint64 failed = 0;

    for (guint i = 0; i < G_N_ELEMENTS(layouts); i++)
        if (layouts[i].ranks == under_test.ranks &&
            (only == NULL || strcmp(only, layouts[i].name) == 0))
            failed += trains_as_the_cpu(&layouts[i]) ? 0 : 1;
    ck_assert(runtime_agree_max(under_test.runtime, &failed, &error));
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training on CUDA");
    TCase *tcase = tcase_create("layouts");

    tcase_add_test(tcase, layouts_train_on_the_device_as_one_rank_on_the_cpu);
    suite_add_tcase(suite, tcase);
    return train_suite_run(&under_test, suite);
}
