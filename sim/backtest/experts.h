/* Published models with a mixture of experts: tables of runs have no columns for their experts. */
#pragma once

#include "sim/backtest/record.h"
#include "sim/input/model.h"

/* The configuration of a row's model, told by its name, with the row's layers and hidden size and
 * @vocab words; the caller's.  NULL where no such model is known. */
char *experts_config_text(const Record *record, guint vocab);

/* Letters and digits of a model's name, in lower case: the caller's. */
char *experts_plain_name(const char *name);
