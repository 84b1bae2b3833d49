/* Run under mpirun with 1 to 4 ranks: every way to lay out a training gives one rank's training,
 * moves the bytes that its program says, and touches the memory that its plan says. */
#include "tests/exec/layout_case.h"
#include "tests/exec/layout_choices.h"
#include "tests/suite.h"

#include "sim/program/place.h"

#include <mpi.h>
#include <stdio.h>

enum { NUM_MODELS = 2, NUM_TRAININGS = G_N_ELEMENTS(choice_trainings) };

/* What one rank's run of a training gave; at rank 0 only. */
typedef struct {
    double loss[LAYOUT_STEPS], norm[LAYOUT_STEPS];
    float *gradient, *parameter; /* of step 1; at the end */
} Reference;

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint rank, ranks;
    Model *models[NUM_MODELS]; /* tied, untied */
    Data *data;
    Reference references[NUM_MODELS][NUM_TRAININGS];
} under_test;

/* One kv head of 2 columns: K and V have fewer rows than 3 ranks.  257 and 250 divide by none. */
static Model *make_model(gboolean tied)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *config = g_strdup_printf(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
        " \"hidden_act\": \"silu\", \"max_position_embeddings\": 64, \"hidden_size\": 8,"
        " \"num_hidden_layers\": %d, \"num_attention_heads\": 4, \"num_key_value_heads\": 1,"
        " \"head_dim\": 2, \"intermediate_size\": 250, \"vocab_size\": 257,"
        " \"tie_word_embeddings\": %s, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0,"
        " \"initializer_range\": 0.15}",
        CHOICE_LAYERS, tied ? "true" : "false");
    Model *model = model_parse(config, "config", "uneven", &error);

    g_assert_no_error(error);
    return model;
}

/* ---- verdicts ---- */

/* Rank 0 asserts for all of them: a rank that failed alone would leave the others waiting. */
static void verdict(gboolean ok)
{
    gint64 failed = !ok;
    g_autoptr(GError) error = NULL;
    const gboolean agreed = runtime_agree_max(under_test.runtime, &failed, &error);

    ck_assert_msg(agreed, "%s", error == NULL ? "" : error->message);
    ck_assert_msg(failed == 0, "a rank says why on stderr");
}

static gboolean complain(const char *what, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean complain(const char *what, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %u: %s: %s\n", under_test.rank, what, text);
    return FALSE;
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
    const RuntimeOptions options = {.transport = "self", .threads = 1, .device = DEVICE_CPU};
    const LayoutTask task = task_of(training);
    const gboolean sharded = choice_trainings[training].recipe == &recipe_fsdp2;
    const Choices choices = {
        .level = {[FACTOR_MESH] = sharded ? 3 : 0, [FACTOR_TRAINING] = training}};
    g_autoptr(GError) error = NULL;
    g_autoptr(Runtime) runtime = runtime_open(&options, &error);
    Reference reference;
    ChoiceParts parts;
    gboolean equal = TRUE;

    g_assert_no_error(error);
    const ProgramSpec spec = choice_spec(&choices, 1, under_test.models[model], &parts);
    g_autoptr(LayoutRun) run = layout_run_new(runtime, &spec, &task);
    layout_step(run, FALSE);
    reference.gradient = layout_gather(run, LAYOUT_GRADIENT, &equal);
    while (run->steps < LAYOUT_STEPS)
        layout_step(run, FALSE);
    layout_drain(run);
    reference.parameter = layout_gather(run, LAYOUT_PARAMETER, &equal);
    g_assert(equal);
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

static gboolean curve_is_near(const char *what, const char *name, const double *got,
                              const double *want, double tolerance)
{
    for (guint i = 0; i < LAYOUT_STEPS; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * fabs(want[i])))
            return complain(what, "%s of step %u is %.9g, one rank's %.9g: off by %.2g", name,
                            i + 1, got[i], want[i], fabs(got[i] / want[i] - 1));
    return TRUE;
}

/* Distance of the two as vectors, relative to the length of @want. */
static gboolean tensor_is_near(const char *what, const char *name, const float *got,
                               const float *want, double tolerance)
{
    const guint64 elements = model_parameters(under_test.models[1]);
    double distance = 0, length = 0;

    for (guint64 i = 0; i < elements; i++) {
        const double difference = (double)got[i] - (double)want[i];

        distance += difference * difference;
        length += (double)want[i] * (double)want[i];
    }
    if (!(sqrt(distance / length) <= tolerance))
        return complain(what, "%s off by %.2g", name, sqrt(distance / length));
    return TRUE;
}
