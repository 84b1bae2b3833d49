/* Private to the interpreter: what interpreter_open.c makes and interpreter.c runs. */
#pragma once

#include "exec/run/agreement.h"
#include "exec/run/checker.h"
#include "exec/run/interpreter.h"
#include "exec/run/op_events.h"
#include "exec/run/op_number.h"
#include "exec/run/staging.h"
#include "exec/run/step_graph.h"

struct Interpreter {
    InterpreterOptions options;
    Runtime *runtime;
    const ProgramSet *set;
    const Program *program;
    guint rank;
    CommGroup *groups[MAX_STREAMS]; /* by stream */
    guint map_rank;                 /* position among the ranks that share a unit */
    guint8 *arena;                  /* the device's memory */
    guint64 arena_bytes;
    guint64 *offset;   /* by tensor; the program's, unless there is a guard */
    ArenaGuard *guard; /* these three: of check mode, else NULL */
    Checker *checker;
    Agreement *agreement;
    GError *found;        /* by check mode, on the main thread */
    OpEvents *events;     /* NULL: the device has no queues */
    StepGraph *graph;     /* where there are events */
    StepWay way;          /* of this step */
    gboolean on_device;   /* communication is enqueued */
    Staging *staging;     /* NULL: the communicator takes the device's memory */
    CommRun **own_chunks; /* by unit class, one a piece: made once, a step allocates nothing */
    guint32 *first_op;    /* by call of the step */
    OpNumbers numbers;
    guint64 ops_per_step;
    guint64
        *ordinals[2]; /* by op of this step and of the one before: its job in the queue; 0 = none */
    OpTime *times;
    gboolean sampled;
    gboolean primed; /* the prologue has run */
    double step_start_s;
    guint64 step;
};

/* Where the operands of a call's op lie. */
void interpreter_resolve(Interpreter *interpreter, const Call *call, const Op *op, Launch *launch);
