/* File systems by what statfs(2) calls them. */
#pragma once

#include <glib.h>

/* "NFS, over a network"; NULL: it is none that is known to be one.  @type: f_type of statfs(2). */
const char *file_system_network(guint32 type);
