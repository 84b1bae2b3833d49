/* Run under mpirun with 1 to 4 ranks: the programs of tests/handmade.h leave behind what is said
 * there, and move the bytes that program_volume() says.  All values are small whole numbers, exact
 * in fp32. */
#include "exec/run/interpreter.h"
#include "sim/base/error.h"
#include "tests/exec/mpi_suite.h"
#include "tests/handmade.h"

#include <stdio.h>

enum { STEPS = 5, ELEMENTS = 37, MICRO_BATCHES = 4 };

/* What the tests run on; Check passes them nothing. */
static struct {
    Runtime *runtime;
    guint rank, ranks;
} under_test;

/* ---- tensors ---- */

static float *tensor(Interpreter *interpreter, const char *name, guint copy)
{
    const gint index = interpreter_find(interpreter, name);

    g_assert(index != NO_TENSOR);
    return interpreter_tensor(interpreter, (guint)index, copy);
}

/* Differs by rank, copy and element. */
static float input_value(guint rank, guint copy, guint64 element)
{
    return (float)(1 + rank * 100 + copy * 10 + element % 7);
}

static void fill(Interpreter *interpreter, const char *name, guint copies, guint64 elements)
{
    for (guint copy = 0; copy < copies; copy++)
        for (guint64 i = 0; i < elements; i++)
            tensor(interpreter, name, copy)[i] = input_value(under_test.rank, copy, i);
}

static gboolean is(Interpreter *interpreter, const char *name, guint64 element, float want)
{
    const float got = tensor(interpreter, name, 0)[element];

    if (got == want)
        return TRUE;
    fprintf(stderr, "rank %u: %s[%" G_GUINT64_FORMAT "] is %g, not %g\n", under_test.rank, name,
            element, (double)got, (double)want);
    return FALSE;
}

/* sum over micro-batches of rank 0's input */
static float input_sum(guint64 element)
{
    float sum = 0;

    for (guint m = 0; m < MICRO_BATCHES; m++)
        sum += input_value(0, m, element);
    return sum;
}

/* ---- running ---- */

static Interpreter *open_program(const ProgramSet *set)
{
    g_autoptr(GError) error = NULL;
    Interpreter *interpreter = interpreter_new(under_test.runtime, set, &error);

    g_assert_no_error(error);
    return interpreter;
}

/* Bytes by kind of these steps are those of the program. */
static gboolean run_steps(Interpreter *interpreter, guint steps)
{
    guint64 want[NUM_VOLUMES], before[NUM_VOLUMES], after[NUM_VOLUMES];
    g_autoptr(GError) error = NULL;
    gboolean ok = TRUE;

    program_volume(interpreter_program(interpreter), want);
    for (guint i = 0; i < steps; i++) {
        runtime_bytes_in(under_test.runtime, before);
        ok &= interpreter_step(interpreter, i == 2, &error);
        g_assert_no_error(error);
        runtime_bytes_in(under_test.runtime, after);
        /* A prologue runs before the first step and is not the step's. */
        for (guint v = 0; i > 0 && v < NUM_VOLUMES; v++)
            if (after[v] - before[v] != want[v]) {
                fprintf(stderr,
                        "rank %u: %s: %" G_GUINT64_FORMAT " bytes, not %" G_GUINT64_FORMAT "\n",
                        under_test.rank, volume_name((Volume)v), after[v] - before[v], want[v]);
                ok = FALSE;
            }
    }
    return ok;
}

static void drain(Interpreter *interpreter)
{
    g_autoptr(GError) error = NULL;
    const gboolean ok = interpreter_drain(interpreter, &error);

    g_assert_no_error(error);
    g_assert(ok);
}

/* ---- tests ---- */

