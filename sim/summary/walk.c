#include "sim/summary/walk.h"

#include "sim/summary/stage.h"

/* When copies of a ring are free again: taken and given in turn. */
typedef struct {
    double *free_s;
    guint count, taken, given;
} Slots;

/* Streams on which units are gathered and reduced: when they are free. */
typedef struct {
    double gather_s, reduce_s;
} UnitStreams;

/* Units of one kind: all of a stage's blocks have one strategy. */
typedef struct {
    const UnitCost *cost; /* NULL: the stage has none */
    UnitStreams *streams;
    Slots weights, gradients;
    double *updated_s; /* by block of this stage: its parameters are those of this step */
    double *whole_s;   /* by block: gathered, while it is kept */
    double *reduced_s; /* by block: its newest reduction is done */
    guint *open;       /* by block: micro-batches for which it is kept */
} Units;

/* One stage's clocks, all since its clip began. */
typedef struct {
    Stage stage;
    guint8 *kinds; /* by block of this stage */
    Units *units;  /* as its shape counts them */
    const UnitCost *root;
    const Timetable *table;
    guint action;                   /* the next one */
    gboolean arrived;               /* at that exchange */
    double compute_s;               /* when the stream of compute is free */
    UnitStreams blocks, experts;    /* of blocks and the root; of experts, which have their own */
    double replicate_s, exchange_s; /* the others */
    double read_s;                  /* when the newest reduction has read its gradients */
    double ready_s;                 /* of the exchange that it has arrived at */
    double root_whole_s, root_reduced_s;
    double *forward_end_s; /* by virtual stage and micro-batch */
    double *received_s;    /* the same: its input; its output's gradient: */
    double *gradient_s, *backward_end_s;
} Clocks;

typedef struct {
    Known *known;
    const ProgramSpec *spec;
    guint pp, chunks, micro_batches;
    Clocks *stages;
    GArray **arrivals; /* by stage and peer: when it was there for each of their exchanges */
} Walk;

/* ---- rings ---- */

static void slots_init(Slots *slots, guint count)
{
    *slots = (Slots){.free_s = g_new0(double, count), .count = count};
}

/* When the copy that is taken next is free. */
static double slots_take(Slots *slots)
{
    return slots->free_s[slots->taken++ % slots->count];
}

static void slots_give(Slots *slots, double at_s)
{
    slots->free_s[slots->given++ % slots->count] = at_s;
}

/* ---- units ---- */

static gboolean is_sparse(const Clocks *clocks, guint block)
{
    return model_kind_is_sparse(clocks->stage.spec->model, clocks->kinds[block]);
}

/* Of a block with experts these are what its passes' paths are about; of its other unit only
 * updates, reductions and norms are followed: a step without the rest of it is no longer. */
static Units *units_of(Clocks *clocks, guint block)
{
    const guint kind = clocks->kinds[block];

    return &clocks->units[is_sparse(clocks, block) ? clocks->stage.shape->num_kinds : kind];
}

static gboolean is_gathered_again(const Clocks *clocks)
{
    return clocks->stage.shape->first_strategy > STRATEGY_SHARD_GRAD_OP;
}

static gboolean is_gathered(const Clocks *clocks)
{
    return clocks->stage.shape->first_strategy >= STRATEGY_SHARD_GRAD_OP;
}

/* Only the last block is kept. */
static gboolean is_kept(const Walk *walk, const Clocks *clocks, guint block)
{
    return is_gathered_again(clocks) && stage_has_head(clocks->stage.shape) &&
           clocks->stage.shape->kept->len > 0 && block + 1 == clocks->stage.shape->layers &&
           walk->spec->sharding->num_overrides == 0;
}

/* Cast once the parameters are those of this step, then gathered into a copy that is free. */
static double gather(Units *units, guint block, double free_s)
{
    const SegmentSums *sums = &units->cost->gather;
    const double cast_s = MAX(units->streams->gather_s, units->updated_s[block]) + sums->shard_s -
                          sums->shard_moves_s;

    units->streams->gather_s = MAX(cast_s, free_s) + sums->shard_moves_s;
    return units->whole_s[block] = units->streams->gather_s;
}

