/* Run under mpirun with 1 to 4 ranks: what the interpreter and train() promise beside the numbers
 * (tests/exec/test_layouts_mpi.c). */
#include "exec/base/process.h"
#include "exec/run/train.h"
#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/search/price.h"
#include "tests/exec/count_allocations.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/layout_choices.h"
#include "tests/exec/mpi_suite.h"

#include <errno.h>
#include <stdio.h>

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint rank, ranks;
    Model *model;
    Data *data;
} under_test;

/* Micro-batches 2, AdamW: every kind of state and of reduction. */
static LayoutRun *open_run_in(guint mesh, Tier optimizer, LayoutParts *parts)
{
    const InterpreterOptions options = {.nvme_folder = "/var/tmp"};
    const LayoutTask task = {.data = under_test.data, .seed = 3, .lr = 0.003, .clip_norm = 1};
    const Choices choices = {.level = {[FACTOR_MESH] = mesh,
                                       [FACTOR_FORM] = mesh % 2,
                                       [FACTOR_MICRO_BATCHES] = 1,
                                       [FACTOR_TRAINING] = 1}};
    const ProgramSpec spec = choice_spec(&choices, under_test.ranks, under_test.model, parts);

    parts->sharding.offload.optimizer = optimizer;
    return layout_run_new_with(under_test.runtime, &spec, &task, &options);
}

static LayoutRun *open_run(guint mesh, LayoutParts *parts)
{
    return open_run_in(mesh, TIER_DEVICE, parts);
}

static gboolean same_curves(const LayoutRun *run, const LayoutRun *other, const char *what)
{
    const gsize bytes = MIN(run->steps, other->steps) * sizeof *run->loss;

    if (memcmp(run->loss, other->loss, bytes) == 0 && memcmp(run->norm, other->norm, bytes) == 0)
        return TRUE;
    fprintf(stderr, "rank %u: %s: other losses or norms\n", under_test.rank, what);
    return FALSE;
}

/* ---- steps ---- */

START_TEST(a_step_allocates_nothing_on_any_thread)
{
    LayoutParts parts;
    const Tier tiers[] = {TIER_DEVICE, TIER_HOST, TIER_NVME};
    const guint i_tier = (guint)_i % G_N_ELEMENTS(tiers);
    g_autoptr(LayoutRun) run = open_run_in((guint)_i / G_N_ELEMENTS(tiers), tiers[i_tier], &parts);

    layout_train_to(run, 2);
    allocations_begin();
    for (guint i = 0; i < 3; i++) {
        g_autoptr(GError) error = NULL;

        layout_bind(run, 3 + i);
        if (!interpreter_step(run->interpreter, i == 1, &error))
            g_assert_no_error(error);
    }
    const guint counted = allocations_end();
    if (counted != 0)
        fprintf(stderr, "rank %u: %u allocations in three steps\n", under_test.rank, counted);
    layout_drain(run);
    mpi_verdict(under_test.runtime, counted == 0);
}
END_TEST

/* Else the test above could not fail. */
START_TEST(an_allocation_is_counted)
{
    allocations_begin();
    g_autofree char *memory = g_strdup("counted");
    const guint counted = allocations_end();

    mpi_verdict(under_test.runtime, memory != NULL && counted == 1);
}
END_TEST

START_TEST(sampled_times_lie_within_their_step_in_order)
{
    LayoutParts parts;
    g_autoptr(LayoutRun) run =
        open_run_in((guint)_i / 2, _i % 2 == 0 ? TIER_DEVICE : TIER_NVME, &parts);
    const Program *program = interpreter_program(run->interpreter);
    double last_end[MAX_STREAMS] = {0};
    gboolean ok = interpreter_times(run->interpreter) == NULL;
    guint64 i = 0;

    layout_train_to(run, 1);
    ok &= interpreter_times(run->interpreter) == NULL;
    const double begin_s = clock_s();
    layout_step(run, TRUE);
    const double step_s = clock_s() - begin_s;
    const OpTime *times = interpreter_times(run->interpreter);
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint o = 0; o < segment->num_ops; o++, i++) {
            const guint stream = segment->ops[o].stream;

            ok &= times[i].start_s >= last_end[stream] && times[i].end_s > times[i].start_s;
            ok &= times[i].end_s <= step_s;
            last_end[stream] = times[i].end_s;
        }
    }
    ok &= i == program_num_ops(program);
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

START_TEST(a_drain_between_steps_changes_no_bit)
{
    LayoutParts parts;
    g_autoptr(LayoutRun) plain = open_run((guint)_i, &parts);
    g_autoptr(LayoutRun) drained = open_run((guint)_i, &parts);

    layout_train_to(plain, 6);
    for (guint step = 1; step <= 6; step++) {
        layout_train_to(drained, step);
        layout_drain(drained);
    }
    mpi_verdict(under_test.runtime, same_curves(plain, drained, "drained"));
}
END_TEST

