#include "sim/explain_cost.h"

#include "sim/base/text.h"
#include "sim/formula.h"
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

/* Of a rank of one stage. */
typedef struct {
    guint64 memory_bytes;
    double compute_s, waits_s; /* the second: communication that shows, and waiting */
} StageCost;

static StageCost stage_cost(const Plan *plan, const ProgramSet *set, guint stage)
{
    const StageTime *time = &g_array_index(plan->stages, StageTime, stage);

    return (StageCost){
        .memory_bytes = set->classes[stage]->memory.total + plan_framework_bytes(plan),
        .compute_s = compute_seconds(time),
        .waits_s = time->time_seconds[OP_CLASS_COMMUNICATION],
    };
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
        const StageCost cost = stage_cost(plan, set, s);
        g_autofree char *holds = stage_holds(plan, s);
        g_autofree char *memory = bytes_text(cost.memory_bytes);
        g_autofree char *compute = seconds_text(cost.compute_s);
        g_autofree char *waits = seconds_text(cost.waits_s);

        g_print("  %3u  %-*s %10s %10s %10s%s\n", s, (gint)width, holds, memory, compute, waits,
                s == planned_stage(plan) ? "  <- most memory: figures of a rank are of these" : "");
    }
}

static JsonArray *stages_answer(const Plan *plan, const ProgramSet *set)
{
    JsonArray *stages = json_array_new();

    for (guint s = 0; s < set->num_classes; s++) {
        const StageCost cost = stage_cost(plan, set, s);
        g_autofree char *holds = stage_holds(plan, s);
        JsonObject *stage = json_object_new();

        json_object_set_int_member(stage, "stage", s);
        json_object_set_string_member(stage, "holds", holds);
        json_object_set_int_member(stage, "memory_bytes", (gint64)cost.memory_bytes);
        json_object_set_double_member(stage, "compute_seconds", cost.compute_s);
        json_object_set_double_member(stage, "waiting_seconds", cost.waits_s);
        json_object_set_boolean_member(stage, "most_memory", s == planned_stage(plan));
        json_array_add_object_element(stages, stage);
    }
    return stages;
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

static JsonObject *bubble_answer(const Plan *plan)
{
    const guint pp = plan->layout.size[AXIS_PP];
    g_autofree char *formula = formula_bubble_text(&plan->schedule, pp);
    JsonObject *bubble = json_object_new();

    json_object_set_string_member(bubble, "formula", formula);
    json_object_set_double_member(bubble, "formula_fraction", formula_bubble(&plan->schedule, pp));
    json_object_set_double_member(bubble, "simulated_fraction", plan->prediction.bubble_fraction);
    json_object_set_int_member(bubble, "stage", planned_stage(plan));
    return bubble;
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
typedef struct {
    const Op *op; /* that one; NULL: none needs any */
    guint64 bytes;
} Scratch;

static Scratch scratch_of(const Plan *plan, const Program *program)
{
    Scratch most = {0};

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];
            const guint64 needs =
                uses_scratch(program, op) ? op_workspace_bytes(op, plan->device, plan->threads) : 0;

            if (needs > most.bytes)
                most = (Scratch){op, needs};
        }
    }
    return most;
}

static gboolean by_library(const Plan *plan, const Scratch *scratch)
{
    return plan->device == DEVICE_CUDA && op_library_attention(scratch->op);
}

static void print_scratch(const Plan *plan, const Program *program)
{
    const Scratch scratch = scratch_of(plan, program);

    if (scratch.op == NULL)
        return;
    g_autofree char *text = bytes_text(scratch.bytes);
    g_print("  workspace: of it %s are scratch, for %s%s\n", text, op_kind_name(scratch.op->kind),
            by_library(plan, &scratch)
                ? " by cuDNN (4 N H D + 4 N H + 4 N H D, and 4 N H D where heads share keys)"
                : "");
}

