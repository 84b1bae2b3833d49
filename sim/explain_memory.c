#include "sim/explain_memory.h"

#include "sim/base/text.h"
#include "sim/cost/framework.h"
#include "sim/formula.h"
#include "sim/program/place.h"
#include "sim/search/price.h"

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

/* Of a rank; and of a node what lives on its host beside a checkpoint on its way to storage. */
typedef struct {
    guint64 live, arena, process, beside; /* three views of the peak, and what the last adds */
    guint64 load, passes, optimizer, save;
    guint64 whole; /* the model's part before it is sharded, in 16 bits */
    guint host_ranks;
    guint64 host_tier, host_copy, host_has; /* of one rank, the same, of a node (0: not stated) */
} PeakViews;

static PeakViews views_of(const Plan *plan, const Program *program)
{
    const guint64 beside = plan->prediction.memory_bytes[TERM_FRAMEWORK];
    const guint64 state = program_state_bytes(program) + beside;
    guint64 peak[NUM_PHASES];

    program_phase_peaks(program, peak);
    return (PeakViews){
        .live = program->memory.live_peak,
        .arena = plan->prediction.memory_total - beside,
        .process = plan->prediction.memory_total,
        .beside = beside,
        .load = state,
        .passes = peak[PHASE_PASSES] + beside,
        .optimizer = peak[PHASE_OPTIMIZER] + beside,
        .save = state,
        .whole = 2 * formula_parameters(program),
        .host_ranks = MIN(plan->ranks_per_node, plan->gpus),
        .host_tier = plan->arena_bytes[TIER_HOST],
        .host_copy = saved_bytes(program, plan),
        .host_has = plan->topology->cpu_memory_bytes,
    };
}

static guint64 host_bytes(const PeakViews *of)
{
    return of->host_ranks * (of->host_tier + of->host_copy);
}

/* ---- text ---- */

/* Of what a process needs beside its tensors. */
static const char *beside_origin(const Plan *plan)
{
    const Measured *measured = &plan->topology->measured;

    if ((plan->gpus == 1 ? measured->framework_alone_bytes : measured->framework_bytes) != 0)
        return "measured: framework_memory of the topology";
    return plan->device == DEVICE_CUDA
               ? "nominal, as the driver shows of published runs; fsdp-run calibrate measures it"
               : "nominal; fsdp-run calibrate measures it";
}

/* torch.cuda.memory_allocated, memory_reserved and nvidia-smi show as much of other programs. */
static void print_views(const Plan *plan, const PeakViews *of)
{
    g_autofree char *live = bytes_text(of->live);
    g_autofree char *arena = bytes_text(of->arena);
    g_autofree char *driver = bytes_text(of->process);
    g_autofree char *framework = bytes_text(of->beside);

    g_print(
        "\nthree views of that peak: tensors alive (allocated) %s, arena (reserved) %s, process "
        "(as the driver counts) %s: %s of context, libraries and buffers of the transport (%s)\n",
        live, arena, driver, framework, beside_origin(plan));
}

static void print_device_row(const char *when, guint64 bytes, const char *what)
{
    g_autofree char *total = bytes_text(bytes);

    g_print("  %-24s %10s  %s\n", when, total, what);
}

static void print_moments(const PeakViews *of)
{
    g_print("\nwhat a rank needs when, if nothing else were reserved\n");
    g_autofree char *whole = bytes_text(of->whole);
    g_autofree char *load =
        g_strdup_printf("state: filled where it stays; no rank and no host loads a copy of the "
                        "model (%s in 16 bits) first",
                        whole);
    print_device_row("load", of->load, load);
    print_device_row("forward and backward", of->passes, "");
    print_device_row("optimiser step", of->optimizer, "");
    print_device_row("checkpoint save", of->save, "state; its copy is the host's");
}

static void print_host(const PeakViews *of)
{
    g_autofree char *tier = bytes_text(of->host_tier), *copy = bytes_text(of->host_copy);
    g_autofree char *node = bytes_text(host_bytes(of)), *has = bytes_text(of->host_has);

    g_print("  host memory of a node: %u ranks x (%s that live there + %s to copy a checkpoint to "
            "while training goes on) = %s",
            of->host_ranks, tier, copy, node);
    if (of->host_has > 0)
        g_print(" of %s%s", has,
                host_bytes(of) > of->host_has
                    ? ": save without a copy, or from fewer ranks at a time"
                    : "");
    g_print("\n");
}

void explain_memory_print(const Plan *plan, const ProgramSet *set)
{
    if (framework_is_foreign(plan->framework))
        return;
    const PeakViews of = views_of(plan, formula_program(plan, set));
    print_views(plan, &of);
    print_moments(&of);
    if (plan->device == DEVICE_CUDA)
        print_host(&of);
}

/* ---- JSON ---- */

static JsonObject *host_answer(const PeakViews *of)
{
    JsonObject *host = json_object_new();

    json_object_set_int_member(host, "ranks", of->host_ranks);
    json_object_set_int_member(host, "tier_bytes", (gint64)of->host_tier);
    json_object_set_int_member(host, "checkpoint_bytes", (gint64)of->host_copy);
    json_object_set_int_member(host, "needs_bytes", (gint64)host_bytes(of));
    if (of->host_has > 0)
        json_object_set_int_member(host, "has_bytes", (gint64)of->host_has);
    return host;
}

void explain_memory_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer)
{
    if (framework_is_foreign(plan->framework))
        return;
    const PeakViews of = views_of(plan, formula_program(plan, set));
    JsonObject *memory = json_object_new();

    json_object_set_int_member(memory, "allocated_bytes", (gint64)of.live);
    json_object_set_int_member(memory, "reserved_bytes", (gint64)of.arena);
    json_object_set_int_member(memory, "process_bytes", (gint64)of.process);
    json_object_set_int_member(memory, "load_bytes", (gint64)of.load);
    json_object_set_int_member(memory, "passes_bytes", (gint64)of.passes);
    json_object_set_int_member(memory, "optimizer_bytes", (gint64)of.optimizer);
    json_object_set_int_member(memory, "save_bytes", (gint64)of.save);
    if (plan->device == DEVICE_CUDA)
        json_object_set_object_member(memory, "host", host_answer(&of));
    json_object_set_object_member(answer, "memory", memory);
}
