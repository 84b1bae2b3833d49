/* The default output: one run's terms as a table, then all runs that may be compared with it. */
#include "reports/report/format.h"
#include "reports/report/report.h"

#include <math.h>
#include <string.h>

/* printf counts bytes, a column counts characters. */
static void append_cell(GString *out, const char *text, int width)
{
    const int pad = ABS(width) - (int)g_utf8_strlen(text, -1);

    if (width > 0)
        g_string_append_printf(out, "%*s", MAX(pad, 0), "");
    g_string_append(out, text);
    if (width < 0)
        g_string_append_printf(out, "%*s", MAX(pad, 0), "");
}

static const char *or_unknown(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : FORMAT_UNKNOWN;
}

static void append_steps(GString *out, const ReportRun *run)
{
    const ReportSteps steps = report_steps(run);
    g_autofree char *median = format_seconds(steps.median_s);
    g_autofree char *min = format_term("", "s", steps.min_s, steps.median_s);
    g_autofree char *max = format_term("", "s", steps.max_s, steps.median_s);

    if (steps.count > 0)
        g_string_append_printf(out,
                               "  step time median %s, %s to %s over %u steps (the first of %u not "
                               "counted)\n",
                               median, min, max, steps.count, run->steps->len);
    if (!isnan(steps.first_loss) && !isnan(steps.last_loss))
        g_string_append_printf(out, "  loss      %.4f at first, %.4f at last\n", steps.first_loss,
                               steps.last_loss);
}

/* One line, or what fsdp-run says of itself: lines. */
static void append_notes(GString *out, const char *notes)
{
    g_auto(GStrv) lines = g_strsplit(notes, "\n", -1);

    g_string_append_printf(out, "  notes     %s\n", g_strstrip(lines[0]));
    for (guint i = 1; lines[i] != NULL; i++)
        if (lines[i][0] != '\0')
            g_string_append_printf(out, "            %s\n", g_strstrip(lines[i]));
}

static void append_header(GString *out, const ReportRun *run)
{
    const StoreRun *row = run->row;

    g_string_append_printf(out, "run %" G_GINT64_FORMAT "  %s  %s  %s\n", row->id, run->model,
                           run->layout, run->strategy);
    g_string_append_printf(out, "  status    %s, %u steps, begun %s\n",
                           or_unknown(report_status(run)), run->steps->len,
                           or_unknown(row->created));
    g_string_append_printf(out, "  machine   %u ranks on %s (topology %s, host %s)\n", row->ranks,
                           or_unknown(row->device), run->topology, or_unknown(row->host));
    g_string_append_printf(out, "  workload  %s\n", run->workload);
    g_string_append_printf(out, "  schedule  %s\n", run->schedule);
    if (row->notes != NULL && row->notes[0] != '\0')
        append_notes(out, row->notes);
    append_steps(out, run);
}

static void append_term(GString *out, const StoreTerm *term, gboolean estimates)
{
    const double reference = isnan(term->predicted) ? term->measured : term->predicted;
    g_autofree char *predicted = format_term(term->term, term->unit, term->predicted, reference);
    g_autofree char *measured = format_term(term->term, term->unit, term->measured, reference);
    g_autofree char *error = format_error(term->unit, term->predicted, term->measured);

    append_cell(out, term->term, -34);
    append_cell(out, predicted, 18);
    append_cell(out, measured, 18);
    append_cell(out, error, 13);
    if (estimates) {
        g_autofree char *estimated =
            format_term(term->term, term->unit, term->estimated, reference);

        append_cell(out, estimated, 18);
    }
    g_string_append_c(out, '\n');
}

static void append_terms(GString *out, const ReportRun *run)
{
    const gboolean estimates = report_has_estimates(run);

    g_string_append_printf(out, "\n%-34s%18s%18s%13s%s\n", "term", "predicted", "measured", "error",
                           estimates ? "    NCCL estimates" : "");
    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);

        if (term->rank == run->rank)
            append_term(out, term, estimates);
    }
    if (run->ranks_with_terms == 0)
        g_string_append(out, "\nNothing is measured yet: the predictions are the plan's.\n");
    else
        g_string_append_printf(out,
                               "\nRank %u of %u, the one with the largest memory total.  KiB, MiB, "
                               "GiB are powers of 1024.\n",
                               run->rank, run->row->ranks);
}

