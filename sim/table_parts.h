/* Private to tables: what several of them print. */
#pragma once

#include "sim/table.h"

/* Takes @line; NULL: nothing to say. */
void table_print_remark(char *line);

/* The model, the cluster, the batch, and what is assumed of them.  @searched: SearchAnswer's. */
void table_print_inputs(const SearchRequest *request, const GArray *searched);

/* Of a rank at its peak, by term. */
void table_print_memory(const Plan *plan);
