#include "sim/summary/stage.h"

/* Of the blocks that compute nothing again where others do. */
static const StageCost *rest_cost(Known *known, const ProgramSpec *spec, StagePlace place)
{
    ProgramSpec none = *spec;

    if (!schedule_has_rest(&spec->schedule))
        return NULL;
    none.schedule.recompute = RECOMPUTE_NONE;
    return known_stage(known, &none, place);
}

static gboolean has_strategy(const StageShape *shape, Strategy strategy)
{
    guint units = strategy == shape->root_strategy ? 1 : 0;

    for (guint u = 0; u < shape->num_units; u++)
        units += shape->units[u][strategy];
    return units > 0;
}

void stage_update_shape(Stage *stage, Known *known, guint index)
{
    Sharding whole = *stage->spec->sharding;
    ProgramSpec spec = *stage->spec;

    if (stage->taken == UNITS_LEAST) {
        whole.strategy = STRATEGY_NO_SHARD;
        spec.sharding = &whole;
    }
    stage->shape = known_shape(known, &spec, index);
}

Stage stage_of_units(Known *known, const ProgramSpec *spec, guint index, UnitsTaken taken)
{
    static const ScalarCost no_scalars;
    Stage stage = {
        .spec = spec,
        .taken = taken,
        .micro_batches = spec->schedule.micro_batches,
        .framework = known_framework(known),
    };

    stage_update_shape(&stage, known, index);
    if (taken == UNITS_LEAST) {
        stage.shards[STRATEGY_NO_SHARD] = known_least_shard(known, spec, stage.shape->place);
        stage.scalars = &no_scalars;
        return stage;
    }
    for (guint s = 0; s < NUM_STRATEGIES; s++)
        if (has_strategy(stage.shape, (Strategy)s))
            stage.shards[s] = known_shard(known, spec, stage.shape->place, (Strategy)s);
    return stage;
}

static void add_flow(Stage *stage, Known *known)
{
    stage->flows = known_flow(known, stage->spec);
    stage->flow = &stage->flows->stages[stage->shape->stage];
}

void stage_add_passes(Stage *stage, Known *known)
{
    const ProgramSpec *spec = stage->spec;

    add_flow(stage, known);
    if (stage->taken == UNITS_AS_PLANNED)
        stage->scalars = known_scalars(known, spec);
    stage->cost = known_stage(known, spec, stage->shape->place);
    stage->rest = rest_cost(known, spec, stage->shape->place);
    if (spec->layout.size[AXIS_PP] > 1)
        stage->exchange_s = known_exchange_s(known, spec, stage->cost->root.ring.residual);
}

gboolean stage_add_fewer(Stage *stage, Known *known)
{
    if (schedule_has_rest(&stage->spec->schedule))
        return FALSE;
    stage->cost = known_stage_below(known, stage->spec, stage->shape->place);
    if (stage->cost != NULL)
        add_flow(stage, known);
    return stage->cost != NULL;
}

Stage stage_of(Known *known, const ProgramSpec *spec, guint index, UnitsTaken taken)
{
    Stage stage = stage_of_units(known, spec, index, taken);

    stage_add_passes(&stage, known);
    return stage;
}

/* ---- calls ---- */

/* Kept ones are gathered anew when none of their micro-batches is in flight; the others for
 * forward and for backward, each time. */
guint64 stage_block_gathers(const Stage *stage, guint units, Strategy strategy)
{
    const StageShape *shape = stage->shape;
    const guint gathers = stage_unit(stage, units, strategy)->gathers;
    const guint num = stage_num_units(stage, units, strategy);
    const guint num_kept = shape->kept_units[units][strategy];
    guint64 calls = 0;

    if (strategy < STRATEGY_SHARD_GRAD_OP)
        return 0;
    if (strategy == STRATEGY_SHARD_GRAD_OP)
        return num;
    for (guint i = 0; num_kept > 0 && i < shape->kept->len; i++) {
        const KeptUnits *kept = &g_array_index(shape->kept, KeptUnits, i);

        if (kept->of == units && kept->strategy == strategy)
            calls += (guint64)kept->units * stage->flows->opened[kept->chunk];
    }
    return calls + (guint64)(num - num_kept) * gathers * stage->micro_batches;
}

/* For the embedding, and for the head; where the embedding is normed or projected, for its backward
 * pass too. */
