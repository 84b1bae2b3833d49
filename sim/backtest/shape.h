/* The model that a published run names by its shape. */
#pragma once

#include "sim/backtest/record.h"
#include "sim/input/model.h"

/* Empty columns: heads hidden / 128, kv_heads = heads, ffn 4 hidden, vocabulary 50257.  Whether the
 * MLP is gated and the head tied is what comes nearest to the stated parameters (without them: a
 * gate where ffn is not 4 hidden, untied).  The vocabulary is padded to a multiple of 128 @tp, as
 * Megatron does.  NULL and *reason (static) where layers or hidden are empty or no model. */
Model *shape_model(const Record *record, guint tp, const char **reason);

/* Whether the row is of a mixture of experts: experts are then those of the model of that name. */
gboolean shape_has_experts(const Record *record);
