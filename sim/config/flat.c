#include "sim/config/flat.h"

#include "sim/base/error.h"
#include "sim/base/json_check.h"
#include "sim/base/json_members.h"
#include "sim/base/nearest.h"

#include <json-glib/json-glib.h>
#include <string.h>

/* ---- entries ---- */

static void entry_clear(gpointer data)
{
    FlatEntry *entry = data;

    g_free(entry->path);
    g_free(entry->value);
}

static Flat *flat_new(const char *source)
{
    Flat *flat = g_new0(Flat, 1);

    flat->source = g_strdup(source);
    flat->entries = g_array_new(FALSE, FALSE, sizeof(FlatEntry));
    g_array_set_clear_func(flat->entries, entry_clear);
    flat->asked = g_ptr_array_new_with_free_func(g_free);
    return flat;
}

void flat_free(Flat *flat)
{
    if (flat == NULL)
        return;
    g_free(flat->source);
    g_array_unref(flat->entries);
    g_ptr_array_unref(flat->asked);
    g_free(flat);
}

/* Both strings are taken. */
static void add(Flat *flat, char *path, char *value, guint line)
{
    const FlatEntry entry = {path, value, line};

    g_array_append_val(flat->entries, entry);
}

static char *join(const char *folder, const char *name)
{
    return folder == NULL || folder[0] == '\0' ? g_strdup(name)
                                               : g_strconcat(folder, ".", name, NULL);
}

static gboolean says_nothing(const char *value)
{
    static const char *const words[] = {"", "null", "~", "auto", "None"};

    for (guint i = 0; i < G_N_ELEMENTS(words); i++)
        if (strcmp(value, words[i]) == 0)
            return TRUE;
    return FALSE;
}

static const FlatEntry *find_path(const Flat *flat, const char *path)
{
    for (guint i = flat->entries->len; i-- > 0;)
        if (strcmp(g_array_index(flat->entries, FlatEntry, i).path, path) == 0)
            return &g_array_index(flat->entries, FlatEntry, i);
    return NULL;
}

/* Whether @path ends in ".@name". */
static gboolean ends_in(const char *path, const char *name)
{
    const gsize all = strlen(path), own = strlen(name);

    return all > own && path[all - own - 1] == '.' && strcmp(path + all - own, name) == 0;
}

static const char *last_name(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot == NULL ? path : dot + 1;
}

static gboolean was_asked(const Flat *flat, const char *name)
{
    return g_ptr_array_find_with_equal_func(flat->asked, name, g_str_equal, NULL);
}

const FlatEntry *flat_find(const Flat *flat, const char *name)
{
    const FlatEntry *found = find_path(flat, name);

    if (!was_asked(flat, last_name(name)))
        g_ptr_array_add(flat->asked, g_strdup(last_name(name)));
    for (guint i = flat->entries->len; found == NULL && i-- > 0;)
        if (ends_in(g_array_index(flat->entries, FlatEntry, i).path, name))
            found = &g_array_index(flat->entries, FlatEntry, i);
    return found == NULL || says_nothing(found->value) ? NULL : found;
}

gboolean flat_refuse(const Flat *flat, const FlatEntry *entry, const char *allowed, GError **error)
{
    g_autofree char *where = entry->line == 0 ? g_strdup("") : g_strdup_printf("%u: ", entry->line);

    return fail(error, ERROR_INPUT, "%s:%s%s = %s: must be %s", flat->source, where, entry->path,
                entry->value, allowed);
}

static gboolean is_there(const Flat *flat, const char *name)
{
    for (guint i = 0; i < flat->entries->len; i++)
        if (strcmp(last_name(g_array_index(flat->entries, FlatEntry, i).path), name) == 0)
            return TRUE;
    return FALSE;
}

