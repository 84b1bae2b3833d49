#include "sim/import/hostlist.h"

#include "sim/base/error.h"
#include "sim/import/import_text.h"

#include <string.h>

enum { MAX_NAMES = 1 << 17, MAX_DIGITS = 9 };

static gboolean refuse(const char *list, const char *why, GError **error)
{
    g_autofree char *shown = import_shown(list);

    return fail(error, ERROR_INPUT, "\"%s\": %s; allowed: names such as node[01-04,7],login", shown,
                why);
}

/* "07" -> 7 and 2 digits. */
static const char *read_number(const char *at, guint *number, guint *digits)
{
    *digits = (guint)strspn(at, "0123456789");
    if (*digits == 0 || *digits > MAX_DIGITS)
        return NULL;
    *number = (guint)g_ascii_strtoull(at, NULL, 10);
    return at + *digits;
}

/* The members of "[01-04,7]", as text; *end is behind the "]". */
static GPtrArray *read_brackets(const char *at, const char **end)
{
    g_autoptr(GPtrArray) members = g_ptr_array_new_with_free_func(g_free);

    do {
        guint first, last, digits, more;

        at = read_number(at + 1, &first, &digits);
        last = first;
        if (at != NULL && *at == '-')
            at = read_number(at + 1, &last, &more);
        if (at == NULL || last < first || last - first >= MAX_NAMES - members->len)
            return NULL;
        for (guint i = first; i <= last; i++)
            g_ptr_array_add(members, g_strdup_printf("%0*u", (int)digits, i));
    } while (*at == ',');
    if (*at != ']')
        return NULL;
    *end = at + 1;
    return g_steal_pointer(&members);
}

/* Each of @names with each of @members behind it. */
static GPtrArray *combine(const GPtrArray *names, const GPtrArray *members)
{
    GPtrArray *all = g_ptr_array_new_with_free_func(g_free);

    for (guint i = 0; i < names->len; i++) {
        for (guint j = 0; j < members->len; j++)
            g_ptr_array_add(all, g_strconcat(names->pdata[i], members->pdata[j], NULL));
    }
    return all;
}

/* One name, up to a comma outside brackets; its expansion is appended to @out. */
static const char *read_name(const char *at, GPtrArray *out)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *start = at;

    g_ptr_array_add(names, g_strdup(""));
    while (*at != '\0' && *at != ',') {
        g_autoptr(GPtrArray) part = NULL;

        if (*at == '[') {
            part = read_brackets(at, &at);
        } else {
            const gsize length = strcspn(at, "[],");

            part = g_ptr_array_new_with_free_func(g_free);
            g_ptr_array_add(part, g_strndup(at, length));
            at += length;
        }
        if (part == NULL || *at == ']' || (guint64)names->len * part->len + out->len > MAX_NAMES)
            return NULL;
        GPtrArray *all = combine(names, part);

        g_ptr_array_unref(names);
        names = all;
    }
    if (at == start)
        return NULL;
    for (guint i = 0; i < names->len; i++)
        g_ptr_array_add(out, g_strdup(names->pdata[i]));
    return at;
}

GPtrArray *hostlist_expand(const char *list, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *at = list;

    for (gboolean more = TRUE; more;) {
        at = read_name(at, names);
        if (at == NULL) {
            refuse(list, "not a list of names, or too long", error);
            return NULL;
        }
        more = *at == ',';
        at += more;
    }
    return g_steal_pointer(&names);
}
