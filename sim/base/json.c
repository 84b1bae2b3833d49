#include "sim/base/json.h"

#include "sim/base/error.h"
#include "sim/base/json_check.h"
#include "sim/base/json_members.h"

#include <json-glib/json-glib.h>
#include <math.h>

struct JsonText {
    char *source;
    JsonNode *root;
};

/* What the parser's signals tell while it builds the tree. */
typedef struct {
    GHashTable *num_members; /* JsonObject -> members seen */
    char *twice;             /* the first name that came twice in one object */
    guint line;
} Members;

static void on_member(JsonParser *parser, JsonObject *object, const char *name, gpointer data)
{
    Members *members = data;
    const guint seen = GPOINTER_TO_UINT(g_hash_table_lookup(members->num_members, object)) + 1;

    if (json_object_get_size(object) == seen) {
        g_hash_table_insert(members->num_members, object, GUINT_TO_POINTER(seen));
    } else if (members->twice == NULL) {
        members->twice = g_strdup(name);
        members->line = json_parser_get_current_line(parser);
    }
}

/* Freed objects could lend their address to a new one. */
static void on_object_end(G_GNUC_UNUSED JsonParser *parser, JsonObject *object, gpointer data)
{
    Members *members = data;

    g_hash_table_remove(members->num_members, object);
}

static JsonNode *build_tree(const char *text, const char *source, GError **error)
{
    g_autoptr(JsonParser) parser = json_parser_new();
    g_autoptr(GHashTable) num_members = g_hash_table_new(NULL, NULL);
    g_autoptr(GError) parse_error = NULL;
    Members members = {.num_members = num_members};

    g_signal_connect(parser, "object-member", G_CALLBACK(on_member), &members);
    g_signal_connect(parser, "object-end", G_CALLBACK(on_object_end), &members);

    const gboolean parsed = json_parser_load_from_data(parser, text, -1, &parse_error);
    g_autofree char *twice = members.twice;

    if (!parsed) {
        fail(error, ERROR_INPUT, "%s: %s", source, parse_error->message);
        return NULL;
    }
    if (twice != NULL) {
        fail(error, ERROR_INPUT, "%s:%u: field \"%s\" is there twice; allowed: once", source,
             members.line, twice);
        return NULL;
    }
    return json_parser_steal_root(parser);
}

JsonText *json_parse(const char *text, const char *source, GError **error)
{
    if (!json_check(text, source, error))
        return NULL;

    g_autoptr(JsonNode) root = build_tree(text, source, error);

    if (root == NULL)
        return NULL;
    if (!JSON_NODE_HOLDS_OBJECT(root)) {
        fail(error, ERROR_INPUT, "%s: not a JSON object: must begin with '{'", source);
        return NULL;
    }
    JsonText *json = g_new0(JsonText, 1);

    json->source = g_strdup(source);
    json->root = g_steal_pointer(&root);
    return json;
}

void json_free(JsonText *json)
{
    if (json == NULL)
        return;
    g_free(json->source);
    json_node_unref(json->root);
    g_free(json);
}

const char *json_source(const JsonText *json)
{
    return json->source;
}

/* A member of an object, an element of an array; NULL when there is none. */
static JsonNode *child(JsonNode *node, const char *name)
{
    if (JSON_NODE_HOLDS_OBJECT(node))
        return json_object_get_member(json_node_get_object(node), name);
    if (JSON_NODE_HOLDS_ARRAY(node)) {
        JsonArray *array = json_node_get_array(node);
        guint64 index;

        if (g_ascii_string_to_unsigned(name, 10, 0, G_MAXUINT, &index, NULL) &&
            index < json_array_get_length(array))
            return json_array_get_element(array, (guint)index);
    }
    return NULL;
}

static JsonNode *find(const JsonText *json, const char *field)
{
    g_auto(GStrv) names = g_strsplit(field, ".", -1);
    JsonNode *node = json->root;

    for (guint i = 0; names[i] != NULL && node != NULL; i++)
        node = child(node, names[i]);
    return node;
}

/* For messages: the value itself, its type where that is what may be wrong. */
static char *describe(JsonNode *node)
{
    if (node == NULL)
        return g_strdup("missing");
    if (JSON_NODE_HOLDS_NULL(node))
        return g_strdup("null");
    if (JSON_NODE_HOLDS_OBJECT(node))
        return g_strdup("an object");
    if (JSON_NODE_HOLDS_ARRAY(node))
        return g_strdup("an array");

    g_autofree char *value = json_node_text(node, FALSE);
    const gboolean is_string = json_node_get_value_type(node) == G_TYPE_STRING;
    g_autofree char *start = g_utf8_substring(value, 0, MIN(g_utf8_strlen(value, -1), 60));

    return g_strdup_printf("%s%s%s", start, g_str_equal(start, value) ? "" : "...",
                           is_string ? " (a string)" : "");
}

