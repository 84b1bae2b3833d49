/* A thread that runs jobs, and a FIFO of them with fixed capacity; posting never allocates.  A rank
 * has one for communication, the only one that calls a communicator, and where state is in files
 * one for storage. */
#pragma once

#include <glib.h>

typedef struct CommQueue CommQueue;

/* Runs on the thread.  FALSE (with @error set) stops the queue: later jobs are dropped. */
typedef gboolean (*CommJob)(gpointer context, gpointer job, GError **error);

/* @capacity jobs of @job_bytes each (copied in). */
CommQueue *comm_queue_new(guint capacity, gsize job_bytes, CommJob run, gpointer context);

/* Blocks while the queue is full.  Returns the job's ordinal, counted from 1; 0 once the queue has
 * failed. */
guint64 comm_queue_post(CommQueue *queue, gconstpointer job);

/* Blocks until the job with that ordinal (and all before it) is done; FALSE once the queue has
 * failed. */
gboolean comm_queue_wait(CommQueue *queue, guint64 ordinal);

/* The first error, or NULL; stays valid until free. */
const GError *comm_queue_error(const CommQueue *queue);
void comm_queue_free(
    CommQueue *queue); /* finishes what is queued unless failed; joins the thread */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CommQueue, comm_queue_free)
