/* Numbers that look random and are the same in every run. */
#pragma once

#include <glib.h>

/* Uniform in [-1, 1). */
static inline double noise(guint64 *state)
{
    *state =
        *state * G_GUINT64_CONSTANT(6364136223846793005) + G_GUINT64_CONSTANT(1442695040888963407);
    return (double)(*state >> 33) / (double)(1u << 30) - 1;
}
