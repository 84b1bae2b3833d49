/* The control channel without MPI: ranks are children that meet on this machine. */
#include "exec/base/process.h"
#include "exec/comm/comm_tcp.h"
#include "sim/base/error.h"
#include "tests/listen.h"
#include "tests/suite.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 5, TIMEOUT_S = 60, LONG_S = 30, TEXT_BYTES = 4096 };

/* ---- a job ---- */

/* What a rank does once all have met; its exit status. */
typedef int Work(Comm *comm, GError **error);

typedef struct {
    guint num; /* processes */
    CommRendezvous how[MOST];
    guint late_ms[MOST];
    Work *work;

    guint port;
    int listener;
    pid_t pid[MOST];
    int out[MOST]; /* standard error of each */
    int status[MOST];
    char text[MOST][TEXT_BYTES];
} Job;

/* Ranks 0 to @num - 1 of as many, of which 0 has a socket that listens already. */
static Job job_of(guint num, Work *work)
{
    Job job = {.num = num, .work = work};

    job.listener = listen_somewhere(&job.port);
    for (guint i = 0; i < num; i++)
        job.how[i] = (CommRendezvous){.host = "127.0.0.1",
                                      .port = job.port,
                                      .listener = i == 0 ? job.listener : -1,
                                      .rank = i,
                                      .size = num,
                                      .job = "a test",
                                      .limit_s = LONG_S};
    return job;
}

static int run_rank(const Job *job, guint i)
{
    g_autoptr(GError) error = NULL;

    g_usleep(1000 * (gulong)job->late_ms[i]);
    Comm *comm = comm_tcp_open(&job->how[i], &error);
    const int status = comm == NULL ? error_exit_status(error) : job->work(comm, &error);
    if (error != NULL)
        fprintf(stderr, "%s\n", error->message);
    return status;
}

static void become_rank(const Job *job, guint i, int out)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDERR_FILENO);
    if (job->how[i].listener < 0)
        close(job->listener);
    const int status = run_rank(job, i);
    fflush(stderr);
    _exit(status);
}

static void job_start(Job *job)
{
    for (guint i = 0; i < job->num; i++) {
        int ends[2];

        ck_assert_int_eq(pipe(ends), 0);
        job->pid[i] = fork();
        ck_assert_int_ge(job->pid[i], 0);
        if (job->pid[i] == 0)
            become_rank(job, i, ends[1]);
        close(ends[1]);
        job->out[i] = ends[0];
    }
    close(job->listener); /* rank 0 alone has it */
}

/* All must end within @limit_s. */
static void job_end(Job *job, double limit_s)
{
    const double end_s = clock_s() + limit_s;

    for (guint i = 0; i < job->num; i++) {
        gsize bytes = 0;
        gssize got;
        int status;

        while (waitpid(job->pid[i], &status, WNOHANG) == 0) {
            ck_assert_msg(clock_s() < end_s, "rank %u goes on", i);
            g_usleep(2000);
        }
        job->status[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        while ((got = read(job->out[i], job->text[i] + bytes, TEXT_BYTES - 1 - bytes)) > 0)
            bytes += (gsize)got;
        close(job->out[i]);
    }
}

static void assert_says(const Job *job, guint i, int status, const char *text)
{
    const char *newline = strchr(job->text[i], '\n');

    ck_assert_msg(job->status[i] == status, "rank %u: status %d: %s", i, job->status[i],
                  job->text[i]);
    ck_assert_msg(strstr(job->text[i], text) != NULL, "rank %u: %s", i, job->text[i]);
    ck_assert_msg(text[0] == '\0' || (newline != NULL && newline[1] == '\0'), "rank %u: %s", i,
                  job->text[i]);
}

static void assert_all_well(const Job *job)
{
    for (guint i = 0; i < job->num; i++)
        assert_says(job, i, 0, "");
}

/* ---- what ranks do ---- */

static int nothing(Comm *comm, GError **error)
{
    (void)error;
    comm_free(comm);
    return 0;
}

static int agree(Comm *comm, GError **error)
{
    for (guint round = 0; round < 100; round++) {
        const guint most = round % comm->size;
        gint64 value = comm->rank == most ? 5 : -(gint64)round - G_MAXINT32;

        if (!comm->ops->agree_max(comm, &value, error))
            return 3;
        if (value != 5)
            return 1;
    }
    if (comm->node_ranks != comm->size || comm->bytes_in[VOLUME_ALL_REDUCE] != 0)
        return 1;
    comm_free(comm);
    return 0;
}

/* Rank 1 has nothing to say, the others more than a socket holds. */
static gsize length_of(guint rank)
{
    enum { LONGEST = 6000000 };

    return rank == 1 ? 0 : LONGEST - rank;
}

static gboolean is_right(GPtrArray *all, guint rank)
{
    gsize bytes;
    const char *data = g_bytes_get_data(g_ptr_array_index(all, rank), &bytes);

    for (gsize b = 0; b < bytes; b++)
        if (data[b] != (char)(rank + 1))
            return FALSE;
    return bytes == length_of(rank);
}

static int gather(Comm *comm, GError **error)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    g_autofree char *data = g_malloc(length_of(0));

    memset(data, (int)comm->rank + 1, length_of(0));
    for (guint round = 0; round < 3; round++) {
        g_ptr_array_set_size(all, 0);
        if (!comm->ops->gather_bytes(comm, data, length_of(comm->rank), all, error))
            return 3;
        if (all->len != (comm->rank == 0 ? comm->size : 0))
            return 1;
        for (guint rank = 0; rank < all->len; rank++)
            if (!is_right(all, rank))
                return 1;
    }
    comm_free(comm);
    return 0;
}

