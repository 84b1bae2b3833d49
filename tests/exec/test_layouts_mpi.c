/* Run under mpirun with 1 to 4 ranks: every way to lay out a training gives one rank's training,
 * moves the bytes that its program says, and touches the memory that its plan says. */
#include "tests/exec/layout_case.h"
#include "tests/exec/layout_choices.h"
#include "tests/exec/mpi_suite.h"

#include "sim/program/place.h"

#include <stdio.h>

#define NVME_FOLDER "/var/tmp" /* on a disk, unlike /tmp on some machines */

enum { NUM_MODELS = G_N_ELEMENTS(choice_models), NUM_TRAININGS = G_N_ELEMENTS(choice_trainings) };

/* What one rank's run of a training gave; at rank 0 only. */
typedef struct {
    double loss[LAYOUT_STEPS], norm[LAYOUT_STEPS];
    float *gradient, *parameter; /* of step 1; at the end */
} Reference;

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint rank, ranks;
    guint turn;                /* differs between windows and rings */
    Model *models[NUM_MODELS]; /* choice_models */
    Data *data;
    Reference references[NUM_MODELS][NUM_TRAININGS];
} under_test;

static Model *gpt2_model(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *config =
        g_strdup_printf("{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": %d, \"n_head\": 4,"
                        " \"n_inner\": 22, \"vocab_size\": 257, \"n_positions\": 7,"
                        " \"initializer_range\": 0.15}",
                        CHOICE_LAYERS);
    Model *model = model_parse(config, "config", "uneven", &error);

    g_assert_no_error(error);
    return model;
}

/* Of choice_models.  One kv head of 2 columns: K and V have fewer rows than 3 ranks.  257 divides
 * by none, 22 by 2 alone. */
static Model *make_model(guint model_index)
{
    const LayoutShape llama = {.hidden = 8,
                               .layers = CHOICE_LAYERS,
                               .heads = 4,
                               .kv_heads = 1,
                               .ffn = 22,
                               .tied = model_index == 0};

    return model_index < 2 ? layout_model(&llama) : gpt2_model();
}

/* ---- one rank ---- */

static LayoutTask task_of(guint training)
{
    return (LayoutTask){
        .data = under_test.data,
        .seed = 3,
        .lr = choice_trainings[training].lr,
        .clip_norm = choice_trainings[training].clip_norm,
    };
}

static Reference make_reference(guint model, guint training)
{
    const LayoutTask task = task_of(training);
    const gboolean sharded =
        choice_trainings[training].recipe->stored != choice_trainings[training].recipe->compute;
    const Choices choices = {
        .level = {[FACTOR_MESH] = sharded ? 3 : 0, [FACTOR_TRAINING] = training}};
    g_autoptr(Runtime) runtime = case_runtime_alone();
    Reference reference;
    LayoutParts parts;
    gboolean equal = TRUE;
    const ProgramSpec spec = choice_spec(&choices, 1, under_test.models[model], &parts);
    g_autoptr(LayoutRun) run = layout_run_new(runtime, &spec, &task);

    layout_step(run, FALSE);
    reference.gradient = layout_gather(run, LAYOUT_GRADIENT, &equal);
    layout_train_to(run, LAYOUT_STEPS);
    layout_drain(run);
    reference.parameter = layout_gather(run, LAYOUT_PARAMETER, &equal);
    g_assert(equal);
    layout_forget_key_biases(run, reference.gradient);
    layout_forget_key_biases(run, reference.parameter);
    memcpy(reference.loss, run->loss, sizeof run->loss);
    memcpy(reference.norm, run->norm, sizeof run->norm);
    return reference;
}

static const Reference *reference_of(const Choices *choices)
{
    const guint model = choices->level[FACTOR_MODEL], training = choices->level[FACTOR_TRAINING];
    Reference *reference = &under_test.references[model][training];

    if (reference->parameter == NULL)
        *reference = make_reference(model, training);
    return reference;
}

/* ---- what must hold of a run ---- */

typedef struct {
    Choices choices;
    char *what;
    double loss_tolerance, tolerance;
    LayoutParts parts;
    LayoutRun *run;
    float *gradient, *parameter; /* as of a reference; at rank 0 */
    Offload offload;
    gboolean check, ok;
} Trial;

