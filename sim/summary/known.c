#include "sim/summary/known.h"

#include "sim/cost/collective.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum { KEY_PARTS = 8 };

/* What a cost depends on; unused parts are 0. */
typedef struct {
    guint64 part[KEY_PARTS];
} Key;

typedef struct {
    Key key;
    gpointer value;
} Entry;

/* Layouts are asked about in order, so most ask for what the one before did. */
typedef struct {
    GHashTable *entries; /* Key -> Entry, which starts with it */
    const Entry *newest;
    GDestroyNotify free;
} Table;

/* What takes longest to look at, of all threads.  (GLib's mutex would look like a race to TSan.) */
typedef struct {
    gint users; /* atomic */
    pthread_mutex_t mutex;
    Table blocks, roots, shards, flows;
    GHashTable *moments; /* GBytes -> Moments */
} Shared;

struct Known {
    SimulateContext context;
    Shared *shared;
    Table stages, shards, least_shards, shapes, extremes, flows, timetables, scalars, exchanges;
    GHashTable *overrides; /* GBytes -> their number, from 1 */
    Table looked_at; /* GArray of LookedAt, by all that stages depend on but the micro-batch */
    guint64 timetable_passes; /* of those known */
};

typedef struct {
    guint micro_batch;
    const StageCost *cost;
} LookedAt;

typedef struct {
    guint pp;
    Timetable *tables;
} Timetables;

static void timetables_clear(gpointer data)
{
    Timetables *known = data;

    timetables_free(known->tables, known->pp);
    g_free(known);
}

static guint key_hash(gconstpointer data)
{
    const Key *key = data;
    guint64 hash = 0;

    for (guint i = 0; i < KEY_PARTS; i++)
        hash = (hash ^ key->part[i]) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
    return (guint)(hash >> 32);
}

static gboolean key_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(Key)) == 0;
}

static void table_init(Table *table, GDestroyNotify free)
{
    *table =
        (Table){.entries = g_hash_table_new_full(key_hash, key_equal, NULL, g_free), .free = free};
}

static void table_clear(Table *table)
{
    GHashTableIter iter;
    gpointer entry;

    g_hash_table_iter_init(&iter, table->entries);
    while (g_hash_table_iter_next(&iter, NULL, &entry))
        table->free(((Entry *)entry)->value);
    g_hash_table_unref(table->entries);
}

/* NULL: not yet there. */
static gpointer table_find(Table *table, const Key *key)
{
    if (table->newest == NULL || !key_equal(&table->newest->key, key)) {
        const Entry *entry = g_hash_table_lookup(table->entries, key);

        if (entry == NULL)
            return NULL;
        table->newest = entry;
    }
    return table->newest->value;
}

static gpointer table_add(Table *table, const Key *key, gpointer value)
{
    Entry *entry = g_new(Entry, 1);

    *entry = (Entry){*key, value};
    g_hash_table_insert(table->entries, &entry->key, entry);
    table->newest = entry;
    return value;
}

static Shared *shared_new(void)
{
    Shared *shared = g_new0(Shared, 1);

    pthread_mutex_init(&shared->mutex, NULL);
    table_init(&shared->blocks, g_free);
    table_init(&shared->roots, g_free);
    table_init(&shared->shards, g_free);
    table_init(&shared->flows, (GDestroyNotify)flow_free);
    shared->moments = g_hash_table_new_full(
        g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, (GDestroyNotify)moments_free);
    return shared;
}

static void shared_unref(Shared *shared)
{
    if (!g_atomic_int_dec_and_test(&shared->users))
        return;
    table_clear(&shared->blocks);
    table_clear(&shared->roots);
    table_clear(&shared->shards);
    table_clear(&shared->flows);
    g_hash_table_unref(shared->moments);
    pthread_mutex_destroy(&shared->mutex);
    g_free(shared);
}

/* NULL: no thread has looked at it. */
static gpointer shared_find(Shared *shared, Table *table, const Key *key)
{
    pthread_mutex_lock(&shared->mutex);
    gpointer value = table_find(table, key);

    pthread_mutex_unlock(&shared->mutex);
    return value;
}

