/* How a step is cut into micro-batches, and what is recomputed. */
#pragma once

#include <glib.h>

typedef enum { RECOMPUTE_NONE, RECOMPUTE_FULL, NUM_RECOMPUTES } Recompute;

const char *recompute_name(Recompute recompute); /* "none", "full" */
gboolean recompute_from_name(const char *name, Recompute *recompute);

typedef struct {
    guint micro_batch;   /* sequences */
    guint micro_batches; /* in a step, of one data-parallel rank */
    Recompute recompute;
} Schedule;
