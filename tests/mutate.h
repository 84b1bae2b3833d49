/* Texts that are changed: in one place, or by random damage that nothing may crash of. */
#pragma once

#include <check.h>
#include <glib.h>

/* @text with the first @from replaced; there must be one. */
static inline char *replaced(const char *text, const char *from, const char *to)
{
    g_auto(GStrv) parts = g_strsplit(text, from, 2);

    ck_assert_msg(g_strv_length(parts) == 2, "%s", from);
    return g_strjoinv(to, parts);
}

/* Of 1 to 4 kinds: cut, overwritten, repeated, removed or foreign pieces.  Never a NUL byte. */
static inline char *mutate(const char *text, GRand *random)
{
    static const char *const foreign[] = {"{",         "}",
                                          "[",         "]",
                                          "\"",        "\\",
                                          ",",         ":",
                                          "=",         "\n",
                                          "#",         "-1",
                                          "0",         "1e999",
                                          "1e-320",    "99999999999999999999",
                                          "null",      "true",
                                          "{}",        "[]",
                                          "\xff",      "\xf0\x9f\x92\xa9",
                                          "\x01",      "\\u0000",
                                          "\\ud800",   "NaN",
                                          "-Infinity", "auto",
                                          "all",       " GB/s",
                                          "[gpu x]\n", "\t"};
    g_autoptr(GString) out = g_string_new(text);

    for (gint n = g_rand_int_range(random, 1, 5); n > 0; n--) {
        const gint length = (gint)out->len;
        const gint at = g_rand_int_range(random, 0, length + 1);
        const gint drawn = g_rand_int_range(random, 1, 20), size = MIN(drawn, length - at);
        g_autofree char *piece = g_strndup(out->str + at, (gsize)size);

        switch (g_rand_int_range(random, 0, 6)) {
        case 0:
            g_string_truncate(out, (gsize)at);
            break;
        case 1:
            if (at < length)
                out->str[at] = (char)g_rand_int_range(random, 1, 256);
            break;
        case 2:
            g_string_insert(out, at, piece);
            break;
        case 3:
            g_string_erase(out, at, size);
            break;
        default:
            g_string_insert(out, at,
                            foreign[g_rand_int_range(random, 0, (gint)G_N_ELEMENTS(foreign))]);
        }
    }
    return g_string_free(g_steal_pointer(&out), FALSE);
}

/* Random bytes, no NUL. */
static inline char *random_bytes(GRand *random, guint length)
{
    char *bytes = g_malloc(length + 1);

    for (guint i = 0; i < length; i++)
        bytes[i] = (char)g_rand_int_range(random, 1, 256);
    bytes[length] = '\0';
    return bytes;
}
