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

/* Which units of blocks. */
static const struct {
    const char *prefix;
    guint units;
} parts[] = {{"layers.", 0}, {"rest.", REST_UNITS}, {"experts.", EXPERTS_UNITS}};

gboolean unit_override_parse(const char *text, UnitOverride *unit)
{
    const char *rest;
    guint first, last, part = 0;

    *unit = (UnitOverride){.strategy = -1, .keep = -1};
    if (strcmp(text, "root") == 0)
        return TRUE; /* units first and last are ROOT_UNIT */
    while (part < G_N_ELEMENTS(parts) && !g_str_has_prefix(text, parts[part].prefix))
        part++;
    if (part == G_N_ELEMENTS(parts) ||
        !read_index(text + strlen(parts[part].prefix), &rest, &first))
        return FALSE;
    last = first;
    if (*rest == '-' && !read_index(rest + 1, &rest, &last))
        return FALSE;
    if (*rest != '\0' || last < first)
        return FALSE;
    unit->first = parts[part].units + first + 1;
    unit->last = parts[part].units + last + 1;
    return TRUE;
}

char *unit_override_units(const UnitOverride *unit)
{
    const guint first = sharding_block(unit->first), last = sharding_block(unit->last);
    guint part = G_N_ELEMENTS(parts) - 1;

    if (unit->last == ROOT_UNIT)
        return g_strdup("root");
    while (unit->first < parts[part].units)
        part--;
    if (first == last)
        return g_strdup_printf("%s%u", parts[part].prefix, first - 1);
    return g_strdup_printf("%s%u-%u", parts[part].prefix, first - 1, last - 1);
}
