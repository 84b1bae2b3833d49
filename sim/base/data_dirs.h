/* Where models/ and topologies/ are: beside the sources, or installed. */
#pragma once

#include <glib.h>

/* The folder @name ("models", "topologies"): ./name where it exists, else name beside the program's
 * own folder (build/ in a source tree), else under the installed share/fsdp.  The caller's. */
char *data_dir(const char *name);

/* Names of the files in @folder or, with @inside, of the folders that have such a file; sorted.
 * The caller's; g_strfreev(). */
GStrv data_names(const char *folder, const char *inside);