/* Takes; another thread may have been first, with the same: then that is returned. */
static gpointer shared_add(Shared *shared, Table *table, const Key *key, gpointer value)
{
    pthread_mutex_lock(&shared->mutex);
    gpointer first = table_find(table, key);

    if (first == NULL)
        first = table_add(table, key, value);
    else
        table->free(value);
    pthread_mutex_unlock(&shared->mutex);
    return first;
}

static void array_free(gpointer array)
{
    g_array_unref(array);
}

static void keep(gpointer value)
{
    (void)value;
}

Known *known_new(const SimulateContext *context, Known *of_others)
{
    Known *known = g_new0(Known, 1);

    known->context = *context;
    known->shared = of_others == NULL ? shared_new() : of_others->shared;
    g_atomic_int_inc(&known->shared->users);
    table_init(&known->stages, g_free);
    table_init(&known->shards, keep);
    table_init(&known->least_shards, g_free);
    table_init(&known->shapes, (GDestroyNotify)stage_shape_free);
    table_init(&known->extremes, g_free);
    table_init(&known->flows, keep);
    table_init(&known->timetables, timetables_clear);
    table_init(&known->scalars, g_free);
    table_init(&known->exchanges, g_free);
    known->overrides =
        g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, NULL);
    table_init(&known->looked_at, array_free);
    return known;
}

void known_free(Known *known)
{
    if (known == NULL)
        return;
    table_clear(&known->stages);
    table_clear(&known->shards);
    table_clear(&known->least_shards);
    table_clear(&known->shapes);
    table_clear(&known->extremes);
    table_clear(&known->flows);
    table_clear(&known->timetables);
    table_clear(&known->scalars);
    table_clear(&known->exchanges);
    g_hash_table_unref(known->overrides);
    table_clear(&known->looked_at);
    shared_unref(known->shared);
    g_free(known);
}

const SimulateContext *known_context(const Known *known)
{
    return &known->context;
}

const Framework *known_framework(const Known *known)
{
    return durations_framework(&known->context);
}

/* ---- costs ---- */

/* The last stage's block stands for one between. */
static StagePlace looked_at(StagePlace place)
{
    return place == STAGE_MIDDLE ? STAGE_LAST : place;
}

static Key stage_key(const ProgramSpec *spec, StagePlace place, guint micro_batch)
{
    const Schedule *schedule = &spec->schedule;
    const guint64 gradients = program_gradient_dtype(spec);

    return (Key){{looked_at(place) | gradients << 8, spec->layout.size[AXIS_TP],
                  spec->layout.size[AXIS_CP], micro_batch, schedule->recompute, spec->context,
                  schedule->kind == SCHEDULE_ZB_H1 ? 1 : 0, layout_ep(&spec->layout)}};
}

static void note_looked_at(Known *known, const ProgramSpec *spec, StagePlace place,
                           const StageCost *cost)
{
    const LookedAt one = {spec->schedule.micro_batch, cost};
    const Key key = stage_key(spec, place, 0);
    GArray *all = table_find(&known->looked_at, &key);

    if (all == NULL)
        all = table_add(&known->looked_at, &key, g_array_new(FALSE, FALSE, sizeof(LookedAt)));
    g_array_append_val(all, one);
}

/* Blocks without experts cost the same whatever ep is. */
static const BlockCost *known_block(Known *known, const ProgramSpec *spec, guint kind)
{
    static const BlockCost none;
    Table *blocks = &known->shared->blocks;
    ProgramSpec least = *spec;

    if (!model_has_kind(spec->model, kind))
        return &none;
    if (!model_kind_is_sparse(spec->model, kind))
        least.layout.ep = 0;
    Key key = stage_key(&least, STAGE_MIDDLE, spec->schedule.micro_batch);
    key.part[0] |= (guint64)kind << 16;
    const BlockCost *found = shared_find(known->shared, blocks, &key);

    if (found != NULL)
        return found;
    BlockCost *cost = g_new(BlockCost, 1);
    *cost = probe_block(&least, &known->context, STAGE_MIDDLE, kind);
    return shared_add(known->shared, blocks, &key, cost);
}

