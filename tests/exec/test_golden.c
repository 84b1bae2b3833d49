/* The whole executor against PyTorch: 20 steps of three small models (tests/golden/README.md), on
 * one rank, with every strategy that one rank can have. */
#include "tests/exec/golden_case.h"
#include "tests/suite.h"

#include "sim/layout/legality.h"

/* Of one element, beside its own size and the tensor's root mean square. */
#define ELEMENT_TOLERANCE 1e-5

static const char *const files[] = {"plain", "tied_scaled", "gpt2"};
enum { NUM_FILES = G_N_ELEMENTS(files) };

/* Micro-batches, strategy; form and recomputation alternate so that each meets each. */
static const struct {
    guint micro_batches;
    Strategy strategy;
    Form form;
    Recompute recompute;
    gboolean sharded;
} variants[] = {
    {1, STRATEGY_NO_SHARD, FORM_PER_PARAMETER, RECOMPUTE_NONE, TRUE},
    {2, STRATEGY_NO_SHARD, FORM_FLAT, RECOMPUTE_FULL, TRUE},
    {4, STRATEGY_NO_SHARD, FORM_PER_PARAMETER, RECOMPUTE_FULL, TRUE},
    {1, STRATEGY_SHARD_OPTIMIZER, FORM_FLAT, RECOMPUTE_FULL, TRUE},
    {2, STRATEGY_SHARD_OPTIMIZER, FORM_PER_PARAMETER, RECOMPUTE_NONE, TRUE},
    {4, STRATEGY_SHARD_OPTIMIZER, FORM_FLAT, RECOMPUTE_NONE, TRUE},
    {1, STRATEGY_SHARD_GRAD_OP, FORM_PER_PARAMETER, RECOMPUTE_FULL, FALSE},
    {2, STRATEGY_SHARD_GRAD_OP, FORM_FLAT, RECOMPUTE_NONE, TRUE},
    {4, STRATEGY_SHARD_GRAD_OP, FORM_PER_PARAMETER, RECOMPUTE_NONE, FALSE},
    {1, STRATEGY_FULL_SHARD, FORM_FLAT, RECOMPUTE_NONE, TRUE},
    {2, STRATEGY_FULL_SHARD, FORM_PER_PARAMETER, RECOMPUTE_FULL, FALSE},
    {4, STRATEGY_FULL_SHARD, FORM_FLAT, RECOMPUTE_FULL, TRUE},
};

/* ---- comparing ---- */

static void assert_near(double got, double want, double tolerance, const char *what)
{
    ck_assert_msg(fabs(got - want) <= tolerance, "%s: %.9g, PyTorch has %.9g (allowed: %.2g)", what,
                  got, want, tolerance);
}

static void assert_curve(const double *got, JsonArray *want, const char *what)
{
    ck_assert_uint_eq(json_array_get_length(want), LAYOUT_STEPS);
    for (guint i = 0; i < LAYOUT_STEPS; i++) {
        g_autofree char *where = g_strdup_printf("%s of step %u", what, i + 1);
        const double value = json_array_get_double_element(want, i);

        assert_near(got[i], value, GOLDEN_RUN_TOLERANCE * fabs(value), where);
    }
}

