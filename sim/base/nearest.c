#include "sim/base/nearest.h"

#include <string.h>

enum { MAX_NAME = 256 };

/* Wagner and Fischer, J. ACM 21(1), 1974, with one row of the table. */
guint edit_distance(const char *a, const char *b)
{
    const gsize length = strlen(b);
    g_autofree guint *row = g_new(guint, length + 1);

    for (gsize j = 0; j <= length; j++)
        row[j] = (guint)j;
    for (gsize i = 0; a[i] != '\0'; i++) {
        guint diagonal = row[0];

        row[0] = (guint)i + 1;
        for (gsize j = 0; j < length; j++) {
            const guint replace = diagonal + (a[i] != b[j]);

            diagonal = row[j + 1];
            row[j + 1] = MIN(replace, MIN(diagonal, row[j]) + 1);
        }
    }
    return row[length];
}

const char *nearest_name(const char *name, const char *const *names)
{
    const char *best = NULL;
    guint best_distance = G_MAXUINT;

    /* No known name is long; a pasted file must not cost a square of its size. */
    if (strlen(name) > MAX_NAME)
        return NULL;
    for (; *names != NULL; names++) {
        const guint distance = edit_distance(name, *names);

        if (distance < best_distance) {
            best = *names;
            best_distance = distance;
        }
    }
    return best_distance <= (strlen(name) + 1) / 2 ? best : NULL;
}

const char *nearest_with(const char *name, const char *const *names)
{
    const char *best = NULL;
    gsize rank = G_MAXSIZE;

    for (; strlen(name) >= 3 && *names != NULL; names++) {
        const char *at = strstr(*names, name);
        const gsize length = strlen(*names), where = at == *names ? length : length + MAX_NAME;

        if (at != NULL && where < rank) {
            best = *names;
            rank = where;
        }
    }
    return best;
}

char *nearest_hint(const char *name, const char *const *names)
{
    const char *with = nearest_with(name, names);
    const char *nearest = with != NULL ? with : nearest_name(name, names);

    return nearest != NULL ? g_strdup_printf(" (did you mean \"%s\"?)", nearest) : g_strdup("");
}
