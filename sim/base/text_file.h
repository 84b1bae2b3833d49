/* Reads an input file whole, and writes a result. */
#pragma once

#include <glib.h>

/* A regular file, or a pipe (/dev/stdin, <(...)), of at most 64 MiB without NUL bytes.  NULL and
 * ERROR_INPUT otherwise. */
char *text_file_read(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A file is written beside and renamed: a reader sees the old one or the new one, whole, and a link
 * still points to it.  What is no file, or is stdout itself (a terminal, a pipe, /dev/stdout,
 * /dev/null), is written to as it is: renaming would take its place.  ERROR_INPUT where there can
 * be no file of that name, ERROR_RUNTIME where writing fails. */
gboolean text_file_write(const char *path, const char *text, gsize length,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether there can be a file of that name: before what takes long. */
gboolean text_file_check(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether all that was printed has come to where stdout goes; ERROR_RUNTIME. */
gboolean text_stdout_flush(GError **error) G_GNUC_WARN_UNUSED_RESULT;
