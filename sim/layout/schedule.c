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

LayerRange schedule_chunk(const Schedule *schedule, guint layers, guint pp, guint chunk)
{
    const guint chunks = schedule_chunks(schedule, pp);
    const guint least = layers / chunks, more = layers % chunks;
    const guint first_larger = (chunks - more + 1) / 2;
    LayerRange range = {0, 0};

    g_assert(chunk < chunks);
    for (guint c = 0; c <= chunk; c++) {
        const gboolean larger = c >= first_larger && c < first_larger + more;

        range.first += range.count;
        range.count =
            schedule->chunk_layers != NULL ? schedule->chunk_layers[c] : least + (larger ? 1 : 0);
    }
    return range;
}

gboolean schedule_parse_chunks(const char *text, guint16 *layers, guint *num)
{
    g_auto(GStrv) parts = g_strsplit(text, ":", -1);
    guint count = 0;

    for (; parts[count] != NULL; count++) {
        guint64 value;

        if (count == MAX_CHUNKS ||
            !g_ascii_string_to_unsigned(parts[count], 10, 0, G_MAXUINT16, &value, NULL))
            return FALSE;
        layers[count] = (guint16)value;
    }
    *num = count;
    return count > 0;
}
