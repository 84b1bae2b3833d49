/* Time of one compute op on a rank's device: from what calibration measured, else from nominal
 * figures and the shape. */
#pragma once

#include "sim/cost/framework.h"
#include "sim/input/topology.h"
#include "sim/program/op.h"

#include <glib.h>

/* Under what an op runs. */
typedef struct {
    guint busy;                 /* ranks of this node that compute at once, at least 1 */
    guint threads;              /* of each rank, at least 1 */
    guint cores;                /* of a node, at least 1; read only where the device is a CPU */
    guint64 unit_elements;      /* ops on a unit: real elements that this rank holds of it */
    guint context_ranks;        /* that share a sequence; 0 = 1 */
    guint logit_ranks;          /* whose logits a rank's loss is taken of; 0 = 1, its own */
    gboolean pads;              /* rows of experts: see framework_passes() */
    const Framework *framework; /* NULL: fsdp-run; read only where the device is a GPU */
} ComputeContext;

/* Seconds that @op (not communication) keeps its device busy; never negative. */
double compute_op_seconds(const Op *op, const Topology *topology, const ComputeContext *context);