/* NULL: none. */
static JsonObject *scratch_answer(const Plan *plan, const Program *program)
{
    const Scratch scratch = scratch_of(plan, program);

    if (scratch.op == NULL)
        return NULL;
    JsonObject *object = json_object_new();
    json_object_set_int_member(object, "bytes", (gint64)scratch.bytes);
    json_object_set_string_member(object, "op", op_kind_name(scratch.op->kind));
    json_object_set_boolean_member(object, "cudnn", by_library(plan, &scratch));
    return object;
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

/* The table of DESIGN 4 for this plan's strategy, before padding: bytes a parameter, and how many
 * ranks share it. */
typedef struct {
    guint64 psi, experts_psi;
    guint d, experts_d;
    guint stored, gradient;
    double rest; /* master and moments */
    gboolean whole_parameters, whole_gradients;
    guint64 bytes, unsharded_bytes;
} StateCost;

static StateCost state_cost(const Plan *plan, const Program *program)
{
    const Recipe *recipe = plan->workload.recipe;
    const gboolean shards = plan->sharding.strategy != STRATEGY_NO_SHARD;
    const gboolean zero1 = plan->sharding.strategy == STRATEGY_SHARD_OPTIMIZER;
    StateCost cost = {
        .psi = formula_parameters(program),
        .experts_psi = formula_parameters_of(program, TRUE),
        .d = shards ? layout_shard_ranks(&plan->layout) : 1,
        .experts_d = shards ? formula_shard_ranks(plan, TRUE) : 1,
        .stored = dtype_bytes(recipe->stored),
        .gradient = dtype_bytes(recipe->gradient),
        .rest = (recipe->master ? 4 : 0) + optimizer_bytes_per_parameter(plan->workload.optimizer),
        .whole_parameters = zero1,
        .whole_gradients = zero1 || !plan->sharding.accumulate_sharded,
        .bytes = (guint64)formula_state_bytes(plan, program),
    };

    cost.unsharded_bytes = (guint64)((double)cost.psi * (cost.stored + cost.gradient + cost.rest));
    return cost;
}

static guint held_experts(const Plan *plan)
{
    return plan->model->experts.count / layout_ep(&plan->layout);
}

static void print_state(const Plan *plan, const Program *program)
{
    const StateCost cost = state_cost(plan, program);
    g_autofree char *state = bytes_text(cost.bytes);
    g_autofree char *whole = bytes_text(cost.unsharded_bytes);
    g_autofree char *rank = whose(plan);

    g_print("\nstate, by formula: Psi = %" G_GUINT64_FORMAT " parameters (%s", cost.psi, rank);
    if (plan->layout.size[AXIS_PP] > 1 || plan->layout.size[AXIS_TP] > 1)
        g_print("; the model has %" G_GUINT64_FORMAT, model_parameters(plan->model));
    g_print("), d = %u; %u + %u + %g bytes a parameter (parameter, gradient, master and moments)\n"
            "  %s%s%s%s: %s a rank (unsharded: %s)\n",
            cost.d, cost.stored, cost.gradient, cost.rest,
            cost.whole_parameters ? "parameters whole, " : "parameters / d, ",
            cost.whole_gradients ? "gradients whole, " : "gradients / d, ", "the rest / d",
            plan->sharding.num_overrides > 0 ? ", units of sharding.units as they say" : "", state,
            whole);
    if (plan->model->experts.count > 0)
        g_print("  of them %" G_GUINT64_FORMAT " of the %u experts a block that it holds, d = %u\n",
                cost.experts_psi, held_experts(plan), cost.experts_d);
}

static JsonObject *experts_answer(const Plan *plan, const StateCost *cost)
{
    JsonObject *experts = json_object_new();

    json_object_set_int_member(experts, "parameters", (gint64)cost->experts_psi);
    json_object_set_int_member(experts, "held", held_experts(plan));
    json_object_set_int_member(experts, "d", cost->experts_d);
    return experts;
}

static JsonObject *state_answer(const Plan *plan, const Program *program)
{
    const StateCost cost = state_cost(plan, program);
    JsonObject *state = json_object_new(), *each = json_object_new();

    json_object_set_double_member(each, "parameter", cost.stored);
    json_object_set_double_member(each, "gradient", cost.gradient);
    json_object_set_double_member(each, "master_and_moments", cost.rest);
    json_object_set_int_member(state, "rank", plan->prediction.rank);
    json_object_set_int_member(state, "parameters", (gint64)cost.psi);
    json_object_set_int_member(state, "d", cost.d);
    json_object_set_object_member(state, "bytes_per_parameter", each);
    json_object_set_boolean_member(state, "whole_parameters", cost.whole_parameters);
    json_object_set_boolean_member(state, "whole_gradients", cost.whole_gradients);
    json_object_set_int_member(state, "bytes", (gint64)cost.bytes);
    json_object_set_int_member(state, "unsharded_bytes", (gint64)cost.unsharded_bytes);
    if (plan->model->experts.count > 0)
        json_object_set_object_member(state, "experts", experts_answer(plan, &cost));
    return state;
}

void explain_cost_print(const Plan *plan, const ProgramSet *set)
{
    const Program *program = formula_program(plan, set);

    if (plan->layout.size[AXIS_PP] > 1) {
        print_stages(plan, set);
        print_bubble(plan);
    }
    print_state(plan, program);
    print_scratch(plan, program);
}

void explain_cost_answer(const Plan *plan, const ProgramSet *set, JsonObject *answer)
{
    const Program *program = formula_program(plan, set);
    JsonObject *scratch = scratch_answer(plan, program);

    if (plan->layout.size[AXIS_PP] > 1) {
        json_object_set_array_member(answer, "stages", stages_answer(plan, set));
        json_object_set_object_member(answer, "bubble", bubble_answer(plan));
    }
    json_object_set_object_member(answer, "state", state_answer(plan, program));
    if (scratch != NULL)
        json_object_set_object_member(answer, "scratch", scratch);
}
