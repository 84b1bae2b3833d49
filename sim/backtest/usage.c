#include "sim/backtest/usage.h"

#include "sim/backtest/experts.h"
#include "sim/backtest/shape.h"
#include "sim/layout/schedule.h"

#include <string.h>

/* Whichever version. */
#define TORCHTITAN_USAGE                                                                           \
    .recipe = "fsdp2", .strategy = STRATEGY_FULL_SHARD, .sequence = TRUE, .halves_selective = TRUE

/* Its tables print "n/a" where there are no virtual stages, and its recipes have none there. */
#define MEGATRON_BRIDGE_USAGE                                                                      \
    .recipe = "zero", .strategy = STRATEGY_SHARD_OPTIMIZER, .sequence = TRUE

/* Before flash attention. */
#define MEGATRON_2021_USAGE .recipe = "zero", .strategy = STRATEGY_NO_SHARD

/* PyTorch's first FSDP: its MixedPrecision is given one type for parameters, reductions and buffers
 * (pytorch/examples, distributed/FSDP, bfSixteen; fms-fsdp, policies/mixed_precision.py), where
 * FSDP2 is told fp32 for reductions.  "Selective" leaves out blocks. */
#define FSDP_1_USAGE                                                                               \
    .recipe = "fsdp2", .strategy = STRATEGY_FULL_SHARD, .halves_selective = TRUE,                  \
    .reduces_half = TRUE

#define NEMO_USAGE                                                                                 \
    .recipe = "zero", .strategy = STRATEGY_SHARD_OPTIMIZER, .sequence = TRUE, .interleaves = TRUE

