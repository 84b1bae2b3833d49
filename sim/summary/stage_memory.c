/* How little memory a stage can do with: at some moment all that is counted is alive, and a ring
 * counts whole while any of its copies is. */
#include "sim/summary/stage.h"

/* What the units' whole weights and whole gradients take while a block of them is at work. */
typedef struct {
    guint64 weights, gradients;
} UnitRings;

/* As pass_shard() counts copies: a last block that is kept needs none of its own where its backward
 * follows at once. */
static guint gathered_copies(const Stage *stage, BlockUnits of, Strategy strategy)
{
    const StageShape *shape = stage->shape;
    const guint units = stage_num_units(stage, of, strategy);
    const gboolean at_once = stage->spec->schedule.kind == SCHEDULE_1F1B;
    const Sharding *sharding = stage->spec->sharding;
    const guint last = stage->spec->model->layers;
    guint kept = stage_num_kept(stage, of, strategy);

    if (strategy == STRATEGY_SHARD_GRAD_OP)
        return units;
    if (at_once && stage_has_head(shape) && kept > 0 &&
        sharding_unit_strategy(sharding, last) == strategy &&
        sharding_unit_kept(sharding, last, last))
        kept--;
    return MIN(units, stage->spec->sharding->live_units + kept);
}

/* Of blocks with experts, the experts' (probe.c).  Where strategies differ and so do lots, a
 * strategy's units may all be of the lot that is not at work: then nothing is sure. */
static UnitRings block_rings(const Stage *stage, BlockKind kind)
{
    const BlockUnits of = kind == BLOCK_SPARSE ? UNITS_EXPERTS : UNITS_DENSE;
    const StageShape *shape = stage->shape;
    const gboolean lots = shape->most_of_lot[LOT_FIRST] > 0 && shape->most_of_lot[LOT_REST] > 0;
    UnitRings rings = {0, 0};
    guint strategies = 0;

    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        const guint units = stage_num_units(stage, of, (Strategy)s);

        if (units == 0)
            continue;
        strategies++;
        const UnitCost *block = stage_unit(stage, of, (Strategy)s);
        const guint64 weights = gathered_copies(stage, of, (Strategy)s) * block->gathered_bytes;
        const guint64 gradients = MIN(units, 2) * block->gradient_bytes;

        if (weights + gradients > rings.weights + rings.gradients)
            rings = (UnitRings){weights, gradients};
    }
    return lots && strategies > 1 ? (UnitRings){0, 0} : rings;
}

static guint64 most(const SegmentPeak *peak, const UnitRings *rings)
{
    guint64 bytes = 0;

    for (guint w = 0; w < 2; w++)
        for (guint g = 0; g < 2; g++) {
            const guint64 units = (w ? rings->weights : 0) + (g ? rings->gradients : 0);

            if (peak->bytes[w][g] > 0)
                bytes = MAX(bytes, peak->bytes[w][g] + units);
        }
    return bytes;
}

/* Rings of activations: of chunks in flight; of those whose weights' gradients are still to come.
 */
typedef struct {
    guint64 residual, gradient;
    guint64 again_kept; /* of LOT_FIRST */
    guint64 weights[NUM_LOTS];
    /* by kind and lot: alive while those blocks are at work; a ring has one copy, so that it is not
     * alive all the time */
    guint64 saved[NUM_BLOCK_KINDS][NUM_LOTS];
    gboolean alone[NUM_BLOCK_KINDS][NUM_LOTS];
} ActivationRings;

