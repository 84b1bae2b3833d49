#include "sim/base/json_members.h"

#include <math.h>

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
