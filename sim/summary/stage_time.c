/* How short a step can be.  Streams run side by side, so a step is never shorter than any path
 * through what must follow each other: ops of a stream, ops that wait for one another. */
#include "sim/summary/stage.h"

#include <math.h>

/* ---- all that a stage does ---- */

typedef struct {
    double all_s, moving_s;
    double gather_s[2], reduce_s[2]; /* by stream: of all units, of experts */
    double replicate_s, experts_s;
    double data_s; /* of units that are not sharded */
    double files_s, copies_s[2];
} Work;

static void add_work(Work *work, const SegmentSums *sums, double calls)
{
    work->all_s += calls * sums->all_s;
    work->moving_s += calls * sums->moving_s;
    work->experts_s += calls * sums->experts_s;
    work->files_s += calls * sums->files_s;
    for (guint way = 0; way < 2; way++)
        work->copies_s[way] += calls * sums->copies_s[way];
}

static void add_reduce(Work *work, const SegmentSums *sums, double calls, gboolean experts)
{
    add_work(work, sums, calls);
    work->reduce_s[experts ? 1 : 0] += calls * (sums->shard_s - sums->data_s);
    work->data_s += calls * sums->data_s;
    work->replicate_s += calls * sums->replicate_s;
}

static void add_unit_work(Work *work, const Stage *stage, const UnitCost *unit, double units,
                          guint64 gathers, gboolean experts)
{
    const double micro_batches = stage->micro_batches;

    add_work(work, &unit->gather, (double)gathers);
    add_work(work, &unit->update_gather, units);
    work->gather_s[experts ? 1 : 0] +=
        (double)gathers * unit->gather.shard_s + units * unit->update_gather.shard_s;
    add_work(work, &unit->norm, units);
    add_work(work, &unit->fetch, units);
    add_work(work, &unit->update, units);
    add_work(work, &unit->store, units);
    add_work(work, &unit->amax, units);
    add_reduce(work, &unit->reduce_last, units, experts);
    if (unit->gradient_bytes == 0 || stage->micro_batches == 1)
        return;
    add_reduce(work, &unit->reduce_first, units, experts);
    add_reduce(work, &unit->reduce_add, units * (micro_batches - 2), experts);
}

static Work stage_work(const Stage *stage)
{
    const StageCost *cost = stage->cost;
    const StageShape *shape = stage->shape;
    const double micro_batches = stage->micro_batches;
    Work work = {0};

    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        const double passes = micro_batches * shape->of_kind.of[k];

        add_work(&work, &cost->block[k]->forward.sums, passes);
        add_work(&work, &cost->block[k]->weights.sums, passes);
        for (guint lot = 0; lot < NUM_LOTS; lot++) {
            const guint blocks = counts_of(&shape->of_kind, k, lot);

            if (blocks > 0)
                add_work(&work, &stage_lot_cost(stage, lot)->block[k]->backward.sums,
                         micro_batches * blocks);
        }
    }
    add_work(&work, &cost->root.count_valid, micro_batches);
    if (stage_has_embedding(shape)) {
        add_work(&work, &cost->root.embed.sums, micro_batches);
        add_work(&work, &cost->root.embed_backward.sums, micro_batches);
    }
    if (stage_has_head(shape))
        add_work(&work, &cost->root.head.sums, micro_batches);
    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            const guint units = stage_num_units(stage, u, (Strategy)s);

            if (units > 0)
                add_unit_work(&work, stage, stage_unit(stage, u, (Strategy)s), units,
                              stage_block_gathers(stage, u, (Strategy)s), is_experts(shape, u));
        }
    if (stage_root(stage) != NULL)
        add_unit_work(&work, stage, stage_root(stage), 1, stage_root_gathers(stage), FALSE);
    add_work(&work, &stage->shards[shape->root_strategy]->clip, 1);
    work.all_s += stage->scalars->all_s;
    work.moving_s += stage->scalars->all_s;
    return work;
}

