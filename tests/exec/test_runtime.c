#include "sim/base/error.h"
#include "tests/exec/runtime_case.h"
#include "tests/suite.h"

static const ProgressLane lanes[] = {LANE_COMMUNICATION, LANE_STORAGE};

/* Of one test: each runs in a process of its own. */
static struct {
    Runtime *runtime;
    Comm *left;          /* by a thread that failed: nobody closes it, since peers may be gone */
    atomic_bool failing; /* a job is about to fail */
    atomic_bool done;    /* the slow job is */
} under_test;

static void open_runtime(void)
{
    under_test.runtime = case_runtime_alone();
    runtime_start_storage(under_test.runtime);
}

static gboolean fail_job(Comm *comm, gconstpointer job, GError **error)
{
    (void)job;
    under_test.left = comm;
    atomic_store(&under_test.failing, TRUE);
    return fail(error, ERROR_RUNTIME, "the disk is on fire");
}

/* Goes on for long after the other lane has failed. */
static gboolean slow_job(Comm *comm, gconstpointer job, GError **error)
{
    (void)comm;
    (void)job;
    (void)error;
    while (!atomic_load(&under_test.failing))
        g_usleep(100);
    g_usleep(50000);
    atomic_store(&under_test.done, TRUE);
    return TRUE;
}

/* Who waits for it may free what jobs use. */
START_TEST(quiet_is_when_no_thread_is_in_a_job_though_one_has_failed)
{
    const ProgressLane fails = lanes[_i], works = lanes[1 - _i];
    g_autoptr(GError) error = NULL;

    open_runtime();
    ck_assert_uint_ne(runtime_post(under_test.runtime, works, slow_job, NULL, 0), 0);
    ck_assert_uint_ne(runtime_post(under_test.runtime, fails, fail_job, NULL, 0), 0);
    ck_assert(!runtime_quiet(under_test.runtime, &error));
    ck_assert(atomic_load(&under_test.done));
    ck_assert_str_eq(error->message, "the disk is on fire");
    runtime_close(under_test.runtime);
}
END_TEST

/* ---- jobs of one lane that wait for another's ---- */

typedef struct {
    ProgressLane lane;
    guint64 ordinal;
} Awaited;

static gboolean wait_job(Comm *comm, gconstpointer job, GError **error)
{
    const Awaited *awaited = job;

    (void)comm;
    return runtime_wait_in_job(under_test.runtime, awaited->lane, awaited->ordinal, error);
}

START_TEST(a_job_that_waits_for_one_that_fails_fails_of_the_same)
{
    const ProgressLane waits = lanes[1 - _i];
    g_autoptr(GError) error = NULL;

    open_runtime();
    const Awaited awaited = {lanes[_i],
                             runtime_post(under_test.runtime, lanes[_i], fail_job, NULL, 0)};
    const guint64 waiting =
        runtime_post(under_test.runtime, waits, wait_job, &awaited, sizeof awaited);
    ck_assert(!runtime_wait(under_test.runtime, waits, waiting));
    ck_assert(!runtime_failed(under_test.runtime, &error));
    ck_assert_str_eq(error->message, "the disk is on fire");
    runtime_close(under_test.runtime);
}
END_TEST

START_TEST(a_job_that_waits_for_another_runs_after_it)
{
    const ProgressLane waits = lanes[1 - _i];
    g_autoptr(GError) error = NULL;

    open_runtime();
    atomic_store(&under_test.failing, TRUE);
    const Awaited awaited = {lanes[_i],
                             runtime_post(under_test.runtime, lanes[_i], slow_job, NULL, 0)};
    const guint64 waiting =
        runtime_post(under_test.runtime, waits, wait_job, &awaited, sizeof awaited);
    ck_assert(runtime_wait(under_test.runtime, waits, waiting));
    ck_assert(atomic_load(&under_test.done));
    ck_assert(runtime_quiet(under_test.runtime, &error));
    runtime_close(under_test.runtime);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runtime");
    TCase *tcase = tcase_create("threads");

    tcase_add_loop_test(tcase, quiet_is_when_no_thread_is_in_a_job_though_one_has_failed, 0,
                        G_N_ELEMENTS(lanes));
    tcase_add_loop_test(tcase, a_job_that_waits_for_one_that_fails_fails_of_the_same, 0,
                        G_N_ELEMENTS(lanes));
    tcase_add_loop_test(tcase, a_job_that_waits_for_another_runs_after_it, 0, G_N_ELEMENTS(lanes));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
