#include "sim/explain_mend.h"

#include "sim/base/parallel.h"
#include "sim/base/text.h"
#include "sim/explain_change.h"
#include "sim/search/price.h"
#include "sim/search/search.h"

#include <string.h>

/* ---- the changes ---- */

static gboolean quarter_micro_batch(Plan *plan)
{
    return change_halve_micro_batch(plan) && change_halve_micro_batch(plan);
}

static gboolean eighth_of_micro_batch(Plan *plan)
{
    return quarter_micro_batch(plan) && change_halve_micro_batch(plan);
}

static gboolean shard_gradients(Plan *plan)
{
    if (plan->sharding.strategy != STRATEGY_SHARD_OPTIMIZER)
        return FALSE;
    plan->sharding.strategy = STRATEGY_SHARD_GRAD_OP;
    return TRUE;
}

/* What replicas hold each whole is sharded over them too. */
static gboolean shard_replicas(Plan *plan, Strategy strategy)
{
    guint *size = plan->layout.size;

    if (size[AXIS_DP_REPLICATE] == 1)
        return FALSE;
    size[AXIS_DP_SHARD] *= size[AXIS_DP_REPLICATE];
    size[AXIS_DP_REPLICATE] = 1;
    plan->sharding.strategy = strategy;
    return TRUE;
}

static gboolean replicas_shard_optimizer(Plan *plan)
{
    return plan->sharding.strategy == STRATEGY_NO_SHARD &&
           shard_replicas(plan, STRATEGY_SHARD_OPTIMIZER);
}

static gboolean replicas_shard_gradients(Plan *plan)
{
    return plan->sharding.strategy == STRATEGY_NO_SHARD &&
           shard_replicas(plan, STRATEGY_SHARD_GRAD_OP);
}

static gboolean replicas_shard_all(Plan *plan)
{
    return shard_replicas(plan, STRATEGY_FULL_SHARD);
}

/* Of as few layers as fit. */
static gboolean recompute_some(Plan *plan, Recompute recompute)
{
    g_autofree guint16 *none = g_new0(guint16, plan->layout.size[AXIS_PP]);

    return plan->schedule.recompute == RECOMPUTE_NONE &&
           plan_least_recompute(plan, recompute, none);
}

static gboolean recompute_some_attention(Plan *plan)
{
    return recompute_some(plan, RECOMPUTE_SELECTIVE);
}

static gboolean recompute_some_layers(Plan *plan)
{
    return recompute_some(plan, RECOMPUTE_FULL);
}

/* Of layers that all compute more again already it is no mend. */
static gboolean recompute_all(Plan *plan, Recompute recompute)
{
    const Schedule *schedule = &plan->schedule;

    return (schedule->recompute <= recompute || schedule_has_rest(schedule)) &&
           change_recompute(plan, recompute);
}

static gboolean recompute_all_attention(Plan *plan)
{
    return recompute_all(plan, RECOMPUTE_SELECTIVE);
}

static gboolean recompute_all_layers(Plan *plan)
{
    return recompute_all(plan, RECOMPUTE_FULL);
}

/* The optimiser's state, and (@all) the parameters; FALSE where they are off the device already. */
static gboolean offload(Plan *plan, Tier tier, gboolean all)
{
    Offload *offload = &plan->sharding.offload;
    MemoryTier memory;

    if ((all ? offload->parameters : offload->optimizer) != TIER_DEVICE ||
        !topology_memory(plan->topology, tier, &memory))
        return FALSE;
    offload->optimizer = tier;
    offload->parameters = all ? tier : offload->parameters;
    return TRUE;
}

static gboolean offload_optimizer(Plan *plan)
{
    return offload(plan, TIER_HOST, FALSE);
}

static gboolean offload_all(Plan *plan)
{
    return offload(plan, TIER_HOST, TRUE);
}

static gboolean offload_optimizer_to_disk(Plan *plan)
{
    return offload(plan, TIER_NVME, FALSE);
}

static const Change mends[] = {
    {"half the micro-batch", change_halve_micro_batch},
    {"a quarter of the micro-batch", quarter_micro_batch},
    {"an eighth of the micro-batch", eighth_of_micro_batch},
    {"shard_grad_op", shard_gradients},
    {"full_shard", change_gather_twice},
    {"shard_optimizer over the replicas", replicas_shard_optimizer},
    {"shard_grad_op over the replicas", replicas_shard_gradients},
    {"full_shard over the replicas", replicas_shard_all},
    {"recompute", recompute_some_attention},
    {"recompute", recompute_some_layers},
    {"recompute", recompute_all_attention},
    {"recompute", recompute_all_layers},
    {"--offload optimizer=host", offload_optimizer},
    {"--offload optimizer=host,parameters=host", offload_all},
    {"--offload optimizer=nvme", offload_optimizer_to_disk},
};

/* ---- ranks ---- */

/* More ranks shard what there is: the same batch where its micro-batches can be dealt to them, else
 * as many times as large. */
static gboolean multiply_ranks(Plan *plan, guint times)
{
    Schedule *schedule = &plan->schedule;

    plan->layout.size[AXIS_DP_SHARD] *= times;
    if (schedule->micro_batches % times == 0)
        schedule->micro_batches /= times;
    else
        plan->workload.global_batch *= times;
    plan_set_target(plan);
    return TRUE;
}

static gboolean double_ranks(Plan *plan)
{
    return multiply_ranks(plan, 2);
}

static gboolean quadruple_ranks(Plan *plan)
{
    return multiply_ranks(plan, 4);
}

static gboolean ranks_times_8(Plan *plan)
{
    return multiply_ranks(plan, 8);
}

static gboolean ranks_times_16(Plan *plan)
{
    return multiply_ranks(plan, 16);
}

