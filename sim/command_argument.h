/* The command line of a verb that takes one argument. */
#pragma once

#include "sim/cost/framework.h"
#include "sim/input/topology.h"

#include <glib.h>

/* What --help calls the program. */
void command_name(const char *verb);

/* Takes the options of @entries (NULL: none) out, and returns the argument that is left.  @what it
 * is, for --help and messages: "PLAN".  ERROR_INPUT. */
char *command_argument(const char *verb, const char *what, const GOptionEntry *entries, int argc,
                       char **argv, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The value of --framework for a target of that kind.  ERROR_INPUT. */
gboolean framework_option(const char *name, DeviceKind device, const Framework **framework,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
