/* Run under mpirun with 1 to 8 ranks: layouts of all axes, schedules and strategies give one rank's
 * training, move the bytes that their programs say, touch the memory that was planned, are proven,
 * and have the same bits with random delays and without overlap.  LAYOUTS bounds their number
 * (default 8, which leaves some pairs to other numbers of ranks; "all": until every pair of
 * features that can meet has met). */
#include "tests/exec/layout_4d.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/mpi_suite.h"

#include "sim/program/check.h"

#include <stdio.h>
#include <stdlib.h>

enum { NUM_TRAININGS = G_N_ELEMENTS(wide_trainings) };

static const char gpt2_config[] =
    "{\"model_type\": \"gpt2\", \"activation_function\": \"gelu_new\", \"n_embd\": 16,"
    " \"n_head\": 4, \"n_inner\": 250, \"n_layer\": 4, \"n_positions\": 64, \"vocab_size\": 257,"
    " \"layer_norm_epsilon\": 1e-5, \"initializer_range\": 0.15}";

enum { NUM_MODELS = 3 };

typedef struct {
    gboolean made;
    double loss[LAYOUT_STEPS], norm[LAYOUT_STEPS];
} Reference;

static struct {
    Runtime *runtime;
    guint rank, ranks;
    Model *models[NUM_MODELS];
    Data *data;
    Reference references[NUM_MODELS][NUM_TRAININGS]; /* at rank 0 */
} under_test;

static LayoutTask task_of(guint training)
{
    return (LayoutTask){.data = under_test.data,
                        .seed = 3,
                        .lr = wide_trainings[training].lr,
                        .clip_norm = wide_trainings[training].clip_norm};
}

/* The same training on one rank: nothing split, nothing sharded. */
static const Reference *reference_of(const Wide *wide)
{
    const guint model = wide->level[WIDE_MODEL], training = wide->level[WIDE_TRAINING];
    const LayoutTask task = task_of(training);
    const Wide plain = {.level = {[WIDE_MODEL] = model, [WIDE_TRAINING] = training}};
    Reference *reference = &under_test.references[model][training];
    LayoutParts parts;
    ProgramSpec spec;

    if (reference->made)
        return reference;
    g_autoptr(Runtime) runtime = case_runtime_alone();
    g_assert(wide_spec(&plain, 1, under_test.models[model], &parts, &spec));
    g_autoptr(LayoutRun) run = layout_run_new(runtime, &spec, &task);
    layout_train_to(run, LAYOUT_STEPS);
    layout_drain(run);
    memcpy(reference->loss, run->loss, sizeof run->loss);
    memcpy(reference->norm, run->norm, sizeof run->norm);
    reference->made = TRUE;
    return reference;
}

static gboolean curve_is_near(const char *what, const char *name, const double *got,
                              const double *want, double tolerance)
{
    for (guint i = 0; i < LAYOUT_STEPS; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * fabs(want[i])))
            return mpi_complain(under_test.runtime, what,
                                "%s of step %u is %.9g, one rank's %.9g: off by %.2g", name, i + 1,
                                got[i], want[i], fabs(got[i] / want[i] - 1));
    return TRUE;
}

/* Every element that several ranks keep, both copies of a tied embedding among them, has the same
 * bits on all of them.  Parts of a tensor-parallel group are not put together here. */
static gboolean copies_are_equal(const char *what, LayoutRun *run)
{
    gboolean equal = TRUE;

    if (run->spec.layout.size[AXIS_TP] > 1)
        return TRUE;
    g_autofree float *whole = layout_gather(run, LAYOUT_PARAMETER, &equal);
    return equal ||
           mpi_complain(under_test.runtime, what, "ranks hold other bits of the same parameter");
}

static gboolean is_proven(const char *what, const ProgramSet *set)
{
    g_autoptr(GPtrArray) problems = program_set_check(set, 0);

    return problems->len == 0 || mpi_complain(under_test.runtime, what, "check: %s",
                                              (const char *)g_ptr_array_index(problems, 0));
}

