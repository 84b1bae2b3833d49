#include "sim/layout/schedule.h"

#include "sim/base/names.h"

static const char *const recompute_names[NUM_RECOMPUTES] = {
    [RECOMPUTE_NONE] = "none",
    [RECOMPUTE_SELECTIVE] = "selective",
    [RECOMPUTE_FULL] = "full",
};

static const char *const schedule_names[NUM_SCHEDULES] = {
    [SCHEDULE_GPIPE] = "gpipe",
    [SCHEDULE_1F1B] = "1f1b",
    [SCHEDULE_INTERLEAVED] = "interleaved",
    [SCHEDULE_ZB_H1] = "zb_h1",
};

const char *recompute_name(Recompute recompute)
{
    return recompute_names[recompute];
}

gboolean recompute_from_name(const char *name, Recompute *recompute)
{
    guint value;

    if (!name_find(name, recompute_names, NUM_RECOMPUTES, &value))
        return FALSE;
    *recompute = (Recompute)value;
    return TRUE;
}

const char *schedule_name(ScheduleKind kind)
{
    return schedule_names[kind];
}

gboolean schedule_from_name(const char *name, ScheduleKind *kind)
{
    guint value;

    if (!name_find(name, schedule_names, NUM_SCHEDULES, &value))
        return FALSE;
    *kind = (ScheduleKind)value;
    return TRUE;
}

guint schedule_virtual_stages(const Schedule *schedule)
{
    return MAX(schedule->virtual_stages, 1);
}

guint schedule_chunks(const Schedule *schedule, guint pp)
{
    return pp * schedule_virtual_stages(schedule);
}

static LayerRange given_chunk(const Schedule *schedule, guint chunk)
{
    LayerRange range = {0, schedule->chunk_layers[0]};

    for (guint c = 1; c <= chunk; c++) {
        range.first += range.count;
        range.count = schedule->chunk_layers[c];
    }
    return range;
}

LayerRange schedule_chunk(const Schedule *schedule, guint layers, guint pp, guint chunk)
{
    const guint chunks = schedule_chunks(schedule, pp);
    const guint least = layers / chunks, more = layers % chunks;
    const guint first_larger = (chunks - more + 1) / 2;

    g_assert(chunk < chunks);
    if (schedule->chunk_layers != NULL)
        return given_chunk(schedule, chunk);
    const guint larger_before = MIN(chunk - MIN(chunk, first_larger), more);
    const gboolean larger = chunk >= first_larger && chunk < first_larger + more;
    return (LayerRange){chunk * least + larger_before, least + (larger ? 1 : 0)};
}

gboolean schedule_recomputes(const Schedule *schedule, guint pp, guint chunk, guint within)
{
    return schedule->recompute != RECOMPUTE_NONE &&
           (schedule->recompute_layers == NULL || within < schedule->recompute_layers[chunk % pp]);
}

guint schedule_most_layers(const Schedule *schedule, guint layers, guint pp, guint stage)
{
    guint most = 0;

    for (guint c = stage; c < schedule_chunks(schedule, pp); c += pp)
        most = MAX(most, schedule_chunk(schedule, layers, pp, c).count);
    return most;
}

void schedule_set_recompute(Schedule *schedule, Recompute recompute, guint16 *by_stage,
                            guint layers, guint pp)
{
    gboolean all = TRUE, none = TRUE;

    for (guint s = 0; s < pp; s++) {
        const guint most = schedule_most_layers(schedule, layers, pp, s);

        by_stage[s] = (guint16)MIN(by_stage[s], most);
        all &= by_stage[s] == most;
        none &= by_stage[s] == 0;
    }
    schedule->recompute = none ? RECOMPUTE_NONE : recompute;
    schedule->recompute_layers = none || all ? NULL : by_stage;
}

char *schedule_recompute_text(const Schedule *schedule, guint pp)
{
    const guint16 *by_stage = schedule->recompute_layers;
    g_autoptr(GString) text = g_string_new(recompute_name(schedule->recompute));
    gboolean equal = TRUE;

    for (guint s = 1; by_stage != NULL && s < pp; s++)
        equal &= by_stage[s] == by_stage[0];
    for (guint s = 0; by_stage != NULL && s < (equal ? 1 : pp); s++)
        g_string_append_printf(text, "%c%u", s == 0 ? ':' : '/', by_stage[s]);
    return g_strdup(text->str);
}

/* Numbers between separators. */
static gboolean parse_counts(const char *text, const char *separator, guint16 *counts, guint *num)
{
    g_auto(GStrv) parts = g_strsplit(text, separator, -1);
    guint count = 0;

    for (; parts[count] != NULL; count++) {
        guint64 value;

        if (count == MAX_CHUNKS ||
            !g_ascii_string_to_unsigned(parts[count], 10, 0, G_MAXUINT16, &value, NULL))
            return FALSE;
        counts[count] = (guint16)value;
    }
    *num = count;
    return count > 0;
}

gboolean recompute_parse(const char *text, Recompute *recompute, guint16 *layers, guint *num)
{
    g_auto(GStrv) parts = g_strsplit(text, ":", 2);

    *num = 0;
    if (parts[0] == NULL || !recompute_from_name(parts[0], recompute))
        return FALSE;
    return parts[1] == NULL ||
           (*recompute != RECOMPUTE_NONE && parse_counts(parts[1], "/", layers, num));
}

gboolean schedule_parse_chunks(const char *text, guint16 *layers, guint *num)
{
    return parse_counts(text, ":", layers, num);
}
