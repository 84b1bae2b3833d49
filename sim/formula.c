#include "sim/formula.h"

#include <math.h>
#include <string.h>

const Program *formula_program(const Plan *plan, const ProgramSet *set)
{
    return set->classes[set->class_of[plan->prediction.rank]];
}

guint64 formula_parameters(const Program *program)
{
    guint64 elements = 0;

    for (guint u = 0; u < program->units->len; u++)
        elements += program_unit(program, u)->map->elements * program_unit(program, u)->count;
    return elements;
}

guint64 formula_parameters_of(const Program *program, gboolean experts)
{
    guint64 elements = 0;

    for (guint u = 0; u < program->units->len; u++)
        if ((program_unit(program, u)->kind == UNIT_EXPERTS) == experts)
            elements += program_unit(program, u)->map->elements * program_unit(program, u)->count;
    return elements;
}

guint formula_shard_ranks(const Plan *plan, gboolean experts)
{
    const Layout *layout = &plan->layout;

    return experts ? layout_expert_block(layout) / layout_ep(layout) : layout_shard_ranks(layout);
}

/* Of one unit; scales are of whole blocks. */
static double moments_bytes(Optimizer optimizer, double elements)
{
    const guint block = optimizer_moment_block(optimizer);

    return optimizer_moments(optimizer) *
           (block == 0 ? 4 * elements : elements + 4 * ceil(elements / block));
}

static double unit_state_bytes(const Plan *plan, const UnitClass *unit)
{
    const Recipe *recipe = plan->workload.recipe;
    const Strategy strategy = unit->strategy;
    const double d =
        strategy == STRATEGY_NO_SHARD ? 1 : formula_shard_ranks(plan, unit->kind == UNIT_EXPERTS);
    const gboolean whole = strategy == STRATEGY_SHARD_OPTIMIZER;
    const gboolean whole_gradients = whole || !plan->sharding.accumulate_sharded;
    const double elements = (double)unit->map->elements;

    return unit->count * (elements * (dtype_bytes(recipe->stored) / (whole ? 1 : d) +
                                      dtype_bytes(recipe->gradient) / (whole_gradients ? 1 : d) +
                                      (recipe->master ? 4 : 0) / d) +
                          moments_bytes(plan->workload.optimizer, elements / d));
}

double formula_state_bytes(const Plan *plan, const Program *program)
{
    double bytes = 0;

    for (guint u = 0; u < program->units->len; u++)
        bytes += unit_state_bytes(plan, program_unit(program, u));
    return bytes;
}

double formula_gather_bytes(const Plan *plan, const Program *program, gboolean experts)
{
    double bytes = 0;

    for (guint u = 0; u < program->units->len; u++) {
        const UnitClass *unit = program_unit(program, u);
        const DType dtype = unit->gathered == NO_TENSOR
                                ? plan->workload.recipe->compute
                                : program_tensor(program, (guint)unit->gathered)->dtype;

        if ((unit->kind == UNIT_EXPERTS) == experts)
            bytes += (double)(unit->map->elements * unit->count) * dtype_bytes(dtype);
    }
    return bytes;
}

/* How many times pp - 1 the work of a stage is that overlaps a bubble. */
static guint bubble_work(const Schedule *schedule)
{
    const guint backward_parts = schedule->kind == SCHEDULE_ZB_H1 ? 3 : 1;

    return schedule_virtual_stages(schedule) * backward_parts;
}

double formula_bubble(const Schedule *schedule, guint pp)
{
    const double waits = pp - 1;

    return waits / (bubble_work(schedule) * schedule->micro_batches + waits);
}

char *formula_bubble_text(const Schedule *schedule, guint pp)
{
    const guint work = bubble_work(schedule), micro_batches = schedule->micro_batches;

    if (work == 1)
        return g_strdup_printf("(p - 1) / (m + p - 1) = %u / (%u + %u)", pp - 1, micro_batches,
                               pp - 1);
    return g_strdup_printf("(p - 1) / (%s m + p - 1) = %u / (%u x %u + %u)",
                           schedule->kind == SCHEDULE_ZB_H1 ? "3" : "v", pp - 1, work,
                           micro_batches, pp - 1);
}

guint64 formula_handed_bytes(const Plan *plan)
{
    const guint *size = plan->layout.size;
    const guint64 tokens =
        (guint64)plan->schedule.micro_batch * (plan->workload.seq_len / size[AXIS_CP]);

    return tokens / (plan->sequence_parallel ? size[AXIS_TP] : 1) * plan->model->hidden *
           dtype_bytes(plan->workload.recipe->compute);
}

guint formula_neighbours(const Plan *plan, guint stage)
{
    const guint pp = plan->layout.size[AXIS_PP];
    const guint chunks = schedule_chunks(&plan->schedule, pp);
    guint neighbours = 0;

    for (guint c = stage; c < chunks; c += pp)
        neighbours += (c > 0 ? 1u : 0u) + (c + 1 < chunks ? 1u : 0u);
    return neighbours;
}
