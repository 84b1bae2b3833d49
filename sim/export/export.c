#include "sim/export/export.h"

#include "sim/base/error.h"
#include "sim/base/nearest.h"
#include "sim/export/exporter.h"

#include <string.h>

static const Exporter *const exporters[] = {
    &exporter_torchtitan,
    &exporter_megatron,
    &exporter_deepspeed,
    &exporter_accelerate,
};

const char *const *export_frameworks(void)
{
    static const char *const names[] = {"torchtitan", "megatron", "deepspeed", "accelerate", NULL};

    G_STATIC_ASSERT(G_N_ELEMENTS(names) == G_N_ELEMENTS(exporters) + 1);
    return names;
}

static const Exporter *find_exporter(const char *framework, GError **error)
{
    for (guint i = 0; i < G_N_ELEMENTS(exporters); i++)
        if (strcmp(framework, exporters[i]->name) == 0)
            return exporters[i];
    g_autofree char *hint = nearest_hint(framework, export_frameworks());
    g_autofree char *known = g_strjoinv(", ", (char **)export_frameworks());
    fail(error, ERROR_INPUT, "no export to \"%s\"%s: it is one of %s", framework, hint, known);
    return NULL;
}

gboolean export_refuse(const Export *export, const char *field, const char *value, const char *why,
                       GError **error)
{
    return fail(error, ERROR_INFEASIBLE, "%s can't express %s = %s: %s", export->framework, field,
                value, why);
}

gboolean export_refuse_uint(const Export *export, const char *field, guint value, const char *why,
                            GError **error)
{
    g_autofree char *text = g_strdup_printf("%u", value);

    return export_refuse(export, field, text, why, error);
}

const char *export_map(const Export *export, const char *field, const char *value,
                       const Mapping *table, GError **error)
{
    const Mapping *entry = table;

    while (entry->value != NULL && strcmp(entry->value, value) != 0)
        entry++;
    if (entry->to == NULL)
        export_refuse(export, field, value,
                      entry->why_not != NULL ? entry->why_not : "no equivalent is known", error);
    return entry->to;
}

