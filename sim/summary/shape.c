#include "sim/summary/shape.h"

#include <string.h>

/* Of the first @blocks: every so many from a first one on. */
static guint sparse_before(const Model *model, guint blocks)
{
    const Experts *experts = &model->experts;

    if (experts->count == 0 || blocks <= experts->first)
        return 0;
    return (blocks - experts->first - 1) / experts->every + 1;
}

static void add_blocks(const Model *model, LayerRange range, guint16 *of)
{
    const guint last = range.first + range.count;

    if (model->kind_of == NULL) {
        const guint sparse = sparse_before(model, last) - sparse_before(model, range.first);

        of[0] = (guint16)(of[0] + range.count - sparse);
        of[1] = (guint16)(of[1] + sparse);
        return;
    }
    for (guint i = range.first; i < last; i++)
        of[model->kind_of[i]]++;
}

static LayerRange chunk_range(const ProgramSpec *spec, guint chunk)
{
    return schedule_chunk(&spec->schedule, spec->model->layers, spec->layout.size[AXIS_PP], chunk);
}

static void add_rest(const ProgramSpec *spec, guint chunk, LayerRange range, guint16 *rest)
{
    const guint stage = chunk % spec->layout.size[AXIS_PP];
    const guint first = MIN(spec->schedule.recompute_layers[stage], range.count);

    add_blocks(spec->model, (LayerRange){range.first + first, range.count - first}, rest);
}

BlockCounts chunk_blocks(const ProgramSpec *spec, guint chunk)
{
    const LayerRange range = chunk_range(spec, chunk);
    BlockCounts counts = {.of = {0}};

    add_blocks(spec->model, range, counts.of);
    if (schedule_has_rest(&spec->schedule))
        add_rest(spec, chunk, range, counts.rest);
    return counts;
}

BlockCounts blocks_before(const ProgramSpec *spec, guint block)
{
    BlockCounts before = {.of = {0}};

    add_blocks(spec->model, (LayerRange){0, block}, before.of);
    for (guint c = 0, layers = 0; schedule_has_rest(&spec->schedule) && layers < block; c++) {
        const LayerRange range = chunk_range(spec, c);

        add_rest(spec, c, range, before.rest);
        layers += range.count;
    }
    return before;
}

static void note_size(StageShape *shape, BlockCounts layers)
{
    const EqualChunks one = {layers, 1};

    for (guint i = 0; i < shape->sizes->len; i++) {
        EqualChunks *size = &g_array_index(shape->sizes, EqualChunks, i);

        if (memcmp(&size->layers, &layers, sizeof layers) != 0)
            continue;
        size->chunks++;
        return;
    }
    g_array_append_val(shape->sizes, one);
}

static void note_kept(StageShape *shape, const KeptUnits *one)
{
    shape->kept_units[one->of][one->strategy]++;
    for (guint i = 0; i < shape->kept->len; i++) {
        KeptUnits *kept = &g_array_index(shape->kept, KeptUnits, i);

        if (kept->chunk != one->chunk || kept->of != one->of || kept->strategy != one->strategy)
            continue;
        kept->units++;
        return;
    }
    g_array_append_vals(shape->kept, one, 1);
}

static gboolean can_be_kept(Strategy strategy)
{
    return strategy == STRATEGY_FULL_SHARD || strategy == STRATEGY_HYBRID_SHARD;
}

static void note_unit(StageShape *shape, const ProgramSpec *spec, guint chunk, guint block,
                      guint of)
{
    const guint unit = (is_experts(shape, of) ? EXPERTS_UNITS : ROOT_UNIT) + block + 1;
    const Strategy strategy = sharding_unit_strategy(spec->sharding, unit);
    const KeptUnits kept = {chunk, 1, of, strategy};

    shape->units[of][strategy]++;
    shape->alike = shape->alike && strategy == shape->first_strategy;
    if (can_be_kept(strategy) && sharding_unit_kept(spec->sharding, unit, spec->model->layers))
        note_kept(shape, &kept);
}

