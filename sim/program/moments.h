/* Moments: which tensors are alive together in a steady step, whatever their sizes.  What a program
 * needs at least follows from that and from the bytes of its tensors. */
#pragma once

#include "sim/program/program.h"

typedef struct Moments Moments;

/* Of a program whose calls have their waits; it need not be placed. */
Moments *moments_new(const Program *program);
void moments_free(Moments *moments);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Moments, moments_free)

/* The most bytes that are alive together, as program_find_peak() finds them, of a program with the
 * same tensors in other sizes. */
guint64 moments_peak_bytes(const Moments *moments, const Program *program);
