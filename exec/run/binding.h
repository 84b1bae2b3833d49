/* What the host writes into a program's tensors: constants once, samples before each step. */
#pragma once

#include "exec/run/data.h"
#include "exec/run/interpreter.h"
#include "sim/program/compile.h"

typedef struct Binding Binding;

/* Finds the tensors and writes what stays: the rotary table of this rank's positions, where its
 * tokens and those of the ranks it shares a sequence with lie, and which learned positions it
 * reads.  Pointers of @spec are borrowed. */
Binding *binding_new(Interpreter *interpreter, const ProgramSpec *spec);
void binding_free(Binding *binding);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Binding, binding_free)

/* Tokens and labels of all micro-batches.  Samples of a step are numbered in the order
 * (micro-batch, data rank, sequence): which rank sees which depends on the layout, the set of them
 * does not. */
void binding_samples(Binding *binding, const Data *data, guint64 seed, guint64 step);

/* Sums that the step's ops add to, and that not every stage writes first, are 0 before it. */
void binding_clear_sums(Binding *binding);

/* A block of step scalars, or one, by name; every program has it. */
void binding_write(Binding *binding, const char *name, const double *values, guint count);
double binding_read(Binding *binding, const char *name);