/* Which name is meant; NULL: none.  A name with a blank is somebody's text. */
static const char *misspelt(const Flat *flat, const char *name)
{
    enum { SHORTEST = 14, LETTERS = 2 };

    if (strchr(name, ' ') != NULL)
        return NULL;
    for (guint i = 0; strlen(name) >= SHORTEST && i < flat->asked->len; i++) {
        const char *asked = g_ptr_array_index(flat->asked, i);

        if (strlen(asked) >= SHORTEST && edit_distance(name, asked) <= LETTERS &&
            !is_there(flat, asked))
            return asked;
    }
    return NULL;
}

gboolean flat_check_names(const Flat *flat, GError **error)
{
    for (guint i = 0; i < flat->entries->len; i++) {
        const FlatEntry *entry = &g_array_index(flat->entries, FlatEntry, i);
        const char *name = last_name(entry->path);
        const char *meant = was_asked(flat, name) ? NULL : misspelt(flat, name);

        if (meant == NULL)
            continue;
        g_autofree char *allowed = g_strdup_printf("called %s, if that is meant", meant);
        return flat_refuse(flat, entry, allowed, error);
    }
    return TRUE;
}

static gboolean refuse_line(const Flat *flat, guint line, const char *what, GError **error)
{
    return fail(error, ERROR_INPUT, "%s:%u: %s", flat->source, line, what);
}

/* ---- lines ---- */

/* Cuts a comment off: from a '#' outside quotes, at the start or after a blank. */
static void cut_comment(char *line)
{
    char quote = '\0';

    for (char *at = line; *at != '\0'; at++) {
        if (quote != '\0') {
            quote = *at == quote ? '\0' : quote;
        } else if (*at == '"' || *at == '\'') {
            quote = *at;
        } else if (*at == '#' && (at == line || g_ascii_isspace(at[-1]))) {
            *at = '\0';
            return;
        }
    }
}

static char *unquoted(const char *text)
{
    char *value = g_strstrip(g_strdup(text));
    const gsize length = strlen(value);

    if (length >= 2 && (value[0] == '"' || value[0] == '\'') && value[length - 1] == value[0]) {
        memmove(value, value + 1, length - 2);
        value[length - 2] = '\0';
    }
    return value;
}

/* How many brackets a line opens and does not close. */
static gint open_brackets(const char *line)
{
    gint open = 0;

    for (; *line != '\0'; line++)
        open += (*line == '[' || *line == '{') - (*line == ']' || *line == '}');
    return open;
}

/* ---- TOML ---- */

/* A value may go on over lines until its brackets are closed. */
static gboolean toml_line(Flat *flat, const char *table, char **lines, guint *at, GError **error)
{
    g_autoptr(GString) value = g_string_new(NULL);
    const guint first = *at + 1;
    char *equals = strchr(lines[*at], '=');

    if (equals == NULL)
        return refuse_line(flat, first, "neither [table] nor key = value", error);
    g_string_append(value, equals + 1);
    while (open_brackets(value->str) > 0 && lines[*at + 1] != NULL) {
        cut_comment(lines[++*at]);
        g_string_append(value, g_strstrip(lines[*at]));
    }
    if (open_brackets(value->str) != 0)
        return refuse_line(flat, first, "brackets are not closed", error);
    *equals = '\0';
    g_autofree char *key = unquoted(lines[first - 1]);
    add(flat, join(table, key), unquoted(value->str), first);
    return TRUE;
}

Flat *flat_parse_toml(const char *text, const char *source, GError **error)
{
    g_autoptr(Flat) flat = flat_new(source);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autofree char *table = g_strdup("");

    for (guint i = 0; lines[i] != NULL; i++) {
        cut_comment(lines[i]);
        g_strstrip(lines[i]);
        if (lines[i][0] == '\0')
            continue;
        if (lines[i][0] != '[') {
            if (!toml_line(flat, table, lines, &i, error))
                return NULL;
            continue;
        }
        const gsize length = strcspn(lines[i], "]");
        if (lines[i][length] != ']') {
            refuse_line(flat, i + 1, "[table] is not closed", error);
            return NULL;
        }
        g_free(table);
        table = g_strndup(lines[i] + 1, length - 1);
        g_strstrip(table);
    }
    return g_steal_pointer(&flat);
}

