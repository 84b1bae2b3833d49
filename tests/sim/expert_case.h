/* Choices of small mixtures of experts. */
#pragma once

#include "sim/search/search.h"
#include "tests/sim/family_case.h"

/* Of expert_cases. */
enum {
    MIXTRAL,
    QWEN,
    EVERY_SECOND,
    LATENT,
    DEEPSEEK,
    LATENT_ALONE,
    MINIMAX,
    INDEXED,
    DBRX,
    QWEN_SHARED,
    GPT_OSS
};

/* @tp, cp and ep beside dp_shard; recipe zero on a CPU. */
static inline Case expert_case(Model *model, guint shard, guint cp, guint tp, guint ep)
{
    Case one = case_of(model, 1, shard, 1);

    one.layout.size[AXIS_CP] = cp;
    one.layout.size[AXIS_TP] = tp;
    one.layout.ep = ep;
    if (model->latent.top_keys != 0)
        one.context = CONTEXT_ALL_GATHER;
    one.sequence_parallel = TRUE;
    return one;
}

/* The index space of that name; of it the bytes of one copy of each tensor. */
static inline guint find_space(const Program *program, const char *name)
{
    for (guint s = 1; s < program->spaces->len; s++)
        if (g_str_equal(g_array_index(program->spaces, Space, s).name, name))
            return s;
    return NO_SPACE;
}

static inline guint64 space_copy_bytes(const Program *program, const char *name)
{
    const guint space = find_space(program, name);
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++)
        if (program_tensor(program, t)->space == space)
            bytes += tensor_copy_bytes(program_tensor(program, t));
    return bytes;
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
