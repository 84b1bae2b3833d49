#include "sim/base/key_text.h"

#include "sim/base/error.h"

#include <stdarg.h>
#include <string.h>

static void clear_entry(gpointer data)
{
    KeyEntry *entry = data;

    g_free(entry->key);
    g_free(entry->value);
}

static void clear_group(gpointer data)
{
    KeyGroup *group = data;

    g_free(group->name);
    g_array_unref(group->entries);
}

void key_text_free(KeyText *text)
{
    if (text == NULL)
        return;
    g_free(text->source);
    g_array_unref(text->groups);
    g_free(text);
}

const KeyGroup *key_text_find(const KeyText *text, const char *name)
{
    for (guint i = 0; i < text->groups->len; i++) {
        if (g_str_equal(key_text_group(text, i)->name, name))
            return key_text_group(text, i);
    }
    return NULL;
}

const KeyEntry *key_group_find(const KeyGroup *group, const char *key)
{
    for (guint i = 0; i < group->entries->len; i++) {
        if (g_str_equal(key_group_entry(group, i)->key, key))
            return key_group_entry(group, i);
    }
    return NULL;
}

gboolean key_text_refuse(const KeyText *text, const KeyGroup *group, const KeyEntry *entry,
                         GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);

    return fail(error, ERROR_INPUT, "%s:%u: [%s]%s%s: %s", text->source,
                entry != NULL ? entry->line : group->line, group->name, entry != NULL ? " " : "",
                entry != NULL ? entry->key : "", message);
}

/* ---- parsing: GKeyFile checks the form and resolves escapes, the scan below counts lines ---- */

/* What is being read; seen: "[group]" and "[group] key" -> line of the first. */
typedef struct {
    KeyText *text;
    GKeyFile *file;
    GHashTable *seen;
    const GError *form_error; /* why GKeyFile refused the text, or NULL */
    guint line;
    GError **error;
} Scan;

static gboolean refuse_line(const Scan *scan, const char *format, const char *what)
{
    g_autofree char *start = g_strndup(what, 80);
    g_autofree char *valid = g_utf8_make_valid(start, -1);
    g_autofree char *message = g_strdup_printf(format, valid);

    return fail(scan->error, ERROR_INPUT, "%s:%u: %s", scan->text->source, scan->line, message);
}

/* Takes @name. */
static gboolean see(Scan *scan, char *name)
{
    g_autofree char *owned = name;
    const guint first = GPOINTER_TO_UINT(g_hash_table_lookup(scan->seen, owned));

    if (first != 0) {
        return fail(scan->error, ERROR_INPUT, "%s:%u: %s is already in line %u; allowed: once",
                    scan->text->source, scan->line, owned, first);
    }
    g_hash_table_insert(scan->seen, g_steal_pointer(&owned), GUINT_TO_POINTER(scan->line));
    return TRUE;
}

static gboolean scan_group(Scan *scan, const char *line)
{
    const gsize length = strlen(line);
    g_autofree char *name = length > 2 ? g_strndup(line + 1, length - 2) : g_strdup("");

    if (*name == '\0' || line[length - 1] != ']' || strpbrk(name, "[]") != NULL)
        return refuse_line(scan, "\"%s\": allowed: [group]", line);
    if (!see(scan, g_strdup_printf("[%s]", name)))
        return FALSE;

    const KeyGroup group = {
        .name = g_steal_pointer(&name),
        .line = scan->line,
        .entries = g_array_new(FALSE, FALSE, sizeof(KeyEntry)),
    };

    g_array_set_clear_func(group.entries, clear_entry);
    g_array_append_val(scan->text->groups, group);
    return TRUE;
}

static gboolean scan_entry(Scan *scan, const char *line)
{
    const char *equals = strchr(line, '=');

    if (equals == NULL)
        return refuse_line(scan, "\"%s\": allowed: [group], key = value or # comment", line);
    if (scan->text->groups->len == 0)
        return refuse_line(scan, "\"%s\" comes before the first [group]", line);

    KeyGroup *group = &g_array_index(scan->text->groups, KeyGroup, scan->text->groups->len - 1);
    g_autofree char *key = g_strchomp(g_strndup(line, (gsize)(equals - line)));
    g_autofree char *value = NULL;
    g_autoptr(GError) value_error = NULL;

    if (*key == '\0' || strpbrk(key, "[]") != NULL)
        return refuse_line(scan, "\"%s\": allowed: key = value, no [ or ] in the key", line);
    if (!see(scan, g_strdup_printf("[%s] %s", group->name, key)))
        return FALSE;
    value = g_key_file_get_string(scan->file, group->name, key, &value_error);
    if (value_error != NULL)
        return refuse_line(scan, "%s",
                           (scan->form_error != NULL ? scan->form_error : value_error)->message);
    g_strstrip(value);
    if (*value == '\0')
        return refuse_line(scan, "\"%s\": the value is missing", line);

    const KeyEntry entry = {
        .key = g_steal_pointer(&key),
        .value = g_steal_pointer(&value),
        .line = scan->line,
    };

    g_array_append_val(group->entries, entry);
    return TRUE;
}

static gboolean scan_lines(Scan *scan, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (guint i = 0; lines[i] != NULL; i++) {
        const char *line = g_strstrip(lines[i]);

        scan->line = i + 1;
        if (*line == '\0' || *line == '#')
            continue;
        if (!(*line == '[' ? scan_group(scan, line) : scan_entry(scan, line)))
            return FALSE;
    }
    return TRUE;
}

KeyText *key_text_parse(const char *text, const char *source, GError **error)
{
    g_autoptr(KeyText) result = g_new0(KeyText, 1);
    g_autoptr(GKeyFile) file = g_key_file_new();
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GError) form_error = NULL;
    Scan scan = {.text = result, .file = file, .seen = seen, .error = error};
    const char *invalid;

    result->source = g_strdup(source);
    result->groups = g_array_new(FALSE, FALSE, sizeof(KeyGroup));
    g_array_set_clear_func(result->groups, clear_group);
    if (!g_utf8_validate(text, -1, &invalid)) {
        fail(error, ERROR_INPUT, "%s: byte %" G_GSIZE_FORMAT " is not UTF-8", source,
             (gsize)(invalid - text));
        return NULL;
    }

    /* The scan's messages have line numbers, GKeyFile's do not: the scan speaks first. */
    g_key_file_load_from_data(file, text, (gsize)-1, G_KEY_FILE_NONE, &form_error);
    scan.form_error = form_error;
    if (!scan_lines(&scan, text))
        return NULL;
    if (form_error != NULL && result->groups->len > 0) {
        fail(error, ERROR_INPUT, "%s: %s", source, form_error->message);
        return NULL;
    }
    return g_steal_pointer(&result);
}
