/* A plan as a JSON value, for those who print several. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* The caller's; json_node_unref(). */
JsonNode *plan_node(const Plan *plan);
