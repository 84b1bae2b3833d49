#include "sim/summary/reduce.h"

#include <string.h>

static UnitTraits unit_traits(const ProgramSpec *spec, guint unit)
{
    return (UnitTraits){
        .strategy = sharding_unit_strategy(spec->sharding, unit),
        .is_kept = sharding_unit_kept(spec->sharding, unit, spec->model->layers),
    };
}

BlockTraits block_traits(const ProgramSpec *spec, guint chunk, LayerRange range, guint within)
{
    const guint unit = range.first + within + 1, pp = spec->layout.size[AXIS_PP];
    const guint kind = model_block_kind(spec->model, range.first + within);
    const gboolean is_sparse = model_kind_is_sparse(spec->model, kind);

    return (BlockTraits){
        .kind = kind,
        .is_sparse = is_sparse,
        .is_again = schedule_recomputes(&spec->schedule, pp, chunk, within),
        .block = unit_traits(spec, unit),
        .experts = unit_traits(spec, is_sparse ? EXPERTS_UNITS + unit : unit),
    };
}

/* ---- layers ---- */

typedef struct {
    const ProgramSpec *spec;
    guint stage, before, after; /* and the stages that stay on both sides of it */
    Reduced *reduced;
    GArray *left; /* BlockTraits, of the blocks that stay */
} Reducer;

static gboolean are_equal(UnitTraits a, UnitTraits b)
{
    return a.strategy == b.strategy && a.is_kept == b.is_kept;
}

static gboolean is_like(const BlockTraits *a, const BlockTraits *b)
{
    return a->kind == b->kind && a->is_again == b->is_again && are_equal(a->block, b->block) &&
           are_equal(a->experts, b->experts);
}

/* Of a run of blocks that are alike: more than can be gathered at once, and than are under way
 * behind them.  (With 5 where 1 can be gathered, one of 31,000 stages was found above its arena.)
 */
static guint most_of_run(const Sharding *sharding)
{
    enum { UNDER_WAY = 4, LEAST = 6 };

    return MAX(UNDER_WAY + sharding->prefetch + sharding->live_units, LEAST);
}

static guint run_length(const ProgramSpec *spec, guint chunk, LayerRange range, guint first)
{
    const BlockTraits traits = block_traits(spec, chunk, range, first);
    guint end = first;

    while (++end < range.count) {
        const BlockTraits next = block_traits(spec, chunk, range, end);

        if (!is_like(&traits, &next))
            break;
    }
    return end - first;
}

/* The first stages and the last ones stay. */
static guint whole_chunk(const Reducer *reducer, guint chunk)
{
    const guint pp = reducer->spec->layout.size[AXIS_PP];
    const guint left = reducer->before + 1 + reducer->after, stage = chunk % left;
    const guint whole = stage < reducer->before    ? stage
                        : stage == reducer->before ? reducer->stage
                                                   : pp - (left - stage);

    return chunk / left * pp + whole;
}

static void reduce_chunk(Reducer *reducer, guint index)
{
    const ProgramSpec *spec = reducer->spec;
    const guint chunk = whole_chunk(reducer, index);
    const LayerRange range =
        schedule_chunk(&spec->schedule, spec->model->layers, spec->layout.size[AXIS_PP], chunk);
    const guint before = reducer->left->len;
    guint run;

    for (guint i = 0; i < range.count; i += run) {
        run = run_length(spec, chunk, range, i);
        const BlockTraits traits = block_traits(spec, chunk, range, i);
        for (guint k = 0; k < MIN(run, most_of_run(spec->sharding)); k++)
            g_array_append_val(reducer->left, traits);
    }
    reducer->reduced->chunk_layers[index] = (guint16)(reducer->left->len - before);
}

/* Layers of a chunk that are computed again; @first: what is left of the chunks before it. */
static guint count_again(const Reducer *reducer, guint first, guint chunk)
{
    guint again = 0;

    for (guint i = 0; i < reducer->reduced->chunk_layers[chunk]; i++)
        again += g_array_index(reducer->left, BlockTraits, first + i).is_again ? 1 : 0;
    return again;
}

