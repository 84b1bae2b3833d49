/* Tensor parallelism is the same training: losses and norms equal one rank's, bytes are those of
 * the program.  Under mpirun with 1 to 4 ranks; those that a tp can be made of run. */
#include "sim/layout/legality.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/mpi_suite.h"

#include <math.h>
#include <stdio.h>

enum { BATCH = 8, SEQ = 6, STEPS = LAYOUT_STEPS };

static struct {
    Runtime *runtime;
    guint rank, ranks;
    Data *data;
} under_test;

typedef enum { STYLE_LLAMA, STYLE_GPT2, STYLE_STARCODER2, NUM_STYLES } Style;

/* 4 query heads on 1 or 2 kv heads (GPT-2: 4): a tp of 4 shares keys and values.  257 and 250 don't
 * divide.  StarCoder 2 has the biases of GPT-2 and the shared keys of Llama. */
static char *make_config(Style style, guint kv_heads, gboolean tied)
{
    if (style == STYLE_GPT2)
        return g_strdup_printf("{\"model_type\": \"gpt2\", \"n_embd\": 16, \"n_layer\": 2, "
                               "\"n_head\": 4, \"n_inner\": 250, \"vocab_size\": 257, "
                               "\"n_positions\": 7, \"tie_word_embeddings\": %s, "
                               "\"initializer_range\": 0.15}",
                               tied ? "true" : "false");
    return g_strdup_printf(
        "{\"model_type\": \"%s\", \"hidden_act\": \"%s\","
        " \"max_position_embeddings\": 64, \"hidden_size\": 16,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": %u,"
        " \"head_dim\": 4, \"intermediate_size\": 250, \"vocab_size\": 257,"
        " \"tie_word_embeddings\": %s, \"initializer_range\": 0.15}",
        style == STYLE_LLAMA ? "llama" : "starcoder2",
        style == STYLE_LLAMA ? "silu" : "gelu_pytorch_tanh", kv_heads, tied ? "true" : "false");
}

static Model *make_model(Style style, guint kv_heads, gboolean tied)
{
    g_autofree char *config = make_config(style, kv_heads, tied);
    g_autoptr(GError) error = NULL;
    Model *model = model_parse(config, "config", "uneven", &error);

    g_assert_no_error(error);
    return model;
}

/* One layout; all ranks of the job take part. */
typedef struct {
    Style style;
    guint tp, kv_heads, micro_batches;
    gboolean sequence, tied, replicated;
    Strategy strategy;
    Form form;
    Recompute recompute;
    const Recipe *recipe;
    double tolerance;
} Trial;

typedef struct {
    Model *model;
    Workload workload;
    Sharding sharding;
    ProgramSpec spec;
} Parts;

static void make_spec(Parts *parts, const Trial *trial, guint ranks)
{
    const guint tp = ranks == 1 ? 1 : trial->tp, data_ranks = ranks / tp;

    parts->model = make_model(trial->style, trial->kv_heads, trial->tied);
    parts->workload = (Workload){
        .global_batch = BATCH, .seq_len = SEQ, .recipe = trial->recipe, .optimizer = OPTIMIZER_SGD};
    parts->sharding = sharding_default;
    parts->sharding.strategy = trial->strategy;
    parts->sharding.form = trial->form;
    parts->spec = (ProgramSpec){
        .model = parts->model,
        .workload = &parts->workload,
        .layout = {.size = {1, trial->replicated ? data_ranks : 1,
                            trial->replicated ? 1 : data_ranks, 1, tp}},
        .sharding = &parts->sharding,
        .schedule = {.micro_batch = BATCH / data_ranks / trial->micro_batches,
                     .micro_batches = trial->micro_batches,
                     .recompute = trial->recompute},
        .sequence_parallel = trial->sequence,
        .device = DEVICE_CPU,
        .threads = 1,
    };
    sharding_normalise(&parts->sharding, &parts->spec.layout, &parts->spec.schedule);
}

static LayoutRun *train(Runtime *runtime, const Parts *parts, gboolean *volume_ok)
{
    const LayoutTask task = {.data = under_test.data, .seed = 3, .lr = 0.1};
    LayoutRun *run = layout_run_new(runtime, &parts->spec, &task);
    guint64 before[NUM_VOLUMES], after[NUM_VOLUMES], planned[NUM_VOLUMES];

    while (run->steps < STEPS) {
        layout_drain(run);
        runtime_bytes_in(runtime, before);
        layout_step(run, FALSE);
    }
    layout_drain(run);
    runtime_bytes_in(runtime, after);
    program_volume(interpreter_program(run->interpreter), planned);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        *volume_ok &= after[v] - before[v] == planned[v];
    return run;
}

static gboolean is_close(double got, double expected, double tolerance)
{
    return fabs(got - expected) <= tolerance * fabs(expected);
}

