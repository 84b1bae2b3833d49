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
    guint compared;    /* with that many lifetimes: all that had started */
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
    GArray *list;           /* Lifetime, in the order of starts */
    GArray *lasts;          /* guint32: Lifetime.first_last points here */
    guint *newest;          /* by tensor copy: its newest of those, plus one; 0: none yet */
    guint32 *newest_access; /* by tensor x stream that touches it, of any copy: a place there */
    guint *newest_start;    /* by tensor: its newest of those, of any copy, plus one */
    guint latest;           /* tensor: that of the newest lifetime */
    guint *older, *newer;   /* by tensor: the next ones by newest_start; the ring is closed by
                               num_tensors, which never starts */
    guint8 *conflicts;      /* num_tensors squared */
    guint *unsure;          /* by stream: tensors that an op of it must not take to be over */
    guint *num_unsure;      /* by stream */
    guint32 *is_unsure;     /* by tensor: on those streams, as bits */
    gboolean finds_peak;
    gboolean carries; /* something is read in a step before it is written there */
    guint strangers;  /* tensors that streams have yet to touch in the second repetition, by both */
    guint64 *bytes;   /* by tensor: of all copies */
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
    return lives->conflicts[a * lives->num_tensors + b] != 0;
}

static inline guint32 *lifetimes_lasts(const Lifetimes *lives, const Lifetime *lifetime)
{
    return &g_array_index(lives->lasts, guint32, lifetime->first_last);
}

static inline gboolean is_shared_memory(const Tensor *tensor)
{
    return tensor->persistence == PERSIST_STEP;
}
