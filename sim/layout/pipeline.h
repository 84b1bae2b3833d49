/* A pipeline's timetable: what each stage does in which order, and what it sends to whom. */
#pragma once

#include "sim/layout/schedule.h"

/* backward: of inputs and weights, or of inputs only where ACTION_WEIGHTS follow. */
typedef enum { ACTION_FORWARD, ACTION_BACKWARD, ACTION_WEIGHTS, ACTION_EXCHANGE } ActionKind;

/* An activation that goes to the next chunk, or a gradient that goes to the one before. */
typedef struct {
    gboolean send, gradient;
    guint peer;  /* stage */
    guint chunk; /* of the model: the one on this stage */
    guint micro_batch;
} Transfer;

/* Of an exchange: one or more transfers that happen together, in the same order on both sides. */
typedef struct {
    ActionKind kind;
    guint chunk, micro_batch;            /* forward, backward, weights */
    guint first_transfer, num_transfers; /* exchange: slice of the timetable's transfers */
} Action;

typedef struct {
    GArray *actions;   /* Action */
    GArray *transfers; /* Transfer */
} Timetable;

/* One a stage; array of @pp.
 *
 * Made by running the schedule on clocks on which a chunk's forward takes 1, its backward 2 (1 and
 * 1 for weights): a stage that is free takes what is ready, a forward and a backward in turn, as
 * long as no more micro-batches are in flight than its schedule allows:
 *
 *     gpipe         all of them; backward begins when all forwards are done
 *     1f1b          pp - stage
 *     interleaved   2 (pp - stage - 1) + (v - 1) min(pp, m) + 1, in units of chunks; micro-batches
 *                   pass a chunk in groups of pp (the last may be smaller)
 *     zb_h1         pp - stage between forward and backward, pp between forward and weights;
 *                   weights when nothing else is ready
 *
 * These are the published orders, but for interleaved after its first backward, and their bubbles:
 * a stage waits for pp - 1 forwards and backwards of a chunk (interleaved: where pp divides m),
 * under zb_h1 for pp - 1 forwards (where m is at least pp).
 *
 * Transfers follow the same clocks: those that become ready at the same time are one exchange, and
 * every stage has its exchanges in the order of time.  So ranks that run one exchange after the
 * other cannot wait for each other in a circle, whatever the schedule.  A stage has an exchange
 * before the action during which it becomes ready, and after the action that makes what it sends.
 */
Timetable *timetables_new(const Schedule *schedule, guint pp);
void timetables_free(Timetable *timetables, guint pp);
