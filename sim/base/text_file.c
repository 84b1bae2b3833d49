#include "sim/base/text_file.h"

#include "sim/base/error.h"

#include <glib/gstdio.h>
#include <string.h>

/* Far above any description; below it a weights file given by mistake is not read to its end. */
enum { MAX_BYTES = 64 << 20 };

char *text_file_read(const char *path, GError **error)
{
    g_autofree char *text = NULL;
    g_autoptr(GError) read_error = NULL;
    GStatBuf status;
    gsize length;

    if (g_stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        fail(error, ERROR_INPUT, "%s: not a regular file", path);
        return NULL;
    }
    if (g_stat(path, &status) == 0 && status.st_size > MAX_BYTES) {
        fail(error, ERROR_INPUT, "%s: %" G_GINT64_FORMAT " bytes; allowed: at most %d", path,
             (gint64)status.st_size, MAX_BYTES);
        return NULL;
    }
    if (!g_file_get_contents(path, &text, &length, &read_error)) {
        fail(error, ERROR_INPUT, "%s", read_error->message);
        return NULL;
    }
    if (strlen(text) != length) {
        fail(error, ERROR_INPUT, "%s: byte %" G_GSIZE_FORMAT " is NUL: not a text file", path,
             strlen(text));
        return NULL;
    }
    return g_steal_pointer(&text);
}
