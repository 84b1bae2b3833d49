/* How far a rank is: written at every op by the rank itself, read by any rank of its machine, also
 * when the writer no longer runs.  A few relaxed stores an op. */
#pragma once

#include <glib.h>
#include <stdatomic.h>

/* What each of a rank's threads works on; that of storage is there where state is in files. */
typedef enum { LANE_COMPUTE, LANE_COMMUNICATION, LANE_STORAGE, NUM_LANES } ProgressLane;

/* Numbers of what is no op of a program, on the communication lane. */
enum {
    PROGRESS_OPEN = 0xFFFFFFF0u, /* memory and groups are made */
    PROGRESS_AGREE,              /* the control channel */
    PROGRESS_GATHER,
};

typedef struct {
    atomic_ullong at;    /* step << 32 | number of the op in it */
    atomic_ullong count; /* odd while it runs, even once it is done */
    char padding[48];    /* a cache line each: each has a thread that writes */
} CommLane;

typedef struct {
    CommLane lane[NUM_LANES];
    atomic_uint moves;   /* barriers and hops within the communication lane's op */
    atomic_uint waiting; /* 1 while the compute lane waits for another one */

    /* of this rank's watchdog (exec/run/watchdog.h) */
    atomic_uint watched; /* 0: not yet, 1, 2: no longer */
    atomic_uint beat;    /* grows as long as the process runs */
    atomic_uint busy;    /* grows while the compute lane uses the processor */
    atomic_uint alarm;   /* on the first rank of a machine: one has raised it */
} CommProgress;

static inline guint64 progress_at(guint64 step, guint32 number)
{
    return step << 32 | number;
}

/* Only by the thread that the lane belongs to. */
static inline void progress_begin(CommProgress *progress, ProgressLane which, guint64 at)
{
    CommLane *lane = &progress->lane[which];
    const guint64 count = atomic_load_explicit(&lane->count, memory_order_relaxed);

    if (which == LANE_COMMUNICATION)
        atomic_store_explicit(&progress->moves, 0, memory_order_relaxed);
    atomic_store_explicit(&lane->at, at, memory_order_relaxed);
    atomic_store_explicit(&lane->count, count + 1, memory_order_release);
}

static inline void progress_end(CommProgress *progress, ProgressLane which)
{
    CommLane *lane = &progress->lane[which];
    const guint64 count = atomic_load_explicit(&lane->count, memory_order_relaxed);

    atomic_store_explicit(&lane->count, count + 1, memory_order_release);
}

/* Within an op of the communication lane. */
static inline void progress_move(CommProgress *progress)
{
    const guint moves = atomic_load_explicit(&progress->moves, memory_order_relaxed);

    atomic_store_explicit(&progress->moves, moves + 1, memory_order_relaxed);
}

/* Within an op of another lane: begun still, and not at the same place. */
static inline void progress_tick(CommProgress *progress, ProgressLane which)
{
    CommLane *lane = &progress->lane[which];
    const guint64 count = atomic_load_explicit(&lane->count, memory_order_relaxed);

    atomic_store_explicit(&lane->count, count + 2, memory_order_relaxed);
}
