#include "reports/report/ranking.h"

#include "sim/base/samples.h"

#include <math.h>

static const RankedPair *at(const GArray *pairs, guint i)
{
    return &g_array_index(pairs, RankedPair, i);
}

/* Rank correlation and regret. */
static void compare_orders(const GArray *pairs, Ranking *ranking)
{
    g_autofree double *predicted = g_new(double, pairs->len);
    g_autofree double *measured = g_new(double, pairs->len);

    for (guint i = 0; i < pairs->len; i++) {
        predicted[i] = at(pairs, i)->predicted_s;
        measured[i] = at(pairs, i)->measured_s;
    }
    ranking->spearman = samples_spearman(predicted, measured, pairs->len);
    ranking->regret = pairs->len == 0 ? NAN : samples_regret(predicted, measured, pairs->len);
}

Ranking ranking_of(const GArray *pairs)
{
    Ranking ranking = {.count = pairs->len};

    compare_orders(pairs, &ranking);
    for (guint i = 0; i < pairs->len; i++) {
        const RankedPair *a = at(pairs, i);

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
    return ranking;
}
