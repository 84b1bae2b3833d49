#include "sim/base/text_file.h"

#include "sim/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Far above any description; below it a weights file given by mistake is not read to its end. */
enum { MAX_BYTES = 64 << 20 };

/* To its end, which a pipe does not tell beforehand. */
static char *read_pipe(const char *path, gsize *length, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    FILE *file = g_fopen(path, "re");
    char part[4096];
    gsize bytes = 1;

    while (file != NULL && bytes > 0 && text->len <= MAX_BYTES) {
        bytes = fread(part, 1, sizeof part, file);
        g_string_append_len(text, part, (gssize)bytes);
    }
    const gboolean failed = file == NULL || ferror(file);
    if (file != NULL)
        (void)fclose(file);
    if (failed || text->len > MAX_BYTES) {
        fail(error, ERROR_INPUT, failed ? "%s: can't be read" : "%s: more than 64 MiB", path);
        return NULL;
    }
    *length = text->len;
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static char *read_file(const char *path, gsize *length, GError **error)
{
    g_autoptr(GError) why = NULL;
    char *text = NULL;

    if (!g_file_get_contents(path, &text, length, &why))
        fail(error, ERROR_INPUT, "%s", why->message);
    return text;
}

char *text_file_read(const char *path, GError **error)
{
    GStatBuf status;
    gsize length;
    const gboolean there = g_stat(path, &status) == 0;
    const gboolean pipe = there && S_ISFIFO(status.st_mode);

    if (there && !pipe && !S_ISREG(status.st_mode)) {
        fail(error, ERROR_INPUT, "%s: not a regular file", path);
        return NULL;
    }
    if (there && status.st_size > MAX_BYTES) {
        fail(error, ERROR_INPUT, "%s: %" G_GINT64_FORMAT " bytes; allowed: at most %d", path,
             (gint64)status.st_size, MAX_BYTES);
        return NULL;
    }
    g_autofree char *text =
        pipe ? read_pipe(path, &length, error) : read_file(path, &length, error);
    if (text == NULL)
        return NULL;
    if (strlen(text) != length) {
        fail(error, ERROR_INPUT, "%s: byte %" G_GSIZE_FORMAT " is NUL: not a text file", path,
             strlen(text));
        return NULL;
    }
    return g_steal_pointer(&text);
}

/* ---- writing ---- */

static gboolean is_stdout(const GStatBuf *status)
{
    struct stat out;

    return fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == status->st_dev &&
           out.st_ino == status->st_ino;
}

static gboolean write_all(int fd, const char *text, gsize length)
{
    while (length > 0) {
        const gssize written = write(fd, text, length);

        if (written < 0 && errno != EINTR)
            return FALSE;
        text += MAX(written, 0);
        length -= (gsize)MAX(written, 0);
    }
    return TRUE;
}

/* Another descriptor of stdout's file would write over what stdout has written. */
static gboolean write_through(const char *path, gboolean to_stdout, const char *text, gsize length,
                              GError **error)
{
    const int fd =
        to_stdout ? dup(STDOUT_FILENO) : g_open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC, 0);
    gboolean done = fd >= 0 && write_all(fd, text, length);
    int why = errno;

    if (fd >= 0 && close(fd) != 0 && done) {
        done = FALSE;
        why = errno;
    }
    return done || fail(error, ERROR_RUNTIME, "%s: can't be written: %s", path, g_strerror(why));
}

/* GLib's messages name the file beside it, then say why. */
static const char *last_part(const char *message)
{
    const char *colon = g_strrstr(message, ": ");

    return colon == NULL ? message : colon + 2;
}

static gboolean check_name(const char *path, gboolean exists, const GStatBuf *status,
                           GError **error)
{
    if (*path == '\0')
        return fail(error, ERROR_INPUT, "\"\": no file has that name; allowed: a file to write");
    if (exists && S_ISDIR(status->st_mode))
        return fail(error, ERROR_INPUT, "%s: a folder; allowed: a file to write", path);
    return TRUE;
}

gboolean text_file_check(const char *path, GError **error)
{
    g_autofree char *folder = g_path_get_dirname(path);
    GStatBuf status;
    const gboolean exists = g_stat(path, &status) == 0;

    if (!check_name(path, exists, &status, error))
        return FALSE;
    return exists || g_access(folder, W_OK) == 0 ||
           fail(error, ERROR_INPUT, "%s: can't be written: %s; allowed: a file to write", path,
                g_strerror(errno));
}

gboolean text_file_write(const char *path, const char *text, gsize length, GError **error)
{
    GStatBuf status;
    const gboolean exists = g_stat(path, &status) == 0;

    if (!check_name(path, exists, &status, error))
        return FALSE;
    if (exists && (!S_ISREG(status.st_mode) || is_stdout(&status)))
        return write_through(path, is_stdout(&status), text, length, error);
    char *target = realpath(path, NULL); /* NULL: it is not there yet */
    g_autoptr(GError) why = NULL;
    const gboolean done =
        g_file_set_contents_full(target != NULL ? target : path, text, (gssize)length,
                                 G_FILE_SET_CONTENTS_CONSISTENT, 0666, &why);

    free(target);
    if (done)
        return TRUE;
    return fail(
        error, g_error_matches(why, G_FILE_ERROR, G_FILE_ERROR_NOSPC) ? ERROR_RUNTIME : ERROR_INPUT,
        "%s: can't be written: %s", path, last_part(why->message));
}

gboolean text_stdout_flush(GError **error)
{
    const gboolean flushed = fflush(stdout) == 0;

    if (flushed && !ferror(stdout))
        return TRUE;
    return fail(error, ERROR_RUNTIME, "stdout can't be written%s%s: what was printed is not whole",
                flushed ? "" : ": ", flushed ? "" : g_strerror(errno));
}
