#include "sim/layout/sharding.h"

#include <string.h>

static gboolean read_index(const char *text, const char **end, guint *index)
{
    char *stop;
    const guint64 value = g_ascii_strtoull(text, &stop, 10);

    if (!g_ascii_isdigit(*text) || value > 1u << 20)
        return FALSE;
    *index = (guint)value;
    *end = stop;
    return TRUE;
}

gboolean unit_override_parse(const char *text, UnitOverride *unit)
{
    const char *rest;
    guint first, last;

    *unit = (UnitOverride){.strategy = -1, .keep = -1};
    if (strcmp(text, "root") == 0)
        return TRUE; /* units first and last are ROOT_UNIT */
    if (!g_str_has_prefix(text, "layers.") || !read_index(text + 7, &rest, &first))
        return FALSE;
    last = first;
    if (*rest == '-' && !read_index(rest + 1, &rest, &last))
        return FALSE;
    if (*rest != '\0' || last < first)
        return FALSE;
    unit->first = first + 1;
    unit->last = last + 1;
    return TRUE;
}

char *unit_override_units(const UnitOverride *unit)
{
    if (unit->last == ROOT_UNIT)
        return g_strdup("root");
    if (unit->first == unit->last)
        return g_strdup_printf("layers.%u", unit->first - 1);
    return g_strdup_printf("layers.%u-%u", unit->first - 1, unit->last - 1);
}
