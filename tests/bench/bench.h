/* What benchmarks share: medians, and the machine they ran on. */
#pragma once

#include "exec/base/process.h"
#include "sim/base/samples.h"

#include <glib.h>
#include <stdio.h>

/* Least, median and most: the spread says how far to trust the median. */
static inline void bench_print(const char *what, const char *unit, double *values, guint num)
{
    const double median = samples_median(values, num);

    printf("%-52s %12.5g %-10s (%.5g .. %.5g, %u runs)\n", what, median, unit, values[0],
           values[num - 1], num);
}