guint64 stage_root_gathers(const Stage *stage)
{
    const Model *model = stage->spec->model;
    const gboolean kept = sharding_unit_kept(stage->spec->sharding, ROOT_UNIT, model->layers);
    const guint32 again = FEATURE_EMBED_NORM | FEATURE_EMBED_PROJECTED;
    const guint normed = (model->features & again) != 0 ? 1 : 0;
    const Strategy strategy = stage->shape->root_strategy;
    const guint64 micro_batches = stage->micro_batches;

    if (stage->shape->place == STAGE_MIDDLE || strategy < STRATEGY_SHARD_GRAD_OP)
        return 0;
    if (strategy == STRATEGY_SHARD_GRAD_OP)
        return 1;
    if (stage->shape->place == STAGE_ONLY)
        return kept ? micro_batches : (2 + normed) * micro_batches;
    if (stage->shape->place == STAGE_FIRST && normed != 0)
        return kept ? stage->flows->opened[0] : 2 * micro_batches;
    return micro_batches;
}

/* ---- state and volume ---- */

/* Adds up a number of bytes of each unit, @offset into its cost. */
static guint64 sum_units(const Stage *stage, gsize offset)
{
    const UnitCost *root = stage_root(stage);
    guint64 bytes = root == NULL ? 0 : G_STRUCT_MEMBER(guint64, root, offset);

    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            const guint units = stage_num_units(stage, u, (Strategy)s);

            if (units > 0)
                bytes +=
                    units * G_STRUCT_MEMBER(guint64, stage_unit(stage, u, (Strategy)s), offset);
        }
    return bytes;
}

guint64 stage_state_bytes(const Stage *stage)
{
    return sum_units(stage, G_STRUCT_OFFSET(UnitCost, state_bytes));
}

guint64 stage_beside_bytes(const Stage *stage)
{
    return sum_units(stage, G_STRUCT_OFFSET(UnitCost, beside_bytes));
}

static void add_volume(guint64 bytes[NUM_VOLUMES], const SegmentSums *sums, guint64 calls)
{
    for (guint v = 0; v < NUM_VOLUMES; v++)
        bytes[v] += calls * sums->volume_bytes[v];
}

static void add_unit_volume(const Stage *stage, const UnitCost *unit, guint64 units,
                            guint64 gathers, guint64 bytes[NUM_VOLUMES])
{
    const guint micro_batches = stage->micro_batches;

    add_volume(bytes, &unit->gather, gathers);
    add_volume(bytes, &unit->update_gather, units);
    add_volume(bytes, &unit->reduce_last, units);
    if (unit->gradient_bytes == 0 || micro_batches == 1)
        return;
    add_volume(bytes, &unit->reduce_first, units);
    add_volume(bytes, &unit->reduce_add, units * (micro_batches - 2));
}

void stage_volume(const Stage *stage, guint64 bytes[NUM_VOLUMES])
{
    const StageCost *cost = stage->cost;
    const StageShape *shape = stage->shape;
    const guint64 micro_batches = stage->micro_batches;

    for (guint v = 0; v < NUM_VOLUMES; v++)
        bytes[v] = 0;
    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        const guint64 passes = micro_batches * shape->of_kind.of[k];

        add_volume(bytes, &cost->block[k]->forward.sums, passes);
        add_volume(bytes, &cost->block[k]->weights.sums, passes);
        for (guint lot = 0; lot < NUM_LOTS; lot++) {
            const guint blocks = counts_of(&shape->of_kind, k, lot);

            if (blocks > 0)
                add_volume(bytes, &stage_lot_cost(stage, lot)->block[k]->backward.sums,
                           micro_batches * blocks);
        }
    }
    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            const guint units = stage_num_units(stage, u, (Strategy)s);

            if (units > 0)
                add_unit_volume(stage, stage_unit(stage, u, (Strategy)s), units,
                                stage_block_gathers(stage, u, (Strategy)s), bytes);
        }
    if (stage_root(stage) != NULL) {
        add_unit_volume(stage, stage_root(stage), 1, stage_root_gathers(stage), bytes);
        add_volume(bytes, &stage->shards[shape->root_strategy]->tied_reduce, 1);
    }
    if (stage_has_embedding(shape)) {
        add_volume(bytes, &cost->root.embed.sums, micro_batches);
        add_volume(bytes, &cost->root.embed_backward.sums, micro_batches);
    }
    if (stage_has_head(shape))
        add_volume(bytes, &cost->root.head.sums, micro_batches);
    bytes[VOLUME_ALL_REDUCE] += stage->scalars->volume_bytes;
    bytes[VOLUME_EXCHANGE] +=
        (guint64)(stage->flow->activations_received + stage->flow->gradients_received) *
        cost->root.ring.residual;
}
