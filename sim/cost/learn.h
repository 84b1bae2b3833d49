/* What training showed, as rows of a topology: the inverse of sim/cost/durations.h. */
#pragma once

#include "sim/cost/durations.h"

/* One op of a program, as a run took it. */
typedef struct {
    const Program *program;
    const guint *spans; /* of the program's groups, as for durations_new() */
    const Op *op;
    double seconds; /* of a typical call; of a collective from when its last member came */
    double calls;   /* how many there were: its weight among ops of the same row */
} LearnOp;

typedef struct {
    guint gemm, ops, collectives; /* rows that say what was shown */
    guint between_nodes;          /* collectives that no row is for */
} Learnt;

/* Puts into @topology, which context->topology is too, the rows with which the ops of @ops take
 * what they took: prediction and run agree on them to the 4 digits of a row.  Rows of other keys
 * stay.  What it is given twice changes nothing, nor does what was predicted.  @by_cudnn: cuDNN ran
 * the attention that it can. */
Learnt learn_rows(Topology *topology, const SimulateContext *context, const GArray *ops,
                  gboolean by_cudnn);