static void append_worst(GString *out, const ReportRun *run)
{
    g_autoptr(GArray) groups = report_worst(run);

    if (groups->len > 0)
        g_string_append_printf(out, "Worst error over %u ranks:\n", run->ranks_with_terms);
    for (guint i = 0; i < groups->len; i++) {
        const ReportWorst *worst = &g_array_index(groups, ReportWorst, i);

        if (worst->worst == NULL)
            continue;

        const StoreTerm *term = worst->worst;
        g_autofree char *error = format_error(term->unit, term->predicted, term->measured);

        g_string_append(out, "  ");
        append_cell(out, worst->group, -32);
        append_cell(out, error, 13);
        if (strcmp(error, "exact") != 0)
            g_string_append_printf(out, "  rank %u, %s", term->rank, term->term);
        g_string_append_c(out, '\n');
    }
}

/* One figure of a job is wrong where stages differ. */
static void append_ranks(GString *out, const ReportRun *run)
{
    const StoreTerm *first = NULL, *last = NULL, *most = NULL, *least = NULL;

    for (guint i = 0; i < run->terms->len; i++) { /* by rank */
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);

        if (strcmp(term->term, "memory_bytes.total") != 0 || isnan(term->measured))
            continue;
        first = first == NULL ? term : first;
        most = most == NULL || term->measured > most->measured ? term : most;
        least = least == NULL || term->measured < least->measured ? term : least;
        last = term;
    }
    if (first == last)
        return;
    const StoreTerm *const shown[] = {most, least, first, last};
    static const char *const names[] = {"most", "least", "first", "last"};

    g_string_append(out, "Peak memory measured:");
    for (guint i = 0; i < G_N_ELEMENTS(shown); i++) {
        g_autofree char *bytes = format_term("", "bytes", shown[i]->measured, shown[i]->measured);

        g_string_append_printf(out, "%s %s %s (rank %u)", i == 0 ? "" : ",", names[i], bytes,
                               shown[i]->rank);
    }
    g_string_append(out, ".\n");
}

static void append_remarks(GString *out, const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) remarks = report_remarks(report, run);

    for (guint i = 0; i < remarks->len; i++)
        g_string_append_printf(out, "%sNote: %s.\n", i == 0 ? "\n" : "",
                               (const char *)g_ptr_array_index(remarks, i));
}

static void append_ranked_run(GString *out, const ReportRun *run, guint place, int layout_width)
{
    const double p = report_predicted(run, "step_seconds"),
                 m = report_measured(run, "step_seconds");
    const double reference = isnan(p) ? m : p;
    g_autofree char *number = g_strdup_printf("%u", place);
    g_autofree char *id = g_strdup_printf("%" G_GINT64_FORMAT, run->row->id);
    g_autofree char *predicted = format_term("", "s", p, reference);
    g_autofree char *measured = format_term("", "s", m, reference);
    g_autofree char *error = format_error("s", p, m);

    append_cell(out, number, 4);
    append_cell(out, id, 6);
    g_string_append(out, "  ");
    append_cell(out, run->layout, -layout_width);
    append_cell(out, run->strategy, -17);
    append_cell(out, run->micro_batch, 11);
    append_cell(out, predicted, 12);
    append_cell(out, measured, 12);
    append_cell(out, error, 12);
    g_string_append_printf(out, "  %s\n", or_unknown(report_status(run)));
}

/* The runs that may be compared with @run, itself among them. */
static void append_group(GString *out, const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) runs = report_comparable(report, run);
    g_autofree char *agreement = report_agreement(runs);
    int width = 8;

    for (guint i = 0; i < runs->len; i++) {
        const ReportRun *other = g_ptr_array_index(runs, i);

        width = MAX(width, (int)g_utf8_strlen(other->layout, -1) + 2);
    }
    g_string_append_printf(out, "\nRuns of %s, %s, on %s, by predicted step time\n", run->model,
                           run->workload, run->topology);
    g_string_append_printf(out, "%4s%6s  %-*s%-17s%11s%12s%12s%12s  status\n", "", "run", width,
                           "layout", "strategy", "micro-batch", "predicted", "measured", "error");
    for (guint i = 0; i < runs->len; i++)
        append_ranked_run(out, g_ptr_array_index(runs, i), i + 1, width);
    if (agreement != NULL)
        g_string_append_printf(out, "%s\n", agreement);
}

char *report_text(const Report *report, const ReportRun *run)
{
    g_autoptr(GString) out = g_string_new(NULL);
    g_autoptr(GPtrArray) groups = report_groups(report, run);

    append_header(out, run);
    append_terms(out, run);
    append_worst(out, run);
    append_ranks(out, run);
    append_remarks(out, report, run);
    for (guint i = 0; i < groups->len && report->runs->len > 1; i++)
        append_group(out, report, g_ptr_array_index(groups, i));
    return g_strdup(out->str);
}
