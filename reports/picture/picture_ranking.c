/* Layouts ranked by predicted step time, the measured one beside it. */
#include "reports/picture/picture.h"
#include "reports/report/format.h"

#include <math.h>

enum { MAX_BARS = 40, LABEL_CHARS = 46 };

static double step_s(const ReportRun *run, gboolean predicted)
{
    return predicted ? report_predicted(run, "step_seconds") : report_measured(run, "step_seconds");
}

/* Rows from top to bottom; a bar that is not known has no line. */
static void append_bars(GString *script, const GPtrArray *runs, guint count, FormatScale scale)
{
    for (guint side = 0; side < 2; side++) {
        g_string_append_printf(script, "$side%u << END\n", side);
        for (guint i = 0; i < count; i++) {
            const double s = step_s(g_ptr_array_index(runs, i), side == 0);

            if (!isnan(s))
                g_string_append_printf(script, "%u %.9g\n", count - i, s / scale.divisor);
        }
        g_string_append(script, "END\n");
    }
}

/* Returns how many characters the longest one has. */
static gsize append_row_labels(GString *script, const GPtrArray *runs, guint count)
{
    gsize longest = 0;

    g_string_append(script, "set ytics (");
    for (guint i = 0; i < count; i++) {
        g_autofree char *label = picture_run_label(g_ptr_array_index(runs, i), LABEL_CHARS);
        g_autofree char *quoted = plot_quote(label);

        longest = MAX(longest, (gsize)g_utf8_strlen(label, -1));
        g_string_append_printf(script, "%s%s %u", i > 0 ? ", " : "", quoted, count - i);
    }
    g_string_append(script, ")\n");
    for (guint i = 0; i < count; i++) {
        const ReportRun *run = g_ptr_array_index(runs, i);
        g_autofree char *error = format_error("s", step_s(run, TRUE), step_s(run, FALSE));

        g_string_append_printf(script, "set label right '%s' at screen 0.98, first %u\n", error,
                               count - i);
    }
    return longest;
}

static char *ranking_caption(const GPtrArray *runs, guint count)
{
    g_autofree char *agreement = report_agreement(runs);
    g_autofree char *left_out = g_strdup_printf(" The %u fastest of %u.", count, runs->len);

    return g_strconcat("Runs of the same model, topology and workload, the one predicted fastest "
                       "on top; at the right the error.",
                       count < runs->len ? left_out : "", agreement != NULL ? " " : NULL, agreement,
                       NULL);
}

Picture *picture_ranking(const Report *report, const ReportRun *run)
{
    static const PictureKey key[] = {{"predicted", PICTURE_BLUE}, {"measured", PICTURE_ORANGE}};
    g_autoptr(GPtrArray) runs = report_comparable(report, run);
    const guint count = MIN(runs->len, MAX_BARS);
    double most_s = 0;

    for (guint i = 0; i < count; i++)
        most_s = fmax(most_s, fmax(step_s(g_ptr_array_index(runs, i), TRUE),
                                   step_s(g_ptr_array_index(runs, i), FALSE)));
    if (count < 2 || !(most_s > 0)) /* one run is in the picture of its step time */
        return NULL;

    const FormatScale scale = format_seconds_scale(most_s);
    GString *script = g_string_new(NULL), *rows = g_string_new(NULL);
    const gsize label_chars = append_row_labels(rows, runs, count);
    const PictureFrame frame = {.title = "Layouts, by predicted step time",
                                .left = picture_text_px(label_chars) + 14,
                                .right = 84,
                                .plot_height = 28 * MAX(count, 2),
                                .key = key,
                                .num_keys = G_N_ELEMENTS(key)};

    picture_begin(script, &frame);
    append_bars(script, runs, count, scale);
    g_string_append(script, rows->str);
    g_string_free(rows, TRUE);
    g_string_append_printf(
        script,
        "set xlabel 'step time (%s)'\nset xrange [0:%.9g]\nset yrange [0.5:%u.5]\n"
        "set grid noytics xtics back\n"
        "set style fill solid 1 border linecolor rgb '#ffffff'\n"
        "plot $side0 using ($2/2):1:(0):2:1:($1+0.4) with boxxyerror fillcolor rgb '" PICTURE_BLUE
        "', $side1 using ($2/2):1:(0):2:($1-0.4):1 with boxxyerror fillcolor rgb "
        "'" PICTURE_ORANGE "'\n",
        scale.unit, most_s / scale.divisor, count);
    return picture_new("ranking", &frame, script, ranking_caption(runs, count));
}
