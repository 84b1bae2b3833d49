/* Small trainings on the CUDA device, in layouts that a table names, beside one rank's on the CPU.
 */
#pragma once

#include "exec/cuda/plug_in.h"
#include "sim/layout/legality.h"
#include "tests/exec/layout_case.h"
#include "tests/suite.h"

#include <mpi.h>
#include <stdio.h>

enum { TRAIN_SEQ = 8, TRAIN_BATCH = 4, TRAIN_STEPS = 3 };

typedef struct {
    const char *name;
    guint ranks;
    Layout layout;
    Strategy strategy;
    guint micro_batches; /* 0 = 1 */
    ScheduleKind schedule;
    guint virtual_stages;
    ContextKind context;
    Recompute recompute;
    gboolean sequence, flat, unsharded, bf16;
    gboolean fp32_gradients, fp32_reductions; /* beside bf16 */
    Offload offload;
    gboolean codes;    /* gathers fp8 */
    gboolean as_graph; /* one of those that graphs are tried with */
    gboolean gpt2;     /* LayerNorm, biases, GELU, positions, one matrix for words in and out */
} TrainLayout;

static const char train_gpt2_config[] =
    "{\"model_type\": \"gpt2\", \"activation_function\": \"gelu_new\", \"n_embd\": 16,"
    " \"n_layer\": 4, \"n_head\": 2, \"n_inner\": 24, \"n_positions\": 64, \"vocab_size\": 256,"
    " \"initializer_range\": 0.15}";

typedef struct {
    Model *model, *gpt2;
    Data *data;
    Runtime *runtime; /* on the CUDA device */
    guint rank, ranks;
} TrainTest;

/* Joined by MPI, with NCCL in the environment by NCCL beside it. */
static inline RuntimeOptions train_mpi_options(void)
{
    const char *local_rank = g_getenv("OMPI_COMM_WORLD_LOCAL_RANK");

    return (RuntimeOptions){
        .transport = "mpi",
        .threads = 1,
        .device = DEVICE_CUDA,
        .plug_in = &fsdp_cuda_plug_in,
        .local_rank = local_rank == NULL ? 0 : (guint)atoi(local_rank),
        .nccl = g_getenv("NCCL") != NULL,
    };
}

static inline void train_test_open(TrainTest *test, const RuntimeOptions *options)
{
    const LayoutText text = {.seed = 7, .bytes = 1024, .first = 32, .count = 95};
    g_autoptr(GError) error = NULL;

    test->model = layout_model(&(LayoutShape){
        .hidden = 16, .layers = 4, .heads = 2, .kv_heads = 2, .ffn = 24, .vocab = 256});
    test->gpt2 = model_parse(train_gpt2_config, "config", "tiny-gpt2", &error);
    g_assert_no_error(error);
    test->data = layout_data_new(&text, test->model->vocab, TRAIN_SEQ);
    test->runtime = runtime_open(options, &error);
    g_assert_no_error(error);
    test->rank = runtime_rank(test->runtime);
    test->ranks = runtime_size(test->runtime);
}

static inline void train_test_close(TrainTest *test)
{
    runtime_close(test->runtime);
    data_free(test->data);
    model_free(test->gpt2);
    model_free(test->model);
}

static inline const Recipe *train_recipe(const TrainLayout *of)
{
    if (!of->bf16)
        return &recipe_fp32;
    return recipe_with_gradients(&recipe_zero, of->fp32_gradients ? DTYPE_FP32 : DTYPE_BF16,
                                 of->fp32_reductions ? DTYPE_FP32 : DTYPE_BF16);
}

static inline ProgramSpec train_spec(const TrainTest *test, const TrainLayout *of,
                                     DeviceKind device, LayoutParts *parts)
{
    const guint data_ranks = (guint)layout_data_ranks(&of->layout);
    const guint micro_batches = MAX(of->micro_batches, 1);

    *parts = (LayoutParts){
        .workload = {.global_batch = TRAIN_BATCH,
                     .seq_len = TRAIN_SEQ,
                     .recipe = train_recipe(of),
                     .optimizer = OPTIMIZER_ADAMW},
        .sharding = sharding_default,
    };
    parts->sharding.strategy = of->strategy;
    parts->sharding.form = of->flat ? FORM_FLAT : FORM_PER_PARAMETER;
    parts->sharding.accumulate_sharded = !of->unsharded;
    parts->sharding.offload = of->offload;
    parts->sharding.gather_fp8 = of->codes;
    const ProgramSpec spec = {
        .model = of->gpt2 ? test->gpt2 : test->model,
        .workload = &parts->workload,
        .layout = of->layout,
        .sharding = &parts->sharding,
        .schedule = {.micro_batch = TRAIN_BATCH / (data_ranks * micro_batches),
                     .micro_batches = micro_batches,
                     .recompute = of->recompute,
                     .kind = of->schedule,
                     .virtual_stages = MAX(of->virtual_stages, 1)},
        .sequence_parallel = of->sequence,
        .context = of->context,
        .device = device,
        .threads = 1,
    };
    sharding_normalise(&parts->sharding, &spec.layout, &spec.schedule);
    return spec;
}

static inline LayoutTask train_task(const TrainTest *test)
{
    return (LayoutTask){.data = test->data, .seed = 3, .lr = 0.003, .clip_norm = 1.0};
}

/* Losses of one rank on the CPU in the precision of @of: nothing split, nothing sharded. */
static inline void train_reference(const TrainTest *test, const TrainLayout *of,
                                   double loss[TRAIN_STEPS])
{
    const TrainLayout plain = {.layout = {.size = {1, 1, 1, 1, 1}},
                               .strategy = of->codes ? STRATEGY_FULL_SHARD : STRATEGY_NO_SHARD,
                               .bf16 = of->bf16,
                               .fp32_gradients = of->fp32_gradients,
                               .fp32_reductions = of->fp32_reductions,
                               .codes = of->codes,
                               .gpt2 = of->gpt2};
    const LayoutTask task = train_task(test);
    LayoutParts parts;
    const ProgramSpec spec = train_spec(test, &plain, DEVICE_CPU, &parts);
    g_autoptr(Runtime) runtime = case_runtime_alone();
    g_autoptr(LayoutRun) run = layout_run_new(runtime, &spec, &task);

    layout_train_to(run, TRAIN_STEPS);
    memcpy(loss, run->loss, TRAIN_STEPS * sizeof *loss);
}

/* A program of MPI's: two threads, one after the other; runs the suite (taken) in this process,
 * rank 0 prints.  The exit status of main(). */
static inline int train_suite_run(TrainTest *test, Suite *suite)
{
    int provided = 0;

    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    g_assert(provided >= MPI_THREAD_SERIALIZED);
    const RuntimeOptions options = train_mpi_options();
    train_test_open(test, &options);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, test->rank == 0 ? CK_NORMAL : CK_SILENT);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    train_test_close(test);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