/* When a block's weights are there for a use. */
static double weights_s(const Walk *walk, Clocks *clocks, guint block)
{
    Units *units = units_of(clocks, block);

    if (!is_gathered(clocks))
        return units->whole_s[block];
    if (!is_gathered_again(clocks))
        return units->whole_s[block] > 0 ? units->whole_s[block] : gather(units, block, 0);
    if (is_kept(walk, clocks, block) && units->open[block] > 0)
        return units->whole_s[block];
    return gather(units, block, slots_take(&units->weights));
}

/* When a copy for its gradients is free, where they are reduced from one. */
static double gradients_free_s(Units *units)
{
    return units->cost->gradient_bytes > 0 ? slots_take(&units->gradients) : 0;
}

static void release(const Walk *walk, Clocks *clocks, guint block, double at_s)
{
    Units *units = units_of(clocks, block);

    if (is_gathered_again(clocks) && !(is_kept(walk, clocks, block) && units->open[block] > 0))
        slots_give(&units->weights, at_s);
}

/* The root is gathered for each micro-batch, or once; kept, the embedding's serves the head. */
static double root_weights_s(Clocks *clocks, gboolean for_head)
{
    const Strategy strategy = clocks->stage.shape->root_strategy;

    if (for_head && clocks->stage.shape->place == STAGE_ONLY &&
        stage_root_gathers(&clocks->stage) <= clocks->stage.micro_batches)
        return clocks->root_whole_s;
    const gboolean fewer = stage_root_gathers(&clocks->stage) < clocks->stage.micro_batches;

    if (strategy < STRATEGY_SHARD_GRAD_OP ||
        ((strategy == STRATEGY_SHARD_GRAD_OP || fewer) && clocks->root_whole_s > 0))
        return clocks->root_whole_s;
    clocks->blocks.gather_s =
        MAX(clocks->blocks.gather_s, clocks->root->update.all_s) + clocks->root->gather.shard_s;
    return clocks->root_whole_s = clocks->blocks.gather_s;
}

/* A unit's gradients of a micro-batch are complete at @at_s; returns when they are reduced. */
static double reduce(const Walk *walk, Clocks *clocks, UnitStreams *streams, const UnitCost *unit,
                     guint micro_batch, double at_s)
{
    const double read_s = walk->micro_batches == 1 ? unit->reduce_last.shard_moves_s
                                                   : unit->reduce_first.shard_moves_s;
    const gboolean last = micro_batch + 1 == walk->micro_batches;
    const SegmentSums *sums = last               ? &unit->reduce_last
                              : micro_batch == 0 ? &unit->reduce_first
                                                 : &unit->reduce_add;

    if (unit->gradient_bytes == 0 && !last)
        return at_s;
    const double before_s = sums->all_s - sums->shard_s - sums->replicate_s; /* on other streams */
    const double start_s = MAX(streams->reduce_s, at_s + before_s);
    clocks->read_s = start_s + read_s;
    streams->reduce_s = start_s + sums->shard_s;
    if (sums->replicate_s == 0)
        return streams->reduce_s;
    clocks->replicate_s = MAX(clocks->replicate_s, streams->reduce_s) + sums->replicate_s;
    return clocks->replicate_s;
}

/* Those of a block's pass from @start_s on: of what its path is about at @at_s, of the rest at some
 * moment of the pass. */
static void reduce_block(const Walk *walk, Clocks *clocks, guint block, guint micro_batch,
                         double start_s, double at_s)
{
    Units *units = units_of(clocks, block), *others = &clocks->units[clocks->kinds[block]];

    units->reduced_s[block] = reduce(walk, clocks, units->streams, units->cost, micro_batch, at_s);
    if (units->cost->gradient_bytes > 0)
        slots_give(&units->gradients, clocks->read_s);
    if (others != units)
        others->reduced_s[block] =
            reduce(walk, clocks, others->streams, others->cost, micro_batch, start_s);
}

/* ---- passes ---- */

/* Seconds of a pass's end by which @until_s of it has passed: all, where that is its last op. */
static double moment_s(const SegmentPath *path, double until_s, double start_s, double end_s)
{
    return until_s >= path->stream_s ? end_s : start_s + until_s;
}

