/* Which ops calibration measures, and which rows of the topology file they give. */
#pragma once

#include "sim/input/topology.h"
#include "sim/program/op.h"

#include <glib.h>

typedef struct {
    Op op;
    guint64 unit_elements; /* unit ops */
    double seconds;        /* one call; the fixed cost of an op is taken off */
    gboolean by_library;   /* attention: cuDNN runs it */
} OpTask;

enum {
    CALIBRATE_IDS = 128, /* token ids are below this, and no embedding has fewer rows */
    /* Of softmax and its gradient in OP_HEAD_LOSS, the size of its row: as sim/cost counts it. */
    CALIBRATE_BYTES_PER_LOGIT = 12,
};

/* Appends an op with its operands. */
void op_tasks_add(GArray *tasks, OpKind kind, DType dtype, const OpSizes *sizes,
                  guint64 unit_elements);

/* An op's operands, a letter each, in the order of op.h:
 *
 *     w  read, just written by the op before      c  read, last used long ago
 *     o  written                                  a  accumulated into, first call
 *     u  updated, just written                    U  updated, last used long ago
 *     i  token ids, s  scalar, S  scalar written, h  hyper-parameters, x  scratch
 *
 * "Just written" is what a training step has from the op before. */
char *op_task_roles(const Op *op);

typedef enum {
    CALIBRATE_CPU,
    CALIBRATE_CPU_QUICK,
    CALIBRATE_GPU,
    CALIBRATE_GPU_QUICK,
    CALIBRATE_TINY, /* of a GPU that is simulated */
    NUM_CALIBRATE_SCALES
} CalibrateScale;

/* The ops to measure, all seconds 0. */
GArray *op_tasks_new(CalibrateScale scale);

/* Those of @tasks that a GPU's library may run instead. */
GArray *op_tasks_by_library(const GArray *tasks);

/* Appends their rows. */
void op_tasks_add_rows(const GArray *tasks, guint busy, guint threads, Measured *measured);
