/* Ends a job in which a rank makes no progress.  Every rank runs one, on a thread of its own that
 * takes part in nothing: it looks at how far the ranks of its machine are (exec/comm/
 * comm_progress.h), so it sees a rank that has been stopped as well.
 *
 * Progress is an op that begins or ends, a barrier, hop or request to a disk inside one, and a main
 * thread that uses the processor: an op that computes for long is none that hangs, and to wait for
 * one isn't either. So a kernel that never ends is not noticed.  Time in which this process itself
 * did not run does not count.
 *
 * Not covered: MPI_Init and MPI_Finalize; a job of one rank that is stopped as a whole.  A
 * rank that waits for one of another machine has only its own time: nothing is known of that one,
 * whose machine's watchdogs say the rest (the first to speak leaves them two seconds). */
#pragma once

#include "exec/run/runtime.h"

typedef struct Watchdog Watchdog;

/* Above the time in which a dead rank is noticed (COMM_DEATH_S), so that it is called dead. */
enum { WATCHDOG_MIN_S = 1, WATCHDOG_MAX_S = 86400, WATCHDOG_DEFAULT_S = 300 };

/* To be called on the main thread.  @limit_s: of no progress by one rank, WATCHDOG_MIN_S to
 * WATCHDOG_MAX_S.  Then one rank of a machine says on stderr what each does and who holds up the
 * others, and all end with @status.  @set and @runtime are borrowed. */
Watchdog *watchdog_start(Runtime *runtime, const ProgramSet *set, double limit_s, int status);
void watchdog_stop(Watchdog *watchdog);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Watchdog, watchdog_stop)
