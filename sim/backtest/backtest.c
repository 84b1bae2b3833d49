#include "sim/backtest/backtest.h"

#include "sim/backtest/setup.h"
#include "sim/base/parallel.h"
#include "sim/base/samples.h"
#include "sim/search/price.h"

#include <math.h>
#include <string.h>

/* ---- rows ---- */

typedef struct {
    const Backtest *backtest;
    const char *topologies_dir;
    gboolean all;
    Progress *progress;
    gint begun; /* rows; atomic */
} Work;

/* The row's own quantity: a driver sees the whole process, an allocator its tensors; of the rank
 * that the framework's figure is of. */
static double memory_gb(const Record *record, const Prediction *prediction)
{
    const gboolean process = record->memory == MEMORY_DRIVER || record->memory == MEMORY_STATED ||
                             record->memory == UNKNOWN;
    const guint64 beside = process ? 0 : prediction->memory_bytes[TERM_FRAMEWORK];

    const gboolean first = setup_weighs_first(record) && prediction->memory_first != 0;

    return (double)((first ? prediction->memory_first : prediction->memory_total) - beside) / 1e9;
}

/* @all: whatever the filter says. */
static void classify(Outcome *outcome, gboolean all)
{
    const Record *record = outcome->record;
    const gboolean trusted = all || record_is_trusted(record);

    outcome->timed = record->status == STATUS_OK &&
                     (all ? record_step_seconds(record) > 0 : record_is_timed(record));
    outcome->weighed = record->status == STATUS_OK && trusted && record->peak_mem_gb > 0;
    outcome->labelled =
        trusted && (record->status == STATUS_OOM || record->status == STATUS_OOM_OR_CRASH ||
                    record->status == STATUS_OK);
    if (!trusted)
        outcome->skipped = g_strdup("left out by the filter");
    else if (record->status == STATUS_FAILED)
        outcome->skipped = g_strdup("the run failed");
}

/* A run that was measured was not that: where the table doesn't say, blocks were recomputed. */
static gboolean is_far_too_large(const Plan *plan)
{
    return (double)plan->prediction.memory_total > 1.5 * (double)plan->prediction.memory_limit;
}

/* Parts of the time and memory of one plan in a mean of several. */
typedef struct {
    double time, memory;
} Share;

static const Share whole = {1, 1};

/* Where every other product's output is kept: of a block's seven products those of the queries,
 * values, gate and down, and attention's: 8 h + 2 k + 2 f of 22 h + 8 f bytes a token and block
 * (k: width of values), a third with Llama's shapes. */
static const Share halves[] = {
    [RECOMPUTE_NONE] = {0.5, 1.0 / 3}, [RECOMPUTE_FULL] = {0.5, 2.0 / 3}};

/* Adds a share of what @plan costs with that recomputation. */
static void add_priced(Outcome *outcome, Plan *plan, Recompute recompute, Share share)
{
    plan->schedule.recompute = recompute;
    plan_price_quickly(plan);
    outcome->step_s += share.time * plan->prediction.step_seconds;
    outcome->memory_gb += share.memory * memory_gb(outcome->record, &plan->prediction);
    outcome->total_gb += share.memory * (double)plan->prediction.memory_total / 1e9;
}

/* The run's recomputation, or where the table doesn't say the least with which it may have run. */
static void price(Outcome *outcome, Plan *plan)
{
    if (setup_halves(outcome->record)) {
        add_priced(outcome, plan, RECOMPUTE_NONE, halves[RECOMPUTE_NONE]);
        add_priced(outcome, plan, RECOMPUTE_FULL, halves[RECOMPUTE_FULL]);
        return;
    }
    Recompute recompute = plan->schedule.recompute;

    add_priced(outcome, plan, recompute, whole);
    while (setup_recomputes(outcome->record) && is_far_too_large(plan) &&
           recompute < RECOMPUTE_FULL) {
        outcome->step_s = outcome->memory_gb = outcome->total_gb = 0;
        add_priced(outcome, plan, ++recompute, whole);
    }
}

