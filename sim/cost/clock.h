/* Virtual time of one simulated rank: its ops in the order of issue, on clocks of its streams.
 * Private to the simulation; what the clocks mean: simulate.h. */
#pragma once

#include "sim/cost/links.h"
#include "sim/cost/simulate.h"

/* The first fills the pipe, the last is taken as steady: the second, where it leaves all clocks as
 * the first did. */
enum { STEPS = 3, FEWER_STEPS = 2 };

/* One op of a segment, and what there is to know of it on the clocks. */
typedef struct {
    const Op *op;
    double took_s, lost_s; /* lost_s: that compute loses to it */
    double linked_s;       /* of took_s, that it uses a link; 0: none */
    guint link;
    OpClass class, spent_on;
    gboolean communicates, copies_file;
    gboolean shares; /* its lane does a link */
    Volume volume;   /* where it communicates */
    guint run_ops;   /* compute from here on of which nothing waits for other streams, and only the
                        last is waited for; 0: none begins here */
} Timed;

/* Virtual time of one simulated rank. */
typedef struct Clock Clock;
struct Clock {
    const Program *program;
    Clock *before;                /* what it was when step FEWER_STEPS - 1 ended */
    Timed *timed;                 /* ops of all segments */
    guint *first_timed;           /* by segment; one past the end too */
    guint32 *first_op;            /* program_first_ops() */
    double *end[2];               /* by op: when it ended in this step, in the one before */
    guint lane[MAX_STREAMS];      /* by stream: the stream whose clock it goes by */
    double stream_s[MAX_STREAMS]; /* when the newest op of a lane ends */
    double *newest[MAX_STREAMS];  /* by lane: the same, among ends of ops */
    guint noted[MAX_STREAMS];     /* the same, in the timeline; NOT_NOTED: not there */
    Links links;
    double owed_s;               /* what compute loses before the optimiser: to reductions */
    double issue_s;              /* when the issuing thread is free (CPU) */
    double queue_s;              /* when the communication thread is free (CPU) */
    guint32 files;               /* program_file_streams() */
    double files_s;              /* when the storage thread is free: a rank's disk has one op */
    double held_s[2];            /* until when the thread that issues compute (0), or the one that
                                    issues communication, waits for a file (GPU) */
    double last_compute_s;       /* end of the newest compute op */
    double step_start_s, step_s; /* of this step; how long the one before took */
    double begun_s[2];           /* when the first op of this step began, of the one before */
    guint steps;                 /* to be done */
    /* the op under way */
    guint step, next_call, op, num_ops;
    const Call *call;
    const Timed *call_timed; /* of the call's first op */
    const Wait *call_waits;
    double *call_end; /* end[0], of the call's first op */
    double ready_s;
    gboolean arrived; /* at a collective, waiting for the others */
};

void clock_init(Clock *clock, const Program *program, const SimulateContext *context,
                const guint *spans, guint steps);
void clock_clear(Clock *clock);

/* Ordinal of the current op among those of all segments. */
static inline guint clock_ordinal(const Clock *clock)
{
    return (guint)(clock->call_timed - clock->timed) + clock->op;
}

static inline const Timed *clock_timed(const Clock *clock)
{
    return &clock->call_timed[clock->op];
}

static inline const Op *clock_op(const Clock *clock)
{
    return clock_timed(clock)->op;
}

/* Takes the rank to its next op; FALSE when all steps are done. */
gboolean clock_settle(Clock *clock);

/* The earliest start of the current op by its stream, its waits and the threads that it needs. */
double clock_ready(const Clock *clock, const Timed *timed, gboolean is_cpu);

/* Seconds that the current op, from @start_s on, is late for what other lanes send. */
double clock_delay_s(const Clock *clock, double start_s);

/* Ends the current op, @delayed_s later than alone, and takes the rank to the next one. */
void clock_finish(Clock *clock, double start_s, double delayed_s, gboolean overlaps, GArray *ops,
                  guint class_index);

/* Whether the stream of compute has a clock that nothing else moves or holds. */
gboolean clock_is_simple(const Clock *clock, gboolean is_cpu, gboolean overlaps);

/* Most ops of a step, quickly: where a run of ops begins that follow one another, what
 * clock_ready() and clock_finish() make of them, for a clock that is simple; else FALSE. */
static inline gboolean clock_finish_run(Clock *clock)
{
    const Timed *timed = clock_timed(clock), *after = timed + timed->run_ops;
    double end_s = clock->stream_s[COMPUTE_STREAM];

    if (timed->run_ops == 0)
        return FALSE;
    clock->begun_s[0] = MIN(clock->begun_s[0], end_s);
    for (const Timed *op = timed; op < after; op++)
        end_s += op->took_s;
    clock->op += timed->run_ops;
    clock->call_end[clock->op - 1] = end_s;
    clock->stream_s[COMPUTE_STREAM] = clock->last_compute_s = end_s;
    return TRUE;
}

/* After FEWER_STEPS, whether the last one left it as the one before did, @period_s later. */
gboolean clock_repeats(const Clock *now, double period_s);

/* Seconds between the ends of those two. */
static inline double clock_period_s(const Clock *clock)
{
    return clock->last_compute_s - clock->before->last_compute_s;
}

StepTime clock_time(const Clock *clock);
