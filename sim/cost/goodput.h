/* How much of a long run is useful: checkpoints cost time, failures lose what came after the last
 * one. */
#pragma once

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
