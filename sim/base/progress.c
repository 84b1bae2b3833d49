#include "sim/base/progress.h"

#include <stdio.h>
#include <unistd.h>

struct Progress {
    const char *what;
    gint64 began_us, next_us;
    gboolean shown;
};

Progress *progress_new(const char *what)
{
    if (!isatty(STDERR_FILENO))
        return NULL;
    Progress *progress = g_new0(Progress, 1);
    progress->what = what;
    progress->began_us = g_get_monotonic_time();
    progress->next_us = progress->began_us + G_USEC_PER_SEC;
    return progress;
}

void progress_free(Progress *progress)
{
    progress_hide(progress);
    g_free(progress);
}

gboolean progress_is_due(const Progress *progress)
{
    return progress != NULL && g_get_monotonic_time() >= progress->next_us;
}

void progress_show(Progress *progress, double share)
{
    enum { WIDTH = 40 };
    char bar[WIDTH + 1];

    if (progress == NULL)
        return;
    share = CLAMP(share, 0, 1);
    for (guint i = 0; i < WIDTH; i++)
        bar[i] = i < share * WIDTH ? '#' : '.';
    bar[WIDTH] = '\0';
    const gint64 now_us = g_get_monotonic_time();
    fprintf(stderr, "\r%s [%s] %3.0f%%  %.0f s", progress->what, bar, 100 * share,
            (double)(now_us - progress->began_us) / G_USEC_PER_SEC);
    fflush(stderr);
    progress->next_us = now_us + G_USEC_PER_SEC / 5;
    progress->shown = TRUE;
}

void progress_hide(Progress *progress)
{
    if (progress == NULL || !progress->shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->shown = FALSE;
}
