#include "tests/cudasim/report.h"

#include "tests/cudasim/asan.h"
#include "tests/cudasim/grid.h"
#include "tests/cudasim/memory.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN 20 /* reports of a kind that are printed */

CsSettings cs_settings = {.policy = CS_RANDOM,
                          .seed = 1,
                          .eager_percent = 20,
                          .device_bytes = (gsize)256 << 20,
                          .failing_allocation = -1,
                          .timeout_s = 20.0};
static guint counts[CS_REPORT_KINDS];
static gboolean expected;
static guint64 random_state;

/* ---- settings ---- */

/* The place of @name's value among @values, or @otherwise. */
static int choice(const char *name, const char *const *values, int otherwise)
{
    const char *value = g_getenv(name);

    if (value == NULL)
        return otherwise;
    for (int i = 0; values[i] != NULL; i++)
        if (g_str_equal(values[i], value))
            return i;
    g_error("%s is '%s'", name, value);
}

static double number(const char *name, double otherwise)
{
    const char *value = g_getenv(name);

    return value == NULL ? otherwise : g_ascii_strtod(value, NULL);
}

void cs_settings_read(void)
{
    static const char *const policies[] = {"fifo", "lifo", "random", "pct", NULL};
    static const char *const orders[] = {"asc", "desc", "random", NULL};
    CsSettings *s = &cs_settings;

    s->device_bytes = (gsize)number("CUDASIM_MEM", (double)s->device_bytes);
    s->failing_allocation = (gint64)number("CUDASIM_FAIL_ALLOC", -1.0);
    s->timeout_s = number("CUDASIM_TIMEOUT", s->timeout_s);
    cs_settings_reseed((CsPolicy)choice("CUDASIM_POLICY", policies, CS_RANDOM),
                       (CsOrder)choice("CUDASIM_ORDER", orders, CS_ASCENDING),
                       (guint64)number("CUDASIM_SEED", 1.0));
}

/* A device that is never behind, one that does nothing before it must, and those between. */
static guint eager_percent(CsPolicy policy)
{
    return policy == CS_FIFO ? 100 : policy == CS_LIFO ? 0 : 20;
}

void cs_settings_reseed(CsPolicy policy, CsOrder order, guint64 seed)
{
    cs_settings.policy = policy;
    cs_settings.order = order;
    cs_settings.seed = seed;
    cs_settings.eager_percent = eager_percent(policy);
    random_state = (seed + 1) * 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 8; i++)
        cs_random();
}

/* xorshift64: Marsaglia, Journal of Statistical Software 8(14), 2003. */
guint32 cs_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (guint32)(random_state >> 32);
}

/* ---- reports ---- */

gboolean cs_report_is_shown(CsReportKind kind)
{
    return !expected && counts[kind] < SHOWN;
}

void cs_report(CsReportKind kind, const char *format, ...)
{
    static const char *const names[CS_REPORT_KINDS] = {
        "stream race", "kernel race", "uninitialised", "out of bounds",
        "barrier",     "deadlock",    "misuse",        "nccl"};
    va_list arguments;

    if (cs_report_is_shown(kind)) {
        va_start(arguments, format);
        g_autofree char *text = g_strdup_vprintf(format, arguments);
        va_end(arguments);
        fprintf(stderr, "cudasim: %s: %s (seed %" G_GUINT64_FORMAT ")\n", names[kind], text,
                cs_settings.seed);
    }
    counts[kind]++;
}

void cs_reports_forget(void)
{
    memset(counts, 0, sizeof counts);
}

void cudasim_expect_reports(void)
{
    expected = TRUE;
}

guint cudasim_reports(CsReportKind kind)
{
    return counts[kind];
}

guint cudasim_all_reports(void)
{
    guint sum = 0;

    for (int i = 0; i < CS_REPORT_KINDS; i++)
        sum += counts[i];
    return sum;
}

/* ---- the end of a process ---- */

static void end(void)
{
    if (expected || cudasim_all_reports() == 0)
        return;
    fflush(NULL);
    _exit(99);
}

static const char *what_faulted(const void *address)
{
    if (cs_memory_is_device(address))
        return cs_grid_kernel() != NULL ? "a kernel goes past all device memory"
                                        : "host code touches device memory";
    return "a fault in host memory, past dynamic shared memory, or past a thread's stack";
}

static G_GNUC_UNUSED void fault(int number_of_signal, siginfo_t *info, void *context)
{
    const char *kernel = cs_grid_kernel();
    char text[256];
    int length = g_snprintf(text, sizeof text, "cudasim: %s, at %p%s%s\n",
                            what_faulted(info->si_addr), info->si_addr,
                            kernel != NULL ? " in kernel " : "", kernel != NULL ? kernel : "");

    (void)context;
    if (write(STDERR_FILENO, text, (size_t)length) < 0)
        _exit(98);
    signal(number_of_signal, SIG_DFL);
    raise(number_of_signal);
}

void cs_reports_start(void)
{
#ifndef CS_ASAN /* whose own handler says more */
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

    sigaction(SIGSEGV, &action, NULL);
#endif
    atexit(end);
}