/* A stream a direction; a disk has one thread. */
static double work_copied_s(const Work *work)
{
    return MAX(work->files_s, MAX(work->copies_s[0], work->copies_s[1]));
}

/* Where nothing overlaps all follows each other; a queue runs one op of communication at a time;
 * else a stream does. */
double stage_busy_s(const Stage *stage, gboolean overlaps, gboolean one_queue)
{
    const Work work = stage_work(stage);
    const double copies_s = work_copied_s(&work);

    if (!overlaps)
        return MAX(work.all_s, copies_s);
    if (one_queue)
        return MAX(work.moving_s, copies_s);
    const double blocks_s = MAX(work.gather_s[0], MAX(work.reduce_s[0], work.replicate_s));
    const double experts_s = MAX(work.gather_s[1], MAX(work.reduce_s[1], work.experts_s));
    return MAX(MAX(blocks_s, experts_s), MAX(work.data_s, copies_s));
}

/* ---- a pass over a chunk, from its first compute op to its last ---- */

/* Gathers one after the other; the first has only its copy to wait for, not for its cast. */
static double chain_s(const SegmentSums *gather, double num)
{
    return gather->shard_moves_s + (num - 1) * gather->shard_s;
}

/* Gathered for each pass: after the first few, whose copies may have been free before, a unit's
 * gather follows the release of another of the same pass. */
static double gathered_pass_s(const Stage *stage, const SegmentPath *path, guint layers)
{
    const StageShape *shape = stage->shape;
    const Strategy strategy = shape->first_strategy;
    const guint kept = shape->kept_units[stage->shape->kind]
                                        [strategy]; /* not gathered, and with copies of their own */
    const guint ready = stage->spec->sharding->live_units + 2 * kept;

    if (!shape->uniform || strategy <= STRATEGY_SHARD_GRAD_OP || layers <= ready)
        return 0;
    return path->weights_until_s + path->weights_tail_s +
           chain_s(&stage_block(stage, strategy)->gather, layers - ready);
}

static double least_reduce_s(const Stage *stage, const UnitCost *unit)
{
    double least = unit->reduce_last.shard_s;

    if (stage->micro_batches > 1)
        least = MIN(least, unit->reduce_first.shard_s);
    return stage->micro_batches > 2 ? MIN(least, unit->reduce_add.shard_s) : least;
}

/* Of whichever micro-batch: what comes behind the reading of whole gradients. */
static double behind_reduce_s(const Stage *stage, const UnitCost *unit)
{
    const SegmentSums *least = stage->micro_batches > 1 ? &unit->reduce_first : &unit->reduce_last;

    return least->shard_s - least->shard_moves_s;
}

/* Reduced after each pass: of two copies of whole gradients the one is written that was reduced,
 * or rather read. */
static double reduced_pass_s(const Stage *stage, const SegmentPath *path, guint layers)
{
    enum { COPIES = 2 };
    const UnitCost *unit = stage_block(stage, stage->shape->first_strategy);

    if (!stage->shape->uniform || unit->gradient_bytes == 0 || layers <= COPIES)
        return 0;
    return path->gradients_until_s + path->gradients_tail_s +
           (layers - COPIES) * least_reduce_s(stage, unit) - behind_reduce_s(stage, unit);
}

static guint all_of(const Stage *stage, const BlockCounts *layers)
{
    guint all = 0;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        all += layers->of[k];
    return all;
}

/* Of a chunk's blocks; chains of gathers and reductions are known where they are of one unit. */
static double forward_pass_s(const Stage *stage, const BlockCounts *layers)
{
    const SegmentPath *path = &stage->cost->block[stage->shape->kind]->forward.path;
    double whole_s = 0;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        whole_s += layers->of[k] * stage->cost->block[k]->forward.path.whole_s;
    return MAX(whole_s, gathered_pass_s(stage, path, all_of(stage, layers)));
}

