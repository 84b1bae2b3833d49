#include "sim/backtest/setup.h"

#include "sim/backtest/cluster.h"
#include "sim/backtest/experts.h"
#include "sim/backtest/shape.h"
#include "sim/cost/framework.h"
#include "sim/search/price.h"

#include <math.h>
#include <string.h>

/* What tables of runs call a framework, and what its users do where a table does not say. */
typedef struct {
    const char *word, *software; /* parts of columns framework, and compile_or_flash, precision,
                                    fsdp_strategy or source_locator; NULL: any */
    const char *model;           /* part of the model's name as letters and digits; NULL: any */
    const char *gpu;             /* the GPU's name begins so; NULL: any */
    gboolean experts;            /* mixtures only */
    const char *framework;
    const char *waiting; /* the same of runs whose host is not ahead of the device: host_waits();
                            NULL: all the same */
    const char *recipe;
    Strategy strategy;
    gboolean sequence;         /* tokens are split between matrices */
    gboolean interleaves;      /* stages have as many chunks as layers allow */
    gboolean halves_selective; /* "selective" keeps every other product */
    gboolean balances_head;    /* stages are cut by parameters, the head's too */
    gboolean recomputes;       /* where nothing is said, what did not fit */
    gboolean recomputes_gpt;   /* blocks without a gate are recomputed */
    gboolean weighs_first;     /* memory is that of rank 0, of the first stage */
} Usage;

/* Whichever version. */
#define TORCHTITAN_USAGE                                                                           \
    .recipe = "fsdp2", .strategy = STRATEGY_FULL_SHARD, .sequence = TRUE, .halves_selective = TRUE

/* Its tables print "n/a" where there are no virtual stages, and its recipes have none there. */
#define MEGATRON_BRIDGE_USAGE                                                                      \
    .recipe = "zero", .strategy = STRATEGY_SHARD_OPTIMIZER, .sequence = TRUE

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
     .framework = "aa-scaling-torch",
     .recipe = "zero",
     .strategy = STRATEGY_SHARD_OPTIMIZER},
    {.word = "llm-foundry",
     .framework = "llm-foundry",
     .recipe = "fsdp2",
     .strategy = STRATEGY_FULL_SHARD},
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
    {.word = "torchtitan", .software = "eager", .framework = "torchtitan-eager", TORCHTITAN_USAGE},
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
    {.word = "Megatron-LM",
     .framework = "megatron-2021",
     .recipe = "zero",
     .strategy = STRATEGY_NO_SHARD},
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
    {.word = "FSDP", .framework = "torchtitan", .recipe = "fsdp2", .strategy = STRATEGY_FULL_SHARD},
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

static gboolean mentions(const Record *record, const char *word)
{
    return strstr(record->software, word) != NULL || strstr(record->precision_text, word) != NULL ||
           strstr(record->strategy_text, word) != NULL || strstr(record->locator, word) != NULL;
}

static gboolean matches(const Record *record, const Usage *usage)
{
    g_autofree char *model = experts_plain_name(record->model);

    return (usage->word == NULL || strstr(record->framework, usage->word) != NULL) &&
           (usage->software == NULL || mentions(record, usage->software)) &&
           (usage->model == NULL || strstr(model, usage->model) != NULL) &&
           (usage->gpu == NULL || g_str_has_prefix(record->gpu, usage->gpu)) &&
           (!usage->experts || shape_has_experts(record));
}

static const Usage *usage_of(const Record *record)
{
    const Usage *usage = usages;

    while (!matches(record, usage))
        usage++;
    return usage;
}

/* ---- sharding ---- */

static Strategy strategy_of(const Record *record, const Usage *usage)
{
    static const Strategy strategies[] = {
        [KIND_NO_SHARD] = STRATEGY_NO_SHARD,
        [KIND_SHARD_OPTIMIZER] = STRATEGY_SHARD_OPTIMIZER,
        [KIND_SHARD_GRAD_OP] = STRATEGY_SHARD_GRAD_OP,
        [KIND_FULL_SHARD] = STRATEGY_FULL_SHARD,
        [KIND_HYBRID_SHARD] = STRATEGY_HYBRID_SHARD,
        [KIND_SHARD_OPTIMIZER_HYBRID] = STRATEGY_SHARD_OPTIMIZER,
    };

    return record->strategy == UNKNOWN ? usage->strategy : strategies[record->strategy];
}