static void add_saved(const Stage *stage, ActivationRings *rings, guint lot)
{
    const StageFlow *flow = stage->flow;
    const StageCost *cost = stage_lot_cost(stage, lot);
    const guint64 layers = stage->shape->most_of_lot[lot];
    const gboolean apart = cost->ring.weights + cost->ring.again_kept > 0;

    for (guint k = 0; k < NUM_BLOCK_KINDS; k++) {
        const guint most = stage->shape->most_of[k][lot];
        const guint64 copies = (guint64)flow->in_flight * most;
        const gboolean one = most == 1 && stage->shape->least_of[k][lot] == 0; /* of some chunks */

        rings->saved[k][lot] = copies * cost->block[k].saved;
        rings->alone[k][lot] = copies < 2 || one || flow->until_weights * layers < 2 ||
                               (apart && flow->backward_apart * layers < 2);
    }
    /* experts have no backward for weights apart */
    rings->weights[lot] = flow->backward_apart * layers * cost->ring.weights;
    rings->saved[BLOCK_DENSE][lot] += flow->until_weights * layers * cost->ring.kept;
}

static ActivationRings activation_rings(const Stage *stage)
{
    const RingBytes *ring = &stage->cost->ring;
    const StageFlow *flow = stage->flow;
    const guint64 layers = stage->shape->most_layers;
    const guint64 first = stage->shape->most_of_lot[LOT_FIRST];
    ActivationRings rings = {
        .residual = flow->in_flight * (layers + 1) * ring->residual,
        .again_kept = (flow->backward_apart * first + 1) * ring->again_kept,
        .gradient = flow->gradients * ring->gradient,
    };

    for (guint lot = 0; lot < NUM_LOTS; lot++)
        if (stage->shape->most_of_lot[lot] > 0)
            add_saved(stage, &rings, lot);
    return rings;
}

/* What is saved while blocks of that kind and lot are at work: of the other lot too where each
 * chunk has both, and another chunk is in flight, or this one's first blocks are saved. */
static guint64 saved_bytes(const Stage *stage, const ActivationRings *rings, guint kind, guint lot)
{
    const guint other = lot == LOT_REST ? LOT_FIRST : LOT_REST;
    const gboolean both =
        stage->shape->least_of[kind][other] > 0 && (stage->flow->in_flight > 1 || lot == LOT_REST);

    return rings->saved[kind][lot] + (both ? rings->saved[kind][other] : 0);
}

/* The same of what backward leaves for that for weights: first blocks come last, so that theirs are
 * there before only of another chunk. */
static guint64 weights_bytes(const Stage *stage, const ActivationRings *rings, guint kind, Lot lot)
{
    const guint other = lot == LOT_REST ? LOT_FIRST : LOT_REST;
    const gboolean both = stage->shape->least_of[kind][other] > 0 &&
                          (stage->flow->backward_apart > 1 || lot == LOT_FIRST);

    return rings->weights[lot] + (both ? rings->weights[other] : 0);
}

/* The root's weights stay over all micro-batches; its gradients from the head to the embedding. */
static guint64 root_beside_blocks(const Stage *stage)
{
    const StageShape *shape = stage->shape;
    const UnitCost *root = stage_root(stage);
    guint64 bytes = 0;

    if (root == NULL || shape->most_layers < 2)
        return 0;
    if (shape->root_strategy == STRATEGY_SHARD_GRAD_OP &&
        (shape->place == STAGE_FIRST ? stage->flow->refills : stage->micro_batches > 1))
        bytes += root->gathered_bytes;
    if (shape->place == STAGE_ONLY)
        bytes += root->gradient_bytes;
    return bytes;
}

/* Whole weights of the other unit of blocks with experts, while those are at work: they stay for
 * the step under shard_grad_op, and in backward from where all of a block is computed again. */
static guint64 beside_experts(const Stage *stage, BlockKind kind, gboolean first_backward)
{
    const Strategy strategy = stage->shape->first_strategy;
    const gboolean again = first_backward && stage->spec->schedule.recompute == RECOMPUTE_FULL;

    if (kind != BLOCK_SPARSE || !(strategy == STRATEGY_SHARD_GRAD_OP || again))
        return 0;
    return gathered_copies(stage, UNITS_SPARSE, strategy) *
           stage_unit(stage, UNITS_SPARSE, strategy)->gathered_bytes;
}

