/* How little memory a stage can do with: at some moment all that is counted is alive, and a ring
 * counts whole while any of its copies is. */
#include "sim/summary/stage.h"

/* What the units' whole weights and whole gradients take while a block of them is at work. */
typedef struct {
    guint64 weights, gradients;
    guint64 at_head; /* of the weights, those that are there beside the head too */
} UnitRings;

/* As pass_shard() counts copies: a last block that is kept needs none of its own where its backward
 * follows at once. */
static guint gathered_copies(const Stage *stage, guint of, Strategy strategy)
{
    const StageShape *shape = stage->shape;
    const guint units = stage_num_units(stage, of, strategy);
    const gboolean at_once = stage->spec->schedule.kind == SCHEDULE_1F1B;
    const Sharding *sharding = stage->spec->sharding;
    const Model *model = stage->spec->model;
    const gboolean experts = is_experts(shape, of);
    const guint last = model->layers + (experts ? EXPERTS_UNITS : 0);
    const guint last_kind = model_block_kind(model, model->layers - 1);
    guint kept = shape->kept_units[of][strategy];

    if (strategy == STRATEGY_SHARD_GRAD_OP)
        return units;
    if (at_once && stage_has_head(shape) && kept > 0 &&
        (experts ? model_kind_is_sparse(model, last_kind) : of == last_kind) &&
        sharding_unit_strategy(sharding, last) == strategy &&
        sharding_unit_kept(sharding, last, model->layers))
        kept--;
    return MIN(units, stage->spec->sharding->live_units + kept);
}

static UnitRings rings_of(const Stage *stage, guint of, Strategy strategy)
{
    const guint units = stage_num_units(stage, of, strategy);

    if (units == 0)
        return (UnitRings){0};
    const UnitCost *unit = stage_unit(stage, of, strategy);
    return (UnitRings){.weights = gathered_copies(stage, of, strategy) * unit->gathered_bytes,
                       .gradients = MIN(units, 2) * unit->gradient_bytes};
}

/* Some blocks compute all again, others nothing. */
static gboolean has_both_lots(const Stage *stage)
{
    const guint *most = stage->shape->most_of_lot;

    return most[LOT_FIRST] > 0 && most[LOT_REST] > 0;
}

/* A pipeline that has been full for long: what its first and last micro-batches do otherwise is not
 * all there is. */
static gboolean is_settled(const Stage *stage)
{
    return stage->micro_batches > 2 * stage->spec->layout.size[AXIS_PP];
}

/* With several blocks or micro-batches, all rings are there all the time: nothing waits for what
 * another block's gather or reduction left behind.  Units of blocks with experts do, and it is not
 * known of blocks of several kinds. */
static gboolean rings_stay(const Stage *stage)
{
    const StageShape *shape = stage->shape;

    if (has_both_lots(stage))
        return FALSE;
    if (shape->uniform)
        return shape->most_layers > 1 || stage->micro_batches > 1;
    return (is_settled(stage) || (shape->place == STAGE_ONLY && stage->micro_batches > 1)) &&
           shape->layers > 1 && shape->plain;
}

/* Of blocks of several strategies, none with experts.  Whole gradients: of the strategy that most
 * have; beside the head it is also known of weights that they stay for the step, or are that one's.
 */
static UnitRings mixed_rings(const Stage *stage)
{
    const guint *units = stage->shape->units[stage->shape->kind];
    UnitRings all = {0};
    guint most = 0;

    for (guint s = 1; s < NUM_STRATEGIES; s++)
        most = units[s] > units[most] ? s : most;
    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        const UnitRings rings = rings_of(stage, stage->shape->kind, (Strategy)s);

        all.weights += rings.weights;
        all.gradients += s == most ? rings.gradients : 0;
        all.at_head += s == most || s == STRATEGY_SHARD_GRAD_OP ? rings.weights : 0;
    }
    return all;
}

/* Of blocks with experts, the experts' (probe.c).  While some blocks of either lot are at work, of
 * several strategies, it is not said which: those of the strategy that takes least; and so where
 * experts leave something for their weights' gradients, but not from their start on. */
