/* Moments: which tensors are alive together in a steady step, whatever their sizes.  What a program
 * needs at least follows from that and from the bytes of its tensors. */
#pragma once

#include "sim/program/lifetimes.h"
#include "sim/program/place.h"

typedef struct Moments Moments;

/* Of a program whose calls have their waits; it need not be placed. */
Moments *moments_new(const Program *program);
/* The same of its lifetimes (found with finds_peak), whose conflicts are taken. */
Moments *moments_of(Lifetimes *lives);
void moments_free(Moments *moments);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Moments, moments_free)

enum { ANY_PHASE = -1 }; /* else a StepPhase */

/* 0 bytes: nothing is alive at any moment. */
typedef struct {
    guint64 bytes, *members; /* the caller's: tensors that are alive together, as bits */
    guint segment;           /* of the call under way */
} MomentsPeak;

/* The moment of @phase at which most bytes are alive together, of the program or of one with the
 * same tensors in other sizes. */
MomentsPeak moments_peak(const Moments *moments, const Program *program, gint phase);
