/* Members of a JSON object that is being built, and its text. */
#pragma once

#include <json-glib/json-glib.h>

void json_member_integer(JsonBuilder *json, const char *name, gint64 value);
void json_member_uint(JsonBuilder *json, const char *name, guint64 value);
void json_member_number(JsonBuilder *json, const char *name, double value); /* not finite: null */
void json_member_bool(JsonBuilder *json, const char *name, gboolean value);
void json_member_string(JsonBuilder *json, const char *name, const char *value); /* NULL: null */

/* Begin one; json_builder_end_object() and json_builder_end_array() end it. */
void json_member_object(JsonBuilder *json, const char *name);
void json_member_array(JsonBuilder *json, const char *name);

/* @node as text, indented or in one line; the caller's. */
char *json_node_text(JsonNode *node, gboolean indented);
