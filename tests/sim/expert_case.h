/* Choices of small mixtures of experts. */
#pragma once

#include "sim/search/search.h"
#include "tests/sim/family_case.h"

/* Of expert_cases. */
enum { MIXTRAL, QWEN, EVERY_SECOND, LATENT, DEEPSEEK, LATENT_ALONE, DBRX, QWEN_SHARED, GPT_OSS };

/* @tp, cp and ep beside dp_shard; recipe zero on a CPU. */
static inline Case expert_case(Model *model, guint shard, guint cp, guint tp, guint ep)
{
    Case one = case_of(model, 1, shard, 1);

    one.layout.size[AXIS_CP] = cp;
    one.layout.size[AXIS_TP] = tp;
    one.layout.ep = ep;
    one.sequence_parallel = TRUE;
    return one;
}

/* On 8 GPUs of two nodes: what is not fixed is searched. */
static inline SearchRequest request_for(const Model *model, const Topology *topology)
{
    return (SearchRequest){
        .model = model,
        .topology = topology,
        .gpus = 8,
        .global_batch = 8,
        .seq_len = 64,
        .recipe = &recipe_zero,
        .strategy = -1,
        .micro_batch = 1,
        .recompute = RECOMPUTE_NONE,
        .schedule = SCHEDULE_1F1B,
        .context = CONTEXT_RING,
        .fixed = {[AXIS_PP] = 1, [AXIS_CP] = 1},
        .sequence_parallel = TRUE,
        .sharding = sharding_default,
        .top = 1000,
    };
}
