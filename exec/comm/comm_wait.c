/* Waiting: for the ranks of a machine at a futex, for messages with a growing sleep; and noticing
 * meanwhile that a rank has died.
 *
 * mpirun reacts to a killed rank too: it sends SIGTERM to the others at once and SIGKILL a second
 * later.  A program that handles SIGTERM (as fsdp-run does) gets its message out before that: the
 * signal ends a wait, and the next look finds the dead rank. */
#include "exec/comm/comm_mpi.h"
#include "sim/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SPINS = 2000, /* some 20 us */
    POLLS = 200,
    CROWDED_POLLS = 10,
    FIRST_SLEEP_NS = 50 * 1000,
    LAST_SLEEP_NS = 500 * 1000,
    WATCH_INTERVAL_NS = (int)(COMM_DEATH_S * 1e9),
    MESSAGE_BYTES = 1 << 30 /* MPI counts in int */
};

gboolean comm_mpi_ok(int status, const char *what, GError **error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (status == MPI_SUCCESS)
        return TRUE;
    MPI_Error_string(status, text, &length);
    return fail(error, ERROR_RUNTIME, "%s: %s", what, text);
}

/* Gone, or dead and not yet waited for by its parent.  Does not allocate. */
static gboolean process_dead(int pid)
{
    char path[32], text[512];

    if (kill(pid, 0) != 0 && errno == ESRCH)
        return TRUE;
    g_snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT;
    gssize got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0)
        return TRUE; /* gone since it was opened */
    text[got] = '\0';
    const char *state = strrchr(text, ')'); /* "pid (name) S ...": the name may hold anything */
    return state && state[1] == ' ' && (state[2] == 'Z' || state[2] == 'X');
}

/* The first to notice says so; the others stop too, quietly. */
static gboolean rank_died(MpiComm *comm, const MpiComm *peer, GError **error)
{
    unsigned running = 0;
    g_autofree char *last_op = comm_last_op(&peer->base);

    if (atomic_compare_exchange_strong(&comm->board->stopped, &running, peer->base.rank + 1))
        fprintf(stderr, "fsdp-run: rank %u (pid %d on host %s) died; its last op: \"%s\"\n",
                peer->base.rank, peer->base.pid, g_get_host_name(), last_op);
    return fail(error, ERROR_RUNTIME, "rank %u (pid %d on host %s) died; its last op: \"%s\"",
                peer->base.rank, peer->base.pid, g_get_host_name(), last_op);
}

gboolean comm_watch(MpiComm *comm, GError **error)
{
    unsigned stopped = atomic_load(&comm->board->stopped);

    if (atomic_load(&comm_control_first(comm)->progress.alarm) != 0)
        return TRUE; /* the watchdog says what it found, and ends this process */
    if (stopped == COMM_ABORTED)
        return fail(error, ERROR_RUNTIME, "another rank has stopped the job");
    if (stopped != 0)
        return fail(error, ERROR_RUNTIME, "rank %u has died", stopped - 1);
    for (guint i = 0; i < comm->control.num; i++) {
        const MpiComm *peer = (const MpiComm *)(const void *)comm->control.peer[i];

        if (i != comm->control.own && process_dead(peer->base.pid))
            return rank_died(comm, peer, error);
    }
    return TRUE;
}

static void futex_wait(atomic_uint *word, unsigned value)
{
    const struct timespec timeout = {.tv_nsec = WATCH_INTERVAL_NS};

    syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, G_MAXINT, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until *word is no longer @old. */
static gboolean wait_change(MpiComm *comm, atomic_uint *word, unsigned old, GError **error)
{
    for (guint i = 0; !comm->crowded && i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return TRUE;
        relax();
    }
    for (;;) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return TRUE;
        futex_wait(word, old);
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return TRUE;
        if (!comm_watch(comm, error)) /* the time is up, or a signal came */
            return FALSE;
    }
}

gboolean comm_barrier(MpiGroup *group, GError **error)
{
    CommBarrier *barrier = group->barrier;

    if (group->base.size == 1)
        return TRUE;
    progress_move(&group->base.comm->progress);
    unsigned generation = atomic_load_explicit(&barrier->generation, memory_order_acquire);
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 < group->base.size)
        return wait_change((MpiComm *)group->base.comm, &barrier->generation, generation, error);
    atomic_store(&barrier->arrived, 0);
    atomic_store(&barrier->generation, generation + 1);
    futex_wake_all(&barrier->generation);
    return TRUE;
}

gboolean comm_post(MpiComm *comm, MPI_Comm mpi, const CommMessage *message, GError **error)
{
    gsize done = 0;

    if (message->tag > comm->max_tag)
        return fail(error, ERROR_RUNTIME, "message tag %u: this MPI takes 0 to %u", message->tag,
                    comm->max_tag);
    do {
        int bytes = (int)MIN(message->bytes - done, MESSAGE_BYTES);
        char *at = (char *)message->buffer + done;
        MPI_Request request;
        int status = message->send ? MPI_Isend(at, bytes, MPI_BYTE, (int)message->peer,
                                               (int)message->tag, mpi, &request)
                                   : MPI_Irecv(at, bytes, MPI_BYTE, (int)message->peer,
                                               (int)message->tag, mpi, &request);

        if (!comm_mpi_ok(status, message->send ? "MPI_Isend" : "MPI_Irecv", error))
            return FALSE;
        g_array_append_val(comm->requests, request);
        done += (gsize)bytes;
    } while (done < message->bytes);
    return TRUE;
}

gboolean comm_wait_requests(MpiComm *comm, MPI_Request *requests, int num, GError **error)
{
    const guint polls = comm->crowded ? CROWDED_POLLS : POLLS;
    long sleep_ns = FIRST_SLEEP_NS, unwatched_ns = 0;

    for (guint poll = 0;; poll++) {
        int done = 0;

        if (!comm_mpi_ok(MPI_Testall(num, requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall",
                         error))
            return FALSE;
        if (done)
            return TRUE;
        if (poll < polls) {
            sched_yield();
            continue;
        }
        const struct timespec pause = {.tv_nsec = sleep_ns};
        unwatched_ns += nanosleep(&pause, NULL) == 0 ? sleep_ns : WATCH_INTERVAL_NS;
        sleep_ns = MIN(2 * sleep_ns, LAST_SLEEP_NS);
        if (unwatched_ns >= WATCH_INTERVAL_NS) {
            unwatched_ns = 0;
            if (!comm_watch(comm, error))
                return FALSE;
        }
    }
}

gboolean comm_complete(MpiComm *comm, GError **error)
{
    MPI_Request *requests = (MPI_Request *)(void *)comm->requests->data;

    if (!comm_wait_requests(comm, requests, (int)comm->requests->len, error))
        return FALSE;
    g_array_set_size(comm->requests, 0);
    return TRUE;
}
