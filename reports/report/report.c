/* Loading a store and joining, per run, what was predicted with what was measured. */
#include "reports/report/report.h"

#include "reports/report/plan_text.h"
#include "sim/base/error.h"

#include <math.h>
#include <string.h>

/* ---- terms ---- */

/* The order of DESIGN's prediction; a name that ends in '.' stands for all that begin with it. */
static const char *const term_order[] = {
    "step_seconds",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "model_tflops_per_gpu",
    "mfu",
    "exposed_communication_seconds",
    "bubble_fraction",
    "time_seconds.",
    "memory_bytes.parameters",
    "memory_bytes.gathered",
    "memory_bytes.gradients",
    "memory_bytes.master",
    "memory_bytes.optimizer",
    "memory_bytes.activations",
    "memory_bytes.logits",
    "memory_bytes.communication",
    "memory_bytes.workspace",
    "memory_bytes.framework",
    "memory_bytes.total",
    "memory_bytes.",
    "communication_bytes.",
    "communication_seconds.",
};

static guint position_of(const char *term)
{
    for (guint i = 0; i < G_N_ELEMENTS(term_order); i++)
        if (g_str_has_suffix(term_order[i], ".") ? g_str_has_prefix(term, term_order[i])
                                                 : strcmp(term, term_order[i]) == 0)
            return i;
    return G_N_ELEMENTS(term_order);
}

/* g_array_sort is stable: terms of one position keep the order in which they were written. */
static gint compare_terms(gconstpointer a, gconstpointer b)
{
    const StoreTerm *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (gint)position_of(x->term) - (gint)position_of(y->term);
}

static void clear_term(gpointer row)
{
    StoreTerm *term = row;

    g_free((gpointer)(guintptr)term->term);
}

static const char *unit_of(const char *term)
{
    if (g_str_has_prefix(term, "memory_bytes.") || g_str_has_prefix(term, "communication_bytes."))
        return "bytes";
    if (g_str_has_suffix(term, "_seconds") || g_str_has_prefix(term, "time_seconds.") ||
        g_str_has_prefix(term, "communication_seconds."))
        return "s";
    if (g_str_has_prefix(term, "tokens_per_second"))
        return "tokens/s";
    return g_str_has_prefix(term, "model_tflops") ? "TFLOP/s" : "";
}

/* Adds every number below @object; @prefix is its own path in the prediction. */
static void add_predicted(GArray *terms, JsonObject *object, const char *prefix, guint rank)
{
    g_autoptr(GList) names = json_object_get_members(object);

    for (GList *i = names; i != NULL; i = i->next) {
        JsonNode *node = json_object_get_member(object, i->data);
        g_autofree char *term = g_strconcat(prefix, i->data, NULL);

        if (JSON_NODE_HOLDS_OBJECT(node)) {
            g_autofree char *below = g_strconcat(term, ".", NULL);

            add_predicted(terms, json_node_get_object(node), below, rank);
        } else if (plan_text_is_number(node) && strcmp(term, "rank") != 0) {
            const StoreTerm row = {.rank = rank,
                                   .term = term,
                                   .predicted = json_node_get_double(node),
                                   .measured = NAN,
                                   .estimated = NAN,
                                   .unit = unit_of(term)};

            g_array_append_val(terms, row);
            term = NULL; /* the row's */
        }
    }
}

/* What a run that has no terms yet will be compared with. */
static GArray *predicted_terms(JsonParser *plan, guint rank)
{
    GArray *terms = g_array_new(FALSE, TRUE, sizeof(StoreTerm));
    JsonNode *prediction = plan_text_node(plan, "prediction");

    g_array_set_clear_func(terms, clear_term);
    if (prediction != NULL && JSON_NODE_HOLDS_OBJECT(prediction))
        add_predicted(terms, json_node_get_object(prediction), "", rank);
    return terms;
}

static guint count_ranks(const GArray *terms)
{
    guint count = 0;

    for (guint i = 0; i < terms->len; i++)
        count += i == 0 || g_array_index(terms, StoreTerm, i).rank !=
                               g_array_index(terms, StoreTerm, i - 1).rank;
    return count;
}

/* The plan's own choice when that rank has terms, else the largest predicted total there is. */
static guint shown_rank(JsonParser *plan, const GArray *terms)
{
    const double planned = plan_text_number(plan, "prediction.rank");
    const StoreTerm *largest = NULL;

    for (guint i = 0; i < terms->len; i++) {
        const StoreTerm *term = &g_array_index(terms, StoreTerm, i);

        if (term->rank == planned)
            return term->rank;
        if (strcmp(term->term, "memory_bytes.total") == 0 &&
            (largest == NULL || term->predicted > largest->predicted))
            largest = term;
    }
    if (largest != NULL)
        return largest->rank;
    return terms->len > 0 ? g_array_index(terms, StoreTerm, 0).rank : 0;
}

