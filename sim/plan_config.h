/* --from: what another framework's configuration file says, as a request. */
#pragma once

#include "sim/config/config.h"
#include "sim/search/search.h"

/* Fills what @request leaves open of its workload (batch, sequence, optimiser) and number of GPUs;
 * where @recipe_is_open, its recipe too. */
gboolean plan_config_workload(const Config *config, const char *source, gboolean recipe_is_open,
                              SearchRequest *request, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Then also what it leaves open of the layout and its schedule: the one that the file describes. */
gboolean plan_config_layout(const Config *config, const char *source, SearchRequest *request,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
