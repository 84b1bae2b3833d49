#include "sim/explain_memory.h"

#include "sim/base/text.h"
#include "sim/cost/framework.h"
#include "sim/program/place.h"
#include "sim/search/price.h"

/* Of the rank that the plan's figures are of. */
static const Program *planned_program(const Plan *plan, const ProgramSet *set)
{
    const guint stage_ranks = plan->gpus / plan->layout.size[AXIS_PP];

    return set->classes[plan->prediction.rank / stage_ranks];
}

static guint64 memory_of(const Program *program, TensorKind kind)
{
    guint64 bytes = 0;

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->kind == kind && tensor->persistence == PERSIST_STATE)
            bytes += tensor_bytes(program, tensor);
    }
    return bytes;
}

/* What can't be made again, in whatever tier it lives: the master, or the parameter where there is
 * none, and the moments.  A copy of it on the host lets training go on while it is written. */
static guint64 saved_bytes(const Program *program, const Plan *plan)
{
    return memory_of(program, plan->workload.recipe->master ? TENSOR_MASTER : TENSOR_PARAMETER) +
           memory_of(program, TENSOR_MOMENT);
}

/* torch.cuda.memory_allocated, memory_reserved and nvidia-smi show as much of other programs. */
static void print_views(const Plan *plan, const Program *program)
{
    const guint64 beside = plan->prediction.memory_bytes[TERM_FRAMEWORK];
    g_autofree char *live = bytes_text(program->memory.live_peak);
    g_autofree char *arena = bytes_text(plan->prediction.memory_total - beside);
    g_autofree char *driver = bytes_text(plan->prediction.memory_total);
    g_autofree char *framework = bytes_text(beside);

    g_print(
        "\nthree views of that peak: tensors alive (allocated) %s, arena (reserved) %s, process "
        "(as the driver counts) %s: %s of context, libraries and buffers of the transport\n",
        live, arena, driver, framework);
}

static void print_device_row(const char *when, guint64 bytes, guint64 beside, const char *what)
{
    g_autofree char *total = bytes_text(bytes + beside);

    g_print("  %-24s %10s  %s\n", when, total, what);
}

static void print_moments(const Plan *plan, const Program *program)
{
    const guint64 beside = plan->prediction.memory_bytes[TERM_FRAMEWORK];
    const guint64 state = program_state_bytes(program);
    guint64 peak[NUM_PHASES];

    program_phase_peaks(program, peak);
    g_print("\nwhat a rank needs when, if nothing else were reserved\n");
    print_device_row("load", state, beside, "state: filled where it stays");
    print_device_row("forward and backward", peak[PHASE_PASSES], beside, "");
    print_device_row("optimiser step", peak[PHASE_OPTIMIZER], beside, "");
    print_device_row("checkpoint save", state, beside, "state; its copy is the host's");
}

/* Of a node: what lives there, and one checkpoint on its way to storage. */
static void print_host(const Plan *plan, const Program *program)
{
    const guint ranks = MIN(plan->ranks_per_node, plan->gpus);
    const guint64 tier = plan->arena_bytes[TIER_HOST], copy = saved_bytes(program, plan);
    const guint64 has = plan->topology->cpu_memory_bytes;
    g_autofree char *tier_text = bytes_text(tier), *copy_text = bytes_text(copy);
    g_autofree char *node = bytes_text(ranks * (tier + copy)), *has_text = bytes_text(has);

    if (plan->device != DEVICE_CUDA)
        return;
    g_print("  host memory of a node: %u ranks x (%s that live there + %s to copy a checkpoint to "
            "while training goes on) = %s",
            ranks, tier_text, copy_text, node);
    if (has > 0)
        g_print(" of %s%s", has_text,
                ranks * (tier + copy) > has ? ": save without a copy, or from fewer ranks at a time"
                                            : "");
    g_print("\n");
}

void explain_memory_print(const Plan *plan, const ProgramSet *set)
{
    const Program *program = planned_program(plan, set);

    if (framework_is_foreign(plan->framework))
        return;
    print_views(plan, program);
    print_moments(plan, program);
    print_host(plan, program);
}
