/* Searches of small models, and plain loops over all that they may choose. */
#pragma once

#include "sim/search/search.h"
#include "tests/sim/plan_case.h"

static inline SearchRequest request_of(const Model *model, const Topology *topology, guint gpus)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = gpus,
        .seq_len = 16,
        .recipe = topology->gpu.kind == DEVICE_CPU ? &recipe_fp32 : &recipe_zero,
        .strategy = -1,
        .recompute = -1,
        .sharding = sharding_default,
        .top = 10,
    };
}

static inline void add_choice(const SearchRequest *request, GPtrArray *all, const Case *from)
{
    g_autofree char *topology = topology_print(request->topology);

    if (case_verdict(from, NULL) != VERDICT_OK)
        return;
    Plan *plan = case_plan(from, topology_parse(topology, "case", "", NULL));
    plan_price(plan);
    g_ptr_array_add(all, plan);
}

/* All strategies and schedules of one mesh. */
static inline void add_mesh(const SearchRequest *request, GPtrArray *all, guint replicate,
                            guint shard, guint tp)
{
    const guint data = replicate * shard;

    for (guint s = STRATEGY_NO_SHARD; s <= STRATEGY_FULL_SHARD; s++)
        for (guint recompute = 0; recompute < NUM_RECOMPUTES; recompute++)
            for (guint micro = 1; micro <= MAX(request->global_batch, 1); micro++) {
                const guint batch = request->global_batch != 0 ? request->global_batch : data;
                Case one = case_of((Model *)request->model, replicate, shard, 1);

                if ((s == STRATEGY_NO_SHARD) != (shard == 1) || batch % (data * micro) != 0)
                    continue;
                one.layout.size[AXIS_TP] = tp;
                one.workload =
                    (Workload){batch, request->seq_len, request->recipe, request->optimizer, 0};
                one.sharding = request->sharding;
                one.sharding.strategy = (Strategy)s;
                sharding_normalise(&one.sharding, &one.layout, &one.schedule);
                one.schedule = (Schedule){.micro_batch = micro,
                                          .micro_batches = batch / data / micro,
                                          .recompute = (Recompute)recompute};
                add_choice(request, all, &one);
            }
}

/* Plain loops over all that search may choose; every one priced. */
static inline GPtrArray *price_everything(const SearchRequest *request)
{
    GPtrArray *all = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);

    for (guint tp = 1; tp <= request->gpus; tp++)
        for (guint shard = 1; shard <= request->gpus; shard++)
            if (request->gpus % (tp * shard) == 0)
                add_mesh(request, all, request->gpus / tp / shard, shard, tp);
    return all;
}

/* With no batch asked for, layouts have different ones: the time of a sequence compares them. */
static inline double key_of(const SearchRequest *request, const Plan *plan)
{
    return request->sort == SORT_MEMORY
               ? (double)plan->prediction.memory_total
               : plan->prediction.step_seconds / plan->workload.global_batch;
}

static inline gint by_key(gconstpointer a, gconstpointer b, gpointer data)
{
    const double left = key_of(data, *(Plan *const *)a), right = key_of(data, *(Plan *const *)b);

    return left < right ? -1 : left > right;
}
