#include "exec/run/watchdog.h"

#include "exec/base/process.h"
#include "exec/run/stall.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FIRST_TICK_S 0.02
#define LAST_TICK_S  1.0
#define BUSY_S       0.001 /* of the processor's time; a thread that waits uses none */

enum {
    TICKS_A_LIMIT = 20,
    LATE_TICKS = 5,     /* a tick that took so many times as long: this process was stopped */
    OTHERS_MS = 2000,   /* for watchdogs of other machines to speak */
    KILL_MS = 2000,     /* for the launcher to end what does not run */
    PATIENCE_MS = 10000 /* for the one that speaks */
};

enum { WATCHED = 1, WATCH_ENDED }; /* CommProgress.watched */

/* What was seen of a rank, and for how long it has been the same. */
typedef struct {
    const Comm *peer; /* NULL: of another machine */
    guint64 count[NUM_LANES];
    guint moves, busy, beat;
    double idle_s, silent_s;
} Seen;

struct Watchdog {
    const ProgramSet *set;
    double limit_s, tick_s;
    int status;
    CommProgress *own, *first; /* first: of this machine */
    char *main_path;           /* of the main thread's state */
    clockid_t main_clock;
    double main_s; /* when it was last seen to compute */
    Seen *ranks;
    RankState *states; /* of ranks, once one is idle */
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t stop;
    gboolean stopping;
};

/* ---- looking ---- */

static double thread_seconds(const Watchdog *watchdog)
{
    struct timespec used;

    if (clock_gettime(watchdog->main_clock, &used) != 0)
        return 0;
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* The state of a process or thread, from such a file of /proc; 0 where it can't be told. */
static char state_in(const char *path)
{
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    const char *name_end = strrchr(text, ')');
    return name_end != NULL && name_end[1] == ' ' ? name_end[2] : 0;
}

/* Says that this process runs, and whether its main thread computes or would, had it the processor.
 */
static void beat(Watchdog *watchdog)
{
    const double main_s = thread_seconds(watchdog);

    atomic_fetch_add(&watchdog->own->beat, 1);
    if (atomic_load(&watchdog->own->waiting) != 0 ||
        (main_s - watchdog->main_s < BUSY_S && state_in(watchdog->main_path) != 'R'))
        return;
    atomic_fetch_add(&watchdog->own->busy, 1);
    watchdog->main_s = main_s;
}

static gboolean differs(guint *seen, guint now)
{
    const gboolean other = *seen != now;

    *seen = now;
    return other;
}

static void look(Seen *seen, double passed_s)
{
    const CommProgress *progress = &seen->peer->progress;
    gboolean moved = atomic_load(&progress->watched) == WATCH_ENDED;

    for (guint l = 0; l < NUM_LANES; l++) {
        const guint64 count = atomic_load(&progress->lane[l].count);

        moved |= count != seen->count[l];
        seen->count[l] = count;
    }
    moved |= differs(&seen->moves, atomic_load(&progress->moves));
    moved |= differs(&seen->busy, atomic_load(&progress->busy));
    seen->idle_s = moved ? 0 : seen->idle_s + passed_s;
    seen->silent_s =
        differs(&seen->beat, atomic_load(&progress->beat)) ? 0 : seen->silent_s + passed_s;
}

static RankState state_of(const Watchdog *watchdog, const Seen *seen)
{
    const CommProgress *progress;
    RankState state = {.seen = seen->peer != NULL};

    if (!state.seen)
        return state;
    progress = &seen->peer->progress;
    state.pid = seen->peer->pid;
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", state.pid);
    state.process = state_in(path);
    const gboolean silent =
        atomic_load(&progress->watched) == WATCHED && seen->silent_s >= watchdog->limit_s / 2;
    state.runs = !silent && state.process != 'T' && state.process != 't' && state.process != 'Z';
    state.waiting = atomic_load(&progress->waiting) != 0;
    state.idle_s = seen->idle_s;
    state.moves = atomic_load(&progress->moves);
    for (guint l = 0; l < NUM_LANES; l++) {
        state.lane[l].count = atomic_load(&progress->lane[l].count);
        state.lane[l].at = atomic_load(&progress->lane[l].at);
    }
    return state;
}

/* ---- the end ---- */

static void sleep_ms(guint ms)
{
    g_usleep((gulong)ms * 1000);
}

/* Nothing of this process is tidied up: its other threads can't be. */
static void leave(const Watchdog *watchdog) G_GNUC_NORETURN;
static void leave(const Watchdog *watchdog)
{
    _exit(watchdog->status);
}

/* mpirun ends the job with the first rank that leaves, srun may not: ranks that do not run are
 * killed later, from a process of its own, so that it is not their end which is reported. */
static void kill_later(const RankState *states, guint num)
{
    const struct timespec delay = {.tv_sec = KILL_MS / 1000};
    g_autoptr(GArray) handles = g_array_new(FALSE, FALSE, sizeof(int));

    for (guint r = 0; r < num; r++) {
        const int handle =
            states[r].seen && !states[r].runs ? (int)syscall(SYS_pidfd_open, states[r].pid, 0) : -1;

        if (handle >= 0)
            g_array_append_val(handles, handle);
    }
    if (handles->len == 0 || fork() != 0)
        return;
    setsid();
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        close(fd); /* who reads the job's output waits for its end */
    nanosleep(&delay, NULL);
    for (guint i = 0; i < handles->len; i++)
        syscall(SYS_pidfd_send_signal, g_array_index(handles, int, i), SIGKILL, NULL, 0);
    _exit(0);
}

/* One rank of the machine speaks: alarm is 1 while it does, then 2. */
static void speak(Watchdog *watchdog) G_GNUC_NORETURN;
static void speak(Watchdog *watchdog)
{
    const guint num = watchdog->set->num_ranks;
    gboolean all_seen = TRUE;

    for (guint r = 0; r < num; r++)
        all_seen &= watchdog->states[r].seen;
    g_autofree char *report = stall_report(watchdog->set, watchdog->states, watchdog->limit_s);
    fputs(report, stderr);
    fflush(stderr);
    if (!all_seen)
        sleep_ms(OTHERS_MS);
    kill_later(watchdog->states, num);
    atomic_store(&watchdog->first->alarm, 2);
    leave(watchdog);
}

static void follow(const Watchdog *watchdog) G_GNUC_NORETURN;
static void follow(const Watchdog *watchdog)
{
    for (guint ms = 0; ms < PATIENCE_MS && atomic_load(&watchdog->first->alarm) != 2; ms += 10)
        sleep_ms(10);
    leave(watchdog);
}

static void raise_alarm(Watchdog *watchdog) G_GNUC_NORETURN;
static void raise_alarm(Watchdog *watchdog)
{
    guint quiet = 0;

    if (atomic_compare_exchange_strong(&watchdog->first->alarm, &quiet, 1))
        speak(watchdog);
    follow(watchdog);
}

/* ---- the thread ---- */

static gboolean is_stalled(Watchdog *watchdog)
{
    for (guint r = 0; r < watchdog->set->num_ranks; r++)
        watchdog->states[r] = state_of(watchdog, &watchdog->ranks[r]);
    return stall_is_real(watchdog->set, watchdog->states, watchdog->limit_s);
}

static void watch(Watchdog *watchdog, double passed_s)
{
    gboolean idle = FALSE;

    beat(watchdog);
    for (guint r = 0; r < watchdog->set->num_ranks; r++) {
        Seen *seen = &watchdog->ranks[r];

        if (seen->peer == NULL)
            continue;
        look(seen, passed_s);
        idle |= seen->idle_s >= watchdog->limit_s;
    }
    if (atomic_load(&watchdog->first->alarm) != 0)
        follow(watchdog);
    if (idle && is_stalled(watchdog))
        raise_alarm(watchdog);
}

static void wait_a_tick(Watchdog *watchdog)
{
    const gint64 tick_ns = (gint64)(watchdog->tick_s * 1e9);
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    const gint64 ns = until.tv_nsec + tick_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&watchdog->stop, &watchdog->lock, &until);
}

