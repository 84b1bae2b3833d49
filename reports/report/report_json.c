/* The same as JSON, for programs. */
#include "reports/report/format.h"
#include "reports/report/plan_text.h"
#include "reports/report/report.h"
#include "sim/base/json_members.h"

static void add_string(JsonBuilder *json, const char *name, const char *value)
{
    json_member_string(json, name, g_strcmp0(value, FORMAT_UNKNOWN) == 0 ? NULL : value);
}

static void add_terms(JsonBuilder *json, const ReportRun *run)
{
    json_member_array(json, "terms");
    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);

        json_builder_begin_object(json);
        json_member_integer(json, "rank", term->rank);
        add_string(json, "term", term->term);
        json_member_number(json, "predicted", term->predicted);
        json_member_number(json, "measured", term->measured);
        json_member_number(json, "estimated", term->estimated);
        json_member_number(json, "error", format_error_value(term->predicted, term->measured));
        add_string(json, "unit", term->unit);
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
}

static void add_steps(JsonBuilder *json, const ReportRun *run)
{
    const ReportSteps steps = report_steps(run);

    json_member_object(json, "steps");
    json_member_integer(json, "count", run->steps->len);
    json_member_number(json, "median_seconds", steps.median_s);
    json_member_number(json, "min_seconds", steps.min_s);
    json_member_number(json, "max_seconds", steps.max_s);
    json_member_number(json, "first_loss", steps.first_loss);
    json_member_number(json, "last_loss", steps.last_loss);
    json_builder_end_object(json);
}

static void add_ops(JsonBuilder *json, const ReportRun *run)
{
    g_autoptr(GArray) sums = report_ops(run);

    json_member_array(json, "ops");
    for (guint i = 0; i < sums->len; i++) {
        const ReportOps *sum = &g_array_index(sums, ReportOps, i);
        const StoreOp *first = &g_array_index(run->ops, StoreOp, 0);

        json_builder_begin_object(json);
        add_string(json, "kind", sum->kind);
        add_string(json, "stream", sum->stream);
        json_member_integer(json, "rank", first->rank);
        json_member_integer(json, "step", first->step);
        json_member_integer(json, "count", sum->count);
        json_member_number(json, "seconds", sum->seconds);
        json_member_number(json, "bytes", sum->bytes);
        json_member_number(json, "flops", sum->flops);
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
}

static void add_remarks(JsonBuilder *json, const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) remarks = report_remarks(report, run);

    json_builder_set_member_name(json, "remarks");
    json_builder_begin_array(json);
    for (guint i = 0; i < remarks->len; i++)
        json_builder_add_string_value(json, g_ptr_array_index(remarks, i));
    json_builder_end_array(json);
}

static void add_run(JsonBuilder *json, const Report *report, const ReportRun *run)
{
    const StoreRun *row = run->row;
    JsonNode *layout = plan_text_node(run->plan, "layout");

    json_builder_begin_object(json);
    json_member_integer(json, "id", row->id);
    add_string(json, "created", row->created);
    add_string(json, "model", run->model);
    add_string(json, "topology", run->topology);
    json_builder_set_member_name(json, "layout");
    if (layout != NULL)
        json_builder_add_value(json, json_node_copy(layout));
    else
        json_builder_add_null_value(json);
    add_string(json, "strategy", run->strategy);
    json_member_integer(json, "ranks", row->ranks);
    add_string(json, "device", row->device);
    add_string(json, "host", row->host);
    add_string(json, "status", row->status);
    json_member_integer(json, "rank", run->rank);
    add_terms(json, run);
    add_steps(json, run);
    add_ops(json, run);
    add_remarks(json, report, run);
    json_builder_end_object(json);
}

/* @run: whose comparable runs are ranked. */
static void add_ranking(JsonBuilder *json, const Report *report, const ReportRun *run)
{
    g_autoptr(GPtrArray) runs = report_comparable(report, run);
    const Ranking ranking = report_ranking(runs);

    json_builder_begin_object(json);
    add_string(json, "model", run->model);
    add_string(json, "topology", run->topology);
    add_string(json, "workload", run->workload);
    json_member_array(json, "runs");
    for (guint i = 0; i < runs->len; i++) {
        const ReportRun *other = g_ptr_array_index(runs, i);

        json_builder_begin_object(json);
        json_member_integer(json, "id", other->row->id);
        json_member_number(json, "predicted", report_predicted(other, "step_seconds"));
        json_member_number(json, "measured", report_measured(other, "step_seconds"));
        json_builder_end_object(json);
    }
    json_builder_end_array(json);
    json_member_integer(json, "count", ranking.count);
    json_member_number(json, "spearman", ranking.spearman);
    json_member_integer(json, "pairs", ranking.pairs);
    json_member_integer(json, "pairs_in_order", ranking.in_order);
    json_member_number(json, "regret", ranking.regret);
    json_builder_end_object(json);
}

char *report_json(const Report *report, const ReportRun *only)
{
    g_autoptr(JsonBuilder) json = json_builder_new();
    const ReportRun *last =
        report->runs->len > 0 ? g_ptr_array_index(report->runs, report->runs->len - 1) : NULL;

    json_builder_begin_object(json);
    json_member_array(json, "runs");
    for (guint i = 0; i < report->runs->len; i++)
        if (only == NULL || only == g_ptr_array_index(report->runs, i))
            add_run(json, report, g_ptr_array_index(report->runs, i));
    json_builder_end_array(json);
    json_builder_set_member_name(json, "ranking");
    if (last != NULL)
        add_ranking(json, report, only != NULL ? only : last);
    else
        json_builder_add_null_value(json);
    json_builder_end_object(json);

    g_autoptr(JsonNode) root = json_builder_get_root(json);

    return json_to_string(root, TRUE);
}
