/* Where a plan runs, and what memory a rank has there. */
#include "sim/search/price.h"

/* Driver's view of a GPU process beside its own tensors: CUDA context, NCCL buffers, cuBLAS
 * workspace. 3.5 GB reproduces the driver's figures of Megatron-DeepSpeed runs (BLOOM, 41 rows) to
 * 5%; it is replaced by framework_memory of a calibrated topology. */
static const guint64 CUDA_FRAMEWORK_BYTES = G_GUINT64_CONSTANT(3500000000);

/* A rank of fsdp-run before its arena exists: shared libraries, MPI, BLAS buffers; nominal,
 * replaced by calibration. */
static const guint64 CPU_FRAMEWORK_BYTES = 64u << 20;

void plan_set_target(Plan *plan)
{
    const Topology *topology = plan->topology;
    const guint world = layout_world(&plan->layout);

    plan->gpus = world;
    plan->device = topology->gpu.kind;
    if (plan->device == DEVICE_CUDA) {
        plan->ranks_per_node = MIN(world, topology->gpus_per_node);
        plan->threads = 1;
        return;
    }
    plan->ranks_per_node = (world + topology->nodes - 1) / topology->nodes;
    plan->threads = MAX(1, topology->gpus_per_node / plan->ranks_per_node);
}

SimulateContext plan_context(const Plan *plan)
{
    return (SimulateContext){
        .topology = plan->topology,
        .ranks_per_node = plan->ranks_per_node,
        .threads = plan->threads,
        .framework = plan->framework,
    };
}

guint64 plan_framework_bytes(const Plan *plan)
{
    const Measured *measured = &plan->topology->measured;
    const guint64 bytes = layout_world(&plan->layout) == 1 ? measured->framework_alone_bytes
                                                           : measured->framework_bytes;

    if (plan->framework != NULL && plan->framework->process_bytes > 0)
        return (guint64)plan->framework->process_bytes;
    if (bytes != 0)
        return bytes;
    return plan->device == DEVICE_CUDA ? CUDA_FRAMEWORK_BYTES : CPU_FRAMEWORK_BYTES;
}

guint64 plan_memory_limit(const Plan *plan)
{
    const guint64 bytes = plan->topology->gpu.memory_bytes;

    return plan->device == DEVICE_CUDA ? bytes : bytes / plan->ranks_per_node;
}

guint64 plan_floor_limit(const Plan *plan)
{
    const guint64 limit_bytes = plan_memory_limit(plan);

    return limit_bytes - MIN(plan_framework_bytes(plan), limit_bytes);
}

double plan_memory_error(const Plan *plan)
{
    return framework_is_foreign(plan->framework) ? 0.10 : 0.02;
}

gboolean plan_is_tight(const Plan *plan)
{
    const double total = (double)plan->prediction.memory_total;
    const double limit = (double)plan->prediction.memory_limit;

    return total <= limit && total * (1 + plan_memory_error(plan)) > limit;
}
