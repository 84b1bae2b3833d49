/* Graphs: what capture.c makes, and what they need of events. */
#pragma once

#include "tests/cudasim/stream.h"

typedef struct {
    CsOp *op; /* or an external event: */
    cudaEvent_t event;
    gboolean record;
    GArray *after; /* guint: earlier nodes */
} CsNode;

cudaGraph_t cs_graph_new(void);
void cs_graph_free(cudaGraph_t graph);

/* Adds a node (its members are taken), and returns its number. */
guint cs_graph_add(cudaGraph_t graph, CsNode node);
guint cs_graph_num_nodes(const struct CUgraph_st *graph);

/* What node @index comes after. */
const GArray *cs_graph_after(const struct CUgraph_st *graph, guint index);

/* ---- event.c ---- */

/* Takes what @event was recorded as last, or gives NULL; sets it (taken). */
CsToken *cs_event_token(cudaEvent_t event);
void cs_event_set_token(cudaEvent_t event, CsToken *token);
