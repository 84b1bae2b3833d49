/* A GKeyFile text with line numbers, in which nothing may come twice. */
#pragma once

#include <glib.h>

typedef struct {
    char *key, *value; /* the value with its escapes resolved, never empty */
    guint line;
} KeyEntry;

typedef struct {
    char *name;
    guint line;
    GArray *entries; /* KeyEntry, as in the text */
} KeyGroup;

typedef struct {
    char *source;
    GArray *groups; /* KeyGroup, as in the text */
} KeyText;

/* Errors are "@source:line: ..." and ERROR_INPUT. */
KeyText *key_text_parse(const char *text, const char *source,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
void key_text_free(KeyText *text);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(KeyText, key_text_free)

static inline const KeyGroup *key_text_group(const KeyText *text, guint i)
{
    return &g_array_index(text->groups, KeyGroup, i);
}
static inline const KeyEntry *key_group_entry(const KeyGroup *group, guint i)
{
    return &g_array_index(group->entries, KeyEntry, i);
}

/* NULL when there is none. */
const KeyGroup *key_text_find(const KeyText *text, const char *name);
const KeyEntry *key_group_find(const KeyGroup *group, const char *key);

/* Sets "source:line: [group] key: ..." (no key where @entry is NULL) and returns FALSE. */
gboolean key_text_refuse(const KeyText *text, const KeyGroup *group, const KeyEntry *entry,
                         GError **error, const char *format, ...) G_GNUC_PRINTF(5, 6);