static UnitRings block_rings(const Stage *stage, guint kind)
{
    const gboolean experts = model_kind_is_sparse(stage->spec->model, kind);
    const guint of = experts ? stage->shape->num_kinds : kind;
    const gboolean same = experts ? stage->shape->alike : stage->shape->uniform;
    const gboolean apart = experts && stage->spec->schedule.kind == SCHEDULE_ZB_H1;
    const gboolean least = !same && (has_both_lots(stage) || apart);
    UnitRings rings = {0};
    gboolean found = FALSE;

    if (!stage->shape->uniform && rings_stay(stage))
        return mixed_rings(stage);
    for (guint s = 0; s < NUM_STRATEGIES; s++) {
        if (stage_num_units(stage, of, (Strategy)s) == 0)
            continue;
        const UnitRings one = rings_of(stage, of, (Strategy)s);

        if (!found || (one.weights + one.gradients > rings.weights + rings.gradients) != least)
            rings = one;
        found = TRUE;
    }
    if (stage->shape->uniform &&
        (!has_both_lots(stage) ||
         stage_num_units(stage, stage->shape->kind, STRATEGY_SHARD_GRAD_OP) > 0 ||
         stage->shape->kept->len > 0))
        rings.at_head = rings.weights;
    return rings;
}

static guint64 most_beside(const SegmentPeak *peak)
{
    return MAX(MAX(peak->bytes[0][0], peak->bytes[0][1]),
               MAX(peak->bytes[1][0], peak->bytes[1][1]));
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
    /* by kind and lot: alive while those blocks are at work; a ring has one copy, so that it is not
     * alive all the time; two blocks leave something for their weights' gradients */
    guint64 saved[MAX_BLOCK_KINDS][NUM_LOTS];
    gboolean alone[MAX_BLOCK_KINDS][NUM_LOTS];
    gboolean two[MAX_BLOCK_KINDS][NUM_LOTS];
    guint64 weights[MAX_BLOCK_KINDS][NUM_LOTS];
    guint64 again_kept[MAX_BLOCK_KINDS]; /* of LOT_FIRST */
} ActivationRings;

static void add_saved(const Stage *stage, ActivationRings *rings, guint lot)
{
    const StageFlow *flow = stage->flow;
    const StageCost *cost = stage_lot_cost(stage, lot);

    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        const BlockCost *block = cost->block[k];
        const guint64 most = stage->shape->most_of[k][lot], copies = flow->in_flight * most;
        const gboolean one = most == 1 && stage->shape->least_of[k][lot] == 0; /* of some chunks */
        const gboolean apart = block->left + block->again_kept > 0;

        rings->saved[k][lot] = copies * block->saved + flow->until_weights * most * block->kept;
        rings->alone[k][lot] = copies < 2 || one || flow->until_weights * most < 2 ||
                               (apart && flow->backward_apart * most < 2);
        rings->two[k][lot] = apart && flow->backward_apart * most == 2;
        rings->weights[k][lot] = flow->backward_apart * most * block->left;
    }
}

static void add_none(const Stage *stage, ActivationRings *rings, guint lot)
{
    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        rings->saved[k][lot] = rings->weights[k][lot] = 0;
        rings->alone[k][lot] = rings->two[k][lot] = FALSE;
    }
}

/* Of kinds that the model has. */
static void find_rings(const Stage *stage, ActivationRings *rings)
{
    const RingBytes *ring = &stage->cost->root.ring;
    const StageFlow *flow = stage->flow;
    const guint64 layers = stage->shape->most_layers;

    rings->residual = flow->in_flight * (layers + 1) * ring->residual;
    rings->gradient = flow->gradients * ring->gradient;
    for (guint k = 0; k < stage->shape->num_kinds; k++) {
        const guint64 first = stage->shape->most_of[k][LOT_FIRST];

        rings->again_kept[k] =
            first == 0 ? 0 : (flow->backward_apart * first + 1) * stage->cost->block[k]->again_kept;
    }
    for (guint lot = 0; lot < NUM_LOTS; lot++)
        if (stage->shape->most_of_lot[lot] > 0)
            add_saved(stage, rings, lot);
        else
            add_none(stage, rings, lot);
}

/* What is saved while blocks of that kind and lot are at work: of others too where each chunk has
 * those, and another one is in flight, or this one's first blocks are saved.  A single micro-batch
 * passes a chunk that alone has such blocks while none is. */
static guint64 saved_bytes(const Stage *stage, const ActivationRings *rings, guint kind, guint lot)
{
    const gboolean in_flight = stage->flow->in_flight > 1 &&
                               (stage->micro_batches > 1 || stage->shape->least_of[kind][lot] > 0);
    guint64 bytes = 0;

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        for (guint l = 0; l < NUM_LOTS; l++) {
            const gboolean before = k == kind && l == LOT_FIRST && lot == LOT_REST;
            const gboolean beside = stage->shape->least_of[k][l] > 0 && (in_flight || before);

            bytes += (k == kind && l == lot) || beside ? rings->saved[k][l] : 0;
        }
    return bytes;
}

