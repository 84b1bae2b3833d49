#include "reports/report/json_members.h"

#include <math.h>

void json_member_integer(JsonBuilder *json, const char *name, gint64 value)
{
    json_builder_set_member_name(json, name);
    json_builder_add_int_value(json, value);
}

void json_member_number(JsonBuilder *json, const char *name, double value)
{
    json_builder_set_member_name(json, name);
    if (isfinite(value))
        json_builder_add_double_value(json, value);
    else
        json_builder_add_null_value(json);
}