/* ---- YAML ---- */

/* Open mappings, each with the column of its keys. */
typedef struct {
    guint column[64];
    char *path[64];
    guint depth;
} Nesting;

static void nesting_cut(Nesting *nesting, guint column)
{
    while (nesting->depth > 0 && nesting->column[nesting->depth - 1] >= column)
        g_free(nesting->path[--nesting->depth]);
}

static const char *nesting_path(const Nesting *nesting)
{
    return nesting->depth == 0 ? "" : nesting->path[nesting->depth - 1];
}

/* Where a key ends: a colon before a blank or the end of the line, outside quotes; NULL: none. */
static char *yaml_colon(char *text)
{
    char quote = '\0';

    for (char *at = text; *at != '\0'; at++) {
        if (quote != '\0')
            quote = *at == quote ? '\0' : quote;
        else if (*at == '"' || *at == '\'')
            quote = *at;
        else if (*at == ':' && (at[1] == '\0' || g_ascii_isspace(at[1])))
            return at;
    }
    return NULL;
}

/* An element of a list may stand in the column of the key whose list it is. */
static void nesting_cut_elements(Nesting *nesting, guint column)
{
    nesting_cut(nesting, column + 1);
    while (nesting->depth > 0 && nesting->column[nesting->depth - 1] == column &&
           g_str_has_suffix(nesting_path(nesting), "-"))
        g_free(nesting->path[--nesting->depth]);
}

/* "- key: value" is an element of a list, a mapping that starts behind the dash. */
static gboolean yaml_line(Flat *flat, Nesting *nesting, char *line, guint number, GError **error)
{
    guint column = (guint)strspn(line, " ");

    if (g_str_has_prefix(line + column, "- "))
        nesting_cut_elements(nesting, column);
    else
        nesting_cut(nesting, column);
    while (g_str_has_prefix(line + column, "- ")) {
        line[column] = ' ';
        if (nesting->depth == G_N_ELEMENTS(nesting->path))
            return refuse_line(flat, number, "nested too deeply", error);
        nesting->path[nesting->depth] = join(nesting_path(nesting), "-");
        nesting->column[nesting->depth++] = column;
        column = (guint)strspn(line, " ");
    }
    char *colon = yaml_colon(line + column);
    if (colon == NULL) /* an element of a list, or more of a text */
        return TRUE;
    *colon = '\0';
    g_autofree char *key = unquoted(line + column);
    g_autofree char *value = unquoted(colon + 1);
    g_autofree char *path = join(nesting_path(nesting), key);
    if (value[0] != '\0') {
        add(flat, g_steal_pointer(&path), g_steal_pointer(&value), number);
        return TRUE;
    }
    if (nesting->depth == G_N_ELEMENTS(nesting->path))
        return refuse_line(flat, number, "nested too deeply", error);
    nesting->path[nesting->depth] = g_steal_pointer(&path);
    nesting->column[nesting->depth++] = column;
    return TRUE;
}

/* OmegaConf's ${path.of.another}, which may start in a file that includes this one, and
 * ${ENVIRONMENT:default}: what they stand for, or NULL; the caller's. */
static char *interpolate(const Flat *flat, const char *value)
{
    const gsize length = strlen(value);

    if (!g_str_has_prefix(value, "${") || value[length - 1] != '}')
        return NULL;
    g_autofree char *name = g_strndup(value + 2, length - 3);
    char *colon = strchr(name, ':');
    if (colon != NULL)
        return g_strdup(colon[1] == '-' ? colon + 2 : colon + 1);
    for (guint i = 0; i < flat->entries->len; i++) {
        const FlatEntry *entry = &g_array_index(flat->entries, FlatEntry, i);

        if (strcmp(name, entry->path) == 0 || ends_in(name, entry->path))
            return g_strdup(entry->value);
    }
    return NULL;
}

