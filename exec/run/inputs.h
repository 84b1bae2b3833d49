/* Inputs that are the same in every step: what the host binds once. */
#pragma once

#include "exec/run/interpreter.h"
#include "sim/input/model.h"

/* Those that the program has: the rotary table, the positions of this rank's tokens, and under
 * tensor parallelism the words whose embedding and head it holds. */
void inputs_bind(Interpreter *interpreter, const Model *model, guint seq_len);