static void predict(const Work *work, Outcome *outcome)
{
    double share = 1;
    char *reason = NULL;
    g_autoptr(Plan) plan = setup_plan(outcome->record, work->topologies_dir, &share, &reason);

    if (plan == NULL) {
        outcome->skipped = reason;
        return;
    }
    price(outcome, plan);
    outcome->step_s *= share;
    outcome->feasible = outcome->total_gb <= (double)plan->prediction.memory_limit / 1e9;
}

static void predict_row(gpointer data, guint i, guint worker)
{
    Work *work = data;
    const GArray *outcomes = work->backtest->outcomes;
    Outcome *outcome = &g_array_index(outcomes, Outcome, i);
    const guint begun = (guint)g_atomic_int_add(&work->begun, 1);

    if (worker == 0 && progress_is_due(work->progress))
        progress_show(work->progress, (double)begun / outcomes->len);
    outcome->record = &g_array_index(work->backtest->records, Record, i);
    classify(outcome, work->all);
    if (outcome->skipped == NULL)
        predict(work, outcome);
    if (outcome->skipped != NULL)
        outcome->timed = outcome->weighed = outcome->labelled = FALSE;
}

double outcome_time_error(const Outcome *outcome)
{
    return outcome->timed ? samples_error(outcome->step_s, record_step_seconds(outcome->record))
                          : 0;
}

double outcome_memory_error(const Outcome *outcome)
{
    return outcome->weighed ? samples_error(outcome->memory_gb, outcome->record->peak_mem_gb) : 0;
}

/* ---- scores ---- */

static const Outcome *outcome_at(const Backtest *backtest, guint i)
{
    return &g_array_index(backtest->outcomes, Outcome, i);
}

static void score_times(const Backtest *backtest, SourceScore *score)
{
    g_autoptr(GArray) times = g_array_new(FALSE, FALSE, sizeof(double));
    g_autoptr(GArray) memories = g_array_new(FALSE, FALSE, sizeof(double));
    double worst = -1;

    for (guint i = 0; i < backtest->outcomes->len; i++) {
        const Outcome *outcome = outcome_at(backtest, i);
        g_autofree char *source = record_source(outcome->record);
        const double time = outcome_time_error(outcome), memory = outcome_memory_error(outcome);

        if (score->source != NULL && strcmp(source, score->source) != 0)
            continue;
        if (outcome->timed)
            g_array_append_val(times, time);
        if (outcome->weighed)
            g_array_append_val(memories, memory);
        if (!outcome->timed || time <= worst)
            continue;
        worst = time;
        g_free(score->worst);
        score->worst = g_strdup(outcome->record->id);
    }
    score->num_time = times->len;
    score->num_memory = memories->len;
    score->mape_time = samples_mean((double *)(gpointer)times->data, times->len);
    score->median_time =
        times->len == 0 ? 0 : samples_median((double *)(gpointer)times->data, times->len);
    score->mape_memory = samples_mean((double *)(gpointer)memories->data, memories->len);
}

static void score_labels(const Backtest *backtest, TotalScore *total)
{
    for (guint i = 0; i < backtest->outcomes->len; i++) {
        const Outcome *outcome = outcome_at(backtest, i);
        const gint status = outcome->record->status;
        const double under =
            outcome->weighed ? 1 - outcome->memory_gb / outcome->record->peak_mem_gb : 0;

        total->under_memory_max = MAX(total->under_memory_max, under);
        if (!outcome->labelled)
            continue;
        if (status == STATUS_OOM_OR_CRASH) {
            total->crashes++;
            total->crashes_found += outcome->feasible ? 0 : 1;
            continue;
        }
        total->labels++;
        total->labels_right += (status == STATUS_OK) == outcome->feasible ? 1 : 0;
        total->oom += status == STATUS_OOM ? 1 : 0;
        total->oom_said += outcome->feasible ? 0 : 1;
        total->oom_found += status == STATUS_OOM && !outcome->feasible ? 1 : 0;
    }
}

/* The timed rows of one group. */
typedef struct {
    GArray *predicted, *measured; /* double */
} Choices;

static void choices_free(gpointer data)
{
    Choices *choices = data;

    g_array_unref(choices->predicted);
    g_array_unref(choices->measured);
    g_free(choices);
}