/* FALSE where no single number of a stage's layers says which of its chunks' are computed again. */
static gboolean reduce_recompute(Reducer *reducer)
{
    Reduced *reduced = reducer->reduced;
    const guint pp = reduced->spec.layout.size[AXIS_PP], stage = reduced->stage;
    const guint chunks = schedule_chunks(&reduced->spec.schedule, pp);
    guint16 *layers = &reduced->recompute_layers[stage];
    gboolean all_say = TRUE;

    if (!schedule_has_rest(&reducer->spec->schedule))
        return TRUE;
    for (guint c = 0, first = 0; c < chunks; first += reduced->chunk_layers[c++])
        if (c % pp == stage)
            *layers = (guint16)MAX(*layers, count_again(reducer, first, c));
    for (guint c = 0, first = 0; c < chunks; first += reduced->chunk_layers[c++])
        if (c % pp == stage)
            all_say &= count_again(reducer, first, c) == MIN(*layers, reduced->chunk_layers[c]);
    reduced->spec.schedule.recompute_layers = reduced->recompute_layers;
    return all_say;
}

/* FALSE where there is no room for one more. */
static gboolean override_unit(Sharding *to, guint unit, UnitTraits traits)
{
    const UnitOverride one = {unit, unit, (gint)traits.strategy, traits.is_kept ? 1 : 0};
    UnitOverride *newest = &to->overrides[MAX(to->num_overrides, 1) - 1];

    if (to->num_overrides > 0 && newest->last + 1 == unit && newest->strategy == one.strategy &&
        newest->keep == one.keep) {
        newest->last = unit;
        return TRUE;
    }
    if (to->num_overrides == MAX_UNIT_OVERRIDES)
        return FALSE;
    to->overrides[to->num_overrides++] = one;
    return TRUE;
}

/* Without overrides the last block still is the last. */
static gboolean reduce_units(Reducer *reducer)
{
    const Sharding *from = reducer->spec->sharding;
    Sharding *to = &reducer->reduced->sharding;

    if (from->num_overrides == 0)
        return TRUE;
    to->num_overrides = 0;
    override_unit(to, ROOT_UNIT, unit_traits(reducer->spec, ROOT_UNIT));
    for (guint i = 0; i < reducer->left->len; i++)
        if (!override_unit(to, i + 1, g_array_index(reducer->left, BlockTraits, i).block))
            return FALSE;
    for (guint i = 0; i < reducer->left->len; i++) {
        const BlockTraits *traits = &g_array_index(reducer->left, BlockTraits, i);

        if (traits->is_sparse && !override_unit(to, EXPERTS_UNITS + i + 1, traits->experts))
            return FALSE;
    }
    return TRUE;
}

static void reduce_kinds(Reducer *reducer)
{
    Reduced *reduced = reducer->reduced;

    reduced->kind_of = g_new(guint8, reducer->left->len);
    for (guint i = 0; i < reducer->left->len; i++)
        reduced->kind_of[i] = (guint8)g_array_index(reducer->left, BlockTraits, i).kind;
    reduced->model.kind_of = reduced->kind_of;
    reduced->model.layers = reducer->left->len;
}

static gboolean reduce_layers(Reducer *reducer)
{
    const ProgramSpec *to = &reducer->reduced->spec;

    for (guint c = 0; c < schedule_chunks(&to->schedule, to->layout.size[AXIS_PP]); c++)
        reduce_chunk(reducer, c);
    reduce_kinds(reducer);
    return reduce_recompute(reducer) && reduce_units(reducer);
}

/* ---- stages and micro-batches ---- */

/* The first and the last of a stage's micro-batches differ from those between. */
enum { ALONE = 4 };

/* With 1f1b as many are on their way as there are stages from this one on; zb_h1 has as many of all
 * stages wait for the gradients of their weights; interleaved, groups of pp pass all chunks; with
 * gpipe none goes back before the last has come. */
static guint most_micro_batches(const ProgramSpec *spec, guint stage)
{
    const guint pp = spec->layout.size[AXIS_PP];
    const guint most[NUM_SCHEDULES] = {
        [SCHEDULE_1F1B] = pp - stage - 1 + ALONE,
        [SCHEDULE_GPIPE] = ALONE,
        [SCHEDULE_INTERLEAVED] = 4 * pp,
        [SCHEDULE_ZB_H1] = 2 * pp + 1,
    };

    return most[spec->schedule.kind];
}

