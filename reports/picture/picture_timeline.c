/* The timeline of one sampled step: one row a stream, one box an op. */
#include "reports/picture/picture.h"
#include "reports/report/format.h"

#include <math.h>
#include <string.h>

enum { MAX_ROWS = 16, BOXES_PX = 640 };

enum { GEMM, ATTENTION, MEMORY_BOUND, OPTIMIZER, COMMUNICATION, COPY, NUM_CATEGORIES };

static const PictureKey categories[NUM_CATEGORIES] = {
    [GEMM] = {"matrix products", PICTURE_BLUE},
    [ATTENTION] = {"attention", PICTURE_SKY},
    [MEMORY_BOUND] = {"memory-bound kernels", PICTURE_GREEN},
    [OPTIMIZER] = {"optimizer", PICTURE_PINK},
    [COMMUNICATION] = {"communication", PICTURE_VERMILLION},
    [COPY] = {"copies between tiers", PICTURE_YELLOW},
};

/* By the kind of the op, as programs name them; one that is not known here is communication where
 * it received bytes beside compute, and a kernel where it did not. */
static guint category_of(const StoreOp *op)
{
    static const struct {
        const char *prefix;
        guint category;
    } known[] = {
        {"linear", GEMM},
        {"head_", GEMM},
        {"attention", ATTENTION},
        {"adamw", OPTIMIZER},
        {"sgd", OPTIMIZER},
        {"clip", OPTIMIZER},
        {"squared_norm", OPTIMIZER},
        {"all_gather", COMMUNICATION},
        {"reduce_scatter", COMMUNICATION},
        {"all_reduce", COMMUNICATION},
        {"exchange", COMMUNICATION},
        {"copy", COPY},
    };
    const char *kind = report_op_kind(op->op);

    for (guint i = 0; i < G_N_ELEMENTS(known); i++)
        if (g_str_has_prefix(kind, known[i].prefix))
            return known[i].category;
    return op->bytes > 0 && strcmp(op->stream, "compute") != 0 ? COMMUNICATION : MEMORY_BOUND;
}

typedef struct {
    double start_s, end_s;
    guint row, category;
} Box;

/* Streams in order of first use, the compute stream on top. */
static GPtrArray *list_rows(const GArray *ops)
{
    GPtrArray *rows = g_ptr_array_new();

    for (guint i = 0; i < ops->len; i++) {
        const char *stream = g_array_index(ops, StoreOp, i).stream;

        if (!g_ptr_array_find_with_equal_func(rows, stream, g_str_equal, NULL))
            g_ptr_array_insert(rows, strcmp(stream, "compute") == 0 ? 0 : -1,
                               (gpointer)(guintptr)stream);
    }
    return rows;
}

/* Ops of one kind that follow each other closer than an eye can see are one box: a step has
 * thousands of ops, the picture some hundred pixels. */
static GArray *list_boxes(const GArray *ops, GPtrArray *rows, double unseen_s)
{
    GArray *boxes = g_array_new(FALSE, FALSE, sizeof(Box));
    gint last[MAX_ROWS];

    for (guint i = 0; i < MAX_ROWS; i++)
        last[i] = -1;
    for (guint i = 0; i < ops->len; i++) {
        const StoreOp *op = &g_array_index(ops, StoreOp, i);
        Box box = {.start_s = op->start,
                   .end_s = fmax(op->end, op->start + unseen_s),
                   .category = category_of(op)};

        g_ptr_array_find_with_equal_func(rows, op->stream, g_str_equal, &box.row);
        if (box.row >= MAX_ROWS)
            continue;

        Box *before = last[box.row] >= 0 ? &g_array_index(boxes, Box, last[box.row]) : NULL;

        if (before != NULL && before->category == box.category &&
            box.start_s - before->end_s < unseen_s) {
            before->end_s = fmax(before->end_s, box.end_s);
        } else {
            last[box.row] = (gint)boxes->len;
            g_array_append_val(boxes, box);
        }
    }
    return boxes;
}

static double end_of(const GArray *ops)
{
    double end_s = 0;

    for (guint i = 0; i < ops->len; i++)
        end_s = fmax(end_s, g_array_index(ops, StoreOp, i).end);
    return end_s;
}

