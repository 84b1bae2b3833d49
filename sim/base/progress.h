/* How far long silent work has come: a bar on a terminal, one line of stderr that is gone when the
 * work ends.  Nothing where stderr is no terminal. */
#pragma once

#include <glib.h>

typedef struct Progress Progress;

/* @what: one word, not copied.  NULL where there is nobody to see it; so may all below be given. */
Progress *progress_new(const char *what);
void progress_free(Progress *progress);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Progress, progress_free)

/* Whether it is time to say more: after the first second, some times a second. */
gboolean progress_is_due(const Progress *progress);

/* By one thread: @share of the work, 0 to 1, is done. */
void progress_show(Progress *progress, double share);

/* Takes the line away. */
void progress_hide(Progress *progress);
