/* Numbers as people read them: one unit for a pair of values, errors in percent. */
#pragma once

#include <glib.h>

/* What is printed for a value that is not known (NAN). */
#define FORMAT_UNKNOWN "-"

/* A scale for values as large as @reference: divide by @divisor, print @unit after it. */
typedef struct {
    double divisor;
    const char *unit; /* "GiB", "ms", ... */
} FormatScale;

FormatScale format_bytes_scale(double reference_bytes);
FormatScale format_seconds_scale(double reference_s);

char *format_scaled(double value, FormatScale scale);

/* @value of a term, in the unit that suits @reference, so that predicted and measured read alike.
 * @unit is the store's: "s", "bytes", ...; fractions (mfu, bubble_fraction) become percent. */
char *format_term(const char *term, const char *unit, double value, double reference);
char *format_seconds(double value_s);

/* measured / predicted - 1; 0 when both are 0; NAN when one is unknown or only predicted is 0. */
double format_error_value(double predicted, double measured);
/* "+5.4 %"; "exact" for equal bytes and for two zeros; "unpredicted" where only predicted is 0. */
char *format_error(const char *unit, double predicted, double measured);
