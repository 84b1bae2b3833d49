/* The times of one op in the steps of a run. */
#pragma once

#include <glib.h>

typedef struct {
    double sum; /* of the step under way */
    guint num;
    GArray *means; /* double, by step; NAN: none */
    double least;  /* of all steps */
    guint64 calls;
} Slot;

void slot_init(Slot *slot);
void slot_clear(Slot *slot);
void slot_add(Slot *slot, double seconds);
void slot_end_step(Slot *slot);

/* The steps that count, of @lengths (double) by step: those of the middle half by length, all of
 * one or two (GArray of guint). */
GArray *slot_middle_steps(const GArray *lengths);

/* The mean over the calls of those steps; 0 when there were none. */
double slot_seconds(const Slot *slot, const GArray *steps);