static void trial_clear(Trial *trial)
{
    g_free(trial->what);
    g_free(trial->gradient);
    g_free(trial->parameter);
    layout_run_free(trial->run);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Trial, trial_clear)

static gboolean curve_is_near(const Trial *trial, const char *name, const double *got,
                              const double *want, double tolerance)
{
    for (guint i = 0; i < LAYOUT_STEPS; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * fabs(want[i])))
            return mpi_complain(under_test.runtime, trial->what,
                                "%s of step %u is %.9g, one rank's %.9g: off by %.2g", name, i + 1,
                                got[i], want[i], fabs(got[i] / want[i] - 1));
    return TRUE;
}

/* Distance of the two as vectors, relative to the length of @want. */
static gboolean tensor_is_near(const Trial *trial, const char *name, const float *got,
                               const float *want)
{
    const guint64 elements = model_parameters(trial->run->spec.model);
    double distance = 0, length = 0;

    for (guint64 i = 0; i < elements; i++) {
        const double difference = (double)got[i] - (double)want[i];

        distance += difference * difference;
        length += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(distance / length) <= trial->tolerance))
        return mpi_complain(under_test.runtime, trial->what, "%s off by %.2g", name,
                            sqrt(distance / length));
    return TRUE;
}

/* At rank 0. */
static gboolean equals_one_rank(const Trial *trial)
{
    const Reference *one = reference_of(&trial->choices);

    return curve_is_near(trial, "loss", trial->run->loss, one->loss, trial->loss_tolerance) &&
           curve_is_near(trial, "gradient norm", trial->run->norm, one->norm, trial->tolerance) &&
           tensor_is_near(trial, "gradients of step 1", trial->gradient, one->gradient) &&
           tensor_is_near(trial, "final parameters", trial->parameter, one->parameter);
}

/* Losses and norms have the same bits on every rank. */
static gboolean ranks_agree(const Trial *trial)
{
    const LayoutRun *run = trial->run;
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    g_autoptr(GError) error = NULL;
    double own[2 * LAYOUT_STEPS];

    memcpy(own, run->loss, sizeof run->loss);
    memcpy(own + LAYOUT_STEPS, run->norm, sizeof run->norm);
    if (!runtime_gather(under_test.runtime, own, sizeof own, all, &error))
        return mpi_complain(under_test.runtime, trial->what, "%s", error->message);
    for (guint r = 1; r < all->len; r++)
        if (!g_bytes_equal(all->pdata[0], all->pdata[r]))
            return mpi_complain(under_test.runtime, trial->what,
                                "rank %u has other losses or norms", r);
    return TRUE;
}

static gboolean step_moves_its_volume(Trial *trial)
{
    return mpi_is_fine(under_test.runtime, trial->what,
                       layout_counted_step(trial->run, trial->run->steps == 4));
}

static gboolean memory_is_used(Trial *trial)
{
    return mpi_is_fine(under_test.runtime, trial->what, layout_memory_problem(trial->run));
}

/* Elements of a copy of a unit's tensor that belong to no parameter. */
static gboolean tail_is_zero(const Trial *trial, const UnitRef *ref, LayoutTensor which)
{
    const LayoutRun *run = trial->run;
    const Program *program = interpreter_program(run->interpreter);
    const UnitClass *unit = program_unit(program, ref->unit_class);
    const guint index = (guint)layout_unit_tensor(unit, which);
    const Tensor *tensor = program_tensor(program, index);
    const void *data = interpreter_tensor(run->interpreter, index, ref->index);
    g_autofree gboolean *real = g_new0(gboolean, tensor->elements);

    for (guint p = 0; p < unit->map->num_params; p++) {
        const LayoutRange range = layout_range(run, unit, p, which);

        for (guint64 i = 0; i < range.elements; i++)
            real[range.offset + i] = TRUE;
    }
    for (guint64 i = 0; i < tensor->elements; i++)
        if (!real[i] && float_bits(layout_value(tensor, data, i)) != 0)
            return mpi_complain(under_test.runtime, trial->what,
                                "%s: padding at %" G_GUINT64_FORMAT " is %g", tensor->name, i,
                                (double)layout_value(tensor, data, i));
    return TRUE;
}

