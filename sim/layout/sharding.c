#include "sim/layout/sharding.h"

#include "sim/base/names.h"

static const char *const strategy_names[NUM_STRATEGIES] = {
    [STRATEGY_NO_SHARD] = "no_shard",           [STRATEGY_SHARD_OPTIMIZER] = "shard_optimizer",
    [STRATEGY_SHARD_GRAD_OP] = "shard_grad_op", [STRATEGY_FULL_SHARD] = "full_shard",
    [STRATEGY_HYBRID_SHARD] = "hybrid_shard",
};

static const char *const form_names[NUM_FORMS] = {
    [FORM_PER_PARAMETER] = "per_parameter",
    [FORM_FLAT] = "flat",
};

const Sharding sharding_default = {
    .strategy = STRATEGY_FULL_SHARD,
    .form = FORM_PER_PARAMETER,
    .prefetch = 1,
    .live_units = 2,
    .keep_root = TRUE,
    .keep_last = TRUE,
    .accumulate_sharded = TRUE,
};

const char *strategy_name(Strategy strategy)
{
    g_assert(strategy < NUM_STRATEGIES);
    return strategy_names[strategy];
}

gboolean strategy_from_name(const char *name, Strategy *strategy)
{
    for (guint i = 0; i < NUM_STRATEGIES; i++) {
        if (g_ascii_strcasecmp(name, strategy_names[i]) == 0) {
            *strategy = (Strategy)i;
            return TRUE;
        }
    }
    return FALSE;
}

const char *form_name(Form form)
{
    g_assert(form < NUM_FORMS);
    return form_names[form];
}

gboolean form_from_name(const char *name, Form *form)
{
    guint value;

    if (!name_find(name, form_names, NUM_FORMS, &value))
        return FALSE;
    *form = (Form)value;
    return TRUE;
}

static guint64 divide_up(guint64 a, guint64 b)
{
    return a / b + (a % b != 0);
}

/* Appends a piece of @chunk elements a rank. */
static void add_piece(UnitMap *map, guint64 chunk)
{
    map->pieces[map->num_pieces++] = (ShardPiece){
        .shard_offset = map->shard_elements,
        .full_offset = map->full_elements,
        .chunk = chunk,
    };
    map->shard_elements += chunk;
    map->full_elements += chunk * map->ranks;
}

UnitMap *unit_map_new(const GArray *params, guint ranks, Form form)
{
    g_assert(ranks >= 1);

    UnitMap *map = g_new0(UnitMap, 1);

    map->ranks = ranks;
    map->form = form;
    map->num_params = params->len;
    map->params = g_new0(UnitParam, params->len);
    map->pieces = g_new0(ShardPiece, MAX(params->len, 1));

    for (guint i = 0; i < params->len; i++) {
        const ParamShape *shape = &g_array_index(params, ParamShape, i);
        const gboolean flat = form == FORM_FLAT;

        map->params[i] = (UnitParam){
            .full_offset = flat ? map->elements : map->full_elements,
            .rows = shape->rows,
            .cols = shape->cols,
            .dims = shape->dims,
            .role = shape->role,
            .copies = 1,
        };
        map->elements += shape->rows * shape->cols;
        if (!flat)
            add_piece(map, divide_up(shape->rows, ranks) * shape->cols);
    }
    if (form == FORM_FLAT)
        add_piece(map, divide_up(map->elements, ranks));
    return map;
}

void unit_map_free(UnitMap *map)
{
    if (map == NULL)
        return;
    g_free(map->params);
    g_free(map->pieces);
    g_free(map);
}

guint64 unit_map_param_bits(const UnitMap *map)
{
    guint64 bits = 0;

    for (guint p = 0; p < map->num_params; p++)
        bits |= map->params[p].rows == 0 ? 0 : G_GUINT64_CONSTANT(1) << (p % 62);
    return bits;
}

