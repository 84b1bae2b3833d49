#include "sim/search/unit_choice.h"

#include "sim/base/parallel.h"
#include "sim/summary/summary.h"

#include <math.h>
#include <string.h>

/* What differs by less is not worth a plan that is harder to read. */
const double UNIT_CHOICE_GAIN = 0.005;

/* And what a change must gain to be worth its memory. */
static const double CHANGE_GAIN = 0.001;

/* How whole a unit is, the more the later: less is moved, more is kept. */
typedef enum {
    LEVEL_PLAN, /* as the plan's strategy and keep say */
    LEVEL_KEPT,
    LEVEL_SHARD_GRAD_OP,
    LEVEL_SHARD_OPTIMIZER,
    LEVEL_NO_SHARD,
    NUM_LEVELS
} Level;

static const UnitOverride overrides[NUM_LEVELS] = {
    [LEVEL_KEPT] = {0, 0, -1, TRUE},
    [LEVEL_SHARD_GRAD_OP] = {0, 0, STRATEGY_SHARD_GRAD_OP, -1},
    [LEVEL_SHARD_OPTIMIZER] = {0, 0, STRATEGY_SHARD_OPTIMIZER, -1},
    [LEVEL_NO_SHARD] = {0, 0, STRATEGY_NO_SHARD, -1},
};

/* With one micro-batch shard_grad_op and shard_optimizer gather a unit once, as where it is kept.
 */
static gboolean is_offered(Level level, const Plan *plan)
{
    const Strategy strategy = plan->sharding.strategy;

    if (level == LEVEL_KEPT)
        return strategy >= STRATEGY_FULL_SHARD;
    return (plan->schedule.micro_batches > 1 || level == LEVEL_NO_SHARD) &&
           overrides[level].strategy < (gint)strategy;
}

/* Raises some units to a level: the root, and the first or last @num blocks of each chunk, or that
 * part of them: REST_UNITS, EXPERTS_UNITS, 0 for all. */
typedef struct {
    Level level;
    gboolean of_root, from_end;
    guint num, part;
} Change;

/* One plan under work. */
typedef struct {
    const Plan *plan;
    Summariser *summariser;
    guint64 limit_bytes; /* of a floor */
    guint most_blocks;   /* of a chunk, that there may be room for */
    guint8 *levels;      /* Level, by unit, experts behind the blocks: the best so far */
    double step_s;       /* of it */
    Sharding sharding;
} Refiner;

static guint num_units(const Model *model)
{
    return 1 + model->layers + (model->experts.count > 0 ? model->layers : 0);
}

static void raise_unit(guint8 *level, const Change *change)
{
    *level = MAX(*level, (guint8)change->level);
}

static void raise_blocks(const Model *model, guint8 *levels, LayerRange range, const Change *change)
{
    for (guint block = range.first; block < range.first + range.count; block++) {
        if (change->part != EXPERTS_UNITS)
            raise_unit(&levels[block + 1], change);
        if (change->part != REST_UNITS && model_is_sparse(model, block))
            raise_unit(&levels[model->layers + block + 1], change);
    }
}

static void change_levels(const Plan *plan, const Change *change, guint8 *levels)
{
    const guint layers = plan->model->layers, pp = plan->layout.size[AXIS_PP];

    if (change->of_root)
        raise_unit(&levels[ROOT_UNIT], change);
    for (guint c = 0; change->num > 0 && c < schedule_chunks(&plan->schedule, pp); c++) {
        const LayerRange range = schedule_chunk(&plan->schedule, layers, pp, c);
        const guint num = MIN(change->num, range.count);
        const LayerRange some = {range.first + (change->from_end ? range.count - num : 0), num};

        raise_blocks(plan->model, levels, some, change);
    }
}

/* What an override of that part of a block says: nothing where both are alike and it is not of the
 * whole, or the reverse. */
