/* Private to pricing: what its parts share. */
#pragma once

#include "sim/search/plan.h"

/* Places the program of stage @stage, which may grow first; FALSE, with the reason where it is
 * wanted, when it doesn't fit. */
gboolean price_fits(Plan *plan, Program *program, guint stage, gboolean explains);

/* Micro-batches that are looked at, of which the memory of all follows. */
guint price_most_micro_batches(const Plan *plan);
