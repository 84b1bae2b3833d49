/* fsdp-plan backtest: predictions of published runs beside what was measured. */
#include "sim/backtest/backtest.h"
#include "sim/base/data_dirs.h"
#include "sim/base/error.h"
#include "sim/base/json_members.h"
#include "sim/base/text_file.h"
#include "sim/command_argument.h"
#include "sim/commands.h"

static void print_number(guint num, double value)
{
    if (num == 0)
        g_print("  %8s", "-");
    else
        g_print("  %7.1f%%", 100 * value);
}

static void print_source(const SourceScore *score)
{
    if (score->num_time == 0 && score->num_memory == 0)
        return;
    g_print("%-10s  %5u", score->source == NULL ? "all" : score->source, score->num_time);
    print_number(score->num_time, score->mape_time);
    print_number(score->num_time, score->median_time);
    g_print("  %6u", score->num_memory);
    print_number(score->num_memory, score->mape_memory);
    g_print("  %s\n", score->worst == NULL ? "" : score->worst);
}

static void print_labels(const TotalScore *total)
{
    if (total->labels > 0)
        g_print("out of memory: %u of %u labels right; %u of %u found; %u of %u said rightly\n",
                total->labels_right, total->labels, total->oom_found, total->oom, total->oom_found,
                total->oom_said);
    if (total->crashes > 0)
        g_print("crashed or out of memory: %u of %u said to be out of memory\n",
                total->crashes_found, total->crashes);
    if (total->choices > 0)
        g_print("choice in %u groups of 4 or more: regret %.1f%% mean, %.1f%% at most; rank "
                "correlation %.2f\n",
                total->choices, 100 * total->regret_mean, 100 * total->regret_max,
                total->spearman_mean);
}

static void print_skipped(const Backtest *backtest)
{
    g_autoptr(GHashTable) reasons = backtest_skipped(backtest);
    g_autoptr(GList) names = g_list_sort(g_hash_table_get_keys(reasons), (GCompareFunc)g_strcmp0);

    for (const GList *item = names; item != NULL; item = item->next)
        g_print("skipped %5u: %s\n", GPOINTER_TO_UINT(g_hash_table_lookup(reasons, item->data)),
                (const char *)item->data);
}

static void print_table(const Backtest *backtest)
{
    g_print("source      times  mean err   median  memory  mean err  worst time\n");
    for (guint i = 0; i < backtest->sources->len; i++)
        print_source(&g_array_index(backtest->sources, SourceScore, i));
    print_source(&backtest->total.all);
    g_print("\n");
    print_labels(&backtest->total);
    print_skipped(backtest);
}

static int run(const char *path, gboolean all, gboolean json, GError **error)
{
    g_autofree char *topologies = data_dir("topologies");
    g_autofree char *text = text_file_read(path, error);
    g_autoptr(Csv) csv = text == NULL ? NULL : csv_parse(text, path, error);
    g_autoptr(GArray) records = csv == NULL ? NULL : records_read(csv, error);

    if (records == NULL)
        return error_exit_status(*error);
    g_autoptr(Progress) progress = progress_new("backtest");
    g_autoptr(Backtest) backtest = backtest_run(records, topologies, all, progress);
    if (json) {
        g_autoptr(JsonNode) node = backtest_node(backtest);
        g_autofree char *printed = json_node_text(node, TRUE);

        g_print("%s\n", printed);
    } else {
        print_table(backtest);
    }
    return 0;
}

int command_backtest(int argc, char **argv, GError **error)
{
    gboolean all = FALSE, json = FALSE;
    const GOptionEntry entries[] = {
        {"all", 0, 0, G_OPTION_ARG_NONE, &all, "Rows that the default filter leaves out too", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "JSON on stdout", NULL},
        G_OPTION_ENTRY_NULL,
    };
    g_autofree char *path = command_argument("backtest", "CSV", entries, argc, argv, error);

    return path == NULL ? error_exit_status(*error) : run(path, all, json, error);
}
