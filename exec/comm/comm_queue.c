#include "exec/comm/comm_queue.h"

#include <pthread.h>
#include <string.h>

/* pthread's own locks, so that ThreadSanitizer sees them. */
struct CommQueue {
    guint capacity;
    gsize job_bytes;
    CommJob run;
    gpointer context;
    pthread_t thread;

    pthread_mutex_t lock;    /* guards what follows */
    pthread_cond_t work;     /* for the thread: posted, stopping */
    pthread_cond_t progress; /* for the others: done, error */
    char *jobs;              /* a ring: ordinal k lies in slot (k - 1) % capacity until done */
    guint64 posted, done;    /* ordinals */
    gboolean stopping;       /* nothing is posted any more */
    GError *error;
};

static gpointer slot(const CommQueue *queue, guint64 ordinal)
{
    return queue->jobs + (ordinal - 1) % queue->capacity * queue->job_bytes;
}

/* Runs the next job, with the lock released meanwhile; FALSE when there is none to come. */
static gboolean run_next(CommQueue *queue)
{
    GError *error = NULL;

    while (queue->done == queue->posted && !queue->stopping)
        pthread_cond_wait(&queue->work, &queue->lock);
    if (queue->done == queue->posted)
        return FALSE;
    gpointer job = slot(queue, queue->done + 1);
    pthread_mutex_unlock(&queue->lock);
    gboolean ok = queue->run(queue->context, job, &error);
    pthread_mutex_lock(&queue->lock);
    g_assert(ok == (error == NULL));
    if (ok)
        queue->done++;
    queue->error = error;
    pthread_cond_broadcast(&queue->progress);
    return ok;
}

static void *thread_main(void *data)
{
    CommQueue *queue = data;

    pthread_mutex_lock(&queue->lock);
    while (run_next(queue))
        ;
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

CommQueue *comm_queue_new(guint capacity, gsize job_bytes, CommJob run, gpointer context)
{
    CommQueue *queue = g_new0(CommQueue, 1);

    g_assert(capacity > 0 && job_bytes > 0);
    queue->capacity = capacity;
    queue->job_bytes = job_bytes;
    queue->run = run;
    queue->context = context;
    queue->jobs = g_malloc0_n(capacity, job_bytes);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->work, NULL);
    pthread_cond_init(&queue->progress, NULL);
    int status = pthread_create(&queue->thread, NULL, thread_main, queue);
    if (status != 0)
        g_error("a thread for jobs: %s", g_strerror(status)); /* as GLib's own threads do */
    return queue;
}

guint64 comm_queue_post(CommQueue *queue, gconstpointer job)
{
    guint64 ordinal = 0;

    pthread_mutex_lock(&queue->lock);
    while (queue->posted - queue->done == queue->capacity && !queue->error)
        pthread_cond_wait(&queue->progress, &queue->lock);
    if (!queue->error) {
        ordinal = ++queue->posted;
        memcpy(slot(queue, ordinal), job, queue->job_bytes);
        pthread_cond_signal(&queue->work);
    }
    pthread_mutex_unlock(&queue->lock);
    return ordinal;
}

gboolean comm_queue_wait(CommQueue *queue, guint64 ordinal)
{
    pthread_mutex_lock(&queue->lock);
    g_assert(ordinal <= queue->posted);
    while (queue->done < ordinal && !queue->error)
        pthread_cond_wait(&queue->progress, &queue->lock);
    gboolean ok = queue->error == NULL;
    pthread_mutex_unlock(&queue->lock);
    return ok;
}

const GError *comm_queue_error(const CommQueue *queue)
{
    CommQueue *self = (CommQueue *)queue; /* the lock is not part of what const promises */

    pthread_mutex_lock(&self->lock);
    const GError *error = self->error;
    pthread_mutex_unlock(&self->lock);
    return error;
}

void comm_queue_free(CommQueue *queue)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->stopping = TRUE;
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->progress);
    pthread_cond_destroy(&queue->work);
    pthread_mutex_destroy(&queue->lock);
    g_clear_error(&queue->error);
    g_free(queue->jobs);
    g_free(queue);
}