/* Of what lives between steps and is updated; a gradient's padding is whatever was reduced. */
static gboolean tails_are_zero(const Trial *trial)
{
    static const LayoutTensor kept[] = {LAYOUT_PARAMETER, LAYOUT_MASTER, LAYOUT_MOMENT1,
                                        LAYOUT_MOMENT2};
    const Program *program = interpreter_program(trial->run->interpreter);

    for (guint u = 0; u < program->unit_refs->len; u++) {
        const UnitRef *ref = program_unit_ref(program, u);
        const UnitClass *unit = program_unit(program, ref->unit_class);

        for (guint i = 0; i < G_N_ELEMENTS(kept); i++)
            if (layout_unit_tensor(unit, kept[i]) != NO_TENSOR &&
                !tail_is_zero(trial, ref, kept[i]))
                return FALSE;
    }
    return TRUE;
}

/* Every element that several ranks keep has the same bits on all of them. */
static gboolean replicas_are_equal(Trial *trial)
{
    gboolean equal = TRUE;

    for (guint t = 0; t < NUM_LAYOUT_TENSORS; t++) {
        float *whole = layout_gather(trial->run, (LayoutTensor)t, &equal);

        if (t == LAYOUT_PARAMETER)
            trial->parameter = whole;
        else
            g_free(whole);
        if (!equal)
            return mpi_complain(under_test.runtime, trial->what,
                                "replicas differ in tensor %u of their units", t);
    }
    return TRUE;
}

/* ---- a trial ---- */

static void trial_train(Trial *trial, const Choices *choices)
{
    const guint training = choices->level[FACTOR_TRAINING];
    const LayoutTask task = task_of(training);
    const InterpreterOptions options = {
        .check = trial->check, .seed = 1, .nvme_folder = NVME_FOLDER};
    const ProgramSpec spec = choice_spec(
        choices, under_test.ranks, under_test.models[choices->level[FACTOR_MODEL]], &trial->parts);
    gboolean equal = TRUE;

    trial->choices = *choices;
    trial->what = choice_text(choices, under_test.ranks);
    trial->loss_tolerance = choice_trainings[training].loss_tolerance;
    trial->tolerance = choice_trainings[training].tolerance;
    trial->parts.sharding.offload = trial->offload;
    trial->run = layout_run_new_with(under_test.runtime, &spec, &task, &options);
    trial->ok = step_moves_its_volume(trial);
    trial->gradient = layout_gather(trial->run, LAYOUT_GRADIENT, &equal);
    trial->ok &= equal || mpi_complain(under_test.runtime, trial->what,
                                       "replicas differ in the gradients of step 1");
    while (trial->run->steps < LAYOUT_STEPS)
        trial->ok &= step_moves_its_volume(trial);
    layout_drain(trial->run);
    trial->ok &= replicas_are_equal(trial);
}

static gboolean trial_holds(const Choices *choices)
{
    g_auto(Trial) trial = {.ok = TRUE};

    trial_train(&trial, choices);
    trial.ok &= ranks_agree(&trial);
    trial.ok &= memory_is_used(&trial);
    trial.ok &= tails_are_zero(&trial);
    if (under_test.rank == 0) {
        layout_forget_key_biases(trial.run, trial.gradient);
        layout_forget_key_biases(trial.run, trial.parameter);
        trial.ok &= equals_one_rank(&trial);
    }
    return trial.ok;
}

/* ---- tests ---- */

