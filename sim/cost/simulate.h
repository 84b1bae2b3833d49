/* Runs a step on virtual clocks, one a stream: the first interpreter of DESIGN 2. */
#pragma once

#include "sim/cost/durations.h"
#include "sim/cost/spans.h"

/* Seconds of a steady step. */
typedef struct {
    double step_s;
    double busy_s[NUM_OP_CLASSES]; /* of the ops themselves; communication hidden or not, with the
                                      casts and sums on its streams */
    double volume_s[NUM_VOLUMES];  /* of collectives and exchanges, hidden or not */
    double exposed_s; /* step_s less all compute: communication and, with stages, the bubble */
} StepTime;

/* One op of the steady step, since that step began. */
typedef struct {
    guint class_index, call, op;
    double start_s, end_s;
} SimulatedOp;

/* Simulates one rank of each class; times[] are by class.  @ops (NULL or a GArray of SimulatedOp)
 * gets the steady step's timeline.  Programs must pass program_set_check().
 *
 * A collective starts when the last simulated member reaches it.  On a GPU every stream is a clock
 * of its own.  On a CPU the issuing thread runs compute itself and one thread a rank runs all
 * communication in the order of issue; when the cores of a node are not enough for both threads of
 * every rank, the two take turns and nothing overlaps (measured: compute and communication at once
 * take 0.86 to 1.07 of their sum in 25 configurations of 2 to 8 ranks on 2 cores).
 *
 * What is on a stream to and from files another thread runs, one op at a time, whatever the cores:
 * it waits for a disk.  On a GPU, the thread that issues an op which waits for such a one issues
 * nothing meanwhile. */
void simulate_set(const ProgramSet *set, const SimulateContext *context, StepTime *times,
                  GArray *ops);

/* The same for a single class of which all ranks are equal; @spans: by group of the program,
 * consecutive ranks that it spreads over.  Allocates little: for search. */
StepTime simulate_program(const Program *program, const SimulateContext *context,
                          const guint *spans);

/* Whether communication can run beside compute on this node. */
gboolean simulate_overlaps(const SimulateContext *context);
