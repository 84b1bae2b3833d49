/* Reads an input file whole. */
#pragma once

#include <glib.h>

/* A regular file of at most 64 MiB without NUL bytes.  NULL and ERROR_INPUT otherwise. */
char *text_file_read(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
