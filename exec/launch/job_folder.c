#define _GNU_SOURCE 1 /* nftw() */
#include "exec/launch/job_folder.h"

#include "sim/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX       "fsdp-run."
#define OPEN_FOLDERS 8 /* descriptors nftw() may hold */

struct JobFolder {
    char *path;
    int lock;
};

static const char *parent_folder(void)
{
    return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : g_get_tmp_dir();
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    remove(path);
    return 0; /* go on: others are to be removed even where one can't be */
}

static void remove_tree(const char *path)
{
    nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

static int open_folder(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Removes @path if it is ours and no process holds its lock. */
static void sweep_one(const char *path)
{
    struct stat info;
    const int fd = open_folder(path);

    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
        remove_tree(path);
    close(fd);
}

static void sweep(const char *parent)
{
    g_autoptr(GDir) dir = g_dir_open(parent, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(parent, name, NULL);

        if (g_str_has_prefix(name, PREFIX))
            sweep_one(path);
    }
}

/* Makes and locks a folder.  *lock stays -1, without error, when another process's sweep took the
 * folder between the two. */
static char *make_locked(const char *parent, int *lock, GError **error)
{
    g_autofree char *path = g_build_filename(parent, PREFIX "XXXXXX", NULL);
    struct stat info;

    if (g_mkdtemp(path) == NULL) {
        fail(error, ERROR_RUNTIME, "%s: can't make a folder for the job: %s", parent,
             g_strerror(errno));
        return NULL;
    }
    const int fd = open_folder(path);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 &&
        info.st_nlink > 0) {
        *lock = fd;
        return g_steal_pointer(&path);
    }
    rmdir(path);
    if (fd >= 0)
        close(fd);
    return g_steal_pointer(&path);
}

/* Removes what a killed job has left (Open MPI's mpirun cleans up after SIGTERM, but not always):
 * waits, in a process of its own, until all who hold the lock are gone. */
static void start_janitor(const JobFolder *folder)
{
    if (fork() != 0)
        return;

    setsid(); /* the terminal's signals are not for it */
    signal(SIGTERM, SIG_IGN);
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        close(fd); /* who reads the job's output waits for its end */
    close(folder->lock);

    const int fd = open_folder(folder->path);
    if (fd >= 0 && flock(fd, LOCK_EX) == 0)
        remove_tree(folder->path);
    _exit(0);
}

JobFolder *job_folder_new(GError **error)
{
    const char *parent = parent_folder();
    char *path = NULL;
    int lock = -1;

    sweep(parent);
    for (guint attempt = 0; lock < 0 && attempt < 16; attempt++) {
        g_free(path);
        path = make_locked(parent, &lock, error);
        if (path == NULL)
            return NULL;
    }
    if (lock < 0) {
        fail(error, ERROR_RUNTIME, "%s: can't lock the job's folder: %s", path, g_strerror(errno));
        g_free(path);
        return NULL;
    }

    JobFolder *folder = g_new(JobFolder, 1);
    *folder = (JobFolder){.path = path, .lock = lock};
    start_janitor(folder);
    return folder;
}

const char *job_folder_path(const JobFolder *folder)
{
    return folder->path;
}

int job_folder_lock(const JobFolder *folder)
{
    return folder->lock;
}

void job_folder_free(JobFolder *folder)
{
    if (folder == NULL)
        return;
    remove_tree(folder->path);
    close(folder->lock);
    g_free(folder->path);
    g_free(folder);
}
