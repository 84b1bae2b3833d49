#include "reports/report/ranking.h"

#include <math.h>

static const RankedPair *at(const GArray *pairs, guint i)
{
    return &g_array_index(pairs, RankedPair, i);
}

static double value_of(const GArray *pairs, guint i, gboolean predicted)
{
    return predicted ? at(pairs, i)->predicted_s : at(pairs, i)->measured_s;
}

/* Rank from 1; equal values share the mean of their ranks.  Quadratic: runs are few. */
static double rank_of(const GArray *pairs, guint i, gboolean predicted)
{
    guint smaller = 0, equal = 0;

    for (guint j = 0; j < pairs->len; j++) {
        smaller += value_of(pairs, j, predicted) < value_of(pairs, i, predicted);
        equal += value_of(pairs, j, predicted) == value_of(pairs, i, predicted);
    }
    return smaller + (equal + 1) / 2.0;
}

/* Pearson's correlation of the ranks:
 *
 *     rho = sum (x - m)(y - m) / sqrt(sum (x - m)^2 * sum (y - m)^2)
 *
 *     x, y  ranks by prediction and by measurement      m  (n + 1) / 2, the mean of both
 *
 * Source: Spearman, Am. J. Psychology 15(1), 1904; this form allows for ties. */
static double spearman_of(const GArray *pairs)
{
    const double mean = (pairs->len + 1) / 2.0;
    double xy = 0, xx = 0, yy = 0;

    for (guint i = 0; i < pairs->len; i++) {
        const double x = rank_of(pairs, i, TRUE) - mean, y = rank_of(pairs, i, FALSE) - mean;

        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

Ranking ranking_of(const GArray *pairs)
{
    Ranking ranking = {.count = pairs->len, .spearman = spearman_of(pairs), .regret = NAN};
    guint chosen = 0, best = 0;

    for (guint i = 0; i < pairs->len; i++) {
        const RankedPair *a = at(pairs, i);

        if (a->predicted_s < at(pairs, chosen)->predicted_s)
            chosen = i;
        if (a->measured_s < at(pairs, best)->measured_s)
            best = i;
        for (guint j = 0; j < i; j++) {
            const RankedPair *b = at(pairs, j);

            if (a->predicted_s == b->predicted_s)
                continue;
            ranking.pairs++;
            ranking.in_order +=
                (a->predicted_s < b->predicted_s) == (a->measured_s < b->measured_s) &&
                a->measured_s != b->measured_s;
        }
    }
    if (pairs->len > 0)
        ranking.regret = at(pairs, chosen)->measured_s / at(pairs, best)->measured_s - 1;
    return ranking;
}
