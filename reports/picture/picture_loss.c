/* Loss over steps, one line a run. */
#include "reports/picture/picture.h"

#include <math.h>

enum { MAX_NAMED_LINES = 8, MAX_POINTS = 500 };

static gboolean has_loss(const ReportRun *run)
{
    for (guint i = 0; i < run->steps->len; i++)
        if (isfinite(g_array_index(run->steps, StoreStep, i).loss))
            return TRUE;
    return FALSE;
}

/* Means of @bin steps each; an empty line, where a loss is not finite, breaks the curve. */
static void append_losses(GString *script, const ReportRun *run, guint bin)
{
    for (guint i = 0; i < run->steps->len; i += bin) {
        const guint end = MIN(i + bin, run->steps->len);
        double step = 0, loss = 0;

        for (guint j = i; j < end; j++) {
            step += (double)g_array_index(run->steps, StoreStep, j).step / (end - i);
            loss += g_array_index(run->steps, StoreStep, j).loss / (end - i);
        }
        if (isfinite(loss))
            g_string_append_printf(script, "%.9g %.9g\n", step, loss);
        else
            g_string_append_c(script, '\n');
    }
}

static GPtrArray *runs_with_loss(const Report *report, const ReportRun *run)
{
    GPtrArray *runs = report_comparable(report, run);

    for (guint i = runs->len; i > 0; i--)
        if (!has_loss(g_ptr_array_index(runs, i - 1)))
            g_ptr_array_remove_index(runs, i - 1);
    return runs;
}

/* "with ..." of a curve; few steps have points, since one alone makes no line. */
static char *line_style(const char *width, const char *colour, guint num_steps)
{
    return g_strdup_printf("with %s linewidth %s linecolor rgb '%s'",
                           num_steps <= 40 ? "linespoints pointtype 7 pointsize 0.4" : "lines",
                           width, colour);
}

static void append_line(GString *script, const GPtrArray *runs, guint i, const ReportRun *shown)
{
    static const char *const colours[MAX_NAMED_LINES] = {
        PICTURE_BLUE,   PICTURE_VERMILLION, PICTURE_GREEN, PICTURE_PINK,
        PICTURE_ORANGE, PICTURE_SKY,        PICTURE_WINE,  PICTURE_GREY};
    const ReportRun *run = g_ptr_array_index(runs, i);
    const gboolean named = runs->len <= MAX_NAMED_LINES;
    const char *unnamed = run == shown ? PICTURE_BLUE : PICTURE_PALE;
    g_autofree char *label = picture_run_label(run, 46);
    g_autofree char *title = plot_quote(label);
    g_autofree char *style =
        line_style(run == shown ? "2.5" : "1.5", named ? colours[i] : unnamed, run->steps->len);

    g_string_append_printf(script, "$run%u using 1:2 %s %s%s", i, style,
                           named || run == shown ? "title " : "notitle",
                           named || run == shown ? title : "");
}

/* The shown run last, on top of the others. */
static void append_lines(GString *script, const GPtrArray *runs, guint shown)
{
    const ReportRun *run = g_ptr_array_index(runs, shown);

    g_string_append(script, "plot ");
    for (guint i = 0; i < runs->len; i++)
        if (i != shown) {
            append_line(script, runs, i, run);
            g_string_append(script, ", ");
        }
    if (runs->len > MAX_NAMED_LINES)
        g_string_append_printf(script,
                               "NaN with lines linewidth 1.5 linecolor rgb '" PICTURE_PALE
                               "' title '%u other runs', ",
                               runs->len - 1);
    append_line(script, runs, shown, run);
    g_string_append_c(script, '\n');
}

Picture *picture_loss(const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) runs = runs_with_loss(report, run);
    guint most = 0, shown = 0;

    for (guint i = 0; i < runs->len; i++) {
        const ReportRun *other = g_ptr_array_index(runs, i);

        most = MAX(most, other->steps->len);
        shown = other == run ? i : shown;
    }
    if (runs->len == 0)
        return NULL;

    const guint bin = (most + MAX_POINTS - 1) / MAX_POINTS;
    const PictureFrame frame = {.title = "Loss", .left = 70, .right = 30, .plot_height = 300};
    GString *script = g_string_new(NULL);

    picture_begin(script, &frame);
    for (guint i = 0; i < runs->len; i++) {
        g_string_append_printf(script, "$run%u << END\n", i);
        append_losses(script, g_ptr_array_index(runs, i), bin);
        g_string_append(script, "END\n");
    }
    g_string_append(script, "set xlabel 'step'\nset ylabel 'loss (nats per token)'\n"
                            "set grid xtics ytics back\nset xrange [0:*]\n"
                            "set key on top right Left reverse samplen 2 width 1\n");
    append_lines(script, runs, shown);

    g_autofree char *means = g_strdup_printf("Means of %u steps. ", bin);

    return picture_new("loss", &frame, script,
                       g_strconcat(bin > 1 ? means : "",
                                   "With the same data and seed every layout trains alike: curves "
                                   "that differ by more than rounding tell of a fault.",
                                   NULL));
}
