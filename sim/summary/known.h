/* Private to summaries: what has been looked at, by what it depends on. */
#pragma once

#include "sim/program/moments.h"
#include "sim/summary/flow.h"
#include "sim/summary/shape.h"

/* The sums of single numbers over all ranks that a step needs. */
typedef struct {
    double all_s;  /* 0 with several stages */
    double norm_s; /* of the last one, which comes after the norms of all units */
    guint64 volume_bytes;
} ScalarCost;

typedef struct Known Known;

/* @of_others: the cache of another thread, or NULL: what takes longest to look at is shared with
 * it. */
Known *known_new(const SimulateContext *context, Known *of_others);
void known_free(Known *known);

const SimulateContext *known_context(const Known *known);
const Framework *known_framework(const Known *known);

/* All are the cache's own and stay, timetables until the next are asked for. */
const StageCost *known_stage(Known *known, const ProgramSpec *spec, StagePlace place);
/* Where that was not looked at yet, that of fewer sequences a micro-batch, the most that were;
 * NULL: none, or it was. */
const StageCost *known_stage_below(Known *known, const ProgramSpec *spec, StagePlace place);
const ShardCost *known_shard(Known *known, const ProgramSpec *spec, StagePlace place,
                             Strategy strategy);
/* Of that, the bytes of state alone, fully sharded. */
const ShardCost *known_least_shard(Known *known, const ProgramSpec *spec, StagePlace place);
const StageShape *known_shape(Known *known, const ProgramSpec *spec, guint stage);

/* Stages that say most about all of them; some may be equal.  The first has most in flight, the
 * last most before it; largest have most layers, heaviest most with experts, or most parameters. */
enum {
    EXTREME_FIRST,
    EXTREME_LAST,
    EXTREME_FIRST_LARGEST,
    EXTREME_LAST_LARGEST,
    EXTREME_FIRST_HEAVIEST,
    EXTREME_LAST_HEAVIEST,
    NUM_EXTREMES
};
const guint *known_extremes(Known *known, const ProgramSpec *spec);

const Flow *known_flow(Known *known, const ProgramSpec *spec);
const Timetable *known_timetables(Known *known, const ProgramSpec *spec); /* by stage */
const ScalarCost *known_scalars(Known *known, const ProgramSpec *spec);

/* Of a program, by @key, which stays the caller's; NULL: no thread has looked at it.  What is added
 * is taken; where another thread was first, its moments are returned. */
const Moments *known_moments(Known *known, GBytes *key);
const Moments *known_add_moments(Known *known, GBytes *key, Moments *moments);

/* Seconds of one message of @bytes to the next stage. */
double known_exchange_s(Known *known, const ProgramSpec *spec, guint64 bytes);