static guint layers_of(const Walk *walk, guint chunk)
{
    return schedule_chunk(&walk->spec->schedule, walk->spec->model->layers, walk->pp, chunk).count;
}

/* The stage's number of its block @within of @chunk. */
static guint block_of(const Walk *walk, guint chunk, guint within)
{
    guint block = within;

    for (guint c = chunk % walk->pp; c < chunk; c += walk->pp)
        block += layers_of(walk, c);
    return block;
}

static gsize flight(const Walk *walk, const Action *action)
{
    return (gsize)(action->chunk / walk->pp) * walk->micro_batches + action->micro_batch;
}

static void forward(Walk *walk, Clocks *clocks, const Action *action)
{
    const StageCost *cost = clocks->stage.cost;
    const guint first = block_of(walk, action->chunk, 0), layers = layers_of(walk, action->chunk);

    if (action->chunk == 0) {
        const double root_s = root_weights_s(clocks, FALSE);

        clocks->compute_s = MAX(clocks->compute_s + cost->root.embed.path.stream_s,
                                root_s + cost->root.embed.path.weights_tail_s);
    } else {
        clocks->compute_s = MAX(clocks->compute_s, clocks->received_s[flight(walk, action)]) +
                            cost->root.input.path.stream_s;
    }
    for (guint i = first; i < first + layers; i++) {
        const SegmentPath *path = &cost->block[clocks->kinds[i]]->forward.path;
        const double start_s = clocks->compute_s, whole_s = weights_s(walk, clocks, i);

        clocks->compute_s = MAX(start_s + path->whole_s, whole_s + path->weights_tail_s);
        units_of(clocks, i)->open[i]++;
        release(walk, clocks, i, moment_s(path, path->weights_until_s, start_s, clocks->compute_s));
    }
    clocks->forward_end_s[flight(walk, action)] = clocks->compute_s;
}

/* Block @within of the action's chunk; @entry_s: when its gradient came, where the pass before is
 * not its source; else 0. */
static void backward_block(Walk *walk, Clocks *clocks, const Action *action, guint within,
                           double entry_s)
{
    const Schedule *schedule = &walk->spec->schedule;
    const gboolean is_rest = schedule_has_rest(schedule) &&
                             !schedule_recomputes(schedule, walk->pp, action->chunk, within);
    const guint block = block_of(walk, action->chunk, within);
    const SegmentPath *path = &stage_lot_cost(&clocks->stage, is_rest ? LOT_REST : LOT_FIRST)
                                   ->block[clocks->kinds[block]]
                                   ->backward.path;
    Units *units = units_of(clocks, block);
    const gboolean from_before = within + 1 < layers_of(walk, action->chunk);
    const gboolean reduces = schedule->kind != SCHEDULE_ZB_H1;
    const double start_s = clocks->compute_s, whole_s = weights_s(walk, clocks, block);
    double end_s = MAX(start_s + (from_before ? path->whole_s : path->stream_s),
                       whole_s + path->weights_tail_s);

    end_s = MAX(end_s, entry_s + path->entry_s);
    const double free_s = reduces ? gradients_free_s(units) : 0;
    if (reduces)
        end_s = MAX(end_s, free_s + path->gradients_tail_s);
    clocks->compute_s = end_s;
    units->open[block]--;
    release(walk, clocks, block, moment_s(path, path->weights_until_s, start_s, end_s));
    if (reduces)
        reduce_block(walk, clocks, block, action->micro_batch, start_s,
                     moment_s(path, path->gradients_until_s, start_s, end_s));
}

/* Where the root ends with the head, its gradients are complete then. */
static void head(const Walk *walk, Clocks *clocks, guint micro_batch)
{
    const SegmentPath *path = &clocks->stage.cost->root.head.path;
    const double start_s = clocks->compute_s, root_s = root_weights_s(clocks, TRUE);

    clocks->compute_s = MAX(start_s + path->stream_s, root_s + path->weights_tail_s);
    if (!stage_has_embedding(clocks->stage.shape))
        clocks->root_reduced_s =
            reduce(walk, clocks, &clocks->blocks, clocks->root, micro_batch,
                   moment_s(path, path->gradients_until_s, start_s, clocks->compute_s));
}

