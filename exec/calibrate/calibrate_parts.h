/* Parts of a calibration that other processes measure, and the file that all of them make. */
#pragma once

#include "exec/calibrate/calibrate.h"
#include "sim/input/topology.h"

/* A temporary file, then renamed. */
gboolean calibrate_write(const Topology *topology, const char *path,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* launch_ranks() or launch_local(). */
typedef int (*CalibrateLaunch)(int argc, char **argv, guint ranks, guint threads, GError **error);

/* Runs @ranks of this program, which call calibrate_rank_part() or calibrate_cuda_rank_part(), and
 * takes their rows. */
gboolean calibrate_ranks(const CalibrateOptions *options, CalibrateLaunch launch, guint ranks,
                         Measured *measured, GError **error) G_GNUC_WARN_UNUSED_RESULT;