/* Blocks that are at work. */
typedef struct {
    BlockKind kind;
    Lot lot;
} AtWork;

/* From a pass's second block on, the gradients of the one before are still being reduced; the first
 * blocks of a chunk come last. */
static guint64 backward_bytes(const Stage *stage, AtWork at, const ActivationRings *rings,
                              const UnitRings *units)
{
    const PassCost *backward = &stage_lot_cost(stage, at.lot)->block[at.kind].backward;
    const StageShape *shape = stage->shape;
    const gboolean is_first = at.lot == LOT_FIRST;
    const guint64 alive =
        rings->residual + rings->gradient + beside_experts(stage, at.kind, is_first);
    const gboolean reduced =
        shape->uniform && (is_first ? shape->most_layers : shape->most_of_lot[LOT_REST]) > 1;
    SegmentPeak peak = backward->peak;

    if (rings->alone[at.kind][at.lot])
        return alive + most(&backward->alone_peak, units);
    for (guint w = 0; w < 2 && reduced; w++)
        peak.bytes[w][1] = MAX(peak.bytes[w][0], peak.bytes[w][1]);
    return alive + saved_bytes(stage, rings, at.kind, at.lot) +
           weights_bytes(stage, rings, at.kind, at.lot) + (is_first ? rings->again_kept : 0) +
           most(&peak, units) + root_beside_blocks(stage);
}

static guint64 forward_bytes(const Stage *stage, AtWork at, const ActivationRings *rings,
                             const UnitRings *units)
{
    const PassCost *forward = &stage_lot_cost(stage, at.lot)->block[at.kind].forward;
    const guint64 alive = rings->residual + beside_experts(stage, at.kind, FALSE);

    if (rings->alone[at.kind][at.lot])
        return alive + most(&forward->alone_peak, units);
    return alive + saved_bytes(stage, rings, at.kind, at.lot) + most(&forward->peak, units);
}

/* Between forward and backward: blocks that stay gathered are there. */
static guint64 head_bytes(const Stage *stage, const ActivationRings *rings, const UnitRings *units)
{
    const StageShape *shape = stage->shape;

    if (!stage_has_head(shape))
        return 0;
    const UnitCost *root = stage_root(stage);
    const UnitRings of_root = {root->gathered_bytes, root->gradient_bytes};
    const gboolean stay =
        shape->uniform && (shape->units[STRATEGY_SHARD_GRAD_OP] > 0 || shape->kept->len > 0);
    guint64 saved = 0;

    for (guint k = 0; k < NUM_BLOCK_KINDS; k++)
        for (guint lot = 0; lot < NUM_LOTS; lot++)
            saved += rings->saved[k][lot];
    return rings->residual + saved + (stay ? units->weights : 0) +
           most(&stage->cost->head.peak, &of_root);
}

static guint64 work_bytes(const Stage *stage, AtWork at, const ActivationRings *rings)
{
    if (counts_of(&stage->shape->of_kind, at.kind, at.lot) == 0)
        return 0;
    const UnitRings units = block_rings(stage, at.kind);
    const guint64 backward = backward_bytes(stage, at, rings, &units);
    const guint64 forward = forward_bytes(stage, at, rings, &units);
    const guint64 head = head_bytes(stage, rings, &units);

    return MAX(backward, MAX(forward, head));
}

guint64 stage_floor_bytes(const Stage *stage)
{
    const ActivationRings rings = activation_rings(stage);
    guint64 most_bytes = 0;

    for (guint k = 0; k < NUM_BLOCK_KINDS; k++)
        for (guint lot = 0; lot < NUM_LOTS; lot++)
            most_bytes =
                MAX(most_bytes, work_bytes(stage, (AtWork){(BlockKind)k, (Lot)lot}, &rings));
    return stage_state_bytes(stage) + stage->cost->input_bytes +
           program_scales(stage->spec) * dtype_bytes(DTYPE_FP32) +
           stage->micro_batches * stage->cost->micro_batch_bytes + most_bytes;
}
