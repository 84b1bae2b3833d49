/* What stands still, and why: from how far each rank is, who waits for whom, and who holds all
 * others up. */
#pragma once

#include "exec/comm/comm_progress.h"
#include "sim/program/program.h"

/* How far one rank is. */
typedef struct {
    gboolean seen; /* FALSE: on another machine, nothing is known */
    int pid;
    char process;  /* its state as in /proc: 'T' stopped, 'D' in the kernel, ... */
    gboolean runs; /* the process does anything at all */
    gboolean waiting;
    double idle_s; /* since its last progress */
    guint moves;
    struct {
        guint64 at, count; /* as in CommLane */
    } lane[NUM_LANES];
} RankState;

/* Ranks (guint) that @rank waits for in its communication op: those that have not entered it, as
 * far as is known.  @unknown: those of which nothing is known are appended, or NULL. */
GArray *stall_waits_for(const ProgramSet *set, const RankState *states, guint rank,
                        GArray *unknown);

/* The ranks that hold up the others: those that do not run; else those that others wait for and
 * that wait for nobody; else, when all are in one op, those that got least far in it; else those of
 * other machines that somebody waits for.  Empty: the ranks wait for each other. */
GArray *stall_culprits(const ProgramSet *set, const RankState *states);

/* Whether that is a stall: some rank has been idle for @limit_s, and so has one that holds up
 * others, or nothing is known of it.  To wait for a rank that makes progress is none. */
gboolean stall_is_real(const ProgramSet *set, const RankState *states, double limit_s);

/* A line that names the culprits, and one for each rank that is seen; each begins with "fsdp-run: "
 * and ends the line. */
char *stall_report(const ProgramSet *set, const RankState *states, double limit_s);
