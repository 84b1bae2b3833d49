#include "sim/base/samples.h"

#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double samples_middle_mean(double *values, guint num)
{
    const guint drop = num < 3 ? 0 : MAX(1, num / 4);
    double sum = 0;

    qsort(values, num, sizeof *values, compare_doubles);
    for (guint i = drop; i < num - drop; i++)
        sum += values[i];
    return sum / (num - 2 * drop);
}

double samples_round(double value)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    return g_ascii_strtod(g_ascii_formatd(text, sizeof text, "%.4g", value), NULL);
}