static gboolean refuse(const JsonText *json, const char *field, const char *allowed, GError **error)
{
    g_autofree char *value = describe(find(json, field));

    return fail(error, ERROR_INPUT, "%s: field \"%s\" is %s; allowed: %s", json->source, field,
                value, allowed);
}

gboolean json_has(const JsonText *json, const char *field)
{
    JsonNode *node = find(json, field);

    return node != NULL && !JSON_NODE_HOLDS_NULL(node);
}

gboolean json_is_null(const JsonText *json, const char *field)
{
    JsonNode *node = find(json, field);

    return node != NULL && JSON_NODE_HOLDS_NULL(node);
}

/* The field as a number; FALSE when it is none. */
static gboolean get_number(const JsonText *json, const char *field, double *out)
{
    JsonNode *node = find(json, field);

    if (node == NULL || !JSON_NODE_HOLDS_VALUE(node))
        return FALSE;
    if (json_node_get_value_type(node) != G_TYPE_DOUBLE &&
        json_node_get_value_type(node) != G_TYPE_INT64)
        return FALSE;
    *out = json_node_get_double(node);
    return TRUE;
}

gboolean json_double(const JsonText *json, const char *field, double min, double max, double *out,
                     GError **error)
{
    double value;

    if (!get_number(json, field, &value) || value < min || value > max) {
        g_autofree char *allowed = g_strdup_printf("a number from %g to %g", min, max);

        return refuse(json, field, allowed, error);
    }
    *out = value;
    return TRUE;
}

gboolean json_uint(const JsonText *json, const char *field, guint64 min, guint64 max, guint64 *out,
                   GError **error)
{
    JsonNode *node = find(json, field);
    const double limit = 9007199254740992.0; /* 2^53: above it a double has no odd integers */
    guint64 value = 0;
    double real;
    gboolean valid = get_number(json, field, &real) && real >= 0.0 && floor(real) == real;

    if (valid && json_node_get_value_type(node) == G_TYPE_INT64)
        value = (guint64)json_node_get_int(node);
    else if (valid && real <= limit)
        value = (guint64)real;
    else
        valid = FALSE;
    if (!valid || value < min || value > max) {
        g_autofree char *allowed = g_strdup_printf(
            "an integer from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT, min, max);

        return refuse(json, field, allowed, error);
    }
    *out = value;
    return TRUE;
}

gboolean json_uint32(const JsonText *json, const char *field, guint min, guint max, guint *out,
                     GError **error)
{
    guint64 value = 0;

    if (!json_uint(json, field, min, max, &value, error))
        return FALSE;
    *out = (guint)value;
    return TRUE;
}

gboolean json_bool(const JsonText *json, const char *field, gboolean *out, GError **error)
{
    JsonNode *node = find(json, field);

    if (node == NULL || json_node_get_value_type(node) != G_TYPE_BOOLEAN)
        return refuse(json, field, "true or false", error);
    *out = json_node_get_boolean(node);
    return TRUE;
}

gboolean json_string(const JsonText *json, const char *field, const char **out, GError **error)
{
    JsonNode *node = find(json, field);

    if (node == NULL || json_node_get_value_type(node) != G_TYPE_STRING)
        return refuse(json, field, "a string", error);
    *out = json_node_get_string(node);
    return TRUE;
}

gboolean json_optional_uint32(const JsonText *json, const char *field, guint min, guint max,
                              guint *out, GError **error)
{
    return !json_has(json, field) || json_uint32(json, field, min, max, out, error);
}

gboolean json_optional_double(const JsonText *json, const char *field, double min, double max,
                              double *out, GError **error)
{
    return !json_has(json, field) || json_double(json, field, min, max, out, error);
}

gboolean json_optional_bool(const JsonText *json, const char *field, gboolean *out, GError **error)
{
    return !json_has(json, field) || json_bool(json, field, out, error);
}

gboolean json_optional_string(const JsonText *json, const char *field, const char **out,
                              GError **error)
{
    return !json_has(json, field) || json_string(json, field, out, error);
}

gboolean json_length(const JsonText *json, const char *field, guint *out, GError **error)
{
    JsonNode *node = find(json, field);

    if (node == NULL || !JSON_NODE_HOLDS_ARRAY(node))
        return refuse(json, field, "an array", error);
    *out = json_array_get_length(json_node_get_array(node));
    return TRUE;
}

char *json_object_text(const JsonText *json, const char *field, GError **error)
{
    JsonNode *node = find(json, field);

    if (node == NULL || !JSON_NODE_HOLDS_OBJECT(node)) {
        refuse(json, field, "an object", error);
        return NULL;
    }
    return json_node_text(node, TRUE);
}
