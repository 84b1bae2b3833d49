/* How near predictions come: means, medians, ranks. */
#pragma once

#include <glib.h>

/* |predicted / measured - 1|; measured must not be 0. */
double score_error(double predicted, double measured);

/* Of @num values; 0 for none.  The median of an even number is the mean of the two in the middle.
 */
double score_mean(const double *values, guint num);
double score_median(const double *values, guint num);

/* Spearman's rank correlation: Pearson's of ranks, equal values sharing the mean of theirs.  0
 * where all values of a side are equal. */
double score_spearman(const double *a, const double *b, guint num);

/* Measured time of the choice predicted fastest over the fastest measured, less 1. */
double score_regret(const double *predicted, const double *measured, guint num);
