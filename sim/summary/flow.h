/* What passes through the stages of a pipeline, counted: micro-batches in flight, exchanges. */
#pragma once

#include "sim/layout/pipeline.h"

/* Most copies that are taken of each kind of ring (program/builder.h), and what a step moves. */
typedef struct {
    guint in_flight;      /* chunks between forward and backward */
    guint until_weights;  /* between forward and backward for weights */
    guint backward_apart; /* between backward and that for weights; 1 where they are one */
    guint gradients, inboxes;
    guint activations_received, gradients_received, exchanges;
    gboolean refills; /* a forward of the first chunk follows the first backward */
} StageFlow;

typedef struct {
    guint pp;
    StageFlow *stages;
    guint *opened; /* by chunk: how often a micro-batch starts to be in flight while none is */
} Flow;

/* A pipeline that has filled repeats itself, so what many micro-batches do follows from some of
 * them. */
Flow *flow_new(const Schedule *schedule, guint pp);

/* The same from all of them, one by one. */
Flow *flow_new_listed(const Schedule *schedule, guint pp);
void flow_free(Flow *flow);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Flow, flow_free)
