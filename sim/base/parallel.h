/* The same work on many things, on all cores. */
#pragma once

#include <glib.h>

/* @worker: which of the parallel_workers() this is; one does one thing at a time. */
typedef void (*ParallelWork)(gpointer data, guint index, guint worker);

/* How many work at once on @num things: no more than there are cores. */
guint parallel_workers(guint num);

/* Calls @work for 0 .. @num - 1, in any order, and returns when all are done. */
void parallel_run(guint num, ParallelWork work, gpointer data);
