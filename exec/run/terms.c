#include "exec/run/terms.h"

#include "reports/store/store.h"

#include <math.h>
#include <string.h>

gboolean terms_is_state(MemoryTerm term)
{
    return term == TERM_PARAMETERS || term == TERM_GRADIENTS || term == TERM_MASTER ||
           term == TERM_OPTIMIZER;
}

void terms_take_times(Terms *terms, const Program *program, const OpTime *times, double seconds)
{
    double busy = 0;
    guint64 i = 0;

    terms->timed = TRUE;
    for (guint t = 0; t < NUM_OP_CLASSES; t++)
        terms->time_seconds[t] = 0;
    for (guint v = 0; v < NUM_VOLUMES; v++)
        terms->communication_seconds[v] = 0;
    for (guint c = 0; c < program->step.calls->len; c++) {
        const Segment *segment =
            program_segment(program, g_array_index(program->step.calls, Call, c).segment);

        for (guint o = 0; o < segment->num_ops; o++, i++) {
            const double took = times[i].end_s - times[i].start_s;
            const OpKind kind = segment->ops[o].kind;

            if (op_kind_is_communication(kind))
                terms->communication_seconds[op_volume(kind)] += took;
            if (segment->ops[o].stream != COMPUTE_STREAM)
                continue;
            terms->time_seconds[op_class(kind)] += took;
            busy += took;
        }
    }
    terms->time_seconds[OP_CLASS_COMMUNICATION] = MAX(seconds - busy, 0);
}

static void clear_term(gpointer data)
{
    g_free((char *)((StoreTerm *)data)->term);
}

static void add(GArray *rows, guint rank, char *term, const char *unit, const double values[2])
{
    const StoreTerm row = {
        .rank = rank,
        .term = term,
        .unit = unit,
        .predicted = values[0],
        .measured = values[1],
        .estimated = NAN,
    };

    g_array_append_val(rows, row);
}

/* What the plan predicts for one rank: the step's time is common, memory and volume are those of
 * its own program, time by class of op is its stage's. */
static Prediction predicted_for(const Plan *plan, const ProgramSet *set, guint rank)
{
    const guint class_index = set->class_of[rank];
    const Program *program = set->classes[class_index];
    const MemoryUse memory = program_memory(program);
    Prediction p = plan->prediction;

    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        if (t != TERM_FRAMEWORK)
            p.memory_bytes[t] = memory.term[t];
    p.memory_total = memory.total + p.memory_bytes[TERM_FRAMEWORK];
    program_volume(program, p.communication_bytes);
    if (class_index < plan->stages->len) {
        const StageTime *stage = &g_array_index(plan->stages, StageTime, class_index);

        memcpy(p.time_seconds, stage->time_seconds, sizeof p.time_seconds);
        memcpy(p.communication_seconds, stage->communication_seconds,
               sizeof p.communication_seconds);
    }
    p.exposed_communication_seconds = p.time_seconds[OP_CLASS_COMMUNICATION];
    return p;
}

/* The same definitions as the prediction's (DESIGN 4), from the measured step. */
static void add_times(GArray *rows, const Terms *terms, const Plan *plan, guint rank,
                      const Prediction *p)
{
    const double tokens_per_second = terms->tokens / terms->step_seconds;
    const double flops_per_gpu =
        model_step_flops(plan->model, (guint64)terms->tokens, plan->workload.seq_len) /
        terms->step_seconds / plan->gpus;
    const double exposed = terms->timed ? terms->time_seconds[OP_CLASS_COMMUNICATION] : NAN;
    const struct {
        const char *term, *unit;
        double values[2];
    } figures[] = {
        {"step_seconds", "s", {p->step_seconds, terms->step_seconds}},
        {"tokens_per_second", "tokens/s", {p->tokens_per_second, tokens_per_second}},
        {"tokens_per_second_per_gpu",
         "tokens/s",
         {p->tokens_per_second_per_gpu, tokens_per_second / plan->gpus}},
        {"model_tflops_per_gpu", "TFLOP/s", {p->model_tflops_per_gpu, flops_per_gpu / 1e12}},
        {"mfu", "", {p->mfu, flops_per_gpu / terms->peak_flops}},
        {"exposed_communication_seconds", "s", {p->exposed_communication_seconds, exposed}},
        {"bubble_fraction", "", {p->bubble_fraction, NAN}},
    };

    for (guint i = 0; i < G_N_ELEMENTS(figures); i++)
        add(rows, rank, g_strdup(figures[i].term), figures[i].unit, figures[i].values);
    for (guint t = 0; t < NUM_OP_CLASSES; t++) {
        const double values[2] = {p->time_seconds[t], terms->timed ? terms->time_seconds[t] : NAN};

        add(rows, rank, g_strdup_printf("time_seconds.%s", op_class_name((OpClass)t)), "s", values);
    }
}

static void add_memory(GArray *rows, const Terms *terms, guint rank, const Prediction *p)
{
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++) {
        double measured = NAN;

        if (terms_is_state((MemoryTerm)t))
            measured = (double)terms->state_bytes[t];
        if (t == TERM_FRAMEWORK) /* what the process holds beside its arena */
            measured = (double)terms->total_bytes - (double)terms->arena_bytes[TIER_DEVICE];
        const double values[2] = {(double)p->memory_bytes[t], measured};
        add(rows, rank, g_strdup_printf("memory_bytes.%s", memory_term_name((MemoryTerm)t)),
            "bytes", values);
    }
    const double total[2] = {(double)p->memory_total, (double)terms->total_bytes};
    add(rows, rank, g_strdup("memory_bytes.total"), "bytes", total);
    const double arena[2] = {(double)(p->memory_total - p->memory_bytes[TERM_FRAMEWORK]),
                             (double)terms->arena_bytes[TIER_DEVICE]};
    add(rows, rank, g_strdup("arena_bytes.device"), "bytes", arena);
}

/* Where state is offloaded to. */
static void add_tiers(GArray *rows, const Terms *terms, guint rank, const Program *program)
{
    for (guint t = TIER_DEVICE + 1; t < NUM_TIERS; t++) {
        const double values[2] = {(double)program->arena_bytes[t], (double)terms->arena_bytes[t]};

        if (program->arena_bytes[t] > 0)
            add(rows, rank, g_strdup_printf("arena_bytes.%s", tier_name((Tier)t)), "bytes", values);
    }
}

static void add_communication_times(GArray *rows, const Terms *terms, guint rank,
                                    const Prediction *p)
{
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        const double values[2] = {p->communication_seconds[v],
                                  terms->timed ? terms->communication_seconds[v] : NAN};

        add(rows, rank, g_strdup_printf("communication_seconds.%s", volume_name((Volume)v)), "s",
            values);
        g_array_index(rows, StoreTerm, rows->len - 1).estimated = terms->estimated_seconds[v];
    }
}

GArray *terms_rows(const Terms *terms, const Plan *plan, const ProgramSet *set, guint rank)
{
    const Prediction p = predicted_for(plan, set, rank);
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(StoreTerm));

    g_array_set_clear_func(rows, clear_term);
    add_times(rows, terms, plan, rank, &p);
    add_memory(rows, terms, rank, &p);
    add_tiers(rows, terms, rank, set->classes[set->class_of[rank]]);
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        const double values[2] = {(double)p.communication_bytes[v],
                                  (double)terms->communication_bytes[v]};

        add(rows, rank, g_strdup_printf("communication_bytes.%s", volume_name((Volume)v)), "bytes",
            values);
    }
    add_communication_times(rows, terms, rank, &p);
    return rows;
}