/* Ranks that shard: as "degree 128", "within 8 ranks" say; else all, or, of a hybrid, a node. */
static guint shard_ranks(const Record *record, guint dp)
{
    static const char *const words[] = {"degree ", "within "};
    const gboolean hybrid =
        record->strategy == KIND_HYBRID_SHARD || record->strategy == KIND_SHARD_OPTIMIZER_HYBRID;
    guint ranks = hybrid ? MIN(dp, record->gpus_per_node) : dp;

    for (guint i = 0; i < G_N_ELEMENTS(words); i++) {
        const char *at = strstr(record->strategy_text, words[i]);

        if (at != NULL && g_ascii_isdigit(at[strlen(words[i])]))
            ranks = (guint)g_ascii_strtoull(at + strlen(words[i]), NULL, 10);
    }
    return ranks > 0 && dp % ranks == 0 ? ranks : dp;
}

/* FSDP with stages keeps whole weights and gradients over the micro-batches (torchtitan: no reshard
 * after forward). */
static void set_sharding(const Record *record, const Usage *usage, guint dp, Plan *plan)
{
    Strategy strategy = strategy_of(record, usage);
    const guint ranks = strategy == STRATEGY_NO_SHARD ? 1 : shard_ranks(record, dp);
    const gboolean pipelined = plan->layout.size[AXIS_PP] > 1 && strategy >= STRATEGY_FULL_SHARD;

    plan->layout.size[AXIS_DP_SHARD] = ranks;
    plan->layout.size[AXIS_DP_REPLICATE] = dp / ranks;
    if (strategy == STRATEGY_HYBRID_SHARD && dp == ranks)
        strategy = STRATEGY_FULL_SHARD;
    plan->sharding = sharding_default;
    plan->sharding.strategy = pipelined ? STRATEGY_SHARD_GRAD_OP : strategy;
    plan->sharding.accumulate_sharded = !pipelined;
    sharding_normalise(&plan->sharding, &plan->layout, &plan->schedule);
}

/* An fp32 shard that is the master needs sharded parameters. */
static const Recipe *recipe_of(const Record *record, const Usage *usage, Strategy strategy)
{
    static const DType precisions[] = {
        [PRECISION_BF16] = DTYPE_BF16,
        [PRECISION_FP16] = DTYPE_FP16,
        [PRECISION_FP8] = DTYPE_FP8,
    };
    const Recipe *recipe = recipe_from_name(usage->recipe);

    if (recipe->stored != recipe->compute && strategy <= STRATEGY_SHARD_OPTIMIZER)
        recipe = &recipe_zero;
    return recipe_with_precision(recipe, precisions[record->precision]);
}

/* ---- schedule ---- */

static guint virtual_stages(const Record *record, const Usage *usage, guint layers)
{
    const guint most = MIN(layers, MAX_CHUNKS) / record->pp;

    if (record->pp == 1 || most == 0)
        return 1;
    if (record->vpp > most) /* two layers less than chunks: each has twice as many, half of them */
        return MAX(1, record->vpp / ((record->vpp + most - 1) / most));
    if (record->vpp != 0)
        return record->vpp;
    if (strstr(record->software, "Interleaved") != NULL)
        return MIN(2, most);
    return usage->interleaves && layers % record->pp == 0 ? most : 1;
}

static Recompute recompute_of(const Record *record, const Usage *usage, const Model *model)
{
    if (record->recompute != UNKNOWN)
        return (Recompute)record->recompute;
    return usage->recomputes_gpt && (model->features & FEATURE_GATED) == 0 ? RECOMPUTE_FULL
                                                                           : RECOMPUTE_NONE;
}

/* Stages take blocks until they have their part of all parameters but the embedding's; what is
 * left, and the head, is the last one's (nanotron, pipeline_parallel: cost of blocks). */
static void balance_head(Plan *plan)
{
    const Model *model = plan->model;
    g_autoptr(GArray) params = model_unit_params(model, UNIT_BLOCK);
    const guint pp = plan->layout.size[AXIS_PP];
    double block = 0;
    guint left = model->layers;

    for (guint i = 0; i < params->len; i++) {
        const ParamShape *shape = &g_array_index(params, ParamShape, i);
        block += (double)shape->rows * (double)shape->cols;
    }
    const double head = (double)model->vocab * model->hidden / block;
    const guint most = (guint)ceil((model->layers + head) / pp);
    plan->chunk_layers = g_new0(guint16, pp);
    for (guint s = 0; s < pp; s++) {
        plan->chunk_layers[s] = (guint16)(s + 1 == pp ? left : MIN(most, left - (pp - 1 - s)));
        left -= plan->chunk_layers[s];
    }
    plan->schedule.chunk_layers = plan->chunk_layers;
}

