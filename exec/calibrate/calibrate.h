/* Calibration: measures this machine with the kernels and the communicator that training uses, and
 * writes a topology file with what it found. */
#pragma once

#include "exec/run/interpreter.h"

#include <glib.h>

typedef struct {
    gboolean quick;          /* fewer rows, on a CPU under 15 s instead of 60 s */
    gboolean tiny;           /* of GPUs: one row of each, for those that are simulated */
    AttentionMode attention; /* of GPUs: what a run will take */
    const char *topology;    /* of GPUs: what describes this machine; file or name */
    const char *topologies_dir;
    const char *nvme_folder; /* of a disk that is measured too; NULL: none */
    /* Arguments, the program's name first and NULL last, that make this program call
     * calibrate_rank_part(), or of GPUs calibrate_cuda_rank_part(), with the same options and the
     * argument that follows them. */
    const char *const *rank_command;
} CalibrateOptions;

/* Measures products, attention, memory-bound ops and collectives under the loads that training has
 * (one rank, one rank of many threads, a rank a core; groups of 1, 2, 4 and a rank a core), and
 * writes topology "localhost" with the rows to @output_path, which is replaced when all is done.
 * Started by hand, as one process; starts ranks of itself under mpirun. */
gboolean calibrate(const CalibrateOptions *options, const char *output_path,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What such a rank does: measures along with the others; rank 0 writes its rows to @rows_path.
 * After FALSE the process must end with an exit status other than 0: peers are waiting. */
gboolean calibrate_rank_part(const CalibrateOptions *options, const char *rows_path,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The GPUs of this machine, which options->topology describes: products, attention, memory-bound
 * ops and launches on one, collectives of NCCL over 2, 4, ... of them.  Writes that topology with
 * the rows, in place of any that it had; its nominal figures stay.  ERROR_INPUT where it describes
 * another GPU, ERROR_RUNTIME without one. */
gboolean calibrate_cuda(const CalibrateOptions *options, const char *output_path,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean calibrate_cuda_rank_part(const CalibrateOptions *options, const char *rows_path,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