static void *thread_main(void *data)
{
    Watchdog *watchdog = data;
    double last_s = clock_s();

    pthread_mutex_lock(&watchdog->lock);
    while (!watchdog->stopping) {
        wait_a_tick(watchdog);
        const double now_s = clock_s(), passed_s = now_s - last_s;

        last_s = now_s;
        if (!watchdog->stopping)
            watch(watchdog, passed_s < LATE_TICKS * watchdog->tick_s ? passed_s : 0);
    }
    pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

/* Signals are for the threads that work: one of them ends its wait. */
static void start_thread(Watchdog *watchdog)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int status = pthread_create(&watchdog->thread, NULL, thread_main, watchdog);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0)
        g_error("watchdog thread: %s", g_strerror(status)); /* as GLib's own threads do */
}

Watchdog *watchdog_start(Runtime *runtime, const ProgramSet *set, double limit_s, int status)
{
    Watchdog *watchdog = g_new0(Watchdog, 1);
    pthread_condattr_t monotonic;

    g_assert(runtime_size(runtime) == set->num_ranks);
    watchdog->set = set;
    watchdog->limit_s = limit_s;
    watchdog->tick_s = CLAMP(limit_s / TICKS_A_LIMIT, FIRST_TICK_S, LAST_TICK_S);
    watchdog->status = status;
    watchdog->ranks = g_new0(Seen, set->num_ranks);
    watchdog->states = g_new0(RankState, set->num_ranks);
    for (guint r = set->num_ranks; r-- > 0;) {
        Comm *peer = runtime_peer(runtime, r);

        watchdog->ranks[r].peer = peer;
        if (peer != NULL)
            watchdog->first = &peer->progress;
    }
    watchdog->own = &runtime_peer(runtime, runtime_rank(runtime))->progress;
    watchdog->main_path = g_strdup_printf("/proc/self/task/%d/stat", (int)syscall(SYS_gettid));
    pthread_getcpuclockid(pthread_self(), &watchdog->main_clock);
    watchdog->main_s = thread_seconds(watchdog);
    pthread_mutex_init(&watchdog->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watchdog->stop, &monotonic);
    pthread_condattr_destroy(&monotonic);
    atomic_store(&watchdog->own->watched, WATCHED);
    start_thread(watchdog);
    return watchdog;
}

void watchdog_stop(Watchdog *watchdog)
{
    if (watchdog == NULL)
        return;
    pthread_mutex_lock(&watchdog->lock);
    watchdog->stopping = TRUE;
    pthread_cond_signal(&watchdog->stop);
    pthread_mutex_unlock(&watchdog->lock);
    pthread_join(watchdog->thread, NULL);
    atomic_store(&watchdog->own->watched, WATCH_ENDED);
    pthread_cond_destroy(&watchdog->stop);
    pthread_mutex_destroy(&watchdog->lock);
    g_free(watchdog->main_path);
    g_free(watchdog->ranks);
    g_free(watchdog->states);
    g_free(watchdog);
}
