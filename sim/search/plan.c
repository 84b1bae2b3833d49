#include "sim/search/plan.h"

#include "sim/base/error.h"

#include <string.h>

Plan *plan_new(void)
{
    Plan *plan = g_new0(Plan, 1);

    for (guint a = 0; a < NUM_AXES; a++)
        plan->layout.size[a] = 1;
    plan->stages = g_array_new(FALSE, TRUE, sizeof(StageTime));
    plan->reasons = g_ptr_array_new_with_free_func(g_free);
    return plan;
}

MemoryTerm prediction_largest_term(const Prediction *prediction)
{
    const guint64 *bytes = prediction->memory_bytes;
    guint most = 0;

    for (guint t = 1; t < NUM_MEMORY_TERMS; t++)
        if (bytes[t] > bytes[most])
            most = t;
    return (MemoryTerm)most;
}

void plan_free(Plan *plan)
{
    if (plan == NULL)
        return;
    model_free(plan->model);
    topology_free(plan->topology);
    g_array_unref(plan->stages);
    g_ptr_array_unref(plan->reasons);
    g_free(plan->chunk_layers);
    g_free(plan->recompute_layers);
    g_free(plan->hash);
    g_free(plan->source);
    g_free(plan);
}

void plan_free_borrowed(Plan *plan)
{
    plan->model = NULL;
    plan->topology = NULL;
    plan_free(plan);
}

static void append_axis(GString *text, const Plan *plan, Axis axis)
{
    const guint virtual_stages = schedule_virtual_stages(&plan->schedule);

    g_string_append_printf(text, "%s%s=%u", text->len > 0 ? " " : "", axis_name(axis),
                           plan->layout.size[axis]);
    if (axis == AXIS_PP)
        g_string_append_printf(text, " %s", schedule_name(plan->schedule.kind));
    if (axis == AXIS_PP && virtual_stages > 1)
        g_string_append_printf(text, " x%u", virtual_stages);
    if (axis == AXIS_CP)
        g_string_append_printf(text, " %s", context_kind_name(plan->context));
}

char *plan_layout_text(const Plan *plan)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint axis = 0; axis < NUM_AXES; axis++)
        if (plan->layout.size[axis] > 1)
            append_axis(text, plan, (Axis)axis);
    if (text->len > 0 && layout_ep(&plan->layout) > 1)
        g_string_append_printf(text, " ep=%u", plan->layout.ep);
    return text->len > 0 ? g_strdup(text->str) : layout_text(&plan->layout);
}

char *plan_units_text(const Plan *plan)
{
    const Sharding *sharding = &plan->sharding;
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < sharding->num_overrides; i++) {
        const UnitOverride *entry = &sharding->overrides[i];
        g_autofree char *units = unit_override_units(entry);

        g_string_append_printf(text, "%s%s", i > 0 ? ", " : "", units);
        if (entry->strategy >= 0)
            g_string_append_printf(text, " %s", strategy_name((Strategy)entry->strategy));
        if (entry->keep >= 0)
            g_string_append(text, entry->keep != 0 ? " kept" : " not kept");
    }
    return text->len > 0 ? g_strdup(text->str) : NULL;
}

void plan_set_recompute(Plan *plan, Recompute recompute, const guint16 *layers, guint num)
{
    const guint pp = plan->layout.size[AXIS_PP];
    guint16 *by_stage = g_new(guint16, pp);

    g_assert(num <= 1 || num == pp);
    for (guint s = 0; s < pp; s++)
        by_stage[s] = num == 0 ? G_MAXUINT16 : layers[num == 1 ? 0 : s];
    schedule_set_recompute(&plan->schedule, recompute, by_stage, plan->model->layers, pp);
    g_free(plan->recompute_layers);
    plan->recompute_layers = by_stage;
}

char *plan_recompute_text(const Plan *plan)
{
    return schedule_recompute_text(&plan->schedule, plan->layout.size[AXIS_PP]);
}

ProgramSpec plan_spec(const Plan *plan)
{
    return (ProgramSpec){
        .model = plan->model,
        .workload = &plan->workload,
        .layout = plan->layout,
        .sharding = &plan->sharding,
        .schedule = plan->schedule,
        .sequence_parallel = plan->sequence_parallel,
        .context = plan->context,
        .device = plan->device,
        .threads = plan->threads,
        .patterns = plan->patterns,
    };
}

Choice plan_choice(const Plan *plan)
{
    return (Choice){
        .model = plan->model,
        .workload = &plan->workload,
        .layout = &plan->layout,
        .sharding = &plan->sharding,
        .schedule = &plan->schedule,
        .sequence_parallel = plan->sequence_parallel,
        .context = plan->context,
    };
}

ProgramSet *plan_compile(const Plan *plan, GError **error)
{
    const ProgramSpec spec = plan_spec(plan);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_autofree char *hash = program_set_hash(set);

    if (plan->hash != NULL && strcmp(hash, plan->hash) != 0) {
        fail(error, ERROR_INPUT,
             "%s: field \"program.hash\" = \"%.16s...\": the plan's choices compile to "
             "\"%.16s...\"; it was edited by hand or made by another version: make it again with "
             "fsdp-plan",
             plan->source == NULL ? "plan" : plan->source, plan->hash, hash);
        return NULL;
    }
    return g_steal_pointer(&set);
}
