/* Predictions of published runs beside what was measured (DESIGN 9). */
#pragma once

#include "sim/backtest/record.h"
#include "sim/base/progress.h"

#include <json-glib/json-glib.h>

/* One row; numbers are 0 where there is none. */
typedef struct {
    const Record *record;
    char *skipped;            /* why nothing was predicted, or nothing is compared; else NULL */
    double step_s, memory_gb; /* memory: the row's own kind; all that a process holds: */
    double total_gb;
    gboolean feasible;
    gboolean timed, weighed, labelled; /* counts in step times, memory, feasibility */
} Outcome;

/* Of one source, or of all rows. */
typedef struct {
    char *source; /* NULL: of all */
    guint num_time, num_memory;
    double mape_time, median_time, mape_memory;
    char *worst; /* id of the row with the largest time error, or NULL */
} SourceScore;

typedef struct {
    SourceScore all;
    double under_memory_max; /* the most that memory was predicted too small, of the measured */
    guint oom, oom_found, oom_said, labels, labels_right;
    guint crashes, crashes_found; /* rows that ended in a crash or out of memory, which is not said
                                   */
    guint choices;
    double regret_mean, regret_max, spearman_mean;
} TotalScore;

typedef struct {
    GArray *records;  /* Record, borrowed */
    GArray *outcomes; /* Outcome */
    GArray *sources;  /* SourceScore */
    TotalScore total;
} Backtest;

/* Predicts all rows, on all cores; @all: the default filter is not applied.  @progress may be NULL.
 */
Backtest *backtest_run(GArray *records, const char *topologies_dir, gboolean all,
                       Progress *progress);
void backtest_free(Backtest *backtest);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Backtest, backtest_free)

/* Relative errors, 0 where the row doesn't count. */
double outcome_time_error(const Outcome *outcome);
double outcome_memory_error(const Outcome *outcome);

/* How many rows were skipped for each reason: char * -> guint.  The caller's. */
GHashTable *backtest_skipped(const Backtest *backtest);

JsonNode *backtest_node(const Backtest *backtest);
