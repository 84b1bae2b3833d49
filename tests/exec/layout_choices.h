/* Which layouts a test runs: one level of every factor, drawn so that few runs meet every pair of
 * levels of two factors. */
#pragma once

#include "sim/input/workload.h"
#include "sim/layout/layout.h"
#include "sim/layout/legality.h"
#include "sim/program/compile.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/pairs.h"

#include <string.h>

/* 48 sequences: over 1, 2, 3 or 4 ranks, 1, 2 and 4 micro-batches divide. */
enum { CHOICE_BATCH = 48, CHOICE_SEQ = 4, CHOICE_LAYERS = 3, MAX_LEVELS = 16 };

typedef enum {
    FACTOR_MESH, /* strategy and mesh */
    FACTOR_FORM,
    FACTOR_MICRO_BATCHES,
    FACTOR_TRAINING,
    FACTOR_MODEL,
    FACTOR_ACCUMULATE,
    FACTOR_RECOMPUTE,
    FACTOR_ORDER,
    FACTOR_UNITS,
    NUM_FACTORS
} Factor;

typedef struct {
    guint level[NUM_FACTORS];
} Choices;

/* ---- levels ---- */

typedef struct {
    Strategy strategy;
    guint replicate, shard;
} ChoiceMesh;

/* All that @ranks ranks can form; returns how many. */
static inline guint choice_meshes(guint ranks, ChoiceMesh meshes[MAX_LEVELS])
{
    guint num = 0;

    meshes[num++] = (ChoiceMesh){STRATEGY_NO_SHARD, ranks, 1};
    for (guint shard = ranks; shard > 0; shard--) {
        if (ranks % shard != 0)
            continue;
        meshes[num++] = (ChoiceMesh){STRATEGY_SHARD_OPTIMIZER, ranks / shard, shard};
        meshes[num++] = (ChoiceMesh){STRATEGY_SHARD_GRAD_OP, ranks / shard, shard};
        meshes[num++] = (ChoiceMesh){STRATEGY_FULL_SHARD, ranks / shard, shard};
    }
    return num;
}

static const guint choice_micro_batches[] = {1, 2, 4};

/* What is compared with one rank's run, and how closely: losses (DESIGN 10), and norms and tensors.
 * In bf16 rounding alone moves this model's norm of step 7 by 1.5%, and its losses by 2e-4. */
static const struct {
    const Recipe *recipe;
    DType gradient, reduce;
    Optimizer optimizer;
    double lr, clip_norm, loss_tolerance, tolerance;
} choice_trainings[] = {
    {&recipe_fp32, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_SGD, 0.1, 0, 1e-5, 1e-5},
    {&recipe_fp32, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-4, 1e-4},
    {&recipe_zero, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-3, 4e-2},
    {&recipe_zero, DTYPE_BF16, DTYPE_FP32, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-3, 4e-2},
    {&recipe_fsdp2, DTYPE_FP32, DTYPE_BF16, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-3, 4e-2},
    {&recipe_megatron, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-3, 4e-2},
};

static inline const Recipe *choice_recipe(guint training)
{
    return recipe_with_gradients(choice_trainings[training].recipe,
                                 choice_trainings[training].gradient,
                                 choice_trainings[training].reduce);
}

static const struct {
    guint prefetch, live_units;
    gboolean keep_root, keep_last;
} choice_orders[] = {
    {1, 2, TRUE, TRUE},  {0, 1, FALSE, FALSE}, {2, 3, TRUE, FALSE},
    {1, 4, FALSE, TRUE}, {3, 4, TRUE, TRUE},
};

static const struct {
    guint num;
    UnitOverride overrides[2];
} choice_units[] = {
    {.num = 0},
    {1, {{0, 0, STRATEGY_NO_SHARD, -1}}},
    {2, {{1, 1, STRATEGY_SHARD_GRAD_OP, -1}, {3, 3, -1, FALSE}}},
    {2, {{2, 3, STRATEGY_SHARD_OPTIMIZER, -1}, {1, 1, -1, TRUE}}},
    {2, {{0, 0, STRATEGY_SHARD_GRAD_OP, -1}, {2, 2, STRATEGY_NO_SHARD, -1}}},
};

static const struct {
    Recompute kind;
    const guint16 *layers;
} choice_recomputes[] = {
    {RECOMPUTE_NONE, NULL},
    {RECOMPUTE_SELECTIVE, NULL},
    {RECOMPUTE_FULL, NULL},
    {RECOMPUTE_SELECTIVE, (const guint16[]){2}},
    {RECOMPUTE_FULL, (const guint16[]){1}},
};

static const char *const choice_models[] = {"tied llama", "untied llama", "gpt2"};

static inline guint choice_levels(Factor factor, guint ranks)
{
    ChoiceMesh meshes[MAX_LEVELS];

    switch (factor) {
    case FACTOR_MESH:
        return choice_meshes(ranks, meshes);
    case FACTOR_MICRO_BATCHES:
        return G_N_ELEMENTS(choice_micro_batches);
    case FACTOR_TRAINING:
        return G_N_ELEMENTS(choice_trainings);
    case FACTOR_MODEL:
        return G_N_ELEMENTS(choice_models);
    case FACTOR_ORDER:
        return G_N_ELEMENTS(choice_orders);
    case FACTOR_RECOMPUTE:
        return G_N_ELEMENTS(choice_recomputes);
    case FACTOR_UNITS:
        return G_N_ELEMENTS(choice_units);
    default:
        return 2;
    }
}

