/* What benchmarks share: medians, and the machine they ran on. */
#pragma once

#include "exec/base/process.h"

#include <glib.h>
#include <stdio.h>

static inline int bench_by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

/* Sorts @values. */
static inline double bench_median(double *values, guint num)
{
    qsort(values, num, sizeof *values, bench_by_value);
    return (values[(num - 1) / 2] + values[num / 2]) / 2;
}

/* Least, median and most: the spread says how far to trust the median. */
static inline void bench_print(const char *what, const char *unit, double *values, guint num)
{
    const double median = bench_median(values, num);

    printf("%-52s %12.5g %-10s (%.5g .. %.5g, %u runs)\n", what, median, unit, values[0],
           values[num - 1], num);
}
