#include "reports/feedback/feedback.h"

#include "reports/feedback/shown.h"
#include "reports/feedback/topology_text.h"
#include "sim/base/error.h"
#include "sim/search/price.h"

#include <math.h>
#include <string.h>

/* ---- what may be fed where ---- */

static Plan *read_plan(const ReportRun *run, const char *db, GError **error)
{
    g_autofree char *source = g_strdup_printf("%s: run %" G_GINT64_FORMAT, db, run->row->id);

    if (run->row->plan_json == NULL) {
        fail(error, ERROR_INPUT, "%s: it has no plan", source);
        return NULL;
    }
    return plan_parse(run->row->plan_json, source, error);
}

/* Rows are of one device, and of nodes of one size. */
static gboolean check_device(const Plan *plan, const TopologyText *file, GError **error)
{
    const Topology *ran = plan->topology, *to = file->topology;

    if (ran->gpu.kind == to->gpu.kind && strcmp(ran->gpu.name, to->gpu.name) == 0 &&
        ran->gpus_per_node == to->gpus_per_node)
        return TRUE;
    return fail(error, ERROR_INPUT, "%s ran on %s %s, %u a node; %s describes %s %s, %u a node",
                plan->source, device_kind_name(ran->gpu.kind), ran->gpu.name, ran->gpus_per_node,
                file->path, device_kind_name(to->gpu.kind), to->gpu.name, to->gpus_per_node);
}

/* Delays at random, or each communication waited for, are not how training runs. */
static gboolean check_mode(const Plan *plan, const ReportRun *run, GError **error)
{
    static const char *const modes[] = {STORE_CHECK_MODE, STORE_NO_OVERLAP};

    for (guint i = 0; i < G_N_ELEMENTS(modes); i++)
        if (run->row->notes != NULL && strstr(run->row->notes, modes[i]) != NULL)
            return fail(error, ERROR_INPUT, "%s ran with%s: its times are not those of training",
                        plan->source, modes[i] + 1);
    return TRUE;
}

/* Where the run's state was offloaded to: a step can't be priced without. */
static gboolean check_tiers(const Plan *plan, const TopologyText *file, GError **error)
{
    const Tier tiers[] = {plan->sharding.offload.optimizer, plan->sharding.offload.parameters};
    MemoryTier memory;

    for (guint i = 0; i < G_N_ELEMENTS(tiers); i++)
        if (tiers[i] != TIER_DEVICE && !topology_memory(file->topology, tiers[i], &memory))
            return fail(error, ERROR_INPUT, "%s keeps state in tier %s; %s states none",
                        plan->source, tier_name(tiers[i]), file->path);
    return TRUE;
}

/* ---- what is fed ---- */

/* Whether the run's record says so (exec/run/record.c). */
static gboolean says(const ReportRun *run, const char *what, const char *begin)
{
    g_autofree char *line = g_strdup_printf("  %-15s%s", what, begin);

    return run->row->notes != NULL && strstr(run->row->notes, line) != NULL;
}

/* Steps that are sampled run without graphs; where the others ran as graphs, what is between ops of
 * a sampled step is not theirs. */
static gboolean has_gaps(const ReportRun *run)
{
    return !says(run, STORE_GRAPHS, "on");
}

static gboolean learn_ops(Feedback *feedback, const ReportRun *run, const Plan *plan,
                          const ProgramSet *set, Store *store, GError **error)
{
    const ProgramSpec spec = plan_spec(plan);
    const SimulateContext context = plan_context(plan);
    g_autoptr(GPtrArray) spans = g_ptr_array_new_with_free_func(g_free);
    g_auto(Shown) shown = {0};

    for (guint c = 0; c < set->num_classes; c++)
        g_ptr_array_add(spans, program_spans(set->classes[c], &spec));
    if (!shown_read(&shown, store, run->row->id, set, (guint **)spans->pdata, has_gaps(run), error))
        return FALSE;
    feedback->rows =
        learn_rows(plan->topology, &context, shown.ops, says(run, STORE_ATTENTION, "cuDNN"));
    feedback->num = shown.num;
    feedback->steps = shown.steps;
    feedback->incomplete = shown.incomplete;
    return TRUE;
}

