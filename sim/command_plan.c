/* fsdp-plan explain, check, trace: verbs that take a plan file. */
#include "reports/store/trace.h"
#include "sim/answer_json.h"
#include "sim/base/error.h"
#include "sim/command_argument.h"
#include "sim/commands.h"
#include "sim/explain.h"
#include "sim/program/check.h"
#include "sim/search/price.h"

/* The one plan that is named, and options of the verb. */
static Plan *load_plan(const GOptionEntry *entries, const char *verb, int argc, char **argv,
                       GError **error)
{
    g_autofree char *path = command_argument(verb, "PLAN", entries, argc, argv, error);

    return path == NULL ? NULL : plan_load(path, error);
}

/* @name: of another framework than the plan's, or NULL. */
static gboolean price_for(Plan *plan, const char *name, GError **error)
{
    if (name == NULL)
        return TRUE;
    if (!framework_option(name, plan->device, &plan->framework, error))
        return FALSE;
    plan_price(plan);
    return TRUE;
}

/* FALSE: not known. */
static gboolean print_explanation(const Plan *plan, gboolean json, GError **error)
{
    if (!json)
        return explain_print(plan, error);
    g_autoptr(JsonNode) node = explain_answer(plan, error);
    if (node != NULL)
        answer_print(node);
    return node != NULL;
}

int command_explain(int argc, char **argv, GError **error)
{
    g_autofree char *framework = NULL;
    gboolean json = FALSE;
    const GOptionEntry entries[] = {
        {"framework", 0, 0, G_OPTION_ARG_STRING, &framework,
         "What the prediction is for (default: the plan's)", "F"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "JSON on stdout", NULL},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(Plan) plan = load_plan(entries, "explain", argc, argv, error);

    if (plan == NULL || !price_for(plan, framework, error) || !print_explanation(plan, json, error))
        return error_exit_status(*error);
    return 0;
}

static void print_proof(const ProgramSet *set, guint64 ops, const GPtrArray *problems)
{
    for (guint i = 0; i < problems->len; i++)
        g_print("%s\n", (const char *)g_ptr_array_index(problems, i));
    if (problems->len == 0)
        g_print("proven for %u ranks in %u class(es), %" G_GUINT64_FORMAT
                " ops a step: no deadlock, groups agree, nothing is read before it is written, no "
                "arena range is shared without happens-before, it fits\n",
                set->num_ranks, set->num_classes, ops);
}

int command_check(int argc, char **argv, GError **error)
{
    gboolean json = FALSE;
    const GOptionEntry entries[] = {
        {"json", 0, 0, G_OPTION_ARG_NONE, &json, "JSON on stdout", NULL},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(Plan) plan = load_plan(entries, "check", argc, argv, error);
    g_autoptr(ProgramSet) set = plan == NULL ? NULL : plan_compile(plan, error);

    if (set == NULL)
        return error_exit_status(*error);
    const guint64 limit = plan_memory_limit(plan), own = plan_framework_bytes(plan);
    g_autoptr(GPtrArray) problems = program_set_check(set, limit > own ? limit - own : 1);

    plan_check_tiers(plan, set, problems);
    if (json) {
        g_autoptr(JsonNode) node = answer_check(set, plan->ops, problems);

        answer_print(node);
    } else {
        print_proof(set, plan->ops, problems);
    }
    return problems->len == 0 ? 0 : 1;
}

/* Ranks of a class are equal: the first of each stands for them. */
static void append_event(const ProgramSet *set, const SimulatedOp *done, GArray *events)
{
    const Program *program = set->classes[done->class_index];
    const Call *call = &g_array_index(program->step.calls, Call, done->call);
    const Segment *segment = program_segment(program, call->segment);
    const Op *op = &segment->ops[done->op];
    const TraceEvent event = {
        .rank = program_set_first_rank(set, done->class_index),
        .stream = program_stream(program, op->stream)->name,
        .name = program_op_label(program, call, op),
        .start_s = done->start_s,
        .end_s = done->end_s,
        .bytes = (double)op_volume_bytes(program, op),
        .flops = op_flops(op),
    };

    g_array_append_val(events, event);
}

int command_trace(int argc, char **argv, GError **error)
{
    g_autofree char *output = NULL;
    const GOptionEntry entries[] = {
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &output, "Write the trace here", "FILE"},
        G_OPTION_ENTRY_NULL,
    };
    g_autoptr(Plan) plan = load_plan(entries, "trace", argc, argv, error);
    g_autoptr(ProgramSet) set = plan == NULL ? NULL : plan_compile(plan, error);

    if (set == NULL)
        return error_exit_status(*error);
    if (output == NULL) {
        fail(error, ERROR_INPUT, "trace needs -o FILE");
        return 2;
    }
    const SimulateContext context = plan_context(plan);
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);
    g_autoptr(GArray) ops = g_array_new(FALSE, FALSE, sizeof(SimulatedOp));
    g_autoptr(GArray) events = g_array_new(FALSE, FALSE, sizeof(TraceEvent));
    simulate_set(set, &context, times, ops);
    for (guint i = 0; i < ops->len; i++)
        append_event(set, &g_array_index(ops, SimulatedOp, i), events);
    const gboolean written = trace_write(output, plan->model->name, events, error);
    for (guint i = 0; i < events->len; i++)
        g_free((char *)g_array_index(events, TraceEvent, i).name);
    return written ? 0 : error_exit_status(*error);
}
