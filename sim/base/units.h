/* Quantities as people write them: "300 GB/s", "80 GiB", "5 us", "989 TFLOP/s". */
#pragma once

#include <glib.h>

typedef enum {
    UNITS_BYTES,
    UNITS_BYTES_PER_S,
    UNITS_FLOPS_PER_S,
    UNITS_SECONDS,
    UNITS_WATTS,
    NUM_UNITS,
} Units;

/* A number >= 0 and a unit, in SI base units and bytes.  Prefixes k M G T P are powers of 1000, Ki
 * Mi Gi Ti Pi of 1024 (bytes only); time is in ns us ms s.  ERROR_INPUT names the value and what
 * is allowed. */
gboolean units_parse(const char *text, Units units, double *value,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same where a whole number of bytes is wanted: rounded, at most 2^53. */
gboolean units_parse_bytes(const char *text, guint64 *bytes,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Digits only, from @min to @max. */
gboolean units_parse_count(const char *text, guint64 min, guint64 max, guint64 *count,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A plain number >= 0 without a unit. */
gboolean units_parse_number(const char *text, double *value,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* In the unit that gives the shortest text of those that read back as exactly @value (finite,
 * >= 0). */
char *units_print(double value, Units units);

/* The shortest text that reads back as exactly @value, without a unit. */
char *units_print_number(double value);
