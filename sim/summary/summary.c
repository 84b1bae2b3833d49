#include "sim/summary/summary.h"

#include "sim/summary/peak.h"
#include "sim/summary/reduce.h"
#include "sim/summary/stage.h"
#include "sim/summary/walk.h"

#include <string.h>

struct Summariser {
    Known *known;
    const Framework *framework;
    gboolean overlaps, one_queue, is_foreign;
};

Summariser *summariser_new(const SimulateContext *context, Summariser *of_others)
{
    Summariser *summariser = g_new(Summariser, 1);

    *summariser = (Summariser){
        .known = known_new(context, of_others == NULL ? NULL : of_others->known),
        .framework = framework_or_default(context->framework),
        .overlaps = simulate_overlaps(context),
        .one_queue = context->topology->gpu.kind == DEVICE_CPU,
        .is_foreign = framework_is_foreign(context->framework),
    };
    return summariser;
}

const SimulateContext *summariser_context(const Summariser *summariser)
{
    return known_context(summariser->known);
}

void summariser_free(Summariser *summariser)
{
    if (summariser == NULL)
        return;
    known_free(summariser->known);
    g_free(summariser);
}

/* With what a framework holds beside the program (framework_memory.h). */
static guint64 floor_bytes(const Summariser *summariser, const Stage *stage)
{
    const guint64 bytes = stage_floor_bytes(stage);

    if (!summariser->is_foreign)
        return bytes;
    const double step_bytes = (double)(bytes - stage_state_bytes(stage));
    return bytes + stage_beside_bytes(stage) +
           (guint64)(summariser->framework->transient_share * step_bytes);
}

StageSummary summarise_stage(Summariser *summariser, const ProgramSpec *spec, guint index)
{
    const Stage stage = stage_of(summariser->known, spec, index, UNITS_AS_PLANNED);
    StageSummary summary = {.state_bytes = stage_state_bytes(&stage),
                            .floor_bytes = floor_bytes(summariser, &stage)};

    stage_volume(&stage, summary.volume_bytes);
    return summary;
}

static gboolean is_new(const guint *stages, guint i)
{
    for (guint j = 0; j < i; j++)
        if (stages[j] == stages[i])
            return FALSE;
    return TRUE;
}

/* Stages that say most, each once; the first one first. */
static guint extreme_stages(Known *known, const ProgramSpec *spec, UnitsTaken taken, Stage *stages)
{
    const guint *extremes = known_extremes(known, spec);
    guint num = 0;

    for (guint i = 0; i < NUM_EXTREMES; i++)
        if (is_new(extremes, i))
            stages[num++] = stage_of_units(known, spec, extremes[i], taken);
    return num;
}

static void note_floor(Summary *summary, const Stage *stage, guint64 bytes)
{
    if (bytes <= summary->floor_bytes)
        return;
    summary->floor_bytes = bytes;
    summary->stage = stage->shape->stage;
}

/* By state alone, by passes over fewer sequences, by its own: what takes less to look at comes
 * first.  Stops at what is above @limit_bytes. */
static void find_floor(Summariser *summariser, Stage *stages, guint num, guint64 limit_bytes,
                       Summary *summary)
{
    for (guint i = 0; i < num; i++)
        note_floor(summary, &stages[i], stage_state_bytes(&stages[i]));
    for (guint i = 0; i < num && summary->floor_bytes <= limit_bytes; i++)
        if (limit_bytes < G_MAXUINT64 && stage_add_fewer(&stages[i], summariser->known))
            note_floor(summary, &stages[i], floor_bytes(summariser, &stages[i]));
    for (guint i = 0; i < num && summary->floor_bytes <= limit_bytes; i++) {
        stage_add_passes(&stages[i], summariser->known);
        note_floor(summary, &stages[i], floor_bytes(summariser, &stages[i]));
    }
}

