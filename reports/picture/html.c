#include "reports/picture/html.h"

#include "reports/picture/html_style.h"
#include "reports/picture/picture.h"
#include "reports/report/format.h"
#include "sim/base/error.h"
#include "sim/base/text_file.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* ---- pieces of text ---- */

static void append_text(GString *page, const char *text)
{
    g_autofree char *escaped = g_markup_escape_text(text != NULL ? text : FORMAT_UNKNOWN, -1);

    g_string_append(page, escaped);
}

/* <@tag>text</@tag>; @tag may carry a class: "td class=t". */
static void append_element(GString *page, const char *tag, const char *text)
{
    const char *space = strchr(tag, ' ');
    const int length = space != NULL ? (int)(space - tag) : (int)strlen(tag);

    g_string_append_printf(page, "<%s>", tag);
    append_text(page, text);
    g_string_append_printf(page, "</%.*s>", length, tag);
}

/* Within 5 % is a good prediction, within 15 % one to work with. */
static const char *grade(double predicted, double measured)
{
    const double off = fabs(format_error_value(predicted, measured));

    if (isnan(predicted) || isnan(measured))
        return "none";
    return off <= 0.05 ? "good" : off <= 0.15 ? "fair" : "bad";
}

static void append_error_cell(GString *page, const char *unit, double predicted, double measured)
{
    g_autofree char *error = format_error(unit, predicted, measured);
    g_autofree char *tag = g_strdup_printf("td class=%s", grade(predicted, measured));

    append_element(page, tag, error);
}

/* ---- head and tiles ---- */

static void append_head(GString *page, const ReportRun *run)
{
    const StoreRun *row = run->row;

    g_string_append(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                          "<meta name=\"viewport\" content=\"width=device-width, "
                          "initial-scale=1\">\n<title>");
    g_string_append_printf(page, "Run %" G_GINT64_FORMAT ", ", row->id);
    append_text(page, run->model);
    g_string_append(page, "</title>\n<style>");
    g_string_append(page, html_style);
    g_string_append(page, "</style>\n</head>\n<body>\n<main>\n<header>\n");
    g_string_append_printf(
        page, "<p class=kicker>Predicted and measured &middot; run %" G_GINT64_FORMAT "</p>\n",
        row->id);
    append_element(page, "h1", run->model);

    g_autofree char *layout =
        g_strdup_printf("%s, %s; %s", run->layout, run->strategy, run->schedule);
    g_autofree char *machine =
        g_strdup_printf("%s; %u ranks on %s, topology %s, host %s", run->workload, row->ranks,
                        row->device != NULL ? row->device : FORMAT_UNKNOWN, run->topology,
                        row->host != NULL ? row->host : FORMAT_UNKNOWN);
    g_autofree char *status =
        g_strdup_printf("%s after %u steps; begun %s", report_status(run), run->steps->len,
                        row->created != NULL ? row->created : FORMAT_UNKNOWN);

    append_element(page, "p", layout);
    append_element(page, "p", machine);
    append_element(page, "p", status);
    if (row->notes != NULL && row->notes[0] != '\0')
        append_element(page, "pre", row->notes);
    g_string_append(page, "</header>\n");
}

/* The measured value, large, with the predicted one below; the other way while nothing is
 * measured. */
static void append_tile(GString *page, const ReportRun *run, const char *name, const char *term)
{
    const StoreTerm *row = report_term(run, run->rank, term);
    if (row == NULL || (isnan(row->predicted) && isnan(row->measured)))
        return;

    const double reference = isnan(row->predicted) ? row->measured : row->predicted;
    g_autofree char *predicted = format_term(term, row->unit, row->predicted, reference);
    g_autofree char *measured = format_term(term, row->unit, row->measured, reference);
    g_autofree char *error = format_error(row->unit, row->predicted, row->measured);
    const gboolean known = !isnan(row->measured);

    g_string_append(page, "<div class=tile>");
    append_element(page, "span", name);
    append_element(page, "b", known ? measured : predicted);
    if (known) {
        g_autofree char *tag = g_strdup_printf("em class=%s", grade(row->predicted, row->measured));

        g_string_append(page, "<span>predicted ");
        append_text(page, predicted);
        g_string_append(page, "</span>");
        append_element(page, tag, error);
    } else {
        append_element(page, "span", "predicted, not measured");
    }
    g_string_append(page, "</div>\n");
}

static void append_tiles(GString *page, const ReportRun *run)
{
    g_string_append(page, "<section class=tiles>\n");
    append_tile(page, run, "Step time", "step_seconds");
    append_tile(page, run, "Throughput", "tokens_per_second");
    append_tile(page, run, "Model FLOP utilisation", "mfu");
    append_tile(page, run, "Peak memory of a rank", "memory_bytes.total");
    g_string_append(page, "</section>\n");

    const ReportSteps steps = report_steps(run);
    if (steps.count == 0)
        return;

    g_autofree char *median = format_seconds(steps.median_s);
    g_autofree char *min = format_term("", "s", steps.min_s, steps.median_s);
    g_autofree char *max = format_term("", "s", steps.max_s, steps.median_s);
    g_autofree char *text = g_strdup_printf(
        "Over %u steps (the first is not counted) a step took %s in the median, %s to %s.",
        steps.count, median, min, max);

    append_element(page, "p class=note", text);
}

