#include "exec/launch/launch_local.h"

#include "exec/base/process.h"
#include "exec/launch/launch.h"
#include "sim/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_US 20000
#define GRACE_S 5.0 /* for ranks to end by themselves, once one has failed */
#define KILL_S  1.0 /* between SIGTERM and SIGKILL */

enum { MAX_OWN_STATUS = 4, STATUS_RUNTIME = 3 };

typedef struct {
    guint ranks, alive;
    pid_t *pid;   /* by rank; 0: ended */
    int *status;  /* as waitpid() gave it, of those that ended */
    gint first;   /* rank that failed first; -1: none */
    int listener; /* of rank 0 */
    guint port;
    pid_t parent;
    gboolean stop_sent;
    guint rounds;      /* of ending: SIGTERM, then SIGKILL */
    double end_time_s; /* of the next one; 0: not being ended */
} LocalJob;

static void local_job_clear(LocalJob *job)
{
    if (job->listener >= 0)
        close(job->listener);
    g_free(job->pid);
    g_free(job->status);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(LocalJob, local_job_clear)

/* At a port of the system's choice, so no other job has it. */
static gboolean open_listener(LocalJob *job, GError **error)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof here;

    job->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (job->listener < 0 ||
        bind(job->listener, (const struct sockaddr *)(const void *)&here, sizeof here) != 0 ||
        listen(job->listener, SOMAXCONN) != 0 ||
        getsockname(job->listener, (struct sockaddr *)(void *)&here, &bytes) != 0)
        return fail(error, ERROR_RUNTIME, "the ranks can't meet on this machine: %s",
                    g_strerror(errno));
    job->port = ntohs(here.sin_port);
    return TRUE;
}

/* ---- starting ---- */

static char **set_number(char **environment, const char *name, guint value)
{
    g_autofree char *text = g_strdup_printf("%u", value);

    return g_environ_setenv(environment, name, text, TRUE);
}

static char **environment_of(const LocalJob *job, guint rank, guint threads)
{
    char **environment = launch_rank_environment(g_get_environ(), job->ranks, threads);

    environment = set_number(environment, "RANK", rank);
    environment = set_number(environment, "LOCAL_RANK", rank);
    environment = set_number(environment, "WORLD_SIZE", job->ranks);
    environment = set_number(environment, "MASTER_PORT", job->port);
    environment = g_environ_setenv(environment, "MASTER_ADDR", "127.0.0.1", TRUE);
    environment = g_environ_unsetenv(environment, "TORCHELASTIC_USE_AGENT_STORE");
    environment = g_environ_unsetenv(environment, LAUNCH_LISTENER_VARIABLE);
    if (rank == 0)
        environment = set_number(environment, LAUNCH_LISTENER_VARIABLE, (guint)job->listener);
    return environment;
}

/* Between fork and exec: async-signal-safe calls only.  SIGUSR2 waits until the rank catches it. */
static void become_rank(gpointer data)
{
    const LocalJob *job = data;
    sigset_t later;

    setpgid(0, 0);            /* the terminal's Ctrl-C is for the parent alone */
    signal(SIGTTOU, SIG_IGN); /* `stty tostop` would stop a background writer */
    sigemptyset(&later);
    sigaddset(&later, SIGUSR2);
    sigprocmask(SIG_BLOCK, &later, NULL);
    fcntl(job->listener, F_SETFD, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != job->parent)
        _exit(STATUS_RUNTIME);
}

static gboolean start_rank(LocalJob *job, guint rank, char **command, guint threads, GError **error)
{
    g_auto(GStrv) environment = environment_of(job, rank, threads);
    g_autoptr(GError) cause = NULL;

    if (!g_spawn_async(NULL, command, environment, G_SPAWN_DO_NOT_REAP_CHILD, become_rank, job,
                       &job->pid[rank], &cause))
        return fail(error, ERROR_RUNTIME, "%s: %s", command[0], cause->message);
    job->alive++;
    return TRUE;
}

