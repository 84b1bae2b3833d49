#define _GNU_SOURCE 1 /* sched_getaffinity() */
#include "exec/base/process.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A line of /proc/self/status as in "VmHWM:     1234 kB". */
static guint64 status_bytes(const char *key)
{
    g_autofree char *status = NULL;

    if (!g_file_get_contents("/proc/self/status", &status, NULL, NULL))
        return 0;

    const char *line = strstr(status, key);
    return line == NULL ? 0 : g_ascii_strtoull(line + strlen(key), NULL, 10) * 1024;
}

guint64 process_peak_rss_bytes(void)
{
    return status_bytes("\nVmHWM:");
}

guint process_usable_cores(void)
{
    cpu_set_t cores;

    if (sched_getaffinity(0, sizeof cores, &cores) == 0)
        return (guint)CPU_COUNT(&cores);
    return g_get_num_processors(); /* more cores than a cpu_set_t holds */
}

double clock_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What a handler may write to; there is one set of signal dispositions a process anyway. */
static volatile sig_atomic_t stop_requested;
static volatile sig_atomic_t interrupts;
static volatile sig_atomic_t patience; /* SIGINTs that are only counted */

static void on_signal(int number)
{
    stop_requested = 1;
    if (number != SIGINT)
        return;
    if (interrupts < patience) {
        interrupts = interrupts + 1;
        return;
    }
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
}

static void install(int number)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction before;

    sigemptyset(&action.sa_mask);
    sigaction(number, NULL, &before);
    if (before.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

/* Whoever started this process may have held SIGUSR2 back until it can be caught. */
static void install_all(int counted)
{
    sigset_t held;

    patience = counted;
    install(SIGINT);
    install(SIGTERM);
    install(SIGUSR2);
    sigemptyset(&held);
    sigaddset(&held, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &held, NULL);
}

void process_install_signals(void)
{
    install_all(1);
}

void process_count_signals(void)
{
    install_all(INT_MAX);
}

gboolean process_stop_requested(void)
{
    return stop_requested != 0;
}

guint process_interrupts(void)
{
    return (guint)interrupts;
}