gboolean unit_map_in_set(const UnitMap *map, guint piece, ParamSet set)
{
    g_assert(set == PARAMS_ALL || map->form == FORM_PER_PARAMETER);
    return set == PARAMS_ALL || (map->params[piece].dims >= 2) == (set == PARAMS_MATRICES);
}

guint64 unit_map_set_elements(const UnitMap *map, ParamSet set)
{
    guint64 elements = 0;

    for (guint p = 0; p < map->num_pieces; p++)
        elements += unit_map_in_set(map, p, set) ? map->pieces[p].chunk : 0;
    return elements;
}

/* A rank holds [rank * chunk, (rank + 1) * chunk) of its piece; the span is what that range and the
 * parameter have in common.  Positions below count from the start of the piece. */
ShardSpan unit_map_span(const UnitMap *map, guint param, guint rank)
{
    g_assert(param < map->num_params && rank < map->ranks);

    const UnitParam *p = &map->params[param];
    const ShardPiece *piece = &map->pieces[map->form == FORM_FLAT ? 0 : param];
    const guint64 first = p->full_offset - piece->full_offset;
    const guint64 last = first + p->rows * p->cols;
    const guint64 own_first = rank * piece->chunk, own_last = own_first + piece->chunk;
    const guint64 begin = CLAMP(own_first, first, last);
    const guint64 end = CLAMP(own_last, begin, last);

    return (ShardSpan){
        /* An empty span may lie outside the rank's range: the nearest end stands for it. */
        .shard_offset = piece->shard_offset + CLAMP(begin, own_first, own_last) - own_first,
        .full_offset = piece->full_offset + begin,
        .start = begin - first,
        .elements = end - begin,
    };
}

static gboolean names_unit(const UnitOverride *entry, guint unit)
{
    const gboolean part = entry->first >= REST_UNITS; /* of blocks */

    if (part && unit < REST_UNITS)
        unit += REST_UNITS;
    else if (!part)
        unit = sharding_block(unit);
    return entry->first <= unit && unit <= entry->last;
}

/* A unit's override of one field; the last one that names the unit and the field holds. */
static gint override_of(const Sharding *sharding, guint unit, gboolean keep)
{
    gint found = -1;

    g_assert(sharding->num_overrides <= MAX_UNIT_OVERRIDES);
    for (guint i = 0; i < sharding->num_overrides; i++) {
        const UnitOverride *entry = &sharding->overrides[i];
        const gint value = keep ? entry->keep : entry->strategy;

        if (names_unit(entry, unit) && value >= 0)
            found = value;
    }
    return found;
}

Strategy sharding_unit_strategy(const Sharding *sharding, guint unit)
{
    const gint strategy = override_of(sharding, unit, FALSE);

    return strategy >= 0 ? (Strategy)strategy : sharding->strategy;
}

gboolean sharding_unit_reduces_each(const Sharding *sharding, guint unit)
{
    return sharding->accumulate_sharded &&
           sharding_unit_strategy(sharding, unit) > STRATEGY_SHARD_OPTIMIZER;
}

gboolean sharding_offloads(const Sharding *sharding)
{
    return sharding->offload.optimizer != TIER_DEVICE ||
           sharding->offload.parameters != TIER_DEVICE;
}

/* Only full and hybrid sharding have the choice: under the other strategies the whole parameters
 * are there from forward to backward by definition. */
gboolean sharding_unit_kept(const Sharding *sharding, guint unit, guint num_blocks)
{
    const Strategy strategy = sharding_unit_strategy(sharding, unit);
    const gint keep = override_of(sharding, unit, TRUE);

    if (strategy != STRATEGY_FULL_SHARD && strategy != STRATEGY_HYBRID_SHARD)
        return TRUE;
    if (keep >= 0)
        return keep != 0;
    if (unit == ROOT_UNIT)
        return sharding->keep_root;
    return sharding_block(unit) == num_blocks && sharding->keep_last;
}