static int move_tensors(Comm *comm, GError **error)
{
    CommGroup group = {.comm = comm, .size = comm->size}, *made = &group;
    const CommRun run = {0, 1};
    const guint ranks[] = {0, 1};
    float buffer = 1;

    if (comm->ops->group(comm, ranks, 2, "test", &made, NULL) || made != NULL ||
        comm->ops->exchange(&group, NULL, 0, NULL) ||
        comm->ops->all_gather(&group, NULL, &buffer, NULL, 0, DTYPE_FP32, NULL) ||
        comm->ops->reduce_scatter(&group, &buffer, NULL, NULL, 0, DTYPE_FP32, NULL) ||
        comm->ops->all_reduce(&group, &buffer, &run, 1, DTYPE_FP32, REDUCE_SUM, error))
        return 1;
    comm_free(comm);
    return 2;
}

/* Looks without end, as a rank does whose device is busy. */
static int look(Comm *comm, GError **error)
{
    while (comm->ops->check(comm, error))
        g_usleep(100);
    return 3;
}

static int agree_without_end(Comm *comm, GError **error)
{
    gint64 value = 0;

    while (comm->ops->agree_max(comm, &value, error))
        ;
    return 3;
}

/* Rank 1 looks; the others have said a value, or wait for one. */
static int wait_for_one_that_looks(Comm *comm, GError **error)
{
    return (comm->rank == 1 ? look : agree_without_end)(comm, error);
}

static int stop_as_rank_1(Comm *comm, GError **error)
{
    enum { STATUS = 2 };

    g_usleep(50000);
    if (comm->rank == 1)
        comm->ops->abort(comm, STATUS);
    return look(comm, error) == 3 && g_error_matches(*error, ERROR_DOMAIN, ERROR_INPUT) ? STATUS
                                                                                        : 1;
}

/* ---- jobs that meet ---- */

START_TEST(the_greatest_value_is_agreed_on_by_any_number)
{
    Job job = job_of((guint)_i, agree);

    job_start(&job);
    job_end(&job, LONG_S);
    assert_all_well(&job);
}
END_TEST

START_TEST(bytes_of_any_length_are_gathered_in_order)
{
    Job job = job_of((guint)_i, gather);

    job_start(&job);
    job_end(&job, LONG_S);
    assert_all_well(&job);
}
END_TEST

/* And here rank 0 is this process, so that its leaks are found. */
START_TEST(rank_0_may_come_last_and_leaves_nothing)
{
    Job job = job_of(4, agree), others = job;
    g_autoptr(GError) error = NULL;

    others.num = 3;
    memmove(others.how, job.how + 1, 3 * sizeof *job.how);
    close(job.listener);
    others.listener = -1; /* nobody listens yet */
    job.how[0].listener = -1;
    job_start(&others);
    g_usleep(100000);
    Comm *comm = comm_tcp_open(&job.how[0], &error);
    ck_assert_msg(comm != NULL, "%s", error ? error->message : "");
    ck_assert_int_eq(agree(comm, &error), 0);
    job_end(&others, LONG_S);
    assert_all_well(&others);
}
END_TEST

START_TEST(names_and_both_families_of_addresses_lead_to_rank_0)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "::1"};
    Job job = job_of(2, agree);

    if (_i == 2 && access("/proc/net/if_inet6", R_OK) != 0)
        return; /* a machine without */
    close(job.listener);
    job.how[0].listener = job.listener = -1;
    job.how[1].host = hosts[_i];
    job_start(&job);
    job_end(&job, LONG_S);
    assert_all_well(&job);
}
END_TEST