/* ---- tables ---- */

static void append_terms(GString *page, const ReportRun *run)
{
    const char *group = NULL;
    gsize group_length = 0;

    const gboolean estimates = report_has_estimates(run);

    g_string_append_printf(page,
                           "<div class=table><table><thead><tr><th class=t>term<th>predicted"
                           "<th>measured<th>error%s</tr></thead><tbody>\n",
                           estimates ? "<th>NCCL estimates" : "");
    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);
        if (term->rank != run->rank)
            continue;

        const char *dot = strchr(term->term, '.');
        const gsize length = dot != NULL ? (gsize)(dot - term->term) : 0;
        const gboolean new_group =
            group != NULL && (length != group_length || strncmp(group, term->term, length) != 0);
        const double reference = isnan(term->predicted) ? term->measured : term->predicted;
        g_autofree char *predicted =
            format_term(term->term, term->unit, term->predicted, reference);
        g_autofree char *measured = format_term(term->term, term->unit, term->measured, reference);

        g_string_append(page, new_group ? "<tr class=group><td class=t><code>"
                                        : "<tr><td class=t><code>");
        append_text(page, term->term);
        g_string_append(page, "</code></td>");
        append_element(page, "td", predicted);
        append_element(page, "td", measured);
        append_error_cell(page, term->unit, term->predicted, term->measured);
        if (estimates) {
            g_autofree char *estimated =
                format_term(term->term, term->unit, term->estimated, reference);

            append_element(page, "td", estimated);
        }
        g_string_append(page, "</tr>\n");
        group = term->term;
        group_length = length;
    }
    g_string_append(page, "</tbody></table></div>\n");
}

static void append_worst(GString *page, const ReportRun *run)
{
    g_autoptr(GArray) groups = report_worst(run);
    if (groups->len == 0)
        return;

    g_string_append_printf(page,
                           "<h2>Worst error over all %u ranks</h2>\n<div class=table><table><thead>"
                           "<tr><th class=t>group<th>error<th>rank<th class=t>term</tr></thead>"
                           "<tbody>\n",
                           run->ranks_with_terms);
    for (guint i = 0; i < groups->len; i++) {
        const ReportWorst *worst = &g_array_index(groups, ReportWorst, i);
        const StoreTerm *term = worst->worst;
        if (term == NULL)
            continue;

        const gboolean exact = format_error_value(term->predicted, term->measured) == 0;
        g_autofree char *rank =
            exact ? g_strdup(FORMAT_UNKNOWN) : g_strdup_printf("%u", term->rank);

        g_string_append(page, "<tr>");
        append_element(page, "td class=t", worst->group);
        append_error_cell(page, term->unit, term->predicted, term->measured);
        append_element(page, "td", rank);
        append_element(page, "td class=t", exact ? FORMAT_UNKNOWN : term->term);
        g_string_append(page, "</tr>\n");
    }
    g_string_append(page, "</tbody></table></div>\n");
}

static void append_remarks(GString *page, const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) remarks = report_remarks(report, run);

    for (guint i = 0; i < remarks->len; i++) {
        g_autofree char *note = g_strconcat("Note: ", g_ptr_array_index(remarks, i), ".", NULL);

        append_element(page, "p class=note", note);
    }
}

static void append_run_row(GString *page, const ReportRun *run, gboolean shown)
{
    const double p = report_predicted(run, "step_seconds"),
                 m = report_measured(run, "step_seconds");
    const double reference = isnan(p) ? m : p;
    g_autofree char *id = g_strdup_printf("%" G_GINT64_FORMAT, run->row->id);
    g_autofree char *predicted = format_term("", "s", p, reference);
    g_autofree char *measured = format_term("", "s", m, reference);

    g_string_append(page, shown ? "<tr class=shown>" : "<tr>");
    append_element(page, "td", id);
    append_element(page, "td class=t", run->layout);
    append_element(page, "td class=t", run->strategy);
    append_element(page, "td", run->micro_batch);
    append_element(page, "td", predicted);
    append_element(page, "td", measured);
    append_error_cell(page, "s", p, m);
    append_element(page, "td class=t", report_status(run));
    g_string_append(page, "</tr>\n");
}

static void append_group(GString *page, const Report *report, const ReportRun *run,
                         const ReportRun *shown)
{
    g_autoptr(GPtrArray) runs = report_comparable(report, run);
    g_autofree char *agreement = report_agreement(runs);
    g_autofree char *title =
        g_strdup_printf("Runs of %s, %s, on %s", run->model, run->workload, run->topology);

    append_element(page, "h2", title);
    g_string_append(page, "<div class=table><table><thead><tr><th>run<th class=t>layout"
                          "<th class=t>strategy<th>micro-batch<th>predicted<th>measured<th>error"
                          "<th class=t>status</tr></thead><tbody>\n");
    for (guint i = 0; i < runs->len; i++)
        append_run_row(page, g_ptr_array_index(runs, i), g_ptr_array_index(runs, i) == shown);
    g_string_append(page, "</tbody></table></div>\n");
    if (agreement != NULL)
        append_element(page, "p class=note", agreement);
}