/* It costs the same however blocks are computed, but for the @scratch bytes that they need. */
static const RootCost *known_root(Known *known, const ProgramSpec *spec, StagePlace place,
                                  guint64 scratch)
{
    Table *roots = &known->shared->roots;
    ProgramSpec least = *spec;

    least.schedule.kind = SCHEDULE_1F1B;
    least.schedule.recompute = RECOMPUTE_NONE;
    least.context = CONTEXT_RING;
    least.layout.ep = 0;
    Key key = stage_key(&least, place, spec->schedule.micro_batch);
    key.part[KEY_PARTS - 1] = scratch; /* in place of ep */
    const RootCost *found = shared_find(known->shared, roots, &key);

    if (found != NULL)
        return found;
    RootCost *cost = g_new(RootCost, 1);
    *cost = probe_root(&least, &known->context, looked_at(place), scratch);
    return shared_add(known->shared, roots, &key, cost);
}

const StageCost *known_stage(Known *known, const ProgramSpec *spec, StagePlace place)
{
    const Key key = stage_key(spec, place, spec->schedule.micro_batch);
    StageCost *cost = table_find(&known->stages, &key);
    guint64 scratch = G_MAXUINT64;

    if (cost != NULL)
        return cost;
    cost = g_new0(StageCost, 1);
    for (guint kind = 0; kind < model_num_kinds(spec->model); kind++) {
        cost->block[kind] = known_block(known, spec, kind);
        if (model_has_kind(spec->model, kind)) /* a stage may have blocks of any one kind alone */
            scratch = MIN(scratch, cost->block[kind]->scratch);
    }
    cost->root = *known_root(known, spec, place, scratch);
    note_looked_at(known, spec, place, cost);
    return table_add(&known->stages, &key, cost);
}

const StageCost *known_stage_below(Known *known, const ProgramSpec *spec, StagePlace place)
{
    const guint micro_batch = spec->schedule.micro_batch;
    const Key key = stage_key(spec, place, 0);
    const GArray *all = table_find(&known->looked_at, &key);
    const LookedAt *most = NULL;

    for (guint i = 0; all != NULL && i < all->len; i++) {
        const LookedAt *one = &g_array_index(all, LookedAt, i);

        if (one->micro_batch <= micro_batch &&
            (most == NULL || one->micro_batch > most->micro_batch))
            most = one;
    }
    return most == NULL || most->micro_batch == micro_batch ? NULL : most->cost;
}

static Key shard_key(const ProgramSpec *spec, StagePlace place, Strategy strategy)
{
    const guint several = MIN(spec->schedule.micro_batches, 3);

    return (Key){{looked_at(place) | (guint64)strategy << 8, spec->layout.size[AXIS_TP],
                  layout_shard_ranks(&spec->layout), spec->layout.size[AXIS_DP_REPLICATE],
                  spec->sharding->accumulate_sharded ? 1 : 0, several, layout_ep(&spec->layout)}};
}

const ShardCost *known_shard(Known *known, const ProgramSpec *spec, StagePlace place,
                             Strategy strategy)
{
    const Key key = shard_key(spec, place, strategy);
    ShardCost *cost = table_find(&known->shards, &key);

    if (cost != NULL)
        return cost;
    cost = shared_find(known->shared, &known->shared->shards, &key);
    if (cost == NULL) {
        cost = probe_shard(spec, &known->context, looked_at(place), strategy);
        cost = shared_add(known->shared, &known->shared->shards, &key, cost);
    }
    return table_add(&known->shards, &key, cost);
}

static UnitCost state_of(const UnitCost *unit)
{
    return (UnitCost){.state_bytes = unit->state_bytes, .beside_bytes = unit->beside_bytes};
}

const ShardCost *known_least_shard(Known *known, const ProgramSpec *spec, StagePlace place)
{
    const Strategy strategy = STRATEGY_FULL_SHARD;
    Sharding sharding = *spec->sharding;
    ProgramSpec full = *spec;
    sharding.accumulate_sharded = TRUE;
    full.sharding = &sharding;
    full.layout.size[AXIS_DP_REPLICATE] = 1; /* hold as much state each */
    const Key key = shard_key(&full, place, strategy);
    ShardCost *least = table_find(&known->least_shards, &key);

    if (least != NULL)
        return least;
    const ShardCost *all = known_shard(known, &full, place, strategy);
    least = shard_cost_new(spec->model);
    for (guint u = 0; u <= model_num_kinds(spec->model); u++)
        least->units[u] = state_of(&all->units[u]);
    least->root = state_of(&all->root);
    return table_add(&known->least_shards, &key, least);
}