static void note_block(StageShape *shape, const ProgramSpec *spec, guint chunk, guint block)
{
    const guint kind = model_block_kind(spec->model, block);

    shape->plain &= kind == shape->kind;
    note_unit(shape, spec, chunk, block, kind);
    if (!model_kind_is_sparse(spec->model, kind))
        return;
    note_unit(shape, spec, chunk, block, shape->num_kinds);
    shape->sparse = TRUE;
    shape->plain = FALSE;
}

static void note_counts(StageShape *shape, const BlockCounts *counts)
{
    const gboolean is_first = shape->sizes->len == 0;
    guint of_lot[NUM_LOTS] = {0};

    for (guint k = 0; k < shape->num_kinds; k++) {
        shape->of_kind.of[k] = (guint16)(shape->of_kind.of[k] + counts->of[k]);
        shape->of_kind.rest[k] = (guint16)(shape->of_kind.rest[k] + counts->rest[k]);
        for (guint lot = 0; lot < NUM_LOTS; lot++) {
            const guint blocks = counts_of(counts, k, lot);

            of_lot[lot] += blocks;
            shape->most_of[k][lot] = MAX(shape->most_of[k][lot], blocks);
            shape->least_of[k][lot] = is_first ? blocks : MIN(shape->least_of[k][lot], blocks);
        }
    }
    for (guint lot = 0; lot < NUM_LOTS; lot++)
        shape->most_of_lot[lot] = MAX(shape->most_of_lot[lot], of_lot[lot]);
}

static void note_chunk(StageShape *shape, const ProgramSpec *spec, guint chunk)
{
    const LayerRange range =
        schedule_chunk(&spec->schedule, spec->model->layers, spec->layout.size[AXIS_PP], chunk);

    const BlockCounts counts = chunk_blocks(spec, chunk);

    shape->layers += range.count;
    shape->most_layers = MAX(shape->most_layers, range.count);
    note_counts(shape, &counts);
    note_size(shape, counts);
    for (guint i = 0; i < range.count; i++)
        note_block(shape, spec, chunk, range.first + i);
}

StageShape *stage_shape_new(const ProgramSpec *spec, guint stage)
{
    const guint pp = spec->layout.size[AXIS_PP], chunks = schedule_chunks(&spec->schedule, pp);
    const LayerRange first = chunk_range(spec, stage), last = chunk_range(spec, chunks - 1);
    StageShape *shape = g_new0(StageShape, 1);

    shape->stage = stage;
    shape->place = stage_place(stage, pp);
    shape->sizes = g_array_new(FALSE, FALSE, sizeof(EqualChunks));
    shape->kept = g_array_new(FALSE, FALSE, sizeof(KeptUnits));
    shape->first_layers = first.count;
    shape->first_of_kind = chunk_blocks(spec, stage);
    shape->layers_before = first.first;
    shape->before_of_kind = blocks_before(spec, first.first);
    shape->last_of_kind = chunk_blocks(spec, chunks - 1);
    if (!schedule_has_rest(&spec->schedule))
        shape->before_last_of_kind = blocks_before(spec, last.first);
    shape->root_strategy = sharding_unit_strategy(spec->sharding, ROOT_UNIT);
    shape->first_strategy = sharding_unit_strategy(spec->sharding, first.first + 1);
    shape->num_kinds = model_num_kinds(spec->model);
    shape->num_units = shape->num_kinds + (model_num_sparse(spec->model) > 0 ? 1 : 0);
    shape->kind = model_block_kind(spec->model, first.first);
    shape->alike = shape->plain = TRUE;
    for (guint chunk = stage; chunk < chunks; chunk += pp)
        note_chunk(shape, spec, chunk);
    shape->uniform = shape->alike && shape->plain;
    return shape;
}

void stage_shape_free(StageShape *shape)
{
    if (shape == NULL)
        return;
    g_array_unref(shape->sizes);
    g_array_unref(shape->kept);
    g_free(shape);
}
