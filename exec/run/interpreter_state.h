/* Private to the interpreter: what interpreter_open.c makes, interpreter.c and lane_job.c run. */
#pragma once

#include "exec/run/agreement.h"
#include "exec/run/checker.h"
#include "exec/run/interpreter.h"
#include "exec/run/op_events.h"
#include "exec/run/op_number.h"
#include "exec/run/staging.h"
#include "exec/run/step_graph.h"
#include "exec/run/tiers.h"

struct Interpreter {
    InterpreterOptions options;
    Runtime *runtime;
    const ProgramSet *set;
    const Program *program;
    guint rank;
    CommGroup *groups[MAX_STREAMS]; /* by stream */
    ProgressLane lane[MAX_STREAMS]; /* by stream: whose thread runs it */
    guint map_rank;                 /* position among the ranks that share a unit */
    Tiers tiers;
    guint64 *offset; /* by tensor, in its tier's arena; the program's, unless there is a guard */
    ArenaGuard *guards[NUM_TIERS]; /* of memory; these three: of check mode, else NULL */
    Checker *checker;
    Agreement *agreement;
    GError *found;        /* by check mode, on the main thread */
    OpEvents *events;     /* NULL: the device has no queues */
    StepGraph *graph;     /* where there are events */
    StepWay way;          /* of this step */
    char *attention;      /* what interpreter_attention() says */
    gboolean on_device;   /* communication is enqueued */
    Staging *staging;     /* NULL: the communicator takes the device's memory */
    CommRun **own_chunks; /* by unit class, one a piece: made once, a step allocates nothing */
    guint32 *first_op;    /* by call of the step */
    OpNumbers numbers;
    guint64 ops_per_step;
    guint64 *ordinals[2]; /* by op of this step and of the one before: its lane's job; 0 = none */
    guint8 *op_lane;      /* by op of the step */
    OpTime *times;
    gboolean sampled;
    gboolean primed; /* the prologue has run */
    double step_start_s;
    guint64 step;
    RoundingNumbers *rounding; /* LAUNCH_MOST_PARAMS a unit of the model; NULL: to nearest */
};

/* Everything that was issued is done. */
gboolean interpreter_quiet(Interpreter *interpreter, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Where the operands of a call's op lie. */
void interpreter_resolve(Interpreter *interpreter, const Call *call, const Op *op, Launch *launch);
