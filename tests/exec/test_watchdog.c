/* One rank, its watchdog, and what is or is no progress.  Each test is a process of its own, which
 * the watchdog ends with STATUS. */
#include "exec/base/process.h"
#include "exec/run/watchdog.h"
#include "tests/exec/runtime_case.h"
#include "tests/handmade.h"
#include "tests/suite.h"

enum { ELEMENTS = 8, STATUS = 17, TIMEOUT_S = 60 };

#define LIMIT_S   0.4
#define LONG_S    (3 * LIMIT_S)
#define ENDLESS_S 30.0

typedef struct {
    Runtime *runtime;
    ProgramSet *set;
    Watchdog *watchdog;
} Job;

static Job job_start(void)
{
    Job job = {.runtime = case_runtime_alone(), .set = handmade_ring(1, ELEMENTS)};

    job.watchdog = watchdog_start(job.runtime, job.set, LIMIT_S, STATUS);
    return job;
}

static void job_end(Job *job)
{
    watchdog_stop(job->watchdog);
    runtime_close(job->runtime);
    program_set_free(job->set);
}

static void sleep_s(double seconds)
{
    g_usleep((gulong)(seconds * 1e6));
}

static gboolean job_sleep(Comm *comm, gconstpointer data, GError **error)
{
    (void)error;
    progress_begin(&comm->progress, LANE_COMMUNICATION, progress_at(1, 0));
    sleep_s(*(const double *)data);
    progress_end(&comm->progress, LANE_COMMUNICATION);
    return TRUE;
}

START_TEST(ops_that_follow_each_other_are_progress)
{
    Job job = job_start();
    const double end_s = clock_s() + LONG_S;

    for (guint i = 0; clock_s() < end_s; i++) {
        runtime_begin(job.runtime, progress_at(1, i));
        sleep_s(LIMIT_S / 10);
        runtime_end(job.runtime);
    }
    job_end(&job);
}
END_TEST

START_TEST(one_long_op_that_computes_is_progress)
{
    Job job = job_start();
    const double end_s = clock_s() + LONG_S;

    runtime_begin(job.runtime, progress_at(1, 0));
    while (clock_s() < end_s)
        ;
    runtime_end(job.runtime);
    job_end(&job);
}
END_TEST

/* A copy of the storage thread: requests end for as long as it is told, the copy after another
 * time.
 */
typedef struct {
    double requests_s, then_s;
} CopyTimes;

static gboolean job_copy(Comm *comm, gconstpointer data, GError **error)
{
    const CopyTimes *times = data;
    const double end_s = clock_s() + times->requests_s;

    (void)error;
    progress_begin(&comm->progress, LANE_STORAGE, progress_at(1, 0));
    while (clock_s() < end_s) {
        sleep_s(LIMIT_S / 10);
        progress_tick(&comm->progress, LANE_STORAGE);
    }
    sleep_s(times->then_s);
    progress_end(&comm->progress, LANE_STORAGE);
    return TRUE;
}

static void job_run_copy(CopyTimes times)
{
    Job job = job_start();

    runtime_start_storage(job.runtime);
    ck_assert(
        runtime_wait(job.runtime, LANE_STORAGE,
                     runtime_post(job.runtime, LANE_STORAGE, job_copy, &times, sizeof times)));
    job_end(&job);
}

START_TEST(requests_of_a_copy_that_end_are_progress)
{
    job_run_copy((CopyTimes){.requests_s = LONG_S});
}
END_TEST

/* ---- what ends the process ---- */

START_TEST(an_op_that_does_not_compute_ends_the_job)
{
    Job job = job_start();

    runtime_begin(job.runtime, progress_at(1, 0));
    sleep_s(ENDLESS_S);
    job_end(&job);
}
END_TEST

START_TEST(an_op_of_the_communication_thread_that_hangs_ends_the_job)
{
    Job job = job_start();
    const double seconds = ENDLESS_S;
    g_autoptr(GError) error = NULL;

    ck_assert(runtime_do(job.runtime, job_sleep, &seconds, sizeof seconds, &error));
    job_end(&job);
}
END_TEST

START_TEST(a_copy_whose_requests_do_not_end_ends_the_job)
{
    job_run_copy((CopyTimes){.then_s = ENDLESS_S});
}
END_TEST

START_TEST(silence_between_ops_ends_the_job)
{
    Job job = job_start();

    sleep_s(ENDLESS_S);
    job_end(&job);
}
END_TEST

START_TEST(one_that_is_stopped_says_nothing)
{
    Job job = job_start();

    watchdog_stop(job.watchdog);
    job.watchdog = NULL;
    sleep_s(LONG_S);
    job_end(&job);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watchdog");
    TCase *tcase = tcase_create("watchdog");

    tcase_set_timeout(tcase, TIMEOUT_S);
    tcase_add_test(tcase, ops_that_follow_each_other_are_progress);
    tcase_add_test(tcase, one_long_op_that_computes_is_progress);
    tcase_add_test(tcase, requests_of_a_copy_that_end_are_progress);
    tcase_add_exit_test(tcase, an_op_that_does_not_compute_ends_the_job, STATUS);
    tcase_add_exit_test(tcase, an_op_of_the_communication_thread_that_hangs_ends_the_job, STATUS);
    tcase_add_exit_test(tcase, a_copy_whose_requests_do_not_end_ends_the_job, STATUS);
    tcase_add_exit_test(tcase, silence_between_ops_ends_the_job, STATUS);
    tcase_add_test(tcase, one_that_is_stopped_says_nothing);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
