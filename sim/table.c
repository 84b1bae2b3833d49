#include "sim/table_parts.h"

#include "sim/base/text.h"
#include "sim/remarks.h"
#include "sim/search/plan_cost.h"
#include "sim/search/price.h"

#include <math.h>
#include <string.h>

char *plan_bound_text(const Plan *plan)
{
    const Prediction *p = &plan->prediction;
    const OpClass most = remark_bound(plan);

    return g_strdup_printf("%s %.0f%%", op_class_name(most),
                           100 * p->time_seconds[most] / p->step_seconds);
}

char *table_strategy_text(const Plan *plan)
{
    return g_strdup_printf("%s%s", strategy_name(plan->sharding.strategy),
                           plan->sharding.num_overrides > 0 ? "*" : "");
}

void table_print_remark(char *line)
{
    if (line != NULL)
        g_print("%s\n", line);
    g_free(line);
}

/* "16", or "16 to 128". */
static char *gpus_text(const SearchRequest *request, const GArray *searched)
{
    const guint gpus = search_gpus(request);
    const guint most = searched == NULL ? gpus : g_array_index(searched, guint, searched->len - 1);

    return most == gpus ? g_strdup_printf("%u", gpus) : g_strdup_printf("%u to %u", gpus, most);
}

void table_print_inputs(const SearchRequest *request, const GArray *searched)
{
    g_autofree char *gpus = gpus_text(request, searched);
    const guint seq = search_seq_len(request);
    const double parameters = (double)model_parameters(request->model);
    const gboolean few = parameters < 1e9;
    g_autofree char *recipe = recipe_text(request->recipe);

    g_print("%s, %.4g %s parameters; %s, %s x %s; ", request->model->name,
            parameters / (few ? 1e6 : 1e9), few ? "M" : "B", request->topology->name, gpus,
            request->topology->gpu.name);
    if (request->global_batch != 0)
        g_print("batch %u x %u tokens; ", request->global_batch, seq);
    else
        g_print("one micro-batch a rank x %u tokens; ", seq);
    g_print("%s, recipe %s, %s: %.4g bytes a parameter\n", dtype_name(request->recipe->precision),
            recipe, optimizer_name(request->optimizer),
            recipe_bytes_per_parameter(request->recipe, request->optimizer));
    table_print_remark(remark_routing(request->model, request->expert_imbalance));
    table_print_remark(remark_long_sequence(request->model, seq));
    table_print_remark(remark_framework(request->framework));
}

/* Beside the plan. */
static void print_untrainable(const Plan *plan)
{
    g_autofree char *untrainable = remark_untrainable(plan);

    if (untrainable != NULL)
        g_print("fsdp-run can't train this: %s\n", untrainable);
}

/* Of columns: of the widest layout, strategy, and what is computed again. */
typedef struct {
    gint layout, strategy, recompute;
} Widths;

static void print_money(const Plan *plan)
{
    const char *currency = plan->topology->cost.currency;
    const double money = plan_money_per_million(plan);

    g_print("; %u GPUs, a million tokens ", plan->gpus);
    if (isfinite(money))
        g_print("cost %.4g %s", money, currency == NULL ? "" : currency);
    else
        g_print("have no cost: failures leave nothing useful");
}

static void print_row(const char *rank, const Plan *plan, Widths width, gboolean costs)
{
    const Prediction *p = &plan->prediction;
    g_autofree char *recompute = plan_recompute_text(plan);
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *step = seconds_text(p->step_seconds);
    g_autofree char *total = bytes_text(p->memory_total);
    g_autofree char *limit = bytes_text(p->memory_limit);
    g_autofree char *memory =
        g_strdup_printf("%s of %s%s", total, limit, plan_is_tight(plan) ? " !" : "");
    g_autofree char *micro =
        g_strdup_printf("%u x %u", plan->schedule.micro_batches, plan->schedule.micro_batch);
    g_autofree char *bound = plan_bound_text(plan);
    g_autofree char *strategy = table_strategy_text(plan);

    g_print("%5s %-*s %-*s %9s  %-*s %9s  %12.5g  %5.1f%%  %-21s %s", rank, width.layout, layout,
            width.strategy, strategy, micro, width.recompute, recompute, step,
            p->tokens_per_second_per_gpu, 100 * p->mfu, memory, bound);
    if (costs)
        print_money(plan);
    g_print("\n");
}