/* Every strategy on every mesh, form and number of micro-batches; the rest in pairs. */
START_TEST(fp32_sgd_is_one_ranks_whatever_the_layout)
{
    g_autoptr(Pairs) pairs = pairs_new(NUM_FACTORS, MAX_LEVELS);
    const guint meshes = choice_levels(FACTOR_MESH, under_test.ranks);
    gboolean ok = TRUE;

    for (guint mesh = 0; mesh < meshes; mesh++)
        for (guint form = 0; form < 2; form++)
            for (guint m = 0; m < G_N_ELEMENTS(choice_micro_batches); m++) {
                Choices choices = {.level = {mesh, form, m, 0}};

                ok &= choice_draw(pairs, &choices, FACTOR_TRAINING + 1, under_test.ranks,
                                  under_test.models[0]) &&
                      trial_holds(&choices);
            }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* Adam with clipping, as often as SGD; the two recipes in bf16, once on each mesh. */
START_TEST(other_trainings_are_one_ranks_within_their_precision)
{
    g_autoptr(Pairs) pairs = pairs_new(NUM_FACTORS, MAX_LEVELS);
    const guint training = (guint)_i, meshes = choice_levels(FACTOR_MESH, under_test.ranks);
    const guint most = training == 1 ? G_N_ELEMENTS(choice_micro_batches) : 1;
    gboolean ok = TRUE;

    for (guint mesh = 0; mesh < meshes; mesh++)
        for (guint i = 0; i < most; i++) {
            const guint m = (mesh + i) % G_N_ELEMENTS(choice_micro_batches);
            Choices choices = {.level = {mesh, (mesh / 3 + i + training) % 2, m, training}};

            if (choice_draw(pairs, &choices, FACTOR_TRAINING + 1, under_test.ranks,
                            under_test.models[0]))
                ok &= trial_holds(&choices);
        }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* When gathers happen, and which blocks are computed twice, changes no bit. */
START_TEST(prefetch_kept_units_and_recomputation_change_no_bit)
{
    const guint full_shard = 3;
    g_auto(Trial) first = {.ok = TRUE};
    gboolean ok = TRUE;

    trial_train(&first, &(Choices){.level = {full_shard, (guint)_i % 2, 1, 0, (guint)_i}});
    for (guint recompute = 0; recompute < G_N_ELEMENTS(choice_recomputes); recompute++)
        for (guint order = 0; order < G_N_ELEMENTS(choice_orders); order++) {
            Choices choices = first.choices;
            g_auto(Trial) other = {.ok = TRUE};

            if (recompute > RECOMPUTE_SELECTIVE && order != recompute)
                continue;
            choices.level[FACTOR_RECOMPUTE] = recompute;
            choices.level[FACTOR_ORDER] = order;
            trial_train(&other, &choices);
            if (memcmp(first.run->loss, other.run->loss, sizeof first.run->loss) != 0 ||
                memcmp(first.run->norm, other.run->norm, sizeof first.run->norm) != 0)
                ok =
                    mpi_complain(under_test.runtime, other.what, "losses or norms have other bits");
            if (under_test.rank == 0 &&
                memcmp(first.parameter, other.parameter,
                       model_parameters(first.run->spec.model) * sizeof(float)) != 0)
                ok = mpi_complain(under_test.runtime, other.what,
                                  "final parameters have other bits");
            ok &= other.ok;
        }
    mpi_verdict(under_test.runtime, ok && first.ok);
}
END_TEST

static gboolean is_offloadable(const Choices *choices, const Offload *offload)
{
    const Model *model = under_test.models[choices->level[FACTOR_MODEL]];
    LayoutParts parts;
    const ProgramSpec spec = choice_spec(choices, under_test.ranks, model, &parts);
    const Choice choice = {model, &parts.workload, &spec.layout, &parts.sharding, &spec.schedule,
                           TRUE,  spec.context};

    parts.sharding.offload = *offload;
    return legality_check(&choice, NULL) == VERDICT_OK;
}

/* The same bits everywhere, whatever tier they were kept in. */
static gboolean trained_alike(const Trial *one, const Trial *other)
{
    gboolean same = memcmp(one->run->loss, other->run->loss, sizeof one->run->loss) == 0 &&
                    memcmp(one->run->norm, other->run->norm, sizeof one->run->norm) == 0;
    gboolean equal = TRUE;

    for (guint t = 0; t < NUM_LAYOUT_TENSORS; t++) {
        g_autofree float *want = layout_gather(one->run, (LayoutTensor)t, &equal);
        g_autofree float *got = layout_gather(other->run, (LayoutTensor)t, &equal);

        same &= want == NULL ||
                memcmp(want, got, model_parameters(one->run->spec.model) * sizeof *want) == 0;
    }
    return (same && equal) ||
           mpi_complain(under_test.runtime, other->what,
                        "optimizer in %s, parameters in %s: losses, norms or state have other bits",
                        tier_name(other->offload.optimizer), tier_name(other->offload.parameters));
}

static gboolean is_offloaded(const Trial *trial)
{
    const Program *program = interpreter_program(trial->run->interpreter);

    for (guint t = TIER_DEVICE + 1; t < NUM_TIERS; t++) {
        const guint64 planned = program->arena_bytes[t];
        const guint64 touched = interpreter_touched_arena(trial->run->interpreter, (Tier)t);

        if (t == TIER_NVME ? touched < planned : planned > 0 && touched == 0)
            return mpi_complain(under_test.runtime, trial->what,
                                "%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT " bytes used of %s",
                                touched, planned, tier_name((Tier)t));
    }
    return TRUE;
}

/* Two a mesh, others on other numbers of ranks, in the recipes in turn; one of them in check mode.
 * Parameters that stay whole stay on the device. */
START_TEST(state_in_other_tiers_changes_no_bit)
{
    static const Offload offloads[][2] = {
        {{TIER_HOST, TIER_DEVICE}, {TIER_NVME, TIER_DEVICE}},
        {{TIER_DEVICE, TIER_HOST}, {TIER_NVME, TIER_NVME}},
        {{TIER_HOST, TIER_HOST}, {TIER_HOST, TIER_NVME}},
    };
    const guint mesh = (guint)_i, turn = mesh + under_test.ranks + under_test.turn;
    const Choices choices = {.level = {mesh, turn % 2, mesh % 3, 1 + turn % 4}};
    gboolean ok = TRUE;

    if (mesh >= choice_levels(FACTOR_MESH, under_test.ranks) ||
        !choice_is_legal(&choices, under_test.ranks, under_test.models[0]))
        return;
    g_auto(Trial) plain = {.ok = TRUE};
    trial_train(&plain, &choices);
    for (guint o = 0; o < 2; o++) {
        g_auto(Trial)
            moved = {.offload = offloads[turn % 3][o], .check = (turn + o) % 2 == 0, .ok = TRUE};

        if (!is_offloadable(&choices, &moved.offload))
            moved.offload = offloads[0][o];
        trial_train(&moved, &choices);
        ok &= trained_alike(&plain, &moved) && plain.ok && moved.ok;
        ok &= moved.check || (memory_is_used(&moved) && is_offloaded(&moved));
    }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* ---- main ---- */

static Suite *layouts_suite(Runtime *runtime, guint ranks_per_node)
{
    const gboolean all = ranks_per_node == 0;
    Suite *suite = suite_create(all ? "layouts" : "layouts over rings");
    TCase *tcase = tcase_create("layouts");

    under_test.runtime = runtime;
    under_test.rank = runtime_rank(runtime);
    under_test.ranks = runtime_size(runtime);
    under_test.turn = ranks_per_node;
    if (all) {
        tcase_add_test(tcase, fp32_sgd_is_one_ranks_whatever_the_layout);
        tcase_add_loop_test(tcase, prefetch_kept_units_and_recomputation_change_no_bit, 0,
                            NUM_MODELS);
    }
    tcase_add_loop_test(tcase, other_trainings_are_one_ranks_within_their_precision, 1,
                        all ? NUM_TRAININGS : 2);
    suite_add_tcase(suite, tcase);
    TCase *offload = tcase_create("offload");
    tcase_add_loop_test(offload, state_in_other_tiers_changes_no_bit, 0, MAX_LEVELS);
    suite_add_tcase(suite, offload);
    return suite;
}

static void clear(void)
{
    for (guint m = 0; m < NUM_MODELS; m++) {
        for (guint t = 0; t < NUM_TRAININGS; t++) {
            g_free(under_test.references[m][t].gradient);
            g_free(under_test.references[m][t].parameter);
        }
        model_free(under_test.models[m]);
    }
    data_free(under_test.data);
}

int main(void)
{
    mpi_suite_start();
    for (guint m = 0; m < NUM_MODELS; m++)
        under_test.models[m] = make_model(m);
    under_test.data = layout_data_new(&layout_ascii, under_test.models[0]->vocab, CHOICE_SEQ);
    const int failed = mpi_suite_run_on_nodes(layouts_suite);
    clear();
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