/* The same overrides have the same number; none have 0. */
static guint overrides_number(Known *known, const Sharding *sharding)
{
    const guint num = sharding->num_overrides;

    if (num == 0)
        return 0;
    GBytes *bytes = g_bytes_new(sharding->overrides, num * sizeof sharding->overrides[0]);
    guint number = GPOINTER_TO_UINT(g_hash_table_lookup(known->overrides, bytes));

    if (number == 0) {
        number = g_hash_table_size(known->overrides) + 1;
        g_hash_table_insert(known->overrides, g_steal_pointer(&bytes), GUINT_TO_POINTER(number));
    }
    g_clear_pointer(&bytes, g_bytes_unref);
    return number;
}

const StageShape *known_shape(Known *known, const ProgramSpec *spec, guint stage)
{
    const Schedule *schedule = &spec->schedule;
    const Key key = {{stage, spec->layout.size[AXIS_PP], schedule_virtual_stages(schedule),
                      spec->sharding->strategy,
                      schedule_has_rest(schedule) ? 1u + schedule->recompute_layers[stage] : 0,
                      overrides_number(known, spec->sharding)}};
    StageShape *shape = table_find(&known->shapes, &key);

    return shape != NULL ? shape : table_add(&known->shapes, &key, stage_shape_new(spec, stage));
}

/* The first and the last stage that has most of what is counted. */
static void find_most(const guint64 *counts, guint pp, guint *first, guint *last)
{
    *first = *last = 0;
    for (guint s = 1; s < pp; s++) {
        if (counts[s] > counts[*first])
            *first = s;
        if (counts[s] >= counts[*last])
            *last = s;
    }
}

/* What tells blocks of several kinds apart: experts, or how many parameters they have. */
static guint64 block_weight(const Model *model, guint kind)
{
    const Model one = model_of_kind(model, kind);

    return model->num_kinds == 0 ? (model_kind_is_sparse(model, kind) ? 1 : 0)
                                 : model_unit_elements(&one, UNIT_BLOCK);
}

static guint *find_extremes(const ProgramSpec *spec)
{
    const guint pp = spec->layout.size[AXIS_PP], chunks = schedule_chunks(&spec->schedule, pp);
    const guint num_kinds = model_num_kinds(spec->model);
    g_autofree guint64 *layers = g_new0(guint64, pp);
    g_autofree guint64 *weight = g_new0(guint64, pp);
    guint64 of_kind[MAX_BLOCK_KINDS];
    guint *found = g_new0(guint, NUM_EXTREMES);

    for (guint k = 0; k < num_kinds; k++)
        of_kind[k] = block_weight(spec->model, k);
    for (guint c = 0; c < chunks; c++) {
        const BlockCounts blocks = chunk_blocks(spec, c);

        for (guint k = 0; k < num_kinds; k++) {
            layers[c % pp] += blocks.of[k];
            weight[c % pp] += blocks.of[k] * of_kind[k];
        }
    }
    found[EXTREME_LAST] = pp - 1;
    find_most(layers, pp, &found[EXTREME_FIRST_LARGEST], &found[EXTREME_LAST_LARGEST]);
    if (num_kinds > 1)
        find_most(weight, pp, &found[EXTREME_FIRST_HEAVIEST], &found[EXTREME_LAST_HEAVIEST]);
    return found;
}

const guint *known_extremes(Known *known, const ProgramSpec *spec)
{
    const Key key = {{spec->layout.size[AXIS_PP], schedule_virtual_stages(&spec->schedule)}};
    guint *found = table_find(&known->extremes, &key);

    return found != NULL ? found : table_add(&known->extremes, &key, find_extremes(spec));
}

static Key flow_key(const Schedule *schedule, guint pp)
{
    return (Key){{pp, schedule->kind, schedule_virtual_stages(schedule), schedule->micro_batches}};
}

