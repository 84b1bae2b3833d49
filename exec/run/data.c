#include "exec/run/data.h"

#include "exec/base/random.h"
#include "sim/base/error.h"

#include <errno.h>
#include <glib/gstdio.h>

#define BYTE_VALUES 256u

struct Data {
    GMappedFile *file;
    const guchar *text;
    gsize bytes;
    guint seq_len;
};

static gboolean check_file(const char *path, GError **error)
{
    GStatBuf info;

    if (g_stat(path, &info) != 0)
        return fail(error, ERROR_INPUT, "%s: %s; --data takes a UTF-8 text file", path,
                    g_strerror(errno));
    if (S_ISDIR(info.st_mode))
        return fail(error, ERROR_INPUT, "%s: is a folder; --data takes a UTF-8 text file", path);
    if (!S_ISREG(info.st_mode))
        return fail(error, ERROR_INPUT, "%s: is not a regular file; --data takes a UTF-8 text file",
                    path);
    if (info.st_size == 0)
        return fail(error, ERROR_INPUT, "%s: is empty; --data takes a text of at least 1 byte",
                    path);
    return TRUE;
}

/* Offset of the first byte that is not UTF-8; @bytes when all is well.  g_utf8_validate() stops at
 * NUL, which is legal in UTF-8. */
static gsize first_invalid(const char *text, gsize bytes)
{
    const char *const end = text + bytes;
    const char *at = text;

    while (at < end && !g_utf8_validate_len(at, (gsize)(end - at), &at) && *at == '\0')
        at++;
    return (gsize)(at - text);
}

static gboolean check_text(const Data *data, const char *path, GError **error)
{
    const gsize offset = first_invalid((const char *)data->text, data->bytes);

    if (offset < data->bytes)
        return fail(error, ERROR_INPUT,
                    "%s: byte 0x%02x at offset %" G_GSIZE_FORMAT
                    " is not UTF-8; --data takes a UTF-8 text file",
                    path, data->text[offset], offset);
    return TRUE;
}

Data *data_open(const char *path, guint vocab, guint seq_len, GError **error)
{
    g_assert(seq_len > 0);

    if (vocab < BYTE_VALUES) {
        fail(error, ERROR_INPUT,
             "%s: the model's vocab_size is %u; text data needs at least %u (a token is a byte)",
             path, vocab, BYTE_VALUES);
        return NULL;
    }
    if (!check_file(path, error))
        return NULL;

    g_autoptr(GError) cause = NULL;
    GMappedFile *file = g_mapped_file_new(path, FALSE, &cause);
    if (file == NULL) {
        fail(error, ERROR_INPUT, "%s: %s", path, cause->message);
        return NULL;
    }

    g_autoptr(Data) data = g_new(Data, 1);
    *data = (Data){
        .file = file,
        .text = (const guchar *)g_mapped_file_get_contents(file),
        .bytes = g_mapped_file_get_length(file),
        .seq_len = seq_len,
    };
    return check_text(data, path, error) ? g_steal_pointer(&data) : NULL;
}

void data_fill(const Data *data, const Sample *sample, const gint32 *positions, guint count,
               gint32 *tokens, gint32 *labels)
{
    const guint64 start =
        random_sample_start(sample->seed, sample->step, sample->number, data->bytes);

    for (guint j = 0; j < count; j++) {
        const guint64 at = (start + (guint64)positions[j]) % data->bytes;

        g_assert((guint)positions[j] < data->seq_len);
        if (tokens != NULL)
            tokens[j] = data->text[at];
        if (labels != NULL)
            labels[j] = data->text[(at + 1) % data->bytes];
    }
}

guint64 data_bytes(const Data *data)
{
    return data->bytes;
}

void data_free(Data *data)
{
    if (data == NULL)
        return;
    g_mapped_file_unref(data->file);
    g_free(data);
}