/* Blocks that are at work. */
typedef struct {
    guint kind;
    Lot lot;
} AtWork;

/* What is saved, and what backward leaves for the gradients of weights.  The rest's blocks come
 * first: what the others leave is there only if it is another micro-batch's.  Of two blocks all is
 * saved while the first is at work, and all is left while the second is: there is no one between.
 */
static guint64 between_passes(const Stage *stage, AtWork at, const ActivationRings *rings)
{
    const gboolean is_first = at.lot == LOT_FIRST;
    const guint64 saved = saved_bytes(stage, rings, at.kind, at.lot);
    const guint64 *weights = rings->weights[at.kind];
    guint64 left = weights[at.lot];

    if (is_first)
        left += rings->again_kept[at.kind];
    else if (stage->flow->backward_apart > 1)
        left += weights[LOT_FIRST];
    return (is_first ? weights[LOT_REST] : 0) +
           (rings->two[at.kind][at.lot] ? MAX(saved, left) : saved + left);
}

/* What the reduction of a block holds that adds to those before, beside blocks and head.  Of a
 * stage's only block it is over before the next micro-batch's backward. */
static guint64 block_reduced(const Stage *stage)
{
    const StageShape *shape = stage->shape;

    if (!shape->uniform || has_both_lots(stage) ||
        (shape->place == STAGE_ONLY && shape->layers < 2))
        return 0;
    return stage_block(stage, shape->first_strategy)->reduced_bytes;
}

/* What gathers of blocks hold of their own, where they go on beside all work: not all are kept. */
static guint64 gather_bytes(const Stage *stage)
{
    const StageShape *shape = stage->shape;

    if (!shape->uniform || shape->first_strategy == STRATEGY_SHARD_GRAD_OP ||
        shape->most_layers < 2 || stage->micro_batches < 2 || has_both_lots(stage) ||
        (shape->place != STAGE_ONLY && !is_settled(stage)) ||
        shape->kept_units[stage->shape->kind][shape->first_strategy] == shape->layers)
        return 0;
    return stage_block(stage, shape->first_strategy)->cast_bytes;
}

/* An update's last copies out go on beside the next step's work, until something else comes in
 * behind them. */
static guint64 fetched_bytes(const Stage *stage)
{
    const StageShape *shape = stage->shape;
    const Offload *offload = &stage->spec->sharding->offload;
    const UnitCost *root = stage_root(stage);

    if (!shape->uniform || offload->optimizer == TIER_DEVICE || offload->parameters != TIER_DEVICE)
        return 0;
    return MIN(shape->layers, 2) * stage_block(stage, shape->first_strategy)->fetched_bytes +
           (root == NULL ? 0 : root->fetched_bytes);
}

/* The root's whole weights beside blocks in backward: those that stay for the step, and those that
 * are gathered for another micro-batch, as no wait says that blocks are done before. */
static gboolean root_is_whole(const Stage *stage)
{
    const gboolean stays = stage->shape->root_strategy == STRATEGY_SHARD_GRAD_OP;
    const ScheduleKind kind = stage->spec->schedule.kind;

    if (stage->micro_batches < 2 || ((has_both_lots(stage) || !stage->shape->uniform) && !stays))
        return FALSE;
    switch (stage->shape->place) {
    case STAGE_ONLY:
        return TRUE;
    case STAGE_FIRST:
        return stage->flow->refills &&
               (is_settled(stage) || (stays && kind != SCHEDULE_INTERLEAVED));
    case STAGE_LAST:
        return stays || kind == SCHEDULE_GPIPE;
    case STAGE_MIDDLE:
    default:
        return FALSE;
    }
}

/* Which of other micro-batches' is there depends on which blocks are where. */
static gboolean depends_on_blocks(const Stage *stage)
{
    return has_both_lots(stage) || (!stage->shape->uniform && !is_settled(stage));
}

/* What is sure even so. */
static guint64 root_beside_any_blocks(const Stage *stage)
{
    const UnitCost *root = stage_root(stage);

    if (stage->shape->most_layers < 2)
        return 0;
    return (root_is_whole(stage) ? root->gathered_bytes : 0) +
           (stage->shape->place == STAGE_ONLY ? root->gradient_bytes : 0);
}