static Level part_level(const Model *model, const guint8 *levels, guint unit, guint part)
{
    const gboolean sparse = unit > ROOT_UNIT && model_is_sparse(model, unit - 1);
    const guint8 rest = levels[unit], experts = sparse ? levels[model->layers + unit] : rest;

    if ((rest == experts) != (part == 0))
        return LEVEL_PLAN;
    return (Level)(part == EXPERTS_UNITS ? experts : rest);
}

/* One for each run of that part of blocks of a level; FALSE where they are too many. */
static gboolean add_overrides(Sharding *sharding, const Model *model, const guint8 *levels,
                              guint part)
{
    Level before = LEVEL_PLAN;

    for (guint unit = ROOT_UNIT; unit <= model->layers; unit++) {
        const Level level = part_level(model, levels, unit, part);
        const gboolean runs_on = unit > ROOT_UNIT + 1 && level == before;
        UnitOverride *entry = &sharding->overrides[sharding->num_overrides];

        before = level;
        if (level == LEVEL_PLAN)
            continue;
        if (runs_on) {
            entry[-1].last = part + unit;
            continue;
        }
        if (sharding->num_overrides == MAX_UNIT_OVERRIDES)
            return FALSE;
        *entry = overrides[level];
        entry->first = entry->last = part + unit;
        sharding->num_overrides++;
    }
    return TRUE;
}

static gboolean set_overrides(Sharding *sharding, const Model *model, const guint8 *levels)
{
    sharding->num_overrides = 0;
    return add_overrides(sharding, model, levels, 0) &&
           (model->experts.count == 0 || (add_overrides(sharding, model, levels, REST_UNITS) &&
                                          add_overrides(sharding, model, levels, EXPERTS_UNITS)));
}

/* The plan's choices with another sharding; what they point to is borrowed. */
static Plan *variant_new(const Plan *plan, const Sharding *sharding)
{
    Plan *variant = plan_new();

    variant->model = plan->model;
    variant->topology = plan->topology;
    variant->gpus = plan->gpus;
    variant->device = plan->device;
    variant->ranks_per_node = plan->ranks_per_node;
    variant->threads = plan->threads;
    variant->workload = plan->workload;
    variant->layout = plan->layout;
    variant->sharding = *sharding;
    variant->schedule = plan->schedule;
    variant->sequence_parallel = plan->sequence_parallel;
    variant->context = plan->context;
    variant->framework = plan->framework;
    return variant;
}

static void variant_free(Plan *variant)
{
    variant->model = NULL;
    variant->topology = NULL;
    plan_free(variant);
}

/* ---- one change ---- */

/* What a change leads to; FALSE where it changes nothing or is not legal. */
static gboolean change_sharding(const Refiner *refiner, const Change *change, guint8 *levels,
                                Sharding *sharding)
{
    const Plan *plan = refiner->plan;
    const guint units = num_units(plan->model);
    Choice choice = plan_choice(plan);

    memcpy(levels, refiner->levels, units);
    change_levels(plan, change, levels);
    *sharding = refiner->sharding;
    choice.sharding = sharding;
    return memcmp(levels, refiner->levels, units) != 0 &&
           set_overrides(sharding, plan->model, levels) &&
           legality_check(&choice, NULL) == VERDICT_OK;
}

static Summary summary_of(const Refiner *refiner, const Sharding *sharding)
{
    ProgramSpec spec = plan_spec(refiner->plan);

    spec.sharding = sharding;
    return summarise(refiner->summariser, &spec, G_MAXUINT64);
}

/* The best change so far. */
typedef struct {
    guint8 *levels;
    Sharding sharding;
    double step_s;
    gboolean found;
} Best;