static guint reduced_micro_batches(const ProgramSpec *spec, guint stage)
{
    const guint all = spec->schedule.micro_batches, most = most_micro_batches(spec, stage);
    const guint group =
        spec->schedule.kind == SCHEDULE_INTERLEAVED ? spec->layout.size[AXIS_PP] : 1;

    return all <= most ? all : most + (all - most) % group;
}

guint fewest_micro_batches(const ProgramSpec *spec, guint stage)
{
    return spec->schedule.kind == SCHEDULE_GPIPE ? spec->schedule.micro_batches
                                                 : reduced_micro_batches(spec, stage);
}

/* Stages on both sides, of which only a few matter in a pipeline that fills: what is in flight, or
 * waits for its weights' gradients, lives in rings, which count whole.  Without overrides, and
 * where blocks are alike but for experts, all stages have the same units. */
static void reduce_stages(Reducer *reducer)
{
    static const struct {
        guint before, after;
    } most[NUM_SCHEDULES] = {[SCHEDULE_1F1B] = {1, 3},
                             [SCHEDULE_GPIPE] = {1, 1},
                             [SCHEDULE_INTERLEAVED] = {1, 1},
                             [SCHEDULE_ZB_H1] = {3, 3}};
    const ProgramSpec *spec = reducer->spec;
    Reduced *reduced = reducer->reduced;
    const ScheduleKind kind = spec->schedule.kind;
    const guint pp = spec->layout.size[AXIS_PP], stage = reducer->stage;
    const guint micro_batches = reduced_micro_batches(spec, stage);
    const gboolean fills = micro_batches >= most_micro_batches(spec, stage) &&
                           (kind != SCHEDULE_INTERLEAVED || micro_batches % pp == 0);

    reducer->before = stage;
    reducer->after = pp - stage - 1;
    if (fills && spec->sharding->num_overrides == 0 && spec->model->num_kinds <= 1) {
        reducer->before = MIN(reducer->before, most[kind].before);
        reducer->after = MIN(reducer->after, most[kind].after);
    }
    reduced->stage = reducer->before;
    reduced->spec.layout.size[AXIS_PP] = reducer->before + 1 + reducer->after;
    reduced->spec.schedule.micro_batches =
        fills ? most_micro_batches(&reduced->spec, reduced->stage) : micro_batches;
}

/* ---- all ---- */

void reduce_spec(const ProgramSpec *spec, guint stage, Reduced *reduced)
{
    g_autoptr(GArray) left = g_array_new(FALSE, FALSE, sizeof(BlockTraits));
    Reducer reducer = {.spec = spec, .stage = stage, .reduced = reduced, .left = left};

    *reduced = (Reduced){.spec = *spec, .model = *spec->model, .sharding = *spec->sharding};
    reduce_stages(&reducer);
    if (reduce_layers(&reducer)) {
        reduced->spec.model = &reduced->model;
        reduced->spec.sharding = &reduced->sharding;
        reduced->spec.schedule.chunk_layers = reduced->chunk_layers;
    } else {
        reduced->spec = *spec;
        reduced->spec.schedule.micro_batches = reduced_micro_batches(spec, stage);
        reduced->stage = stage;
    }
    reduced->spec.patterns = NULL;
}

void reduced_clear(Reduced *reduced)
{
    g_free(reduced->kind_of);
}

static guint num_passes(const ProgramSpec *spec, guint stage)
{
    const guint pp = spec->layout.size[AXIS_PP], chunks = schedule_chunks(&spec->schedule, pp);
    guint layers = 0;

    for (guint c = stage; c < chunks; c += pp)
        layers += schedule_chunk(&spec->schedule, spec->model->layers, pp, c).count;
    return layers * spec->schedule.micro_batches;
}

double reduced_by(const ProgramSpec *spec, guint stage)
{
    g_auto(Reduced) reduced = {0};

    reduce_spec(spec, stage, &reduced);
    return (double)num_passes(spec, stage) / num_passes(&reduced.spec, reduced.stage);
}
