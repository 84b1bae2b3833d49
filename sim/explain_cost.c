#include "sim/explain_cost.h"

#include "sim/base/text.h"
#include "sim/formula.h"
#include "sim/layout/tensor_parallel.h"
#include "sim/search/price.h"
#include "sim/table.h"

#include <string.h>

/* ---- stages ---- */

static char *stage_holds(const Plan *plan, guint stage)
{
    g_autofree char *layers = table_stage_layers(plan, stage);

    return g_strconcat(layers, stage == 0 ? ", embedding" : "",
                       stage + 1 == plan->layout.size[AXIS_PP] ? ", head" : "", NULL);
}

static guint planned_stage(const Plan *plan)
{
    return plan->prediction.rank / (plan->gpus / plan->layout.size[AXIS_PP]);
}

static double compute_seconds(const StageTime *time)
{
    double seconds = 0;

    for (guint t = 0; t < NUM_OP_CLASSES; t++)
        seconds += t == OP_CLASS_COMMUNICATION ? 0 : time->time_seconds[t];
    return seconds;
}

static void print_stages(const Plan *plan, const ProgramSet *set)
{
    gsize width = 0;

    for (guint s = 0; s < set->num_classes; s++) {
        g_autofree char *holds = stage_holds(plan, s);

        width = MAX(width, strlen(holds));
    }
    g_print("\nstages: layers, memory of a rank, compute, communication that shows and waiting\n");
    for (guint s = 0; s < set->num_classes; s++) {
        const StageTime *time = &g_array_index(plan->stages, StageTime, s);
        g_autofree char *holds = stage_holds(plan, s);
        g_autofree char *memory =
            bytes_text(set->classes[s]->memory.total + plan_framework_bytes(plan));
        g_autofree char *compute = seconds_text(compute_seconds(time));
        g_autofree char *waits = seconds_text(time->time_seconds[OP_CLASS_COMMUNICATION]);

        g_print("  %3u  %-*s %10s %10s %10s%s\n", s, (gint)width, holds, memory, compute, waits,
                s == planned_stage(plan) ? "  <- most memory: figures of a rank are of these" : "");
    }
}

static void print_bubble(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree char *formula = formula_bubble_text(&plan->schedule, pp);

    g_print("\nbubble, by formula: %s = %.1f%% of the step, p = %u stages, m = %u micro-batches%s; "
            "simulated %.1f%% on stage %u, which also waits for slower stages\n",
            formula, 100 * formula_bubble(&plan->schedule, pp), pp, plan->schedule.micro_batches,
            plan->schedule.kind == SCHEDULE_INTERLEAVED ? ", v chunks a stage" : "",
            100 * plan->prediction.bubble_fraction, planned_stage(plan));
}

/* ---- scratch ---- */

static gboolean uses_scratch(const Program *program, const Op *op)
{
    for (guint i = 0; i < op->num_operands; i++)
        if (strcmp(program_tensor(program, op->operands[i].tensor)->name, "scratch") == 0)
            return TRUE;
    return FALSE;
}

/* All ops share it: it is what the most demanding one may need. */
static void print_scratch(const Plan *plan, const Program *program)
{
    const Op *most = NULL;
    guint64 bytes = 0;

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];
            const guint64 needs =
                uses_scratch(program, op) ? op_workspace_bytes(op, plan->device, plan->threads) : 0;

            most = needs > bytes ? op : most;
            bytes = MAX(bytes, needs);
        }
    }
    if (most == NULL)
        return;
    g_autofree char *text = bytes_text(bytes);
    const gboolean library = plan->device == DEVICE_CUDA && op_library_attention(most);
    g_print("  workspace: of it %s are scratch, for %s%s\n", text, op_kind_name(most->kind),
            library ? " by cuDNN (4 N H D + 4 N H + 4 N H D, and 4 N H D where heads share keys)"
                    : "");
}

/* ---- state ---- */

/* "rank 8 (stage 1 of 4, its part of each matrix of 2)" */
static char *whose(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP], tp = plan->layout.size[AXIS_TP];
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "rank %u", plan->prediction.rank);
    if (pp > 1)
        g_string_append_printf(text, ", stage %u of %u", planned_stage(plan), pp);
    if (tp > 1)
        g_string_append_printf(text, ", one of %u parts of each matrix", tp);
    return g_string_free(text, FALSE);
}

