/* One value to fp8 e4m3 and back, as every device does it. */
#pragma once

#include <glib.h>

/* To nearest, ties to even, at most 448; a NaN stays one. */
guint8 cpu_e4m3_from_float(float value);
float cpu_e4m3_to_float(guint8 code);
