/* Run under mpirun with 1 to 4 ranks: in check mode good programs run as without it, to the bit,
 * and a planted fault is found, where the prover (sim/program/check.h) finds it too. */
#include "sim/base/error.h"
#include "sim/program/check.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/layout_choices.h"
#include "tests/exec/mpi_suite.h"
#include "tests/handmade.h"

#include <stdio.h>

enum { STEPS = 3, SEEDS = 8, ELEMENTS = 16, FAULT_STEPS = 3 };

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint rank, ranks;
    Model *model;
    Data *data;
} under_test;

static Choices choices_of(guint mesh)
{
    return (Choices){.level = {[FACTOR_MESH] = mesh,
                               [FACTOR_FORM] = mesh % 2,
                               [FACTOR_MICRO_BATCHES] = 1,
                               [FACTOR_RECOMPUTE] = mesh / 2 % 2,
                               [FACTOR_ACCUMULATE] = mesh / 3 % 2,
                               [FACTOR_TRAINING] = 1 + mesh % 3}};
}

static LayoutRun *open_run(guint mesh, LayoutParts *parts, const InterpreterOptions *options)
{
    const LayoutTask task = {.data = under_test.data, .seed = 3, .lr = 0.003, .clip_norm = 1};
    const Choices choices = choices_of(mesh);
    const ProgramSpec spec = choice_spec(&choices, under_test.ranks, under_test.model, parts);

    return layout_run_new_with(under_test.runtime, &spec, &task, options);
}

/* ---- good programs ---- */

/* What members say to each other beside the program's ops is not counted. */
static gboolean step_moves_what_is_planned(LayoutRun *run)
{
    guint64 want[NUM_VOLUMES], before[NUM_VOLUMES], after[NUM_VOLUMES];
    gboolean ok = TRUE;

    program_volume(interpreter_program(run->interpreter), want);
    layout_step(run, TRUE); /* timed, so nothing is left in the queue */
    runtime_bytes_in(under_test.runtime, before);
    layout_step(run, TRUE);
    runtime_bytes_in(under_test.runtime, after);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        ok &= after[v] - before[v] == want[v] ||
              mpi_complain(under_test.runtime, volume_name((Volume)v), "%s", "other bytes");
    return ok;
}

static gboolean run_equals(const LayoutRun *plain, guint mesh, const InterpreterOptions *options)
{
    LayoutParts parts;
    g_autoptr(LayoutRun) run = open_run(mesh, &parts, options);
    const gsize bytes = STEPS * sizeof *run->loss;

    gboolean ok = step_moves_what_is_planned(run);
    layout_train_to(run, STEPS);
    layout_drain(run);
    if (memcmp(run->loss, plain->loss, bytes) != 0 || memcmp(run->norm, plain->norm, bytes) != 0)
        ok = mpi_complain(under_test.runtime, "check mode", "%s", "other losses or norms");
    return ok;
}