/* The first that matches holds; the last matches all. */
static const Usage usages[] = {
    {.word = "AA-Scaling",
     .software = "RMS kernel",
     .framework = "aa-scaling",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "AA-Scaling",
     .software = "attention2",
     .framework = "aa-scaling-flash2",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "AA-Scaling",
     .software = "attentionv1",
     .framework = "aa-scaling-flash1",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "AA-Scaling",
     .software = "flash",
     .framework = "aa-scaling-flash2",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "AA-Scaling",
     .software = "fused",
     .framework = "aa-scaling-fused",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "AA-Scaling",
     .framework = "aa-scaling-torch",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "llm-foundry",
     .framework = "llm-foundry",
     .recipe = "fsdp2",
     .strategy = STRATEGY_FULL_SHARD},
    {.word = "torchtitan",
     .software = "rowwise",
     .since = 202504,
     .framework = "torchtitan-2025-rowwise",
     TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "rowwise",
     .framework = "torchtitan-rowwise",
     TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "mxfp8.md", /* of December 2025 */
     .framework = "torchtitan-2025",
     TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "nvfp4.md", /* of August 2026 */
     .framework = "torchtitan-2026",
     TORCHTITAN_USAGE},
    {.word = "torchtitan", .since = 202604, .framework = "torchtitan-2026", TORCHTITAN_USAGE},
    {.word = "torchtitan", .since = 202504, .framework = "torchtitan-2025", TORCHTITAN_USAGE},
    {.word = "torchtitan", .software = "eager", .framework = "torchtitan-eager", TORCHTITAN_USAGE},
    /* enable_fsdp_float8_all_gather in its configurations; a scale for each row cannot have it. */
    {.word = "torchtitan", .software = "float8", .framework = "torchtitan-fp8", TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "tensorwise",
     .framework = "torchtitan-fp8",
     TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "performance.md", /* its configurations compile 405B alone */
     .model = "405b",
     .framework = "torchtitan",
     TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "performance.md",
     .model = "70b", /* the others have the Triton norm */
     .framework = "torchtitan-eager",
     TORCHTITAN_USAGE},
    {.word = "torchtitan",
     .software = "performance.md",
     .framework = "torchtitan-eager-norm",
     TORCHTITAN_USAGE},
    {.word = "torchtitan", .framework = "torchtitan", TORCHTITAN_USAGE},
    {.word = "BLOOM",
     .software = "fp32 grad",
     .framework = "bigscience-bf16",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "BLOOM",
     .framework = "bigscience-fp16",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "Megatron-DeepSpeed",
     .framework = "megatron-deepspeed",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "NeMo Megatron", /* its configurations have virtual stages only since October 2022,
                                 after these tables */
     .framework = "nemo-2022",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "MLPerf", /* without dropout: 175b_mlperf.yaml */
     NEMO_USAGE,
     .framework = "nemo"},
    /* Its launcher had cuDNN's attention off from February to August 2024 but for GPT-3 175B
     * (NeMo-Framework-Launcher 562dcb45, 95c77b59, 04b8d098: NVTE_FUSED_ATTN): 24.09 has it. */
    {.word = "NeMo 24.09", .model = "gpt3", NEMO_USAGE, .framework = "nemo-dropout"},
    {.word = "NeMo 24.09", NEMO_USAGE, .framework = "nemo"},
    {.word = "NeMo 24.0", .model = "175b", NEMO_USAGE, .framework = "nemo-dropout"},
    {.word = "NeMo 24.0", .model = "gpt3", NEMO_USAGE, .framework = "nemo-flash2-dropout"},
    {.word = "NeMo 24.0", NEMO_USAGE, .framework = "nemo-flash2"},
    {.word = "NeMo", /* 0.1 in its configurations of GPT-3 (NeMo-Framework-Launcher,
                        conf/training), none in others */
     .model = "gpt3",
     NEMO_USAGE,
     .framework = "nemo-dropout"},
    {.word = "NeMo", NEMO_USAGE, .framework = "nemo"},
    {.word = "Megatron-Core 26.06",
     .software = "MXFP8",
     .gpu = "GB",
     .experts = TRUE,
     .framework = "megatron-bridge-graph",
     MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron-Core 26.08",
     .software = "MXFP8",
     .gpu = "GB",
     .experts = TRUE,
     .framework = "megatron-bridge-graph",
     MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron-Core 26.06", /* perf_recipes of v0.5.0: of B300 this model alone */
     .software = "MXFP8",
     .model = "qwen330b",
     .gpu = "B300",
     .experts = TRUE,
     .framework = "megatron-bridge-graph",
     MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron-Core 26.08", /* of v0.6.0: of B200 and B300 these */
     .software = "MXFP8",
     .model = "qwen3",
     .gpu = "B",
     .experts = TRUE,
     .framework = "megatron-bridge-graph",
     MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron-Bridge",
     .model = "gptoss",
     .framework = "megatron-bridge-gpt-oss",
     MEGATRON_BRIDGE_USAGE},
    /* Beside gpt-oss, recipes of this model alone exchange by NCCL. */
    {.word = "Megatron-Bridge",
     .model = "qwen3235b",
     .gpu = "H100",
     .framework = "megatron-bridge-overlap",
     MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron-Bridge",
     .model = "qwen3235b",
     .gpu = "B200",
     .framework = "megatron-bridge-alltoall",
     MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron-Bridge", .framework = "megatron-bridge", MEGATRON_BRIDGE_USAGE},
    {.word = "Megatron",
     .software = "cross_entropy_loss_fusion",
     .framework = "megatron-fused-loss",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
    {.word = "Megatron",
     .software = "unfused",
     .framework = "megatron-unfused",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
    {.word = "Megatron",
     .recomputed = "norm",
     .framework = "megatron-norm-act",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
    /* It has flash attention since December 2022 (its --use-flash-attn), when H100 came: who names
     * it, or has a later GPU than A100 and A800, is later (the last row).  Its own data
     * parallelism, the default, reduces when all gradients are there; NVIDIA's scaling runs had
     * Torch's, beside the backward pass (its README of then, "Distributed Pretraining"; SC21's
     * run_table_1.sh). */
    {.word = "Megatron-LM",
     .software = "lash",
     .framework = "megatron-flash2",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
    {.word = "Megatron-LM",
     .software = "NVIDIA/Megatron-LM",
     .gpu = "A",
     .framework = "megatron-2021",
     MEGATRON_2021_USAGE},
    {.word = "Megatron-LM",
     .software = "NVIDIA/Megatron-LM",
     .gpu = "V",
     .framework = "megatron-2021",
     MEGATRON_2021_USAGE},
    {.word = "Megatron-LM",
     .software = "2104.04473",
     .gpu = "A",
     .framework = "megatron-2021",
     MEGATRON_2021_USAGE},
    {.word = "Megatron-LM", .gpu = "A", .framework = "megatron-2021-local", MEGATRON_2021_USAGE},
    {.word = "Megatron-LM", .gpu = "V", .framework = "megatron-2021-local", MEGATRON_2021_USAGE},
    {.word = "LiBai",
     .framework = "megatron-2021",
     .recipe = "megatron",
     .strategy = STRATEGY_NO_SHARD},
    {.word = "nanotron",
     .framework = "nanotron",
     .waiting = "nanotron-waits",
     .recipe = "megatron",
     .strategy = STRATEGY_NO_SHARD,
     .sequence = TRUE,
     .balances_head = TRUE,
     .weighs_first = TRUE}, /* log_throughput(): only global rank 0 writes the table */
    {.word = "InternEvo",
     .software = "FSDP",
     .framework = "internevo-fsdp",
     .recipe = "zero",
     .strategy = STRATEGY_FULL_SHARD},
    {.word = "InternEvo",
     .framework = "internevo",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "MaxText",
     .framework = "jax",
     .recipe = "zero",
     .strategy = STRATEGY_FULL_SHARD,
     .recomputes = TRUE},
    {.word = "Pax",
     .model = "126m", /* measured "without flash attention", the default (JAX-Toolbox's README);
                         its layers are not repeated ones, which alone are recomputed */
     .framework = "paxml-unfused",
     .recipe = "zero",
     .strategy = STRATEGY_FULL_SHARD,
     .recomputes = TRUE},
    {.word = "Pax",
     .software = "JAX-Toolbox@62799732", /* its measurements are of October 2023; XLA has flash
                                            attention by default since February 2024 */
     .framework = "paxml-unfused",
     .recipe = "zero",
     .strategy = STRATEGY_FULL_SHARD,
     .recomputes_gpt = TRUE,
     .recomputes = TRUE},
    {.word = "Pax",
     .framework = "paxml",
     .recipe = "zero",
     .strategy = STRATEGY_FULL_SHARD,
     .recomputes_gpt = TRUE,
     .recomputes = TRUE},
    {.word = "DeepSpeed",
     .framework = "deepspeed",
     .recipe = "zero",
     .strategy = STRATEGY_FULL_SHARD},
    {.word = "FSDP2",
     .framework = "torchtitan",
     .recipe = "fsdp2",
     .strategy = STRATEGY_FULL_SHARD},
    {.word = "FSDP", .software = "torch.compile", .framework = "torchtitan", FSDP_1_USAGE},
    {.word = "FSDP", .software = "fused", .framework = "torchtitan", FSDP_1_USAGE},
    {.word = "FSDP", .framework = "torchtitan-eager", FSDP_1_USAGE},
    {.word = "torchtune",
     .framework = "torchtitan",
     .recipe = "zero",
     .strategy = STRATEGY_NO_SHARD},
    {.word = "litgpt", .framework = "torchtitan", .recipe = "zero", .strategy = STRATEGY_NO_SHARD},
    {.framework = "megatron",
     .recipe = "megatron",
     .strategy = STRATEGY_SHARD_OPTIMIZER,
     .sequence = TRUE},
};

/* Names are written in any case: TorchTitan, nemo. */
static gboolean is_called(const Record *record, const char *word)
{
    g_autofree char *name = g_ascii_strdown(record->framework, -1);
    g_autofree char *part = g_ascii_strdown(word, -1);

    return strstr(name, part) != NULL;
}

static gboolean mentions(const Record *record, const char *word)
{
    return strstr(record->software, word) != NULL || strstr(record->precision_text, word) != NULL ||
           strstr(record->strategy_text, word) != NULL || strstr(record->locator, word) != NULL;
}

/* The digits that @at begins with, at most @most of them. */
static guint count_digits(const char *at, guint most)
{
    guint count = 0;

    while (count < most && g_ascii_isdigit(at[count]))
        count++;
    return count;
}

/* The first of "2025-06", "202506", "20250613", as 202506; 0 for none. */
static guint month_in(const char *text)
{
    for (const char *at = text; (at = strstr(at, "20")) != NULL; at++) {
        const gboolean dashed = at[2] != '\0' && at[3] != '\0' && at[4] == '-';
        const char *month = at + (dashed ? 5 : 4);

        if ((at > text && g_ascii_isalnum(at[-1])) || count_digits(at, 4) < 4 ||
            count_digits(month, 2) < 2 || g_ascii_isalnum(month[2 + count_digits(month + 2, 2)]))
            continue;
        return 200000 +
               (guint)(g_ascii_digit_value(at[2]) * 1000 + g_ascii_digit_value(at[3]) * 100 +
                       g_ascii_digit_value(month[0]) * 10 + g_ascii_digit_value(month[1]));
    }
    return 0;
}

static guint month_of(const Record *record)
{
    return MAX(MAX(month_in(record->framework), month_in(record->software)),
               month_in(record->locator));
}

static gboolean matches(const Record *record, const Usage *usage)
{
    g_autofree char *model = experts_plain_name(record->model);

    return (usage->word == NULL || is_called(record, usage->word)) &&
           (usage->software == NULL || mentions(record, usage->software)) &&
           (usage->model == NULL || strstr(model, usage->model) != NULL) &&
           (usage->gpu == NULL || g_str_has_prefix(record->gpu, usage->gpu)) &&
           (!usage->experts || shape_has_experts(record)) &&
           (usage->recomputed == NULL || (record->recompute == RECOMPUTE_SELECTIVE &&
                                          strstr(record->recompute_text, usage->recomputed))) &&
           (usage->since == 0 || month_of(record) >= usage->since);
}

const Usage *usage_of(const Record *record)
{
    const Usage *usage = usages;

    while (!matches(record, usage))
        usage++;
    return usage;
}
