/* Measures a disk as the nvme tier uses it (exec/run/storage.h). */
#pragma once

#include "sim/input/topology.h"

/* Copies between a file in @folder and memory, both ways, by one process; [memory nvme] of
 * @topology gets what one of a node's GPUs has of that while all copy, what a small copy takes, and
 * the room that is free there. */
gboolean calibrate_storage(Topology *topology, const char *folder,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