START_TEST(programs_that_take_turns_on_one_runtime_keep_apart)
{
    const guint meshes = choice_levels(FACTOR_MESH, under_test.ranks);
    LayoutParts parts[2];
    g_autoptr(LayoutRun) first = open_run(0, &parts[0]);
    g_autoptr(LayoutRun) second = open_run(meshes - 1, &parts[1]);
    g_autoptr(LayoutRun) alone = open_run(meshes - 1, &parts[1]);

    for (guint step = 1; step <= 4; step++) {
        layout_train_to(first, step);
        layout_train_to(second, step);
    }
    layout_train_to(alone, 4);
    mpi_verdict(under_test.runtime, same_curves(second, alone, "beside another"));
}
END_TEST

START_TEST(before_the_first_step_state_is_touched_and_nothing_else)
{
    LayoutParts parts;
    g_autoptr(LayoutRun) run = open_run((guint)_i, &parts);
    const Program *program = interpreter_program(run->interpreter);
    guint64 state = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->persistence == PERSIST_STATE)
            state += tensor_bytes(program, tensor);
    }
    mpi_verdict(under_test.runtime,
                interpreter_touched_arena(run->interpreter, TIER_DEVICE) == state);
}
END_TEST

/* ---- what is not finite ---- */

/* Writes one element of unit 2's down projection wherever this rank keeps it. */
static void put_parameter(LayoutRun *run, float value, float *old)
{
    enum { UNIT = 2, ELEMENT = 5 };
    const Program *program = interpreter_program(run->interpreter);
    const UnitRef *ref = program_unit_ref(program, UNIT);
    const UnitClass *unit = program_unit(program, ref->unit_class);
    const guint down = (guint)model_param_index(under_test.model, UNIT_BLOCK, PARAM_DOWN);
    const LayoutRange range = layout_range(run, unit, down, LAYOUT_PARAMETER);
    float *data = interpreter_tensor(run->interpreter, (guint)unit->parameter, ref->index);

    if (ELEMENT < range.at || ELEMENT >= range.at + range.elements)
        return;
    *old = data[range.offset + ELEMENT - range.at];
    data[range.offset + ELEMENT - range.at] = value;
}

/* All that an update would change, of all ranks, at rank 0. */
static GBytes *updated_state(LayoutRun *run)
{
    static const LayoutTensor updated[] = {LAYOUT_PARAMETER, LAYOUT_MOMENT1, LAYOUT_MOMENT2};
    g_autoptr(GByteArray) state = g_byte_array_new();
    gboolean equal = TRUE;

    for (guint i = 0; i < G_N_ELEMENTS(updated); i++) {
        g_autofree float *whole = layout_gather(run, updated[i], &equal);

        if (whole != NULL)
            g_byte_array_append(state, (const guint8 *)whole,
                                (guint)(model_parameters(under_test.model) * sizeof *whole));
    }
    return g_byte_array_free_to_bytes(g_steal_pointer(&state));
}