/* Backward's, the shortest of the lots that these blocks are of. */
static SegmentPath backward_path(const Stage *stage, const BlockCounts *layers, guint kind)
{
    SegmentPath path = stage->cost->block[kind]->backward.path;

    if (layers->rest[kind] == 0)
        return path;
    const SegmentPath *rest = &stage->rest->block[kind]->backward.path;
    if (layers->rest[kind] == layers->of[kind])
        return *rest;
    path.weights_until_s = MIN(path.weights_until_s, rest->weights_until_s);
    path.weights_tail_s = MIN(path.weights_tail_s, rest->weights_tail_s);
    path.gradients_until_s = MIN(path.gradients_until_s, rest->gradients_until_s);
    path.gradients_tail_s = MIN(path.gradients_tail_s, rest->gradients_tail_s);
    return path;
}

/* The gradient that a pass starts from may have come long before: from another stage. */
static double backward_pass_s(const Stage *stage, const BlockCounts *layers)
{
    const SegmentPath path = backward_path(stage, layers, stage->shape->kind);
    const gboolean from_before = stage->shape->place != STAGE_ONLY;
    double whole_s = 0, before_s = INFINITY;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        for (guint lot = 0; lot < NUM_LOTS; lot++) {
            const guint blocks = counts_of(layers, k, lot);

            if (blocks == 0)
                continue;
            const SegmentPath *own = &stage_lot_cost(stage, lot)->block[k]->backward.path;
            whole_s += blocks * own->whole_s;
            before_s = MIN(before_s, own->stream_s - own->whole_s);
        }
    return MAX(whole_s + (from_before ? before_s : 0),
               MAX(gathered_pass_s(stage, &path, all_of(stage, layers)),
                   reduced_pass_s(stage, &path, all_of(stage, layers))));
}

static double weights_pass_s(const Stage *stage, const BlockCounts *layers)
{
    double seconds = 0;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        seconds += layers->of[k] * stage->cost->block[k]->weights.path.stream_s;
    return seconds;
}

/* ---- blocks of other stages ---- */

static double forward_blocks_s(const Stage *stage, const BlockCounts *blocks)
{
    double seconds = 0;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        seconds += blocks->of[k] * stage->cost->block[k]->forward.path.whole_s;
    return seconds;
}

/* Of @chunks chunks, the first block of each of which is only waited for from where its gradient
 * comes: of whichever kind that is. */
static double backward_blocks_s(const Stage *stage, const BlockCounts *blocks, double chunks)
{
    double seconds = 0, earlier_s = 0;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        for (guint lot = 0; lot < (stage->rest == NULL ? LOT_REST : NUM_LOTS); lot++) {
            const SegmentPath *path = &stage_lot_cost(stage, lot)->block[k]->backward.path;

            seconds += counts_of(blocks, k, lot) * path->whole_s;
            earlier_s = MAX(earlier_s, path->whole_s - path->entry_s);
        }
    return seconds - chunks * earlier_s;
}

static BlockCounts counts_less(const Stage *stage, BlockCounts counts, const BlockCounts *less)
{
    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        counts.of[k] = (guint16)(counts.of[k] - less->of[k]);
        counts.rest[k] = (guint16)(counts.rest[k] - less->rest[k]);
    }
    return counts;
}

/* ---- a step ---- */

/* Compute of all micro-batches, from the first forward to the last backward. */
static double passes_s(const Stage *stage)
{
    const StageCost *cost = stage->cost;
    const StageShape *shape = stage->shape;
    double micro_batch_s = 0;

    for (guint i = 0; i < shape->sizes->len; i++) {
        const EqualChunks *size = &g_array_index(shape->sizes, EqualChunks, i);

        micro_batch_s += size->chunks * (forward_pass_s(stage, &size->layers) +
                                         backward_pass_s(stage, &size->layers) +
                                         weights_pass_s(stage, &size->layers));
    }
    if (stage_has_embedding(shape))
        micro_batch_s += cost->root.embed.path.stream_s + cost->root.embed_backward.path.stream_s;
    if (stage_has_head(shape))
        micro_batch_s += cost->root.head.path.stream_s;
    return stage->micro_batches * micro_batch_s;
}

