/* How much of a long run is useful: checkpoints cost time, failures lose what came after the last
 * one. */
#pragma once

#include <glib.h>

/* A smaller useful share is none: no run of that kind ends, and its tokens have no price. */
#define GOODPUT_LEAST 5e-4

/* All in seconds. */
typedef struct {
    double checkpoint; /* that training stands still for one, > 0 */
    double restart;    /* from a failure until training goes on where the checkpoint was */
    double mtbf;       /* mean time between failures of the whole job, > 0 */
} Failures;

/* Best time between the end of a checkpoint and the start of the next. */
double goodput_young_s(const Failures *failures);
double goodput_daly_s(const Failures *failures);

/* Share of the wall clock that is training which is never done again, with checkpoints after every
 * @interval_s of it. */
double goodput_useful(const Failures *failures, double interval_s);

/* Of a job whose state is held by several groups of ranks, each whole; in seconds. */
typedef struct {
    guint groups;      /* at least 2 */
    double mtbf;       /* of the whole job, > 0 */
    double group_mtbf; /* of one group, > 0 */
    double restart;    /* from a loss until the group is there again, without state */
    double heal;       /* until it has the state of a living group */
    double step;       /* what a loss makes undone at most */
} Survivors;

/* Share of what all groups do without failures that is done when the others go on without the one
 * that was lost, and never go back to a checkpoint. */
double goodput_surviving(const Survivors *survivors);

/* Share of the time in which no group is there: then only a checkpoint helps. */
double goodput_none_left(const Survivors *survivors);
