/* One reader a kind of file; import.c chooses. */
#pragma once

#include "sim/import/import.h"
#include "sim/import/import_text.h"

/* import_matrix.c: `nvidia-smi topo -m`. */

/* The first line from @from on that begins a matrix; the number of lines when there is none. */
guint import_matrix_find(const ImportText *text, guint from);
Topology *import_matrix(const ImportText *text, const char *gpu, const char *topologies_dir,
                        GError **error);

/* import_xml.c: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.  @gpu may be NULL where
 * the file has PCI device ids. */
Topology *import_xml(const char *xml, const ImportText *text, const char *gpu,
                     const char *topologies_dir, GError **error);

/* import_slurm.c: topology.conf.  @base (changed, the caller's) is the topology of the nodes. */
gboolean import_slurm_begins(const char *line);
gboolean import_slurm(const ImportText *text, Topology *base, GError **error);

/* import_nccl_tests.c.  @base (changed, the caller's) is what the test ran on. */
guint import_nccl_tests_find(const ImportText *text, guint from);
gboolean import_nccl_tests(const ImportText *text, Topology *base, const char *topologies_dir,
                           GError **error);