/* Of the root, and of reductions, which are on one stream: one at a time.  The root's gradients are
 * there from the head on; in a first stage, from another micro-batch. */
static guint64 root_beside_blocks(const Stage *stage)
{
    const StagePlace place = stage->shape->place;
    const gboolean settled = is_settled(stage);
    const UnitCost *root = stage_root(stage);
    guint64 weights = 0, gradients = 0, reduced = block_reduced(stage);

    if (stage->spec->schedule.kind == SCHEDULE_INTERLEAVED && !settled)
        return root != NULL && stage->shape->uniform && !has_both_lots(stage) &&
                       stage->micro_batches >= stage->spec->layout.size[AXIS_PP]
                   ? root->gradient_bytes
                   : 0;
    if (root == NULL)
        return reduced;
    if (depends_on_blocks(stage))
        return root_beside_any_blocks(stage);
    if (root_is_whole(stage))
        weights = root->gathered_bytes;
    if (place != STAGE_FIRST || stage->micro_batches > 1)
        gradients = root->gradient_bytes;
    if (place != STAGE_LAST)
        reduced = MAX(reduced, root->reduced_bytes);
    return gradients +
           (place == STAGE_FIRST && !settled ? MAX(weights, reduced) : weights + reduced);
}

/* Gathers of blocks, or of a root that is whole again: on one stream. */
static guint64 gather_beside_blocks(const Stage *stage)
{
    const guint64 bytes = gather_bytes(stage);

    if (bytes == 0 || !root_is_whole(stage) ||
        stage->shape->root_strategy == STRATEGY_SHARD_GRAD_OP)
        return bytes;
    return MAX(bytes, stage_root(stage)->cast_bytes);
}

/* Whole weights of the other unit of blocks with experts, while those are at work: they stay for
 * the step under shard_grad_op, and in backward from where all of a block is computed again. */
static guint64 beside_experts(const Stage *stage, guint kind, gboolean first_backward)
{
    const Strategy strategy = stage->shape->first_strategy;
    const gboolean again = first_backward && stage->spec->schedule.recompute == RECOMPUTE_FULL;

    if (!model_kind_is_sparse(stage->spec->model, kind) || !stage->shape->alike ||
        rings_stay(stage) || !(strategy == STRATEGY_SHARD_GRAD_OP || again))
        return 0;
    return gathered_copies(stage, kind, strategy) *
           stage_unit(stage, kind, strategy)->gathered_bytes;
}

static guint64 work_peak(const Stage *stage, const SegmentPeak *peak, const UnitRings *units)
{
    return rings_stay(stage) ? most_beside(peak) + units->weights + units->gradients
                             : most(peak, units);
}

/* What is received lies beside what is at work; with gpipe all forwards come first. */
static guint64 inbox_bytes(const Stage *stage)
{
    const StagePlace place = stage->shape->place;
    const ScheduleKind kind = stage->spec->schedule.kind;
    gboolean beside =
        kind != SCHEDULE_GPIPE && stage->micro_batches > (place == STAGE_LAST ? 1 : 2);

    if (kind == SCHEDULE_INTERLEAVED)
        beside = is_settled(stage) && !(place == STAGE_FIRST && root_is_whole(stage));
    return beside ? stage->flow->inboxes * stage->cost->root.ring.inbox : 0;
}

/* While any block is at work, what another micro-batch saved is there. */
static gboolean others_are_saved(const Stage *stage)
{
    return stage->flow->in_flight > 1 && is_settled(stage) && !has_both_lots(stage);
}

/* Where some blocks compute all again: from a pass's second block on, the gradients of the one
 * before are still being reduced; the first blocks of a chunk come last. */
static SegmentPeak with_reduction(const Stage *stage, AtWork at, SegmentPeak peak)
{
    if (!stage->shape->uniform ||
        (at.lot == LOT_FIRST ? stage->shape->most_layers : stage->shape->most_of_lot[LOT_REST]) < 2)
        return peak;
    for (guint w = 0; w < 2; w++)
        peak.bytes[w][1] = MAX(peak.bytes[w][0], peak.bytes[w][1]);
    return peak;
}

