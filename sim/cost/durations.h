/* Seconds of every op of a program, as its framework runs it. */
#pragma once

#include "sim/cost/collective.h"
#include "sim/cost/compute.h"
#include "sim/program/program.h"

/* Where programs run. */
typedef struct {
    const Topology *topology;
    guint ranks_per_node;        /* of the job */
    guint threads;               /* of a rank */
    gboolean free_communication; /* it takes no time: what is left are waits for other stages */
    gboolean free_units;         /* the same of all that other strategies of the units could save */
    const Framework *framework;  /* NULL: fsdp-run */
} SimulateContext;

/* By segment, then op; @spans: by group of the program, consecutive ranks that it spreads over. */
double **durations_new(const Program *program, const SimulateContext *context, const guint *spans);

/* Of one segment, without what its framework's host adds to a pass over a block. */
double *durations_of_segment(const Program *program, guint segment, const SimulateContext *context,
                             const guint *spans);
void durations_free(double **durations, const Program *program);

/* That of the context; on a CPU fsdp-run. */
const Framework *durations_framework(const SimulateContext *context);

/* Under what an op runs that computes, and one that communicates; *bytes: of its buffer. */
ComputeContext durations_compute(const Program *program, const Op *op,
                                 const SimulateContext *context);
CollectiveContext durations_collective(const Program *program, const Op *op,
                                       const SimulateContext *context, const guint *spans,
                                       guint64 *bytes);
