/* Which layouts of all axes a test runs: one level of every factor, drawn so that few runs meet
 * every pair of levels of two factors that can meet at all. */
#pragma once

#include "sim/input/workload.h"
#include "sim/layout/legality.h"
#include "sim/program/compile.h"
#include "tests/exec/layout_case.h"
#include "tests/exec/pairs.h"

#include <string.h>

/* 60 sequences of 8 tokens: most numbers of ranks and micro-batches divide them, and cp 4 cuts a
 * sequence into single tokens.  4 layers make 4 stages, or 2 of 2 chunks. */
enum { WIDE_BATCH = 60, WIDE_SEQ = 8, WIDE_LAYERS = 4, WIDE_MOST_LEVELS = 5 };

typedef enum {
    WIDE_PP,
    WIDE_CP,
    WIDE_TP,
    WIDE_REPLICATE,
    WIDE_STRATEGY,
    WIDE_SCHEDULE,
    WIDE_STAGES,
    WIDE_MICRO_BATCHES,
    WIDE_RECOMPUTE,
    WIDE_SEQUENCE,
    WIDE_CONTEXT,
    WIDE_MODEL,
    WIDE_FORM,
    WIDE_ACCUMULATE,
    WIDE_TRAINING,
    WIDE_UNITS,
    WIDE_ORDER,
    NUM_WIDE
} WideFactor;

typedef struct {
    guint level[NUM_WIDE];
} Wide;

static const guint wide_pp[] = {1, 2, 3, 4}, wide_cp[] = {1, 2, 4}, wide_tp[] = {1, 2, 4};
static const guint wide_replicate[] = {1, 2, 3}, wide_micro_batches[] = {1, 2, 3, 5};
static const Strategy wide_strategies[] = {STRATEGY_NO_SHARD, STRATEGY_SHARD_OPTIMIZER,
                                           STRATEGY_SHARD_GRAD_OP, STRATEGY_FULL_SHARD};

/* What is compared with one rank's run, and how closely (DESIGN 10): losses, and norms.  In bf16
 * rounding alone moves a norm of these tiny models by some percent. */
static const struct {
    const Recipe *recipe;
    DType gradient, reduce;
    Optimizer optimizer;
    double lr, clip_norm, loss_tolerance, norm_tolerance;
} wide_trainings[] = {
    {&recipe_fp32, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_SGD, 0.1, 0, 1e-5, 1e-5},
    {&recipe_fp32, DTYPE_FP32, DTYPE_FP32, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-4, 1e-4},
    {&recipe_zero, DTYPE_BF16, DTYPE_BF16, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-2, 1e-1},
    {&recipe_zero, DTYPE_FP32, DTYPE_BF16, OPTIMIZER_ADAMW, 0.003, 1.0, 1e-2, 1e-1},
};

static inline const Recipe *wide_recipe(guint training)
{
    return recipe_with_gradients(wide_trainings[training].recipe, wide_trainings[training].gradient,
                                 wide_trainings[training].reduce);
}

static const struct {
    guint num;
    UnitOverride overrides[2];
} wide_units[] = {
    {.num = 0},
    {1, {{0, 0, STRATEGY_NO_SHARD, -1}}},
    {2, {{1, 2, STRATEGY_SHARD_GRAD_OP, -1}, {3, 3, -1, TRUE}}},
};

static const struct {
    guint prefetch, live_units;
    gboolean keep_root, keep_last;
} wide_orders[] = {{1, 2, TRUE, TRUE}, {0, 1, FALSE, FALSE}, {2, 4, FALSE, TRUE}};

/* Of all blocks, or of some by stage. */
static const struct {
    Recompute kind;
    const guint16 *layers;
} wide_recomputes[] = {
    {RECOMPUTE_NONE, NULL},
    {RECOMPUTE_SELECTIVE, NULL},
    {RECOMPUTE_FULL, NULL},
    {RECOMPUTE_SELECTIVE, (const guint16[]){1, 0, 1, 0}},
    {RECOMPUTE_FULL, (const guint16[]){2, 1, 0, 1}},
};

