#include "sim/base/json_members.h"

#include <math.h>
#include <string.h>

void json_member_integer(JsonBuilder *json, const char *name, gint64 value)
{
    json_builder_set_member_name(json, name);
    json_builder_add_int_value(json, value);
}

void json_member_uint(JsonBuilder *json, const char *name, guint64 value)
{
    json_member_integer(json, name, (gint64)value);
}

void json_member_number(JsonBuilder *json, const char *name, double value)
{
    json_builder_set_member_name(json, name);
    if (isfinite(value))
        json_builder_add_double_value(json, value);
    else
        json_builder_add_null_value(json);
}

void json_member_bool(JsonBuilder *json, const char *name, gboolean value)
{
    json_builder_set_member_name(json, name);
    json_builder_add_boolean_value(json, value);
}

void json_member_string(JsonBuilder *json, const char *name, const char *value)
{
    json_builder_set_member_name(json, name);
    if (value != NULL)
        json_builder_add_string_value(json, value);
    else
        json_builder_add_null_value(json);
}

void json_member_object(JsonBuilder *json, const char *name)
{
    json_builder_set_member_name(json, name);
    json_builder_begin_object(json);
}

void json_member_array(JsonBuilder *json, const char *name)
{
    json_builder_set_member_name(json, name);
    json_builder_begin_array(json);
}

/* After the exponent of a number that ends at @text; NULL: none does. */
static const char *after_exponent(const char *text)
{
    if (*text != 'e' || (text[1] != '+' && text[1] != '-') || !g_ascii_isdigit(text[2]))
        return NULL;
    for (text += 2; g_ascii_isdigit(*text); text++)
        continue;
    return text;
}

/* json-glib ends whole numbers of 1e17 and more in ".0", behind the exponent: that is no JSON. */
char *json_node_text(JsonNode *node, gboolean indented)
{
    g_autofree char *text = json_to_string(node, indented);
    GString *mended = g_string_sized_new(strlen(text));
    gboolean in_string = FALSE;

    for (const char *at = text; *at != '\0'; at++) {
        const char *end = in_string ? NULL : after_exponent(at);

        if (end != NULL && g_str_has_prefix(end, ".0")) {
            g_string_append_len(mended, at, end - at);
            at = end + 1;
            continue;
        }
        g_string_append_c(mended, *at);
        if (*at == '"')
            in_string = !in_string;
        else if (in_string && *at == '\\')
            g_string_append_c(mended, *++at);
    }
    return g_string_free(mended, FALSE);
}
