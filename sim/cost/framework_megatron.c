#include "sim/cost/framework_families.h"

/* Apex and DeepSpeed of 2021 to 2023: a layer's kernels are issued from Python in 0.9 ms forward
 * and 1.6 ms backward however small they are (vTrain's single-node measurements, flat in hidden
 * size and micro-batch). */
#define EAGER_MEGATRON .host_forward_s = 0.9e-3, .host_backward_s = 1.6e-3

/* What Megatron's blocks keep beside: norm outputs (2 B), dropout masks (1 B) twice, the
 * activation's output (2 B); of scores softmax' output (2 B), what dropout makes of it (2 B), its
 * mask (1 B) (Korthikanti et al. 2022, arXiv 2205.05198, eq. 2).  Their gradients: 2 B each. */
#define MEGATRON_SCORES .saved = {.hidden = 6, .ffn = 2, .score = 5, .gradient = 4}

/* A micro-batch's gradients in 16 bits, which products have written, are added to fp32 sums by a
 * kernel of their own: read, and 4 B read and written (NeMo, optimizer_with_main_params.py,
 * param_hook; DeepSpeed, BF16_Optimizer.update_hp_grads). */
#define ADDS_GRADIENTS .gradient_more = 10

/* Megatron's: dropout after attention and MLP reads and writes a mask. */
#define DROPOUT .residual_more = 0.75

/* Messages between stages are sent whole by each rank of a tp group; the driver's view has a bucket
 * of reductions, of 500 million gradients (DeepSpeed, MEMORY_OPT_ALLREDUCE_SIZE), beside context
 * and NCCL. */
#define BUCKETED(gradient_bytes) .process_bytes = 3.5e9 + 500e6 * (gradient_bytes)
#define BIGSCIENCE                                                                                 \
    WHOLE_LOGITS, DROPOUT, EAGER_MEGATRON,                                                         \
        .recomputes_all = TRUE, .attention = ATTENTION_FUSED_MASK, .gather_exposed = 1,            \
        .reduce_exposed = 1, .logit_held_bytes = 6, .transient_share = 0.07, MEGATRON_SCORES

/* Aleph Alpha's: all-reduces take twice the time of their bytes (they grow with tp as if summed in
 * fp32), nothing overlaps; rotary embedding and SwiGLU are not fused; each rank of a tp group holds
 * all logits. */
#define AA_SCALING                                                                                 \
    WHOLE_LOGITS, .recomputes_all = TRUE, EAGER_GATE, .all_reduce_more = 1, .gather_exposed = 1,   \
                  .reduce_exposed = 1, .splits_messages = TRUE, .process_bytes = 3.5e9,            \
                  .logit_held_bytes = 20, .gathers_logits = TRUE, .transient_share = 0.1

/* Experts of Megatron-Core from 2025 on.  The host waits for the counts of tokens before it can
 * issue the experts' kernels, and issues many small ones: 8.8 ms a block of Qwen3-30B-A3B on B200
 * and 9.4 to 9.6 on H100 however little there is to compute, taken apart as forward to backward.
 * Dispatch by DeepEP. */
#define MEGATRON_HOST_EXPERTS .host_sparse_forward_s = 3e-3, .host_sparse_backward_s = 5.5e-3
#define MEGATRON_EXPERTS      MEGATRON_HOST_EXPERTS, .sends_once = TRUE

/* Dispatch all to all, by NCCL: each expert's row of a token by itself; in fp8 each expert's rows
 * are padded, and what it gives is cut again, by kernels that copy all of them (Megatron-Core,
 * experts.py, Fp8Padding; HybridEP pads as it permutes). */
#define ALL_TO_ALL .pads_rows = TRUE

/* Exchanges by HybridEP with 32 multiprocessors reach 0.53 of NVLink's rate on GB200, measured from
 * its Python calls, and 0.71 by their kernels alone, of 8 to 32 ranks, where a collective is taken
 * to reach 0.8 (deepseek-ai/DeepEP, docs/README_Hybrid-EP.md: its rates count what a rank keeps).
 */
