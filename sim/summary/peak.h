/* Private to summaries: what a stage needs at its peak moment, from the smallest program of which
 * the same tensors are alive together. */
#pragma once

#include "sim/summary/known.h"

/* With what @framework holds beside the program. */
guint64 peak_bytes(Known *known, const ProgramSpec *spec, guint stage, const Framework *framework);