/* Training that met a NaN, and was mended, goes on as one that did not. */
START_TEST(a_nan_on_one_rank_stops_the_update_on_all)
{
    LayoutParts parts;
    g_autoptr(LayoutRun) plain = open_run((guint)_i, &parts);
    g_autoptr(LayoutRun) run = open_run((guint)_i, &parts);
    float old = 0, nan = 0;

    layout_train_to(plain, 5);
    layout_train_to(run, 2);
    layout_drain(run);
    put_parameter(run, NAN, &old);
    g_autoptr(GBytes) before = updated_state(run);
    layout_train_to(run, 3);
    layout_drain(run);
    g_autoptr(GBytes) after = updated_state(run);
    gboolean ok = layout_scalar(run, "finite") == 0 && isnan(run->loss[2]);
    if (!g_bytes_equal(before, after)) {
        fprintf(stderr, "rank %u: the update was not skipped\n", under_test.rank);
        ok = FALSE;
    }
    put_parameter(run, old, &nan);
    run->steps = 2;
    layout_train_to(run, 5);
    ok &= layout_scalar(run, "finite") == 1 && same_curves(plain, run, "mended");
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* ---- train() ---- */

static Plan *make_plan(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *topologies = data_dir("topologies");
    Plan *plan = plan_new();
    LayoutParts parts;
    const Choices choices = {.level = {[FACTOR_MESH] = 3, [FACTOR_TRAINING] = 1}};
    const ProgramSpec spec = choice_spec(&choices, under_test.ranks, under_test.model, &parts);

    plan->model = layout_tied_model(3);
    plan->topology = topology_load("localhost", topologies, &error);
    g_assert_no_error(error);
    plan->workload = parts.workload;
    plan->sharding = parts.sharding;
    plan->layout = spec.layout;
    plan->schedule = spec.schedule;
    plan_set_target(plan);
    plan->threads = 1;
    plan_price(plan);
    return plan;
}

/* Nothing is printed, nothing stored. */
static int run_train(double lr, GError **error)
{
    g_autofree char *bytes = layout_text_new(&layout_ascii);
    g_autofree char *path = NULL;
    g_autoptr(GError) why = NULL;
    const int file = g_file_open_tmp("fsdp-train-XXXXXX", &path, &why);

    g_assert_no_error(why);
    g_assert(write(file, bytes, layout_ascii.bytes) == (gssize)layout_ascii.bytes);
    close(file);
    g_autoptr(Plan) plan = make_plan();
    g_autoptr(ProgramSet) set = plan_compile(plan, error);
    const TrainOptions options = {
        .data_path = path, .steps = 4, .seed = 1, .lr = lr, .clip_norm = 1, .json = TRUE};
    const int status = train(plan, set, under_test.runtime, &options, error);
    g_unlink(path);
    return status;
}

START_TEST(training_ends_with_status_0)
{
    g_autoptr(GError) error = NULL;

    mpi_verdict(under_test.runtime, run_train(0.003, &error) == 0 && error == NULL);
}
END_TEST

/* Step 1 is finite, and moves every parameter by about 1e30. */
START_TEST(a_loss_that_is_not_finite_ends_all_ranks_with_status_3)
{
    g_autoptr(GError) error = NULL;
    const int status = run_train(1e30, &error);
    const gboolean ok = status == 3 && g_error_matches(error, ERROR_DOMAIN, ERROR_RUNTIME) &&
                        g_str_has_prefix(error->message, "step 2: ");

    if (!ok)
        fprintf(stderr, "rank %u: status %d, %s\n", under_test.rank, status,
                error == NULL ? "no message" : error->message);
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* ---- main ---- */

static Suite *interpreter_suite(const char *name, guint ranks)
{
    const int meshes = (int)choice_levels(FACTOR_MESH, ranks);
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create("interpreter");

    tcase_add_test(tcase, an_allocation_is_counted);
    tcase_add_loop_test(tcase, a_step_allocates_nothing_on_any_thread, 0, 3 * meshes);
    tcase_add_loop_test(tcase, sampled_times_lie_within_their_step_in_order, 0, 2 * meshes);
    tcase_add_loop_test(tcase, a_drain_between_steps_changes_no_bit, 0, meshes);
    tcase_add_test(tcase, programs_that_take_turns_on_one_runtime_keep_apart);
    tcase_add_loop_test(tcase, before_the_first_step_state_is_touched_and_nothing_else, 0, meshes);
    tcase_add_loop_test(tcase, a_nan_on_one_rank_stops_the_update_on_all, 0, meshes);
    tcase_add_test(tcase, training_ends_with_status_0);
    tcase_add_test(tcase, a_loss_that_is_not_finite_ends_all_ranks_with_status_3);
    suite_add_tcase(suite, tcase);
    return suite;
}

static int run_on(const char *transport)
{
    g_autofree char *name = g_strdup_printf("interpreter, %s", transport);

    under_test.runtime = case_runtime(transport, 0);
    under_test.rank = runtime_rank(under_test.runtime);
    under_test.ranks = runtime_size(under_test.runtime);
    const int failed = mpi_suite_run(under_test.runtime, interpreter_suite(name, under_test.ranks));
    runtime_close(under_test.runtime);
    return failed;
}

/* OpenBLAS allocates in its kernels for small products on AVX-512, which these here are: a step's
 * allocations are to be ours.  It reads its choice of kernels before main(). */
static void use_kernels_that_do_not_allocate(char **argv)
{
    static const char name[] = "OPENBLAS_CORETYPE";

    if (g_getenv(name) != NULL)
        return;
    g_setenv(name, "Nehalem", TRUE);
    execv("/proc/self/exe", argv);
    g_error("/proc/self/exe: %s", g_strerror(errno));
}

int main(int argc, char **argv)
{
    int provided = 0, size = 0, failed = 0;

    (void)argc;
    use_kernels_that_do_not_allocate(argv);
    allocations_install();
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    g_assert(provided >= MPI_THREAD_SERIALIZED); /* two threads, one after the other */
    under_test.model = layout_tied_model(3);
    under_test.data = layout_data_new(&layout_ascii, under_test.model->vocab, CHOICE_SEQ);
    if (size == 1)
        failed += run_on("self");
    failed += run_on("mpi");
    model_free(under_test.model);
    data_free(under_test.data);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