static void set_schedule(const Record *record, const Usage *usage, guint dp, Plan *plan)
{
    const double micro_batches = (double)record->global_batch / ((double)dp * record->micro_batch);
    const guint chunks = virtual_stages(record, usage, plan->model->layers);

    plan->schedule = (Schedule){
        .micro_batch = record->micro_batch,
        .micro_batches = MAX(1, (guint)round(micro_batches)),
        .recompute = recompute_of(record, usage, plan->model),
        .kind = chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B,
        .virtual_stages = chunks,
    };
    plan->workload.global_batch = dp * record->micro_batch * plan->schedule.micro_batches;
    if (usage->balances_head && record->pp > 1 && record->pp <= plan->model->layers)
        balance_head(plan);
}

static gboolean splits_tokens(const Record *record, const Usage *usage)
{
    const guint64 tokens = (guint64)record->micro_batch * (record->seq_len / record->cp);

    return (record->sequence == UNKNOWN ? usage->sequence : record->sequence) != 0 &&
           tokens % record->tp == 0;
}

/* ---- framework ---- */

/* Where no micro-batch begins after another's backward pass, the device has caught up at the peak.
 * Beside that parts of the playbook's sweep hold nothing, on which no column has a word but the
 * layout: two stages, and stages with tp 32 (a block takes 0.1 s and more there, whatever its size)
 * or on more than 256 GPUs.  Its script, scaling_benchmarks.py, ran two stages apart, and what has
 * stages again after a change. */
static gboolean host_waits(const Plan *plan, guint gpus)
{
    const guint pp = plan->layout.size[AXIS_PP], tp = plan->layout.size[AXIS_TP];

    return plan->schedule.micro_batches <= pp || pp == 2 || (pp > 1 && (tp >= 32 || gpus > 256));
}

static const char *framework_of(const Usage *usage, const Plan *plan, guint gpus)
{
    return usage->waiting != NULL && host_waits(plan, gpus) ? usage->waiting : usage->framework;
}

/* ---- all ---- */

/* NULL, or what a prediction needs and the row lacks. */
static const char *missing(const Record *record)
{
    if (record->precision == UNKNOWN)
        return "precision not stated";
    if (record->precision > PRECISION_FP8)
        return "precision not planned";
    if (record->gpus == 0 || record->tp == 0 || record->pp == 0)
        return "no gpus, tp or pp";
    if (record->micro_batch == 0 || record->global_batch == 0)
        return "no micro_batch or global_batch";
    return NULL;
}

static const char *fill(const Record *record, const char *topologies_dir, Plan *plan)
{
    const Usage *usage = usage_of(record);
    const guint others = record->tp * record->pp * record->cp;
    const guint dp = record->dp != 0 ? record->dp : record->gpus / others;
    const char *reason = NULL;

    if (dp * others != record->gpus)
        return "axes do not multiply to gpus";
    plan->model = shape_model(record, record->tp, &reason);
    plan->topology = plan->model == NULL ? NULL : cluster_of(record, topologies_dir, &reason);
    if (plan->topology == NULL)
        return reason;
    plan->layout.size[AXIS_PP] = record->pp;
    plan->layout.size[AXIS_CP] = record->cp;
    plan->layout.size[AXIS_TP] = record->tp;
    plan->layout.ep = MAX(record->ep, 1);
    plan->workload.seq_len = record->seq_len;
    set_schedule(record, usage, dp, plan);
    set_sharding(record, usage, dp, plan);
    plan->framework = framework_from_name(framework_of(usage, plan, record->gpus));
    plan->workload.recipe = recipe_of(record, usage, plan->sharding.strategy);
    plan->sequence_parallel = splits_tokens(record, usage);
    plan_set_target(plan);
    return NULL;
}

Plan *setup_plan(const Record *given, const char *topologies_dir, double *share, char **reason)
{
    Record record = *given;
    g_autoptr(Plan) plan = plan_new();

    record.cp = MAX(record.cp, 1);
    const char *lack = missing(&record);
    if (lack == NULL)
        lack = fill(&record, topologies_dir, plan);
    if (lack != NULL) {
        *reason = g_strdup(lack);
        return NULL;
    }
    const Choice choice = plan_choice(plan);
    const Verdict verdict = legality_check(&choice, NULL);
    if (verdict != VERDICT_OK) {
        *reason = g_strdup_printf("illegal: %s", verdict_name(verdict));
        return NULL;
    }
    *share = (double)record.global_batch / plan->workload.global_batch;
    return g_steal_pointer(&plan);
}

gboolean setup_recomputes(const Record *record)
{
    return usage_of(record)->recomputes && record->recompute == UNKNOWN;
}

gboolean setup_halves(const Record *record)
{
    return usage_of(record)->halves_selective &&
           (record->recompute == RECOMPUTE_SELECTIVE || record->recompute == UNKNOWN);
}

gboolean setup_weighs_first(const Record *record)
{
    return usage_of(record)->weighs_first;
}
