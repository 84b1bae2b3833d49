/* What a run's figures say in words: patterns that users of other trainers took for noise. */
#include "reports/report/format.h"
#include "reports/report/plan_text.h"
#include "reports/report/report.h"

#include <math.h>
#include <string.h>

/* Shards are padded, processes differ by some buffers: what is within it is the same number. */
#define ALIKE 0.05

/* A part of a term's total that is worth a line. */
#define MUCH 0.1

/* More than calibration, noise and other users of a machine explain. */
#define SLOW 1.5

/* Of waiting for other ranks, what a step can't hide by other means. */
#define WAITING      "time_seconds.communication"
#define MUCH_OF_STEP 0.25

static gboolean is_alike(double a, double b)
{
    return fabs(a - b) <= ALIKE * fmax(fabs(a), fabs(b)); /* FALSE where one is unknown */
}

static void add(GPtrArray *remarks, const char *format, ...) G_GNUC_PRINTF(2, 3);

static void add(GPtrArray *remarks, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    g_ptr_array_add(remarks, g_strdup_vprintf(format, args));
    va_end(args);
}

static char *bytes(double value)
{
    return format_scaled(value, format_bytes_scale(value));
}

static double axis(const ReportRun *run, const char *name)
{
    g_autofree char *path = g_strconcat("layout.", name, NULL);
    const double size = plan_text_number(run->plan, path);

    return isnan(size) ? 1 : size;
}

/* ---- parameters that are not sharded ---- */

/* Ranks that each should have a part of the parameters; 1: each has all. */
static double sharing_ranks(const ReportRun *run)
{
    static const char *const sharded[] = {"full_shard", "hybrid_shard", "shard_grad_op", NULL};

    return g_strv_contains(sharded, run->strategy) ? axis(run, "dp_shard") * axis(run, "cp") : 1;
}

/* What the ranks that share them hold together, by the prediction. */
static double whole_parameters(const ReportRun *run)
{
    return report_predicted(run, "memory_bytes.parameters") * sharing_ranks(run);
}

/* The term that shows it, NULL where none does: the parameters themselves; or, where they can't be
 * told from the rest, a total that exceeds the prediction by just what the others should hold. */
static const char *unsharded_term(const ReportRun *run)
{
    const double shard = report_predicted(run, "memory_bytes.parameters");
    const double measured = report_measured(run, "memory_bytes.parameters");
    const double more =
        report_measured(run, "memory_bytes.total") - report_predicted(run, "memory_bytes.total");

    if (sharing_ranks(run) < 2 || !(shard > 0))
        return NULL;
    if (!isnan(measured))
        return is_alike(measured, whole_parameters(run)) ? "memory_bytes.parameters" : NULL;
    return is_alike(more, whole_parameters(run) - shard) ? "memory_bytes.total" : NULL;
}

/* Another run of that model that shows it on another number of ranks; NULL: none. */
static const ReportRun *also_unsharded(const Report *report, const ReportRun *run, const char *term)
{
    for (guint i = 0; i < report->runs->len; i++) {
        const ReportRun *other = g_ptr_array_index(report->runs, i);

        if (strcmp(other->model, run->model) == 0 && sharing_ranks(other) != sharing_ranks(run) &&
            g_strcmp0(unsharded_term(other), term) == 0)
            return other;
    }
    return NULL;
}

static void remark_unsharded(GPtrArray *remarks, const Report *report, const ReportRun *run)
{
    const char *term = unsharded_term(run);

    if (term == NULL)
        return;
    const ReportRun *other = also_unsharded(report, run, term);
    const double split = axis(run, "tp") * axis(run, "pp");
    const double elements = plan_text_number(run->plan, "model.parameters") / split;
    g_autofree char *measured = bytes(report_measured(run, term));
    g_autofree char *whole = bytes(whole_parameters(run));
    g_autofree char *shard = bytes(report_predicted(run, "memory_bytes.parameters"));
    g_autofree char *each = isnan(elements)
                                ? g_strdup("")
                                : g_strdup_printf(", %.3g bytes for each of %.0f",
                                                  whole_parameters(run) / elements, elements);
    g_autofree char *also =
        other == NULL ? g_strdup("")
                      : g_strdup_printf("; so does run %" G_GINT64_FORMAT
                                        " on %u ranks: it does not depend on their number",
                                        other->row->id, other->row->ranks);

    add(remarks,
        "parameters seem not to be sharded: %s measured as %s means all of them on each rank "
        "(%s%s), where %.0f ranks should have %s each%s",
        term, measured, whole, each, sharing_ranks(run), shard, also);
}

/* ---- memory that no term has ---- */

static gboolean is_sum(const char *term)
{
    return strcmp(term, "memory_bytes.total") == 0 || strcmp(term, "memory_bytes.framework") == 0;
}

/* What is measured beyond the prediction, of the terms that tensors make up. */
static double excess_of_terms(const ReportRun *run)
{
    double excess = 0;

    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);

        if (term->rank == run->rank && g_str_has_prefix(term->term, "memory_bytes.") &&
            !is_sum(term->term) && !isnan(term->measured) && !isnan(term->predicted))
            excess += term->measured - term->predicted;
    }
    return excess;
}

