/* An op that another thread than the main one runs: that of its stream's lane.  Private to the
 * interpreter. */
#pragma once

#include "exec/run/interpreter_state.h"

typedef struct {
    Interpreter *interpreter;
    Launch launch;
    guint stream, micro_batch;
    guint64 at;       /* progress_at() */
    OpTime *time;     /* NULL: not sampled */
    const Call *call; /* NULL: not in a step */
    guint op;         /* in its segment */
    guint32 number;   /* in the step */
    guint64 step;
    double step_start_s;
    guint64 after[NUM_LANES]; /* of other lanes: their jobs that come first */
} LaneJob;

/* Copies the job to the end of its lane's queue.  Its ordinal there; 0 when a thread has failed. */
guint64 lane_job_post(Interpreter *interpreter, const LaneJob *job);

/* Until that lane is done with it; FALSE when a thread has failed, as before (@ordinal 0). */
gboolean lane_job_wait(Interpreter *interpreter, const LaneJob *job, guint64 ordinal);
