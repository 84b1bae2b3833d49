/* Run under mpirun with 1 to 4 ranks: bf16 parameters that are rounded from their masters by chance
 * are the same bits in every layout, and train. */
#include "sim/layout/legality.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/mpi_suite.h"

enum { SEQ = 8, BATCH = 24, STEPS = 3 };

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint ranks;
    Model *model;
    Data *data;
} under_test;

typedef struct {
    const char *name;
    Layout layout; /* or none: any number of ranks, all of them shards */
    Strategy strategy;
    gboolean flat;
} Trial;

static const Trial trials[] = {
    {.name = "full_shard", .strategy = STRATEGY_FULL_SHARD},
    {.name = "full_shard, flat", .strategy = STRATEGY_FULL_SHARD, .flat = TRUE},
    {.name = "shard_grad_op", .strategy = STRATEGY_SHARD_GRAD_OP},
    {.name = "shard_optimizer", .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.name = "no_shard", .layout = {.size = {1, 2, 1, 1, 1}}},
    {.name = "hybrid", .layout = {.size = {1, 2, 2, 1, 1}}, .strategy = STRATEGY_FULL_SHARD},
    {.name = "pp", .layout = {.size = {2, 1, 1, 1, 1}}, .strategy = STRATEGY_FULL_SHARD},
    {.name = "pp of shards", .layout = {.size = {2, 1, 2, 1, 1}}, .strategy = STRATEGY_FULL_SHARD},
    {.name = "cp", .layout = {.size = {1, 1, 1, 2, 1}}, .strategy = STRATEGY_FULL_SHARD},
};

static ProgramSpec spec_of(const Trial *of, guint ranks, LayoutParts *parts)
{
    const Layout layout = layout_over(&of->layout, ranks);

    *parts = (LayoutParts){
        .workload = {.global_batch = BATCH,
                     .seq_len = SEQ,
                     .recipe = &recipe_zero,
                     .optimizer = OPTIMIZER_ADAMW},
        .sharding = sharding_default,
    };
    parts->sharding.strategy = of->strategy;
    parts->sharding.form = of->flat ? FORM_FLAT : FORM_PER_PARAMETER;
    const ProgramSpec spec = {
        .model = under_test.model,
        .workload = &parts->workload,
        .layout = layout,
        .sharding = &parts->sharding,
        .schedule = {.micro_batch = BATCH / (guint)layout_data_ranks(&layout) / 2,
                     .micro_batches = 2,
                     .virtual_stages = 1},
        .device = DEVICE_CPU,
        .threads = 1,
    };
    sharding_normalise(&parts->sharding, &spec.layout, &spec.schedule);
    return spec;
}

static LayoutRun *trained(Runtime *runtime, const Trial *of, double lr, gboolean by_chance)
{
    const LayoutTask task = {.data = under_test.data, .seed = 3, .lr = lr, .clip_norm = 1};
    LayoutParts parts;
    const ProgramSpec spec = spec_of(of, runtime_size(runtime), &parts);
    LayoutRun *run = layout_run_new(runtime, &spec, &task);

    if (by_chance)
        parameters_round_by_chance(run->interpreter, under_test.model, task.seed);
    layout_train_to(run, STEPS);
    layout_drain(run);
    return run;
}

/* Parameters and losses of this process alone. */
static float *one_rank(const Trial *of, double lr, gboolean by_chance, double losses[STEPS])
{
    g_autoptr(Runtime) runtime = case_runtime_alone();
    g_autoptr(LayoutRun) run = trained(runtime, of, lr, by_chance);
    gboolean equal = TRUE;

    memcpy(losses, run->loss, STEPS * sizeof *losses);
    return layout_gather(run, LAYOUT_PARAMETER, &equal);
}

/* A rate of 0 leaves the masters as they are drawn, so that parameters are roundings of the same
 * values everywhere: no bit may differ, neither from one rank's nor among ranks that hold the same.
 */