/* Of all ranks the most, as fsdp-run calibrate takes it: memory that one rank lacks ends a job. */
static void learn_memory(const ReportRun *run, Topology *topology)
{
    Measured *measured = &topology->measured;
    double most = 0;

    for (guint i = 0; i < run->terms->len; i++) {
        const StoreTerm *term = &g_array_index(run->terms, StoreTerm, i);

        if (strcmp(term->term, "memory_bytes.framework") == 0 && term->measured > most)
            most = term->measured;
    }
    if (most > 0)
        *(run->row->ranks == 1 ? &measured->framework_alone_bytes : &measured->framework_bytes) =
            (guint64)most;
}

static void add_source(const Feedback *feedback, const Report *report, const ReportRun *run,
                       Topology *topology)
{
    char **source = &topology->measured.source;
    g_autofree char *db = g_path_get_basename(report->path);
    g_autofree char *this = g_strdup_printf(
        "run %" G_GINT64_FORMAT " of %s (%s, %s, %s, %u ranks): %" G_GUINT64_FORMAT
        " op times of %u step%s",
        run->row->id, db, run->row->created, run->row->host != NULL ? run->row->host : "-",
        run->row->device != NULL ? run->row->device : "-", run->row->ranks, feedback->num,
        feedback->steps, feedback->steps == 1 ? "" : "s");
    g_auto(GStrv) all = g_strsplit(*source != NULL ? *source : "", "; ", -1);

    if (g_strv_contains((const char *const *)all, this))
        return;
    char *joined = *source == NULL ? g_strdup(this) : g_strconcat(*source, "; ", this, NULL);
    g_free(*source);
    *source = joined;
}

/* ---- all ---- */

/* Prices the run's plan with what the file says. */
static double price(Plan *plan)
{
    g_ptr_array_set_size(plan->reasons, 0);
    plan_price(plan);
    return plan->prediction.step_seconds;
}

static gboolean feed(Feedback *feedback, const Report *report, const ReportRun *run, Plan *plan,
                     const ProgramSet *set, GError **error)
{
    Topology *topology = plan->topology;
    g_autoptr(Store) store = store_open(report->path, TRUE, error);

    if (store == NULL)
        return FALSE;
    feedback->before_s = price(plan);
    feedback->before_memory = plan_framework_bytes(plan);
    if (!learn_ops(feedback, run, plan, set, store, error))
        return FALSE;
    learn_memory(run, topology);
    add_source(feedback, report, run, topology);
    feedback->after_s = price(plan);
    feedback->after_memory = plan_framework_bytes(plan);
    feedback->op_overhead_s = topology->measured.op_overhead_s;
    feedback->measured_s = report_measured(run, "step_seconds");
    return TRUE;
}

/* The plan takes the file's topology, and gives it back. */
static void swap_topology(Plan *plan, TopologyText *file)
{
    Topology *other = plan->topology;

    plan->topology = file->topology;
    file->topology = other;
}

gboolean feedback_write(Feedback *feedback, const Report *report, const ReportRun *run,
                        const char *topology_path, GError **error)
{
    g_auto(TopologyText) file = {0};

    *feedback = (Feedback){.path = g_strdup(topology_path), .run = run->row->id};
    if (!topology_text_load(&file, topology_path, error))
        return FALSE;
    g_autoptr(Plan) plan = read_plan(run, report->path, error);
    if (plan == NULL || !check_device(plan, &file, error) || !check_mode(plan, run, error) ||
        !check_tiers(plan, &file, error))
        return FALSE;
    g_autoptr(ProgramSet) set = plan_compile(plan, error);
    if (set == NULL)
        return FALSE;
    plan->framework = NULL; /* whoever the plan was priced for: fsdp-run ran it */
    swap_topology(plan, &file);
    const gboolean fed = feed(feedback, report, run, plan, set, error);
    swap_topology(plan, &file);
    return fed && topology_text_save(&file, error);
}

void feedback_clear(Feedback *feedback)
{
    g_free(feedback->path);
}