static void interpolate_all(Flat *flat)
{
    for (guint i = 0; i < flat->entries->len; i++) {
        FlatEntry *entry = &g_array_index(flat->entries, FlatEntry, i);
        char *value = interpolate(flat, entry->value);

        if (value == NULL)
            continue;
        g_free(entry->value);
        entry->value = value;
    }
}

Flat *flat_parse_yaml(const char *text, const char *source, GError **error)
{
    g_autoptr(Flat) flat = flat_new(source);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    Nesting nesting = {.depth = 0};
    gboolean ok = TRUE;

    for (guint i = 0; ok && lines[i] != NULL; i++) {
        cut_comment(lines[i]);
        g_strchomp(lines[i]);
        if (strchr(lines[i], '\t') != NULL && lines[i][strspn(lines[i], " ")] == '\t')
            ok = refuse_line(flat, i + 1, "a tab can't indent", error);
        else if (lines[i][strspn(lines[i], " ")] != '\0' && strcmp(lines[i], "---") != 0)
            ok = yaml_line(flat, &nesting, lines[i], i + 1, error);
    }
    nesting_cut(&nesting, 0);
    interpolate_all(flat);
    return ok ? g_steal_pointer(&flat) : NULL;
}

/* ---- JSON ---- */

static void flatten(Flat *flat, const char *path, JsonNode *node);

static void flatten_member(JsonObject *object, const char *name, JsonNode *node, gpointer data)
{
    gpointer *both = data;
    g_autofree char *path = join(both[1], name);

    (void)object;
    flatten(both[0], path, node);
}

static void flatten(Flat *flat, const char *path, JsonNode *node)
{
    gpointer both[] = {flat, (gpointer)path};

    if (JSON_NODE_HOLDS_OBJECT(node)) {
        json_object_foreach_member(json_node_get_object(node), flatten_member, both);
        return;
    }
    if (JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_STRING) {
        add(flat, g_strdup(path), g_strdup(json_node_get_string(node)), 0);
        return;
    }
    add(flat, g_strdup(path), json_node_text(node, FALSE), 0);
}

Flat *flat_parse_json(const char *text, const char *source, GError **error)
{
    g_autoptr(JsonParser) parser = json_parser_new();
    g_autoptr(GError) why = NULL;

    if (!json_check(text, source, error)) /* json-glib recurses as deep as a text is nested */
        return NULL;
    if (!json_parser_load_from_data(parser, text, -1, &why)) {
        fail(error, ERROR_INPUT, "%s: %s", source, why->message);
        return NULL;
    }
    JsonNode *root = json_parser_get_root(parser);
    if (root == NULL || !JSON_NODE_HOLDS_OBJECT(root)) {
        fail(error, ERROR_INPUT, "%s: must be a JSON object", source);
        return NULL;
    }
    Flat *flat = flat_new(source);
    flatten(flat, "", root);
    return flat;
}

/* ---- options ---- */

static gboolean is_name(char c)
{
    return g_ascii_isalnum(c) || c == '_';
}

/* NAME=value at the start of @word; NULL when it is something else. */
static const char *assigned(const char *word)
{
    gsize length = 0;

    while (is_name(word[length]))
        length++;
    return length > 0 && word[length] == '=' && !g_ascii_isdigit(word[0]) ? word + length : NULL;
}

