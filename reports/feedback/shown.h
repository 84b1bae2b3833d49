/* What a run's sampled steps show: its rows of op times, laid beside the ops of its programs. */
#pragma once

#include "reports/store/store.h"
#include "sim/program/program.h"

#include <glib.h>

typedef struct {
    GArray *ops;      /* LearnOp (sim/cost/learn.h) */
    guint64 num;      /* op times that they are made of */
    guint steps;      /* that were sampled */
    guint incomplete; /* collectives left out: the times of some members are not in the store */
} Shown;

/* What @run, whose programs are @set with @spans by class, took.  @gaps: of sampled steps, what
 * lies between an op and the next on its stream of compute, is part of every step, and so of its
 * ops. ERROR_INPUT when there are no op times, or they are not of these programs. */
gboolean shown_read(Shown *shown, Store *store, gint64 run, const ProgramSet *set,
                    guint *const *spans, gboolean gaps, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void shown_clear(Shown *shown);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Shown, shown_clear)
