/* Loops of kernels over threads.  On one thread they are plain loops: libgomp allocates a team of
 * one anew for each region, and a step allocates nothing. */
#pragma once

#include <glib.h>

/* Iteration @i; iterations may run in any order and at once. */
typedef void (*CpuBody)(gconstpointer context, guint64 i);

static inline void cpu_loop_alone(guint64 count, CpuBody body, gconstpointer context)
{
    for (guint64 i = 0; i < count; i++)
        body(context, i);
}

/* Each thread takes one run of iterations. */
static inline void cpu_loop(guint threads, guint64 count, CpuBody body, gconstpointer context)
{
    if (threads == 1 || count <= threads) {
        cpu_loop_alone(count, body, context);
        return;
    }
#pragma omp parallel for num_threads(threads)
    for (guint64 i = 0; i < count; i++)
        body(context, i);
}

/* Threads take a few iterations at a time: for those that differ in length. */
static inline void cpu_loop_uneven(guint threads, guint64 count, CpuBody body,
                                   gconstpointer context)
{
    if (threads == 1) {
        cpu_loop_alone(count, body, context);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
    for (guint64 i = 0; i < count; i++)
        body(context, i);
}
