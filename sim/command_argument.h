/* The command line of a verb that takes one argument. */
#pragma once

#include <glib.h>

/* Takes the options of @entries (NULL: none) out, and returns the argument that is left.  @what it
 * is, for --help and messages: "PLAN".  ERROR_INPUT. */
char *command_argument(const char *verb, const char *what, const GOptionEntry *entries, int argc,
                       char **argv, GError **error) G_GNUC_WARN_UNUSED_RESULT;