/* A step takes as long as any path through it, and all stages must fit. */
static Summary summarise_taken(Summariser *summariser, const ProgramSpec *spec, UnitsTaken taken,
                               guint64 limit_bytes)
{
    Stage stages[NUM_EXTREMES];
    const guint num = extreme_stages(summariser->known, spec, taken, stages);
    Summary summary = {0};

    find_floor(summariser, stages, num, limit_bytes, &summary);
    for (guint i = 0; i < num && summary.floor_bytes <= limit_bytes; i++) {
        const double path_s = stage_path_s(&stages[i], &stages[0]);
        const double busy_s = stage_busy_s(&stages[i], summariser->overlaps, summariser->one_queue);

        summary.bound_s = MAX(summary.bound_s, MAX(path_s, busy_s));
    }
    return summary;
}

Summary summarise(Summariser *summariser, const ProgramSpec *spec, guint64 limit_bytes)
{
    return summarise_taken(summariser, spec, UNITS_AS_PLANNED, limit_bytes);
}

/* Fewer layers need no less memory. */
static gboolean find_least(Summariser *summariser, Stage *stage, guint64 limit_bytes, guint index,
                           guint16 *layers)
{
    const ProgramSpec *spec = stage->spec;
    const guint most = schedule_most_layers(&spec->schedule, spec->model->layers,
                                            spec->layout.size[AXIS_PP], index);
    guint low = 0, high = most + 1;

    while (low < high) {
        const guint middle = (low + high) / 2;

        *layers = (guint16)middle;
        stage_update_shape(stage, summariser->known, index); /* all that depends on it */
        if (middle <= most && stage_floor_bytes(stage) > limit_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    *layers = (guint16)MIN(low, most);
    return low <= most;
}

static gboolean find_recompute(Summariser *summariser, const ProgramSpec *spec, UnitsTaken taken,
                               guint64 limit_bytes, gboolean all, guint16 *by_stage)
{
    const guint *extremes = known_extremes(summariser->known, spec);
    const guint pp = spec->layout.size[AXIS_PP], num = all ? pp : NUM_EXTREMES;
    ProgramSpec some = *spec;

    memset(by_stage, 0, pp * sizeof *by_stage);
    some.schedule.recompute_layers = by_stage;
    for (guint i = 0; i < num; i++) {
        const guint index = all ? i : extremes[i];

        if (!all && !is_new(extremes, i))
            continue;
        Stage stage = stage_of(summariser->known, &some, index, taken);
        if (!find_least(summariser, &stage, limit_bytes, index, &by_stage[index]))
            return FALSE;
    }
    return TRUE;
}

gboolean summarise_recompute(Summariser *summariser, const ProgramSpec *spec, guint64 limit_bytes,
                             gboolean all, guint16 *by_stage)
{
    return find_recompute(summariser, spec, UNITS_AS_PLANNED, limit_bytes, all, by_stage);
}

Summary summarise_least(Summariser *summariser, const ProgramSpec *spec, gboolean partly,
                        guint64 limit_bytes)
{
    guint16 by_stage[MAX_CHUNKS];
    ProgramSpec some = *spec;

    if (!partly)
        return summarise_taken(summariser, spec, UNITS_LEAST, limit_bytes);
    if (!find_recompute(summariser, spec, UNITS_LEAST, limit_bytes, FALSE, by_stage))
        return (Summary){.floor_bytes = G_MAXUINT64};
    some.schedule.recompute_layers = by_stage;
    Summary summary = summarise_taken(summariser, &some, UNITS_LEAST, G_MAXUINT64);
    summary.floor_bytes = 0; /* where more layers are computed again less is needed */
    return summary;
}

double summarise_calls(Summariser *summariser, const ProgramSpec *spec)
{
    return walk_s(summariser->known, spec);
}

guint64 summarise_peak(Summariser *summariser, const ProgramSpec *spec, guint stage)
{
    return peak_bytes(summariser->known, spec, stage, summariser->framework);
}

gboolean summarise_peak_pays(const ProgramSpec *spec, guint stage)
{
    enum { TIMES = 2 };

    return reduced_by(spec, stage) >= TIMES;
}
