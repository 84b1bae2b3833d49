/* How a mixture of experts chooses and weighs experts: what config.json says of it, which no
 * program depends on; not for others than sim/export. */
#pragma once

#include "sim/input/model.h"

typedef struct {
    gboolean sigmoid;         /* a score for each expert by itself; else softmax over all */
    gboolean biased;          /* chosen by the score plus a bias that balances the load */
    gboolean normalised;      /* the weights of those chosen add up to 1 */
    double scale;             /* that all weights are multiplied by */
    guint groups, top_groups; /* experts are of the best groups only; 0: there are no groups */
    guint group_best;         /* a group is as good as the sum of that many of its best experts */
} Routing;

/* Where the file doesn't say: as transformers' configuration classes have it. */
gboolean routing_read(const Model *model, Routing *routing, GError **error);
