/* Ends one process of a running job by force.  Started without arguments this is the test: it runs
 * itself, with arguments, under mpirun. */
#include "exec/base/process.h"
#include "exec/comm/comm.h"
#include "exec/launch/launch.h"
#include "tests/suite.h"

#include <glib/gstdio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, VICTIM = 1, ABORT_STATUS = 7, FAILED_STATUS = 3, TIMEOUT_S = 60, LIMIT_S = 20 };

/* ---- a rank ---- */

static gboolean all_reduce(CommGroup *group, char *buffer, GError **error)
{
    const CommRun run = {0, 100000};

    return group->comm->ops->all_reduce(group, buffer, &run, 1, DTYPE_FP32, REDUCE_SUM, error);
}

static gboolean exchange(CommGroup *group, char *buffer, GError **error)
{
    enum { BYTES = 200000 };
    guint size = group->size;
    const CommMessage messages[] = {
        {buffer, BYTES, (group->rank + 1) % size, 0, TRUE},
        {buffer + BYTES, BYTES, (group->rank + size - 1) % size, 0, FALSE}};

    return group->comm->ops->exchange(group, messages, G_N_ELEMENTS(messages), error);
}

/* Operations without end; only a failure returns. */
static void work(Comm *comm, const char *what, GError **error)
{
    guint ranks[RANKS];
    CommGroup *group = NULL;
    char *buffer = comm->ops->alloc(comm, 400000, error);

    for (guint i = 0; i < RANKS; i++)
        ranks[i] = i;
    if (!buffer || !comm->ops->group(comm, ranks, RANKS, "world", &group, error))
        return;
    for (guint step = 1;; step++) {
        g_autofree char *note = g_strdup_printf("step %u %s", step, what);

        comm_note(comm, note);
        gboolean ok = g_str_equal(what, "exchange") ? exchange(group, buffer, error)
                                                    : all_reduce(group, buffer, error);
        if (!ok)
            return;
        if (step == 1) {
            printf("pid %u %d\n", comm->rank, getpid());
            fflush(stdout);
        }
        if (step == 20 && comm->rank == VICTIM && g_str_equal(what, "abort"))
            comm->ops->abort(comm, ABORT_STATUS);
    }
}

static int rank_main(const char *what, guint ranks_per_node)
{
    LaunchEnvironment launch;
    g_autoptr(GError) error = NULL;
    Comm *comm = NULL;

    if (launch_environment(&launch, &error) && launch_rank_started(&launch, &error))
        comm = comm_open("mpi", ranks_per_node, &error);
    if (comm) {
        work(comm, what, &error);
        comm->ops->abort(comm, FAILED_STATUS);
    }
    fprintf(stderr, "cannot start: %s\n", error->message);
    return FAILED_STATUS;
}

/* ---- the job, as the test sees it ---- */

typedef struct {
    char *shared, *session; /* folders that Open MPI puts files into */
    GPid mpirun;
    int pids[RANKS];
    FILE *out, *messages;
} Job;

static void job_read_pids(Job *job)
{
    char line[256];

    for (guint seen = 0; seen < RANKS;) {
        unsigned rank = 0;
        int pid = 0;

        ck_assert_msg(fgets(line, sizeof line, job->out) != NULL, "the ranks did not start");
        if (sscanf(line, "pid %u %d", &rank, &pid) != 2)
            continue;
        ck_assert_uint_lt(rank, RANKS);
        job->pids[rank] = pid;
        seen++;
    }
}

/* A test that fails takes its job along. */
static void die_with_test(gpointer unused)
{
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
}

static Job job_start(const char *what, const char *ranks_per_node)
{
    Job job = {.shared = g_strdup("/dev/shm/test_comm_death.XXXXXX"),
               .session = g_dir_make_tmp("test_comm_death.XXXXXX", NULL)};
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *ranks = g_strdup_printf("%d", RANKS);
    g_auto(GStrv) environment =
        g_environ_setenv(g_get_environ(), "ASAN_OPTIONS", "detect_leaks=0", TRUE);
    int out = -1, messages = -1;
    g_autoptr(GError) error = NULL;

    ck_assert_ptr_nonnull(g_mkdtemp(job.shared));
    const char *const command[] = {"mpirun",
                                   "--oversubscribe",
                                   "--allow-run-as-root",
                                   "--bind-to",
                                   "none",
                                   "--mca", /* 1 s is little where many share the cores */
                                   "odls_base_sigkill_timeout",
                                   "2",
                                   "--mca",
                                   "orte_tmpdir_base",
                                   job.session,
                                   "--mca",
                                   "btl_vader_backing_directory",
                                   job.shared,
                                   "--mca",
                                   "osc_sm_backing_directory",
                                   job.shared,
                                   "-np",
                                   ranks,
                                   self,
                                   what,
                                   ranks_per_node,
                                   NULL};
    g_spawn_async_with_pipes(NULL, (char **)command, environment,
                             G_SPAWN_SEARCH_PATH | G_SPAWN_DO_NOT_REAP_CHILD, die_with_test, NULL,
                             &job.mpirun, NULL, &out, &messages, &error);
    ck_assert_msg(!error, "mpirun: %s", error ? error->message : "");
    job.out = fdopen(out, "r");
    job.messages = fdopen(messages, "r");
    job_read_pids(&job);
    g_usleep(100000); /* into some later operation */
    return job;
}

