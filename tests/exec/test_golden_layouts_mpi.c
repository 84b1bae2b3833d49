/* Every layout that PyTorch ran (tests/golden/layouts_*.json) on our executor: the same losses and
 * gradient norms, step by step, and the same gradients and parameters.  Under mpirun with 1 to 4
 * ranks; runs that take another number are left to it, those that are refused here are counted. */
#include "tests/exec/golden_case.h"
#include "tests/exec/mpi_suite.h"

#include "sim/layout/legality.h"

#include <stdio.h>

static const char *const files[] = {"layouts_llama", "layouts_llama_tied", "layouts_gpt2"};
enum { NUM_FILES = G_N_ELEMENTS(files), MAX_NAME = 96 };

static struct {
    Runtime *runtime;
    guint rank, ranks;
    Golden golden[NUM_FILES];
    guint compared;
    GHashTable *refused; /* reason -> runs */
} under_test;

/* ---- a run as a program ---- */

typedef struct {
    const Golden *golden;
    JsonObject *json;
    char *what;
    Workload workload;
    Sharding sharding;
    ProgramSpec spec;
    LayoutTask task;
} Case;

static void case_clear(Case *c)
{
    g_free(c->what);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Case, case_clear)

static Layout layout_of(JsonObject *run)
{
    JsonObject *sizes = json_object_get_object_member(run, "layout");
    Layout layout = {0};

    for (guint axis = 0; axis < NUM_AXES; axis++)
        layout.size[axis] = (guint)json_object_get_int_member(sizes, axis_name((Axis)axis));
    return layout;
}

static void read_training(Case *c)
{
    const char *name = json_object_get_string_member(c->json, "setting");
    JsonObject *settings = json_object_get_object_member(c->golden->json, "settings");
    JsonObject *setting = json_object_get_object_member(settings, name);

    c->workload = (Workload){
        .global_batch = c->golden->batch, .seq_len = c->golden->seq, .recipe = &recipe_fp32};
    g_assert(optimizer_from_name(name, &c->workload.optimizer));
    g_assert(c->workload.optimizer != OPTIMIZER_ADAMW || golden_setting_is_bound(setting));
    c->task = (LayoutTask){
        .data = c->golden->data,
        .seed = (guint64)json_object_get_int_member(c->golden->json, "seed"),
        .lr = json_object_get_double_member(setting, "lr"),
        .clip_norm = json_object_get_double_member(setting, "clip_norm"),
    };
}

static Schedule read_schedule(const Case *c, const Golden *golden, const Layout *layout, guint run)
{
    const guint micro_batches = (guint)json_object_get_int_member(c->json, "micro_batches");
    Schedule schedule = {
        .micro_batch = golden->batch / layout_data_ranks(layout) / micro_batches,
        .micro_batches = micro_batches,
        .recompute = (Recompute)(run / 2 % NUM_RECOMPUTES),
        .virtual_stages = (guint)json_object_get_int_member(c->json, "virtual_stages"),
    };

    g_assert(
        schedule_from_name(json_object_get_string_member(c->json, "schedule"), &schedule.kind));
    return schedule;
}

/* What PyTorch does not have, form and recomputation, alternates. */
static void read_case(Case *c, const Golden *golden, guint run)
{
    JsonArray *runs = json_object_get_array_member(golden->json, "runs");

    *c = (Case){.golden = golden, .json = json_array_get_object_element(runs, run)};
    read_training(c);
    const Layout layout = layout_of(c->json);
    const char *accumulate = json_object_get_string_member(c->json, "accumulate");
    c->sharding = sharding_default;
    c->sharding.form = run % 2 == 0 ? FORM_PER_PARAMETER : FORM_FLAT;
    c->sharding.accumulate_sharded = g_str_equal(accumulate, "sharded");
    g_assert(strategy_from_name(json_object_get_string_member(c->json, "strategy"),
                                &c->sharding.strategy));
    const Schedule schedule = read_schedule(c, golden, &layout, run);
    sharding_normalise(&c->sharding, &layout, &schedule);
    c->spec = (ProgramSpec){
        .model = golden->model,
        .workload = &c->workload,
        .layout = layout,
        .sharding = &c->sharding,
        .schedule = schedule,
        .sequence_parallel = json_object_get_boolean_member(c->json, "sequence"),
        .device = DEVICE_CPU,
        .threads = 1,
    };
    g_autofree char *axes = layout_text(&layout);
    c->what = g_strdup_printf("%s, run %u (%s, %s)", golden->model->name, run, axes,
                              json_object_get_string_member(c->json, "strategy"));
}

/* Why this tree can't run it; NULL when it can. */
static char *case_refusal(const Case *c)
{
    const Choice choice = {c->spec.model,    c->spec.workload,  &c->spec.layout,
                           c->spec.sharding, &c->spec.schedule, c->spec.sequence_parallel,
                           c->spec.context};
    char *reason = NULL;

    legality_check(&choice, &reason);
    return reason;
}

