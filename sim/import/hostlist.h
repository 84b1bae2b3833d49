/* Slurm's lists of names: "node[01-04,7],login". */
#pragma once

#include <glib.h>

/* The names, in order; NULL and ERROR_INPUT (without file and line) where @list is damaged or has
 * more than 2^17. */
GPtrArray *hostlist_expand(const char *list, GError **error) G_GNUC_WARN_UNUSED_RESULT;
