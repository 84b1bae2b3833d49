/* Whether a machine's GPU is the one that a topology describes. */
#pragma once

#include "exec/device/device.h"
#include "sim/input/topology.h"

/* ERROR_INPUT: another one by its name, its form (SXM, PCIe, NVL) or its memory.  @note: NULL, or
 * which rates it has by its clocks that are not those of the topology. */
gboolean calibrate_match(const Topology *topology, const DeviceFacts *facts, char **note,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
