#include "sim/cost/goodput.h"

#include <math.h>

/**
 * goodput_young_s:
 *
 *     t = sqrt(2 C M)
 *
 *     C  checkpoint, s     M  MTBF, s
 *
 * Source: Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
 * Limit: for C << M the best there is.
 */
double goodput_young_s(const Failures *failures)
{
    return sqrt(2 * failures->checkpoint * failures->mtbf);
}

/**
 * goodput_daly_s:
 *
 *     t = sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C     where C < 2 M
 *     t = M                                                         else
 *
 * Source: Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
 * Future Generation Computer Systems 22(3), 2006, eq. 37.
 */
double goodput_daly_s(const Failures *failures)
{
    const double part = failures->checkpoint / (2 * failures->mtbf);

    if (part >= 1)
        return failures->mtbf;
    return goodput_young_s(failures) * (1 + sqrt(part) / 3 + part / 9) - failures->checkpoint;
}

/**
 * goodput_useful:
 *
 *     u = t / (M e^(R/M) (e^((t + C)/M) - 1))
 *
 *     t  interval     C  checkpoint     R  restart     M  MTBF, s
 *
 * Failures come at a constant rate, in checkpoints and restarts too.  Source: Daly (see above),
 * eq. 20: the time that a run takes over the time that it solves in.  Limits: t / (t + C) without
 * failures; 0 for an interval much longer than M.
 */
double goodput_useful(const Failures *failures, double interval_s)
{
    const double mtbf = failures->mtbf;

    g_assert(mtbf > 0);
    return interval_s / (mtbf * exp(failures->restart / mtbf) *
                         expm1((interval_s + failures->checkpoint) / mtbf));
}

static double away_share(const Survivors *survivors)
{
    const double away = survivors->restart + survivors->heal;

    g_assert(survivors->group_mtbf > 0 && survivors->mtbf > 0);
    return away / (survivors->group_mtbf + away);
}

/**
 * goodput_surviving:
 *
 *     u = Mg / (Mg + T) e^(-s/M)          T = restart + heal
 *
 *     Mg  MTBF of one group     M  MTBF of the job     T  that a lost group is away     s  step
 *
 * A group is there for Mg and away for T in turn (an alternating renewal process: Barlow, Proschan,
 * Mathematical Theory of Reliability, 1965), and each that is there does 1/R of the work; a step
 * counts where no group is lost in it, else nothing of it does, and none before it is done again.
 * Source of the mechanism: torchft (a quorum a step; who comes back takes its state from a peer; a
 * step is committed or its gradients are dropped).  Limits: 1 - (T/R + s)/M for M >> T, s and
 * Mg = R M, that is, groups that share no node; Mg / (Mg + T) for short steps.
 * Left out: a loss of all groups (goodput_none_left), until the loss is noticed (torchft: 5 s
 * without a heartbeat), what a peer's sending costs it, that fewer groups train a smaller batch.
 */
double goodput_surviving(const Survivors *survivors)
{
    return (1 - away_share(survivors)) * exp(-survivors->step / survivors->mtbf);
}

/**
 * goodput_none_left:
 *
 *     q = (T / (Mg + T))^R
 *
 * R groups that fail apart from each other (see goodput_surviving).  Limit: those on one node fail
 * together, so q is at least this.
 */
double goodput_none_left(const Survivors *survivors)
{
    return pow(away_share(survivors), survivors->groups);
}