static const Flow *flow_of(Known *known, const Schedule *schedule, guint pp);

static const Flow *flow_of_fewer(Known *known, const Schedule *schedule, guint pp,
                                 guint micro_batches)
{
    Schedule fewer = *schedule;

    fewer.micro_batches = micro_batches;
    return flow_of(known, &fewer, pp);
}

static Flow *find_flow(Known *known, const Schedule *schedule, guint pp)
{
    const guint filled = flow_filled(schedule->micro_batches, pp);

    if (filled == 0)
        return flow_new(schedule, pp);
    return flow_extended(schedule, pp, flow_of_fewer(known, schedule, pp, filled),
                         flow_of_fewer(known, schedule, pp, filled + pp));
}

static const Flow *flow_of(Known *known, const Schedule *schedule, guint pp)
{
    Table *shared = &known->shared->flows;
    const Key key = flow_key(schedule, pp);
    Flow *flow = table_find(&known->flows, &key);

    if (flow != NULL)
        return flow;
    flow = shared_find(known->shared, shared, &key);
    if (flow == NULL)
        flow = shared_add(known->shared, shared, &key, find_flow(known, schedule, pp));
    return table_add(&known->flows, &key, flow);
}

const Flow *known_flow(Known *known, const ProgramSpec *spec)
{
    return flow_of(known, &spec->schedule, spec->layout.size[AXIS_PP]);
}

/* A pass takes about 100 bytes of a timetable, and there may be 100,000 of them.  Beyond so many
 * passes all are forgotten: what is walked next has other schedules. */
static void make_room(Known *known, guint64 passes)
{
    enum { MOST_PASSES = 1 << 17 };

    if (known->timetable_passes + passes > MOST_PASSES) {
        table_clear(&known->timetables);
        table_init(&known->timetables, timetables_clear);
        known->timetable_passes = 0;
    }
    known->timetable_passes += passes;
}

const Timetable *known_timetables(Known *known, const ProgramSpec *spec)
{
    const Schedule *schedule = &spec->schedule;
    const guint pp = spec->layout.size[AXIS_PP];
    const Key key = flow_key(schedule, pp);
    Timetables *found = table_find(&known->timetables, &key);

    if (found == NULL) {
        make_room(known, (guint64)schedule_chunks(schedule, pp) * schedule->micro_batches);
        found = g_new(Timetables, 1);
        found->pp = pp;
        found->tables = timetables_new(schedule, pp);
        table_add(&known->timetables, &key, found);
    }
    return found->tables;
}

/* ---- scalars and exchanges ---- */

/* The sum, or the maximum, of @elements numbers; its seconds. */
static double add_reduced(Known *known, const ProgramSpec *spec, const char *purpose,
                          guint64 elements, DType dtype, ScalarCost *cost)
{
    const guint ranks = purpose_size(spec, purpose);
    const CollectiveContext where = {
        .topology = known->context.topology,
        .ranks = ranks,
        .span = spec->layout.size[AXIS_PP] == 1
                    ? purpose_span(spec, purpose)
                    : span_of_reach(purpose_reach(spec, purpose), ranks),
        .ranks_per_node = known->context.ranks_per_node,
    };
    const guint64 chunk = (elements + where.ranks - 1) / where.ranks;
    const double seconds =
        collective_seconds(VOLUME_ALL_REDUCE, elements * dtype_bytes(dtype), dtype, &where);

    cost->all_s += seconds;
    cost->volume_bytes += 2 * (where.ranks - 1) * chunk * dtype_bytes(dtype);
    return seconds;
}

static double add_scalar(Known *known, const ProgramSpec *spec, const char *purpose,
                         ScalarCost *cost)
{
    return add_reduced(known, spec, purpose, 1, DTYPE_FP64, cost);
}

