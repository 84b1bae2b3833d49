/* Two stacked bars, predicted above measured: step time by part, memory by term. */
#include "reports/picture/picture.h"
#include "reports/report/format.h"

#include <math.h>

enum { PREDICTED, MEASURED, NUM_SIDES, MAX_PARTS = 12 };

typedef struct {
    const char *label, *colour;
    gboolean dark; /* text on it is white */
    double value[NUM_SIDES];
} Part;

/* One that the store has a term for. */
typedef struct {
    const char *term, *label, *colour;
    gboolean dark;
} TermPart;

typedef struct {
    const char *name, *title, *axis; /* axis: "step time", its unit follows */
    FormatScale scale;
    Part parts[MAX_PARTS];
    guint num_parts;
    double total[NUM_SIDES];
} Stack;

static double known(double value)
{
    return isnan(value) ? 0 : value;
}

/* A part that is nothing on both sides would only lengthen the key. */
static void add_part(Stack *stack, Part part)
{
    g_assert(stack->num_parts < MAX_PARTS);
    if (known(part.value[PREDICTED]) > 0 || known(part.value[MEASURED]) > 0)
        stack->parts[stack->num_parts++] = part;
}

/* What the total has beyond its parts. */
static void add_rest(Stack *stack, const char *label)
{
    Part rest = {.label = label, .colour = PICTURE_PALE};

    for (guint side = 0; side < NUM_SIDES; side++) {
        double sum = 0;

        for (guint i = 0; i < stack->num_parts; i++)
            sum += known(stack->parts[i].value[side]);

        const double beyond = known(stack->total[side]) - sum;

        /* Less can't be seen. */
        rest.value[side] = beyond > 1e-3 * stack->total[side] ? beyond : 0;
    }
    add_part(stack, rest);
}

static double longest(const Stack *stack)
{
    double longest = 0;

    for (guint side = 0; side < NUM_SIDES; side++) {
        double sum = 0;

        for (guint i = 0; i < stack->num_parts; i++)
            sum += known(stack->parts[i].value[side]);
        longest = fmax(longest, fmax(sum, known(stack->total[side])));
    }
    return longest;
}

/* Predicted lies at 2, measured at 1. */
static int row_of(guint side)
{
    return side == PREDICTED ? 2 : 1;
}

/* At the right of each bar: what it adds up to. */
static void append_totals(GString *script, const Stack *stack)
{
    for (guint side = 0; side < NUM_SIDES; side++) {
        const double total = stack->total[side];
        g_autofree char *text =
            isnan(total) ? g_strdup("not measured") : format_scaled(total, stack->scale);

        g_string_append_printf(script, "set label left '%s' at graph 1.012, first %d\n", text,
                               row_of(side));
    }
}

/* One data block a part, and the value in the middle of each box that is wide enough for it. */
static void append_boxes(GString *script, const Stack *stack, double width)
{
    g_autoptr(GString) labels = g_string_new(NULL);
    double end[NUM_SIDES] = {0};

    for (guint i = 0; i < stack->num_parts; i++) {
        const Part *part = &stack->parts[i];

        g_string_append_printf(script, "$part%u << END\n", i);
        for (guint side = 0; side < NUM_SIDES; side++) {
            const double size = known(part->value[side]) / stack->scale.divisor;

            g_string_append_printf(script, "%d %.9g %.9g\n", row_of(side), end[side],
                                   end[side] + size);
            if (size > 0.065 * width)
                g_string_append_printf(labels,
                                       "set label front center '%.3g' at %.9g,%d textcolor rgb "
                                       "'%s'\n",
                                       size, end[side] + size / 2, row_of(side),
                                       part->dark ? "#ffffff" : "#101010");
            end[side] += size;
        }
        g_string_append(script, "END\n");
    }
    g_string_append(script, labels->str);
    append_totals(script, stack);
}

