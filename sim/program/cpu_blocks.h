/* Block sizes of the CPU kernels that need scratch.  The kernels and op_workspace_bytes() read the
 * same numbers, so that the bound in a plan is what runs. */
#pragma once

#include <glib.h>

enum {
    CPU_LINEAR_ROWS = 256,      /* rows of activations widened to fp32 at a time */
    CPU_HEAD_VOCAB = 1024,      /* rows of a bf16 head weight widened at a time */
    CPU_ATTENTION_QUERIES = 64, /* of a tile */
    CPU_ATTENTION_KEYS = 256,   /* of a tile */
    CPU_NORM_PARTIALS = 32,     /* sums of a norm's weight gradient, whatever the threads */
    CPU_SCRATCH_ALIGNMENT = 64, /* of each buffer inside the scratch, bytes */
};

/* What a scratch buffer of @elements of @size bytes takes. */
static inline guint64 cpu_scratch_bytes(guint64 elements, guint64 size)
{
    const guint64 unit = CPU_SCRATCH_ALIGNMENT;

    return (elements * size + unit - 1) / unit * unit;
}