/* Returns a mask of the categories that occur. */
static guint append_boxes(GString *script, const GArray *boxes, guint num_rows, FormatScale scale)
{
    guint used = 0;

    for (guint category = 0; category < NUM_CATEGORIES; category++) {
        g_autoptr(GString) lines = g_string_new(NULL);

        for (guint i = 0; i < boxes->len; i++) {
            const Box *box = &g_array_index(boxes, Box, i);

            if (box->category == category)
                g_string_append_printf(lines, "%u %.7g %.7g\n", num_rows - box->row,
                                       box->start_s / scale.divisor, box->end_s / scale.divisor);
        }
        if (lines->len == 0)
            continue;
        used |= 1U << category;
        g_string_append_printf(script, "$boxes%u << END\n%sEND\n", category, lines->str);
    }
    return used;
}

/* Returns how many characters the longest name has. */
static gsize append_rows(GString *script, const GPtrArray *rows, guint num_rows)
{
    gsize longest = 0;

    g_string_append(script, "set ytics (");
    for (guint i = 0; i < num_rows; i++) {
        g_autofree char *label = picture_ellipsis(g_ptr_array_index(rows, i), 22);
        g_autofree char *quoted = plot_quote(label);

        longest = MAX(longest, (gsize)g_utf8_strlen(label, -1));
        g_string_append_printf(script, "%s%s %u", i > 0 ? ", " : "", quoted, num_rows - i);
    }
    g_string_append(script, ")\n");
    return longest;
}

static void append_plot(GString *script, guint used)
{
    gboolean first = TRUE;

    for (guint category = 0; category < NUM_CATEGORIES; category++)
        if ((used >> category & 1) != 0) {
            g_string_append_printf(script,
                                   "%s$boxes%u using (($2+$3)/2):1:2:3:($1-0.36):($1+0.36) with "
                                   "boxxyerror fillcolor rgb '%s'",
                                   first ? "plot " : ", ", category, categories[category].colour);
            first = FALSE;
        }
    g_string_append_c(script, '\n');
}

static guint list_key(guint used, PictureKey *key)
{
    guint count = 0;

    for (guint category = 0; category < NUM_CATEGORIES; category++)
        if ((used >> category & 1) != 0)
            key[count++] = categories[category];
    return count;
}

Picture *picture_timeline(const ReportRun *run)
{
    const double end_s = end_of(run->ops);
    if (!(end_s > 0))
        return NULL;

    const StoreOp *first = &g_array_index(run->ops, StoreOp, 0);
    const FormatScale scale = format_seconds_scale(end_s);
    g_autoptr(GPtrArray) rows = list_rows(run->ops);
    g_autoptr(GArray) boxes = list_boxes(run->ops, rows, 0.3 * end_s / BOXES_PX);
    const guint num_rows = MIN(rows->len, MAX_ROWS);
    g_autofree char *title =
        g_strdup_printf("Timeline of run %" G_GINT64_FORMAT ", step %" G_GINT64_FORMAT ", rank %u",
                        run->row->id, first->step, first->rank);
    GString *script = g_string_new(NULL), *body = g_string_new(NULL);
    const guint used = append_boxes(body, boxes, num_rows, scale);
    const gsize label_chars = append_rows(body, rows, num_rows);
    PictureKey key[NUM_CATEGORIES];
    const PictureFrame frame = {.title = title,
                                .left = picture_text_px(label_chars) + 14,
                                .right = 30,
                                .plot_height = 34 * num_rows,
                                .key = key,
                                .num_keys = list_key(used, key)};

    picture_begin(script, &frame);
    g_string_append(script, body->str);
    g_string_free(body, TRUE);
    g_string_append_printf(
        script,
        "set xlabel 'time since the step began (%s)'\nset xrange [0:%.9g]\nset yrange "
        "[0.5:%u.5]\nset grid noytics xtics back\nset style fill solid 1 noborder\n",
        scale.unit, end_s / scale.divisor, num_rows);
    append_plot(script, used);
    return picture_new("timeline", &frame, script,
                       rows->len > MAX_ROWS
                           ? g_strdup_printf("Measured, op by op, one row a stream; the first %d "
                                             "of %u streams.",
                                             MAX_ROWS, rows->len)
                           : g_strdup("Measured, op by op, one row a stream. Steps that are timed "
                                      "op by op run a little slower than others."));
}
