/* What benchmarks search, and the plan that they run: small-10m in fp32 on one rank. */
#pragma once

#include "sim/base/data_dirs.h"
#include "sim/search/price.h"
#include "sim/search/search.h"

/* All is chosen that a search can choose, in bf16; both are borrowed. */
static inline SearchRequest bench_request(const Model *model, const Topology *topology, guint gpus,
                                          guint batch)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = gpus,
        .global_batch = batch,
        .recipe = &recipe_zero,
        .strategy = -1,
        .recompute = -1,
        .schedule = -1,
        .context = -1,
        .sequence_parallel = TRUE,
        .sharding = sharding_default,
        .top = 10,
    };
}

/* One micro-batch a step; @topology is borrowed. */
static inline Plan *bench_plan(const Topology *topology, guint batch, guint seq, Tier optimizer,
                               guint threads)
{
    g_autofree char *models = data_dir("models");
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load("small-10m", models, &error);
    SearchRequest request = {
        .model = model,
        .topology = topology,
        .global_batch = batch,
        .seq_len = seq,
        .recipe = &recipe_fp32,
        .strategy = STRATEGY_NO_SHARD,
        .micro_batch = batch,
        .recompute = RECOMPUTE_NONE,
        .sharding = sharding_default,
    };

    request.sharding.offload.optimizer = optimizer;
    Plan *plan = model == NULL ? NULL : search_estimate(&request, &error);

    if (plan == NULL)
        g_error("%s", error->message);
    plan->threads = threads;
    plan_price(plan);
    return plan;
}
