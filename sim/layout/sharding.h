/* How parameters are sharded: strategy, form, and where each element of a unit lives. */
#pragma once

#include "sim/input/model.h"
#include "sim/input/topology.h"

#include <glib.h>

typedef enum {
    STRATEGY_NO_SHARD,        /* DDP */
    STRATEGY_SHARD_OPTIMIZER, /* ZeRO-1 */
    STRATEGY_SHARD_GRAD_OP,   /* ZeRO-2 */
    STRATEGY_FULL_SHARD,      /* ZeRO-3, FSDP */
    STRATEGY_HYBRID_SHARD,    /* full_shard within dp_shard, replicated over dp_replicate */
    NUM_STRATEGIES
} Strategy;

/* For messages: with what people know them as. */
#define STRATEGY_NAMES                                                                             \
    "full_shard (ZeRO-3), shard_grad_op (ZeRO-2), shard_optimizer (ZeRO-1), no_shard (DDP) or "    \
    "hybrid_shard"

typedef enum { FORM_PER_PARAMETER, FORM_FLAT, NUM_FORMS } Form;

const char *strategy_name(Strategy strategy);
gboolean strategy_from_name(const char *name, Strategy *strategy); /* upper case accepted */
const char *form_name(Form form);
gboolean form_from_name(const char *name, Form *form);

/* Units are numbered: the root is 0, block i is i + 1, its experts EXPERTS_UNITS + i + 1. */
enum {
    ROOT_UNIT = 0,
    REST_UNITS = 1 << 21,    /* in overrides: blocks without their experts */
    EXPERTS_UNITS = 1 << 22, /* experts without the rest of their blocks */
    MAX_UNIT_OVERRIDES = 32
};

/* For units first..last: another strategy, another keep; -1 = as the rest.  Blocks are named with
 * their experts. */
typedef struct {
    guint first, last;
    gint strategy, keep;
} UnitOverride;

/* Where state lives: moments and masters, and parameter shards. */
typedef struct {
    Tier optimizer, parameters;
} Offload;

typedef struct {
    Strategy strategy;
    Form form;
    guint prefetch;                /* units gathered ahead of the one in use */
    guint live_units;              /* gathered blocks alive at once, at least prefetch + 1 */
    gboolean keep_root, keep_last; /* gathered once: kept between forward and backward */
    gboolean gather_fp8;           /* blocks' matrices are gathered in fp8 */
    gboolean accumulate_sharded; /* reduce every micro-batch; else whole gradients, reduced once */
    Offload offload;
    guint num_overrides;
    UnitOverride overrides[MAX_UNIT_OVERRIDES];
} Sharding;

/* What holds where nothing is said (DESIGN 4): full_shard, per parameter, one unit ahead of the one
 * in use, root and last block kept, gradients reduced every micro-batch. */
extern const Sharding sharding_default;

/* Which parameters of a unit: matrices have two dims or more.  In form flat there are only all. */
typedef enum { PARAMS_ALL, PARAMS_MATRICES, PARAMS_VECTORS } ParamSet;

/* One contiguous run that a collective moves: rank r holds elements [r * chunk, (r + 1) * chunk) of
 * the whole, padding included; all offsets in elements. */
typedef struct {
    guint64 shard_offset; /* in a rank's shard of the unit */
    guint64 full_offset;  /* in the whole unit */
    guint64 chunk;        /* a rank's elements */
} ShardPiece;

/* A parameter inside the whole unit. */
typedef struct {
    guint64 full_offset, rows, cols;
    guint dims;
    ParamRole role;
    guint copies; /* ranks of the tensor-parallel group that hold the same; a norm counts it once */
} UnitParam;

/* The real (unpadded) elements of one parameter that one rank holds; may be empty. */
typedef struct {
    guint64 shard_offset, full_offset; /* of its first element, in the shard, in the whole unit */
    guint64 start;                     /* its first element, counted within the parameter */
    guint64 elements;
} ShardSpan;

/* Where the elements of a unit live when @ranks share it. */
typedef struct {
    guint ranks;
    Form form;
    guint num_params, num_pieces;
    UnitParam *params;
    ShardPiece *pieces;
    guint64 elements;       /* real ones */
    guint64 full_elements;  /* padded: what a gathered unit takes */
    guint64 shard_elements; /* padded: what one rank stores; ranks * this == full_elements */
} UnitMap;

/* per_parameter: each tensor in chunks of ceil(rows / ranks) rows, trailing ranks short or empty
 * (FSDP2).  flat: the concatenation in chunks of ceil(elements / ranks) (FSDP1).
 * @params: GArray of ParamShape. */
UnitMap *unit_map_new(const GArray *params, guint ranks, Form form);
void unit_map_free(UnitMap *map);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(UnitMap, unit_map_free)

/* A bit for each parameter that has elements, bit param % 62: what must be written before a unit is
 * read whole. */
guint64 unit_map_param_bits(const UnitMap *map);

/* Of the pieces that a set moves: whether @piece is one of them, and a rank's elements of all. */
gboolean unit_map_in_set(const UnitMap *map, guint piece, ParamSet set);
guint64 unit_map_set_elements(const UnitMap *map, ParamSet set);

/* What @rank (0 .. map->ranks - 1) holds of @param. */
ShardSpan unit_map_span(const UnitMap *map, guint param, guint rank);

/* Strategy and keep of a unit once overrides are applied; @num_blocks as in the model. */
Strategy sharding_unit_strategy(const Sharding *sharding, guint unit);
gboolean sharding_offloads(const Sharding *sharding); /* something is in another tier */

/* Whether whole gradients of a unit are reduced with every micro-batch, into shards that are
 * accumulated; else they are accumulated whole, and reduced once a step. */
gboolean sharding_unit_reduces_each(const Sharding *sharding, guint unit);
gboolean sharding_unit_kept(const Sharding *sharding, guint unit, guint num_blocks);

/* The block of a unit, or of what an override names; the root is its own. */
static inline guint sharding_block(guint unit)
{
    return unit & (REST_UNITS - 1);
}

#define UNIT_TEXTS "root, layers.N or layers.N-M, or experts or rest in place of layers"

/* "root", "layers.3", "layers.0-7", "experts.0-7" (of those layers only their experts), "rest.3"
 * (all but these) -> the units it names; FALSE when it is none of those.  And back: the caller's.
 */
gboolean unit_override_parse(const char *text, UnitOverride *unit);
char *unit_override_units(const UnitOverride *unit);