static void print_counts(const SearchResult *result)
{
    g_print("%" G_GUINT64_FORMAT " candidates, %" G_GUINT64_FORMAT " priced and fitting",
            result->candidates, result->feasible);
    for (guint v = VERDICT_OK + 1; v < NUM_VERDICTS; v++)
        if (result->rejected[v] > 0)
            g_print(", %" G_GUINT64_FORMAT " %s", result->rejected[v],
                    v == VERDICT_SLOWER   ? "excluded by a bound"
                    : v == VERDICT_MEMORY ? "over memory"
                                          : verdict_name((Verdict)v));
    g_print("; %.3f s\n", result->seconds);
}

static void widen(Widths *width, const Plan *plan)
{
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *strategy = table_strategy_text(plan);
    g_autofree char *recompute = plan_recompute_text(plan);

    width->layout = MAX(width->layout, (gint)strlen(layout));
    width->strategy = MAX(width->strategy, (gint)strlen(strategy));
    width->recompute = MAX(width->recompute, (gint)strlen(recompute));
}

static Widths widest(const SearchResult *result, const Plan *today)
{
    Widths width = {24, 15, 9};

    if (today != NULL)
        widen(&width, today);
    for (guint i = 0; i < result->plans->len; i++)
        widen(&width, g_ptr_array_index(result->plans, i));
    return width;
}

/* What stands before a plan: its rank, or the GPUs that it needs and what they make. */
static char *row_label(const SearchAnswer *answer, guint i)
{
    const Plan *plan = g_ptr_array_index(answer->result->plans, i);

    return answer->searched == NULL
               ? g_strdup_printf("%4u ", i + 1)
               : g_strdup_printf("%5u %10.0f", plan->gpus, plan->prediction.tokens_per_second);
}

static void print_rows(const SearchAnswer *answer, Widths width)
{
    const gboolean by_number = answer->searched != NULL;
    const double price = answer->request->topology->cost.price_per_gpu_hour;
    const gboolean costs = answer->request->sort == SORT_COST || (by_number && price > 0);

    g_print("\n%s %-*s %-*s micro-batches  %-*s    step  tokens/s/GPU     MFU  "
            "memory                bound by\n",
            by_number ? " GPUs   tokens/s" : "rank ", width.layout, "layout", width.strategy,
            "strategy", width.recompute, "recompute");
    if (answer->today != NULL)
        print_row(by_number ? "today           " : "today", answer->today, width, costs);
    for (guint i = 0; i < answer->result->plans->len; i++) {
        g_autofree char *label = row_label(answer, i);

        print_row(label, g_ptr_array_index(answer->result->plans, i), width, costs);
    }
}

/* Which numbers were looked at. */
static void print_searched(const GArray *searched)
{
    if (searched == NULL)
        return;
    g_print("\nsearched: ");
    for (guint i = 0; i < searched->len; i++)
        g_print("%s%u", i == 0 ? "" : ", ", g_array_index(searched, guint, i));
    g_print(" GPUs; those are left out that make no more tokens a second than fewer do\n");
}

/* What a change would gain; what does not fit has no speed to compare with. */
static void print_gain(const Plan *today, const Plan *best)
{
    g_print("\n");
    if (today->reasons->len > 0)
        g_print("what runs today does not fit: %s\n",
                (const char *)g_ptr_array_index(today->reasons, 0));
    else
        g_print("the first takes %.3g times the step of what runs today\n",
                best->prediction.step_seconds / today->prediction.step_seconds);
    table_print_remark(remark_largest(today));
}

