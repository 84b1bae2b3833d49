/* Times of repeated calls, and numbers made of them. */
#pragma once

#include <glib.h>

/* Mean of the middle half of @num >= 1 values (sorts them; of 3 or more the extremes never count):
 * as robust as the median, and not misled where ranks take turns and times have two humps. */
double samples_middle_mean(double *values, guint num);

/* To the 4 digits that a measurement is worth. */
double samples_round(double value);