static void backward(Walk *walk, Clocks *clocks, const Action *action)
{
    const guint layers = layers_of(walk, action->chunk);
    const gboolean last_chunk = action->chunk + 1 == walk->chunks;
    const StageCost *cost = clocks->stage.cost;
    double entry_s = 0;

    if (last_chunk)
        head(walk, clocks, action->micro_batch);
    else
        entry_s = clocks->gradient_s[flight(walk, action)];
    for (guint i = layers; i-- > 0;)
        backward_block(walk, clocks, action, i, i + 1 < layers ? 0 : entry_s);
    clocks->backward_end_s[flight(walk, action)] = clocks->compute_s;
    if (action->chunk > 0)
        return;
    const SegmentPath *path = &cost->root.embed_backward.path;
    const double start_s = clocks->compute_s;
    clocks->compute_s = start_s + path->stream_s;
    clocks->root_reduced_s =
        reduce(walk, clocks, &clocks->blocks, clocks->root, action->micro_batch,
               moment_s(path, path->gradients_until_s, start_s, clocks->compute_s));
}

static void weights(Walk *walk, Clocks *clocks, const Action *action)
{
    const guint first = block_of(walk, action->chunk, 0), layers = layers_of(walk, action->chunk);

    for (guint i = first + layers; i-- > first;) {
        const SegmentPath *path = &clocks->stage.cost->block[clocks->kinds[i]]->weights.path;
        const double start_s = clocks->compute_s;
        const double free_s = gradients_free_s(units_of(clocks, i));

        clocks->compute_s = MAX(start_s + path->stream_s, free_s + path->gradients_tail_s);
        reduce_block(walk, clocks, i, action->micro_batch, start_s,
                     moment_s(path, path->gradients_until_s, start_s, clocks->compute_s));
    }
}

/* ---- exchanges ---- */

static GArray *arrivals_of(const Walk *walk, guint from, guint to)
{
    GArray **arrivals = &walk->arrivals[from * walk->pp + to];

    if (*arrivals == NULL)
        *arrivals = g_array_new(FALSE, FALSE, sizeof(double));
    return *arrivals;
}

static gboolean is_first_of_peer(const Transfer *transfers, guint i)
{
    for (guint j = 0; j < i; j++)
        if (transfers[j].peer == transfers[i].peer)
            return FALSE;
    return TRUE;
}

static gsize transfer_flight(const Walk *walk, const Transfer *transfer)
{
    return (gsize)(transfer->chunk / walk->pp) * walk->micro_batches + transfer->micro_batch;
}

static void arrive(Walk *walk, guint s, const Transfer *transfers, guint num)
{
    Clocks *clocks = &walk->stages[s];

    clocks->arrived = TRUE;
    clocks->ready_s = clocks->exchange_s;
    for (guint i = 0; i < num; i++) {
        const gsize at = transfer_flight(walk, &transfers[i]);

        if (transfers[i].send)
            clocks->ready_s =
                MAX(clocks->ready_s,
                    transfers[i].gradient ? clocks->backward_end_s[at] : clocks->forward_end_s[at]);
    }
    for (guint i = 0; i < num; i++)
        if (is_first_of_peer(transfers, i))
            g_array_append_val(arrivals_of(walk, s, transfers[i].peer), clocks->ready_s);
}

/* FALSE while a peer is not there. */
static gboolean exchange(Walk *walk, guint s, const Transfer *transfers, guint num)
{
    Clocks *clocks = &walk->stages[s];
    guint sent = 0;

    if (!clocks->arrived)
        arrive(walk, s, transfers, num);
    double start_s = clocks->ready_s;
    for (guint i = 0; i < num; i++) {
        const GArray *theirs = arrivals_of(walk, transfers[i].peer, s);
        const guint nth = arrivals_of(walk, s, transfers[i].peer)->len - 1;

        if (theirs->len <= nth)
            return FALSE;
        start_s = MAX(start_s, g_array_index(theirs, double, nth));
        sent += transfers[i].send ? 1 : 0;
    }
    const guint64 bytes = MAX(sent, num - sent) * clocks->stage.cost->root.ring.residual;
    clocks->exchange_s = start_s + known_exchange_s(walk->known, walk->spec, bytes);
    for (guint i = 0; i < num; i++)
        if (!transfers[i].send)
            (transfers[i].gradient ? clocks->gradient_s
                                   : clocks->received_s)[transfer_flight(walk, &transfers[i])] =
                clocks->exchange_s;
    clocks->arrived = FALSE;
    return TRUE;
}

