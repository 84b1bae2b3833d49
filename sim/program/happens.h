/* Happens-before within one rank: stream order and waits, over the step followed by itself. */
#pragma once

#include "sim/program/program.h"

/* Instances: op `o` of call `c` of repetition `s` is s * ops_per_step + first_op[c] + o. */
typedef struct {
    const Program *program;
    guint num_streams;
    guint64 ops_per_step;
    guint32 *first_op;             /* program_first_ops() */
    guint32 per_step[MAX_STREAMS]; /* by stream: its ops of one repetition */
    guint32 *position;             /* by instance: ordinal on its stream, from 1 */
    guint8 *stream;                /* by instance */
    guint32 *clocks;        /* rows by stream: the last position known to be done; that of the own
                               stream, which follows from the order, is not kept up */
    guint num_clocks, room; /* rows; that there is room for */
    guint32 *clock; /* by instance: which of those; ops that learn nothing have that before them */
    guint64 newest_clock;        /* one past the instance that has the last of them */
    guint64 newest[MAX_STREAMS]; /* by stream: one past its newest instance that has begun */
    guint *first_wait; /* by op of the call that is filled, one past its first wait; 0: none */
    guint *next_wait;  /* by wait of that call, one past the same op's next one */
} Happens;

/* Lays out @steps repetitions without clocks: happens_fill() sets them all, happens_begin() and
 * happens_join() one instance at a time. */
Happens *happens_new(const Program *program, guint steps);
void happens_free(Happens *happens);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Happens, happens_free)

/* Starts @instance's clock from the op before it on its stream (call in issue order). */
void happens_begin(Happens *happens, guint64 instance);

/* @instance waits for @event. */
void happens_join(Happens *happens, guint64 instance, guint64 event);

/* The last position of @stream that is done before @instance starts. */
static inline guint32 happens_known(const Happens *happens, guint64 instance, guint stream)
{
    if (stream == happens->stream[instance])
        return happens->position[instance] - 1;
    return happens->clocks[(gsize)happens->clock[instance] * happens->num_streams + stream];
}

/* TRUE when @a is done before @b starts; FALSE for a == b. */
static inline gboolean happens_before(const Happens *happens, guint64 a, guint64 b)
{
    return happens_known(happens, b, happens->stream[a]) >= happens->position[a];
}

/* The event of a wait made by a call of repetition @step; FALSE when it lies before the first one.
 */
gboolean happens_event(const Happens *happens, const Wait *wait, guint step, guint64 *event);

/* The clocks of a call's ops, after those of all calls before it. */
void happens_fill_call(Happens *happens, guint step, guint call);

/* All clocks of all instances, by the waits that the program has. */
void happens_fill(Happens *happens, guint steps);
