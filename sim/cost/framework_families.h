/* Tables of the frameworks that a prediction can be for, by family, and what both families have. */
#pragma once

#include "sim/cost/framework.h"

typedef struct {
    const Framework *frameworks;
    guint count;
} FrameworkFamily;

/* Megatron-LM and what is built on it: NeMo, Megatron-Bridge, Megatron-DeepSpeed. */
extern const FrameworkFamily framework_megatron;

/* FSDP, DeepSpeed and others on PyTorch, and JAX. */
extern const FrameworkFamily framework_others;

/* Whole logits in fp32 and their gradient: written by the product, read for maximum, sum and
 * gradient, cast; some 30 bytes each (Megatron-LM, tensor_parallel/cross_entropy.py). */
#define WHOLE_LOGITS .logit_bytes = 30

/* Rotary embedding and SwiGLU in single steps. */
#define EAGER_GATE .rotary_more = 3.5, .activation_more = 0.5

/* RMS norm as PyTorch's single steps, half of them in fp32: 36 bytes a value where one kernel moves
 * 4. */
#define UNFUSED_NORM .norm_more = 8

#define DRIVER .process_bytes = 3.5e9