/* ---- the step ---- */

/* Units are numbered (builder.h): those of blocks, and behind them all @experts.  NULL: the block
 * has none. */
static Units *numbered(Clocks *clocks, guint block, gboolean experts)
{
    if (experts)
        return is_sparse(clocks, block) ? units_of(clocks, block) : NULL;
    return &clocks->units[clocks->kinds[block]];
}

static void update_unit(Clocks *clocks, const Units *units, guint block)
{
    clocks->compute_s += units->cost->update.all_s;
    units->updated_s[block] = clocks->compute_s;
    if (units->cost->update_gather.shard_s == 0)
        return;
    units->streams->gather_s =
        MAX(units->streams->gather_s, clocks->compute_s) + units->cost->update_gather.shard_s;
    units->whole_s[block] = units->streams->gather_s;
}

/* Updates of all units, in the order of their numbers, and what gathers them again. */
static void update(Clocks *clocks)
{
    const StageShape *shape = clocks->stage.shape;
    double amax_s = 0;

    clocks->compute_s = clocks->stage.shards[shape->root_strategy]->clip.all_s;
    if (clocks->root != NULL) {
        clocks->compute_s += clocks->root->update.all_s;
        clocks->blocks.gather_s = clocks->compute_s + clocks->root->update_gather.shard_s;
        clocks->root_whole_s =
            clocks->root->update_gather.shard_s > 0 ? clocks->blocks.gather_s : 0;
    }
    for (guint experts = 0; experts <= 1; experts++)
        for (guint i = 0; i < shape->layers; i++) {
            const Units *units = numbered(clocks, i, experts != 0);

            if (units == NULL)
                continue;
            update_unit(clocks, units, i);
            amax_s += units->cost->amax.all_s;
        }
    clocks->compute_s += amax_s;
    clocks->compute_s += clocks->stage.micro_batches * clocks->stage.cost->root.count_valid.all_s;
}

/* Norms in the order of units, each after its reduction. */
static double end_s(Clocks *clocks)
{
    double at_s = clocks->compute_s;

    if (clocks->root != NULL)
        at_s = MAX(at_s, clocks->root_reduced_s) + clocks->root->norm.all_s;
    for (guint experts = 0; experts <= 1; experts++)
        for (guint i = 0; i < clocks->stage.shape->layers; i++) {
            const Units *units = numbered(clocks, i, experts != 0);

            if (units != NULL)
                at_s = MAX(at_s, units->reduced_s[i]) + units->cost->norm.all_s;
        }
    return at_s + clocks->stage.scalars->norm_s;
}

/* Takes a stage as far as it gets; FALSE when it could not move. */
static gboolean advance(Walk *walk, guint s)
{
    Clocks *clocks = &walk->stages[s];
    gboolean moved = FALSE;

    for (; clocks->action < clocks->table->actions->len; clocks->action++, moved = TRUE) {
        const Action *action = &g_array_index(clocks->table->actions, Action, clocks->action);

        if (action->kind == ACTION_EXCHANGE &&
            !exchange(walk, s,
                      &g_array_index(clocks->table->transfers, Transfer, action->first_transfer),
                      action->num_transfers))
            return moved;
        if (action->kind == ACTION_FORWARD)
            forward(walk, clocks, action);
        else if (action->kind == ACTION_BACKWARD)
            backward(walk, clocks, action);
        else if (action->kind == ACTION_WEIGHTS)
            weights(walk, clocks, action);
    }
    return moved;
}

