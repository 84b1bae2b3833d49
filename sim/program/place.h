/* Place: an offset for every tensor in its tier's arena, before anything runs. */
#pragma once

#include "sim/program/program.h"

enum { ARENA_ALIGNMENT = 256 }; /* bytes; what CUDA's allocator promises, and several cache lines */

/* Sets offset and stride of every tensor and program->arena_bytes.  A range is shared only where
 * the waits that are already there prove one tensor's last use to happen before the other's first,
 * over the step followed by itself; place never adds waits.  State comes first and is never shared.
 */
void program_place(Program *program);

/* The two halves of it.  Before its peak is found a program's memory is known in total and by terms
 * of state; the rest counts as workspace. */
void program_place_tensors(Program *program);
void program_find_peak(Program *program);

/* Tensors that may share memory, the largest first: so they are placed, and counted at the peak.
 * GArray of guint; the caller's. */
GArray *program_shared_by_extent(const Program *program);

/* The peak moment of TIER_DEVICE, of a placed program.  A ring counts whole while any copy is
 * alive. */
MemoryUse program_memory(const Program *program);

/* Of tensors on the device that live between steps. */
guint64 program_state_bytes(const Program *program);

typedef enum {
    PHASE_PASSES,    /* forward and backward, with what they need gathered and reduced */
    PHASE_OPTIMIZER, /* segments with ops of that class */
    NUM_PHASES
} StepPhase;

/* The most bytes of tensors that are alive on the device while calls of a phase start to use
 * something; no less than the state. */
void program_phase_peaks(const Program *program, guint64 peak_bytes[NUM_PHASES]);
