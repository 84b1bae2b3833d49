#include "exec/run/effective.h"

#include "reports/store/store.h"

static void line(GString *text, const char *key, const char *format, ...) G_GNUC_PRINTF(3, 4);
static void line(GString *text, const char *key, const char *format, ...)
{
    va_list arguments;

    g_string_append_printf(text, "  %-15s", key);
    va_start(arguments, format);
    g_string_append_vprintf(text, format, arguments);
    va_end(arguments);
    g_string_append_c(text, '\n');
}

static char *bytes_text(guint64 bytes)
{
    const double kib = 1024, mib = kib * 1024, gib = mib * 1024;
    const double value = (double)bytes;

    if (value >= gib)
        return g_strdup_printf("%.2f GiB", value / gib);
    return value >= mib ? g_strdup_printf("%.1f MiB", value / mib)
                        : g_strdup_printf("%.1f KiB", value / kib);
}

static void append_model(GString *text, const Plan *plan)
{
    const Workload *workload = &plan->workload;
    const Recipe *recipe = workload->recipe;
    const gboolean apart = recipe->gradient != recipe->reduce;

    line(text, "model", "%s, %.4g M parameters", plan->model->name,
         (double)model_parameters(plan->model) / 1e6);
    line(text, "precision",
         "recipe %s: computes and gathers in %s, keeps %s%s, gradients%s%s and reductions in %s; "
         "%s",
         recipe->name, dtype_name(recipe->compute), dtype_name(recipe->stored),
         recipe->master ? " and an fp32 master" : "", apart ? " in " : "",
         apart ? dtype_name(recipe->gradient) : "", dtype_name(recipe->reduce),
         optimizer_name(workload->optimizer));
}

static void append_mesh(GString *text, const Plan *plan)
{
    g_autoptr(GString) mesh = g_string_new(NULL);
    const Schedule *schedule = &plan->schedule;

    for (guint a = 0; a < NUM_AXES; a++)
        g_string_append_printf(mesh, " %s=%u", axis_name((Axis)a), plan->layout.size[a]);
    line(text, "mesh", "%u rank%s x %u thread%s:%s%s", plan->gpus, plan->gpus == 1 ? "" : "s",
         plan->threads, plan->threads == 1 ? "" : "s", mesh->str,
         plan->sequence_parallel && plan->layout.size[AXIS_TP] > 1 ? ", sequence parallel" : "");
    line(text, "batch", "%u x %u tokens a step; a data rank has %u micro-batch%s of %u",
         plan->workload.global_batch, plan->workload.seq_len, schedule->micro_batches,
         schedule->micro_batches == 1 ? "" : "es", schedule->micro_batch);
}

/* Runs of blocks that are sharded alike. */
static void append_units(GString *text, const Plan *plan)
{
    const Sharding *sharding = &plan->sharding;
    const guint num_blocks = plan->model->layers;
    g_autoptr(GString) units = g_string_new(NULL);

    for (guint first = 0, next; first <= num_blocks; first = next) {
        const Strategy strategy = sharding_unit_strategy(sharding, first);
        const gboolean kept = sharding_unit_kept(sharding, first, num_blocks);

        next = first + 1;
        while (first != ROOT_UNIT && next <= num_blocks &&
               sharding_unit_strategy(sharding, next) == strategy &&
               sharding_unit_kept(sharding, next, num_blocks) == kept)
            next++;
        if (first == ROOT_UNIT)
            g_string_append(units, "root: ");
        else if (next == first + 1)
            g_string_append_printf(units, "; block %u: ", first - 1);
        else
            g_string_append_printf(units, "; blocks %u-%u: ", first - 1, next - 2);
        g_string_append_printf(units, "%s%s", strategy_name(strategy),
                               kept && strategy != STRATEGY_NO_SHARD &&
                                       strategy != STRATEGY_SHARD_OPTIMIZER
                                   ? ", kept from forward to backward"
                                   : "");
    }
    line(text, "units", "%s", units->str);
    line(text, "sharding",
         "%s; %u unit%s gathered ahead, at most %u alive%s; gradients accumulate %s",
         form_name(sharding->form), sharding->prefetch, sharding->prefetch == 1 ? "" : "s",
         sharding->live_units,
         sharding->gather_fp8 ? "; matrices of blocks are gathered in fp8" : "",
         sharding->accumulate_sharded ? "sharded" : "whole");
}