/* And what follows of them in the next step. */
static double updates_s(const Stage *stage)
{
    double seconds = stage_root(stage) == NULL ? 0 : stage_root(stage)->update.all_s;

    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            const guint units = stage_num_units(stage, u, (Strategy)s);

            const UnitCost *unit = units > 0 ? stage_unit(stage, u, (Strategy)s) : NULL;

            if (unit != NULL)
                seconds += units * (unit->update.all_s + unit->amax.all_s);
        }
    return seconds;
}

/* All updates of a unit class work on two buffers: from the clip on, state is stored and fetched of
 * all units but two before the last update. */
static double copied_s(const Stage *stage)
{
    enum { BUFFERS = 2 };
    Work work = {0};

    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            const guint units = stage_num_units(stage, u, (Strategy)s);

            if (units <= BUFFERS)
                continue;
            const UnitCost *unit = stage_unit(stage, u, (Strategy)s);
            add_work(&work, &unit->fetch, units - BUFFERS);
            add_work(&work, &unit->store, units - BUFFERS);
        }
    return work_copied_s(&work);
}

static double embed_s(const Stage *stage)
{
    return stage_has_embedding(stage->shape) ? stage->cost->root.embed.path.stream_s : 0;
}

/* Before the first block's first forward comes what the stream of compute has to do: all updates.
 */
static double ready_s(const Stage *stage)
{
    return stage->shards[stage->shape->root_strategy]->clip.all_s +
           MAX(updates_s(stage), copied_s(stage)) +
           stage->micro_batches * stage->cost->root.count_valid.all_s + embed_s(stage);
}

/* The first chunk's first forward is done: by the stream of compute; and after its units, one after
 * the other, are updated and gathered. */
static double first_forward_s(const Stage *stage)
{
    const StageShape *shape = stage->shape;
    const UnitCost *root = stage_root(stage);
    const double computed_s = ready_s(stage) + forward_pass_s(stage, &shape->first_of_kind);

    if (!shape->uniform || !stage_has_embedding(shape) ||
        shape->root_strategy != shape->first_strategy)
        return computed_s;
    const UnitCost *block = stage_block(stage, shape->first_strategy);
    const double each_s = block->gather.shard_s + block->update_gather.shard_s;
    const double gathered_s = stage->shards[shape->root_strategy]->clip.all_s + root->update.all_s +
                              root->gather.shard_s + root->update_gather.shard_s +
                              shape->first_layers * each_s +
                              stage->cost->block[stage->shape->kind]->forward.path.weights_tail_s;
    return MAX(computed_s, gathered_s);
}

/* The root's norm comes first; only where its reduction comes last does it wait for that. */
static double norms_s(const Stage *stage, gboolean root_last)
{
    const Strategy strategy = stage->shape->first_strategy;
    double seconds = root_last ? stage_root(stage)->norm.all_s : 0;

    for (guint u = 0; u < stage->shape->num_units; u++)
        seconds += stage_num_units(stage, u, strategy) * stage_unit(stage, u, strategy)->norm.all_s;
    return seconds;
}

/* From the last backward to when the first chunk's last gradients are reduced: by how much their
 * reductions, one after the other, take longer than the pass that hides them.  Experts have a
 * stream of their own, so the root's reduction does not come behind theirs. */