/* ---- loading ---- */

static void run_free(gpointer data)
{
    ReportRun *run = data;

    g_clear_object(&run->plan);
    g_free(run->model);
    g_free(run->topology);
    g_free(run->layout);
    g_free(run->strategy);
    g_free(run->workload);
    g_free(run->schedule);
    g_free(run->micro_batch);
    g_clear_pointer(&run->terms, g_array_unref);
    g_clear_pointer(&run->steps, g_array_unref);
    g_clear_pointer(&run->ops, g_array_unref);
    g_free(run);
}

static void read_plan(ReportRun *run)
{
    run->plan = plan_text_parse(run->row->plan_json);

    g_autofree char *batch = plan_text_value(run->plan, "workload.global_batch");
    g_autofree char *length = plan_text_value(run->plan, "workload.seq_len");
    g_autofree char *precision = plan_text_value(run->plan, "workload.precision");
    g_autofree char *schedule = plan_text_value(run->plan, "schedule.name");
    g_autofree char *micro_batches = plan_text_value(run->plan, "schedule.micro_batches");
    g_autofree char *recompute = plan_text_recompute(run->plan);

    run->model = plan_text_value(run->plan, "model.name");
    run->topology = plan_text_value(run->plan, "topology.name");
    run->layout = plan_text_layout(run->plan);
    run->strategy = plan_text_value(run->plan, "sharding.strategy");
    run->micro_batch = plan_text_value(run->plan, "schedule.micro_batch");
    run->workload = g_strdup_printf("global batch %s, sequence %s, %s", batch, length, precision);
    run->schedule = g_strdup_printf("%s, micro-batch %s x %s, recompute %s", schedule,
                                    run->micro_batch, micro_batches, recompute);
}

static ReportRun *run_load(Store *store, const StoreRun *row, GError **error)
{
    ReportRun *run = g_new0(ReportRun, 1);

    run->row = row;
    read_plan(run);
    run->terms = store_terms(store, row->id, error);
    if (run->terms != NULL)
        run->steps = store_steps(store, row->id, error);
    if (run->steps == NULL) {
        run_free(run);
        return NULL;
    }

    run->rank = shown_rank(run->plan, run->terms);
    run->ranks_with_terms = count_ranks(run->terms);
    if (run->ranks_with_terms == 0) {
        g_array_unref(run->terms);
        run->terms = predicted_terms(run->plan, run->rank);
    }
    g_array_sort(run->terms, compare_terms);
    run->ops = store_sampled_ops(store, row->id, run->rank, error);
    if (run->ops == NULL) {
        run_free(run);
        return NULL;
    }
    return run;
}

static gboolean load_runs(Report *report, Store *store, GError **error)
{
    if (!store_begin(store, error))
        return FALSE;
    report->rows = store_runs(store, error);
    if (report->rows == NULL)
        return FALSE;
    for (guint i = 0; i < report->rows->len; i++) {
        ReportRun *run = run_load(store, &g_array_index(report->rows, StoreRun, i), error);

        if (run == NULL)
            return FALSE;
        g_ptr_array_add(report->runs, run);
    }
    return store_commit(store, error);
}

Report *report_load(const char *path, GError **error)
{
    g_autoptr(Store) store = store_open(path, TRUE, error);
    if (store == NULL)
        return NULL;

    g_autoptr(Report) report = g_new0(Report, 1);

    report->path = g_strdup(path);
    report->runs = g_ptr_array_new_with_free_func(run_free);
    return load_runs(report, store, error) ? g_steal_pointer(&report) : NULL;
}

void report_free(Report *report)
{
    if (report == NULL)
        return;
    g_ptr_array_unref(report->runs);
    g_clear_pointer(&report->rows, g_array_unref);
    g_free(report->path);
    g_free(report);
}

const ReportRun *report_find(const Report *report, gint64 id, GError **error)
{
    g_autoptr(GString) ids = g_string_new(NULL);

    for (guint i = report->runs->len; i > 0; i--) {
        const ReportRun *run = g_ptr_array_index(report->runs, i - 1);

        if (id == 0 || run->row->id == id)
            return run;
    }
    for (guint i = 0; i < report->runs->len; i++) {
        const ReportRun *run = g_ptr_array_index(report->runs, i);

        g_string_append_printf(ids, "%s%" G_GINT64_FORMAT, i > 0 ? ", " : "", run->row->id);
    }
    if (report->runs->len == 0)
        fail(error, ERROR_INPUT, "%s: there are no runs in this store", report->path);
    else
        fail(error, ERROR_INPUT, "%s: there is no run %" G_GINT64_FORMAT "; there are %s",
             report->path, id, ids->str);
    return NULL;
}
