#include "sim/backtest/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double score_error(double predicted, double measured)
{
    g_assert(measured != 0);
    return fabs(predicted / measured - 1);
}

double score_mean(const double *values, guint num)
{
    double sum = 0;

    for (guint i = 0; i < num; i++)
        sum += values[i];
    return num == 0 ? 0 : sum / num;
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

double score_median(const double *values, guint num)
{
    g_autofree double *sorted = g_new(double, num + 1);

    if (num == 0)
        return 0;
    memcpy(sorted, values, num * sizeof *values);
    qsort(sorted, num, sizeof *sorted, by_value);
    return (sorted[(num - 1) / 2] + sorted[num / 2]) / 2;
}

/* Of value @i: how many are below, and half of the others that are equal. */
static double rank_of(const double *values, guint num, guint i)
{
    double rank = 0;

    for (guint j = 0; j < num; j++)
        rank += values[j] < values[i] ? 1 : values[j] == values[i] && j != i ? 0.5 : 0;
    return rank;
}

double score_spearman(const double *a, const double *b, guint num)
{
    const double mean = (num - 1.0) / 2;
    double both = 0, of_a = 0, of_b = 0;

    for (guint i = 0; i < num; i++) {
        const double left = rank_of(a, num, i) - mean, right = rank_of(b, num, i) - mean;

        both += left * right;
        of_a += left * left;
        of_b += right * right;
    }
    return of_a == 0 || of_b == 0 ? 0 : both / sqrt(of_a * of_b);
}

double score_regret(const double *predicted, const double *measured, guint num)
{
    guint chosen = 0, best = 0;

    g_assert(num > 0);
    for (guint i = 1; i < num; i++) {
        chosen = predicted[i] < predicted[chosen] ? i : chosen;
        best = measured[i] < measured[best] ? i : best;
    }
    return measured[chosen] / measured[best] - 1;
}