static double late_reductions_s(const Stage *stage, gboolean root_last)
{
    const StageShape *shape = stage->shape;
    const BlockCounts *first = &shape->first_of_kind;
    const gboolean apart = stage->spec->schedule.kind == SCHEDULE_ZB_H1;
    const double hidden_s = apart ? weights_pass_s(stage, first) : backward_pass_s(stage, first);
    double until_s = INFINITY, shard_s = 0, replicate_s = INFINITY;

    for (guint k = 0; k < shape->num_kinds; k++) {
        if (first->of[k] == 0 || shape->sparse != model_kind_is_sparse(stage->spec->model, k))
            continue;
        const UnitCost *unit =
            stage_unit(stage, shape->sparse ? shape->num_kinds : k, shape->first_strategy);
        const SegmentPath path =
            apart ? stage->cost->block[k]->weights.path : backward_path(stage, first, k);

        until_s = MIN(until_s, path.gradients_until_s);
        shard_s += first->of[k] * unit->reduce_last.shard_s;
        replicate_s = MIN(replicate_s, unit->reduce_last.replicate_s);
    }
    if (isinf(until_s)) /* experts are in other chunks */
        return 0;
    const double chain_s = until_s + shard_s - hidden_s;
    if (!root_last || shape->sparse)
        return chain_s + replicate_s;
    const UnitCost *root = stage_root(stage);
    return chain_s + root->reduce_last.shard_s - stage->cost->root.embed_backward.path.stream_s +
           root->reduce_last.replicate_s;
}

/* Of the first chunk's first block, of whichever kind it is. */
static double first_block_reduce_s(const Stage *stage)
{
    const StageShape *shape = stage->shape;
    double least_s = INFINITY;

    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        if (shape->first_of_kind.of[k] > 0)
            least_s = MIN(least_s, stage_unit(stage, k, shape->first_strategy)->reduce_last.all_s);
    }
    return least_s;
}

/* From the last backward to the clip: the last unit's reduction, or those of the last pass; then
 * all norms. */
static double end_s(const Stage *stage)
{
    const StageShape *shape = stage->shape;
    const gboolean apart = stage->spec->schedule.kind == SCHEDULE_ZB_H1;
    const gboolean root_last = stage_has_embedding(shape) && !apart;
    const double last_s =
        root_last ? stage_root(stage)->reduce_last.all_s : first_block_reduce_s(stage);

    if (!shape->alike || (root_last && shape->root_strategy != shape->first_strategy))
        return stage->scalars->norm_s;
    return MAX(last_s, late_reductions_s(stage, root_last)) + norms_s(stage, root_last) +
           stage->scalars->norm_s;
}

/* Back to the first stage: a chunk each, the first block of which is only waited for from where
 * its gradient comes. */
static double back_s(const Stage *stage, const Stage *first)
{
    const StageShape *shape = stage->shape;
    const double before = shape->stage;
    const double weights = weights_pass_s(first, &first->shape->first_of_kind);

    const BlockCounts blocks = schedule_has_rest(&stage->spec->schedule)
                                   ? blocks_before(stage->spec, shape->layers_before)
                                   : shape->before_of_kind;

    return before * stage->exchange_s + backward_blocks_s(stage, &blocks, before) +
           first->cost->root.embed_backward.path.stream_s + weights + end_s(first);
}

/* Backward for weights that may come after the last backward for inputs. */
static double put_off_s(const Stage *stage)
{
    const guint most = MIN(stage->micro_batches, stage->spec->layout.size[AXIS_PP]);

    return most * weights_pass_s(stage, &stage->shape->of_kind);
}

/* Of what is gathered for each pass, all but what had free copies waits for the first pass's first
 * release, one after the other. */
static double gathers_s(const Stage *stage)
{
    const StageShape *shape = stage->shape;
    const Strategy strategy = shape->first_strategy;
    const SegmentPath *forward = &stage->cost->block[stage->shape->kind]->forward.path;
    const SegmentPath backward = backward_path(stage, &shape->of_kind, stage->shape->kind);

    if (!shape->uniform || strategy <= STRATEGY_SHARD_GRAD_OP ||
        stage->spec->schedule.kind == SCHEDULE_ZB_H1)
        return 0;
    const double gathers = (double)stage_block_gathers(stage, stage->shape->kind, strategy);
    const double ready =
        stage->spec->sharding->live_units + shape->kept_units[stage->shape->kind][strategy];
    return forward->weights_until_s + backward.weights_tail_s +
           chain_s(&stage_block(stage, strategy)->gather, gathers - ready);
}