static guint64 backward_bytes(const Stage *stage, AtWork at, const ActivationRings *rings,
                              const UnitRings *units)
{
    const PassCost *backward = &stage_lot_cost(stage, at.lot)->block[at.kind]->backward;
    const guint64 beside =
        rings->residual + rings->gradient + beside_experts(stage, at.kind, at.lot == LOT_FIRST) +
        root_beside_blocks(stage) + inbox_bytes(stage) + gather_beside_blocks(stage);
    const SegmentPeak peak = with_reduction(stage, at, backward->peak);
    const guint64 alone = work_peak(stage, &backward->alone_peak, units);

    if (!rings->alone[at.kind][at.lot])
        return beside + between_passes(stage, at, rings) + work_peak(stage, &peak, units);
    if (!others_are_saved(stage))
        return beside + alone;
    return beside +
           MAX(alone, saved_bytes(stage, rings, at.kind, at.lot) + work_peak(stage, &peak, units));
}

static guint64 forward_bytes(const Stage *stage, AtWork at, const ActivationRings *rings,
                             const UnitRings *units)
{
    const PassCost *forward = &stage_lot_cost(stage, at.lot)->block[at.kind]->forward;
    const guint64 alive = rings->residual + beside_experts(stage, at.kind, FALSE);

    if (rings->alone[at.kind][at.lot])
        return alive + most(&forward->alone_peak, units);
    return alive + saved_bytes(stage, rings, at.kind, at.lot) + most(&forward->peak, units);
}

/* The head with what other micro-batches have in flight.  Where the stage has the embedding too,
 * the first write of gradients waits for the root's reduction, and so for the blocks' before it. */
static guint64 head_beside_others(const Stage *stage, const ActivationRings *rings,
                                  const UnitRings *units)
{
    const SegmentPeak *peak = &stage->cost->root.head.peak;
    const guint64 before = MAX(peak->bytes[0][0], peak->bytes[1][0]);
    const guint64 after = MAX(peak->bytes[0][1], peak->bytes[1][1]);
    const guint64 gradients = stage->shape->uniform ? units->gradients : 0;
    const guint64 reduced = block_reduced(stage);
    const guint64 root_reduced = stage_root(stage)->reduced_bytes;

    if (stage->shape->place == STAGE_ONLY)
        return MAX(before + gradients + MAX(reduced, root_reduced), after + root_reduced);
    return MAX(before, after) + gradients + reduced + rings->gradient + inbox_bytes(stage);
}

static guint64 head_bytes(const Stage *stage, const ActivationRings *rings, const UnitRings *units)
{
    const StageShape *shape = stage->shape;

    if (!stage_has_head(shape))
        return 0;
    const UnitCost *root = stage_root(stage);
    const UnitRings of_root = {.weights = root->gathered_bytes, .gradients = root->gradient_bytes};
    guint64 bytes = rings->residual + units->at_head + gather_bytes(stage);

    for (guint k = 0; k < stage->shape->num_kinds; k++)
        for (guint lot = 0; lot < NUM_LOTS; lot++)
            bytes += rings->saved[k][lot];
    if (stage->micro_batches == 1 || depends_on_blocks(stage))
        return bytes + most(&stage->cost->root.head.peak, &of_root);
    for (guint k = 0; stage->flow->backward_apart > 1 && k < stage->shape->num_kinds; k++)
        bytes += rings->weights[k][LOT_FIRST] + rings->weights[k][LOT_REST] + rings->again_kept[k];
    return bytes + of_root.weights + of_root.gradients + head_beside_others(stage, rings, units);
}

static guint64 work_bytes(const Stage *stage, AtWork at, const ActivationRings *rings)
{
    if (counts_of(&stage->shape->of_kind, at.kind, at.lot) == 0)
        return 0;
    const UnitRings units = block_rings(stage, at.kind);
    const guint64 backward = backward_bytes(stage, at, rings, &units);
    const guint64 forward = forward_bytes(stage, at, rings, &units);
    const guint64 head = head_bytes(stage, rings, &units);

    return MAX(backward, MAX(forward, head)) + fetched_bytes(stage);
}

guint64 stage_floor_bytes(const Stage *stage)
{
    ActivationRings rings;
    guint64 most_bytes = 0;

    find_rings(stage, &rings);
    for (guint k = 0; k < stage->shape->num_kinds; k++)
        for (guint lot = 0; lot < NUM_LOTS; lot++)
            most_bytes = MAX(most_bytes, work_bytes(stage, (AtWork){k, (Lot)lot}, &rings));
    return stage_state_bytes(stage) + stage->cost->root.input_bytes +
           program_scales(stage->spec) * dtype_bytes(DTYPE_FP32) +
           stage->micro_batches * stage->cost->root.micro_batch_bytes + most_bytes;
}