/* As --layout takes it. */
static char *layout_option(const Plan *plan)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint a = 0; a < NUM_AXES; a++)
        if (plan->layout.size[a] > 1)
            g_string_append_printf(text, "%s%s=%u", text->len > 0 ? "," : "", axis_name((Axis)a),
                                   plan->layout.size[a]);
    if (layout_ep(&plan->layout) > 1)
        g_string_append_printf(text, ",ep=%u", layout_ep(&plan->layout));
    return g_strdup(text->len > 0 ? text->str : "dp_shard=1");
}

/* Which plan is as fast as the first, and not at risk where that is. */
static void print_safe(const SearchAnswer *answer)
{
    const SearchResult *result = answer->result;
    const guint alike = answer->request->sort == SORT_TIME ? remark_alike(result) : 0;

    if (alike == 0 || !plan_is_tight(g_ptr_array_index(result->plans, 0)))
        return;
    for (guint i = 1; i < alike; i++) {
        const Plan *plan = g_ptr_array_index(result->plans, i);
        g_autofree char *layout = layout_option(plan);

        if (plan_is_tight(plan))
            continue;
        g_print("%u is as fast but for noise, and not at risk (estimate --layout %s --strategy %s "
                "-o PLAN).\n",
                i + 1, layout, strategy_name(plan->sharding.strategy));
        return;
    }
}

/* What the mark beside a plan's memory means, where one has it. */
static void print_tight(const SearchAnswer *answer)
{
    const SearchResult *result = answer->result;

    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(result->plans, i);

        if (!plan_is_tight(plan))
            continue;
        g_print("! at risk: less to spare than the %.0f%% that predicted memory may be wrong by; "
                "another layout, or more recomputation, leaves more\n",
                100 * plan_memory_error(plan));
        if (answer->roomy != 0)
            g_print("All of these are; %u is the smallest number of GPUs on which one is not "
                    "(search --gpus %u).\n",
                    answer->roomy, answer->roomy);
        print_safe(answer);
        return;
    }
}

/* What the strategies that are marked say of some units; and its worth, where the search chose it.
 */
static void print_units(const char *rank, const Plan *plan)
{
    g_autofree char *units = plan_units_text(plan);

    if (units == NULL)
        return;
    g_print("* %s: %s", rank, units);
    if (plan->alike_s > 0)
        g_print("; %.1f%% less time than with one strategy for all units",
                100 * (1 - plan->prediction.step_seconds / plan->alike_s));
    g_print("\n");
}

/* What is sorted by other than time says nothing of who is faster. */
static void print_alike(const SearchRequest *request, const SearchResult *result)
{
    const guint alike = request->sort == SORT_TIME ? remark_alike(result) : 1;

    if (alike > 1)
        g_print(
            "\n1 to %u are within noise: %.0f%% of the step, what runs of one layout differ by\n",
            alike, 100 * REMARK_NOISE);
}

/* Waiting for each other costs more than the others' work saves. */
static void print_faster(const Plan *faster, const Plan *best)
{
    g_autofree char *layout = plan_layout_text(faster);

    g_print(
        "\nfewer are faster: %u GPU%s %.5g tokens/s (%s, %s; search --gpus %u), these %u %.5g\n",
        faster->gpus, faster->gpus == 1 ? "" : "s", faster->prediction.tokens_per_second, layout,
        strategy_name(faster->sharding.strategy), faster->gpus, best->gpus,
        best->prediction.tokens_per_second);
}

/* All ranks can share it. */
static void print_batch(const Plan *other, const Plan *best)
{
    g_autofree char *layout = plan_layout_text(other);

    g_print("\nanother batch is faster: of %u sequences %s, %s, makes %.3g times the tokens a "
            "second (search --global-batch %u); %u is no multiple of %u GPUs\n",
            other->workload.global_batch, layout, strategy_name(other->sharding.strategy),
            other->prediction.tokens_per_second / best->prediction.tokens_per_second,
            other->workload.global_batch, best->workload.global_batch, best->gpus);
}

