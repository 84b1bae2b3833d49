/* Initial parameters in the arena: the same values whatever the layout. */
#pragma once

#include "exec/run/interpreter.h"
#include "sim/input/model.h"
#include "sim/layout/tensor_parallel.h"

/* Norms are 1, biases 0; everything else is normal with the model's init_std, divided by sqrt(2
 * layers) for the two matrices that add to the residual stream (Radford et al. 2019, GPT-2,
 * sec. 2.3). Values are keyed by (seed, parameter name, global element).  Each rank writes what it
 * stores: parameter (shard or whole) and the master of its own span; under tensor parallelism of
 * its part, and the range of words that is its part of the vocabulary. */
void parameters_init(Interpreter *interpreter, const Model *model, guint64 seed);

/* Each step rounds bf16 parameters from their masters by chance instead of to nearest.  The chance
 * is keyed by (seed, step, parameter name, global element), so it is the same in every layout. */
void parameters_round_by_chance(Interpreter *interpreter, const Model *model, guint64 seed);

/* Part @part of a parameter whose global element e is number @numbers + e. */
RoundingNumbers parameters_rounding(const TensorSplit *split, guint part, guint64 numbers);

/* Full Hugging Face name of parameter @param of unit number @unit. */
char *parameters_name(const Program *program, guint unit, guint param);
