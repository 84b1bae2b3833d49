#include "exec/launch/launch.h"

#include "exec/base/process.h"
#include "exec/launch/job_folder.h"
#include "sim/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Tells a rank where to say that it has started: a file that grows by a byte a rank. */
#define STARTED_VARIABLE "FSDP_RUN_STARTED"

#define POLL_US         20000
#define GRACE_S         5.0 /* mpirun's own is 1 s between SIGTERM and SIGKILL to the ranks */
#define MAX_OWN_STATUS  4   /* of fsdp-run's exit statuses */
#define STATUS_RUNTIME  3
#define SHELL_SIGNALLED 128 /* exit status = this + signal, from mpirun as from a shell */

/* ---- In a rank ---- */

gboolean launch_rank_started(const LaunchEnvironment *launch, GError **error)
{
    const char *started = g_getenv(STARTED_VARIABLE);

    process_install_signals();

    /* mpirun forks ranks on its main thread (up to 31 of a node; else on threads that live as long
     * as it does).  An mpirun that is gone before this is found by MPI_Init. */
    const pid_t parent = getppid();
    if (launch->kind == LAUNCH_MPIRUN &&
        (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        return fail(error, ERROR_RUNTIME, "mpirun ended before this rank had started");

    if (launch->kind != LAUNCH_MPIRUN || started == NULL)
        return TRUE;

    const int fd = open(started, O_WRONLY | O_APPEND | O_CLOEXEC);
    const gboolean told = fd >= 0 && write(fd, "", 1) == 1;
    if (fd >= 0)
        close(fd);
    return told || fail(error, ERROR_RUNTIME, "%s: can't write: %s", started, g_strerror(errno));
}

/* ---- In the process that starts the ranks ---- */

typedef struct {
    JobFolder *folder;
    char *started_path;
    char *mpirun; /* program */
    guint ranks;
    guint ranks_started;
    pid_t pid; /* of mpirun */
    pid_t parent;
    gboolean stop_sent;
    double kill_time_s; /* 0: not being ended */
} Job;

static void job_clear(Job *job)
{
    g_clear_pointer(&job->folder, job_folder_free);
    g_free(job->started_path);
    g_free(job->mpirun);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Job, job_clear)

/* The one beside this program, as in a bundle, which has the library that goes with it; else that
 * of PATH.  NULL: there is none. */
static char *find_mpirun(void)
{
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = g_path_get_dirname(program == NULL ? "." : program);
    char *beside = g_build_filename(folder, "mpirun", NULL);

    if (g_file_test(beside, G_FILE_TEST_IS_EXECUTABLE))
        return beside;
    g_free(beside);
    return g_find_program_in_path("mpirun");
}

gboolean launch_has_mpirun(void)
{
    g_autofree char *path = find_mpirun();

    return path != NULL;
}

static gboolean job_prepare(Job *job, GError **error)
{
    job->mpirun = find_mpirun();
    if (job->mpirun == NULL)
        return fail(error, ERROR_RUNTIME,
                    "mpirun is not in PATH: a plan of %u ranks needs Open MPI (Debian: apt install "
                    "openmpi-bin)",
                    job->ranks);

    job->folder = job_folder_new(error);
    if (job->folder == NULL)
        return FALSE;

    g_autoptr(GError) cause = NULL;
    job->started_path = g_build_filename(job_folder_path(job->folder), "started", NULL);
    if (!g_file_set_contents(job->started_path, "", 0, &cause))
        return fail(error, ERROR_RUNTIME, "%s", cause->message);
    return TRUE;
}

/* Parameters: `ompi_info --param all all --level 9`. */
static char **mpirun_command(const Job *job, const char *program, int argc, char **argv)
{
    const char *folder = job_folder_path(job->folder);
    const char *const parameters[][2] = {
        {"orte_execute_quiet", "1"},       /* fsdp-run says what happened */
        {"orte_default_hostfile", "none"}, /* this machine only, whatever else is allocated */
        {"ras", "^slurm,gridengine,tm,alps,loadleveler,lsf"},
        {"plm", "isolated"},            /* else it would not start where there is no ssh */
        {"odls_base_num_threads", "0"}, /* ranks are forked by the main thread: PR_SET_PDEATHSIG */
        {"mpi_yield_when_idle", "1"},
        {"pml", "ob1"},
        {"btl", "vader,self"},
        {"orte_tmpdir_base", folder},
        {"btl_vader_backing_directory", folder},
        {"osc_sm_backing_directory", folder},
        {"osc_rdma_backing_directory", folder},
    };
    g_autofree char *ranks = g_strdup_printf("%u", job->ranks);
    g_autoptr(GStrvBuilder) words = g_strv_builder_new();

    g_strv_builder_add_many(words, job->mpirun, "--oversubscribe", "--bind-to", "none", NULL);
    for (gsize i = 0; i < G_N_ELEMENTS(parameters); i++)
        g_strv_builder_add_many(words, "--mca", parameters[i][0], parameters[i][1], NULL);
    g_strv_builder_add_many(words, "-np", ranks, program, NULL);
    for (int i = 1; i < argc; i++)
        g_strv_builder_add(words, argv[i]);
    return g_strv_builder_end(words);
}

/* Where ranks fill the cores, an OpenMP thread that spins at a barrier takes the core from one that
 * works. */
char **launch_rank_environment(char **environment, guint ranks, guint threads)
{
    g_autofree char *thread_count = g_strdup_printf("%u", threads);

    environment = g_environ_setenv(environment, "OMP_NUM_THREADS", thread_count, TRUE);
    environment = g_environ_setenv(environment, "OPENBLAS_NUM_THREADS", "1", TRUE);
    if ((guint64)ranks * threads >= process_usable_cores())
        environment = g_environ_setenv(environment, "OMP_WAIT_POLICY", "passive", FALSE);
    return environment;
}

static char **mpirun_environment(const Job *job, guint threads)
{
    char **environment = launch_rank_environment(g_get_environ(), job->ranks, threads);

    environment = g_environ_setenv(environment, STARTED_VARIABLE, job->started_path, TRUE);
    if (geteuid() == 0) {
        environment = g_environ_setenv(environment, "OMPI_ALLOW_RUN_AS_ROOT", "1", TRUE);
        environment = g_environ_setenv(environment, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", TRUE);
    }
    return environment;
}

/* Between fork and exec of mpirun: async-signal-safe calls only. */
static void become_mpirun(gpointer data)
{
    const Job *job = data;

    setpgid(0, 0);            /* the terminal's Ctrl-C is for the parent alone */
    signal(SIGTTOU, SIG_IGN); /* `stty tostop` would stop a background writer */
    fcntl(job_folder_lock(job->folder), F_SETFD, 0); /* the folder is in use while mpirun lives */

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != job->parent)
        _exit(SHELL_SIGNALLED + SIGTERM);
}

static gboolean job_start(Job *job, int argc, char **argv, guint threads, GError **error)
{
    g_autoptr(GError) cause = NULL;
    g_autofree char *program = g_file_read_link("/proc/self/exe", &cause);

    if (program == NULL)
        return fail(error, ERROR_RUNTIME, "%s", cause->message);

    g_auto(GStrv) command = mpirun_command(job, program, argc, argv);
    g_auto(GStrv) environment = mpirun_environment(job, threads);
    job->parent = getpid();
    if (!g_spawn_async(NULL, command, environment, G_SPAWN_DO_NOT_REAP_CHILD, become_mpirun, job,
                       &job->pid, &cause))
        return fail(error, ERROR_RUNTIME, "%s: %s", job->mpirun, cause->message);
    return TRUE;
}

static void count_started(Job *job)
{
    struct stat info;

    if (stat(job->started_path, &info) == 0)
        job->ranks_started = (guint)info.st_size;
}

/* A signal that comes before all ranks can catch it would kill them; it is passed on later. */
static void pass_on_signals(Job *job)
{
    if (process_interrupts() > 1 && job->kill_time_s == 0.0) {
        kill(job->pid, SIGTERM);
        job->kill_time_s = clock_s() + GRACE_S;
    } else if (job->kill_time_s > 0.0 && clock_s() > job->kill_time_s) {
        kill(job->pid, SIGKILL);
    } else if (process_stop_requested() && !job->stop_sent && job->ranks_started == job->ranks) {
        kill(job->pid, SIGUSR2); /* mpirun hands it to every rank */
        job->stop_sent = TRUE;
    }
}

static int job_wait(Job *job)
{
    int status = 0;
    pid_t ended;

    while ((ended = waitpid(job->pid, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
        pass_on_signals(job);
        g_usleep(POLL_US);
        count_started(job);
    }
    g_assert(ended == job->pid);
    count_started(job);
    return status;
}

static int ended_badly(GError **error, const char *message)
{
    fail(error, ERROR_RUNTIME, "%s", message);
    return STATUS_RUNTIME;
}

static int job_exit_status(const Job *job, int wait_status, GError **error)
{
    const int status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : STATUS_RUNTIME;
    g_autofree char *message = NULL;

    if (job->kill_time_s > 0.0)
        message = g_strdup("interrupted twice: ended before the step was finished");
    else if (WIFSIGNALED(wait_status))
        message = g_strdup_printf("mpirun was killed by signal %d (%s); its ranks are ended",
                                  WTERMSIG(wait_status), g_strsignal(WTERMSIG(wait_status)));
    else if (status != 0 && job->ranks_started == 0)
        message = g_strdup_printf("%s could not start the ranks (status %d); to see why, type: %s "
                                  "-np %u true",
                                  job->mpirun, status, job->mpirun, job->ranks);
    else if (status > SHELL_SIGNALLED)
        message = g_strdup_printf("a rank was killed by signal %d (%s); the others are ended",
                                  status - SHELL_SIGNALLED, g_strsignal(status - SHELL_SIGNALLED));
    else if (status > MAX_OWN_STATUS)
        message = g_strdup_printf("a rank ended with status %d; the others are ended", status);

    return message == NULL ? status : ended_badly(error, message);
}

int launch_ranks(int argc, char **argv, guint ranks, guint threads, GError **error)
{
    g_auto(Job) job = {.ranks = ranks};

    process_count_signals();
    signal(SIGCHLD, SIG_DFL); /* where it came in ignored, there would be no status to wait for */
    if (!job_prepare(&job, error) || !job_start(&job, argc, argv, threads, error))
        return STATUS_RUNTIME;
    return job_exit_status(&job, job_wait(&job), error);
}