/* FALSE where it is too large; one that is no faster counts as fitting. */
static gboolean try_change(const Refiner *refiner, const Change *change, Best *best)
{
    const guint units = num_units(refiner->plan->model);
    const PriceLimit limit = {.limit_s = best->step_s * (1 - CHANGE_GAIN)};
    g_autofree guint8 *levels = g_new(guint8, units);
    Sharding sharding;

    if (!change_sharding(refiner, change, levels, &sharding))
        return TRUE;
    const Summary summary = summary_of(refiner, &sharding);
    if (summary.floor_bytes > refiner->limit_bytes)
        return FALSE;
    if (summary.bound_s > limit.limit_s)
        return TRUE;
    Plan *variant = variant_new(refiner->plan, &sharding);
    const PriceLimit of_stage = {.limit_s = limit.limit_s,
                                 .stage = summary.stage,
                                 .summariser = refiner->summariser,
                                 .floor_bytes = summary.floor_bytes};
    const PriceResult result = plan_price_below(variant, &of_stage);
    if (result == PRICE_FITS) {
        memcpy(best->levels, levels, units);
        best->sharding = sharding;
        best->step_s = variant->prediction.step_seconds;
        best->found = TRUE;
    }
    variant_free(variant);
    return result != PRICE_TOO_LARGE;
}

/* ---- until nothing gains ---- */

/* Blocks of @change, or that part: one, all that there may be room for, and where those are too
 * large the most that fit, by halves.  FALSE where not even one fits. */
static gboolean try_numbers(const Refiner *refiner, Change change, Best *best)
{
    guint fits = 1, most = refiner->most_blocks;

    change.num = 1;
    if (!try_change(refiner, &change, best))
        return FALSE;
    change.num = most;
    while (fits < most) {
        if (try_change(refiner, &change, best))
            fits = change.num;
        else
            most = change.num - 1;
        change.num = (fits + most + 1) / 2;
    }
    return TRUE;
}

/* The last ones and the first ones, whole and by part; FALSE where no unit of them has room. */
static gboolean try_blocks(const Refiner *refiner, Level level, Best *best)
{
    static const guint parts[] = {0, REST_UNITS, EXPERTS_UNITS};
    const guint num = refiner->plan->model->experts.count > 0 ? G_N_ELEMENTS(parts) : 1;
    gboolean room = FALSE;

    for (guint p = 0; p < num; p++) {
        const Change last = {.level = level, .from_end = TRUE, .part = parts[p]};
        const Change first = {.level = level, .part = parts[p]};

        room |= try_numbers(refiner, last, best) && try_numbers(refiner, first, best);
    }
    return room;
}

/* Makes the best change; FALSE where none gains.  Where a block has no room at one level it has
 * none at the next. */
static gboolean improve(Refiner *refiner)
{
    const Plan *plan = refiner->plan;
    const guint units = num_units(plan->model);
    g_autofree guint8 *levels = g_memdup2(refiner->levels, units);
    Best best = {levels, refiner->sharding, refiner->step_s, FALSE};
    gboolean room = refiner->most_blocks > 0;

    for (guint l = LEVEL_PLAN + 1; l < NUM_LEVELS; l++) {
        const Change root = {.level = (Level)l, .of_root = TRUE};
        const Change but_experts = {
            .level = (Level)l, .of_root = TRUE, .num = plan->model->layers, .part = REST_UNITS};

        if (!is_offered((Level)l, plan))
            continue;
        if (l != LEVEL_KEPT || !plan->sharding.keep_root)
            try_change(refiner, &root, &best);
        if (plan->model->experts.count > 0)
            try_change(refiner, &but_experts, &best);
        room = room && try_blocks(refiner, (Level)l, &best);
    }
    memcpy(refiner->levels, best.levels, units);
    refiner->sharding = best.sharding;
    refiner->step_s = best.step_s;
    return best.found;
}

/* Takes the sharding if the whole step, every micro-batch of it, is as short as that. */
static void take(Plan *plan, const Sharding *sharding, double wanted_s, gboolean briefly)
{
    const Sharding alike = plan->sharding;
    const double alike_s = plan->prediction.step_seconds;
    gboolean (*price)(Plan *) = briefly ? plan_price_briefly : plan_price;

    plan->sharding = *sharding;
    if (price(plan) && plan->prediction.step_seconds <= wanted_s) {
        plan->alike_s = alike_s;
        return;
    }
    plan->sharding = alike;
    price(plan);
}

/* ---- what can be gained ---- */

static double held_bytes(const Plan *plan, double elements)
{
    return elements * dtype_bytes(plan->workload.recipe->compute) / plan->layout.size[AXIS_TP];
}