#define HYBRID_EP         .sends_once = TRUE, .exchange_more = 0.5
#define HYBRID_EP_KERNELS .sends_once = TRUE, .exchange_more = 0.13

/* One micro-batch's exchanges run beside another's work; how much of them is taken to be as of
 * tensor-parallel traffic.  0.37 was measured on 16 H100 of two nodes and more, where they take
 * longer than the work beside them (skills/nemo-mbridge-perf-expert-parallel-overlap). */
#define OVERLAPS_EXCHANGES .exchange_hidden = 0.7

/* Recipes of Megatron-Bridge from 26.06 on (June 2026, perf_recipes, "full_iteration"), of mixtures
 * in MXFP8 on GB200 and GB300: nothing waits for the host, the experts' products end with the
 * activation and its rounding, attention is in fp8. */
#define WHOLE_GRAPH HYBRID_EP_KERNELS, OVERLAPS_EXCHANGES, .fuses_experts = TRUE

/* Beside the fused SwiGLU's 8 passes over the experts' inner width, forward and backward: clamps
 * and their concatenation 8 and 10, the output's bias times a row's weight in fp32 14 and 20
 * (Megatron-Core 0.15, fused_bias_geglu.py and TEGroupedMLP._apply_bias; its width and the inner
 * one are the same).  Rotary embedding is not fused where YaRN scales it: 12 passes forward and 17
 * backward in place of 2 and 2 (rope_utils.py, apply_rotary_pos_emb). */
#define GPT_OSS_STEPS .activation_more = 6.5, .rotary_more = 6.25, ALL_TO_ALL

#define MEGATRON_2021                                                                              \
    WHOLE_LOGITS, DROPOUT, DRIVER, .recomputes_all = TRUE, .attention = ATTENTION_FUSED_MASK,      \
                                   .splits_messages = TRUE, .logit_held_bytes = 6,                 \
                                   .transient_share = 0.07, MEGATRON_SCORES

/* Where stages have several chunks, messages are sent beside their work, by default since October
 * 2023 (Megatron-LM, overlap_p2p_comm); how much of them as of NeMo's: assumed.
 * Holds so many bytes for each logit. */
#define MEGATRON_CORE_HOLDS(bytes)                                                                 \
    WHOLE_LOGITS, DRIVER, MEGATRON_EXPERTS, .recomputes_all = TRUE, .keeps_fp8_weights = TRUE,     \
                                            .pipeline_hidden = 0.7, .gather_exposed = 0.15,        \
                                            .reduce_exposed = 0.15, .splits_messages = TRUE,       \
                                            .logit_held_bytes = (bytes), .transient_share = 0.07
#define MEGATRON_CORE MEGATRON_CORE_HOLDS(6)

/* The fused loss is compiled: its exponentials are a new tensor beside the fp32 logits, which its
 * caller keeps (fused_cross_entropy.py; golden values of two runs that differ in it: 4 bytes a
 * logit). */
#define FUSED_LOSS MEGATRON_CORE_HOLDS(10)

/* Megatron-Core whose traffic of tp and pp is hidden but for 0.3; keeps so many bytes for each
 * value of the residual stream. */
#define NEMO_KEEPS(bytes)                                                                          \
    WHOLE_LOGITS, DRIVER, .keeps_fp8_weights = TRUE, .tensor_hidden = 0.7, .pipeline_hidden = 0.7, \
                          .gather_exposed = 0.15, .reduce_exposed = 0.15, .splits_messages = TRUE, \
                          .logit_held_bytes = 6, .transient_share = 0.07,                          \
                          .saved = {.hidden = (bytes), .ffn = 2}
#define NEMO NEMO_KEEPS(4)

/* Megatron-Bridge of 2025 and 2026. */
#define BRIDGE                                                                                     \
    .recomputes_all = TRUE, MEGATRON_HOST_EXPERTS, NEMO, .attention = ATTENTION_CUDNN_2026