static const guint16 wide_uneven[5][4] = {{4}, {4}, {1, 3}, {1, 1, 2}, {1, 1, 1, 1}};

static inline guint wide_levels(WideFactor factor, guint num_models)
{
    static const guint levels[NUM_WIDE] = {
        [WIDE_PP] = G_N_ELEMENTS(wide_pp),
        [WIDE_CP] = G_N_ELEMENTS(wide_cp),
        [WIDE_TP] = G_N_ELEMENTS(wide_tp),
        [WIDE_REPLICATE] = G_N_ELEMENTS(wide_replicate),
        [WIDE_STRATEGY] = G_N_ELEMENTS(wide_strategies),
        [WIDE_SCHEDULE] = NUM_SCHEDULES,
        [WIDE_STAGES] = 2,
        [WIDE_MICRO_BATCHES] = G_N_ELEMENTS(wide_micro_batches),
        [WIDE_RECOMPUTE] = G_N_ELEMENTS(wide_recomputes),
        [WIDE_SEQUENCE] = 2,
        [WIDE_CONTEXT] = NUM_CONTEXT_KINDS,
        [WIDE_FORM] = NUM_FORMS,
        [WIDE_ACCUMULATE] = 2,
        [WIDE_TRAINING] = G_N_ELEMENTS(wide_trainings),
        [WIDE_UNITS] = G_N_ELEMENTS(wide_units),
        [WIDE_ORDER] = G_N_ELEMENTS(wide_orders),
    };

    return factor == WIDE_MODEL ? num_models : levels[factor];
}

static inline Sharding wide_sharding(const Wide *wide)
{
    const guint order = wide->level[WIDE_ORDER], units = wide->level[WIDE_UNITS];
    Sharding sharding = {
        .strategy = wide_strategies[wide->level[WIDE_STRATEGY]],
        .form = (Form)wide->level[WIDE_FORM],
        .prefetch = wide_orders[order].prefetch,
        .live_units = wide_orders[order].live_units,
        .keep_root = wide_orders[order].keep_root,
        .keep_last = wide_orders[order].keep_last,
        .accumulate_sharded = wide->level[WIDE_ACCUMULATE] == 0,
        .num_overrides = wide_units[units].num,
    };

    memcpy(sharding.overrides, wide_units[units].overrides, sizeof wide_units[0].overrides);
    return sharding;
}

/* FALSE when the factors make no mesh of @ranks ranks, or not this batch. */
static inline gboolean wide_spec(const Wide *wide, guint ranks, const Model *model,
                                 LayoutParts *parts, ProgramSpec *spec)
{
    const guint pp = wide_pp[wide->level[WIDE_PP]], cp = wide_cp[wide->level[WIDE_CP]];
    const guint tp = wide_tp[wide->level[WIDE_TP]];
    const guint replicate = wide_replicate[wide->level[WIDE_REPLICATE]];
    const guint others = pp * cp * tp * replicate;
    const guint micro_batches = wide_micro_batches[wide->level[WIDE_MICRO_BATCHES]];
    const guint training = wide->level[WIDE_TRAINING];
    const guint data_ranks = ranks / (pp * cp * tp);

    if (ranks % others != 0 || WIDE_BATCH % (data_ranks * micro_batches) != 0)
        return FALSE;
    *parts = (LayoutParts){.workload = {WIDE_BATCH, WIDE_SEQ, wide_recipe(training),
                                        wide_trainings[training].optimizer, 0},
                           .sharding = wide_sharding(wide)};
    *spec = (ProgramSpec){
        .model = model,
        .workload = &parts->workload,
        .layout = {.size = {pp, replicate, ranks / others, cp, tp}},
        .sharding = &parts->sharding,
        .schedule = {.micro_batch = WIDE_BATCH / (data_ranks * micro_batches),
                     .micro_batches = micro_batches,
                     .recompute = wide_recomputes[wide->level[WIDE_RECOMPUTE]].kind,
                     .recompute_layers = wide_recomputes[wide->level[WIDE_RECOMPUTE]].layers,
                     .kind = (ScheduleKind)wide->level[WIDE_SCHEDULE],
                     .virtual_stages = wide->level[WIDE_SCHEDULE] == SCHEDULE_INTERLEAVED ? 2 : 1},
        .sequence_parallel = wide->level[WIDE_SEQUENCE] == 1,
        .context = (ContextKind)wide->level[WIDE_CONTEXT],
        .device = DEVICE_CPU,
        .threads = 1,
    };
    if (wide->level[WIDE_STAGES] == 1 && spec->schedule.virtual_stages == 1)
        spec->schedule.chunk_layers = wide_uneven[pp];
    sharding_normalise(&parts->sharding, &spec->layout, &spec->schedule);
    return TRUE;
}

