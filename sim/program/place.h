/* Place: an offset for every tensor in its tier's arena, before anything runs. */
#pragma once

#include "sim/program/program.h"

enum { ARENA_ALIGNMENT = 256 }; /* bytes; what CUDA's allocator promises, and several cache lines */

/* Memory of one rank at its peak moment, by term.  Terms add up to `total`, which is the arena
 * (framework is 0 here: it is the target's, not the program's). */
typedef struct {
    guint64 term[NUM_MEMORY_TERMS];
    guint64 total;
    guint64 live_peak;  /* bytes of tensors alive at that moment, without alignment and gaps */
    const char *moment; /* the segment that is running then; owned by the program */
} MemoryUse;

/* Sets offset and stride of every tensor and program->arena_bytes.  A range is shared only where
 * the waits that are already there prove one tensor's last use to happen before the other's first,
 * over the step followed by itself; place never adds waits.  State comes first and is never shared.
 */
void program_place(Program *program);

/* The peak moment of TIER_DEVICE, of a placed program.  A ring counts whole while any copy is
 * alive. */
MemoryUse program_memory(const Program *program);
