/* Steps as graphs of the device: one is kept while it is issued, and run again instead of those
 * that follow.  That is possible since a step's calls, rings and addresses are those of the last,
 * and what changes is read from memory.  Says which steps, and in auto mode finds out whether it
 * helps. */
#pragma once

#include "exec/run/runtime.h"

/* In auto mode some steps are timed without and with, and the faster way is kept. */
typedef enum { GRAPH_OFF, GRAPH_ON, GRAPH_AUTO } GraphMode;

typedef enum { STEP_ISSUED, STEP_CAPTURED, STEP_REPLAYED } StepWay;

typedef struct StepGraph StepGraph;

/* @runtime is borrowed.  @obstacle: NULL when all of a step is the device's; else no step is a
 * graph, since that. */
StepGraph *step_graph_new(Runtime *runtime, GraphMode mode, const char *obstacle);
void step_graph_free(StepGraph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(StepGraph, step_graph_free)

/* How step @step is to run, which is the same on all ranks.  A sampled one is issued op by op. */
StepWay step_graph_way(const StepGraph *graph, guint64 step, gboolean sample);

/* Around what a captured step issues: on the main thread, with nothing under way. */
gboolean step_graph_begin(StepGraph *graph, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean step_graph_end(StepGraph *graph, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* @again: not for the first time; counts what it receives. */
void step_graph_run(StepGraph *graph, gboolean again);

/* After a step that took so long, from its beginning until its compute was done.  Collective. */
gboolean step_graph_took(StepGraph *graph, StepWay way, guint64 step, double seconds,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What holds, for the run's record; changes once in auto mode. */
const char *step_graph_text(const StepGraph *graph);
