/* One node as its GPUs are linked, and the topology that follows. */
#pragma once

#include "sim/import/import.h"
#include "sim/import/import_text.h"

typedef struct {
    const char *kind; /* of the file, for [cluster] source */
    guint line;       /* where it begins, from 0 */
    guint gpus;
    guint nics;
    guint *nvlinks;          /* gpus x gpus: links between the two; through a switch, of each */
    gboolean *shares_switch; /* gpus x gpus: behind one PCIe switch */
    gboolean lists_nvlink;   /* FALSE: the file may leave NVLink for NCCL to find */
    double nic_bytes_per_s;  /* of the node, one direction; 0 = not in the file */
    double rail_bytes_per_s; /* of its fastest adapter */
    GString *assumed;        /* for [cluster] source: "; ..." of each thing the file lacks */
} ImportNode;

void import_node_init(ImportNode *node, guint gpus);
void import_node_clear(ImportNode *node);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ImportNode, import_node_clear)

/* @gpu: a name under topologies/gpus. */
Topology *import_node_topology(ImportNode *node, const ImportText *text, const char *gpu,
                               const char *topologies_dir, GError **error);
