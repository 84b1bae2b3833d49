/* What programs have in common that differ in sizes only: the waits of their calls, and which
 * tensors conflict.  Search compiles many of those: layouts whose data axes differ. */
#pragma once

#include "sim/layout/pipeline.h"
#include "sim/program/program.h"

/* Shared by threads. */
typedef struct Patterns Patterns;

Patterns *patterns_new(void);
void patterns_free(Patterns *patterns);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Patterns, patterns_free)

/* The timetables of a schedule, which many of them share; the caller's.  @patterns may be NULL. */
typedef struct SharedTimetables SharedTimetables;

SharedTimetables *patterns_timetables(Patterns *patterns, const Schedule *schedule, guint pp);
const Timetable *shared_timetable(const SharedTimetables *timetables, guint stage);
void shared_timetables_unref(SharedTimetables *timetables);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(SharedTimetables, shared_timetables_unref)

/* The pattern of @program, whose calls are in order and wait for nothing yet; the caller's. */
Pattern *patterns_find(Patterns *patterns, const Program *program);
Pattern *pattern_ref(Pattern *pattern);
void pattern_unref(Pattern *pattern);

/* Adds the waits to @program's step; FALSE: they are not known yet. */
gboolean pattern_add_waits(Pattern *pattern, Program *program);
void pattern_keep_waits(Pattern *pattern, const Program *program);

/* Rows of bits of @words in all, as Lifetimes has them; FALSE: they are not known yet. */
gboolean pattern_copy_conflicts(Pattern *pattern, guint64 *conflicts, gsize words);
void pattern_keep_conflicts(Pattern *pattern, const guint64 *conflicts, gsize words);