static GHashTable *group_choices(const Backtest *backtest)
{
    GHashTable *groups = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, choices_free);

    for (guint i = 0; i < backtest->outcomes->len; i++) {
        const Outcome *outcome = outcome_at(backtest, i);
        const double measured = record_step_seconds(outcome->record);

        if (!outcome->timed || *outcome->record->group == '\0')
            continue;
        Choices *choices = g_hash_table_lookup(groups, outcome->record->group);
        if (choices == NULL) {
            choices = g_new(Choices, 1);
            choices->predicted = g_array_new(FALSE, FALSE, sizeof(double));
            choices->measured = g_array_new(FALSE, FALSE, sizeof(double));
            g_hash_table_insert(groups, (gpointer)outcome->record->group, choices);
        }
        g_array_append_val(choices->predicted, outcome->step_s);
        g_array_append_val(choices->measured, measured);
    }
    return groups;
}

static void score_choices(const Backtest *backtest, TotalScore *total)
{
    enum { FEWEST = 4 };
    g_autoptr(GHashTable) groups = group_choices(backtest);
    g_autoptr(GList) all = g_hash_table_get_values(groups);

    for (const GList *item = all; item != NULL; item = item->next) {
        const Choices *choices = item->data;
        const double *predicted = (double *)(gpointer)choices->predicted->data;
        const double *measured = (double *)(gpointer)choices->measured->data;
        const guint num = choices->measured->len;

        if (num < FEWEST)
            continue;
        const double regret = samples_regret(predicted, measured, num);
        const double spearman = samples_spearman(predicted, measured, num);
        total->choices++;
        total->regret_mean += regret;
        total->regret_max = MAX(total->regret_max, regret);
        total->spearman_mean += isnan(spearman) ? 0 : spearman;
    }
    total->regret_mean /= MAX(total->choices, 1);
    total->spearman_mean /= MAX(total->choices, 1);
}

/* In the order in which rows name them. */
static void score_sources(Backtest *backtest)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (guint i = 0; i < backtest->records->len; i++) {
        SourceScore score = {.source = record_source(&g_array_index(backtest->records, Record, i))};

        if (!g_hash_table_add(seen, g_strdup(score.source))) {
            g_free(score.source);
            continue;
        }
        score_times(backtest, &score);
        g_array_append_val(backtest->sources, score);
    }
}

/* ---- all ---- */

static void outcome_clear(gpointer data)
{
    g_free(((Outcome *)data)->skipped);
}

static void source_clear(gpointer data)
{
    SourceScore *score = data;

    g_free(score->source);
    g_free(score->worst);
}

Backtest *backtest_run(GArray *records, const char *topologies_dir, gboolean all,
                       Progress *progress)
{
    Backtest *backtest = g_new0(Backtest, 1);
    Work work = {backtest, topologies_dir, all, progress, 0};

    backtest->records = records;
    backtest->outcomes = g_array_new(FALSE, TRUE, sizeof(Outcome));
    backtest->sources = g_array_new(FALSE, FALSE, sizeof(SourceScore));
    g_array_set_clear_func(backtest->outcomes, outcome_clear);
    g_array_set_clear_func(backtest->sources, source_clear);
    g_array_set_size(backtest->outcomes, records->len);
    parallel_run(records->len, predict_row, &work);
    progress_hide(progress);
    score_sources(backtest);
    score_times(backtest, &backtest->total.all);
    score_labels(backtest, &backtest->total);
    score_choices(backtest, &backtest->total);
    return backtest;
}

void backtest_free(Backtest *backtest)
{
    if (backtest == NULL)
        return;
    g_array_unref(backtest->outcomes);
    g_array_unref(backtest->sources);
    source_clear(&backtest->total.all);
    g_free(backtest);
}

GHashTable *backtest_skipped(const Backtest *backtest)
{
    GHashTable *reasons = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    for (guint i = 0; i < backtest->outcomes->len; i++) {
        const char *reason = outcome_at(backtest, i)->skipped;

        if (reason == NULL)
            continue;
        const guint before = GPOINTER_TO_UINT(g_hash_table_lookup(reasons, reason));
        g_hash_table_insert(reasons, g_strdup(reason), GUINT_TO_POINTER(before + 1));
    }
    return reasons;
}
