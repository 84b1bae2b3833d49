/* This program is also the job it tests: `test_launch_local job MODE` starts ranks of itself, which
 * meet without MPI. */
#include "exec/comm/comm_tcp.h"
#include "exec/launch/launch.h"
#include "exec/launch/launch_local.h"
#include "sim/base/error.h"
#include "tests/exec/launch_job.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define END_S 10.0 /* what must be gone is gone within this */

/* ---- The job ---- */

/* Every rank does a step until one of them is asked to stop, as training does. */
static gboolean loop(Comm *comm, gboolean stubborn, GError **error)
{
    const double end_s = clock_s() + JOB_LIMIT_S;

    for (gint64 stop = 0; stop == 0;) {
        stop = clock_s() > end_s || (process_stop_requested() && !stubborn);
        if (!comm->ops->agree_max(comm, &stop, error))
            return FALSE;
        g_usleep(2000);
    }
    return TRUE;
}

static int rank_main(const LaunchEnvironment *launch, int argc, char **argv, GError **error)
{
    const char *mode = argv[2], *word = argc > 3 ? argv[3] : "-";
    const CommRendezvous how = {.host = launch->host,
                                .port = launch->port,
                                .listener = launch->listener,
                                .rank = launch->rank,
                                .size = launch->size,
                                .job = "a test",
                                .limit_s = (guint)JOB_LIMIT_S};
    Comm *comm = comm_tcp_open(&how, error);

    if (comm == NULL)
        return 3;
    printf("rank %u pid %d local %u threads %s blas %s word %s\n", launch->rank, getpid(),
           launch->local_rank, g_getenv("OMP_NUM_THREADS"), g_getenv("OPENBLAS_NUM_THREADS"), word);
    fflush(stdout);
    if (launch->rank == 1 && g_str_equal(mode, "exit"))
        _exit(atoi(word));
    if (launch->rank == 1 && g_str_equal(mode, "abort"))
        comm->ops->abort(comm, atoi(word));
    const gboolean ok =
        g_str_equal(mode, "end") || loop(comm, g_str_equal(mode, "stubborn"), error);
    comm_free(comm);
    return ok ? 0 : error_exit_status(*error);
}

static int job_main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    LaunchEnvironment launch;
    int status = 0;

    if (!launch_environment(&launch, &error))
        status = 2;
    else if (launch.kind == LAUNCH_BY_HAND)
        status = launch_local(argc, argv, RANKS, THREADS, &error);
    else if (!launch_rank_started(&launch, &error))
        status = 3;
    else
        status = rank_main(&launch, argc, argv, &error);
    if (error != NULL)
        g_printerr("test_launch_local: %s\n", error->message);
    return status;
}

/* ---- Starting and watching it ---- */

static Running start(const char *mode, const char *word)
{
    Running job = {0};
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    const char *command[] = {program, "job", mode, word, NULL};

    ck_assert(g_spawn_async_with_pipes(NULL, (char **)command, NULL, G_SPAWN_DO_NOT_REAP_CHILD,
                                       reset_signals, NULL, &job.pid, NULL, &job.out, &job.err,
                                       NULL));
    return job;
}

/* Waits until all ranks have said who they are. */
static void await_ranks(Running *job)
{
    for (guint i = 0; i < RANKS; i++) {
        char line[512], threads[16], blas[16];
        guint rank, local_rank;
        int pid;

        read_line(job->out, line, sizeof line);
        ck_assert_msg(sscanf(line, "rank %u pid %d local %u threads %15s blas %15s word ", &rank,
                             &pid, &local_rank, threads, blas) == 5,
                      "'%s'", line);
        ck_assert_uint_lt(rank, RANKS);
        ck_assert_uint_eq(local_rank, rank);
        ck_assert_str_eq(threads, G_STRINGIFY(THREADS));
        ck_assert_str_eq(blas, "1");
        job->rank[rank] = pid;
    }
}

static void assert_nothing_left(const Running *job)
{
    const double end_s = clock_s() + END_S;
    gboolean alive = TRUE;

    while (alive && clock_s() < end_s) {
        alive = FALSE;
        for (guint i = 0; i < RANKS; i++)
            alive = alive || is_alive(job->rank[i]);
        g_usleep(5000);
    }
    ck_assert(!alive);
}