/* The table of DESIGN 4 for this plan's strategy, before padding. */
static void print_state(const Plan *plan, const Program *program)
{
    const Recipe *recipe = plan->workload.recipe;
    const double psi = (double)formula_parameters(program);
    const guint d =
        plan->sharding.strategy == STRATEGY_NO_SHARD ? 1 : layout_shard_ranks(&plan->layout);
    const guint stored = dtype_bytes(recipe->stored), gradient = dtype_bytes(recipe->gradient);
    const double rest =
        (recipe->master ? 4 : 0) + optimizer_bytes_per_parameter(plan->workload.optimizer);
    const gboolean zero1 = plan->sharding.strategy == STRATEGY_SHARD_OPTIMIZER;
    const gboolean whole_gradients = zero1 || !plan->sharding.accumulate_sharded;
    g_autofree char *state = bytes_text((guint64)formula_state_bytes(plan, program));
    g_autofree char *whole = bytes_text((guint64)(psi * (stored + gradient + rest)));
    g_autofree char *rank = whose(plan);

    g_print("\nstate, by formula: Psi = %.0f parameters (%s", psi, rank);
    if (plan->layout.size[AXIS_PP] > 1 || plan->layout.size[AXIS_TP] > 1)
        g_print("; the model has %" G_GUINT64_FORMAT, model_parameters(plan->model));
    g_print("), d = %u; %u + %u + %g bytes a parameter (parameter, gradient, master and moments)\n"
            "  %s%s%s%s: %s a rank (unsharded: %s)\n",
            d, stored, gradient, rest, zero1 ? "parameters whole, " : "parameters / d, ",
            whole_gradients ? "gradients whole, " : "gradients / d, ", "the rest / d",
            plan->sharding.num_overrides > 0 ? ", units of sharding.units as they say" : "", state,
            whole);
    if (plan->model->experts.count > 0)
        g_print("  of them %" G_GUINT64_FORMAT " of the %u experts a block that it holds, d = %u\n",
                formula_parameters_of(program, TRUE),
                plan->model->experts.count / layout_ep(&plan->layout),
                plan->sharding.strategy == STRATEGY_NO_SHARD ? 1 : formula_shard_ranks(plan, TRUE));
}

/* ---- volume ---- */

/* What a group of ranks moves, told as so many times a unit. */
typedef struct {
    const char *purpose, *unit;
    guint ranks;
    double unit_bytes, per;
    const char *per_text;
} Traffic;

static void print_traffic(const Program *program, const Traffic *traffic)
{
    guint64 received[NUM_VOLUMES];
    g_autofree char *unit = bytes_text((guint64)traffic->unit_bytes);
    const char *separator = "; ";

    if (traffic->ranks == 1)
        return;
    formula_received(program, traffic->purpose, received);
    g_print("  %-9s %4u ranks: %s = %s", traffic->purpose, traffic->ranks, traffic->unit, unit);
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        if (received[v] == 0)
            continue;
        g_print("%s%s %.4g", separator, volume_name((Volume)v),
                (double)received[v] / traffic->unit_bytes / traffic->per);
        separator = ", ";
    }
    g_print(" times that%s\n", traffic->per_text);
}