START_TEST(two_stages_exchange_activations_and_gradients)
{
    if (under_test.ranks != 2)
        return;
    g_autoptr(ProgramSet) set = handmade_pipeline(MICRO_BATCHES, ELEMENTS);
    g_autoptr(Interpreter) interpreter = open_program(set);

    if (under_test.rank == 0)
        fill(interpreter, "input", MICRO_BATCHES, ELEMENTS);
    gboolean ok = run_steps(interpreter, STEPS);
    drain(interpreter);
    for (guint64 i = 0; i < ELEMENTS; i++)
        ok &= under_test.rank == 0 ? is(interpreter, "gradient", i, 2 * STEPS * input_sum(i))
                                   : is(interpreter, "sum", i, STEPS * input_sum(i));
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

START_TEST(middle_ranks_send_on_while_they_receive)
{
    if (under_test.ranks < 2)
        return;
    const float doubled = (float)(1u << (under_test.ranks - 2));
    g_autoptr(ProgramSet) set = handmade_relay(under_test.ranks, MICRO_BATCHES, ELEMENTS);
    g_autoptr(Interpreter) interpreter = open_program(set);

    if (under_test.rank == 0)
        fill(interpreter, "input", MICRO_BATCHES, ELEMENTS);
    gboolean ok = run_steps(interpreter, STEPS);
    drain(interpreter);
    for (guint64 i = 0; under_test.rank + 1 == under_test.ranks && i < ELEMENTS; i++)
        ok &= is(interpreter, "sum", i, STEPS * doubled * input_sum(i));
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* Larger than what MPI buffers: were a send to block until it is received, all ranks would. */
START_TEST(all_ranks_of_a_ring_send_and_receive_at_once)
{
    static const guint64 sizes[] = {ELEMENTS, 100000};
    const guint left = (under_test.rank + under_test.ranks - 1) % under_test.ranks;
    const guint64 elements = sizes[_i];
    g_autoptr(ProgramSet) set = handmade_ring(under_test.ranks, elements);
    g_autoptr(Interpreter) interpreter = open_program(set);

    fill(interpreter, "input", 1, elements);
    gboolean ok = run_steps(interpreter, STEPS);
    drain(interpreter);
    for (guint64 i = 0; ok && i < elements; i++)
        ok = is(interpreter, "output", i,
                input_value(under_test.rank, 0, i) + input_value(left, 0, i));
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

START_TEST(collectives_within_a_block_run_in_its_order)
{
    const guint ranks = under_test.ranks;
    g_autoptr(ProgramSet) set = handmade_block(ranks, 3, ELEMENTS);
    g_autoptr(Interpreter) interpreter = open_program(set);

    fill(interpreter, "input", 1, (guint64)ranks * ELEMENTS);
    fill(interpreter, "shard", 1, ELEMENTS);
    gboolean ok = run_steps(interpreter, STEPS);
    drain(interpreter);
    for (guint64 i = 0; i < (guint64)ranks * ELEMENTS; i++) {
        float sum = 0;

        for (guint r = 0; r < ranks; r++)
            sum += input_value(r, 0, i);
        ok &= is(interpreter, "reduced", i, sum);
    }
    for (guint64 i = 0; i < ELEMENTS; i++)
        ok &= is(interpreter, "scattered", i, (float)ranks * input_value(under_test.rank, 0, i));
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

/* own0 is the input's value, the increment 3. */
static gboolean prefetch_holds(Interpreter *interpreter, guint steps)
{
    gboolean ok = TRUE;

    for (guint64 i = 0; i < ELEMENTS; i++)
        ok &= is(interpreter, "own", i, input_value(under_test.rank, 0, i) + 3 * (float)steps);
    for (guint64 i = 0; i < (guint64)under_test.ranks * ELEMENTS; i++) {
        const float own0 = input_value((guint)(i / ELEMENTS), 0, i % ELEMENTS);

        ok &= is(interpreter, "final", i, own0 + 3 * (float)steps);
        ok &= is(interpreter, "output", i,
                 (float)steps * own0 + 3 * (float)(steps * (steps - 1) / 2));
    }
    return ok;
}

/* After a drain the prologue runs again. */
START_TEST(a_prologue_feeds_the_first_step_and_an_epilogue_takes_the_last_gather)
{
    g_autoptr(ProgramSet) set = handmade_prefetch(under_test.ranks, ELEMENTS);
    g_autoptr(Interpreter) interpreter = open_program(set);
    gboolean ok = TRUE;

    fill(interpreter, "own", 1, ELEMENTS);
    for (guint64 i = 0; i < ELEMENTS; i++)
        tensor(interpreter, "increment", 0)[i] = 3;
    for (guint round = 1; round <= 3; round++) {
        ok &= run_steps(interpreter, STEPS);
        drain(interpreter);
        ok &= prefetch_holds(interpreter, round * STEPS);
    }
    mpi_verdict(under_test.runtime, ok);
}
END_TEST

START_TEST(a_job_of_another_size_is_refused)
{
    g_autoptr(ProgramSet) set = handmade_ring(under_test.ranks + 1, ELEMENTS);
    g_autoptr(GError) error = NULL;
    g_autoptr(Interpreter) interpreter = interpreter_new(under_test.runtime, set, &error);

    mpi_verdict(under_test.runtime,
                interpreter == NULL && g_error_matches(error, ERROR_DOMAIN, ERROR_INPUT));
}
END_TEST

static Suite *handmade_suite(Runtime *runtime, guint ranks_per_node)
{
    Suite *suite = suite_create(ranks_per_node == 0 ? "handmade" : "handmade over rings");
    TCase *tcase = tcase_create("programs");

    under_test.runtime = runtime;
    under_test.rank = runtime_rank(runtime);
    under_test.ranks = runtime_size(runtime);
    tcase_add_test(tcase, two_stages_exchange_activations_and_gradients);
    tcase_add_test(tcase, middle_ranks_send_on_while_they_receive);
    tcase_add_loop_test(tcase, all_ranks_of_a_ring_send_and_receive_at_once, 0, 2);
    tcase_add_test(tcase, collectives_within_a_block_run_in_its_order);
    tcase_add_test(tcase, a_prologue_feeds_the_first_step_and_an_epilogue_takes_the_last_gather);
    tcase_add_test(tcase, a_job_of_another_size_is_refused);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    mpi_suite_start();
    const int failed = mpi_suite_run_on_nodes(handmade_suite);
    MPI_Finalize();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
