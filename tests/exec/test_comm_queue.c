#include "exec/comm/comm_queue.h"
#include "sim/base/error.h"
#include "tests/suite.h"

#include <malloc.h>
#include <pthread.h>
#include <time.h>

/* What jobs do: wait for the gate; then add their number to a log, or fail. */
typedef struct {
    guint number;
    gboolean gated, fail;
} Job;

/* Holds the communication thread inside a job. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    gboolean open;
} Gate;

typedef struct {
    CommQueue *queue;
    guint log[20000];
    gint num; /* atomic */
    GThread *thread;
    Gate gate;
} Log;

static void gate_pass(Gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->opened, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_open(Log *log)
{
    pthread_mutex_lock(&log->gate.lock);
    log->gate.open = TRUE;
    pthread_cond_broadcast(&log->gate.opened);
    pthread_mutex_unlock(&log->gate.lock);
}

static gboolean run_job(gpointer context, gpointer data, GError **error)
{
    Log *log = context;
    const Job *job = data;

    log->thread = g_thread_self();
    if (job->gated)
        gate_pass(&log->gate);
    if (job->fail) {
        g_set_error(error, ERROR_DOMAIN, ERROR_RUNTIME, "job %u fails", job->number);
        return FALSE;
    }
    log->log[log->num] = job->number;
    g_atomic_int_inc(&log->num);
    return TRUE;
}

static Log *log_new(guint capacity)
{
    Log *log = g_new0(Log, 1);

    pthread_mutex_init(&log->gate.lock, NULL);
    pthread_cond_init(&log->gate.opened, NULL);
    log->queue = comm_queue_new(capacity, sizeof(Job), run_job, log);
    return log;
}

/* What is queued runs first. */
static void log_finish(Log *log)
{
    comm_queue_free(log->queue);
    log->queue = NULL;
}

static void log_free(Log *log)
{
    log_finish(log);
    pthread_cond_destroy(&log->gate.opened);
    pthread_mutex_destroy(&log->gate.lock);
    g_free(log);
}

static guint64 post(Log *log, Job job)
{
    return comm_queue_post(log->queue, &job);
}

START_TEST(jobs_run_in_order_on_one_other_thread)
{
    enum { JOBS = 20000 };
    Log *log = log_new(3);

    for (guint i = 0; i < JOBS; i++)
        ck_assert_uint_eq(post(log, (Job){.number = i}), i + 1);
    ck_assert(comm_queue_wait(log->queue, JOBS));
    ck_assert_int_eq(log->num, JOBS);
    for (guint i = 0; i < JOBS; i++)
        ck_assert_uint_eq(log->log[i], i);
    ck_assert_ptr_ne(log->thread, g_thread_self());
    ck_assert_ptr_null(comm_queue_error(log->queue));
    log_free(log);
}
END_TEST

START_TEST(a_wait_covers_the_job_and_all_before_it)
{
    Log *log = log_new(8);

    post(log, (Job){.number = 1});
    guint64 second = post(log, (Job){.number = 2});
    post(log, (Job){.number = 3, .gated = TRUE});
    ck_assert(comm_queue_wait(log->queue, second));
    ck_assert_uint_eq(log->log[0], 1);
    ck_assert_uint_eq(log->log[1], 2);
    ck_assert_int_eq(g_atomic_int_get(&log->num), 2);
    gate_open(log);
    log_free(log);
}
END_TEST

typedef struct {
    Log *log;
    gint posted; /* atomic */
    guint64 ordinal;
} Poster;

static gpointer post_one(gpointer data)
{
    Poster *poster = data;

    poster->ordinal = post(poster->log, (Job){.number = 9});
    g_atomic_int_set(&poster->posted, 1);
    return NULL;
}

START_TEST(posting_blocks_while_the_queue_is_full)
{
    Log *log = log_new(2);
    Poster poster = {.log = log};

    post(log, (Job){.number = 1, .gated = TRUE});
    post(log, (Job){.number = 2});
    GThread *thread = g_thread_new("poster", post_one, &poster);
    g_usleep(50000);
    ck_assert_int_eq(g_atomic_int_get(&poster.posted), 0);
    gate_open(log);
    g_thread_join(thread);
    ck_assert_uint_eq(poster.ordinal, 3);
    ck_assert(comm_queue_wait(log->queue, 3));
    log_free(log);
}
END_TEST

START_TEST(after_a_failed_job_nothing_runs_and_nobody_waits)
{
    Log *log = log_new(4);

    post(log, (Job){.number = 1, .gated = TRUE});
    guint64 failing = post(log, (Job){.number = 2, .fail = TRUE});
    guint64 later = post(log, (Job){.number = 3});
    gate_open(log);
    ck_assert(!comm_queue_wait(log->queue, later));
    ck_assert(!comm_queue_wait(log->queue, failing));
    ck_assert_uint_eq(post(log, (Job){.number = 4}), 0);
    ck_assert_str_eq(comm_queue_error(log->queue)->message, "job 2 fails");
    ck_assert_int_eq(log->num, 1);
    log_free(log);
}
END_TEST

START_TEST(a_failure_wakes_who_waits_for_room)
{
    Log *log = log_new(1);
    Poster poster = {.log = log, .ordinal = 77};

    post(log, (Job){.number = 1, .gated = TRUE, .fail = TRUE});
    GThread *thread = g_thread_new("poster", post_one, &poster);
    g_usleep(20000);
    ck_assert_int_eq(g_atomic_int_get(&poster.posted), 0);
    gate_open(log);
    g_thread_join(thread);
    ck_assert_uint_eq(poster.ordinal, 0);
    log_free(log);
}
END_TEST

START_TEST(freeing_finishes_what_is_queued)
{
    Log *log = log_new(16);

    post(log, (Job){.number = 0, .gated = TRUE});
    for (guint i = 1; i < 16; i++)
        post(log, (Job){.number = i});
    gate_open(log);
    log_finish(log);
    ck_assert_int_eq(log->num, 16);
    log_free(log);
}
END_TEST

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

START_TEST(waiting_takes_no_processor_time)
{
    Log *log = log_new(4);

    g_usleep(100000); /* waits for a job */
    post(log, (Job){.number = 1, .gated = TRUE});
    double before_s = cpu_s();
    g_usleep(200000); /* the job waits for the gate, the queue for the job */
    ck_assert_double_lt(cpu_s() - before_s, 0.05);
    gate_open(log);
    log_free(log);
}
END_TEST

/* The poster's allocations lie in the main arena, which mallinfo2() describes. */
START_TEST(posting_allocates_nothing)
{
    Log *log = log_new(4);

    comm_queue_wait(log->queue, post(log, (Job){.number = 0}));
    gsize before = mallinfo2().uordblks;
    for (guint i = 1; i < 1000; i++)
        comm_queue_wait(log->queue, post(log, (Job){.number = i}));
    ck_assert_uint_eq(mallinfo2().uordblks, before);
    log_free(log);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_queue");
    TCase *tcase = tcase_create("queue");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, jobs_run_in_order_on_one_other_thread);
    tcase_add_test(tcase, a_wait_covers_the_job_and_all_before_it);
    tcase_add_test(tcase, posting_blocks_while_the_queue_is_full);
    tcase_add_test(tcase, after_a_failed_job_nothing_runs_and_nobody_waits);
    tcase_add_test(tcase, a_failure_wakes_who_waits_for_room);
    tcase_add_test(tcase, freeing_finishes_what_is_queued);
    tcase_add_test(tcase, waiting_takes_no_processor_time);
    tcase_add_test(tcase, posting_allocates_nothing);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