/* Of the rank that needs most. */
static void append_memory(GString *text, const Plan *plan)
{
    const Prediction *prediction = &plan->prediction;
    g_autofree char *total = bytes_text(prediction->memory_total);
    g_autoptr(GString) terms = g_string_new(NULL);

    for (guint t = 0; t < NUM_MEMORY_TERMS; t++) {
        g_autofree char *bytes = bytes_text(prediction->memory_bytes[t]);

        if (prediction->memory_bytes[t] > 0)
            g_string_append_printf(terms, "%s %s %s", terms->len > 0 ? "," : "",
                                   memory_term_name((MemoryTerm)t), bytes);
    }
    line(text, "memory", "%s planned for rank %u:%s", total, prediction->rank, terms->str);
}

static void append_tiers(GString *text, const Plan *plan)
{
    const Offload *offload = &plan->sharding.offload;
    g_autoptr(GString) tiers = g_string_new(NULL);

    for (guint t = TIER_DEVICE + 1; t < NUM_TIERS; t++) {
        g_autofree char *bytes = bytes_text(plan->arena_bytes[t]);

        if (plan->arena_bytes[t] > 0)
            g_string_append_printf(tiers, "%s %s %s", tiers->len > 0 ? "," : "", tier_name((Tier)t),
                                   bytes);
    }
    if (tiers->len > 0)
        line(text, "tiers", "optimizer in %s, parameters in %s; at most, a rank:%s",
             tier_name(offload->optimizer), tier_name(offload->parameters), tiers->str);
}

static void append_volume(GString *text, const Plan *plan)
{
    g_autoptr(GString) kinds = g_string_new(NULL);

    for (guint v = 0; v < NUM_VOLUMES; v++) {
        const guint64 volume = plan->prediction.communication_bytes[v];
        g_autofree char *bytes = bytes_text(volume);

        if (volume > 0)
            g_string_append_printf(kinds, "%s%s %s", kinds->len > 0 ? ", " : "",
                                   volume_name((Volume)v), bytes);
    }
    line(text, "communication", "%s", kinds->len > 0 ? kinds->str : "none");
}

static void append_run(GString *text, const TrainOptions *options, const Runtime *runtime)
{
    g_autofree char *watchdog = options->watchdog_s == 0
                                    ? g_strdup("no watchdog")
                                    : g_strdup_printf("watchdog %u s", options->watchdog_s);

    line(text, "runs on", "%s; %s", runtime_transport(runtime), runtime_library(runtime));
    line(text, "run", "to step %u, seed %" G_GUINT64_FORMAT ", lr %g %s, clip norm %g%s; %s%s%s",
         options->steps, options->seed, options->lr, options->cosine ? "cosine" : "constant",
         options->clip_norm, options->stochastic ? ", stochastic rounding" : "", watchdog,
         options->check ? STORE_CHECK_MODE : "", options->no_overlap ? STORE_NO_OVERLAP : "");
}

static void append_schedule(GString *text, const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    const Schedule *schedule = &plan->schedule;
    g_autoptr(GString) stages = g_string_new(NULL);
    g_autofree char *recompute = plan_recompute_text(plan);

    for (guint c = 0; pp > 1 && c < schedule_chunks(schedule, pp); c++) {
        const LayerRange range = schedule_chunk(schedule, plan->model->layers, pp, c);

        g_string_append_printf(stages, "%s%u-%u", c == 0 ? "; blocks of the chunks: " : ", ",
                               range.first, range.first + range.count - 1);
    }
    line(text, "schedule", "%s, recompute %s%s", schedule_name(schedule->kind), recompute,
         stages->str);
    if (plan->layout.size[AXIS_CP] > 1)
        line(text, "context", "%s of keys and values", context_kind_name(plan->context));
}

char *effective_text(const Plan *plan, const TrainOptions *options, const Runtime *runtime)
{
    GString *text = g_string_new(NULL);

    append_model(text, plan);
    append_mesh(text, plan);
    append_units(text, plan);
    append_schedule(text, plan);
    append_memory(text, plan);
    append_tiers(text, plan);
    append_volume(text, plan);
    line(text, "program", "%.12s, %" G_GUINT64_FORMAT " ops a step", plan->hash, plan->ops);
    append_run(text, options, runtime);
    return g_string_free(text, FALSE);
}