static void units_init(Clocks *clocks, guint of, guint live_units)
{
    const StageShape *shape = clocks->stage.shape;
    const Strategy strategy = shape->first_strategy;
    Units *units = &clocks->units[of];

    if (stage_num_units(&clocks->stage, of, strategy) == 0)
        return;
    units->cost = stage_unit(&clocks->stage, of, strategy);
    units->streams = is_experts(shape, of) ? &clocks->experts : &clocks->blocks;
    units->updated_s = g_new0(double, 3 * shape->layers);
    units->whole_s = units->updated_s + shape->layers;
    units->reduced_s = units->whole_s + shape->layers;
    units->open = g_new0(guint, shape->layers);
    slots_init(&units->weights, live_units + shape->kept_units[of][strategy]);
    slots_init(&units->gradients, MIN(shape->layers, 2));
}

static void units_clear(Units *units)
{
    g_free(units->updated_s);
    g_free(units->open);
    g_free(units->weights.free_s);
    g_free(units->gradients.free_s);
}

static void find_kinds(const Walk *walk, guint s, guint8 *kinds)
{
    const ProgramSpec *spec = walk->spec;

    for (guint c = s; c < walk->chunks; c += walk->pp) {
        const LayerRange range = schedule_chunk(&spec->schedule, spec->model->layers, walk->pp, c);

        for (guint i = range.first; i < range.first + range.count; i++)
            *kinds++ = (guint8)model_block_kind(spec->model, i);
    }
}

static void clocks_init(const Walk *walk, guint s, const Timetable *table)
{
    const gsize flights =
        (gsize)schedule_virtual_stages(&walk->spec->schedule) * walk->micro_batches;
    Clocks *clocks = &walk->stages[s];

    *clocks =
        (Clocks){.stage = stage_of(walk->known, walk->spec, s, UNITS_AS_PLANNED), .table = table};
    clocks->root = stage_root(&clocks->stage);
    clocks->kinds = g_new(guint8, clocks->stage.shape->layers);
    find_kinds(walk, s, clocks->kinds);
    clocks->units = g_new0(Units, clocks->stage.shape->num_units);
    for (guint u = 0; u < clocks->stage.shape->num_units; u++)
        units_init(clocks, u, walk->spec->sharding->live_units);
    clocks->forward_end_s = g_new0(double, 4 * flights);
    clocks->received_s = clocks->forward_end_s + flights;
    clocks->gradient_s = clocks->received_s + flights;
    clocks->backward_end_s = clocks->gradient_s + flights;
    update(clocks);
}

static void clocks_clear(Clocks *clocks)
{
    for (guint u = 0; u < clocks->stage.shape->num_units; u++)
        units_clear(&clocks->units[u]);
    g_free(clocks->units);
    g_free(clocks->forward_end_s);
    g_free(clocks->kinds);
}

static double run(Walk *walk)
{
    gboolean moved = TRUE;
    double step_s = 0;

    while (moved) {
        moved = FALSE;
        for (guint s = 0; s < walk->pp; s++)
            moved |= advance(walk, s);
    }
    for (guint s = 0; s < walk->pp; s++)
        step_s = MAX(step_s, end_s(&walk->stages[s]));
    return step_s;
}

double walk_s(Known *known, const ProgramSpec *spec)
{
    const guint pp = spec->layout.size[AXIS_PP];
    Walk walk = {.known = known,
                 .spec = spec,
                 .pp = pp,
                 .chunks = schedule_chunks(&spec->schedule, pp),
                 .micro_batches = spec->schedule.micro_batches,
                 .stages = NULL};

    if (spec->sharding->num_overrides > 0)
        return 0;
    const Timetable *tables = known_timetables(known, spec);
    walk.stages = g_new(Clocks, pp);
    walk.arrivals = g_new0(GArray *, pp * pp);
    for (guint s = 0; s < pp; s++)
        clocks_init(&walk, s, &tables[s]);
    const double step_s = run(&walk);
    for (guint s = 0; s < pp; s++)
        clocks_clear(&walk.stages[s]);
    for (guint i = 0; i < pp * pp; i++)
        g_clear_pointer(&walk.arrivals[i], g_array_unref);
    g_free(walk.arrivals);
    g_free(walk.stages);
    return step_s;
}
