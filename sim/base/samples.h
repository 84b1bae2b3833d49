/* Numbers made of several: times of repeated calls, predictions beside measurements. */
#pragma once

#include <glib.h>

/* Of @num values; 0 for none. */
double samples_mean(const double *values, guint num);

/* Sorts @num >= 1 values.  The median of an even number is the mean of the two in the middle. */
double samples_median(double *values, guint num);

/* Mean of the middle half of @num >= 1 values (sorts them; of 3 or more the extremes never count):
 * as robust as the median, and not misled where ranks take turns and times have two humps. */
double samples_middle_mean(double *values, guint num);

/* To the 4 digits that a measurement is worth. */
double samples_round(double value);

/* |predicted / measured - 1|; measured must not be 0. */
double samples_error(double predicted, double measured);

/* Rank correlation of @num pairs, equal values sharing the mean of their ranks; NAN where all
 * values of a side are equal. */
double samples_spearman(const double *a, const double *b, guint num);

/* Of @num >= 1: measured time of what is predicted fastest over the fastest measured, less 1. */
double samples_regret(const double *predicted, const double *measured, guint num);