static gboolean start_all(LocalJob *job, int argc, char **argv, guint threads, GError **error)
{
    g_autoptr(GError) cause = NULL;
    g_autofree char *program = g_file_read_link("/proc/self/exe", &cause);
    g_autofree char **command = g_memdup2(argv, ((gsize)argc + 1) * sizeof *argv);

    if (program == NULL)
        return fail(error, ERROR_RUNTIME, "%s", cause->message);
    command[0] = program;
    command[argc] = NULL;
    for (guint rank = 0; rank < job->ranks; rank++)
        if (!start_rank(job, rank, command, threads, error))
            return FALSE;
    return TRUE;
}

/* ---- watching ---- */

static void send_all(const LocalJob *job, int number)
{
    for (guint rank = 0; rank < job->ranks; rank++)
        if (job->pid[rank] != 0)
            kill(job->pid[rank], number);
}

/* Who is not gone by @when_s is told to end, and then killed. */
static void end_at(LocalJob *job, double when_s)
{
    if (job->end_time_s == 0.0)
        job->end_time_s = when_s;
}

/* A rank whose peer has failed ends so itself; it may be found first. */
static gboolean may_be_a_consequence(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == STATUS_RUNTIME;
}

static void note_failure(LocalJob *job, guint rank)
{
    if (job->first < 0) {
        job->first = (gint)rank;
        end_at(job, clock_s() + GRACE_S);
    } else if (job->rounds == 0 && may_be_a_consequence(job->status[job->first]) &&
               !may_be_a_consequence(job->status[rank])) {
        job->first = (gint)rank;
    }
}

static void reap(LocalJob *job)
{
    for (guint rank = 0; rank < job->ranks; rank++) {
        if (job->pid[rank] == 0 || waitpid(job->pid[rank], &job->status[rank], WNOHANG) == 0)
            continue;
        job->pid[rank] = 0;
        job->alive--;
        if (job->status[rank] != 0)
            note_failure(job, rank);
    }
}

static void pass_on_signals(LocalJob *job)
{
    if (process_interrupts() > 1)
        end_at(job, clock_s());
    if (process_stop_requested() && !job->stop_sent) {
        send_all(job, SIGUSR2);
        job->stop_sent = TRUE;
    }
    if (job->end_time_s == 0.0 || clock_s() < job->end_time_s)
        return;
    send_all(job, job->rounds++ == 0 ? SIGTERM : SIGKILL);
    job->end_time_s = clock_s() + KILL_S;
}

static void watch(LocalJob *job)
{
    while (job->alive > 0) {
        pass_on_signals(job);
        g_usleep(POLL_US);
        reap(job);
    }
}

static int exit_status(const LocalJob *job, GError **error)
{
    const int status = job->first < 0 ? 0 : job->status[job->first];

    if (process_interrupts() > 1 && job->rounds > 0)
        fail(error, ERROR_RUNTIME, "interrupted twice: ended before the step was finished");
    else if (WIFSIGNALED(status))
        fail(error, ERROR_RUNTIME, "rank %d was killed by signal %d (%s); the others are ended",
             job->first, WTERMSIG(status), g_strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) > MAX_OWN_STATUS)
        fail(error, ERROR_RUNTIME, "rank %d ended with status %d; the others are ended", job->first,
             WEXITSTATUS(status));
    else
        return WEXITSTATUS(status);
    return STATUS_RUNTIME;
}

int launch_local(int argc, char **argv, guint ranks, guint threads, GError **error)
{
    g_auto(LocalJob) job = {.ranks = ranks, .first = -1, .listener = -1, .parent = getpid()};

    job.pid = g_new0(pid_t, ranks);
    job.status = g_new0(int, ranks);
    process_count_signals();
    signal(SIGCHLD, SIG_DFL); /* where it came in ignored, there would be no status to wait for */
    const gboolean started =
        open_listener(&job, error) && start_all(&job, argc, argv, threads, error);
    if (!started)
        send_all(&job, SIGKILL);
    watch(&job);
    return started ? exit_status(&job, error) : STATUS_RUNTIME;
}