/* Of the model, with which of them are the rest. */
static BlockCounts before_last_chunk(const Stage *stage)
{
    const ProgramSpec *spec = stage->spec;
    const guint last = all_of(stage, &stage->shape->last_of_kind);

    return schedule_has_rest(&spec->schedule) ? blocks_before(spec, spec->model->layers - last)
                                              : stage->shape->before_last_of_kind;
}

/* The first micro-batch's way to the end of the model: through all chunks but the last. */
static double way_s(const Stage *stage, const Stage *first)
{
    const ProgramSpec *spec = stage->spec;
    const guint chunks = schedule_chunks(&spec->schedule, spec->layout.size[AXIS_PP]);

    if (chunks == 1)
        return 0;
    const BlockCounts before =
        counts_less(stage, before_last_chunk(stage), &first->shape->first_of_kind);
    return first_forward_s(first) + (chunks - 1) * stage->exchange_s +
           forward_blocks_s(stage, &before);
}

/* Reductions of every micro-batch, one after the other, from the first backward on. */
static double reductions_s(const Stage *stage, const Stage *first)
{
    const StageShape *shape = stage->shape;
    const UnitCost *block = stage_block(stage, shape->first_strategy);
    const double start_s =
        shape->place == STAGE_ONLY ? first_forward_s(stage) : way_s(stage, first);
    double each_s = block->reduce_last.shard_s;

    if (!shape->uniform || block->gradient_bytes == 0)
        return 0;
    if (stage->micro_batches > 1)
        each_s +=
            block->reduce_first.shard_s + (stage->micro_batches - 2) * block->reduce_add.shard_s;
    const SegmentPath backward = backward_path(stage, &shape->of_kind, stage->shape->kind);
    return start_s + backward.gradients_until_s + shape->layers * each_s + block->norm.all_s +
           stage->scalars->norm_s;
}

/* The last stage's last chunk: once the first micro-batch is there all of them pass it, and the
 * last one goes back through all chunks. */
static double last_chunk_s(const Stage *stage, const Stage *first)
{
    const ProgramSpec *spec = stage->spec;
    const guint pp = spec->layout.size[AXIS_PP], chunks = schedule_chunks(&spec->schedule, pp);
    const BlockCounts *layers = &stage->shape->last_of_kind; /* of this stage: with its rest */
    const BlockCounts before = before_last_chunk(stage);
    const double each_s = forward_pass_s(stage, layers) + stage->cost->root.head.path.stream_s +
                          backward_pass_s(stage, layers);

    return way_s(stage, first) + stage->micro_batches * each_s + (chunks - 1) * stage->exchange_s +
           backward_blocks_s(stage, &before, chunks - 1) +
           first->cost->root.embed_backward.path.stream_s + end_s(first);
}

/* When the first micro-batch comes from the stage before. */
static double arrival_s(const Stage *stage, const Stage *first)
{
    const BlockCounts between =
        counts_less(stage, stage->shape->before_of_kind, &first->shape->first_of_kind);

    return first_forward_s(first) + stage->shape->stage * stage->exchange_s +
           forward_blocks_s(stage, &between);
}

/* ---- what compute loses to traffic ---- */

/* Compute of all micro-batches where nothing is waited for. */
static double streamed_s(const Stage *stage)
{
    const StageCost *cost = stage->cost;
    double seconds = 0;

    if (stage_has_embedding(stage->shape))
        seconds += cost->root.embed.path.stream_s + cost->root.embed_backward.path.stream_s;
    if (stage_has_head(stage->shape))
        seconds += cost->root.head.path.stream_s;
    for (guint k = 0; k < stage->shape->num_kinds; k++)
        for (guint lot = 0; lot < (stage->rest == NULL ? LOT_REST : NUM_LOTS); lot++) {
            const BlockCost *block = stage_lot_cost(stage, lot)->block[k];

            seconds += counts_of(&stage->shape->of_kind, k, lot) *
                       (block->forward.path.stream_s + block->backward.path.stream_s +
                        block->weights.path.stream_s);
        }
    return stage->micro_batches * seconds;
}

