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

/* From all passes, one by one. */
Flow *flow_new(const Schedule *schedule, guint pp);

/* A pipeline that has filled repeats itself: once it has, each further group of pp micro-batches is
 * like the one before.  0 where @micro_batches are too few for that; else the fewer, less than four
 * groups of the same remainder, that with a group more tell all. */
guint flow_filled(guint micro_batches, guint pp);

/* Of @schedule, from its flows with flow_filled() micro-batches and with pp more. */
Flow *flow_extended(const Schedule *schedule, guint pp, const Flow *filled, const Flow *one_more);
void flow_free(Flow *flow);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Flow, flow_free)
