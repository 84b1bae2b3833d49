/* A job that a test starts and watches: the process that starts the ranks, and those. */
#pragma once

#include "exec/base/process.h"
#include "tests/suite.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS       3
#define THREADS     2
#define JOB_LIMIT_S 30.0 /* a job that its test has lost ends by itself */

typedef struct {
    GPid pid; /* the process that started the ranks */
    int out, err;
    pid_t mpirun; /* 0 where there is none */
    pid_t rank[RANKS];
    char folder[128]; /* the job's, where mpirun starts it */
    char told[2048];  /* standard error, once it has ended */
} Running;

static inline gboolean is_alive(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", pid);
    g_autofree char *stat = NULL;

    if (!g_file_get_contents(path, &stat, NULL, NULL))
        return FALSE;
    return strstr(stat, ") Z ") == NULL && strstr(stat, ") X ") == NULL;
}

static inline void reset_signals(gpointer unused)
{
    (void)unused;
    signal(SIGINT, SIG_DFL); /* a test run in the background has it ignored */
}

/* A line of at most @bytes - 1 characters within 20 s; "" at the end of the output. */
static inline void read_line(int fd, char *line, gsize bytes)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    gsize n = 0;

    while (n + 1 < bytes) {
        ck_assert_int_eq(poll(&ready, 1, 20000), 1);
        if (read(fd, line + n, 1) != 1 || line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
}

/* Waits for the starting process, and returns its exit status (128 + signal). */
static inline int finish(Running *job)
{
    const double end_s = clock_s() + 20.0;
    gsize told = 0;
    gssize n;
    int status = 0;
    pid_t ended;

    while ((ended = waitpid(job->pid, &status, WNOHANG)) == 0 && clock_s() < end_s)
        g_usleep(5000);
    ck_assert_int_eq(ended, job->pid);
    if (WIFEXITED(status)) /* else others may still hold the pipe */
        while ((n = read(job->err, job->told + told, sizeof job->told - 1 - told)) > 0)
            told += (gsize)n;
    close(job->out);
    close(job->err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