/* To gathers of blocks that are issued after the first compute of a step: not those of the first
 * use, and of what is prefetched beside it. */
static double lost_to_gathers_s(const Stage *stage)
{
    const guint early = stage->spec->sharding->prefetch + 1;
    double seconds = 0, longest_s = 0;

    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            if (stage_num_units(stage, u, (Strategy)s) == 0)
                continue;
            const double each_s = stage_unit(stage, u, (Strategy)s)->gather.shard_moves_s;
            seconds += (double)stage_block_gathers(stage, u, (Strategy)s) * each_s;
            longest_s = MAX(longest_s, each_s);
        }
    return stage->framework->gather_exposed * MAX(0, seconds - early * longest_s);
}

/* To reductions of blocks: before the first norm. */
static double lost_to_reductions_s(const Stage *stage)
{
    double seconds = 0;

    for (guint s = 0; s < NUM_STRATEGIES; s++)
        for (guint u = 0; u < stage->shape->num_units; u++) {
            const guint units = stage_num_units(stage, u, (Strategy)s);
            Work work = {0};

            if (units == 0)
                continue;
            add_unit_work(&work, stage, stage_unit(stage, u, (Strategy)s), units, 0,
                          is_experts(stage->shape, u));
            seconds += work.reduce_s[0] + work.reduce_s[1] + work.replicate_s + work.data_s;
        }
    return stage->framework->reduce_exposed * seconds;
}

/* From clip to clip: all compute of this stage once the first micro-batch is there, and what it
 * loses meanwhile; then its norms, or the way back. */
static double lossy_path_s(const Stage *stage, const Stage *first)
{
    const gboolean is_first = stage->shape->stage == 0;
    const double start_s = is_first ? ready_s(stage) - embed_s(stage) : arrival_s(stage, first);
    const double computed_s = start_s + streamed_s(stage) + lost_to_gathers_s(stage);
    const double own_s =
        computed_s + lost_to_reductions_s(stage) + norms_s(stage, FALSE) + stage->scalars->norm_s;

    return is_first ? own_s : MAX(own_s, computed_s - put_off_s(stage) + back_s(stage, first));
}

static double lossless_path_s(const Stage *stage, const Stage *first)
{
    const StageShape *shape = stage->shape;
    const double own_forward_s = forward_pass_s(stage, &shape->first_of_kind);
    const double rest_s = passes_s(stage) - own_forward_s - embed_s(stage);
    const double start_s = first_forward_s(stage), reduced_s = reductions_s(stage, first);

    if (shape->stage == 0) {
        const double gathered_s = ready_s(stage) + gathers_s(stage);

        return MAX(reduced_s, MAX(start_s + rest_s, gathered_s) + end_s(stage));
    }
    const double arrived_s = arrival_s(stage, first);
    const double computed_s = MAX(start_s, arrived_s + own_forward_s) + rest_s;
    const double back = back_s(stage, first);
    const double path_s = MAX(MAX(computed_s + end_s(stage), computed_s - put_off_s(stage) + back),
                              MAX(reduced_s, arrived_s + gathers_s(stage) + back));
    return stage_has_head(shape) ? MAX(path_s, last_chunk_s(stage, first)) : path_s;
}

double stage_path_s(const Stage *stage, const Stage *first)
{
    const double path_s = lossless_path_s(stage, first);
    const gboolean loses =
        stage->framework->gather_exposed > 0 || stage->framework->reduce_exposed > 0;

    return loses ? MAX(path_s, lossy_path_s(stage, first)) : path_s;
}
