#include "sim/cost/framework_families.h"

/* FSDP's collectives run beside compute and slow it: they take multiprocessors and bandwidth. */
#define FSDP_TRAFFIC .gather_exposed = 0.4, .reduce_exposed = 0.4

/* Between tensor-parallel matrices DTensor gathers the norms' outputs before the products, which
 * keep what they read. */
#define TORCHTITAN                                                                                 \
    WHOLE_LOGITS, FSDP_TRAFFIC, .attention = ATTENTION_FLASH_2, .context_plain = TRUE, DRIVER,     \
                                .keeps_gathered = TRUE, .transient_share = 0.1,                    \
                                .saved = {.hidden = 4, .ffn = 2, .attention = 4}

/* The loss is not compiled (its train.py of December 2024).  Of logits in fp32: log-softmax'
 * output, its gradient and what that becomes (the cast logits are free by then).  Where the
 * vocabulary is split, that output, a gradient of zeros with the targets set, its sum with the
 * exponentials and the product with the loss' gradient (torch/distributed/tensor/parallel/loss.py).
 */
#define EAGER_LOSS .logit_held_bytes = 12, .logit_split_bytes = 16

/* bf16 logits and their gradient: one kernel has it in registers. */
#define COMPILED_LOSS .logit_held_bytes = 4

/* Products of rows with a scale each are not cuBLAS's. */
#define ROWWISE .fp8_more = 0.6

/* Read from nanotron of December 2024.  Of logits the fp32 ones and their softmax; norm outputs (a
 * column-parallel product keeps its rank's part and gathers it again), SiLU's output and its
 * product with the gate (models/llama.py).  bf16 gradients of the whole backward pass, and with
 * several replicas as much again in DDP's buckets (trainer.py: make_ddp) or, with ZeRO-1, for the
 * flat copies that parameters are gathered in (distributed.py, all_gather_coalesced): PyTorch's
 * cache has no block that would serve both. */
#define NANOTRON                                                                                   \
    WHOLE_LOGITS, DRIVER, .attention = ATTENTION_FLASH_2, .gather_exposed = 1,                     \
                          .reduce_exposed = 1, .splits_messages = TRUE, .logit_held_bytes = 8,     \
                          .whole_bytes = 2, .copied_bytes = 2, .transient_share = 0.07,            \
                          .saved = {.hidden = 4, .ffn = 4}

/* Whole residual streams in bf16 beside the program's.  Gathers write to two that stay
 * (parallel/utils.py, MemoryBuffer), a reduction reads one more. */
#define GATHER_BUFFERS .gather_bytes = 2.0 * 3

/* The host may be as many kernels ahead of the device as CUDA's queue takes, about 1,000, and what
 * a reduction reads is free only when the device has passed it (ProcessGroupNCCL's record_stream):
 * at some 20 kernels a reduction up to 50 such buffers are held. */
#define QUEUED_REDUCTIONS .queued_reductions = 50