static gboolean any_unit(const ProgramSpec *spec, gboolean sharded)
{
    const Model *model = spec->model;
    const guint units = spec->sharding->num_overrides == 0 ? 1 : model->layers + 1;

    for (guint u = 0; u < units; u++) {
        const guint experts =
            u > ROOT_UNIT && model_is_sparse(model, u - 1) ? EXPERTS_UNITS + u : u;

        if ((sharding_unit_strategy(spec->sharding, u) != STRATEGY_NO_SHARD) == sharded ||
            (sharding_unit_strategy(spec->sharding, experts) != STRATEGY_NO_SHARD) == sharded)
            return TRUE;
    }
    return FALSE;
}

/* As pass_shard() and pass_optimizer() add them.  With several stages only a sum of the norm is
 * known to come after all else; where whole and sharded units have one each, a stage need not end
 * with its slower one. */
static ScalarCost scalar_cost(Known *known, const ProgramSpec *spec)
{
    const guint pp = spec->layout.size[AXIS_PP];
    const gboolean alone = pp == 1 && spec->layout.size[AXIS_TP] == 1;
    ScalarCost cost = {.norm_s = INFINITY};

    if (program_has_scales(spec))
        add_reduced(known, spec, alone ? "shard" : "norm", program_scales(spec), DTYPE_FP32, &cost);
    add_scalar(known, spec, "data", &cost);
    add_scalar(known, spec, pp == 1 ? "data" : "loss", &cost);
    if (any_unit(spec, FALSE))
        cost.norm_s = alone ? 0 : add_scalar(known, spec, "model", &cost);
    if (any_unit(spec, TRUE)) {
        const double seconds = add_scalar(known, spec, alone ? "shard" : "norm", &cost);

        cost.norm_s = MIN(cost.norm_s, seconds);
    }
    if (pp > 1)
        cost.all_s = 0;
    return cost;
}

const ScalarCost *known_scalars(Known *known, const ProgramSpec *spec)
{
    const guint *size = spec->layout.size;
    const Key key = {{size[AXIS_PP], size[AXIS_DP_REPLICATE], size[AXIS_DP_SHARD], size[AXIS_CP],
                      size[AXIS_TP], any_unit(spec, FALSE) ? 1 : 0, any_unit(spec, TRUE) ? 1 : 0,
                      program_has_scales(spec) ? 1 : 0}};
    ScalarCost *cost = table_find(&known->scalars, &key);

    if (cost != NULL)
        return cost;
    cost = g_new(ScalarCost, 1);
    *cost = scalar_cost(known, spec);
    return table_add(&known->scalars, &key, cost);
}

double known_exchange_s(Known *known, const ProgramSpec *spec, guint64 bytes)
{
    const Framework *framework = framework_or_default(known->context.framework);
    const guint parts =
        framework->splits_messages && !spec->sequence_parallel ? spec->layout.size[AXIS_TP] : 1;
    const Key key = {{layout_world(&spec->layout), spec->layout.size[AXIS_PP], bytes / parts}};
    double *seconds = table_find(&known->exchanges, &key);

    if (seconds != NULL)
        return *seconds;
    const CollectiveContext where = {
        .topology = known->context.topology,
        .ranks = spec->layout.size[AXIS_PP],
        .span = purpose_span(spec, "pp"),
        .ranks_per_node = known->context.ranks_per_node,
    };
    seconds = g_new(double, 1);
    *seconds =
        framework_exposed(framework, "pp", OP_EXCHANGE, FALSE) *
        collective_seconds(VOLUME_EXCHANGE, bytes / parts, spec->workload->recipe->compute, &where);
    return *(double *)table_add(&known->exchanges, &key, seconds);
}

const Moments *known_moments(Known *known, GBytes *key)
{
    Shared *shared = known->shared;

    pthread_mutex_lock(&shared->mutex);
    const Moments *moments = g_hash_table_lookup(shared->moments, key);

    pthread_mutex_unlock(&shared->mutex);
    return moments;
}

const Moments *known_add_moments(Known *known, GBytes *key, Moments *moments)
{
    Shared *shared = known->shared;

    pthread_mutex_lock(&shared->mutex);
    const Moments *first = g_hash_table_lookup(shared->moments, key);

    if (first == NULL) {
        g_hash_table_insert(shared->moments, g_bytes_ref(key), moments);
        first = moments;
    } else {
        moments_free(moments);
    }
    pthread_mutex_unlock(&shared->mutex);
    return first;
}
