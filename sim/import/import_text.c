#include "sim/import/import_text.h"

#include "sim/base/error.h"

#include <stdarg.h>
#include <string.h>

/* Past "ESC [ parameters letter", which underlines nvidia-smi's header. */
static const char *after_escape(const char *at)
{
    const char *end = at + 2 + strspn(at + 2, "0123456789;");

    return *end != '\0' ? end + 1 : end;
}

static char *clean(const char *text)
{
    GString *out = g_string_sized_new(strlen(text));

    for (const char *at = text; *at != '\0';) {
        if (at[0] == '\033' && at[1] == '[') {
            at = after_escape(at);
            continue;
        }
        if (*at != '\r')
            g_string_append_c(out, *at);
        at++;
    }
    return g_string_free(out, FALSE);
}

ImportText *import_text_new(const char *text, const char *source)
{
    ImportText *result = g_new0(ImportText, 1);
    g_autofree char *cleaned = clean(text);

    result->source = g_strdup(source);
    result->lines = g_strsplit(cleaned, "\n", -1);
    result->num_lines = g_strv_length(result->lines);
    return result;
}

void import_text_free(ImportText *text)
{
    if (text == NULL)
        return;
    g_free(text->source);
    g_strfreev(text->lines);
    g_free(text);
}

char **import_words(const char *line)
{
    GPtrArray *words = g_ptr_array_new();

    for (const char *at = line + strspn(line, " \t"); *at != '\0'; at += strspn(at, " \t")) {
        const gsize length = strcspn(at, " \t");

        g_ptr_array_add(words, g_strndup(at, length));
        at += length;
    }
    g_ptr_array_add(words, NULL);
    return (char **)g_ptr_array_free(words, FALSE);
}

char *import_shown(const char *word)
{
    enum { MAX_BYTES = 60 };
    g_autofree char *start = g_strndup(word, MAX_BYTES);
    char *valid = g_utf8_make_valid(start, -1);

    for (char *at = valid; *at != '\0'; at++) {
        if (g_ascii_iscntrl(*at))
            *at = '?';
    }
    return valid;
}

char *import_file_name(const ImportText *text)
{
    g_autofree char *base = g_path_get_basename(text->source);

    return g_strstrip(import_shown(base));
}

gboolean import_refuse(const ImportText *text, guint line, GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return fail(error, ERROR_INPUT, "%s:%u: %s", text->source, line + 1, message);
}