/* Gone, or only not yet waited for. */
static gboolean ended(int pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", pid);
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        return TRUE;
    const char *state = strrchr(text, ')');
    return state && (state[2] == 'Z' || state[2] == 'X');
}

static gboolean all_ended(const Job *job)
{
    for (guint i = 0; i < RANKS; i++)
        if (!ended(job->pids[i]))
            return FALSE;
    return TRUE;
}

/* Waits for mpirun; returns its wait status. */
static int job_wait(Job *job, double limit_s)
{
    const double start_s = clock_s();
    int status = 0;

    while (waitpid(job->mpirun, &status, WNOHANG) == 0) {
        ck_assert_msg(clock_s() - start_s < limit_s, "the job goes on");
        g_usleep(10000);
    }
    while (!all_ended(job)) {
        ck_assert_msg(clock_s() - start_s < limit_s, "a rank goes on");
        g_usleep(10000);
    }
    return status;
}

static char *job_messages(Job *job)
{
    GString *text = g_string_new(NULL);
    char line[1024];

    while (fgets(line, sizeof line, job->messages))
        g_string_append(text, line);
    return g_string_free(text, FALSE);
}

/* The folder for shared memory must be empty by itself. */
static void job_end(Job *job)
{
    g_autofree char *remove_session = g_strdup_printf("rm -rf '%s'", job->session);

    ck_assert_msg(g_rmdir(job->shared) == 0, "files are left in %s", job->shared);
    ck_assert(g_spawn_command_line_sync(remove_session, NULL, NULL, NULL, NULL));
    fclose(job->out);
    fclose(job->messages);
    g_free(job->shared);
    g_free(job->session);
}

static const struct {
    const char *what, *ranks_per_node;
} jobs[] = {{"all_reduce", "0"}, {"all_reduce", "1"}, {"exchange", "0"}, {"exchange", "2"}};

START_TEST(a_killed_rank_ends_the_job_and_is_named_once)
{
    Job job = job_start(jobs[_i].what, jobs[_i].ranks_per_node);
    g_autofree char *start =
        g_strdup_printf("fsdp-run: rank %d (pid %d on host ", VICTIM, job.pids[VICTIM]);

    ck_assert_int_eq(kill(job.pids[VICTIM], SIGKILL), 0);
    int status = job_wait(&job, LIMIT_S);
    g_autofree char *messages = job_messages(&job);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "exit status 0");
    const char *line = strstr(messages, start);
    ck_assert_msg(line != NULL, "no '%s' in: %s", start, messages);
    g_autofree char *op = g_strdup_printf(" %s\"\n", jobs[_i].what);
    const char *end = strstr(line, op);
    ck_assert_msg(strstr(line, ") died; its last op: \"step ") != NULL, "%s", messages);
    ck_assert_msg(end != NULL, "%s", messages);
    ck_assert_msg(strstr(line + 1, ") died;") == NULL || strstr(end, ") died;") == NULL,
                  "said twice: %s", messages);
    job_end(&job);
}
END_TEST

START_TEST(ranks_and_shared_memory_go_with_mpirun)
{
    Job job = job_start("all_reduce", "0");

    ck_assert_int_eq(kill(job.mpirun, SIGKILL), 0);
    job_wait(&job, LIMIT_S);
    job_end(&job);
}
END_TEST

START_TEST(abort_ends_the_job_with_its_status)
{
    Job job = job_start("abort", "0");
    int status = job_wait(&job, LIMIT_S);
    g_autofree char *messages = job_messages(&job);

    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), ABORT_STATUS);
    ck_assert_msg(strstr(messages, "died") == NULL, "%s", messages);
    job_end(&job);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3)
        return rank_main(argv[1], (guint)atoi(argv[2]));

    Suite *suite = suite_create("comm_death");
    TCase *tcase = tcase_create("death");
    tcase_set_timeout(tcase, TIMEOUT_S);
    tcase_add_loop_test(tcase, a_killed_rank_ends_the_job_and_is_named_once, 0, G_N_ELEMENTS(jobs));
    tcase_add_test(tcase, ranks_and_shared_memory_go_with_mpirun);
    tcase_add_test(tcase, abort_ends_the_job_with_its_status);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
