#include "sim/base/samples.h"

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void sort(double *values, guint num)
{
    g_assert(num > 0);
    qsort(values, num, sizeof *values, compare_doubles);
}

double samples_mean(const double *values, guint num)
{
    double sum = 0;

    for (guint i = 0; i < num; i++)
        sum += values[i];
    return num == 0 ? 0 : sum / num;
}

double samples_median(double *values, guint num)
{
    sort(values, num);
    return (values[(num - 1) / 2] + values[num / 2]) / 2;
}

double samples_middle_mean(double *values, guint num)
{
    const guint drop = num < 3 ? 0 : MAX(1, num / 4);

    sort(values, num);
    return samples_mean(values + drop, num - 2 * drop);
}

double samples_round(double value)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    return g_ascii_strtod(g_ascii_formatd(text, sizeof text, "%.4g", value), NULL);
}

double samples_error(double predicted, double measured)
{
    g_assert(measured != 0);
    return fabs(predicted / measured - 1);
}

/* Of value @i: how many are below, and half of the others that are equal.  Quadratic: few are
 * ranked. */
static double rank_of(const double *values, guint num, guint i)
{
    double rank = 0;

    for (guint j = 0; j < num; j++)
        rank += values[j] < values[i] ? 1 : values[j] == values[i] && j != i ? 0.5 : 0;
    return rank;
}

/* Pearson's correlation of the ranks:
 *
 *     rho = sum (x - m)(y - m) / sqrt(sum (x - m)^2 * sum (y - m)^2)
 *
 *     x, y  ranks of both sides, from 0      m  (n - 1) / 2, the mean of both
 *
 * Source: Spearman, Am. J. Psychology 15(1), 1904; this form allows for ties. */
double samples_spearman(const double *a, const double *b, guint num)
{
    const double mean = (num - 1.0) / 2;
    double xy = 0, xx = 0, yy = 0;

    for (guint i = 0; i < num; i++) {
        const double x = rank_of(a, num, i) - mean, y = rank_of(b, num, i) - mean;

        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

double samples_regret(const double *predicted, const double *measured, guint num)
{
    guint chosen = 0, best = 0;

    g_assert(num > 0);
    for (guint i = 1; i < num; i++) {
        chosen = predicted[i] < predicted[chosen] ? i : chosen;
        best = measured[i] < measured[best] ? i : best;
    }
    return measured[chosen] / measured[best] - 1;
}