static Picture *draw(const Stack *stack, char *caption)
{
    const double width = longest(stack) / stack->scale.divisor;
    PictureKey key[MAX_PARTS];
    const PictureFrame frame = {.title = stack->title,
                                .left = 90,
                                .right = 104,
                                .plot_height = 110,
                                .key = key,
                                .num_keys = stack->num_parts};
    GString *script = g_string_new(NULL);

    for (guint i = 0; i < stack->num_parts; i++)
        key[i] = (PictureKey){stack->parts[i].label, stack->parts[i].colour};

    picture_begin(script, &frame);
    append_boxes(script, stack, width);
    g_string_append_printf(script,
                           "set xlabel '%s (%s)'\nset xrange [0:%.9g]\nset yrange [0.5:2.5]\n"
                           "set ytics ('predicted' 2, 'measured' 1)\nset grid noytics xtics back\n"
                           "set style fill solid 1 border linecolor rgb '#ffffff'\nplot ",
                           stack->axis, stack->scale.unit, width);
    for (guint i = 0; i < stack->num_parts; i++)
        g_string_append_printf(script,
                               "%s$part%u using (($2+$3)/2):1:2:3:($1-0.38):($1+0.38) with "
                               "boxxyerror fillcolor rgb '%s'",
                               i > 0 ? ", " : "", i, stack->parts[i].colour);
    g_string_append_c(script, '\n');
    return picture_new(stack->name, &frame, script, caption);
}

static void read_values(const ReportRun *run, const char *term, double value[NUM_SIDES])
{
    value[PREDICTED] = report_predicted(run, term);
    value[MEASURED] = report_measured(run, term);
}

static void add_parts(Stack *stack, const ReportRun *run, const TermPart *parts, guint num)
{
    for (guint i = 0; i < num; i++) {
        Part part = {.label = parts[i].label, .colour = parts[i].colour, .dark = parts[i].dark};

        read_values(run, parts[i].term, part.value);
        add_part(stack, part);
    }
}

Picture *picture_step_time(const ReportRun *run)
{
    static const TermPart parts[] = {
        {"time_seconds.gemm", "matrix products", PICTURE_BLUE, TRUE},
        {"time_seconds.attention", "attention", PICTURE_SKY, FALSE},
        {"time_seconds.memory_bound", "memory-bound kernels", PICTURE_GREEN, TRUE},
        {"time_seconds.optimizer", "optimizer", PICTURE_PINK, FALSE},
        {"exposed_communication_seconds", "exposed communication", PICTURE_VERMILLION, TRUE},
    };
    g_autofree char *label = picture_run_label(run, 60);
    g_autofree char *title = g_strconcat("Step time: ", label, NULL);
    Stack stack = {.name = "step_time", .title = title, .axis = "step time"};

    read_values(run, "step_seconds", stack.total);
    add_parts(&stack, run, parts, G_N_ELEMENTS(parts));
    add_rest(&stack, stack.num_parts > 0 ? "all else" : "whole step");
    if (stack.num_parts == 0)
        return NULL;
    stack.scale = format_seconds_scale(longest(&stack));
    return draw(&stack, g_strdup("Where a step's time goes on the shown rank. Communication that "
                                 "runs behind computation costs nothing and is not drawn; what "
                                 "was not timed by kind is in the pale part."));
}

Picture *picture_memory(const ReportRun *run)
{
    static const TermPart parts[] = {
        {"memory_bytes.parameters", "parameters", PICTURE_BLUE, TRUE},
        {"memory_bytes.gathered", "gathered", PICTURE_SKY, FALSE},
        {"memory_bytes.gradients", "gradients", PICTURE_GREEN, TRUE},
        {"memory_bytes.master", "master", PICTURE_WINE, TRUE},
        {"memory_bytes.optimizer", "optimizer", PICTURE_PINK, FALSE},
        {"memory_bytes.activations", "activations", PICTURE_ORANGE, FALSE},
        {"memory_bytes.logits", "logits", PICTURE_YELLOW, FALSE},
        {"memory_bytes.communication", "communication", PICTURE_VERMILLION, TRUE},
        {"memory_bytes.workspace", "workspace", PICTURE_VIOLET, TRUE},
        {"memory_bytes.framework", "framework", PICTURE_GREY, FALSE},
    };
    g_autofree char *label = picture_run_label(run, 60);
    g_autofree char *title = g_strconcat("Peak memory: ", label, NULL);
    Stack stack = {.name = "memory", .title = title, .axis = "memory of the shown rank"};

    read_values(run, "memory_bytes.total", stack.total);
    add_parts(&stack, run, parts, G_N_ELEMENTS(parts));
    add_rest(&stack, "not told apart");
    if (stack.num_parts == 0)
        return NULL;
    stack.scale = format_bytes_scale(longest(&stack));
    return draw(&stack, g_strdup("Memory at the peak, by what it is for. Terms that can't be "
                                 "measured one by one are in the pale part of the measured bar."));
}
