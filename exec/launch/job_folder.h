/* The folder of one job on this machine: whatever its processes put into shared memory lies in
 * there, so that one removal leaves nothing behind, however they ended. */
#pragma once

#include <glib.h>

typedef struct JobFolder JobFolder;

/* Makes a fresh folder in shared memory (where there is none: among temporary files).  Folders of
 * jobs that ended without removing theirs are removed first.  A folder is in use as long as any
 * process holds the lock, which children inherit through job_folder_lock(); once none does, as when
 * all were killed, a process started here removes the folder. */
JobFolder *job_folder_new(GError **error) G_GNUC_WARN_UNUSED_RESULT;

const char *job_folder_path(const JobFolder *folder);
int job_folder_lock(const JobFolder *folder); /* descriptor, close-on-exec */

/* Removes it with everything inside. */
void job_folder_free(JobFolder *folder);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(JobFolder, job_folder_free)
