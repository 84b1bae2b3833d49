#include "sim/layout/context_parallel.h"

#include "sim/base/names.h"

static const char *const kind_names[NUM_CONTEXT_KINDS] = {
    [CONTEXT_RING] = "ring",
    [CONTEXT_ALL_GATHER] = "all_gather",
};

const char *context_kind_name(ContextKind kind)
{
    return kind_names[kind];
}

gboolean context_kind_from_name(const char *name, ContextKind *kind)
{
    guint value;

    if (!name_find(name, kind_names, NUM_CONTEXT_KINDS, &value))
        return FALSE;
    *kind = (ContextKind)value;
    return TRUE;
}

void context_positions(guint seq_len, guint cp, guint rank, gint32 *positions)
{
    const guint piece = cp == 1 ? seq_len : seq_len / (2 * cp);
    guint at = 0;

    g_assert(rank < cp && (cp == 1 || seq_len % (2 * cp) == 0));
    for (guint i = 0; i < piece; i++)
        positions[at++] = (gint32)(rank * piece + i);
    for (guint i = 0; cp > 1 && i < piece; i++)
        positions[at++] = (gint32)((2 * cp - 1 - rank) * piece + i);
}
