/* Private to summaries: what a stage needs at its peak moment, from the smallest program of which
 * the same tensors are alive together. */
#pragma once

#include "sim/cost/framework.h"
#include "sim/program/compile.h"

/* What was looked at so far; of all threads. */
typedef struct Peaks Peaks;

Peaks *peaks_new(void);
Peaks *peaks_ref(Peaks *peaks);
void peaks_unref(Peaks *peaks);

/* With what @framework holds beside the program. */
guint64 peaks_bytes(Peaks *peaks, const ProgramSpec *spec, guint stage, const Framework *framework);
