/* Backtest -> JSON (DESIGN 9). */
#include "sim/backtest/backtest.h"
#include "sim/base/json_members.h"

#include <math.h>

static void add_number(JsonBuilder *json, const char *member, double value, gboolean is_there)
{
    json_member_number(json, member, is_there ? value : NAN);
}

static void add_measured(JsonBuilder *json, const Record *record)
{
    static const char *const statuses[] = {"ok", "oom", "oom_or_crash", "failed"};
    const double step_s = record_step_seconds(record);

    json_member_object(json, "measured");
    add_number(json, "step_seconds", step_s, step_s > 0);
    add_number(json, "memory_gb", record->peak_mem_gb, record->peak_mem_gb > 0);
    json_member_string(json, "status", statuses[record->status]);
    json_builder_end_object(json);
}

static void add_row(JsonBuilder *json, const Outcome *outcome)
{
    const gboolean predicted = outcome->step_s > 0;

    json_builder_begin_object(json);
    json_member_string(json, "id", outcome->record->id);
    json_member_object(json, "predicted");
    add_number(json, "step_seconds", outcome->step_s, predicted);
    add_number(json, "memory_gb", outcome->memory_gb, predicted);
    json_builder_set_member_name(json, "feasible");
    if (predicted)
        json_builder_add_boolean_value(json, outcome->feasible);
    else
        json_builder_add_null_value(json);
    json_builder_end_object(json);
    add_measured(json, outcome->record);
    json_member_object(json, "error");
    add_number(json, "time", outcome_time_error(outcome), outcome->timed);
    add_number(json, "memory", outcome_memory_error(outcome), outcome->weighed);
    json_builder_end_object(json);
    json_member_string(json, "skipped", outcome->skipped);
    json_builder_end_object(json);
}

static void add_skipped(JsonBuilder *json, const Backtest *backtest)
{
    g_autoptr(GHashTable) reasons = backtest_skipped(backtest);
    g_autoptr(GList) names = g_list_sort(g_hash_table_get_keys(reasons), (GCompareFunc)g_strcmp0);

    json_member_object(json, "skipped");
    for (const GList *item = names; item != NULL; item = item->next)
        json_member_uint(json, item->data,
                         GPOINTER_TO_UINT(g_hash_table_lookup(reasons, item->data)));
    json_builder_end_object(json);
}

static void add_source(JsonBuilder *json, const SourceScore *score)
{
    json_builder_begin_object(json);
    json_member_string(json, "source", score->source);
    json_member_uint(json, "n", score->num_time);
    add_number(json, "mape_time", score->mape_time, score->num_time > 0);
    add_number(json, "median_time", score->median_time, score->num_time > 0);
    json_member_uint(json, "n_memory", score->num_memory);
    add_number(json, "mape_memory", score->mape_memory, score->num_memory > 0);
    json_member_string(json, "worst", score->worst);
    json_builder_end_object(json);
}

static double share(guint part, guint whole)
{
    return whole == 0 ? 0 : (double)part / whole;
}

static void add_total(JsonBuilder *json, const TotalScore *total)
{
    const SourceScore *all = &total->all;

    json_member_object(json, "total");
    json_member_uint(json, "n_time", all->num_time);
    add_number(json, "mape_time", all->mape_time, all->num_time > 0);
    add_number(json, "median_time", all->median_time, all->num_time > 0);
    json_member_uint(json, "n_memory", all->num_memory);
    add_number(json, "mape_memory", all->mape_memory, all->num_memory > 0);
    add_number(json, "under_memory_max", total->under_memory_max, all->num_memory > 0);
    json_member_uint(json, "oom_labels", total->labels);
    add_number(json, "oom_right", share(total->labels_right, total->labels), total->labels > 0);
    add_number(json, "oom_recall", share(total->oom_found, total->oom), total->oom > 0);
    add_number(json, "oom_precision", share(total->oom_found, total->oom_said),
               total->oom_said > 0);
    add_number(json, "crash_recall", share(total->crashes_found, total->crashes),
               total->crashes > 0);
    json_member_uint(json, "choices", total->choices);
    add_number(json, "regret_mean", total->regret_mean, total->choices > 0);
    add_number(json, "regret_max", total->regret_max, total->choices > 0);
    add_number(json, "spearman_mean", total->spearman_mean, total->choices > 0);
    json_builder_end_object(json);
}

JsonNode *backtest_node(const Backtest *backtest)
{
    g_autoptr(JsonBuilder) json = json_builder_new();

    json_builder_begin_object(json);
    json_member_array(json, "rows");
    for (guint i = 0; i < backtest->outcomes->len; i++)
        add_row(json, &g_array_index(backtest->outcomes, Outcome, i));
    json_builder_end_array(json);
    add_skipped(json, backtest);
    json_member_array(json, "groups");
    for (guint i = 0; i < backtest->sources->len; i++)
        add_source(json, &g_array_index(backtest->sources, SourceScore, i));
    json_builder_end_array(json);
    add_total(json, &backtest->total);
    json_builder_end_object(json);
    return json_builder_get_root(json);
}
