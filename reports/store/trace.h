/* Chrome / Perfetto trace files: the same names for a simulated and for a measured step. */
#pragma once

#include <glib.h>

typedef struct {
    guint rank;
    const char *stream, *name;
    double start_s, end_s;
    double bytes, flops;
} TraceEvent;

/* Writes @events (TraceEvent) as {"traceEvents": [...]}: pid = rank, tid = stream, microseconds.
 * Written to a temporary file beside @path, then renamed. */
gboolean trace_write(const char *path, const char *title, const GArray *events,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