static inline gboolean wide_is_legal(const Wide *wide, guint ranks, const Model *model)
{
    LayoutParts parts;
    ProgramSpec spec;

    if (!wide_spec(wide, ranks, model, &parts, &spec))
        return FALSE;
    const Choice choice = {model,          &parts.workload,        &spec.layout, &parts.sharding,
                           &spec.schedule, spec.sequence_parallel, spec.context};
    return legality_check(&choice, NULL) == VERDICT_OK;
}

static inline char *wide_text(const Wide *wide, const ProgramSpec *spec)
{
    g_autofree char *layout = layout_text(&spec->layout);
    g_autofree char *recompute =
        schedule_recompute_text(&spec->schedule, spec->layout.size[AXIS_PP]);
    const guint training = wide->level[WIDE_TRAINING];
    g_autofree char *recipe = recipe_text(wide_recipe(training));

    return g_strdup_printf(
        "model %u, %s, %s %s, %s v%u%s, %u x %u, recompute %s%s%s%s, %s %s, accumulate %s, "
        "units %u, order %u",
        wide->level[WIDE_MODEL], layout, strategy_name(spec->sharding->strategy),
        form_name(spec->sharding->form), schedule_name(spec->schedule.kind),
        spec->schedule.virtual_stages, spec->schedule.chunk_layers != NULL ? " uneven" : "",
        spec->schedule.micro_batches, spec->schedule.micro_batch, recompute,
        spec->layout.size[AXIS_TP] > 1 && spec->sequence_parallel ? ", sequence" : "",
        spec->layout.size[AXIS_CP] > 1 ? ", " : "",
        spec->layout.size[AXIS_CP] > 1 ? context_kind_name(spec->context) : "", recipe,
        optimizer_name(wide_trainings[training].optimizer),
        spec->sharding->accumulate_sharded ? "sharded" : "unsharded", wide->level[WIDE_UNITS],
        wide->level[WIDE_ORDER]);
}

/* ---- pairs ---- */

/* Of many legal draws the one with the most new pairs; FALSE when none has any.  The same on every
 * rank. */
static inline gboolean wide_draw(Pairs *pairs, GRand *random, guint ranks, Model *const *models,
                                 guint num_models, Wide *best)
{
    enum { DRAWS = 4000 };
    guint most = 0;

    for (guint i = 0; i < DRAWS; i++) {
        Wide drawn;

        for (guint f = 0; f < NUM_WIDE; f++)
            drawn.level[f] =
                (guint)g_rand_int_range(random, 0, (gint)wide_levels((WideFactor)f, num_models));
        const guint fresh = pairs_fresh(pairs, drawn.level, FALSE);
        if (fresh <= most || !wide_is_legal(&drawn, ranks, models[drawn.level[WIDE_MODEL]]))
            continue;
        *best = drawn;
        most = fresh;
    }
    if (most > 0)
        pairs_fresh(pairs, best->level, TRUE);
    return most > 0;
}