static void append_other_runs(GString *page, const Report *report, const ReportRun *shown)
{
    if (report->runs->len < 2)
        return;
    g_string_append(page, "<h2>Terms of the other runs</h2>\n");
    for (guint i = 0; i < report->runs->len; i++) {
        const ReportRun *run = g_ptr_array_index(report->runs, i);
        g_autofree char *label =
            g_strdup_printf("Run %" G_GINT64_FORMAT ": %s, %s, %s", run->row->id, run->model,
                            run->layout, run->strategy);

        if (run == shown)
            continue;
        g_string_append(page, "<details>");
        append_element(page, "summary", label);
        append_terms(page, run);
        g_string_append(page, "</details>\n");
    }
}

/* ---- the page and its files ---- */

static void append_picture(GString *page, const Picture *picture, GBytes *svg)
{
    g_string_append(page, "<figure>");
    g_string_append_len(page, g_bytes_get_data(svg, NULL), (gssize)g_bytes_get_size(svg));
    append_element(page, "figcaption", picture->caption);
    g_string_append(page, "</figure>\n");
}

static char *compose(const Report *report, const ReportRun *run, const GPtrArray *pictures,
                     const GPtrArray *svgs)
{
    GString *page = g_string_new(NULL);
    g_autoptr(GPtrArray) groups = report_groups(report, run);

    append_head(page, run);
    append_tiles(page, run);
    for (guint i = 0; i < pictures->len; i++)
        append_picture(page, g_ptr_array_index(pictures, i), g_ptr_array_index(svgs, i));
    g_string_append(page, "<h2>Term by term</h2>\n");
    append_terms(page, run);
    append_element(page, "p class=note",
                   run->ranks_with_terms == 0
                       ? "Nothing is measured yet: the predictions are the plan's."
                       : "Of the rank with the largest memory total. KiB, MiB and GiB are powers "
                         "of 1024. Error is measured / predicted - 1.");
    append_worst(page, run);
    append_remarks(page, report, run);
    for (guint i = 0; i < groups->len && report->runs->len > 1; i++)
        append_group(page, report, g_ptr_array_index(groups, i), run);
    append_other_runs(page, report, run);
    g_string_append(page, "<footer>Written by fsdp-report from ");
    append_text(page, report->path);
    g_string_append(page, ".</footer>\n</main>\n</body>\n</html>\n");
    return g_string_free(page, FALSE);
}

/* All pictures in one format; NULL when one fails. */
static GPtrArray *render_all(const GPtrArray *pictures, PlotFormat format, GError **error)
{
    g_autoptr(GPtrArray) rendered = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);

    for (guint i = 0; i < pictures->len; i++) {
        const Picture *picture = g_ptr_array_index(pictures, i);
        GBytes *bytes = plot_render(picture->plot, format, error);

        if (bytes == NULL)
            return NULL;
        g_ptr_array_add(rendered, bytes);
    }
    return g_steal_pointer(&rendered);
}

static gboolean write_file(const char *folder, const char *name, const char *data, gsize size,
                           GError **error)
{
    g_autofree char *path = g_build_filename(folder, name, NULL);

    return text_file_write(path, data, size, error);
}

static gboolean write_pictures(const char *folder, const GPtrArray *pictures,
                               const GPtrArray *rendered, const char *extension, GError **error)
{
    for (guint i = 0; i < pictures->len; i++) {
        const Picture *picture = g_ptr_array_index(pictures, i);
        GBytes *bytes = g_ptr_array_index(rendered, i);
        g_autofree char *name = g_strconcat(picture->plot->name, extension, NULL);

        if (!write_file(folder, name, g_bytes_get_data(bytes, NULL), g_bytes_get_size(bytes),
                        error))
            return FALSE;
    }
    return TRUE;
}

gboolean html_write(const Report *report, const ReportRun *run, const char *folder, gboolean png,
                    GError **error)
{
    g_autoptr(GPtrArray) pictures = picture_all(report, run);
    g_autoptr(GPtrArray) svgs = render_all(pictures, PLOT_SVG, error);
    if (svgs == NULL)
        return FALSE;
    g_autoptr(GPtrArray) pngs = png ? render_all(pictures, PLOT_PNG, error) : NULL;
    if (png && pngs == NULL)
        return FALSE;

    g_autofree char *page = compose(report, run, pictures, svgs);

    if (g_mkdir_with_parents(folder, 0777) != 0)
        return fail(error, ERROR_INPUT, "%s: can't be created: %s", folder, g_strerror(errno));
    if (!write_pictures(folder, pictures, svgs, ".svg", error) ||
        (png && !write_pictures(folder, pictures, pngs, ".png", error)))
        return FALSE;
    return write_file(folder, "index.html", page, strlen(page), error);
}