/* In check mode, with delays, and without any overlap: no fault is found and no bit changes. */
static gboolean changes_no_bit(const char *what, const ProgramSpec *spec, const LayoutTask *task,
                               const LayoutRun *run)
{
    enum { STEPS = 2 };
    const InterpreterOptions modes[] = {
        {.check = TRUE, .seed = run->steps + spec->schedule.micro_batch}, {.no_overlap = TRUE}};
    gboolean ok = TRUE;

    for (guint m = 0; m < G_N_ELEMENTS(modes); m++) {
        g_autoptr(LayoutRun) other = layout_run_new_with(under_test.runtime, spec, task, &modes[m]);

        layout_train_to(other, STEPS);
        layout_drain(other);
        if (memcmp(other->loss, run->loss, STEPS * sizeof *run->loss) != 0 ||
            memcmp(other->norm, run->norm, STEPS * sizeof *run->norm) != 0)
            ok = mpi_complain(under_test.runtime, what, "%s: losses or norms have other bits",
                              modes[m].check ? "check mode" : "no overlap");
    }
    return ok;
}

static gboolean layout_holds(const Wide *wide)
{
    const guint training = wide->level[WIDE_TRAINING];
    const LayoutTask task = task_of(training);
    LayoutParts parts;
    ProgramSpec spec;

    g_assert(wide_spec(wide, under_test.ranks, under_test.models[wide->level[WIDE_MODEL]], &parts,
                       &spec));
    g_autofree char *what = wide_text(wide, &spec);
    g_autoptr(LayoutRun) run = layout_run_new(under_test.runtime, &spec, &task);
    gboolean ok = under_test.rank != 0 || is_proven(what, run->set);

    while (run->steps < LAYOUT_STEPS)
        ok &= mpi_is_fine(under_test.runtime, what, layout_counted_step(run, run->steps == 4));
    ok &= mpi_is_fine(under_test.runtime, what, layout_memory_problem(run));
    ok &= copies_are_equal(what, run);
    ok &= changes_no_bit(what, &spec, &task, run);
    const Reference *one = under_test.rank == 0 ? reference_of(wide) : NULL;
    if (one != NULL)
        ok &= curve_is_near(what, "loss", run->loss, one->loss,
                            wide_trainings[training].loss_tolerance) &&
              curve_is_near(what, "gradient norm", run->norm, one->norm,
                            wide_trainings[training].norm_tolerance);
    return ok;
}

static guint most_layouts(void)
{
    const char *layouts = g_getenv("LAYOUTS");

    if (layouts == NULL)
        return 8;
    return strcmp(layouts, "all") == 0 ? G_MAXUINT : (guint)strtoul(layouts, NULL, 10);
}

START_TEST(layouts_of_all_axes_train_as_one_rank_does)
{
    g_autoptr(Pairs) pairs = pairs_new(NUM_WIDE, WIDE_MOST_LEVELS);
    g_autoptr(GRand) random = g_rand_new_with_seed(under_test.ranks);
    g_autoptr(GError) error = NULL;
    const guint most = most_layouts();
    gint64 failed = 0;
    guint tried = 0;
    Wide wide;

    for (; tried < most &&
           wide_draw(pairs, random, under_test.ranks, under_test.models, NUM_MODELS, &wide);
         tried++)
        failed += layout_holds(&wide) ? 0 : 1;
    ck_assert(runtime_agree_max(under_test.runtime, &failed, &error));
    if (under_test.rank == 0)
        printf("%u layouts of %u ranks\n", tried, under_test.ranks);
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("layouts of all axes");
    TCase *tcase = tcase_create("layouts");

    tcase_add_test(tcase, layouts_of_all_axes_train_as_one_rank_does);
    suite_add_tcase(suite, tcase);
    return suite;
}

/* Llama-shaped with GQA 4:1, tied and not; GPT-2-shaped; dimensions that nothing divides. */
static void make_models(void)
{
    LayoutShape llama = {.hidden = 16, .layers = 4, .heads = 4, .kv_heads = 1, .ffn = 250};
    g_autoptr(GError) error = NULL;

    under_test.models[1] = layout_model(&llama);
    llama.tied = TRUE;
    under_test.models[0] = layout_model(&llama);
    under_test.models[2] = model_parse(gpt2_config, "config", "uneven", &error);
    g_assert_no_error(error);
}

int main(void)
{
    mpi_suite_start();
    make_models();
    under_test.data = layout_data_new(&layout_ascii, under_test.models[0]->vocab, WIDE_SEQ);
    under_test.runtime = case_runtime("mpi", 0);
    under_test.rank = runtime_rank(under_test.runtime);
    under_test.ranks = runtime_size(under_test.runtime);
    const int failed = mpi_suite_run(under_test.runtime, make_suite());
    for (guint i = 0; i < NUM_MODELS; i++)
        model_free(under_test.models[i]);
    data_free(under_test.data);
    runtime_close(under_test.runtime);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
