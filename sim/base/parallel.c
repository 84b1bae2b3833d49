#include "sim/base/parallel.h"

typedef struct {
    guint num;
    ParallelWork work;
    gpointer data;
    gint next, workers; /* atomic */
} Parallel;

guint parallel_workers(guint num)
{
    return CLAMP(num, 1, g_get_num_processors());
}

static gpointer run_worker(gpointer data)
{
    Parallel *parallel = data;
    const guint worker = (guint)g_atomic_int_add(&parallel->workers, 1);
    guint index;

    while ((index = (guint)g_atomic_int_add(&parallel->next, 1)) < parallel->num)
        parallel->work(parallel->data, index, worker);
    return NULL;
}

void parallel_run(guint num, ParallelWork work, gpointer data)
{
    Parallel parallel = {.num = num, .work = work, .data = data};
    const guint others = parallel_workers(num) - 1;
    g_autofree GThread **threads = g_new(GThread *, others + 1);

    for (guint i = 0; i < others; i++)
        threads[i] = g_thread_new("worker", run_worker, &parallel);
    run_worker(&parallel);
    for (guint i = 0; i < others; i++)
        g_thread_join(threads[i]);
}