/* Parameters and gradients between data-parallel ranks: of experts, or of all else. */
static void print_data_traffic(const Plan *plan, const Program *program, gboolean experts)
{
    const Recipe *recipe = plan->workload.recipe;
    const guint d = formula_shard_ranks(plan, experts);
    const guint r = plan->layout.size[AXIS_DP_REPLICATE], n = r * d;
    const double psi = (double)formula_parameters_of(program, experts);
    const double other = (double)formula_parameters_of(program, !experts);
    const double other_d = formula_shard_ranks(plan, !experts);
    const guint reduced = dtype_bytes(recipe->reduce);
    const double gradient = psi * reduced;
    const double shards_bytes = (psi / d + other / other_d) * reduced;
    const gboolean shards = plan->sharding.strategy != STRATEGY_NO_SHARD;
    const double whole = formula_gather_bytes(plan, program, experts);
    g_autofree char *reduction =
        reduced == whole / psi ? NULL : g_strdup_printf(" (a reduction: %u Psi)", reduced);
    g_autofree char *gather = g_strdup_printf("a gather of everything, %.4g Psi (n-1)/n%s",
                                              whole / psi, reduction == NULL ? "" : reduction);
    g_autofree char *shard = g_strdup_printf("all gradient shards, %u Psi/d (n-1)/n", reduced);
    g_autofree char *all = g_strdup_printf("all gradients, %u Psi (n-1)/n", reduced);
    const Traffic traffic[] = {
        {experts ? "expert_shard" : "shard", gather, shards ? d : 1, whole * (d - 1) / d, 1, ""},
        {"replicate", shard, shards && !experts ? r : 1, shards_bytes * (r - 1) / r, 1, ""},
        {experts ? "expert_data" : "data", all, shards ? 1 : n, gradient * (n - 1) / n, 1, ""},
    };

    for (guint i = 0; i < G_N_ELEMENTS(traffic); i++)
        print_traffic(program, &traffic[i]);
}

static guint stage_units(const Program *program, UnitKind kind)
{
    guint units = 0;

    for (guint u = 0; u < program->units->len; u++)
        units += program_unit(program, u)->kind == kind ? program_unit(program, u)->count : 0;
    return units;
}

/* Activations, within a block and between stages. */
static void print_activation_traffic(const Plan *plan, const Program *program)
{
    const guint *size = plan->layout.size;
    const guint tp = size[AXIS_TP], cp = size[AXIS_CP], m = plan->schedule.micro_batches;
    const Model local = tensor_parallel_model(plan->model, tp);
    const double tokens = (double)plan->schedule.micro_batch * (plan->workload.seq_len / cp);
    const double element = dtype_bytes(plan->workload.recipe->compute);
    const guint sparse = stage_units(program, UNIT_SPARSE), ep = layout_ep(&plan->layout);
    const double each_block = (double)(stage_units(program, UNIT_BLOCK) + sparse) * m;
    const double routed = tokens / tp * plan->model->experts.top_k;
    const Traffic traffic[] = {
        {"tp", "an activation, N C (n-1)/n elements", tp,
         element * tokens * plan->model->hidden * (tp - 1) / tp, each_block,
         " a block and micro-batch (embedding and head included)"},
        {"cp", "keys and values of the others, 2 N K (n-1) elements", cp,
         element * tokens * local.kv_heads * (local.head_dim + (double)model_value_dim(&local)) *
             (cp - 1),
         each_block, " a block and micro-batch"},
        {"ep", "a row for each expert that a token visits, k N C/tp (n-1)/n elements", ep,
         element * routed * plan->model->hidden * (ep - 1) / ep, (double)sparse * m,
         " a block and micro-batch (the rows' weights included)"},
        {"pp",
         plan->sequence_parallel && tp > 1 ? "what a chunk hands on, N C/tp elements"
                                           : "what a chunk hands on, N C elements",
         size[AXIS_PP], (double)formula_handed_bytes(plan), m,
         " a micro-batch: the chunks before and after this stage's"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(traffic); i++)
        print_traffic(program, &traffic[i]);
}

static void print_volume(const Plan *plan, const Program *program)
{
    if (plan->gpus == 1)
        return;
    g_print("\nvolume of rank %u, by formula: received by group of n ranks; N = tokens of a "
            "micro-batch on a rank, C = hidden size, K = width of its keys\n",
            plan->prediction.rank);
    print_data_traffic(plan, program, FALSE);
    if (plan->model->experts.count > 0)
        print_data_traffic(plan, program, TRUE);
    print_activation_traffic(plan, program);
}

void explain_cost_print(const Plan *plan, const ProgramSet *set)
{
    const Program *program = set->classes[set->class_of[plan->prediction.rank]];

    if (plan->layout.size[AXIS_PP] > 1) {
        print_stages(plan, set);
        print_bubble(plan);
    }
    print_state(plan, program);
    print_scratch(plan, program);
    print_volume(plan, program);
}
