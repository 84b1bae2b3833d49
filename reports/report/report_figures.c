/* Figures of loaded runs: terms by name, spread of steps, ops by kind, ranking, worst errors. */
#include "reports/report/format.h"
#include "reports/report/report.h"
#include "sim/base/samples.h"

#include <math.h>
#include <string.h>

const StoreTerm *report_term(const ReportRun *run, guint rank, const char *term)
{
    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *row = &g_array_index(run->terms, StoreTerm, i);

        if (row->rank == rank && strcmp(row->term, term) == 0)
            return row;
    }
    return NULL;
}

double report_predicted(const ReportRun *run, const char *term)
{
    const StoreTerm *row = report_term(run, run->rank, term);

    return row != NULL ? row->predicted : NAN;
}

double report_measured(const ReportRun *run, const char *term)
{
    const StoreTerm *row = report_term(run, run->rank, term);

    return row != NULL ? row->measured : NAN;
}

gboolean report_has_estimates(const ReportRun *run)
{
    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *row = &g_array_index(run->terms, StoreTerm, i);

        if (row->rank == run->rank && !isnan(row->estimated))
            return TRUE;
    }
    return FALSE;
}

const char *report_status(const ReportRun *run)
{
    /* A process that was killed can't say so. */
    return g_strcmp0(run->row->status, "running") == 0 ? "running or killed" : run->row->status;
}

ReportSteps report_steps(const ReportRun *run)
{
    ReportSteps steps = {
        .median_s = NAN, .min_s = NAN, .max_s = NAN, .first_loss = NAN, .last_loss = NAN};
    g_autoptr(GArray) seconds = g_array_new(FALSE, FALSE, sizeof(double));

    for (guint i = 0; i < run->steps->len; i++) {
        const StoreStep *step = &g_array_index(run->steps, StoreStep, i);

        if (i == 0)
            steps.first_loss = step->loss;
        else if (!isnan(step->seconds))
            g_array_append_val(seconds, step->seconds);
        steps.last_loss = step->loss;
    }
    steps.count = seconds->len;
    if (seconds->len == 0)
        return steps;

    double *sorted = (double *)(gpointer)seconds->data;

    steps.median_s = samples_median(sorted, seconds->len);
    steps.min_s = sorted[0];
    steps.max_s = sorted[seconds->len - 1];
    return steps;
}

const char *report_op_kind(const char *op)
{
    const char *space = strrchr(op, ' ');

    return space != NULL ? space + 1 : op;
}

static ReportOps *find_ops(GArray *sums, const char *kind, const char *stream)
{
    for (guint i = 0; i < sums->len; i++) {
        ReportOps *sum = &g_array_index(sums, ReportOps, i);

        if (strcmp(sum->kind, kind) == 0 && strcmp(sum->stream, stream) == 0)
            return sum;
    }

    const ReportOps empty = {.kind = kind, .stream = stream};

    g_array_append_val(sums, empty);
    return &g_array_index(sums, ReportOps, sums->len - 1);
}

static gint longest_first(gconstpointer a, gconstpointer b)
{
    const ReportOps *x = a, *y = b;

    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

GArray *report_ops(const ReportRun *run)
{
    GArray *sums = g_array_new(FALSE, FALSE, sizeof(ReportOps));

    for (guint i = 0; i < run->ops->len; i++) {
        const StoreOp *op = &g_array_index(run->ops, StoreOp, i);
        ReportOps *sum = find_ops(sums, report_op_kind(op->op), op->stream);

        sum->count++;
        sum->seconds += op->end - op->start;
        sum->bytes += isnan(op->bytes) ? 0 : op->bytes;
        sum->flops += isnan(op->flops) ? 0 : op->flops;
    }
    g_array_sort(sums, longest_first);
    return sums;
}

static gboolean is_comparable(const ReportRun *a, const ReportRun *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->topology, b->topology) == 0 &&
           strcmp(a->workload, b->workload) == 0;
}

