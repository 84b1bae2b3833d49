/* Which pairs of levels of two factors a series of tests has met. */
#pragma once

#include <glib.h>

typedef struct {
    guint num_factors, most_levels;
    gboolean *met; /* by factor, level, factor, level */
} Pairs;

static inline Pairs *pairs_new(guint num_factors, guint most_levels)
{
    Pairs *pairs = g_new(Pairs, 1);
    const gsize all = (gsize)num_factors * most_levels;

    *pairs = (Pairs){num_factors, most_levels, g_new0(gboolean, all * all)};
    return pairs;
}

static inline void pairs_free(Pairs *pairs)
{
    g_free(pairs->met);
    g_free(pairs);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Pairs, pairs_free)

/* Pairs of @levels (one a factor) that were not met yet; marks them when @mark. */
static inline guint pairs_fresh(Pairs *pairs, const guint *levels, gboolean mark)
{
    const gsize all = (gsize)pairs->num_factors * pairs->most_levels;
    guint fresh = 0;

    for (guint a = 0; a < pairs->num_factors; a++)
        for (guint b = a + 1; b < pairs->num_factors; b++) {
            gboolean *met = &pairs->met[(a * pairs->most_levels + levels[a]) * all +
                                        b * pairs->most_levels + levels[b]];

            fresh += !*met;
            *met |= mark;
        }
    return fresh;
}
