/* Part of `fsdp-plan explain`: what makes a plan fit that does not. */
#pragma once

#include "sim/search/plan.h"

#include <json-glib/json-glib.h>

/* Of single changes of micro-batch, strategy, recomputation and offload that make it fit the one
 * that costs least time; where none does, the fewest times as many ranks; where that does not
 * either, the change that comes nearest. */
typedef struct {
    char *name;
    Plan *plan; /* with that change; NULL: there is none to try */
} Mend;

/* "a rank needs 90 GB of 80 GB; ...": why a plan does not fit, of what is known to be memory. */
const char *mend_reason(const Plan *plan);

Mend mend_find(const Plan *plan);
void mend_clear(Mend *mend);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Mend, mend_clear)

/* One line, indented by @indent; its time against @beside's. */
void mend_print(const Mend *mend, const Plan *beside, const char *indent);

/* NULL: none makes it fit, or comes near (@nearest). */
JsonObject *mend_answer(const Mend *mend, const Plan *beside, gboolean nearest);
