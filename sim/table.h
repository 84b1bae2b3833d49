/* Plans as people read them. */
#pragma once

#include "sim/answer_json.h"

/* The ranked table below what runs today, where that is asked for, and the line that says what was
 * counted. */
void table_print_search(const SearchAnswer *answer);

/* One plan in full: choices, time by term, memory by term, volume. */
void table_print_plan(const Plan *plan);

/* Where it is no line of its own, as in explain: that loading needs more. */
void table_print_loading(const Plan *plan);

/* Nothing fits: what dominates, numbers of GPUs on which something does, and what fits with state
 * in another tier. */
void table_print_nothing_fits(const SearchAnswer *answer);

/* "gemm 62%": the largest part of the step. */
char *plan_bound_text(const Plan *plan);

/* "full_shard", with a star where units differ (plan_units_text()). */
char *table_strategy_text(const Plan *plan);

/* "0-3 16-19": the layers of each chunk of a stage. */
char *table_stage_layers(const Plan *plan, guint stage);