void table_print_search(const SearchAnswer *answer)
{
    const SearchRequest *request = answer->request;
    const SearchResult *result = answer->result;
    const Plan *today = answer->today;
    const Widths width = widest(result, today);

    table_print_inputs(request, answer->searched);
    print_rows(answer, width);
    for (guint i = 0; i < result->plans->len; i++) {
        const Plan *plan = g_ptr_array_index(result->plans, i);
        g_autofree char *rank = answer->searched != NULL ? g_strdup_printf("%u GPUs", plan->gpus)
                                                         : g_strdup_printf("%u", i + 1);

        print_units(rank, plan);
    }
    print_searched(answer->searched);
    print_alike(request, result);
    if (today != NULL)
        print_gain(today, g_ptr_array_index(result->plans, 0));
    if (answer->faster != NULL)
        print_faster(answer->faster, g_ptr_array_index(result->plans, 0));
    if (answer->batch != NULL)
        print_batch(answer->batch, g_ptr_array_index(result->plans, 0));
    g_print("\n");
    print_counts(result);
    g_print("GB is 10^9 bytes; MFU counts model FLOPs (causal attention at half, no recomputation) "
            "against the dense %s peak.\n",
            dtype_name(request->recipe->precision));
    print_tight(answer);
    print_untrainable(g_ptr_array_index(result->plans, 0));
}

char *table_stage_layers(const Plan *plan, guint stage)
{
    const guint pp = plan->layout.size[AXIS_PP];
    GString *text = g_string_new(NULL);

    for (guint c = stage; c < schedule_chunks(&plan->schedule, pp); c += pp) {
        const LayerRange range = schedule_chunk(&plan->schedule, plan->model->layers, pp, c);

        g_string_append_printf(text, "%s%u", c == stage ? "" : " ", range.first);
        if (range.count > 1)
            g_string_append_printf(text, "-%u", range.first + range.count - 1);
    }
    return g_string_free(text, FALSE);
}

static void print_stages(const Plan *plan)
{
    for (guint stage = 0; stage < plan->layout.size[AXIS_PP]; stage++) {
        g_autofree char *layers = table_stage_layers(plan, stage);

        g_print("%s%s", stage == 0 ? "stages have layers " : " | ", layers);
    }
    g_print("\n");
}

static void print_choices(const Plan *plan)
{
    const Sharding *s = &plan->sharding;
    g_autofree char *layout = plan_layout_text(plan);
    g_autofree char *recompute = plan_recompute_text(plan);
    g_autofree char *units = plan_units_text(plan);
    g_autofree char *recipe = recipe_text(plan->workload.recipe);
    g_autofree char *routing = remark_routing(plan->model, plan->workload.expert_imbalance);

    g_print("%s on %s: %s, %s", plan->model->name, plan->topology->name, layout,
            strategy_name(s->strategy));
    if (s->strategy != STRATEGY_NO_SHARD)
        g_print(" (%s, prefetch %u, %u live units, keep%s%s%s, accumulate %s%s)",
                form_name(s->form), s->prefetch, s->live_units, s->keep_root ? " root" : "",
                s->keep_last ? " last" : "", s->keep_root || s->keep_last ? "" : " none",
                s->accumulate_sharded ? "sharded" : "unsharded",
                s->gather_fp8 ? ", blocks gathered in fp8" : "");
    if (units != NULL)
        g_print("\nunits otherwise: %s", units);
    g_print("\nbatch %u x %u tokens = %u ranks x %u micro-batches x %u sequences; %s, recipe %s, "
            "%s: %.4g "
            "bytes a parameter; recompute %s; %u thread(s) a rank\n",
            plan->workload.global_batch, plan->workload.seq_len, layout_data_ranks(&plan->layout),
            plan->schedule.micro_batches, plan->schedule.micro_batch,
            dtype_name(plan->workload.recipe->precision), recipe,
            optimizer_name(plan->workload.optimizer),
            recipe_bytes_per_parameter(plan->workload.recipe, plan->workload.optimizer), recompute,
            plan->threads);
    for (guint t = TIER_DEVICE + 1; t < NUM_TIERS; t++) {
        g_autofree char *bytes = bytes_text(plan->arena_bytes[t]);

        if (plan->arena_bytes[t] > 0)
            g_print("in %s memory, a rank: %s (optimizer %s, parameters %s)\n", tier_name((Tier)t),
                    bytes, tier_name(s->offload.optimizer), tier_name(s->offload.parameters));
    }
    table_print_remark(remark_long_sequence(plan->model, plan->workload.seq_len));
    table_print_remark(remark_framework(plan->framework));
    if (plan->layout.size[AXIS_PP] > 1)
        print_stages(plan);
    if (plan->layout.size[AXIS_TP] > 1)
        g_print("tp splits heads, feed-forward and words; between them tokens are %s\n",
                plan->sequence_parallel ? "split (sequence)" : "whole (sequence = false)");
    if (routing != NULL)
        g_print("%u of %u experts a rank, %u a token; %s\n",
                plan->model->experts.count / layout_ep(&plan->layout), plan->model->experts.count,
                plan->model->experts.top_k, routing);
}

