/* Streams, the ops queued in them, and the clocks that say what happens before what. */
#pragma once

#include "tests/cudasim/race.h"
#include "tests/cudasim/report.h"
#include <cuda_runtime_api.h>

#define CS_STREAMS (CS_CLOCKS - 1) /* alive at once; 0 is the legacy default stream */

typedef struct CsOp CsOp;
typedef struct CsCapture CsCapture;

/* What an op is.  Its struct starts with CsOp and holds the arguments. */
typedef struct {
    const char *name;
    gsize bytes; /* of the struct */
    void (*run)(CsOp *op);

    /* All optional. */
    void (*copied)(CsOp *op);  /* @op is a copy: gives it its own of what must not be shared */
    void (*dropped)(CsOp *op); /* frees what the op owns */
    void (*queued)(CsOp *op);  /* it takes its place among what was queued before */
    void (*start)(CsOp *op);   /* a first half, which others' ops may follow */
    gboolean (*poll)(CsOp *op, double wait_s); /* may it run now? waits so long at most */
} CsOpKind;

struct CsOp {
    const CsOpKind *kind;
    const char *name; /* of the kernel, or the kind's */
    CsOp *next;
    guint stream;
    guint sequence; /* in the order of queueing */
    guint id;       /* for race.h, once it has begun */
    gboolean started;
    gboolean polled;
    CsClock queued_at; /* of the host */
};

/* One recording of an event. */
typedef struct {
    guint refs;
    gboolean done;
    double time_us; /* cs_time_us then */
    CsClock clock;
} CsToken;

typedef struct {
    gboolean used;
    gboolean blocking; /* synchronises with the default stream */
    gboolean dying;    /* ends with its last op */
    int priority;      /* for CS_PCT */
    CsOp *first;
    CsOp *last;
    CsClock clock;

    CsCapture *capture; /* ops go there, if not NULL */
    GArray *after;      /* guint: nodes of the capture that the next one comes after */
} CsStream;

extern CsStream cs_streams[CS_STREAMS];
extern double cs_time_us; /* of the simulated clock: ops that have run */

/* ---- calls ---- */

/* Every API function enters, which starts the device the first time and keeps other threads out,
 * and leaves with its result, which is remembered if it is an error. */
void cs_enter(void);
cudaError_t cs_leave(cudaError_t error);

/* How often anybody has entered. */
guint64 cs_num_calls(void);

/* For hooks, which functions of the host that ops call reach as well: TRUE if it entered. */
gboolean cs_enter_if_outside(void);

CsStream *cs_stream(cudaStream_t handle);

/* Nothing is capturing that this call would spoil; else spoils it and returns FALSE. */
gboolean cs_may_synchronise(void);

/* ---- ops ---- */

CsOp *cs_op_new(const CsOpKind *kind);
CsOp *cs_op_copy(const CsOp *op);
void cs_op_free(CsOp *op);

/* Queues it with the semantics of the stream, or captures it; takes it. */
void cs_push(CsStream *stream, CsOp *op);

/* The same, within enter and leave. */
void cs_op_push(cudaStream_t stream, CsOp *op);

/* ---- tokens ---- */

CsToken *cs_token_ref(CsToken *token);
void cs_token_unref(CsToken *token);

/* Queues a recording, and a wait for one. */
CsToken *cs_stream_record(CsStream *stream);
void cs_stream_wait(CsStream *stream, CsToken *token);

/* ---- hidden streams, for the branches of a graph ---- */

CsStream *cs_stream_acquire(void);
void cs_stream_release(CsStream *stream);

/* ---- schedule (schedule.c) ---- */

/* Whether the first op of a stream waits for an event that has not happened. */
gboolean cs_op_must_wait(const CsOp *op);

/* Runs one op, or half of one.  FALSE: none can go on now. */
gboolean cs_schedule_one(void);

/* By chance, as many as happen to run while the host goes on. */
void cs_schedule_some(void);

/* From now on ops also run while the host is busy with something else, or waits for another process
 * by other means than CUDA. */
void cs_schedule_in_background(void);

/* Runs ops until @over.  Others may enter while all of them wait for other processes. */
void cs_schedule_until(gboolean (*over)(const void *of), const void *of);

/* Waits for a stream, a token, everything: the host knows afterwards. */
void cs_wait_stream(CsStream *stream);
void cs_wait_token(CsToken *token);
void cs_wait_all(void);

/* Host clocks. */
void cs_host_advance(void);
void cs_host_joins(const CsClock *clock);
const CsClock *cs_host_clock(void);
guint cs_host_op(void); /* for race.h: what the host does now */
void cs_clock_join(CsClock *into, const CsClock *clock);

/* Lets other threads of the process enter for a moment. */
void cs_breathe(double seconds);