static void remark_unexplained(GPtrArray *remarks, const ReportRun *run)
{
    const double predicted = report_predicted(run, "memory_bytes.total");
    const double unexplained =
        report_measured(run, "memory_bytes.total") - predicted - excess_of_terms(run);

    if (!(unexplained > MUCH * predicted) || unsharded_term(run) != NULL)
        return;
    g_autofree char *shown = bytes(unexplained);
    add(remarks,
        "%s of memory_bytes.total are unexplained: more than predicted, and in no term (a library, "
        "what the allocator keeps, another process)",
        shown);
}

/* ---- slow steps ---- */

/* The class of ops that took most beyond its prediction; NULL: none is measured. */
static const StoreTerm *slowest_class(const ReportRun *run)
{
    const StoreTerm *slowest = NULL;

    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);
        const double more = term->measured - term->predicted;

        if (term->rank == run->rank && g_str_has_prefix(term->term, "time_seconds.") && more > 0 &&
            (slowest == NULL || more > slowest->measured - slowest->predicted))
            slowest = term;
    }
    return slowest;
}

static gboolean spans_nodes(const ReportRun *run)
{
    return run->row->ranks > plan_text_number(run->plan, "target.ranks_per_node");
}

/* Whom it waits for. */
static const char *others(const ReportRun *run)
{
    return spans_nodes(run) ? "other ranks, first to be looked at are the links between nodes (run "
                              "all_reduce_perf there, and give it to fsdp-plan topology import)"
                            : "other ranks of its node";
}

/* The step as a whole may be no slower, as where compute is faster than predicted. */
static void remark_waiting(GPtrArray *remarks, const ReportRun *run)
{
    const double predicted = report_predicted(run, WAITING);
    const double measured = report_measured(run, WAITING);
    const double step = report_measured(run, "step_seconds");

    if (!(measured > SLOW * predicted) || !(measured > MUCH_OF_STEP * step))
        return;
    g_autofree char *shown = format_seconds(measured), *of = format_seconds(step);
    g_autofree char *instead = format_seconds(predicted);

    add(remarks, "a step waits %s of its %s, where %s were predicted, for %s", shown, of, instead,
        others(run));
}

static void remark_slow(GPtrArray *remarks, const ReportRun *run)
{
    const double predicted = report_predicted(run, "step_seconds");
    const double measured = report_measured(run, "step_seconds");
    const StoreTerm *class = slowest_class(run);

    if (!(measured > SLOW * predicted) || class == NULL) {
        remark_waiting(remarks, run);
        return;
    }
    const double part = (class->measured - class->predicted) / (measured - predicted);
    const gboolean waits = strcmp(class->term, WAITING) == 0;

    add(remarks,
        "a step takes %.3g times what was predicted (%.2g of the speed); %.0f%% of what it takes "
        "longer is in %s%s%s",
        measured / predicted, predicted / measured, 100 * fmin(part, 1), class->term,
        waits ? ": it waits for " : "",
        waits ? others(run) : " (fsdp-run calibrate measures what the machine does)");
}

/* Of all figures this one has a limit that can't be passed. */
static void remark_mfu(GPtrArray *remarks, const ReportRun *run)
{
    const double mfu = report_measured(run, "mfu");

    if (mfu > 1)
        add(remarks,
            "mfu %.0f%% is more than there can be: the topology's peak is below what this machine "
            "does; fsdp-run calibrate measures it",
            100 * mfu);
}

/* ---- other runs ---- */

/* A larger model that took less than this one on the same machine, ranks and batch. */
static gboolean overtakes(const ReportRun *other, const ReportRun *run)
{
    const double more = plan_text_number(other->plan, "model.parameters") /
                        plan_text_number(run->plan, "model.parameters");
    const double less =
        report_measured(other, "step_seconds") / report_measured(run, "step_seconds");

    return more > 1 + ALIKE && less < 1 - MUCH && strcmp(other->topology, run->topology) == 0 &&
           strcmp(other->workload, run->workload) == 0 && other->row->ranks == run->row->ranks &&
           !(report_predicted(other, "step_seconds") < report_predicted(run, "step_seconds"));
}

static void remark_overtaken(GPtrArray *remarks, const Report *report, const ReportRun *run)
{
    for (guint i = 0; i < report->runs->len; i++) {
        const ReportRun *other = g_ptr_array_index(report->runs, i);

        if (!overtakes(other, run))
            continue;
        add(remarks,
            "run %" G_GINT64_FORMAT " of %s, %.3g times the parameters, takes %.2g of this run's "
            "step on as many ranks: something is wrong here",
            other->row->id, other->model,
            plan_text_number(other->plan, "model.parameters") /
                plan_text_number(run->plan, "model.parameters"),
            report_measured(other, "step_seconds") / report_measured(run, "step_seconds"));
        return;
    }
}

GPtrArray *report_remarks(const Report *report, const ReportRun *run)
{
    GPtrArray *remarks = g_ptr_array_new_with_free_func(g_free);

    remark_unsharded(remarks, report, run);
    remark_unexplained(remarks, run);
    remark_slow(remarks, run);
    remark_mfu(remarks, run);
    remark_overtaken(remarks, report, run);
    return remarks;
}