static void assert_tensor(const float *values, guint64 elements, JsonObject *want, const char *name)
{
    const double want_squares = json_object_get_double_member(want, "sum_squares");
    const double rms = sqrt(want_squares / (double)elements);
    double sum = 0, squares = 0;

    for (guint64 i = 0; i < elements; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    assert_near(sum, json_object_get_double_member(want, "sum"),
                GOLDEN_SUM_TOLERANCE * rms * (double)elements, name);
    assert_near(squares, want_squares, GOLDEN_RUN_TOLERANCE * want_squares, name);
    if (!json_object_has_member(want, "index"))
        return;
    JsonArray *index = json_object_get_array_member(want, "index");
    JsonArray *value = json_object_get_array_member(want, "value");
    for (guint k = 0; k < json_array_get_length(index); k++) {
        const guint64 at = (guint64)json_array_get_int_element(index, k);
        const double expected = json_array_get_double_element(value, k);

        ck_assert_uint_lt(at, elements);
        assert_near((double)values[at], expected, ELEMENT_TOLERANCE * (fabs(expected) + rms), name);
    }
}

/* Each parameter of the model against the object of that name. */
static void assert_tensors(LayoutRun *run, LayoutTensor which, JsonObject *want)
{
    const Program *program = interpreter_program(run->interpreter);
    gboolean equal = TRUE;
    g_autofree float *whole = layout_gather(run, which, &equal);
    const float *at = whole;
    guint seen = 0;

    ck_assert(whole != NULL && equal);
    for (guint u = 0; u < program->unit_refs->len; u++) {
        const UnitMap *map = program_unit(program, program_unit_ref(program, u)->unit_class)->map;

        for (guint p = 0; p < map->num_params; p++, seen++) {
            g_autofree char *name = parameters_name(program, u, p);
            const guint64 elements = map->params[p].rows * map->params[p].cols;

            ck_assert_msg(json_object_has_member(want, name), "PyTorch's model has no %s", name);
            if (map->params[p].role != PARAM_K_BIAS) /* no gradient but rounding */
                assert_tensor(at, elements, json_object_get_object_member(want, name), name);
            at += elements;
        }
    }
    ck_assert_uint_eq(seen, json_object_get_size(want));
}

/* ---- running ---- */

static const Workload *workload_of(const Golden *golden, JsonObject *setting, Workload *workload)
{
    *workload =
        (Workload){.global_batch = golden->batch, .seq_len = golden->seq, .recipe = &recipe_fp32};
    ck_assert(
        optimizer_from_name(json_object_get_string_member(setting, "name"), &workload->optimizer));
    return workload;
}

static void train_and_compare(const Golden *golden, Runtime *runtime, guint variant,
                              guint run_index)
{
    JsonArray *runs = json_object_get_array_member(golden->json, "runs");
    JsonObject *want = json_array_get_object_element(runs, run_index);
    JsonObject *setting = json_object_get_object_member(want, "setting");
    Sharding sharding = sharding_default;
    Workload workload;
    const guint micro_batches = variants[variant].micro_batches;

    sharding.strategy = variants[variant].strategy;
    sharding.form = variants[variant].form;
    sharding.accumulate_sharded = variants[variant].sharded;
    const ProgramSpec spec = {
        .model = golden->model,
        .workload = workload_of(golden, setting, &workload),
        .layout = {.size = {1, 1, 1, 1, 1}},
        .sharding = &sharding,
        .schedule = {.micro_batch = golden->batch / micro_batches,
                     .micro_batches = micro_batches,
                     .recompute = variants[variant].recompute},
        .device = DEVICE_CPU,
        .threads = 1,
    };
    const LayoutTask task = {
        .data = golden->data,
        .seed = (guint64)json_object_get_int_member(golden->json, "seed"),
        .lr = json_object_get_double_member(setting, "lr"),
        .clip_norm = json_object_get_double_member(setting, "clip_norm"),
    };

    sharding_normalise(&sharding, &spec.layout, &spec.schedule);
    g_autoptr(LayoutRun) run = layout_run_new(runtime, &spec, &task);
    assert_tensors(run, LAYOUT_PARAMETER, json_object_get_object_member(golden->json, "initial"));
    layout_step(run, FALSE);
    assert_tensors(run, LAYOUT_GRADIENT, json_object_get_object_member(golden->json, "gradients"));
    layout_train_to(run, LAYOUT_STEPS);
    assert_curve(run->loss, json_object_get_array_member(want, "loss"), "loss");
    assert_curve(run->norm, json_object_get_array_member(want, "grad_norm"), "gradient norm");
    layout_drain(run);
    assert_tensors(run, LAYOUT_PARAMETER, json_object_get_object_member(want, "final"));
}

START_TEST(the_text_is_the_one_that_pytorch_saw)
{
    g_auto(Golden) golden = golden_load(files[_i]);
    JsonObject *json = json_object_get_object_member(golden.json, "text");
    const LayoutText text = {(guint64)json_object_get_int_member(json, "seed"),
                             (guint)json_object_get_int_member(json, "bytes"),
                             (guint)json_object_get_int_member(json, "first"),
                             (guint)json_object_get_int_member(json, "count")};
    g_autofree char *bytes = layout_text_new(&text);
    guint64 hash = G_GUINT64_CONSTANT(0xCBF29CE484222325);

    for (guint i = 0; i < text.bytes; i++)
        hash = (hash ^ (guint8)bytes[i]) * G_GUINT64_CONSTANT(0x100000001B3);
    g_autofree char *hex = g_strdup_printf("%016" G_GINT64_MODIFIER "x", hash);
    ck_assert_str_eq(hex, json_object_get_string_member(golden.json, "text_fnv1a"));
}
END_TEST

START_TEST(twenty_steps_give_pytorchs_losses_norms_gradients_and_parameters)
{
    const guint run = (guint)_i % 2, file = (guint)_i / 2 % NUM_FILES;
    g_auto(Golden) golden = golden_load(files[file]);
    JsonObject *adamw =
        json_array_get_object_element(json_object_get_array_member(golden.json, "runs"), 1);
    g_autoptr(Runtime) runtime = case_runtime_alone();

    ck_assert(golden.model != NULL);
    ck_assert(golden_setting_is_bound(json_object_get_object_member(adamw, "setting")));
    train_and_compare(&golden, runtime, (guint)_i / 2 / NUM_FILES, run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("golden");
    TCase *tcase = tcase_create("pytorch");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, the_text_is_the_one_that_pytorch_saw, 0, NUM_FILES);
    tcase_add_loop_test(tcase, twenty_steps_give_pytorchs_losses_norms_gradients_and_parameters, 0,
                        2 * NUM_FILES * (int)G_N_ELEMENTS(variants));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