static gboolean same_training(const LayoutRun *run, const LayoutRun *one, const Trial *trial)
{
    for (guint i = 0; i < STEPS; i++) {
        if (is_close(run->loss[i], one->loss[i], trial->tolerance) &&
            is_close(run->norm[i], one->norm[i], 10 * trial->tolerance))
            continue;
        fprintf(stderr,
                "rank %u: style %u, tp %u of %u ranks, %s %s, kv heads %u, sequence %d, step %u: "
                "loss %.9g, "
                "one rank's %.9g; norm %.9g, %.9g\n",
                under_test.rank, trial->style, trial->tp, under_test.ranks,
                strategy_name(trial->strategy), form_name(trial->form), trial->kv_heads,
                trial->sequence, i + 1, run->loss[i], one->loss[i], run->norm[i], one->norm[i]);
        return FALSE;
    }
    return TRUE;
}

/* Every rank makes the one-rank run for itself. */
static void assert_same(const Trial *trial)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Runtime) self = case_runtime_alone();
    Parts parts, one_parts;
    gboolean volume_ok = TRUE;

    make_spec(&parts, trial, under_test.ranks);
    make_spec(&one_parts, trial, 1);
    {
        g_autoptr(LayoutRun) run = train(under_test.runtime, &parts, &volume_ok);
        g_autoptr(LayoutRun) one = train(self, &one_parts, &volume_ok);
        gint64 failed = !same_training(run, one, trial) || !volume_ok;

        ck_assert(runtime_agree_max(under_test.runtime, &failed, &error));
        ck_assert_msg(failed == 0, "a rank says why on stderr (bytes as planned: %d)", volume_ok);
    }
    model_free(parts.model);
    model_free(one_parts.model);
}

static const struct {
    Strategy strategy;
    gboolean replicated;
} strategies[] = {
    {STRATEGY_NO_SHARD, TRUE},
    {STRATEGY_SHARD_OPTIMIZER, FALSE},
    {STRATEGY_SHARD_GRAD_OP, FALSE},
    {STRATEGY_FULL_SHARD, FALSE},
};

static gboolean is_possible(guint tp)
{
    return tp > 1 && tp <= 4 && under_test.ranks % tp == 0 && 4 % tp == 0;
}

/* Each style and strategy with each tp; the other choices change from one to the next. */
START_TEST(losses_equal_one_ranks_in_fp32)
{
    guint turn = (guint)_i;

    for (guint tp = 2; tp <= 4; tp *= 2) {
        for (guint sequence = 0; is_possible(tp) && sequence < 2; sequence++, turn++) {
            const Trial trial = {
                .style = (Style)(_i / (int)G_N_ELEMENTS(strategies)),
                .tp = tp,
                .kv_heads = 1 + turn % 2,
                .micro_batches = 1 + turn / 2 % 2,
                .sequence = sequence != 0,
                .tied = turn % 3 == 0,
                .strategy = strategies[_i % (int)G_N_ELEMENTS(strategies)].strategy,
                .replicated = strategies[_i % (int)G_N_ELEMENTS(strategies)].replicated,
                .form = turn % 2 == 0 ? FORM_PER_PARAMETER : FORM_FLAT,
                .recompute = turn / 2 % 2 == 0 ? RECOMPUTE_NONE : RECOMPUTE_FULL,
                .recipe = &recipe_fp32,
                .tolerance = 1e-5,
            };

            assert_same(&trial);
        }
    }
}
END_TEST

/* In bf16 partial sums are rounded where one rank's product is not. */
START_TEST(losses_are_near_one_ranks_in_bf16)
{
    for (guint tp = 2; tp <= 4; tp *= 2) {
        const Trial trial = {.style = (Style)(_i / 2),
                             .tp = tp,
                             .kv_heads = 2,
                             .micro_batches = 2,
                             .sequence = _i % 2 != 0,
                             .strategy = STRATEGY_FULL_SHARD,
                             .recipe = _i % 2 == 0 ? &recipe_zero : &recipe_fsdp2,
                             .tolerance = 1e-2};

        if (is_possible(tp))
            assert_same(&trial);
    }
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("tensor_parallel_mpi");
    TCase *tcase = tcase_create("tensor_parallel_mpi");

    tcase_add_loop_test(tcase, losses_equal_one_ranks_in_fp32, 0,
                        NUM_STYLES * (int)G_N_ELEMENTS(strategies));
    tcase_add_loop_test(tcase, losses_are_near_one_ranks_in_bf16, 0, 2 * NUM_STYLES);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    mpi_suite_start();
    under_test.runtime = case_runtime("mpi", 0);
    under_test.rank = runtime_rank(under_test.runtime);
    under_test.ranks = runtime_size(under_test.runtime);
    under_test.data = layout_data_new(&layout_ascii, 257, SEQ);
    if (under_test.rank == 0 && !is_possible(2) && !is_possible(4))
        printf("SKIP: %u ranks make no tp of 2 or 4\n", under_test.ranks);
    const int failed = mpi_suite_run(under_test.runtime, make_suite());
    data_free(under_test.data);
    runtime_close(under_test.runtime);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
