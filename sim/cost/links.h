/* The links of one simulated rank: ops that use the same network level at the same time share it.
 */
#pragma once

#include "sim/program/program.h"

enum { MAX_LINKS = 8 }; /* levels that are told apart; those further out count as the last */

/* What one lane of ops, which follow each other, sends without a break. */
typedef struct {
    double from_s, until_s;
    double slack_s; /* between its end and the lane's newest op, which it may be late by */
    guint link;
} LinkRun;

typedef struct {
    LinkRun runs[MAX_STREAMS]; /* by lane: the newest */
    guint32 used;              /* lanes that have one */
    double until_s[MAX_LINKS]; /* the latest end of a run on each link */
} Links;

/* Seconds by which an op of @lane that needs @link for @seconds from @start_s on ends later than it
 * would alone; @lost, by lane, gets what each of the others loses meanwhile. */
double links_share(const Links *links, guint lane, guint link, double start_s, double seconds,
                   double lost[MAX_STREAMS]);

/* TRUE when nothing else can be under way there. */
static inline gboolean links_are_free(const Links *links, guint link, double start_s)
{
    return start_s >= links->until_s[link];
}

/* Notes that the op does so until @until_s; @goes_on: nothing lies between it and the lane's op
 * before. */
void links_take(Links *links, guint lane, guint link, double start_s, double until_s,
                gboolean goes_on);

/* The newest run of @lane takes @lost_s longer; returns by how much the lane's newest op does. */
double links_lose(Links *links, guint lane, double lost_s);
