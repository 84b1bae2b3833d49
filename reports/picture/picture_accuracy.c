/* Predicted against measured step time of all runs. */
#include "reports/picture/picture.h"
#include "reports/report/format.h"

#include <math.h>
#include <string.h>

/* Of the plot within the picture, px. */
enum {
    PLOT_WIDTH = 560,
    PLOT_HEIGHT = 380,
    LEFT = 80,
    KEY = LEFT + PLOT_WIDTH + 12,
    LABEL_GAP = 8
};

typedef struct {
    double x_px, y_px; /* from the lower left corner of the plot */
    double error;
    RankedPair pair;
    gint64 id;
    gboolean shown;
} Point;

typedef struct {
    double from_s, to_s;
    gboolean logarithmic;
} Range;

/* From 0 to 1. */
static double place(const Range *range, double s)
{
    return range->logarithmic ? log(s / range->from_s) / log(range->to_s / range->from_s)
                              : (s - range->from_s) / (range->to_s - range->from_s);
}

static GArray *collect_points(const Report *report, const ReportRun *shown)
{
    GArray *points = g_array_new(FALSE, TRUE, sizeof(Point));

    for (guint i = 0; i < report->runs->len; i++) {
        const ReportRun *run = g_ptr_array_index(report->runs, i);
        const Point point = {
            .pair = {report_predicted(run, "step_seconds"), report_measured(run, "step_seconds")},
            .id = run->row->id,
            .shown = run == shown};

        if (point.pair.predicted_s > 0 && point.pair.measured_s > 0)
            g_array_append_val(points, point);
    }
    return points;
}

static Range range_of(const GArray *points)
{
    double least_s = INFINITY, most_s = 0;

    for (guint i = 0; i < points->len; i++) {
        const RankedPair *pair = &g_array_index(points, Point, i).pair;

        least_s = fmin(least_s, fmin(pair->predicted_s, pair->measured_s));
        most_s = fmax(most_s, fmax(pair->predicted_s, pair->measured_s));
    }
    if (most_s > 20 * least_s)
        return (Range){least_s / 1.5, most_s * 1.5, TRUE};
    return (Range){fmax(0, least_s - 0.15 * most_s), most_s * 1.08, FALSE};
}

static gint worst_first(gconstpointer a, gconstpointer b)
{
    const Point *x = a, *y = b;

    if (x->shown != y->shown)
        return x->shown ? -1 : 1;
    return (x->error < y->error) - (x->error > y->error);
}

typedef struct {
    double left_px, right_px, y_px;
} Label;

/* Whether @label would touch no point but its own, no other label, and no edge. */
static gboolean is_free(const Label *label, const GArray *points, const Point *own,
                        const GArray *labels)
{
    if (label->left_px < 0 || label->right_px > PLOT_WIDTH)
        return FALSE;
    for (guint i = 0; i < points->len; i++) {
        const Point *other = &g_array_index(points, Point, i);

        if (other != own && other->x_px > label->left_px - 6 && other->x_px < label->right_px + 6 &&
            fabs(other->y_px - label->y_px) < 12)
            return FALSE;
    }
    for (guint i = 0; i < labels->len; i++) {
        const Label *other = &g_array_index(labels, Label, i);

        if (other->left_px < label->right_px + 4 && other->right_px + 4 > label->left_px &&
            fabs(other->y_px - label->y_px) < 15)
            return FALSE;
    }
    return TRUE;
}

static Label label_beside(const Point *point, double width_px, gboolean right)
{
    const double left_px = right ? point->x_px + LABEL_GAP : point->x_px - LABEL_GAP - width_px;

    return (Label){left_px, left_px + width_px, point->y_px};
}

/* Beside its point, away from the line if there is room, else on the other side, else nowhere.
 * The shown run and the worst errors come first. */
