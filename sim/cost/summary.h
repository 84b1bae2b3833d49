/* What a layout costs, by arithmetic on its segments: no calls are listed, nothing is simulated. */
#pragma once

#include "sim/cost/simulate.h"
#include "sim/program/compile.h"

typedef struct {
    guint64 state_bytes; /* exact: parameters, gradients, master, moments, by copies */
    guint64 floor_bytes; /* the arena is never smaller */
    guint64 volume_bytes[NUM_VOLUMES]; /* exact */
    double bound_s;                    /* no simulated step is shorter */
} Summary;

Summary summarise(const ProgramSpec *spec, const SimulateContext *context);

/* Consecutive ranks that each of the program's groups spreads over; the caller's. */
guint *program_spans(const Program *program, const ProgramSpec *spec);
