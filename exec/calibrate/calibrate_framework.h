/* What a rank's process holds beside its arena, by really training for a few steps. */
#pragma once

#include "sim/input/topology.h"

/* Runs this program on a small plan for @topology, with one rank and with two, and takes what their
 * records say: measured.framework_bytes and framework_alone_bytes. */
gboolean calibrate_framework(Topology *topology, GError **error) G_GNUC_WARN_UNUSED_RESULT;