/* ---- Tests ---- */

START_TEST(ranks_meet_and_end)
{
    const char *word = "two  words, 'quotes' \\ and $HOME";
    Running job = start("end", word);
    char line[512];

    for (guint i = 0; i < RANKS; i++) {
        read_line(job.out, line, sizeof line);
        ck_assert_msg(strstr(line, word) != NULL, "%s", line);
    }
    ck_assert_int_eq(finish(&job), 0);
    ck_assert_str_eq(job.told, "");
}
END_TEST

START_TEST(a_status_of_a_rank_is_that_of_the_job)
{
    static const struct {
        const char *mode, *word;
        int status;
        const char *told;
    } ends[] = {{"abort", "2", 2, "has stopped the job"},
                {"abort", "3", 3, "has stopped the job"},
                {"exit", "4", 4, ") died"},
                {"exit", "77", 3, "rank 1 ended with status 77; the others are ended"}};
    Running job = start(ends[_i].mode, ends[_i].word);

    await_ranks(&job);
    ck_assert_int_eq(finish(&job), ends[_i].status);
    ck_assert_msg(strstr(job.told, ends[_i].told) != NULL, "%s", job.told);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_signal_to_the_starter_lets_all_ranks_finish)
{
    static const int signals[] = {SIGINT, SIGTERM};
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.pid, signals[_i]);
    ck_assert_int_eq(finish(&job), 0);
    ck_assert_str_eq(job.told, "");
    assert_nothing_left(&job);
}
END_TEST

START_TEST(an_interrupt_before_the_ranks_are_there_waits_for_them)
{
    Running job = start("loop", "-");

    g_usleep(10000 * (gulong)_i); /* 0 may hit a process that has not come to launch_local() */
    kill(job.pid, SIGINT);
    const int status = finish(&job);
    ck_assert_msg(status == 0 || status == 128 + SIGINT, "%d: %s", status, job.told);
    ck_assert_str_eq(job.told, "");
}
END_TEST

START_TEST(a_second_interrupt_ends_the_job)
{
    Running job = start("stubborn", "-");

    await_ranks(&job);
    kill(job.pid, SIGINT);
    g_usleep(200000);
    ck_assert(is_alive(job.rank[0]));
    kill(job.pid, SIGINT);
    ck_assert_int_eq(finish(&job), 3);
    ck_assert_msg(strstr(job.told, "interrupted twice") != NULL, "%s", job.told);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_killed_rank_ends_the_job)
{
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.rank[_i], SIGKILL);
    ck_assert_int_eq(finish(&job), 3);
    g_autofree char *name =
        g_strdup_printf("rank %d (pid %d on host %s) died\n", _i, job.rank[_i], g_get_host_name());
    ck_assert_msg(strstr(job.told, name) != NULL, "%s", job.told);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_killed_starter_ends_the_job)
{
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.pid, SIGKILL);
    ck_assert_int_eq(finish(&job), 128 + SIGKILL);
    assert_nothing_left(&job);
}
END_TEST

START_TEST(a_stopped_rank_is_ended_with_the_others)
{
    Running job = start("loop", "-");

    await_ranks(&job);
    kill(job.rank[2], SIGSTOP);
    kill(job.rank[1], SIGKILL);
    ck_assert_int_eq(finish(&job), 3);
    assert_nothing_left(&job);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("launch_local");
    TCase *tcase = tcase_create("job");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, ranks_meet_and_end);
    tcase_add_loop_test(tcase, a_status_of_a_rank_is_that_of_the_job, 0, 4);
    tcase_add_loop_test(tcase, a_signal_to_the_starter_lets_all_ranks_finish, 0, 2);
    tcase_add_loop_test(tcase, an_interrupt_before_the_ranks_are_there_waits_for_them, 0, 8);
    tcase_add_test(tcase, a_second_interrupt_ends_the_job);
    tcase_add_loop_test(tcase, a_killed_rank_ends_the_job, 0, RANKS);
    tcase_add_test(tcase, a_killed_starter_ends_the_job);
    tcase_add_test(tcase, a_stopped_rank_is_ended_with_the_others);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(int argc, char **argv)
{
    if (argc > 2 && g_str_equal(argv[1], "job"))
        return job_main(argc, argv);
    return suite_run(make_suite());
}
