#include "reports/feedback/feedback.h"

#include "reports/report/format.h"
#include "sim/base/json_members.h"
#include "sim/base/units.h"

static char *bytes_text(guint64 bytes)
{
    return format_scaled((double)bytes, format_bytes_scale((double)bytes));
}

/* Errors are measured against predicted, as in the report. */
static void add_step(GString *text, const Feedback *feedback)
{
    const double measured_s = feedback->measured_s;
    g_autofree char *before = format_term("", "s", feedback->before_s, measured_s);
    g_autofree char *after = format_term("", "s", feedback->after_s, measured_s);
    g_autofree char *measured = format_term("", "s", measured_s, measured_s);
    g_autofree char *before_error = format_error("s", feedback->before_s, measured_s);
    g_autofree char *after_error = format_error("s", feedback->after_s, measured_s);

    g_string_append_printf(text,
                           "a step of this layout: measured %s; predicted %s (%s) before, %s (%s) "
                           "now\n",
                           measured, before, before_error, after, after_error);
}

char *feedback_text(const Feedback *feedback)
{
    GString *text = g_string_new(NULL);
    g_autofree char *before = bytes_text(feedback->before_memory);
    g_autofree char *after = bytes_text(feedback->after_memory);
    g_autofree char *overhead = units_print(feedback->op_overhead_s, UNITS_SECONDS);

    g_string_append_printf(text,
                           "%s: run %" G_GINT64_FORMAT ", %" G_GUINT64_FORMAT
                           " op times of %u sampled step%s: %u rows of products, %u of other ops, "
                           "%u of collectives\n",
                           feedback->path, feedback->run, feedback->num, feedback->steps,
                           feedback->steps == 1 ? "" : "s", feedback->rows.gemm, feedback->rows.ops,
                           feedback->rows.collectives);
    g_string_append_printf(text, "an op's fixed cost %s; a process beside its arena %s (was %s)\n",
                           overhead, after, before);
    add_step(text, feedback);
    if (feedback->rows.between_nodes > 0)
        g_string_append(text, "collectives between nodes are left as they are: rows are of one "
                              "node\n");
    if (feedback->incomplete > 0)
        g_string_append_printf(text,
                               "%u collectives are left out: without the times of all members, "
                               "waiting can't be told from moving\n",
                               feedback->incomplete);
    return g_string_free(text, FALSE);
}

char *feedback_json(const Feedback *feedback)
{
    g_autoptr(JsonBuilder) json = json_builder_new();

    json_builder_begin_object(json);
    json_member_string(json, "topology", feedback->path);
    json_member_integer(json, "run", feedback->run);
    json_member_uint(json, "op_times", feedback->num);
    json_member_integer(json, "steps", feedback->steps);
    json_member_integer(json, "gemm_rows", feedback->rows.gemm);
    json_member_integer(json, "op_rows", feedback->rows.ops);
    json_member_integer(json, "collective_rows", feedback->rows.collectives);
    json_member_integer(json, "collectives_between_nodes", feedback->rows.between_nodes);
    json_member_integer(json, "collectives_left_out", feedback->incomplete);
    json_member_number(json, "op_overhead_seconds", feedback->op_overhead_s);
    json_member_uint(json, "framework_bytes", feedback->after_memory);
    json_member_object(json, "step_seconds");
    json_member_number(json, "predicted_before", feedback->before_s);
    json_member_number(json, "predicted", feedback->after_s);
    json_member_number(json, "measured", feedback->measured_s);
    json_builder_end_object(json);
    json_builder_end_object(json);

    g_autoptr(JsonNode) root = json_builder_get_root(json);

    return json_node_text(root, TRUE);
}
