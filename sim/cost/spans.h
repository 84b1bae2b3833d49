/* How many consecutive ranks the groups of a program spread over (CollectiveContext). */
#pragma once

#include "sim/program/compile.h"

/* By group of the program, where all ranks are of one class; the caller's. */
guint *program_spans(const Program *program, const ProgramSpec *spec);

/* The same of @rank's groups, one of that class. */
guint *program_set_spans(const ProgramSet *set, guint class_index, guint rank);

/* Of @size ranks of which the last is @reach behind the first, as CollectiveContext counts it:
 * stride * ranks, the gap after the last member included. */
guint span_of_reach(guint reach, guint size);
