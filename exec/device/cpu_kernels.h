/* The kernels of the CPU device: one a compute op, on OpenMP threads of the caller's number. */
#pragma once

#include "exec/device/device.h"
#include "sim/program/cpu_blocks.h"

#include <glib.h>

/* @threads is at least 1.  Operands as in sim/program/op.h. */
typedef void CpuKernel(guint threads, const Launch *launch);

CpuKernel cpu_embed, cpu_embed_backward;
CpuKernel cpu_rmsnorm, cpu_rmsnorm_apply, cpu_rmsnorm_backward;
CpuKernel cpu_layernorm, cpu_layernorm_apply, cpu_layernorm_backward;
CpuKernel cpu_linear, cpu_linear_backward_input, cpu_linear_backward_weight, cpu_add_bias;
CpuKernel cpu_rope, cpu_rope_backward;
CpuKernel cpu_attention, cpu_attention_backward;
CpuKernel cpu_swiglu, cpu_swiglu_backward, cpu_gelu, cpu_gelu_backward;
CpuKernel cpu_head_loss, cpu_head_stats, cpu_count_valid;
CpuKernel cpu_accumulate, cpu_cast, cpu_copy;
CpuKernel cpu_squared_norm, cpu_clip, cpu_adamw, cpu_sgd;

/* The op's scratch, handed out piece by piece; no more than op_workspace_bytes(). */
typedef struct {
    char *next;
    guint64 left;
} Scratch;

static inline Scratch scratch_open(guint threads, const Launch *launch, guint operand)
{
    return (Scratch){launch->operand[operand], op_workspace_bytes(launch->op, DEVICE_CPU, threads)};
}

static inline void *scratch_take(Scratch *scratch, guint64 elements, guint64 size)
{
    const guint64 bytes = cpu_scratch_bytes(elements, size);
    void *taken = scratch->next;

    g_assert(bytes <= scratch->left);
    scratch->next += bytes;
    scratch->left -= bytes;
    return taken;
}

static inline float *scratch_floats(Scratch *scratch, guint64 elements)
{
    return scratch_take(scratch, elements, sizeof(float));
}
