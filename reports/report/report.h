/* What a store says, predicted beside measured: loading, joining, and the text and JSON of it. */
#pragma once

#include "reports/report/ranking.h"
#include "reports/store/store.h"

#include <glib.h>
#include <json-glib/json-glib.h>

/* One run.  Texts from its plan are "-" where the plan does not say. */
typedef struct {
    const StoreRun *row;    /* in the report's runs */
    JsonParser *plan;       /* NULL: there is none, or it is not a JSON object */
    char *model, *topology; /* their names */
    char *layout, *strategy;
    char *workload; /* "global batch 64, sequence 8192, bf16": equal texts may be compared */
    char *schedule; /* "1f1b, micro-batch 1 x 8, recompute none" */
    char *micro_batch;
    guint rank;             /* whose terms are shown: the one with the largest memory total */
    guint ranks_with_terms; /* 0: the run has written none yet, `terms` is the plan's prediction */
    GArray *terms; /* StoreTerm of all ranks, by rank, in the order of DESIGN's prediction */
    GArray *steps; /* StoreStep */
    GArray *ops;   /* StoreOp of the last sampled step, of one rank; may be empty */
} ReportRun;

typedef struct {
    char *path;
    GArray *rows;    /* StoreRun */
    GPtrArray *runs; /* ReportRun, oldest first */
} Report;

typedef struct {
    guint count;                   /* steps that are counted: all but the first, which warms up */
    double median_s, min_s, max_s; /* NAN when there are none */
    double first_loss, last_loss;  /* of all steps */
} ReportSteps;

/* Sums of one kind of op on one stream. */
typedef struct {
    const char *kind, *stream; /* in the run's ops */
    guint count;
    double seconds, bytes, flops;
} ReportOps;

/* Reads all runs as they are at one moment; the store may be in use by a writer. */
Report *report_load(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void report_free(Report *report);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Report, report_free)

/* The run with that id, the latest for id 0; NULL (ERROR_INPUT) names those there are. */
const ReportRun *report_find(const Report *report, gint64 id, GError **error);

/* The term of that rank; NULL when there is none. */
const StoreTerm *report_term(const ReportRun *run, guint rank, const char *term);
/* Its values for the shown rank; NAN when there are none. */
double report_predicted(const ReportRun *run, const char *term);
double report_measured(const ReportRun *run, const char *term);

const char *report_status(const ReportRun *run); /* "running or killed" for "running" */
ReportSteps report_steps(const ReportRun *run);
GArray *report_ops(const ReportRun *run); /* ReportOps, longest first */

/* The last word of an op's name: "block.forward layers.3 linear" is "linear". */
const char *report_op_kind(const char *op);

/* The runs of the same model, topology and workload, by predicted step time (unknown ones last). */
GPtrArray *report_comparable(const Report *report, const ReportRun *run);
/* One run of each set of comparable ones: @run first, then in order of the store. */
GPtrArray *report_groups(const Report *report, const ReportRun *run);
Ranking report_ranking(const GPtrArray *runs);
/* How far the orders agree, in words; NULL when fewer than two runs are measured. */
char *report_agreement(const GPtrArray *runs);

/* Whether the transport estimated any term of the rank that is shown. */
gboolean report_has_estimates(const ReportRun *run);

/* The worst error over all ranks of a group of terms: "memory_bytes", "step_seconds". */
typedef struct {
    char *group;
    const StoreTerm *worst; /* NULL: nothing was measured */
} ReportWorst;
/* ReportWorst, one a group; empty when fewer than two ranks have terms. */
GArray *report_worst(const ReportRun *run);

/* What the figures say in words, lines without an end: parameters that are not sharded, memory that
 * no term explains, a step far slower than predicted and where, a larger model that is faster. */
GPtrArray *report_remarks(const Report *report, const ReportRun *run);

/* report_text.c, report_json.c.  The ranking is of the runs comparable with @run; JSON has all runs
 * and the latest one's ranking, or @only and its. */
char *report_text(const Report *report, const ReportRun *run);
char *report_json(const Report *report, const ReportRun *only);