START_TEST(parameters_are_those_of_one_rank_to_the_bit)
{
    const gsize bytes = model_parameters(under_test.model) * sizeof(float);
    double losses[STEPS];
    gboolean ok = TRUE;

    for (guint t = 0; t < G_N_ELEMENTS(trials); t++) {
        const Trial *of = &trials[t];
        gboolean equal = TRUE;

        if (!layout_is_of(&of->layout, under_test.ranks))
            continue;
        g_autofree float *want = one_rank(of, 0, TRUE, losses);
        g_autofree float *nearest = one_rank(of, 0, FALSE, losses);
        g_autoptr(LayoutRun) run = trained(under_test.runtime, of, 0, TRUE);
        g_autofree float *got = layout_gather(run, LAYOUT_PARAMETER, &equal);
        if (got != NULL && !(equal && memcmp(got, want, bytes) == 0))
            ok = mpi_complain(under_test.runtime, of->name, "parameters have other bits");
        ok &= memcmp(want, nearest, bytes) != 0;
    }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* Near one rank's, as with rounding to nearest: gradients are sums of other parts. */
START_TEST(losses_are_near_those_of_one_rank)
{
    gboolean ok = TRUE;

    for (guint t = 0; t < G_N_ELEMENTS(trials); t++) {
        const Trial *of = &trials[t];
        double want[STEPS];

        if (!layout_is_of(&of->layout, under_test.ranks))
            continue;
        g_autofree float *parameters = one_rank(of, 0.003, TRUE, want);
        g_autoptr(LayoutRun) run = trained(under_test.runtime, of, 0.003, TRUE);
        for (guint i = 0; i < STEPS; i++)
            if (!(fabs(run->loss[i] - want[i]) <= 1e-3 * want[i]))
                ok = mpi_complain(under_test.runtime, of->name, "loss of step %u is %.9g, not %.9g",
                                  i + 1, run->loss[i], want[i]);
    }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* Parts of a whole of @rows x @columns: each element that is not padding has its number, once. */
START_TEST(parts_number_their_elements_as_the_whole)
{
    enum { ROWS = 7, COLUMNS = 10, NUMBERS = 1000 };
    const gboolean by_columns = _i % 2 == 1;
    const guint parts = 1 + (guint)_i / 2;
    const guint chunk = ((by_columns ? COLUMNS : ROWS) + parts - 1) / parts;
    const TensorSplit split = {.split = by_columns ? SPLIT_COLUMNS : SPLIT_ROWS,
                               .rows = ROWS,
                               .cols = COLUMNS,
                               .chunk = chunk,
                               .parts = parts,
                               .copies = 1};
    const guint width = by_columns ? chunk : COLUMNS, height = by_columns ? ROWS : chunk;

    for (guint part = 0; part < parts; part++) {
        const RoundingNumbers n = parameters_rounding(&split, part, NUMBERS);

        for (guint row = 0; row < height; row++)
            for (guint column = 0; column < width; column++) {
                const guint64 e = row * width + column;
                const guint64 number =
                    n.first + (n.columns == 0 ? e : e / n.columns * n.stride + e % n.columns);
                const guint global_row = row + (by_columns ? 0 : part * chunk);
                const guint global_column = column + (by_columns ? part * chunk : 0);

                if (global_row < ROWS && global_column < COLUMNS)
                    ck_assert_uint_eq(number, NUMBERS + global_row * COLUMNS + global_column);
            }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rounding by chance");
    TCase *tcase = tcase_create("layouts");

    mpi_suite_start();
    under_test.model = layout_model(&(LayoutShape){
        .hidden = 8, .layers = 4, .heads = 4, .kv_heads = 2, .ffn = 50, .tied = TRUE});
    under_test.data = layout_data_new(&layout_ascii, under_test.model->vocab, SEQ);
    under_test.runtime = case_runtime("mpi", 0);
    under_test.ranks = runtime_size(under_test.runtime);
    tcase_add_test(tcase, parameters_are_those_of_one_rank_to_the_bit);
    tcase_add_test(tcase, losses_are_near_those_of_one_rank);
    tcase_add_loop_test(tcase, parts_number_their_elements_as_the_whole, 0, 8);
    suite_add_tcase(suite, tcase);
    const int failed = mpi_suite_run(under_test.runtime, suite);
    runtime_close(under_test.runtime);
    data_free(under_test.data);
    model_free(under_test.model);
    MPI_Finalize();
    return failed;
}
