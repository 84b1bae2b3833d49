#include "sim/search/plan.h"

#include "sim/base/error.h"

#include <string.h>

static const char *const time_term_names[NUM_TIME_TERMS] = {
    [TIME_GEMM] = "gemm",
    [TIME_ATTENTION] = "attention",
    [TIME_MEMORY_BOUND] = "memory_bound",
    [TIME_OPTIMIZER] = "optimizer",
    [TIME_COMMUNICATION] = "communication",
};

const char *time_term_name(TimeTerm term)
{
    return time_term_names[term];
}

TimeTerm time_term_of(OpKind kind)
{
    switch (kind) {
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_INPUT:
    case OP_LINEAR_BACKWARD_WEIGHT:
    case OP_HEAD_LOSS:
        return TIME_GEMM;
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD:
        return TIME_ATTENTION;
    case OP_SQUARED_NORM:
    case OP_CLIP:
    case OP_ADAMW:
    case OP_SGD:
        return TIME_OPTIMIZER;
    default:
        return op_kind_is_communication(kind) ? TIME_COMMUNICATION : TIME_MEMORY_BOUND;
    }
}

Plan *plan_new(void)
{
    Plan *plan = g_new0(Plan, 1);

    for (guint a = 0; a < NUM_AXES; a++)
        plan->layout.size[a] = 1;
    plan->reasons = g_ptr_array_new_with_free_func(g_free);
    return plan;
}

void plan_free(Plan *plan)
{
    if (plan == NULL)
        return;
    model_free(plan->model);
    topology_free(plan->topology);
    g_ptr_array_unref(plan->reasons);
    g_free(plan->hash);
    g_free(plan);
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
        .device = plan->device,
        .threads = plan->threads,
    };
}

ProgramSet *plan_compile(const Plan *plan, GError **error)
{
    const ProgramSpec spec = plan_spec(plan);
    g_autoptr(ProgramSet) set = program_compile(&spec);
    g_autofree char *hash = program_set_hash(set);

    if (plan->hash != NULL && strcmp(hash, plan->hash) != 0) {
        fail(error, ERROR_INPUT,
             "field \"program.hash\" = \"%.16s...\": the plan's choices compile to \"%.16s...\"; "
             "it was "
             "edited by hand or made by another version: make it again with fsdp-plan",
             plan->hash, hash);
        return NULL;
    }
    return g_steal_pointer(&set);
}
