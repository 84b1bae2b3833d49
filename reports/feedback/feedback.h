/* Feeds what a run measured back into a topology file, so that the next prediction uses it. */
#pragma once

#include "reports/report/report.h"
#include "sim/cost/learn.h"

#include <glib.h>

typedef struct {
    char *path; /* of the topology file */
    gint64 run;
    Learnt rows;
    guint64 num; /* op times that they are of */
    guint steps;
    guint incomplete;                     /* as in Shown */
    double before_s, after_s, measured_s; /* a step of that layout: predicted with the file as
                                             it was, as it is; NAN = not measured */
    guint64 before_memory, after_memory;  /* beside the arena */
    double op_overhead_s;                 /* an op's fixed cost, as it is */
} Feedback;

/* Puts into @topology_path, a file, the rows that the sampled ops of @run give, the fixed cost of
 * an op and what a process holds beside its arena; @run's name joins the source of [measured
 * machine]. Other rows, keys and comments stay; a temporary file is renamed when all is done.
 * ERROR_INPUT where the run has no op times, was on another device, or either file is damaged: the
 * file is untouched then. */
gboolean feedback_write(Feedback *feedback, const Report *report, const ReportRun *run,
                        const char *topology_path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void feedback_clear(Feedback *feedback);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Feedback, feedback_clear)

/* What was done, the caller's: lines, or a JSON object. */
char *feedback_text(const Feedback *feedback);
char *feedback_json(const Feedback *feedback);