static const struct {
    guint times;
    Change change;
} rank_mends[] = {
    {2, {"twice the ranks", double_ranks}},
    {4, {"4 times the ranks", quadruple_ranks}},
    {8, {"8 times the ranks", ranks_times_8}},
    {16, {"16 times the ranks", ranks_times_16}},
};

/* Where they hold less each, and the networks join so many. */
static gboolean may_have_ranks(const Plan *plan, guint times)
{
    const Topology *topology = plan->topology;
    const guint most = MIN(topology_max_gpus(topology), SEARCH_MOST_GPUS);

    return plan->sharding.strategy != STRATEGY_NO_SHARD && topology->gpu.kind == DEVICE_CUDA &&
           plan->gpus <= most / times;
}

/* ---- the smallest ---- */

typedef struct {
    const Plan *plan;
    Plan *changed[G_N_ELEMENTS(mends)];
} Each;

static Plan *mended(const Change *change, const Plan *plan)
{
    g_autoptr(Plan) changed = change_apply(change, plan);

    if (changed != NULL)
        plan_price_quickly(changed);
    return g_steal_pointer(&changed);
}

static void mend_one(gpointer data, guint i, guint worker)
{
    Each *each = data;

    (void)worker;
    each->changed[i] = mended(&mends[i], each->plan);
}

/* What fits before what does not; of those the faster, of these the smaller. */
static gboolean is_better(const Plan *plan, const Plan *than)
{
    if (than == NULL || (plan->reasons->len == 0) != (than->reasons->len == 0))
        return than == NULL || plan->reasons->len == 0;
    return plan->reasons->len == 0 ? plan->prediction.step_seconds < than->prediction.step_seconds
                                   : plan->prediction.memory_total < than->prediction.memory_total;
}

/* Takes @plan. */
static void offer(Mend *mend, const char *name, Plan *plan)
{
    if (!is_better(plan, mend->plan)) {
        plan_free(plan);
        return;
    }
    mend_clear(mend);
    *mend = (Mend){g_strdup(name), plan};
}

/* The fewest that make it fit. */
static void offer_ranks(Mend *mend, const Plan *plan)
{
    for (guint i = 0; i < G_N_ELEMENTS(rank_mends) && may_have_ranks(plan, rank_mends[i].times);
         i++) {
        Plan *more = mended(&rank_mends[i].change, plan);

        if (more == NULL)
            continue;
        offer(mend, rank_mends[i].change.name, more);
        if (mend->plan == more && more->reasons->len == 0)
            return;
    }
}

/* What it is called where the change found it out. */
static void name_recompute(Mend *mend, const Plan *plan)
{
    g_autofree char *before = plan_recompute_text(plan);
    g_autofree char *after = plan_recompute_text(mend->plan);

    if (g_str_equal(before, after))
        return;
    g_free(mend->name);
    mend->name = g_strconcat("recompute ", after, NULL);
}

Mend mend_find(const Plan *plan)
{
    Each each = {.plan = plan};
    Mend mend = {0};

    parallel_run(G_N_ELEMENTS(mends), mend_one, &each);
    for (guint i = 0; i < G_N_ELEMENTS(mends); i++)
        if (each.changed[i] != NULL)
            offer(&mend, mends[i].name, each.changed[i]);
    if (mend.plan == NULL || mend.plan->reasons->len > 0)
        offer_ranks(&mend, plan);
    if (mend.plan == NULL)
        return mend;
    plan_price(mend.plan);
    name_recompute(&mend, plan);
    return mend;
}

void mend_clear(Mend *mend)
{
    g_clear_pointer(&mend->name, g_free);
    g_clear_pointer(&mend->plan, plan_free);
}

/* ---- text ---- */

const char *mend_reason(const Plan *plan)
{
    static const char KIND[] = "memory: ";
    const char *reason = g_ptr_array_index(plan->reasons, 0);

    return g_str_has_prefix(reason, KIND) ? reason + strlen(KIND) : reason;
}

/* "+0.8% time", or of how many ranks. */
static char *cost_text(const Plan *mended, const Plan *beside)
{
    const gboolean batch = mended->workload.global_batch != beside->workload.global_batch;

    if (mended->gpus == beside->gpus)
        return g_strdup_printf("%+.1f%% time", 100 * explain_time_change(mended, beside));
    return g_strdup_printf("%u%s", mended->gpus, batch ? ", and as many times the batch" : "");
}

void mend_print(const Mend *mend, const Plan *beside, const char *indent)
{
    static const char NONE[] =
        "no single change of micro-batch, strategy, recomputation, offload or ranks makes it fit";

    if (mend->plan == NULL) {
        g_print("%s%s\n", indent, NONE);
        return;
    }
    if (mend->plan->reasons->len > 0) {
        g_print("%s%s; the nearest, %s: %s\n", indent, NONE, mend->name, mend_reason(mend->plan));
        return;
    }
    g_autofree char *cost = cost_text(mend->plan, beside);
    g_autofree char *memory = bytes_text(mend->plan->prediction.memory_total);
    g_print("%s%s makes it fit: %s, %s\n", indent, mend->name, cost, memory);
}

/* ---- JSON ---- */

JsonObject *mend_answer(const Mend *mend, const Plan *beside, gboolean nearest)
{
    JsonObject *object;

    if (mend->plan == NULL || (mend->plan->reasons->len > 0) != nearest)
        return NULL;
    object = change_answer(mend->name, mend->plan);
    json_object_set_int_member(object, "gpus", mend->plan->gpus);
    json_object_set_int_member(object, "global_batch", mend->plan->workload.global_batch);
    json_object_set_double_member(object, "time_change", explain_time_change(mend->plan, beside));
    return object;
}
