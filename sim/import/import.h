/* Topologies out of what other tools print. */
#pragma once

#include "sim/input/topology.h"

#include <glib.h>

/* What a file does not say; NULL where not given. */
typedef struct {
    const char *gpu;      /* a name under topologies/gpus: the GPU of `nvidia-smi topo -m`, XML */
    const char *topology; /* as for topology_load(): what Slurm's and nccl-tests' nodes are */
} ImportOptions;

/* @text is one of: the output of `nvidia-smi topo -m` (one node), an NCCL topology XML (one node),
 * a Slurm topology.conf (the nodes and tiers of options->topology), the output of nccl-tests (rows
 * of [measured collectives] beside those of options->topology).  What is not in it and not given,
 * or is damaged, is ERROR_INPUT, "source:line: ...".  The result prints and parses back. */
Topology *import_parse(const char *text, const char *source, const ImportOptions *options,
                       const char *topologies_dir, GError **error) G_GNUC_WARN_UNUSED_RESULT;
Topology *import_load(const char *path, const ImportOptions *options, const char *topologies_dir,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
