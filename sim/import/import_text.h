/* A foreign text by lines and words, and refusals that name the line. */
#pragma once

#include <glib.h>

typedef struct {
    char *source;
    char **lines; /* without terminal escapes and carriage returns; NULL-terminated */
    guint num_lines;
} ImportText;

ImportText *import_text_new(const char *text, const char *source);
void import_text_free(ImportText *text);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ImportText, import_text_free)

/* The words of a line: split at blanks and tabs, none empty. */
char **import_words(const char *line);

/* @word as a message may show it: cut, valid UTF-8, no control characters. */
char *import_shown(const char *word);

/* The file's name without its folder, as it may be shown. */
char *import_file_name(const ImportText *text);

/* Sets ERROR_INPUT, "source:line: ..." (@line counts from 0) and returns FALSE. */
gboolean import_refuse(const ImportText *text, guint line, GError **error, const char *format, ...)
    G_GNUC_PRINTF(4, 5);
