/* Time of one collective or exchange: from what calibration measured, else from nominal links. */
#pragma once

#include "sim/input/topology.h"
#include "sim/program/program.h"

#include <glib.h>

enum { NO_LEVEL = G_MAXUINT };

/* A group of ranks at equal distances. */
typedef struct {
    const Topology *topology;
    guint ranks;          /* members, at least 1 */
    guint span;           /* consecutive ranks that it spreads over: stride * ranks */
    guint ranks_per_node; /* of the whole job, at least 1 */
    guint copies;         /* of an all-to-all: rows that are the same one, to so many places at
                             random, of which each domain of a level is sent one; 0: all are sent */
} CollectiveContext;

/* Seconds of one @kind over @bytes: the whole buffer (what all-gather ends with, reduce-scatter
 * starts from), of an exchange the larger of what is sent and received.  A group of one takes 0
 * on a GPU, a local copy on a CPU. */
double collective_seconds(Volume kind, guint64 bytes, DType dtype,
                          const CollectiveContext *context);

/* The level that is the slowest part of it: an op alone takes all that one link of that level
 * gives, and shares it with what else the rank sends there.  NO_LEVEL for a group of one, and on a
 * CPU, whose ranks move bytes themselves. */
guint collective_level(Volume kind, const CollectiveContext *context);

/* Of its seconds those that grow with bytes, in which it uses that link. */
double collective_link_seconds(Volume kind, guint64 bytes, DType dtype,
                               const CollectiveContext *context);

/* What a row of calibration says of a collective that takes @seconds in @context: its group alone
 * on the node.  0 where rows say nothing: between nodes. */
double collective_row_seconds(double seconds, const CollectiveContext *context);

/* Whether the innermost network joins all ranks of the group. */
gboolean collective_inside(const CollectiveContext *context);