static void print_time(const Plan *plan)
{
    const Prediction *p = &plan->prediction;
    const gboolean copies = sharding_offloads(&plan->sharding);
    const char *exposed = plan->layout.size[AXIS_PP] > 1 ? "communication, waiting"
                          : copies                       ? "communication, copies"
                                                         : "exposed communication";
    g_autofree char *step = seconds_text(p->step_seconds);

    g_print("\nstep %s: %.5g tokens/s, %.5g a rank; %.4g model TFLOP/s a rank, MFU %.1f%%\n", step,
            p->tokens_per_second, p->tokens_per_second_per_gpu, p->model_tflops_per_gpu,
            100 * p->mfu);
    for (guint t = 0; t < NUM_OP_CLASSES; t++) {
        g_autofree char *time = seconds_text(p->time_seconds[t]);

        g_print("  %-24s %10s %6.1f%%\n",
                t == OP_CLASS_COMMUNICATION ? exposed : op_class_name((OpClass)t), time,
                100 * p->time_seconds[t] / p->step_seconds);
    }
    if (plan->layout.size[AXIS_PP] > 1)
        g_print("  of it the bubble of a pipeline: %.1f%%\n", 100 * p->bubble_fraction);
}

void table_print_memory(const Plan *plan)
{
    const Prediction *p = &plan->prediction;
    g_autofree char *total = bytes_text(p->memory_total);
    g_autofree char *limit = bytes_text(p->memory_limit);

    g_print("\nmemory of a rank at its peak (in %s): %s of %s\n", p->moment, total, limit);
    if (plan_is_tight(plan))
        g_print("at risk: less to spare than the %.0f%% that predicted memory may be wrong by\n",
                100 * plan_memory_error(plan));
    for (guint t = 0; t < NUM_MEMORY_TERMS; t++) {
        g_autofree char *bytes = bytes_text(p->memory_bytes[t]);

        g_print("  %-24s %10s %6.1f%%\n", memory_term_name((MemoryTerm)t), bytes,
                100.0 * (double)p->memory_bytes[t] / (double)p->memory_total);
    }
}

static void print_volume(const Plan *plan)
{
    const Prediction *p = &plan->prediction;

    if (plan->gpus == 1) /* from nobody */
        return;
    g_print("\nbytes that a rank receives in a step\n");
    for (guint v = 0; v < NUM_VOLUMES; v++) {
        g_autofree char *bytes = bytes_text(p->communication_bytes[v]);

        if (p->communication_bytes[v] > 0)
            g_print("  %-24s %10s\n", volume_name((Volume)v), bytes);
    }
}

void table_print_loading(const Plan *plan)
{
    table_print_remark(remark_loading(plan));
}

void table_print_plan(const Plan *plan)
{
    print_choices(plan);
    print_time(plan);
    table_print_memory(plan);
    print_volume(plan);
    for (guint i = 0; i < plan->reasons->len; i++)
        g_print("\ndoes not fit: %s\n", (const char *)g_ptr_array_index(plan->reasons, i));
    table_print_remark(remark_largest(plan));
    print_untrainable(plan);
}