static gint by_predicted_time(gconstpointer a, gconstpointer b)
{
    const ReportRun *x = *(ReportRun *const *)a, *y = *(ReportRun *const *)b;
    const double p = report_predicted(x, "step_seconds"), q = report_predicted(y, "step_seconds");

    if (isnan(p) || isnan(q))
        return isnan(p) - isnan(q);
    return (p > q) - (p < q);
}

GPtrArray *report_comparable(const Report *report, const ReportRun *run)
{
    GPtrArray *runs = g_ptr_array_new();

    for (guint i = 0; i < report->runs->len; i++)
        if (is_comparable(run, g_ptr_array_index(report->runs, i)))
            g_ptr_array_add(runs, g_ptr_array_index(report->runs, i));
    g_ptr_array_sort(runs, by_predicted_time);
    return runs;
}

GPtrArray *report_groups(const Report *report, const ReportRun *run)
{
    GPtrArray *groups = g_ptr_array_new();

    g_ptr_array_add(groups, (gpointer)(guintptr)run);
    for (guint i = 0; i < report->runs->len; i++) {
        ReportRun *other = g_ptr_array_index(report->runs, i);
        gboolean known = FALSE;

        for (guint j = 0; j < groups->len; j++)
            known |= is_comparable(g_ptr_array_index(groups, j), other);
        if (!known)
            g_ptr_array_add(groups, other);
    }
    return groups;
}

Ranking report_ranking(const GPtrArray *runs)
{
    g_autoptr(GArray) pairs = g_array_new(FALSE, FALSE, sizeof(RankedPair));

    for (guint i = 0; i < runs->len; i++) {
        const ReportRun *run = g_ptr_array_index(runs, i);
        const RankedPair pair = {report_predicted(run, "step_seconds"),
                                 report_measured(run, "step_seconds")};

        if (!isnan(pair.predicted_s) && !isnan(pair.measured_s))
            g_array_append_val(pairs, pair);
    }
    return ranking_of(pairs);
}

char *report_agreement(const GPtrArray *runs)
{
    const Ranking ranking = report_ranking(runs);
    if (ranking.count < 2)
        return NULL;

    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "Agreement of order over %u measured runs: %u of %u pairs",
                           ranking.count, ranking.in_order, ranking.pairs);
    if (!isnan(ranking.spearman))
        g_string_append_printf(text, ", Spearman %.3f", ranking.spearman);
    if (ranking.regret > 0)
        g_string_append_printf(text,
                               ". The one predicted fastest took %.1f %% longer than the fastest.",
                               100 * ranking.regret);
    else
        g_string_append(text, ". The one predicted fastest was the fastest.");
    return g_string_free(text, FALSE);
}

/* ---- all ranks ---- */

static void clear_worst(gpointer row)
{
    ReportWorst *worst = row;

    g_free(worst->group);
}

static char *group_of(const char *term)
{
    const char *dot = strchr(term, '.');

    return dot != NULL ? g_strndup(term, (gsize)(dot - term)) : g_strdup(term);
}

/* How far off; what was not predicted at all is infinitely so. */
static double badness(const StoreTerm *term)
{
    if (isnan(term->predicted) || isnan(term->measured))
        return -1;

    const double off = format_error_value(term->predicted, term->measured);

    return isnan(off) ? INFINITY : fabs(off);
}

GArray *report_worst(const ReportRun *run)
{
    GArray *groups = g_array_new(FALSE, FALSE, sizeof(ReportWorst));

    g_array_set_clear_func(groups, clear_worst);
    for (guint i = 0; i < run->terms->len && run->ranks_with_terms > 1; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);
        g_autofree char *group = group_of(term->term);
        ReportWorst *worst = NULL;

        for (guint j = 0; j < groups->len && worst == NULL; j++)
            if (strcmp(g_array_index(groups, ReportWorst, j).group, group) == 0)
                worst = &g_array_index(groups, ReportWorst, j);
        if (worst == NULL) {
            const ReportWorst none = {.group = g_steal_pointer(&group)};

            g_array_append_val(groups, none);
            worst = &g_array_index(groups, ReportWorst, groups->len - 1);
        }
        if (badness(term) >= 0 && (worst->worst == NULL || badness(term) > badness(worst->worst)))
            worst->worst = term;
    }
    return groups;
}
