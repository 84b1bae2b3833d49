#include "sim/backtest/setup.h"

#include "sim/backtest/cluster.h"
#include "sim/backtest/shape.h"
#include "sim/backtest/usage.h"
#include "sim/cost/framework.h"
#include "sim/search/price.h"

#include <math.h>
#include <string.h>

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
    recipe = recipe_with_precision(recipe, precisions[record->precision]);
    return usage->reduces_half ? recipe_with_gradients(recipe, recipe->gradient, recipe->compute)
                               : recipe;
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
    if (usage->recomputed != NULL)
        return RECOMPUTE_NONE;
    if (record->recompute != UNKNOWN)
        return (Recompute)record->recompute;
    return usage->recomputes_gpt && (model->features & FEATURE_GATED) == 0 ? RECOMPUTE_FULL
                                                                           : RECOMPUTE_NONE;
}

/* Parts of the playbook's sweep are of code that awaits each message by polling (nanotron 67c5ebb6,
 * 27 December 2024), on which no column has a word.  Its script, scaling_benchmarks.py, has the
 * model of 80 blocks alone, and those before have it not; it ran again what had stages before that
 * change: so it is with tp 32 and on more than 256 GPUs. */
static gboolean host_waits(const Plan *plan, guint gpus)
{
    return plan->layout.size[AXIS_PP] > 1 &&
           (plan->layout.size[AXIS_TP] >= 32 || gpus > 256 || plan->model->layers == 80);
}

/* Stages take blocks until what was taken costs more than their part of all blocks and the head;
 * the one that does so is still theirs (nanotron, models/base.py: build_model(), and
 * models/llama.py: get_block_compute_costs()).  In a tie that is one more, as its code of December
 * 2024 says and runs of that code show; in older ones the stage ends there.  Left out: stages that
 * are left without any block, which have one here. */
static void balance_head(gboolean ties_take_more, Plan *plan)
{
    const Model *model = plan->model;
    const guint pp = plan->layout.size[AXIS_PP];
    const guint64 block = 4ul * model->heads * model->head_dim + 3ul * model->ffn;
    const guint64 all = model->layers * block + model->vocab;
    guint taken = 0;

    plan->chunk_layers = g_new0(guint16, pp);
    for (guint s = 0; s < pp; s++) {
        const guint64 part = (s + 1) * all - (ties_take_more ? 0 : 1);
        const guint upto = (guint)(part / (pp * block)) + 1;
        const guint most = model->layers - (pp - 1 - s);
        const guint end = s + 1 == pp ? model->layers : CLAMP(upto, taken + 1, most);

        plan->chunk_layers[s] = (guint16)(end - taken);
        taken = end;
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
        balance_head(host_waits(plan, record->gpus), plan);
}

static gboolean splits_tokens(const Record *record, const Usage *usage)
{
    const guint64 tokens = (guint64)record->micro_batch * (record->seq_len / record->cp);

    return (record->sequence == UNKNOWN ? usage->sequence : record->sequence) != 0 &&
           tokens % record->tp == 0;
}

/* ---- framework ---- */

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
