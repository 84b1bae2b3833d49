#include "reports/report/plan_text.h"

#include "reports/report/format.h"
#include "sim/base/json_check.h"
#include "sim/base/json_members.h"

#include <math.h>

JsonParser *plan_text_parse(const char *text)
{
    g_autoptr(JsonParser) parser = json_parser_new_immutable();

    /* json-glib recurses as deep as a text is nested */
    if (text == NULL || !json_check(text, "plan", NULL) ||
        !json_parser_load_from_data(parser, text, -1, NULL))
        return NULL;

    JsonNode *root = json_parser_get_root(parser);

    return root != NULL && JSON_NODE_HOLDS_OBJECT(root) ? g_steal_pointer(&parser) : NULL;
}

JsonNode *plan_text_node(JsonParser *plan, const char *path)
{
    g_auto(GStrv) names = g_strsplit(path, ".", -1);
    JsonNode *node = plan != NULL ? json_parser_get_root(plan) : NULL;

    for (guint i = 0; names[i] != NULL && node != NULL; i++)
        node = JSON_NODE_HOLDS_OBJECT(node)
                   ? json_object_get_member(json_node_get_object(node), names[i])
                   : NULL;
    return node;
}

gboolean plan_text_is_number(JsonNode *node)
{
    if (!JSON_NODE_HOLDS_VALUE(node))
        return FALSE;

    const GType type = json_node_get_value_type(node);

    return type == G_TYPE_INT64 || type == G_TYPE_DOUBLE;
}

double plan_text_number(JsonParser *plan, const char *path)
{
    JsonNode *node = plan_text_node(plan, path);

    return node != NULL && plan_text_is_number(node) ? json_node_get_double(node) : NAN;
}

char *plan_text_value(JsonParser *plan, const char *path)
{
    JsonNode *node = plan_text_node(plan, path);

    if (node == NULL || !JSON_NODE_HOLDS_VALUE(node))
        return g_strdup(FORMAT_UNKNOWN);
    if (json_node_get_value_type(node) == G_TYPE_STRING)
        return g_strdup(json_node_get_string(node));
    return json_node_text(node, FALSE);
}

char *plan_text_recompute(JsonParser *plan)
{
    JsonNode *layers = plan_text_node(plan, "recompute.layers");

    if (layers == NULL || !JSON_NODE_HOLDS_ARRAY(layers))
        return plan_text_value(plan, "recompute");
    JsonArray *numbers = json_node_get_array(layers);
    g_autofree char *kind = plan_text_value(plan, "recompute.kind");
    g_autoptr(GString) text = g_string_new(kind);
    g_autofree char *first = NULL;
    gboolean equal = TRUE;

    for (guint i = 0; i < json_array_get_length(numbers); i++) {
        g_autofree char *number = json_node_text(json_array_get_element(numbers, i), FALSE);

        g_string_append_printf(text, "%c%s", i == 0 ? ':' : '/', number);
        if (i == 0)
            first = g_steal_pointer(&number);
        else
            equal &= g_str_equal(first, number);
    }
    return first != NULL && equal ? g_strconcat(kind, ":", first, NULL) : g_strdup(text->str);
}

/* What goes with an axis that is larger than 1: " interleaved x2", " ring". */
static void append_how(GString *text, JsonParser *plan, const char *axis)
{
    static const struct {
        const char *axis, *path;
    } hows[] = {{"pp", "schedule.name"}, {"cp", "context_parallel.kind"}};

    for (guint i = 0; i < G_N_ELEMENTS(hows); i++) {
        g_autofree char *how = plan_text_value(plan, hows[i].path);

        if (g_str_equal(axis, hows[i].axis) && !g_str_equal(how, FORMAT_UNKNOWN))
            g_string_append_printf(text, " %s", how);
    }
    const double chunks = plan_text_number(plan, "schedule.virtual_stages");
    if (g_str_equal(axis, "pp") && chunks > 1)
        g_string_append_printf(text, " x%.0f", chunks);
}

char *plan_text_layout(JsonParser *plan)
{
    static const char *const axes[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
    g_autoptr(GString) text = g_string_new(NULL);
    gboolean known = FALSE;

    for (guint i = 0; i < G_N_ELEMENTS(axes); i++) {
        g_autofree char *path = g_strconcat("layout.", axes[i], NULL);
        const double size = plan_text_number(plan, path);

        known |= !isnan(size);
        if (!(size > 1))
            continue;
        g_string_append_printf(text, "%s%s=%.0f", text->len > 0 ? " " : "", axes[i], size);
        append_how(text, plan, axes[i]);
    }
    if (text->len == 0)
        g_string_append(text, known ? "1 rank" : FORMAT_UNKNOWN);
    return g_strdup(text->str);
}
