/* What --check looks at while a program runs.  All on the main thread, in the order of issue:
 *
 * - the registry of what is in flight: an op is so, for another stream, from its issue until that
 *   stream has waited for it, whatever the clock says; so a missing wait is found in every run and
 *   not only when it hurts.  A new op that touches bytes which one in flight writes, or that writes
 *   what one in flight touches, is an error;
 * - who holds a range: reading a tensor of which others have overwritten a byte, or that nothing
 *   has written, is an error;
 * - poison: what is dead holds NaNs until its bytes are written again; then, and after each step,
 *   it is to hold them still;
 * - canaries between tensors (arena_guard.h), after each step.
 *
 * sim/program/check_data.c proves of the program what the first two look at here; they take the
 * waits that the interpreter makes.  Delays are drawn from the seed, rank, step, op. */
#pragma once

#include "exec/run/arena_guard.h"

typedef struct Checker Checker;

/* The first problem found ends the run: later calls do nothing.  @program and @guards (by tier;
 * NULL where there is none) are borrowed. */
Checker *checker_new(const Program *program, ArenaGuard *const *guards, guint rank, guint64 seed);
void checker_free(Checker *checker);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Checker, checker_free)

/* One op: begin, a join for each wait that is made, then access.  @at: progress_at(). */
void checker_begin(Checker *checker, guint stream);
void checker_join(Checker *checker, guint64 event_at); /* an op of this step or the one before */
gboolean checker_access(Checker *checker, guint64 at, const Call *call, const Op *op,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* All that was issued is done. */
void checker_quiet(Checker *checker);

/* After a step. */
gboolean checker_step_end(Checker *checker, guint64 step, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Any thread: sleeps for none or, one time in eight, some of a millisecond. */
void checker_delay(const Checker *checker, guint64 at, guint point);