/* ---- sums of whole tensors ---- */

/* This rank's part of a parameter's sums, such that those of all ranks add up to the whole's. */
typedef struct {
    char name[MAX_NAME];
    double sum, sum_squares;
} Part;

/* Ranks that hold the same elements, all of which add theirs. */
static double holders(const LayoutRun *run, const UnitClass *unit, guint param, LayoutTensor which)
{
    const Program *program = interpreter_program(run->interpreter);
    const Tensor *tensor = program_tensor(program, (guint)layout_unit_tensor(unit, which));
    const gboolean whole = which == LAYOUT_PARAMETER && tensor->part == PART_WHOLE;
    const guint data_ranks = layout_data_ranks(&run->spec.layout);

    return unit->map->params[param].copies * (whole ? data_ranks : data_ranks / unit->map->ranks);
}

static void append_part(LayoutRun *run, guint u, guint param, LayoutTensor which, GArray *parts)
{
    const Program *program = interpreter_program(run->interpreter);
    const UnitRef *ref = program_unit_ref(program, u);
    const UnitClass *unit = program_unit(program, ref->unit_class);
    const LayoutRange range = layout_range(run, unit, param, which);
    const float *values =
        interpreter_tensor(run->interpreter, (guint)layout_unit_tensor(unit, which), ref->index);
    const double share = 1 / holders(run, unit, param, which);
    g_autofree char *name = parameters_name(program, u, param);
    Part part = {0};

    g_assert(g_strlcpy(part.name, name, MAX_NAME) < MAX_NAME);
    for (guint64 i = 0; i < range.elements; i++) {
        const double value = (double)values[range.offset + i];

        part.sum += share * value;
        part.sum_squares += share * value * value;
    }
    g_array_append_val(parts, part);
}

/* Parts of all ranks, at rank 0. */
static GPtrArray *gather_parts(LayoutRun *run, LayoutTensor which)
{
    const Program *program = interpreter_program(run->interpreter);
    g_autoptr(GArray) parts = g_array_new(FALSE, FALSE, sizeof(Part));
    GPtrArray *all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    g_autoptr(GError) error = NULL;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        if (program_unit_ref(program, u)->unit_class == NO_UNIT_CLASS)
            continue;
        const UnitClass *unit = program_unit(program, program_unit_ref(program, u)->unit_class);

        for (guint p = 0; p < unit->map->num_params; p++)
            append_part(run, u, p, which, parts);
    }
    const gboolean ok = runtime_gather(under_test.runtime, parts->data,
                                       (gsize)parts->len * sizeof(Part), all, &error);
    g_assert_no_error(error);
    g_assert(ok);
    return all;
}

/* FALSE when nobody has a tensor of that name. */
static gboolean add_parts(const GPtrArray *all, const char *name, Part *total)
{
    gboolean found = FALSE;

    *total = (Part){0};
    for (guint r = 0; r < all->len; r++) {
        gsize bytes;
        const Part *part = g_bytes_get_data(g_ptr_array_index(all, r), &bytes);

        for (gsize i = 0; i < bytes / sizeof *part; i++, part++) {
            if (!g_str_equal(part->name, name))
                continue;
            total->sum += part->sum;
            total->sum_squares += part->sum_squares;
            found = TRUE;
        }
    }
    return found;
}

/* ---- comparing ---- */

static gboolean is_near(const Case *c, const char *what, double got, double want, double tolerance)
{
    if (fabs(got - want) <= tolerance)
        return TRUE;
    fprintf(stderr, "rank %u: %s: %s is %.9g, PyTorch's %.9g (allowed: %.2g)\n", under_test.rank,
            c->what, what, got, want, tolerance);
    return FALSE;
}

static gboolean curve_is_near(const Case *c, const char *name, const double *got)
{
    JsonArray *want = json_object_get_array_member(c->json, name);
    gboolean ok = TRUE;

    for (guint i = 0; i < json_array_get_length(want) && ok; i++) {
        const double value = json_array_get_double_element(want, i);
        g_autofree char *what = g_strdup_printf("%s of step %u", name, i + 1);

        ok = is_near(c, what, got[i], value, GOLDEN_RUN_TOLERANCE * fabs(value));
    }
    return ok;
}

static gboolean sums_are_near(const Case *c, const char *what, const Part *got, JsonArray *want,
                              gint64 elements)
{
    const double sum = json_array_get_double_element(want, 0);
    const double squares = json_array_get_double_element(want, 1);
    const double magnitudes = sqrt((double)elements * squares);

    return is_near(c, what, got->sum, sum, GOLDEN_SUM_TOLERANCE * magnitudes) &&
           is_near(c, what, got->sum_squares, squares, GOLDEN_RUN_TOLERANCE * squares);
}

