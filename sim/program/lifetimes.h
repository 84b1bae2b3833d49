/* Lifetimes: a tensor copy is alive from a write to the last read before the next write.  Two
 * tensors conflict when a lifetime of a copy of one is not over, by happens-before, when a lifetime
 * of the other starts. */
#pragma once

#include "sim/program/happens.h"

/* One lifetime of one tensor copy. */
typedef struct {
    guint tensor;
    guint64 start;     /* instance, plus one */
    guint first_last;  /* its newest access, as its place on each stream that touches the tensor */
    guint compared;    /* with all of the first that many starts */
    gboolean consumed; /* read as a whole: the next write, even of a part, starts anew */
} Lifetime;

/* The streams whose ops touch a tensor. */
typedef struct {
    guint num;
    guint8 stream[MAX_STREAMS];
} Touching;

typedef struct {
    const Program *program;
    Happens *happens;
    guint num_tensors;
    Touching *touching;     /* by tensor */
    GArray *uses;           /* segment after segment */
    guint *first_use;       /* by segment; one past the end too */
    guint32 streams;        /* of all uses, as bits */
    guint *first_copy;      /* by tensor; one past the end too */
    guint words;            /* of a row of bits, one a tensor */
    GArray *list;           /* Lifetime, in the order of starts; without finds_peak: the newest
                               of each tensor copy */
    GArray *lasts;          /* guint32: Lifetime.first_last points here */
    guint *newest;          /* by tensor copy: its newest of those, plus one; 0: none yet */
    guint32 *newest_access; /* by tensor x stream that touches it, of any copy: a place there */
    guint starts;           /* of lifetimes, so far */
    guint *newest_start;    /* by tensor: which of those was the newest, of any copy, from 1 */
    guint64 *started;       /* tensors that have one, as bits */
    guint64 *conflicts;     /* by tensor: those that it conflicts with, as bits */
    guint64 *unsure;    /* by stream: tensors that an op of it must not take to be over, as bits */
    guint32 *is_unsure; /* by tensor: on those streams, as bits */
    gboolean finds_peak;
    gboolean carries; /* something is read in a step before it is written there */
    guint strangers;  /* tensors that streams have yet to touch in the second repetition, by both */
    gboolean *always; /* by tensor: shared with nothing */
} Lifetimes;

/* Of the step followed by itself.  Without @finds_peak only conflicts are found, not all lifetimes.
 */
void lifetimes_init(Lifetimes *lives, const Program *program, gboolean finds_peak);
void lifetimes_clear(Lifetimes *lives);

/* Whether accesses at those places of the streams that touch @tensor (0: none) are done before
 * @instance. */
gboolean lifetimes_are_over(const Lifetimes *lives, guint tensor, const guint32 *last,
                            guint64 instance);

static inline gboolean lifetimes_conflict(const Lifetimes *lives, guint a, guint b)
{
    return (lives->conflicts[a * lives->words + b / 64] >> b % 64 & 1) != 0;
}

static inline guint32 *lifetimes_lasts(const Lifetimes *lives, const Lifetime *lifetime)
{
    return &g_array_index(lives->lasts, guint32, lifetime->first_last);
}

static inline gboolean is_shared_memory(const Tensor *tensor)
{
    return tensor->persistence == PERSIST_STEP;
}
