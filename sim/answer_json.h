/* What search, estimate and model answer with --json. */
#pragma once

#include "sim/search/search.h"

#include <json-glib/json-glib.h>

typedef struct {
    const SearchRequest *request;
    const SearchResult *result;
    const Plan *today;      /* what runs now; NULL: not asked */
    const GPtrArray *notes; /* lines: what its file says that is priced otherwise; or NULL */
    guint smallest, fewer;  /* where nothing fits: the next larger number of GPUs on which something
                               does and, where nothing is legal, the next smaller; 0 = none */
    const GArray *searched; /* guint: of search_numbers(), where plans are its; or NULL */
    guint roomy;            /* search_roomy_gpus() of --gpus auto, or 0 */
    const Plan *faster;     /* on fewer GPUs, or NULL: search_fewer_faster() */
    const Plan *batch;      /* of another batch, or NULL: search_other_batch() */
    const Plan *offloaded;  /* that fits with state in another tier, or NULL */
} SearchAnswer;

/* The plan as its file has it (DESIGN 6), and what is said beside it: whether fsdp-run trains it,
 * whether its memory is at risk, what bounds it, notes.  The caller's; json_node_unref(). */
JsonNode *answer_plan(const Plan *plan);

/* {"candidates", "feasible", "rejected", "refused", "seconds", "plans", ...}; the same. */
JsonNode *answer_search(const SearchAnswer *answer);

/* Adds "rejected", how many of each reason, and "refused", one of each kind in words where there
 * are any. */
void answer_add_refused(JsonObject *object, const SearchResult *result);

/* {"name", "parameters", "active_parameters", shape, what can be done with it, "tensors"}; the
 * same.
 */
JsonNode *answer_model(const Model *model);

/* {"proven", "problems", "ranks", "classes", "ops"}: @problems as program_set_check() has them;
 * @ops of a step.  The same. */
JsonNode *answer_check(const ProgramSet *set, guint64 ops, const GPtrArray *problems);

/* On stdout. */
void answer_print(JsonNode *node);