void export_note(Export *export, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_ptr_array_add(export->notes, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

gboolean export_check_accumulate(const Export *export, gboolean sharded, GError **error)
{
    const Plan *plan = export->plan;

    if (plan->schedule.micro_batches == 1 || plan->sharding.accumulate_sharded == sharded)
        return TRUE;
    return export_refuse(export, "sharding.accumulate", sharded ? "unsharded" : "sharded",
                         sharded ? "with this strategy it reduces after every micro-batch"
                                 : "with this strategy it reduces whole gradients, once a step",
                         error);
}

gboolean export_check_recompute(const Export *export, const char *why, GError **error)
{
    g_autofree char *recompute = plan_recompute_text(export->plan);

    return !schedule_has_rest(&export->plan->schedule) ||
           export_refuse(export, "recompute", recompute, why, error);
}

gboolean export_refuse_offload(const Export *export, const char *why, GError **error)
{
    const Offload *offload = &export->plan->sharding.offload;
    g_autofree char *tiers =
        g_strdup_printf("optimizer=%s,parameters=%s", tier_name(offload->optimizer),
                        tier_name(offload->parameters));

    return export_refuse(export, "offload", tiers, why, error);
}

gboolean export_check_gradients(const Export *export, DType gradient, const char *why,
                                GError **error)
{
    const DType planned = export->plan->workload.recipe->gradient;

    return planned == gradient ||
           export_refuse(export, "sharding.gradient_dtype", dtype_name(planned), why, error);
}

void export_note_offload(Export *export)
{
    export_note(export, "offload: gradients go to the host too, and the optimiser's step is there; "
                        "the plan copies its state to the GPU");
}

gboolean export_offload_all(Export *export, gboolean *all, GError **error)
{
    const Offload *offload = &export->plan->sharding.offload;

    *all = sharding_offloads(&export->plan->sharding);
    if (!*all)
        return TRUE;
    export_note_offload(export);
    return (offload->optimizer == TIER_HOST && offload->parameters == TIER_HOST) ||
           export_refuse_offload(
               export,
               "its offload moves parameters and the optimiser's state together, to the "
               "host (optimizer=host,parameters=host)",
               error);
}

gboolean export_is_fsdp2(const Plan *plan)
{
    return strcmp(plan->workload.recipe->name, recipe_fsdp2.name) == 0;
}

guint export_even_layers(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP], layers = plan->model->layers;
    const guint chunks = schedule_chunks(&plan->schedule, pp);

    for (guint c = 0; c < chunks; c++)
        if (schedule_chunk(&plan->schedule, layers, pp, c).count * chunks != layers)
            return 0;
    return layers / chunks;
}

static gboolean check_model(const Export *export, const Exporter *exporter, GError **error)
{
    Model known = *export->plan->model;

    if (exporter->any_model)
        return TRUE;
    known.features &= ~exporter->features;
    g_autofree char *missing = model_untrainable(&known);
    if (missing == NULL)
        return TRUE;
    g_autofree char *why = g_strconcat("there is no word for ", missing, NULL);
    return export_refuse(export, "model.model_type", known.model_type, why, error);
}

/* Axes that a framework's file lacks. */
static gboolean check_axes(const Export *export, const Exporter *exporter, GError **error)
{
    const Plan *plan = export->plan;
    const guint tp = plan->layout.size[AXIS_TP];

    for (guint axis = 0; axis < NUM_AXES; axis++) {
        g_autofree char *field = g_strconcat("layout.", axis_name((Axis)axis), NULL);

        if (plan->layout.size[axis] != 1 && exporter->why_not_axis[axis] != NULL)
            return export_refuse_uint(export, field, plan->layout.size[axis],
                                      exporter->why_not_axis[axis], error);
    }
    return plan->model->kv_heads % tp == 0 ||
           export_refuse_uint(export, "layout.tp", tp, "it must divide the model's kv heads there",
                              error);
}

static gboolean check_precision(const Export *export, const Exporter *exporter, GError **error)
{
    const DType precision = export->plan->workload.recipe->precision;

    if (!(precision == DTYPE_BF16 || precision == DTYPE_FP32 ||
          (exporter->half && precision == DTYPE_FP16) ||
          (exporter->eighth && precision == DTYPE_FP8))) {
        g_autofree char *why =
            g_strdup_printf("plans in bf16%s%s and fp32 are exported",
                            exporter->half ? ", fp16" : "", exporter->eighth ? ", fp8" : "");

        return export_refuse(export, "workload.precision", dtype_name(precision), why, error);
    }
    return !export->plan->sharding.gather_fp8 || precision == DTYPE_FP8 ||
           export_refuse(export, "sharding.gather_dtype", "fp8",
                         exporter->eighth ? "what is gathered in fp8 there is multiplied in fp8 too"
                                          : "it gathers what it computes with",
                         error);
}

/* Fields that no framework's file has, and what some lack. */
static gboolean check_common(const Export *export, const Exporter *exporter, GError **error)
{
    g_autofree char *units = plan_units_text(export->plan);

    return check_model(export, exporter, error) && check_axes(export, exporter, error) &&
           check_precision(export, exporter, error) &&
           (export->plan->sharding.num_overrides == 0 ||
            export_refuse(export, "sharding.units", units != NULL ? units : "[...]",
                          "its configuration has one strategy for all units (search with --fix "
                          "unit=uniform)",
                          error));
}

static char *title(const Plan *plan)
{
    const guint data_ranks = layout_data_ranks(&plan->layout);
    const DType precision = plan->workload.recipe->precision;
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *recipe = recipe_text(plan->workload.recipe);
    const char *in = precision == DTYPE_FP8 ? " in fp8" : precision == DTYPE_FP16 ? " in fp16" : "";

    return g_strdup_printf(
        "%s on %u ranks (%s), %s, recipe %s%s: global batch %u = micro-batch %u x %u "
        "micro-batches x %u data-parallel ranks",
        plan->model->name, plan->gpus, layout, strategy_name(plan->sharding.strategy), recipe, in,
        plan->workload.global_batch, plan->schedule.micro_batch, plan->schedule.micro_batches,
        data_ranks);
}

/* A model's name is free text: one with a line break must not end the comment. */
static void append_comment(GString *text, const char *line)
{
    g_autofree char *flat = g_strdelimit(g_strdup(line), "\r\n", ' ');

    g_string_append_printf(text, "# %s\n", flat);
}

char *export_plan(const Plan *plan, const char *framework, GPtrArray *notes, GError **error)
{
    const Exporter *exporter = find_exporter(framework, error);
    g_autoptr(GPtrArray) own_notes = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GString) body = g_string_new(NULL);
    g_autoptr(GString) text = g_string_new(NULL);
    Export export = {
        .plan = plan,
        .framework = framework,
        .text = body,
        .notes = exporter != NULL && exporter->comments ? own_notes : notes,
    };

    if (exporter == NULL || !check_common(&export, exporter, error))
        return NULL;
    if (plan->device == DEVICE_CPU)
        export_note(&export, "the plan was priced for a CPU");
    if (!exporter->write(&export, error))
        return NULL;
    if (exporter->comments) {
        g_autofree char *first = title(plan);

        append_comment(text, first);
        for (guint i = 0; i < own_notes->len; i++)
            append_comment(text, g_ptr_array_index(own_notes, i));
    }
    g_string_append(text, body->str);
    return g_string_free(g_steal_pointer(&text), FALSE);
}