static const Framework frameworks[] = {
    {
        .name = "torchtitan",
        .reading = "torchtitan, FSDP2 and torch.compile",
        TORCHTITAN,
        EAGER_LOSS,
    },
    {
        .name = "torchtitan-fp8",
        .reading = "the same, fp8 with one scale a tensor: weights are gathered in fp8",
        TORCHTITAN,
        EAGER_LOSS,
        .gather_saved = 0.5, /* left out: embedding, head and norms are gathered in bf16 */
    },
    {
        .name = "torchtitan-rowwise",
        .reading = "the same, fp8 with a scale for each row: its products are not cuBLAS's",
        TORCHTITAN,
        EAGER_LOSS,
        ROWWISE,
    },
    {
        .name = "torchtitan-eager",
        .reading = "the same, blocks not compiled: norms, rotary and SwiGLU in single steps",
        TORCHTITAN,
        EAGER_LOSS,
        UNFUSED_NORM,
        EAGER_GATE,
    },
    {
        .name = "torchtitan-eager-norm",
        .reading = "the same with its Triton RMS norm",
        TORCHTITAN,
        EAGER_LOSS,
        EAGER_GATE,
    },
    {
        .name = "torchtitan-2025",
        .reading = "the same since April 2025: the loss is compiled too",
        TORCHTITAN,
        COMPILED_LOSS,
    },
    {
        .name = "torchtitan-2025-rowwise",
        .reading = "the same, fp8 with a scale for each row",
        TORCHTITAN,
        COMPILED_LOSS,
        ROWWISE,
    },
    {
        .name = "torchtitan-2026",
        .reading = "the same since April 2026: the head's loss is taken in 8 chunks, not compiled",
        TORCHTITAN,
        .logit_held_bytes = 12.0 / 8,
    },
    {
        .name = "llm-foundry",
        .reading = "MosaicML's Composer, FSDP, eager with Triton attention",
        .recomputes_all = TRUE,
        WHOLE_LOGITS,
        FSDP_TRAFFIC,
        .attention = ATTENTION_FLASH_TRITON,
        .residual_more = 0.5,
        DRIVER,
        .logit_held_bytes = 4,
        .transient_share = 0.03, /* its largest micro-batches leave no more */
        .saved = {.hidden = 4, .ffn = 2},
    },
    {
        .name = "deepspeed",
        .reading = "DeepSpeed ZeRO with FlashAttention-2",
        .recomputes_all = TRUE,
        WHOLE_LOGITS,
        FSDP_TRAFFIC,
        UNFUSED_NORM,
        EAGER_GATE,
        .attention = ATTENTION_FLASH_2,
        DRIVER,
        .logit_held_bytes = 10,
        .transient_share = 0.1,
        .saved = {.hidden = 4, .ffn = 4, .attention = 4},
    },
    {
        .name = "deepspeed-liger",
        .reading = "the same with Liger kernels: norms, rotary and SwiGLU are fused, the head's "
                   "loss is taken in chunks",
        .recomputes_all = TRUE,
        FSDP_TRAFFIC,
        .attention = ATTENTION_FLASH_2,
        DRIVER,
        .transient_share = 0.1,
        /* SiLU is made again.  Left out: a chunk of logits has as many values as the residual
         * stream (Liger, fused_linear_cross_entropy.py), and no block is alive then. */
        .saved = {.hidden = 4, .ffn = 2, .attention = 4},
    },
    {
        .name = "internevo",
        .reading = "InternEvo: FlashAttention-2, ZeRO-1, parameters are broadcast after the step",
        .recomputes_all = TRUE,
        WHOLE_LOGITS,
        UNFUSED_NORM,
        .attention = ATTENTION_FLASH_2,
        .gather_exposed = 1,
        .reduce_exposed = 0.15,
        .broadcast_s = 2.5e-3,
        /* a step's gradients in fp32; its square roots and what is divided by, in fp32, as
         * torch.optim.AdamW takes the one flat tensor of all parameters at once.  Gradients in 16
         * bits, and flat ones, are free by then (hybrid_zero_optim.py, _step) */
        .shard_bytes = 10,
        .cached_bytes = 4,
        /* and two buckets of 512 Mi gradients, one in flight (reduce_bucket_size) */
        .process_bytes = 3.5e9 + 2 * 2.0 * 512 * 1024 * 1024,
        .logit_held_bytes = 6,
        .transient_share = 0.07,
        .saved = {.hidden = 4, .ffn = 2, .attention = 4},
    },
    {
        .name = "internevo-fsdp",
        .reading = "InternEvo with FSDP: fp32 parameters and gradients beside the bf16 ones",
        .recomputes_all = TRUE,
        WHOLE_LOGITS,
        .attention = ATTENTION_FLASH_2,
        FSDP_TRAFFIC,
        .shard_bytes = 8,
        DRIVER,
        .logit_held_bytes = 6,
        .transient_share = 0.07,
        .saved = {.hidden = 4, .ffn = 2, .attention = 4},
    },
    {
        .name = "nanotron",
        .reading = "nanotron: FlashAttention-2, fp32 gradients beside bf16 ones and a copy of them",
        NANOTRON,
        GATHER_BUFFERS,
        QUEUED_REDUCTIONS,
    },
    {
        .name = "nanotron-waits",
        .reading = "the same where the host is not ahead of the device: no buffers are held",
        NANOTRON,
        GATHER_BUFFERS,
    },
    {
        .name = "jax",
        .reading = "MaxText: XLA with Transformer Engine or cuDNN attention",
        WHOLE_LOGITS,
        .keeps_fp8_weights = TRUE,
        .attention = ATTENTION_CUDNN,
        .gather_exposed = 0.15,
        .reduce_exposed = 0.15,
        DRIVER,
        .logit_held_bytes = 10,
        .transient_share = 0.07,
        .saved = {.hidden = 4, .ffn = 2},
    },
    {
        .name = "paxml",
        .reading =
            "Paxml, the same with XLA of 2023 and 2024, whose collectives slow compute as FSDP's",
        WHOLE_LOGITS,
        .keeps_fp8_weights = TRUE,
        .attention = ATTENTION_CUDNN,
        FSDP_TRAFFIC,
        DRIVER,
        .logit_held_bytes = 10,
        .transient_share = 0.07,
        .saved = {.hidden = 4, .ffn = 2},
    },
    {
        .name = "paxml-unfused",
        .reading = "the same without flash attention",
        WHOLE_LOGITS,
        .attention = ATTENTION_FUSED_MASK,
        FSDP_TRAFFIC,
        DRIVER,
        .logit_held_bytes = 10,
        .transient_share = 0.07,
        .saved = {.hidden = 4, .ffn = 2, .score = 4},
    },
};

const FrameworkFamily framework_others = {frameworks, G_N_ELEMENTS(frameworks)};
