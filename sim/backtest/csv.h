/* Tables of comma-separated values (RFC 4180). */
#pragma once

#include <glib.h>

typedef struct {
    guint line;    /* in the file, of its first character */
    char **fields; /* as many as the header has, NULL-terminated */
} CsvRow;

typedef struct {
    char *source;
    char **header;
    GArray *rows; /* CsvRow */
} Csv;

/* Fields may be quoted, quotes in them doubled, and quoted ones span lines; empty lines are
 * skipped.  Errors are "@source:line: ..." and ERROR_INPUT. */
Csv *csv_parse(const char *text, const char *source, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void csv_free(Csv *csv);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Csv, csv_free)

/* The column of that name, or -1. */
gint csv_column(const Csv *csv, const char *name);
