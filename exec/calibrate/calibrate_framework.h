/* What a rank's process holds beside its arena, by really training for a few steps. */
#pragma once

#include "sim/input/topology.h"

/* Runs this program on a small plan for @topology, with one rank and (where @most_ranks allows it)
 * with two, and takes what their records say: measured.framework_alone_bytes and framework_bytes.
 * @tiny: the smallest plan there is. */
gboolean calibrate_framework(Topology *topology, guint most_ranks, gboolean tiny,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