START_TEST(delays_poison_and_no_overlap_change_no_bit)
{
    const InterpreterOptions plain_options = {0}, no_overlap = {.no_overlap = TRUE};
    LayoutParts parts;
    g_autoptr(LayoutRun) plain = open_run((guint)_i, &parts, &plain_options);

    layout_train_to(plain, STEPS);
    gboolean ok = isfinite(plain->loss[STEPS - 1]) && run_equals(plain, (guint)_i, &no_overlap);
    for (guint seed = 0; seed < SEEDS; seed++) {
        const InterpreterOptions check = {
            .check = TRUE, .seed = seed, .no_overlap = seed == SEEDS - 1};

        ok = run_equals(plain, (guint)_i, &check) && ok;
    }
    layout_drain(plain);
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* ---- planted faults ---- */

/* The message, or NULL when nothing was found in some steps. */
static char *run_checked(const ProgramSet *set)
{
    const InterpreterOptions options = {.check = TRUE, .seed = 1};
    g_autoptr(GError) error = NULL;
    g_autoptr(Interpreter) interpreter =
        interpreter_new_with(under_test.runtime, set, &options, &error);

    g_assert_no_error(error);
    gboolean ok = TRUE;
    for (guint step = 0; ok && step < FAULT_STEPS; step++)
        ok = interpreter_step(interpreter, FALSE, &error);
    ok = ok && interpreter_drain(interpreter, &error);
    gint64 done = 0;
    g_autoptr(GError) why = NULL;
    const gboolean agreed = runtime_agree_max(under_test.runtime, &done, &why); /* jobs are done */
    g_assert_no_error(why);
    return agreed && ok ? NULL : g_strdup(error->message);
}

/* Prover and check mode find something, or neither does.  Returns whether they did. */
static gboolean both_find(const ProgramSet *set, const char *what, gboolean *ok)
{
    g_autoptr(GPtrArray) problems = program_set_check(set, 0);
    g_autofree char *found = run_checked(set);

    if ((problems->len > 0) != (found != NULL))
        *ok = mpi_complain(under_test.runtime, what, "%s",
                           found != NULL ? found : (char *)g_ptr_array_index(problems, 0));
    if (found != NULL && !g_str_has_prefix(found, "check: step "))
        *ok = mpi_complain(under_test.runtime, what, "%s", found);
    return found != NULL;
}

/* One in @every waits between calls, and all within a segment. */
static guint drop_each_wait(ProgramSet *set, guint every, gboolean *ok)
{
    Program *program = set->classes[set->num_classes - 1];
    guint found = 0;

    for (guint w = 0; w < program->step.waits->len; w += every) {
        Wait *wait = &g_array_index(program->step.waits, Wait, w);
        const guint before = wait->before;

        wait->before = G_MAXUINT32; /* no op of that number */
        found += both_find(set, "a dropped wait", ok) ? 1 : 0;
        wait->before = before;
    }
    for (guint s = 0; s < program->segments->len; s++)
        for (guint i = 0; i < program_segment(program, s)->num_ops; i++) {
            Op *op = &program_segment(program, s)->ops[i];
            const guint num = op->num_waits;

            if (num == 0)
                continue;
            op->num_waits = 0;
            found += both_find(set, "dropped waits of an op", ok) ? 1 : 0;
            op->num_waits = num;
        }
    return found;
}

static ProgramSet *compiled(guint mesh, LayoutParts *parts)
{
    const Choices choices = choices_of(mesh);
    const ProgramSpec spec = choice_spec(&choices, under_test.ranks, under_test.model, parts);

    return program_compile(&spec);
}

START_TEST(a_dropped_wait_is_found_by_prover_and_check_mode)
{
    LayoutParts parts;
    gboolean ok = TRUE;
    g_autoptr(ProgramSet) set = compiled((guint)_i, &parts);

    if (both_find(set, "no fault", &ok))
        ok = mpi_complain(under_test.runtime, "no fault", "%s", "found something");
    if (drop_each_wait(set, 2 * under_test.ranks - 1, &ok) == 0)
        ok = mpi_complain(under_test.runtime, "dropped waits", "%s", "found none");
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

START_TEST(a_dropped_wait_of_a_handmade_program_is_found)
{
    gboolean ok = TRUE;
    g_autoptr(ProgramSet) ring = handmade_ring(under_test.ranks, ELEMENTS);
    g_autoptr(ProgramSet) prefetch = handmade_prefetch(under_test.ranks, ELEMENTS);
    g_autoptr(ProgramSet) block = handmade_block(under_test.ranks, 3, ELEMENTS);
    ProgramSet *const sets[] = {ring, prefetch, block};

    for (guint i = 0; i < G_N_ELEMENTS(sets); i++) {
        /* A fault of one rank alone would leave the others waiting. */
        if (sets[i]->num_classes > 1)
            continue;
        if (both_find(sets[i], "no fault", &ok))
            ok = mpi_complain(under_test.runtime, "no fault", "%s", "found something");
        if (drop_each_wait(sets[i], 1, &ok) == 0)
            ok = mpi_complain(under_test.runtime, "dropped waits", "%s", "found none");
    }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* Moves tensors over each other. */
START_TEST(ranges_that_overlap_while_both_are_needed_are_found)
{
    enum { EVERY_TENSOR = 5, EVERY_OTHER = 11 };
    LayoutParts parts;
    gboolean ok = TRUE;
    guint found = 0;
    g_autoptr(ProgramSet) set = compiled((guint)_i, &parts);
    const Program *program = set->classes[0];

    for (guint t = 0; t < program->tensors->len; t += EVERY_TENSOR) {
        Tensor *tensor = program_tensor(program, t);
        const guint64 offset = tensor->offset;

        for (guint other = 1; other < program->tensors->len; other += EVERY_OTHER) {
            const guint64 there = program_tensor(program, other)->offset;

            if (other == t || tensor->persistence == PERSIST_STATE ||
                there + tensor_bytes(program, tensor) > program->arena_bytes[TIER_DEVICE])
                continue;
            tensor->offset = there;
            found += both_find(set, tensor->name, &ok) ? 1 : 0;
        }
        tensor->offset = offset;
    }
    if (found == 0)
        ok = mpi_complain(under_test.runtime, "overlaps", "%s", "found none");
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* Two sums of different sizes on one stream, in the order of @first. */
static Program *two_sums(guint first)
{
    Program *program = handmade_program("data", "data.reduce", under_test.ranks);
    guint sums[2], tensors[2];

    for (guint i = 0; i < 2; i++) {
        tensors[i] = handmade_tensor(program, i == 0 ? "small" : "large", TENSOR_GRADIENT, NO_SPACE,
                                     (i + 1) * ELEMENTS);
        sums[i] = program_add_segment(program, i == 0 ? "small.reduce" : "large.reduce");
        op_add_operand(handmade_op(program, sums[i], OP_ALL_REDUCE, 1, (i + 1) * ELEMENTS),
                       tensors[i], ACCESS_UPDATE, 0, WHOLE_TENSOR);
    }
    const guint out = handmade_tensor(program, "out", TENSOR_GRADIENT, NO_SPACE, ELEMENTS);
    const guint use = program_add_segment(program, "use");
    handmade_copy(program, use, tensors[0], out);
    handmade_add(program, use, tensors[0], out);
    handmade_call(program, sums[first], 0);
    handmade_call(program, sums[1 - first], 0);
    handmade_call(program, use, 0);
    return program;
}

START_TEST(swapped_collectives_on_one_rank_are_found)
{
    g_autoptr(ProgramSet) same = program_set_new(under_test.ranks);
    g_autoptr(ProgramSet) swapped = program_set_new(under_test.ranks);
    gboolean ok = TRUE;

    for (guint r = 0; r < under_test.ranks; r++) {
        handmade_add_rank(same, r, two_sums(0));
        handmade_add_rank(swapped, r, two_sums(r == 1 ? 1 : 0));
    }
    handmade_group_of_all(same, "data");
    handmade_group_of_all(swapped, "data");
    if (both_find(same, "the same order", &ok))
        ok = mpi_complain(under_test.runtime, "the same order", "%s", "found something");
    if (both_find(swapped, "swapped", &ok) != (under_test.ranks > 1))
        ok = mpi_complain(under_test.runtime, "swapped", "%s", "not found");
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* ---- memory ---- */

/* Runs a step after which @damage is done to a tensor's memory, and one more. */
static char *run_damaged(const char *name, void (*damage)(guint8 *at, guint64 bytes))
{
    const InterpreterOptions options = {.check = TRUE, .seed = 1};
    g_autoptr(ProgramSet) set = handmade_ring(under_test.ranks, ELEMENTS);
    g_autoptr(GError) error = NULL;
    g_autoptr(Interpreter) interpreter =
        interpreter_new_with(under_test.runtime, set, &options, &error);
    const guint tensor = (guint)interpreter_find(interpreter, name);

    g_assert_no_error(error);
    gboolean ok = interpreter_step(interpreter, FALSE, &error);
    g_assert_no_error(error);
    damage(interpreter_tensor(interpreter, tensor, 0),
           tensor_copy_bytes(program_tensor(interpreter_program(interpreter), tensor)));
    ok = ok && interpreter_step(interpreter, FALSE, &error);
    mpi_verdict(under_test.runtime, TRUE); /* jobs are done */
    return ok ? NULL : g_strdup(error->message);
}

static void nothing(guint8 *at, guint64 bytes)
{
    (void)at;
    (void)bytes;
}

static void last_byte(guint8 *at, guint64 bytes)
{
    at[bytes - 1] ^= 1;
}

static void byte_behind(guint8 *at, guint64 bytes)
{
    at[bytes] ^= 1;
}

static void byte_before(guint8 *at, guint64 bytes)
{
    (void)bytes;
    at[-1] ^= 1;
}

static gboolean says(char *message, const char *what)
{
    g_autofree char *owned = message;

    if (what == NULL)
        return owned == NULL || mpi_complain(under_test.runtime, "no damage", "%s", owned);
    return (owned != NULL && strstr(owned, what) != NULL) ||
           mpi_complain(under_test.runtime, what, "%s", owned == NULL ? "not found" : owned);
}

START_TEST(a_byte_outside_of_tensors_that_changes_is_found)
{
    gboolean ok = says(run_damaged("input", nothing), NULL);

    ok &= says(run_damaged("input", last_byte), NULL); /* state is the host's */
    ok &= says(run_damaged("input", byte_behind), "check: step 2: byte ");
    ok &= says(run_damaged("input", byte_before), "between the start of the arena and input");
    ok &= says(run_damaged("output", byte_behind), "between output and ");
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* "other" dies when it is copied to the output; nothing may touch it before it is received again.
 */
START_TEST(what_is_dead_holds_nans_and_is_to_keep_them)
{
    const InterpreterOptions options = {.check = TRUE, .seed = 1};
    g_autoptr(ProgramSet) set = handmade_ring(under_test.ranks, ELEMENTS);
    g_autoptr(GError) error = NULL;
    g_autoptr(Interpreter) interpreter =
        interpreter_new_with(under_test.runtime, set, &options, &error);
    const float *other =
        interpreter_tensor(interpreter, (guint)interpreter_find(interpreter, "other"), 0);

    g_assert_no_error(error);
    gboolean ok = interpreter_step(interpreter, FALSE, &error);
    g_assert_no_error(error);
    for (guint i = 0; i < ELEMENTS; i++)
        if (!isnan(other[i]))
            ok = mpi_complain(under_test.runtime, "a dead tensor", "%s", "holds a number");
    mpi_verdict(under_test.runtime, ok);
    mpi_verdict(under_test.runtime, says(run_damaged("other", last_byte), "other[0], "));
}
END_TEST

/* @rings: what differs where members pass messages. */
static Suite *check_suite(const char *name, gboolean rings)
{
    const int meshes = (int)choice_levels(FACTOR_MESH, under_test.ranks);
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create("check mode");

    tcase_add_loop_test(tcase, delays_poison_and_no_overlap_change_no_bit, 0, meshes);
    tcase_add_test(tcase, swapped_collectives_on_one_rank_are_found);
    suite_add_tcase(suite, tcase);
    if (rings)
        return suite;
    tcase_add_loop_test(tcase, a_dropped_wait_is_found_by_prover_and_check_mode, 0, meshes);
    tcase_add_test(tcase, a_dropped_wait_of_a_handmade_program_is_found);
    tcase_add_loop_test(tcase, ranges_that_overlap_while_both_are_needed_are_found, meshes - 1,
                        meshes);
    tcase_add_test(tcase, a_byte_outside_of_tensors_that_changes_is_found);
    tcase_add_test(tcase, what_is_dead_holds_nans_and_is_to_keep_them);
    return suite;
}

static int run_on(const char *transport, guint ranks_per_node)
{
    g_autofree char *name =
        g_strdup_printf("check mode, %s%s", transport, ranks_per_node == 1 ? ", rings" : "");

    under_test.runtime = case_runtime(transport, ranks_per_node);
    under_test.rank = runtime_rank(under_test.runtime);
    under_test.ranks = runtime_size(under_test.runtime);
    const int failed = mpi_suite_run(under_test.runtime, check_suite(name, ranks_per_node == 1));
    runtime_close(under_test.runtime);
    return failed;
}

int main(void)
{
    const int size = mpi_suite_start();

    under_test.model = layout_model(
        &(LayoutShape){.hidden = 8, .layers = 2, .heads = 2, .kv_heads = 1, .ffn = 12});
    under_test.data = layout_data_new(&layout_ascii, under_test.model->vocab, CHOICE_SEQ);
    int failed = run_on(size == 1 ? "self" : "mpi", 0);
    if (size == 2)
        failed += run_on("mpi", 1);
    model_free(under_test.model);
    data_free(under_test.data);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