static double root_bytes(const Plan *plan)
{
    return held_bytes(plan, (double)model_unit_elements(plan->model, UNIT_ROOT));
}

/* Of a block without experts; where they are of several kinds, of the mean of all. */
static double block_bytes(const Plan *plan)
{
    const Model *model = plan->model;
    double elements = 0;

    if (model->num_kinds == 0)
        return held_bytes(plan, (double)model_unit_elements(model, UNIT_BLOCK));
    for (guint i = 0; i < model->layers; i++) {
        const Model one = model_of_kind(model, model_block_kind(model, i));

        elements += (double)model_unit_elements(&one, UNIT_BLOCK);
    }
    return held_bytes(plan, elements / model->layers);
}

/* Blocks of the fullest stage that can be whole for longer: those that there is memory for, or all,
 * where all but the gathered copies that are there anyway have room.  What is whole already needs
 * no more for it.  The rest of a block is small beside its experts: all may have room. */
static guint blocks_with_room(const Plan *plan, guint blocks)
{
    const Prediction *p = &plan->prediction;
    const guint copies = plan->sharding.live_units + 1; /* and the last block's */
    const double each = block_bytes(plan) * (1 - 1.0 / layout_shard_ranks(&plan->layout));
    const double room = (double)(p->memory_limit - p->memory_total) / each;

    if (plan->sharding.strategy < STRATEGY_FULL_SHARD || plan->model->experts.count > 0 ||
        room + copies >= blocks)
        return blocks;
    return (guint)room;
}

/* The fullest stage's blocks, and chunks. */
typedef struct {
    guint blocks, chunks;
} StageBlocks;

static StageBlocks fullest_stage(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    const guint stage = plan->prediction.rank / (plan->gpus / pp);
    StageBlocks found = {0, schedule_virtual_stages(&plan->schedule)};

    for (guint c = stage; c < schedule_chunks(&plan->schedule, pp); c += pp)
        found.blocks += schedule_chunk(&plan->schedule, plan->model->layers, pp, c).count;
    return found;
}

/* No more than what units that there is room for move, by their share of it: a root that is kept is
 * gathered half as often.  Twice that, as what is moved was late for what shared its links. */
static double most_saved_s(const Plan *plan, const UnitSavings *savings, StageBlocks stage,
                           guint with_room)
{
    const gboolean kept =
        plan->sharding.strategy >= STRATEGY_FULL_SHARD && plan->sharding.keep_root;
    const double block = block_bytes(plan);
    const double root = root_bytes(plan) * (kept ? 0.5 : 1);
    const double part = (with_room * block + root) / (stage.blocks * block + root);

    return MIN(plan->prediction.step_seconds - savings->bound_s, 2 * savings->moved_s * part);
}

/* ---- all plans ---- */

/* Those that are worked on at once: so many, on however many cores, that all find the same. */
enum { AT_ONCE = 2 };

typedef struct {
    const SearchRequest *request;
    GPtrArray *plans;
    guint first;
    double wanted_s;        /* of a sequence: what is short enough to be taken */
    GPtrArray *summarisers; /* by worker */
} Refine;

static void refine(const Refine *all, Plan *plan, Summariser *summariser)
{
    enum { MOST_CHANGES = 8 };
    const double alike_s = plan->prediction.step_seconds;
    const double wanted_s = all->wanted_s * plan->workload.global_batch;
    const UnitSavings savings = plan_unit_savings(plan);
    const StageBlocks stage = fullest_stage(plan);
    const guint with_room = blocks_with_room(plan, stage.blocks);
    g_autofree guint8 *levels = g_new0(guint8, num_units(plan->model));
    Refiner refiner = {.plan = plan,
                       .summariser = summariser,
                       .limit_bytes = plan_floor_limit(plan),
                       .most_blocks = (with_room + stage.chunks - 1) / stage.chunks,
                       .levels = levels,
                       .step_s = alike_s,
                       .sharding = plan->sharding};

    if (alike_s - most_saved_s(plan, &savings, stage, with_room) > wanted_s)
        return;
    for (guint i = 0; i < MOST_CHANGES && savings.bound_s < refiner.step_s * (1 - CHANGE_GAIN); i++)
        if (!improve(&refiner))
            break;
    if (refiner.step_s <= wanted_s)
        take(plan, &refiner.sharding, wanted_s, all->request->briefly);
}