/* Collective.  Each tensor that PyTorch lists, against @want. */
static gboolean tensors_are_near(const Case *c, LayoutRun *run, LayoutTensor which, JsonArray *want)
{
    JsonArray *names = json_object_get_array_member(c->golden->json, "tensors");
    JsonArray *elements = json_object_get_array_member(c->golden->json, "elements");
    g_autoptr(GPtrArray) all = gather_parts(run, which);
    gboolean ok = TRUE;

    for (guint i = 0; under_test.rank == 0 && i < json_array_get_length(names); i++) {
        const char *name = json_array_get_string_element(names, i);
        g_autofree char *what =
            g_strdup_printf("%s of step %u, %s",
                            which == LAYOUT_GRADIENT ? "gradient" : "parameter", run->steps, name);
        Part total;

        g_assert(add_parts(all, name, &total));
        ok &= sums_are_near(c, what, &total, json_array_get_array_element(want, i),
                            json_array_get_int_element(elements, i));
    }
    return ok;
}

/* Collective. */
static gboolean trains_as_pytorch(const Case *c)
{
    const guint steps = json_array_get_length(json_object_get_array_member(c->json, "loss"));
    g_autoptr(LayoutRun) run = layout_run_new(under_test.runtime, &c->spec, &c->task);
    gboolean ok = tensors_are_near(c, run, LAYOUT_PARAMETER,
                                   json_object_get_array_member(c->golden->json, "initial"));

    layout_step(run, FALSE);
    ok &= tensors_are_near(c, run, LAYOUT_GRADIENT,
                           json_object_get_array_member(c->json, "gradients"));
    layout_train_to(run, steps);
    layout_drain(run);
    ok &=
        tensors_are_near(c, run, LAYOUT_PARAMETER, json_object_get_array_member(c->json, "final"));
    return ok & curve_is_near(c, "loss", run->loss) & curve_is_near(c, "grad_norm", run->norm);
}

/* ---- tests ---- */

/* Takes @reason. */
static void count_refusal(char *reason)
{
    const guint runs = GPOINTER_TO_UINT(g_hash_table_lookup(under_test.refused, reason));

    g_hash_table_insert(under_test.refused, reason, GUINT_TO_POINTER(runs + 1));
}

static void compare(const Golden *golden, guint run)
{
    g_auto(Case) c = {0};

    read_case(&c, golden, run);
    char *refusal = case_refusal(&c);
    if (refusal != NULL) {
        count_refusal(refusal);
        return;
    }
    under_test.compared++;
    mpi_verdict(under_test.runtime, trains_as_pytorch(&c));
}

START_TEST(layouts_train_as_in_pytorch)
{
    const Golden *golden = &under_test.golden[_i];
    JsonArray *runs = json_object_get_array_member(golden->json, "runs");

    for (guint run = 0; run < json_array_get_length(runs); run++) {
        const Layout layout = layout_of(json_array_get_object_element(runs, run));

        if (layout_world(&layout) != under_test.ranks)
            continue;
        if (golden->model == NULL)
            count_refusal(g_strdup(golden->refusal));
        else
            compare(golden, run);
    }
}
END_TEST

static int run_suite(void)
{
    Suite *suite = suite_create("golden_layouts");
    TCase *tcase = tcase_create("pytorch");

    tcase_add_loop_test(tcase, layouts_train_as_in_pytorch, 0, NUM_FILES);
    suite_add_tcase(suite, tcase);
    const int failed = mpi_suite_run(under_test.runtime, suite);
    return failed;
}

static void print_counts(void)
{
    GHashTableIter iter;
    gpointer reason, runs;
    guint skipped = 0;

    g_hash_table_iter_init(&iter, under_test.refused);
    while (g_hash_table_iter_next(&iter, &reason, &runs)) {
        printf("SKIP: %u runs: %s\n", GPOINTER_TO_UINT(runs), (const char *)reason);
        skipped += GPOINTER_TO_UINT(runs);
    }
    printf("%u runs of PyTorch compared, %u skipped\n", under_test.compared, skipped);
}

int main(void)
{
    mpi_suite_start();
    under_test.runtime = case_runtime("mpi", 0);
    under_test.rank = runtime_rank(under_test.runtime);
    under_test.ranks = runtime_size(under_test.runtime);
    under_test.refused = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    for (guint f = 0; f < NUM_FILES; f++)
        under_test.golden[f] = golden_load(files[f]);
    const int failed = run_suite();
    if (under_test.rank == 0)
        print_counts();
    for (guint f = 0; f < NUM_FILES; f++)
        golden_clear(&under_test.golden[f]);
    g_hash_table_destroy(under_test.refused);
    runtime_close(under_test.runtime);
    MPI_Finalize();
    return failed == 0 && under_test.compared > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
