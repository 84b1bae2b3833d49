/* Quantities rounded for people; sim/base/units.h is for values that must read back. */
#pragma once

#include <glib.h>

/* "141.1 GB", "17.6 MB": decimal units, four digits at most. */
char *bytes_text(guint64 bytes);

/* "3.09 h" (from two hours on), "1.23 s", "56.7 ms", "890.0 us". */
char *seconds_text(double seconds);