static const Framework frameworks[] = {
    {
        .name = "megatron",
        .reading = "Megatron-Core with Transformer Engine",
        MEGATRON_CORE,
        .attention = ATTENTION_CUDNN,
        .saved = {.hidden = 4, .ffn = 2},
    },
    {
        .name = "megatron-flash2",
        .reading = "the same with FlashAttention-2 (Megatron-LM's --use-flash-attn)",
        MEGATRON_CORE,
        .attention = ATTENTION_FLASH_2,
        .saved = {.hidden = 4, .ffn = 2},
    },
    {
        .name = "megatron-unfused",
        .reading = "the same, scores in memory (--attention-backend unfused), dropout",
        MEGATRON_CORE,
        DROPOUT,
        .attention = ATTENTION_FUSED_MASK,
        MEGATRON_SCORES,
    },
    {
        .name = "megatron-fused-loss",
        .reading = "the same with cuDNN's attention and --cross-entropy-loss-fusion",
        FUSED_LOSS,
        .attention = ATTENTION_CUDNN,
        .saved = {.hidden = 4, .ffn = 2},
    },
    {
        .name = "megatron-norm-act",
        .reading = "Megatron-Core whose norms and activation are computed again",
        MEGATRON_CORE,
        .attention = ATTENTION_CUDNN,
        /* a forward pass more: of 2 + 3 passes of a norm, of 3 + 5 of SwiGLU */
        .norm_more = 2.0 / 5,
        .activation_more = 3.0 / 8,
    },
    {
        .name = "nemo",
        .reading = "NeMo and MLPerf: Megatron-Core with overlapped traffic",
        .recomputes_all = TRUE,
        MEGATRON_EXPERTS,
        NEMO,
        .attention = ATTENTION_CUDNN,
    },
    {
        .name = "nemo-dropout",
        .reading = "the same with dropout, as NeMo's configurations of GPT-3 alone have it",
        .recomputes_all = TRUE,
        MEGATRON_EXPERTS,
        NEMO_KEEPS(6), /* and two masks */
        DROPOUT,
        .drops_scores = TRUE,
        .attention = ATTENTION_CUDNN,
    },
    {
        .name = "nemo-flash2",
        .reading = "NeMo of February to August 2024: FlashAttention-2",
        .recomputes_all = TRUE,
        MEGATRON_EXPERTS,
        NEMO,
        .attention = ATTENTION_FLASH_2,
    },
    {
        .name = "nemo-flash2-dropout",
        .reading = "the same with dropout, as NeMo's configurations of GPT-3 alone have it",
        .recomputes_all = TRUE,
        MEGATRON_EXPERTS,
        NEMO_KEEPS(6),
        DROPOUT,
        .drops_scores = TRUE,
        .attention = ATTENTION_FLASH_2,
    },
    {
        .name = "megatron-bridge",
        .reading = "Megatron-Bridge: NeMo's with cuDNN 9.19 and HybridEP",
        BRIDGE,
        HYBRID_EP,
    },
    {
        .name = "megatron-bridge-graph",
        .reading =
            "Megatron-Bridge since 26.06, mixtures in MXFP8: one CUDA graph, attention in fp8",
        .recomputes_all = TRUE,
        WHOLE_GRAPH,
        NEMO,
        .attention = ATTENTION_CUDNN_FP8,
    },
    {
        .name = "megatron-bridge-alltoall",
        .reading = "Megatron-Bridge whose experts exchange by NCCL",
        BRIDGE,
        ALL_TO_ALL,
    },
    {
        .name = "megatron-bridge-overlap",
        .reading = "the same, beside another micro-batch's work",
        BRIDGE,
        ALL_TO_ALL,
        OVERLAPS_EXCHANGES,
    },
    {
        .name = "megatron-bridge-gpt-oss",
        .reading = "Megatron-Bridge with gpt-oss: clamps and biases of experts in single steps",
        BRIDGE,
        GPT_OSS_STEPS,
    },
    {
        .name = "nemo-2022",
        .reading = "NeMo-Megatron on A100: before flash attention",
        .recomputes_all = TRUE,
        WHOLE_LOGITS,
        DROPOUT,
        ADDS_GRADIENTS,
        .attention = ATTENTION_FUSED_MASK,
        .gather_exposed = 1,
        .reduce_exposed = 1,
        .splits_messages = TRUE,
        DRIVER,
        .logit_held_bytes = 6,
        .transient_share = 0.07,
        MEGATRON_SCORES,
    },
    {
        .name = "megatron-2021",
        .reading = "Megatron-LM before flash attention",
        MEGATRON_2021,
        .gather_exposed = 0.15,
        .reduce_exposed = 0.15,
    },
    {
        .name = "megatron-2021-local",
        .reading = "the same with its own data parallelism: gradients are reduced at the end",
        MEGATRON_2021,
        .gather_exposed = 1,
        .reduce_exposed = 1,
    },
    {
        .name = "megatron-deepspeed",
        .reading = "Megatron-DeepSpeed: nothing overlaps, layers are issued slowly",
        .recomputes_all = TRUE,
        WHOLE_LOGITS,
        EAGER_MEGATRON,
        .attention = ATTENTION_FUSED_MASK,
        .gather_exposed = 1,
        .reduce_exposed = 1,
        .splits_messages = TRUE,
        DRIVER,
        .logit_held_bytes = 6,
        .transient_share = 0.07,
        MEGATRON_SCORES,
    },
    {
        .name = "bigscience-fp16",
        .reading = "BigScience's Megatron-DeepSpeed, fp16: ZeRO-1 has fp32 gradients of its part",
        BIGSCIENCE,
        BUCKETED(2),
        .shard_bytes = 4,
    },
    {
        .name = "bigscience-bf16",
        .reading = "the same, bf16: gradients are added in fp32 beside the bf16 ones",
        BIGSCIENCE,
        ADDS_GRADIENTS,
        BUCKETED(4),
        .whole_bytes = 2,
    },
    {
        .name = "aa-scaling",
        .reading = "Aleph Alpha's Megatron with FlashAttention-2 and a fused RMS norm",
        AA_SCALING,
        .attention = ATTENTION_FLASH_2,
        .saved = {.hidden = 4, .ffn = 4, .attention = 4},
    },
    {
        .name = "aa-scaling-flash2",
        .reading = "the same, the RMS norm in single steps",
        AA_SCALING,
        UNFUSED_NORM,
        .attention = ATTENTION_FLASH_2,
        .saved = {.hidden = 12, .ffn = 4, .attention = 4},
    },
    {
        .name = "aa-scaling-flash1",
        .reading = "the same with FlashAttention 1.0.8",
        AA_SCALING,
        UNFUSED_NORM,
        .attention = ATTENTION_FLASH_1,
        .saved = {.hidden = 12, .ffn = 4, .attention = 4},
    },
    {
        .name = "aa-scaling-fused",
        .reading = "the same with Megatron's kernel of scale, mask and softmax",
        AA_SCALING,
        UNFUSED_NORM,
        .attention = ATTENTION_FUSED_MASK,
        .saved = {.hidden = 12, .ffn = 4, .attention = 4, .score = 2, .gradient = 4},
    },
    {
        .name = "aa-scaling-torch",
        .reading = "the same with attention in single steps",
        AA_SCALING,
        UNFUSED_NORM,
        .attention = ATTENTION_UNFUSED,
        /* a softmax in fp32: its gradient and its input's, 4 B each */
        .saved = {.hidden = 12, .ffn = 4, .attention = 4, .score = 8, .gradient = 8},
    },
};

const FrameworkFamily framework_megatron = {frameworks, G_N_ELEMENTS(frameworks)};
