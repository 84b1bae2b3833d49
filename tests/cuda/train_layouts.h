/* Every strategy and axis, in layouts of 1, 2 and 4 ranks: each trains as one rank does on the CPU,
 * moves the bytes that its program says and touches the memory that was planned. */
#pragma once

#include "tests/cuda/train_case.h"

static const TrainLayout train_layouts[] = {
    {.name = "plain", .ranks = 1, .layout = {{1, 1, 1, 1, 1}}},
    {.name = "plain bf16",
     .as_graph = TRUE,
     .ranks = 1,
     .layout = {{1, 1, 1, 1, 1}},
     .micro_batches = 2,
     .bf16 = TRUE},
    {.name = "optimizer in the host",
     .as_graph = TRUE,
     .ranks = 1,
     .layout = {{1, 1, 1, 1, 1}},
     .bf16 = TRUE,
     .offload = {.optimizer = TIER_HOST}},
    {.name = "recompute", .ranks = 1, .layout = {{1, 1, 1, 1, 1}}, .recompute = RECOMPUTE_FULL},
    {.name = "gpt2", .ranks = 1, .layout = {{1, 1, 1, 1, 1}}, .micro_batches = 2, .gpt2 = TRUE},
    {.name = "gpt2 bf16", .ranks = 1, .layout = {{1, 1, 1, 1, 1}}, .bf16 = TRUE, .gpt2 = TRUE},

    {.name = "no_shard", .ranks = 2, .layout = {{1, 2, 1, 1, 1}}},
    {.name = "shard_optimizer",
     .as_graph = TRUE,
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
     .as_graph = TRUE,
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .recompute = RECOMPUTE_FULL},
    {.name = "full_shard codes bf16",
     .as_graph = TRUE,
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .micro_batches = 2,
     .recompute = RECOMPUTE_FULL,
     .bf16 = TRUE,
     .codes = TRUE},
    {.name = "full_shard flat bf16",
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .micro_batches = 2,
     .flat = TRUE,
     .unsharded = TRUE,
     .bf16 = TRUE,
     .fp32_reductions = TRUE},
    {.name = "full_shard, bf16 reductions, fp32 gradients",
     .as_graph = TRUE,
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .micro_batches = 2,
     .bf16 = TRUE,
     .fp32_gradients = TRUE},
    {.name = "full_shard, all in the host",
     .as_graph = TRUE,
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .micro_batches = 2,
     .offload = {TIER_HOST, TIER_HOST}},
    {.name = "full_shard, all in files",
     .ranks = 2,
     .layout = {{1, 1, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .bf16 = TRUE,
     .offload = {TIER_NVME, TIER_NVME}},
    {.name = "tp", .ranks = 2, .layout = {{1, 1, 1, 1, 2}}},
    {.name = "tp sequence bf16",
     .as_graph = TRUE,
     .ranks = 2,
     .layout = {{1, 1, 1, 1, 2}},
     .sequence = TRUE,
     .bf16 = TRUE},
    {.name = "pp 1f1b", .ranks = 2, .layout = {{2, 1, 1, 1, 1}}, .micro_batches = 4},
    {.name = "pp zb_h1",
     .as_graph = TRUE,
     .ranks = 2,
     .layout = {{2, 1, 1, 1, 1}},
     .micro_batches = 4,
     .schedule = SCHEDULE_ZB_H1},
    {.name = "gpt2, pp",
     .ranks = 2,
     .layout = {{2, 1, 1, 1, 1}},
     .micro_batches = 2,
     .bf16 = TRUE,
     .gpt2 = TRUE},
    {.name = "gpt2, tp sequence",
     .ranks = 2,
     .layout = {{1, 1, 1, 1, 2}},
     .sequence = TRUE,
     .gpt2 = TRUE},
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
     .as_graph = TRUE,
     .ranks = 4,
     .layout = {{1, 2, 2, 1, 1}},
     .strategy = STRATEGY_FULL_SHARD,
     .bf16 = TRUE},
    {.name = "codes, tp sequence",
     .ranks = 4,
     .layout = {{1, 1, 2, 1, 2}},
     .strategy = STRATEGY_FULL_SHARD,
     .sequence = TRUE,
     .codes = TRUE},
    {.name = "codes, pp",
     .ranks = 4,
     .layout = {{2, 1, 2, 1, 1}},
     .strategy = STRATEGY_SHARD_GRAD_OP,
     .micro_batches = 2,
     .codes = TRUE},
    {.name = "shard_optimizer, tp sequence",
     .ranks = 4,
     .layout = {{1, 1, 2, 1, 2}},
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
    {.name = "pp interleaved, cp ring",
     .as_graph = TRUE,
     .ranks = 4,
     .layout = {{2, 1, 1, 2, 1}},
     .strategy = STRATEGY_SHARD_GRAD_OP,
     .micro_batches = 2,
     .schedule = SCHEDULE_INTERLEAVED,
     .virtual_stages = 2},
};

static inline gboolean train_say(const TrainTest *test, const TrainLayout *of, const char *problem)
{
    fprintf(stderr, "rank %u: %s: %s\n", test->rank, of->name, problem);
    return FALSE;
}

static inline gboolean train_is_fine(const TrainTest *test, const TrainLayout *of, char *problem)
{
    g_autofree char *owned = problem;

    return owned == NULL || train_say(test, of, owned);
}

static inline gboolean train_losses_are_near(const TrainTest *test, const TrainLayout *of,
                                             const LayoutRun *run, const double *want)
{
    const double tolerance = of->bf16 ? 1e-2 : 1e-5;

    for (guint i = 0; i < TRAIN_STEPS; i++)
        if (!(fabs(run->loss[i] - want[i]) <= tolerance * fabs(want[i]))) {
            g_autofree char *text =
                g_strdup_printf("loss of step %u is %.9g, on the CPU %.9g: off by %.2g", i + 1,
                                run->loss[i], want[i], fabs(run->loss[i] / want[i] - 1));
            return train_say(test, of, text);
        }
    return TRUE;
}

static inline gboolean trains_as_the_cpu(const TrainTest *test, const TrainLayout *of)
{
    const LayoutTask task = train_task(test);
    LayoutParts parts;
    const ProgramSpec spec = train_spec(test, of, DEVICE_CUDA, &parts);
    const InterpreterOptions options = {.nvme_folder = "/var/tmp"};
    g_autoptr(LayoutRun) run = layout_run_new_with(test->runtime, &spec, &task, &options);
    double want[TRAIN_STEPS];
    gboolean ok = TRUE;

    layout_step(run, FALSE); /* and a step whose prefetch comes from the one before */
    while (run->steps < TRAIN_STEPS)
        ok &= train_is_fine(test, of, layout_counted_step(run, run->steps == 1));
    ok &= train_is_fine(test, of, layout_memory_problem(run));
    train_reference(test, of, want);
    return train_losses_are_near(test, of, run, want) && ok;
}

/* Of this job's size.  LAYOUT in the environment: that one alone. */
static inline gboolean train_layout_is_wanted(const TrainTest *test, const TrainLayout *of)
{
    const char *only = g_getenv("LAYOUT");

    return of->ranks == test->ranks && (only == NULL || strcmp(only, of->name) == 0);
}

/* How many fail, on this rank. */
static inline gint64 train_all_layouts(const TrainTest *test)
{
    gint64 failed = 0;

    for (guint i = 0; i < G_N_ELEMENTS(train_layouts); i++)
        if (train_layout_is_wanted(test, &train_layouts[i]))
            failed += trains_as_the_cpu(test, &train_layouts[i]) ? 0 : 1;
    return failed;
}