/* What a $NAME at the start of @value stands for; the caller's. */
static char *expand(GHashTable *variables, const char *value)
{
    enum { MOST = 8 }; /* variables that name variables */
    g_autofree char *now = g_strdup(value);

    for (guint i = 0; i < MOST && now[0] == '$'; i++) {
        const gboolean braces = now[1] == '{';
        const char *name = now + (braces ? 2 : 1);
        gsize length = 0;

        while (is_name(name[length]))
            length++;
        g_autofree char *key = g_strndup(name, length);
        const char *rest = name + length, *found = g_hash_table_lookup(variables, key);
        g_autofree char *otherwise = braces && g_str_has_prefix(rest, ":-")
                                         ? g_strndup(rest + 2, strcspn(rest + 2, "}"))
                                         : NULL;
        if (found != NULL && strcmp(found, now) == 0) /* NAME=${NAME:-default} */
            found = NULL;
        if (found == NULL && otherwise == NULL)
            break;
        char *next = g_strdup(found != NULL ? found : otherwise);
        g_free(now);
        now = next;
    }
    return g_steal_pointer(&now);
}

typedef struct {
    char *text;
    guint line;
} Word;

static void word_clear(gpointer data)
{
    g_free(((Word *)data)->text);
}

/* Quotes, brackets and what ends a command only hold lists of options together; but within quotes
 * around one word they are of it: "Et*2|(t*2|)*3". */
static void separate_words(char *line)
{
    char *end = NULL; /* of such a word */

    for (char *at = line; *at != '\0'; at++) {
        const gboolean quote = *at == '"' || *at == '\'';

        if (end == NULL && quote) {
            char *closing = strchr(at + 1, *at);

            end = closing != NULL && at + 1 + strcspn(at + 1, " \t") > closing ? closing : NULL;
            *at = ' ';
        } else if (at == end) {
            end = NULL;
            *at = ' ';
        } else if (end == NULL && strchr("()\\,;\r", *at) != NULL) {
            *at = ' ';
        }
    }
}

static GArray *split_words(const char *text)
{
    GArray *words = g_array_new(FALSE, FALSE, sizeof(Word));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    g_array_set_clear_func(words, word_clear);
    for (guint i = 0; lines[i] != NULL; i++) {
        const char *start = lines[i] + strspn(lines[i], " \t");

        if (start[0] == '#')
            continue;
        separate_words(lines[i]);
        g_auto(GStrv) parts = g_strsplit_set(lines[i], " \t", -1);
        for (guint p = 0; parts[p] != NULL; p++) {
            const Word word = {g_strdup(parts[p]), i + 1};

            if (parts[p][0] == '#') { /* the rest is a comment */
                g_free(word.text);
                break;
            }
            if (parts[p][0] == '\0')
                g_free(word.text);
            else
                g_array_append_val(words, word);
        }
    }
    return words;
}

static GHashTable *find_variables(const GArray *words)
{
    GHashTable *variables = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);

    for (guint i = 0; i < words->len; i++) {
        const char *word = g_array_index(words, Word, i).text, *equals = assigned(word);

        if (equals != NULL)
            g_hash_table_insert(variables, g_strndup(word, (gsize)(equals - word)),
                                g_strdup(equals + 1));
    }
    return variables;
}

Flat *flat_parse_options(const char *text, const char *source)
{
    Flat *flat = flat_new(source);
    g_autoptr(GArray) words = split_words(text);
    g_autoptr(GHashTable) variables = find_variables(words);

    for (guint i = 0; i < words->len; i++) {
        const Word *word = &g_array_index(words, Word, i);
        const char *next = i + 1 < words->len ? g_array_index(words, Word, i + 1).text : "--";

        if (!g_str_has_prefix(word->text, "--") || word->text[2] == '\0')
            continue;
        const gsize length = strcspn(word->text + 2, "=");
        const char *equals = word->text[2 + length] == '=' ? word->text + 3 + length : NULL;
        const char *value = equals != NULL                 ? equals
                            : g_str_has_prefix(next, "--") ? "true"
                            : assigned(next) != NULL       ? "true"
                                                           : next;
        char *name = g_strndup(word->text + 2, length);
        add(flat, g_strdelimit(name, "-", '_'), expand(variables, value), word->line);
    }
    return flat;
}