/* Whether the step would be the shortest with no communication that is not hidden, but for a bubble
 * of that part of it. */
static gboolean could_be_shortest(const Refine *all, const Plan *plan, double bubble)
{
    const Prediction *p = &plan->prediction;
    const double saved_s = p->exposed_communication_seconds - bubble * p->step_seconds;

    return p->step_seconds - saved_s < all->wanted_s * plan->workload.global_batch;
}

/* Of any unit. */
static guint most_shard_ranks(const Plan *plan)
{
    const guint ranks = layout_shard_ranks(&plan->layout);
    const guint of_experts = layout_expert_block(&plan->layout) / layout_ep(&plan->layout);

    return plan->model->experts.count > 0 ? MAX(ranks, of_experts) : ranks;
}

/* Whether something could be gained at all: units are sharded, and without communication the step
 * would be the shortest. */
static gboolean is_open(const Refine *all, const Plan *plan)
{
    if (plan->sharding.strategy == STRATEGY_NO_SHARD || most_shard_ranks(plan) == 1 ||
        !could_be_shortest(all, plan, 0))
        return FALSE;
    return could_be_shortest(all, plan,
                             all->request->briefly ? plan_bubble_fraction(plan)
                                                   : plan->prediction.bubble_fraction);
}

static void refine_plan(gpointer data, guint i, guint worker)
{
    const Refine *all = data;
    Plan *plan = g_ptr_array_index(all->plans, all->first + i);

    if (is_open(all, plan))
        refine(all, plan, g_ptr_array_index(all->summarisers, worker));
}

static void find_wanted(Refine *all)
{
    all->wanted_s = INFINITY;
    for (guint i = 0; i < all->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(all->plans, i);
        const double step_s = plan->prediction.step_seconds / plan->workload.global_batch;

        all->wanted_s = MIN(all->wanted_s, step_s * (1 - UNIT_CHOICE_GAIN));
    }
}

/* Of the list, those at its head that together are simulated quickly: of all stages, but not of
 * every micro-batch (price.h). */
static guint num_refined(const GPtrArray *plans)
{
    enum { MOST_OPS = 20000, LOOKED_AT = 7 };
    double ops = 0;

    for (guint i = 0; i < plans->len; i++) {
        const Plan *plan = g_ptr_array_index(plans, i);
        const double pp = plan->layout.size[AXIS_PP];
        const double part = LOOKED_AT * pp / plan->schedule.micro_batches;

        ops += (double)plan->ops * pp * MIN(part, 1);
        if (ops > MOST_OPS)
            return i;
    }
    return plans->len;
}

void unit_choice_refine(const SearchRequest *request, const Candidates *found, GPtrArray *plans)
{
    g_autoptr(GPtrArray) summarisers =
        g_ptr_array_new_with_free_func((GDestroyNotify)summariser_free);
    const guint num = num_refined(plans);
    Refine all = {.request = request, .plans = plans, .summarisers = summarisers};

    if (!request->searches_units || request->strategy >= 0 || request->sort == SORT_MEMORY ||
        request->sort == SORT_PARETO || request->sharding.num_overrides > 0 ||
        framework_is_foreign(request->framework))
        return;
    for (guint w = 0; plans->len > 0 && w < parallel_workers(AT_ONCE); w++) {
        const SimulateContext context = plan_context(g_ptr_array_index(plans, 0));

        g_ptr_array_add(summarisers,
                        summariser_new(&context, g_ptr_array_index(found->summarisers, 0)));
    }
    for (all.first = 0; all.first < num; all.first += AT_ONCE) {
        find_wanted(&all);
        parallel_run(MIN(AT_ONCE, num - all.first), refine_plan, &all);
    }
}
