#include "sim/backtest/csv.h"

#include "sim/base/error.h"

#include <string.h>

typedef struct {
    const char *at, *source;
    guint line;
} Reader;

/* What follows the opening quote, to behind the closing one. */
static gboolean read_quoted(Reader *reader, GString *field, GError **error)
{
    const guint opened = reader->line;

    for (; *reader->at != '\0'; reader->at++) {
        if (*reader->at == '"' && reader->at[1] != '"') {
            reader->at++;
            return TRUE;
        }
        if (*reader->at == '"')
            reader->at++;
        reader->line += *reader->at == '\n' ? 1 : 0;
        g_string_append_c(field, *reader->at);
    }
    return fail(error, ERROR_INPUT, "%s:%u: a quote that is never closed", reader->source, opened);
}

static gboolean read_field(Reader *reader, GPtrArray *fields, GError **error)
{
    g_autoptr(GString) field = g_string_new(NULL);

    if (*reader->at == '"') {
        reader->at++;
        if (!read_quoted(reader, field, error))
            return FALSE;
        if (strchr(",\r\n", *reader->at) == NULL) /* the end of the text is one of them */
            return fail(error, ERROR_INPUT, "%s:%u: field %u: \"%c\" after the closing quote",
                        reader->source, reader->line, fields->len + 1, *reader->at);
    } else {
        const gsize length = strcspn(reader->at, ",\r\n\"");

        g_string_append_len(field, reader->at, (gssize)length);
        reader->at += length;
        if (*reader->at == '"')
            return fail(error, ERROR_INPUT, "%s:%u: field %u: a quote within a field",
                        reader->source, reader->line, fields->len + 1);
    }
    g_ptr_array_add(fields, g_strdup(field->str));
    return TRUE;
}

static void skip_line_end(Reader *reader)
{
    if (reader->at[0] == '\r' && reader->at[1] == '\n')
        reader->at++;
    if (*reader->at == '\r' || *reader->at == '\n') {
        reader->at++;
        reader->line++;
    }
}

static char **read_record(Reader *reader, GError **error)
{
    g_autoptr(GPtrArray) fields = g_ptr_array_new_with_free_func(g_free);

    if (!read_field(reader, fields, error))
        return NULL;
    while (*reader->at == ',') {
        reader->at++;
        if (!read_field(reader, fields, error))
            return NULL;
    }
    skip_line_end(reader);
    g_ptr_array_add(fields, NULL);
    g_ptr_array_set_free_func(fields, NULL);
    return (char **)g_ptr_array_free(g_steal_pointer(&fields), FALSE);
}

static gboolean check_header(const Csv *csv, GError **error)
{
    for (guint i = 0; csv->header[i] != NULL; i++)
        if (csv_column(csv, csv->header[i]) != (gint)i)
            return fail(error, ERROR_INPUT, "%s:1: column \"%s\" twice", csv->source,
                        csv->header[i]);
    return TRUE;
}

static gboolean read_rows(Reader *reader, Csv *csv, GError **error)
{
    const guint columns = g_strv_length(csv->header);

    while (*reader->at != '\0') {
        CsvRow row = {.line = reader->line};

        if (*reader->at == '\r' || *reader->at == '\n') {
            skip_line_end(reader);
            continue;
        }
        row.fields = read_record(reader, error);
        if (row.fields == NULL)
            return FALSE;
        g_array_append_val(csv->rows, row);
        if (g_strv_length(row.fields) != columns)
            return fail(error, ERROR_INPUT, "%s:%u: %u fields; the header has %u", csv->source,
                        row.line, g_strv_length(row.fields), columns);
    }
    return TRUE;
}

static void row_clear(gpointer data)
{
    g_strfreev(((CsvRow *)data)->fields);
}

Csv *csv_parse(const char *text, const char *source, GError **error)
{
    Reader reader = {.at = text, .source = source, .line = 1};
    g_autoptr(Csv) csv = g_new0(Csv, 1);

    csv->source = g_strdup(source);
    csv->rows = g_array_new(FALSE, FALSE, sizeof(CsvRow));
    g_array_set_clear_func(csv->rows, row_clear);
    csv->header = read_record(&reader, error);
    if (csv->header == NULL || !check_header(csv, error) || !read_rows(&reader, csv, error))
        return NULL;
    return g_steal_pointer(&csv);
}

void csv_free(Csv *csv)
{
    if (csv == NULL)
        return;
    g_array_unref(csv->rows);
    g_strfreev(csv->header);
    g_free(csv->source);
    g_free(csv);
}

gint csv_column(const Csv *csv, const char *name)
{
    for (guint i = 0; csv->header[i] != NULL; i++)
        if (strcmp(csv->header[i], name) == 0)
            return (gint)i;
    return -1;
}