static void append_point_labels(GString *script, const GArray *points, FormatScale scale)
{
    g_autoptr(GArray) labels = g_array_new(FALSE, FALSE, sizeof(Label));

    for (guint i = 0; i < points->len; i++) {
        const Point *point = &g_array_index(points, Point, i);
        g_autofree char *text = g_strdup_printf("run %" G_GINT64_FORMAT, point->id);
        const double width_px = picture_text_px(strlen(text));
        gboolean right = point->pair.measured_s <= point->pair.predicted_s;
        Label label = label_beside(point, width_px, right);

        if (!is_free(&label, points, point, labels)) {
            right = !right;
            label = label_beside(point, width_px, right);
        }
        if (!is_free(&label, points, point, labels))
            continue;
        g_array_append_val(labels, label);
        g_string_append_printf(script, "set label front %s '%s' at %.9g,%.9g offset %s,0\n",
                               right ? "left" : "right", text,
                               point->pair.predicted_s / scale.divisor,
                               point->pair.measured_s / scale.divisor, right ? "0.9" : "-0.9");
    }
}

static void append_points(GString *script, GArray *points, const Range *range, FormatScale scale)
{
    for (guint i = 0; i < points->len; i++) {
        Point *point = &g_array_index(points, Point, i);

        point->x_px = PLOT_WIDTH * place(range, point->pair.predicted_s);
        point->y_px = PLOT_HEIGHT * place(range, point->pair.measured_s);
        point->error = fabs(format_error_value(point->pair.predicted_s, point->pair.measured_s));
    }
    g_array_sort(points, worst_first);
    g_string_append(script, "$points << END\n");
    for (guint i = 0; i < points->len; i++) {
        const RankedPair *pair = &g_array_index(points, Point, i).pair;

        g_string_append_printf(script, "%.9g %.9g\n", pair->predicted_s / scale.divisor,
                               pair->measured_s / scale.divisor);
    }
    g_string_append(script, "END\n");
    append_point_labels(script, points, scale);
}

Picture *picture_accuracy(const Report *report, const ReportRun *run)
{
    g_autoptr(GArray) points = collect_points(report, run);
    if (points->len < 2)
        return NULL;

    const Range range = range_of(points);
    const FormatScale scale = format_seconds_scale(range.to_s);
    const PictureFrame frame = {.title = "Step time of all runs, predicted against measured",
                                .left = LEFT,
                                .right = PICTURE_WIDTH - LEFT - PLOT_WIDTH,
                                .plot_height = PLOT_HEIGHT};
    GString *script = g_string_new(NULL);

    picture_begin(script, &frame);
    append_points(script, points, &range, scale);
    g_string_append_printf(
        script,
        "set xlabel 'predicted step time (%s)'\nset ylabel 'measured step time (%s)'\n"
        "set key on at screen %.5f,graph 1 left top vertical Left reverse samplen 2\n%sset xrange "
        "[%.9g:%.9g]\nset yrange [%.9g:%.9g]\nset grid xtics ytics back\n"
        "plot x with lines linewidth 1.5 linecolor rgb 'black' title 'as predicted', "
        "1.1*x with lines linewidth 1 dashtype 2 linecolor rgb '" PICTURE_GREY
        "' title '10 %% off', x/1.1 with lines linewidth 1 dashtype 2 linecolor rgb '" PICTURE_GREY
        "' notitle, $points using 1:2 with points pointtype 7 pointsize 0.8 linecolor rgb "
        "'" PICTURE_BLUE "' title 'a run', "
        "$points every ::0::0 using 1:2 with points pointtype 7 pointsize 0.8 linecolor rgb "
        "'" PICTURE_VERMILLION "' title '%s'\n",
        scale.unit, scale.unit, (double)KEY / PICTURE_WIDTH,
        range.logarithmic ? "set logscale xy\n" : "", range.from_s / scale.divisor,
        range.to_s / scale.divisor, range.from_s / scale.divisor, range.to_s / scale.divisor,
        g_array_index(points, Point, 0).shown ? "the shown run" : "the worst");
    return picture_new("accuracy", &frame, script,
                       g_strdup("One point a run, of all models and workloads in the store. On the "
                                "line the prediction is right; above it the run was slower."));
}
