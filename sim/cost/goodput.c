#include "sim/cost/goodput.h"

#include <glib.h>
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
