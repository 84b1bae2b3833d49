/* Members of a JSON object. */
#pragma once

#include <json-glib/json-glib.h>

void json_member_integer(JsonBuilder *json, const char *name, gint64 value);
void json_member_number(JsonBuilder *json, const char *name, double value); /* not finite: null */
