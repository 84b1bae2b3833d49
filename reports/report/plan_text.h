/* What a plan says of itself, read defensively: a store may come from elsewhere. */
#pragma once

#include <glib.h>
#include <json-glib/json-glib.h>

/* The plan as an object; NULL when @text is NULL or none. */
JsonParser *plan_text_parse(const char *text);

/* @path as "layout.tp".  NULL (then also for a NULL @plan) when it isn't there. */
JsonNode *plan_text_node(JsonParser *plan, const char *path);

gboolean plan_text_is_number(JsonNode *node);

/* The value at @path as text, "-" when it isn't there or is no single value. */
char *plan_text_value(JsonParser *plan, const char *path);
double plan_text_number(JsonParser *plan, const char *path); /* NAN when it isn't a number */

/* What is computed again: "full", "full:4" of each stage's first layers, "full:4/2/0/0". */
char *plan_text_recompute(JsonParser *plan);

/* "pp=4 interleaved x2 dp_shard=8 cp=2 ring": axes larger than 1, with the schedule and the kind of
 * context parallelism; "1 rank" when all are 1. */
char *plan_text_layout(JsonParser *plan);
