/* Private to check: its parts and the list of problems. */
#pragma once

#include "sim/program/program.h"

enum { MAX_PROBLEMS = 40 };

/* Adds a line, up to MAX_PROBLEMS of them. */
void check_problem(GPtrArray *problems, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Within one rank: data and arena. */
void check_data(const Program *program, GPtrArray *problems);

/* Across ranks: agreement of groups, matched exchanges, no deadlock. */
void check_ranks(const ProgramSet *set, GPtrArray *problems);
