/* Plans of what a case chooses. */
#pragma once

#include "sim/search/price.h"
#include "tests/sim/spec_case.h"

/* Not priced yet; its model, one of case_model()'s, is another.  Takes @topology. */
static inline Plan *case_plan(const Case *from, Topology *topology)
{
    const Model *model = from->model;
    const CaseShape shape = {model->vocab, model->hidden,   model->ffn, model->layers,
                             model->heads, model->kv_heads, model->tied};
    const Schedule *schedule = &from->schedule;
    const guint pp = from->layout.size[AXIS_PP];
    Plan *plan = plan_new();

    plan->model = case_model(&shape);
    plan->topology = topology;
    plan->workload = from->workload;
    plan->layout = from->layout;
    plan->sharding = from->sharding;
    plan->schedule = *schedule;
    plan->sequence_parallel = from->sequence_parallel;
    plan->context = from->context;
    if (schedule->chunk_layers != NULL)
        plan->schedule.chunk_layers = plan->chunk_layers =
            g_memdup2(schedule->chunk_layers, schedule_chunks(schedule, pp) * sizeof(guint16));
    if (schedule_has_rest(schedule))
        plan_set_recompute(plan, schedule->recompute, schedule->recompute_layers, pp);
    plan_set_target(plan);
    return plan;
}
