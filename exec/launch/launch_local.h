/* Ranks on this machine without MPI: each is a child with the variables of a launcher that has
 * none (LAUNCH_VARIABLES). */
#pragma once

#include <glib.h>

/* Tells rank 0 which of its descriptors listens at MASTER_PORT already. */
#define LAUNCH_LISTENER_VARIABLE "FSDP_RUN_LISTENER"

/* As launch_ranks().  Ranks end with their job: when one fails, the others have some seconds. */
int launch_local(int argc, char **argv, guint ranks, guint threads, GError **error);