START_TEST(tensors_are_refused_by_name)
{
    Job job = job_of(2, move_tensors);

    job_start(&job);
    job_end(&job, LONG_S);
    for (guint i = 0; i < 2; i++)
        assert_says(&job, i, 2, "transport \"tcp\" carries what ranks agree on, but no tensors");
}
END_TEST

/* ---- strangers ---- */

static int connect_here(guint port)
{
    const struct sockaddr_in there = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons((guint16)port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(connect(fd, (const struct sockaddr *)(const void *)&there, sizeof there), 0);
    return fd;
}

START_TEST(a_stranger_is_said_and_holds_nobody_up)
{
    static const char *const says[] = {"GET / HTTP/1.1\r\n\r\n", "", "fsdp-run",
                                       "fsdp-run\1\0\0\0\4\0\0\0 and more than a head",
                                       "\xff\xff\xff\xff"};
    static const gsize bytes[] = {18, 0, 8, 37, 4};
    Job job = job_of(3, nothing);
    const int rubbish = connect_here(job.port), silent = connect_here(job.port);
    const int gone = connect_here(job.port);

    ck_assert_int_eq(write(rubbish, says[_i], bytes[_i]), (gssize)bytes[_i]);
    close(gone);
    job_start(&job);
    job_end(&job, LONG_S);
    for (guint i = 0; i < 3; i++)
        ck_assert_msg(job.status[i] == 0, "rank %u: %s", i, job.text[i]);
    ck_assert_msg(strstr(job.text[0], "fsdp-run: rank 0: what connected from 127.0.0.1 is no rank "
                                      "of this job: ignored\n") == job.text[0],
                  "%s", job.text[0]);
    close(rubbish);
    close(silent);
}
END_TEST

START_TEST(something_else_at_the_port_is_told_from_rank_0)
{
    Job job = job_of(2, nothing), alone = job;

    /* Rank 1 only; this process answers. */
    alone.num = 1;
    alone.how[0] = job.how[1];
    alone.listener = dup(job.listener);
    job_start(&alone);
    const int fd = accept(job.listener, NULL, NULL);
    ck_assert_int_ge(fd, 0);
    if (_i == 0)
        ck_assert_int_gt(write(fd, "220 mail.example.org ESMTP ready, what can I do for you?", 56),
                         0);
    shutdown(fd, SHUT_WR);
    job_end(&alone, LONG_S);
    assert_says(&alone, 0, 3, _i == 0 ? "is no rank 0 of fsdp-run" : "ended before all ranks");
    close(fd);
    close(job.listener);
}
END_TEST

/* ---- jobs that can't be ---- */

START_TEST(ranks_that_count_differently_are_refused)
{
    Job job = job_of(4, nothing);

    job.how[2].size = (guint)_i;
    job_start(&job);
    job_end(&job, LONG_S);
    for (guint i = 0; i < 4; i++) {
        g_autofree char *text =
            g_strdup_printf("says that it is rank 2 of %d, and rank 0 (pid ", _i);

        assert_says(&job, i, 2, text);
    }
}
END_TEST

START_TEST(two_that_say_the_same_rank_are_refused)
{
    Job job = job_of(4, nothing);

    job.how[3].rank = 1;
    job_start(&job);
    job_end(&job, LONG_S);
    for (guint i = 0; i < 4; i++)
        assert_says(&job, i, 2, "two processes say that they are rank 1: pid ");
}
END_TEST

START_TEST(ranks_of_different_programs_are_refused)
{
    Job job = job_of(3, nothing);

    job.how[1].job = "another\n\x1b[31mtest";
    job_start(&job);
    job_end(&job, LONG_S);
    for (guint i = 0; i < 3; i++)
        assert_says(&job, i, 2, ") runs another??[31mtest, rank 0 a test");
}
END_TEST

START_TEST(ranks_that_do_not_come_are_named)
{
    Job job = job_of(4, nothing);

    job.num = 2; /* of 4 */
    job.how[0].limit_s = job.how[1].limit_s = 1;
    job_start(&job);
    job_end(&job, 5);
    for (guint i = 0; i < 2; i++)
        assert_says(&job, i, 3, "ranks 2, 3 did not come to 127.0.0.1, port ");
    ck_assert_ptr_nonnull(strstr(job.text[0], "within 1 s"));
}
END_TEST

START_TEST(a_rank_that_dies_before_all_have_come_is_named)
{
    Job job = job_of(4, nothing);

    job.num = 3; /* of 4 */
    job_start(&job);
    g_usleep(300000);
    ck_assert_int_eq(kill(job.pid[2], SIGKILL), 0);
    job_end(&job, 5);
    for (guint i = 0; i < 2; i++) {
        g_autofree char *text = g_strdup_printf("rank 2 (pid %d on host ", job.pid[2]);

        assert_says(&job, i, 3, text);
        assert_says(&job, i, 3, "ended before all ranks had come");
    }
}
END_TEST

START_TEST(a_rank_0_that_does_not_come_is_missed)
{
    static const struct {
        const char *host, *why;
    } cases[] = {{"127.0.0.1", "Connection refused"}, {"no-such-host.invalid", "within 1 s: "}};
    Job job = job_of(2, nothing), alone = job;

    close(job.listener);
    alone.listener = -1;
    alone.num = 1;
    alone.how[0] = job.how[1];
    alone.how[0].limit_s = 1;
    alone.how[0].host = cases[_i].host;
    job_start(&alone);
    job_end(&alone, 20); /* a resolver takes its time */
    assert_says(&alone, 0, 3, "nobody waits at ");
    assert_says(&alone, 0, 3, cases[_i].why);
}
END_TEST

START_TEST(a_port_in_use_is_said)
{
    guint port;
    const int other = listen_somewhere(&port);
    Job job = job_of(2, nothing), alone = job;

    alone.num = 1;
    alone.how[0].port = port;
    alone.how[0].listener = -1;
    job_start(&alone);
    job_end(&alone, 5);
    assert_says(&alone, 0, 3, "rank 0 can't wait for the others at port ");
    assert_says(&alone, 0, 3, "Address already in use");
    close(other);
}
END_TEST

/* ---- the end ---- */

static Work *const works[] = {look, agree_without_end, wait_for_one_that_looks};

START_TEST(a_killed_rank_ends_the_others_and_is_named)
{
    const guint victim = (guint)_i % 4;
    Job job = job_of(4, works[_i / 4]);

    job_start(&job);
    g_usleep(300000);
    ck_assert_int_eq(kill(job.pid[victim], SIGKILL), 0);
    job_end(&job, 5);
    for (guint i = 0; i < 4; i++) {
        g_autofree char *name = g_strdup_printf("rank %u (pid %d on host %s) died", victim,
                                                job.pid[victim], g_get_host_name());

        if (i != victim)
            assert_says(&job, i, 3, name);
    }
}
END_TEST

START_TEST(an_abort_ends_all_with_its_status)
{
    Job job = job_of(4, stop_as_rank_1);

    job_start(&job);
    job_end(&job, 5);
    ck_assert_int_eq(job.status[1], 2);
    for (guint i = 0; i < 4; i++)
        if (i != 1)
            assert_says(&job, i, 2, ") has stopped the job");
    ck_assert_ptr_nonnull(strstr(job.text[3], "rank 1 (pid "));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm_tcp");
    TCase *tcase = tcase_create("tcp");

    signal(SIGPIPE, SIG_IGN);
    tcase_set_timeout(tcase, TIMEOUT_S);
    tcase_add_loop_test(tcase, the_greatest_value_is_agreed_on_by_any_number, 1, MOST + 1);
    tcase_add_loop_test(tcase, bytes_of_any_length_are_gathered_in_order, 1, MOST);
    tcase_add_test(tcase, rank_0_may_come_last_and_leaves_nothing);
    tcase_add_loop_test(tcase, names_and_both_families_of_addresses_lead_to_rank_0, 0, 3);
    tcase_add_test(tcase, tensors_are_refused_by_name);
    tcase_add_loop_test(tcase, a_stranger_is_said_and_holds_nobody_up, 0, 5);
    tcase_add_loop_test(tcase, something_else_at_the_port_is_told_from_rank_0, 0, 2);
    tcase_add_loop_test(tcase, ranks_that_count_differently_are_refused, 3, 4);
    tcase_add_test(tcase, two_that_say_the_same_rank_are_refused);
    tcase_add_test(tcase, ranks_of_different_programs_are_refused);
    tcase_add_test(tcase, ranks_that_do_not_come_are_named);
    tcase_add_test(tcase, a_rank_that_dies_before_all_have_come_is_named);
    tcase_add_loop_test(tcase, a_rank_0_that_does_not_come_is_missed, 0, 2);
    tcase_add_test(tcase, a_port_in_use_is_said);
    tcase_add_loop_test(tcase, a_killed_rank_ends_the_others_and_is_named, 0,
                        4 * G_N_ELEMENTS(works));
    tcase_add_test(tcase, an_abort_ends_all_with_its_status);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