/* ---- a choice ---- */

static inline ProgramSpec choice_spec(const Choices *c, guint ranks, const Model *model,
                                      LayoutParts *parts)
{
    ChoiceMesh meshes[MAX_LEVELS];
    const guint order = c->level[FACTOR_ORDER], training = c->level[FACTOR_TRAINING];
    const guint micro_batches = choice_micro_batches[c->level[FACTOR_MICRO_BATCHES]];

    choice_meshes(ranks, meshes);
    const ChoiceMesh *mesh = &meshes[c->level[FACTOR_MESH]];
    *parts = (LayoutParts){
        .workload = {CHOICE_BATCH, CHOICE_SEQ, choice_recipe(training),
                     choice_trainings[training].optimizer, 0},
        .sharding =
            {
                .strategy = mesh->strategy,
                .form = (Form)c->level[FACTOR_FORM],
                .prefetch = choice_orders[order].prefetch,
                .live_units = choice_orders[order].live_units,
                .keep_root = choice_orders[order].keep_root,
                .keep_last = choice_orders[order].keep_last,
                .accumulate_sharded = c->level[FACTOR_ACCUMULATE] == 0,
                .num_overrides = choice_units[c->level[FACTOR_UNITS]].num,
            },
    };
    memcpy(parts->sharding.overrides, choice_units[c->level[FACTOR_UNITS]].overrides,
           sizeof choice_units[0].overrides);
    const ProgramSpec spec = {
        .model = model,
        .workload = &parts->workload,
        .layout = {.size = {1, mesh->replicate, mesh->shard, 1, 1}},
        .sharding = &parts->sharding,
        .schedule = {.micro_batch = CHOICE_BATCH / ranks / micro_batches,
                     .micro_batches = micro_batches,
                     .recompute = choice_recomputes[c->level[FACTOR_RECOMPUTE]].kind,
                     .recompute_layers = choice_recomputes[c->level[FACTOR_RECOMPUTE]].layers},
        .device = DEVICE_CPU,
        .threads = 1,
    };
    sharding_normalise(&parts->sharding, &spec.layout, &spec.schedule);
    return spec;
}

static inline gboolean choice_is_legal(const Choices *c, guint ranks, const Model *model)
{
    LayoutParts parts;
    const ProgramSpec spec = choice_spec(c, ranks, model, &parts);
    const Choice choice = {model, &parts.workload, &spec.layout, &parts.sharding, &spec.schedule,
                           TRUE,  spec.context};

    return legality_check(&choice, NULL) == VERDICT_OK;
}

static inline char *choice_text(const Choices *c, guint ranks)
{
    ChoiceMesh meshes[MAX_LEVELS];

    choice_meshes(ranks, meshes);
    const ChoiceMesh *mesh = &meshes[c->level[FACTOR_MESH]];
    const guint training = c->level[FACTOR_TRAINING], again = c->level[FACTOR_RECOMPUTE];
    const Schedule schedule = {.recompute = choice_recomputes[again].kind,
                               .recompute_layers = choice_recomputes[again].layers};
    g_autofree char *recompute = schedule_recompute_text(&schedule, 1);
    g_autofree char *recipe = recipe_text(choice_recipe(training));
    return g_strdup_printf(
        "%s %ux%u %s, %u micro-batches, %s %s, %s, accumulate %s, recompute %s, order %u, units %u",
        strategy_name(mesh->strategy), mesh->replicate, mesh->shard,
        form_name((Form)c->level[FACTOR_FORM]),
        choice_micro_batches[c->level[FACTOR_MICRO_BATCHES]], recipe,
        optimizer_name(choice_trainings[training].optimizer), choice_models[c->level[FACTOR_MODEL]],
        c->level[FACTOR_ACCUMULATE] == 0 ? "sharded" : "unsharded", recompute,
        c->level[FACTOR_ORDER], c->level[FACTOR_UNITS]);
}

/* ---- pairs ---- */

/* Keeps the first @given factors of @c and draws the others: of many draws, the legal one with the
 * most new pairs.  FALSE when none is legal.  The same on every rank. */
static inline gboolean choice_draw(Pairs *pairs, Choices *c, guint given, guint ranks,
                                   const Model *model)
{
    enum { DRAWS = 200 };
    g_autoptr(GRand) random = g_rand_new_with_seed(1);
    Choices best = *c;
    guint most = 0;
    gboolean any = FALSE;

    for (guint i = 0; i < DRAWS; i++) {
        Choices drawn = *c;

        for (guint f = given; f < NUM_FACTORS; f++)
            drawn.level[f] =
                (guint)g_rand_int_range(random, 0, (gint)choice_levels((Factor)f, ranks));
        const guint fresh = pairs_fresh(pairs, drawn.level, FALSE);
        if ((any && fresh <= most) || !choice_is_legal(&drawn, ranks, model))
            continue;
        best = drawn;
        most = fresh;
        any = TRUE;
    }
    *c = best;
    if (any)
        pairs_fresh(pairs, c->level, TRUE);
    return any;
}
