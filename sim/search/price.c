#include "sim/search/price.h"

#include "sim/base/text.h"
#include "sim/cost/device_cost.h"
#include "sim/cost/framework_memory.h"
#include "sim/search/price_line.h"
#include "sim/search/price_parts.h"

#include <string.h>

static void predict_time(Plan *plan, const StepTime *time)
{
    Prediction *p = &plan->prediction;
    const double tokens = (double)plan->workload.global_batch * plan->workload.seq_len;
    const double flops =
        model_step_flops(plan->model, (guint64)tokens, plan->workload.seq_len) / plan->gpus;
    const double peak =
        gpu_peak_flops(&plan->topology->gpu, plan->workload.recipe->precision) * plan->threads;

    p->step_seconds = time->step_s;
    p->tokens_per_second = tokens / time->step_s;
    p->tokens_per_second_per_gpu = p->tokens_per_second / plan->gpus;
    p->model_tflops_per_gpu = flops / time->step_s / 1e12;
    p->mfu = flops / time->step_s / peak;
    p->exposed_communication_seconds = time->exposed_s;
    memcpy(p->time_seconds, time->busy_s, sizeof p->time_seconds);
    p->time_seconds[OP_CLASS_COMMUNICATION] = time->exposed_s;
    memcpy(p->communication_seconds, time->volume_s, sizeof p->communication_seconds);
}

/* What a compiled step costs: the rank with the largest total, the slowest step. */
typedef struct {
    StepTime time;
    MemoryUse memory;
    guint64 volume[NUM_VOLUMES];
    guint stage;                    /* which those are of */
    guint64 first_bytes;            /* the total of stage 0; 0: not looked at */
    double compute_s;               /* of the stage that computes longest */
    guint64 arena_bytes[NUM_TIERS]; /* the largest of all stages */
    char moment[64];
} Priced;

static double slowest(const StepTime *times, guint num)
{
    double step_s = 0;

    for (guint c = 0; c < num; c++)
        step_s = MAX(step_s, times[c].step_s);
    return step_s;
}

/* Stages differ by what is left of a step after the last exchange: all wait for the slowest. */
static void simulate_stages(const SimulateContext *context, const ProgramSpec *spec,
                            const ProgramSet *set, StepTime *times)
{
    if (set->num_classes == 1) {
        g_autofree guint *spans = program_spans(set->classes[0], spec);

        times[0] = simulate_program(set->classes[0], context, spans);
        return;
    }
    simulate_set(set, context, times, NULL);
    const double step_s = slowest(times, set->num_classes);
    for (guint c = 0; c < set->num_classes; c++) {
        times[c].exposed_s += step_s - times[c].step_s;
        times[c].step_s = step_s;
    }
}

static void store_stages(Plan *plan, const StepTime *times, guint num)
{
    g_array_set_size(plan->stages, num);
    for (guint c = 0; c < num; c++) {
        StageTime *stage = &g_array_index(plan->stages, StageTime, c);

        memcpy(stage->time_seconds, times[c].busy_s, sizeof stage->time_seconds);
        stage->time_seconds[OP_CLASS_COMMUNICATION] = times[c].exposed_s;
        memcpy(stage->communication_seconds, times[c].volume_s,
               sizeof stage->communication_seconds);
    }
}

static gboolean is_foreign(const Plan *plan)
{
    return framework_is_foreign(plan->framework);
}

/* Before it is placed. */
static void grow_program(const Plan *plan, Program *program)
{
    if (is_foreign(plan))
        framework_grow(plan->framework, program);
}

static void grow_programs(const Plan *plan, ProgramSet *set)
{
    for (guint c = 0; c < set->num_classes; c++)
        grow_program(plan, set->classes[c]);
}

static void place_programs(ProgramSet *set)
{
    for (guint c = 0; c < set->num_classes; c++)
        program_place_tensors(set->classes[c]);
}

static MemoryUse rank_memory(const Plan *plan, const Program *program)
{
    MemoryUse use = program_memory(program);

    if (is_foreign(plan)) {
        framework_add_memory(plan->framework, program, &use);
        framework_add_held(plan->framework, program, plan_floor_limit(plan), &use);
    }
    return use;
}

static MemoryUse stage_memory(const Plan *plan, const ProgramSet *set, guint stage)
{
    return rank_memory(plan, set->classes[stage]);
}

static guint largest_stage(const Plan *plan, const ProgramSet *set)
{
    guint largest = 0;

    for (guint c = 1; c < set->num_classes; c++)
        if (stage_memory(plan, set, c).total > stage_memory(plan, set, largest).total)
            largest = c;
    return largest;
}

/* The largest of all stages, by tier. */
static void find_arenas(const ProgramSet *set, guint64 bytes[NUM_TIERS])
{
    for (guint t = 0; t < NUM_TIERS; t++) {
        bytes[t] = 0;
        for (guint c = 0; c < set->num_classes; c++)
            bytes[t] = MAX(bytes[t], set->classes[c]->arena_bytes[t]);
    }
}

static double longest_compute(const StepTime *times, guint num)
{
    double longest_s = 0;

    for (guint c = 0; c < num; c++) {
        double compute_s = 0;

        for (guint of = 0; of < OP_CLASS_COMMUNICATION; of++)
            compute_s += times[c].busy_s[of];
        longest_s = MAX(longest_s, compute_s);
    }
    return longest_s;
}

/* The tensors of @set are placed: the peak is not known yet. */
static Priced price_largest(const Plan *plan, const ProgramSet *set, const StepTime *times)
{
    const guint stage = largest_stage(plan, set);
    Priced priced = {
        .time = times[stage], .memory = stage_memory(plan, set, stage), .stage = stage};

    priced.first_bytes = stage_memory(plan, set, 0).total;
    priced.compute_s = longest_compute(times, set->num_classes);
    program_volume(set->classes[stage], priced.volume);
    find_arenas(set, priced.arena_bytes);
    return priced;
}

/* The peak of the program that @priced is of. */
static void price_peak(const Plan *plan, Program *program, Priced *priced)
{
    program_find_peak(program);
    priced->memory = rank_memory(plan, program);
    g_strlcpy(priced->moment, priced->memory.moment, sizeof priced->moment);
}

static void predict_memory(Plan *plan, const Priced *priced)
{
    Prediction *p = &plan->prediction;

    for (guint t = 0; t < NUM_MEMORY_TERMS; t++)
        p->memory_bytes[t] = priced->memory.term[t];
    p->memory_bytes[TERM_FRAMEWORK] = plan_framework_bytes(plan);
    p->memory_total = priced->memory.total + p->memory_bytes[TERM_FRAMEWORK];
    p->memory_first =
        priced->first_bytes == 0 ? 0 : priced->first_bytes + p->memory_bytes[TERM_FRAMEWORK];
    p->memory_limit = plan_memory_limit(plan);
    p->rank = priced->stage * (plan->gpus / plan->layout.size[AXIS_PP]); /* pp is outermost */
    memcpy(p->communication_bytes, priced->volume, sizeof p->communication_bytes);
    g_strlcpy(p->moment, priced->moment, sizeof p->moment);
}

static void add_memory_reason(Plan *plan)
{
    const Prediction *p = &plan->prediction;
    const MemoryTerm largest = prediction_largest_term(p);
    g_autofree char *total = bytes_text(p->memory_total);
    g_autofree char *limit = bytes_text(p->memory_limit);
    g_autofree char *term = bytes_text(p->memory_bytes[largest]);
    g_ptr_array_add(plan->reasons,
                    g_strdup_printf("memory: a rank needs %s of %s; the largest term is %s, %s",
                                    total, limit, memory_term_name(largest), term));
}

/* What the ranks that share a tier keep there together is more than it has: the reason is added. */
static void check_tier(const Plan *plan, Tier tier, guint64 arena_bytes, GPtrArray *reasons)
{
    MemoryTier memory;

    if (arena_bytes == 0)
        return;
    if (!topology_memory(plan->topology, tier, &memory))
        g_assert_not_reached(); /* a plan's tiers are looked up before */
    const guint sharers = memory.span == 0 ? plan->ranks_per_node : MIN(memory.span, plan->gpus);
    g_autofree char *total = bytes_text(sharers * arena_bytes);
    g_autofree char *capacity = bytes_text(memory.capacity_bytes);

    if (sharers * arena_bytes > memory.capacity_bytes)
        g_ptr_array_add(reasons,
                        g_strdup_printf("memory: the %u ranks that share a %s memory need %s of %s",
                                        sharers, tier_name(tier), total, capacity));
}

static void check_tiers(const Plan *plan, const guint64 arena_bytes[NUM_TIERS], GPtrArray *reasons)
{
    for (guint t = TIER_DEVICE + 1; t < NUM_TIERS; t++)
        check_tier(plan, (Tier)t, arena_bytes[t], reasons);
}

/* Whether that is within the limit; else the reason. */
static gboolean predict_fits(Plan *plan, const Priced *priced)
{
    predict_memory(plan, priced);
    g_ptr_array_set_size(plan->reasons, 0);
    if (plan->prediction.memory_total > plan->prediction.memory_limit)
        add_memory_reason(plan);
    check_tiers(plan, priced->arena_bytes, plan->reasons);
    return plan->reasons->len == 0;
}

static gboolean predict(Plan *plan, const Priced *priced)
{
    predict_time(plan, &priced->time);
    return predict_fits(plan, priced);
}

/* Share of the step in which the stage of the reported rank would wait for other stages if nothing
 * that moves took any time. */
static double bubble_fraction(const Plan *plan, const ProgramSet *set)
{
    SimulateContext context = plan_context(plan);
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);

    if (set->num_classes == 1)
        return 0;
    context.free_communication = TRUE;
    simulate_set(set, &context, times, NULL);
    const StepTime *time = &times[plan->prediction.rank / (plan->gpus / set->num_classes)];
    const double compute_s = time->step_s - time->exposed_s;
    return MAX(0, slowest(times, set->num_classes) - compute_s) / plan->prediction.step_seconds;
}

/* What runs: of placed programs that have not grown. */
static void store_programs(Plan *plan, const ProgramSet *set, gboolean briefly)
{
    g_free(plan->hash);
    plan->hash = briefly ? NULL : program_set_hash(set);
    find_arenas(set, plan->arena_bytes);
}

/* All that the placed programs of the whole step say. */
static gboolean conclude(Plan *plan, const ProgramSet *set, Priced *priced, gboolean briefly)
{
    Program *program = set->classes[priced->stage];

    plan->ops = program_num_ops(program);
    if (briefly && !is_foreign(plan) && predict(plan, priced)) /* others' total is of the terms */
        return TRUE;
    price_peak(plan, program, priced);
    const gboolean fits = predict(plan, priced);
    if (!briefly)
        plan->prediction.bubble_fraction = bubble_fraction(plan, set);
    return fits;
}

void plan_check_tiers(const Plan *plan, const ProgramSet *set, GPtrArray *problems)
{
    guint64 arena_bytes[NUM_TIERS];

    find_arenas(set, arena_bytes);
    check_tiers(plan, arena_bytes, problems);
}

static gboolean price_all(Plan *plan, gboolean briefly)
{
    const SimulateContext context = plan_context(plan);
    const ProgramSpec spec = plan_spec(plan);
    g_autoptr(ProgramSet) set = program_compile_unplaced(&spec);
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);

    place_programs(set);
    store_programs(plan, set, briefly);
    simulate_stages(&context, &spec, set, times);
    store_stages(plan, times, set->num_classes);
    grow_programs(plan, set);
    if (is_foreign(plan))
        place_programs(set);
    Priced priced = price_largest(plan, set, times);
    return conclude(plan, set, &priced, briefly);
}

gboolean plan_price(Plan *plan)
{
    return price_all(plan, FALSE);
}

gboolean plan_price_briefly(Plan *plan)
{
    return price_all(plan, TRUE);
}

double plan_bubble_fraction(const Plan *plan)
{
    const ProgramSpec spec = plan_spec(plan);

    if (plan->layout.size[AXIS_PP] == 1)
        return 0;
    g_autoptr(ProgramSet) set = program_compile_unplaced(&spec);
    return bubble_fraction(plan, set);
}

/* ---- steady micro-batches ---- */

/* @to becomes what @more further micro-batches of the same kind make of it. */
static void extend(Priced *to, const Priced *before, guint more)
{
    to->time.step_s = line_at(before->time.step_s, to->time.step_s, more);
    to->time.exposed_s = line_at(before->time.exposed_s, to->time.exposed_s, more);
    for (guint c = 0; c < NUM_OP_CLASSES; c++)
        to->time.busy_s[c] = line_at(before->time.busy_s[c], to->time.busy_s[c], more);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        to->time.volume_s[v] = line_at(before->time.volume_s[v], to->time.volume_s[v], more);
    const guint64 each = to->memory.total - MIN(before->memory.total, to->memory.total);
    const Tensor input = {.kind = TENSOR_INPUT};
    to->memory.term[tensor_term(&input)] += each * more; /* all that grows with them */
    to->memory.total += each * more;
    to->first_bytes = line_bytes_at(before->first_bytes, to->first_bytes, more);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        to->volume[v] = line_bytes_at(before->volume[v], to->volume[v], more);
}

/* Of that many micro-batches, whether it fits or not. */
static Priced price_micro_batches(Plan *plan, guint micro_batches)
{
    const SimulateContext context = plan_context(plan);
    ProgramSpec spec = plan_spec(plan);

    spec.schedule.micro_batches = micro_batches;
    g_autoptr(ProgramSet) set = program_compile_unplaced(&spec);
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);
    grow_programs(plan, set);
    place_programs(set);
    simulate_stages(&context, &spec, set, times);
    store_stages(plan, times, set->num_classes);
    Priced priced = price_largest(plan, set, times);
    price_peak(plan, set->classes[priced.stage], &priced);
    return priced;
}

gboolean plan_price_quickly(Plan *plan)
{
    guint steady, group;

    for (gboolean is = line_serves(plan, &steady, &group); is;
         is = line_pays(plan, steady, group)) {
        const Priced before = price_micro_batches(plan, steady);
        Priced priced = price_micro_batches(plan, steady + group);

        if (line_is_straight(priced.time.step_s - before.time.step_s,
                             priced.compute_s - before.compute_s)) {
            extend(&priced, &before, (plan->schedule.micro_batches - steady) / group - 1);
            return predict(plan, &priced);
        }
        steady *= 2;
    }
    const Priced priced = price_micro_batches(plan, plan->schedule.micro_batches);
    return predict(plan, &priced);
}

static double volume_seconds(const double seconds[NUM_VOLUMES])
{
    double sum_s = 0;

    for (guint v = 0; v < NUM_VOLUMES; v++)
        sum_s += seconds[v];
    return sum_s;
}

/* Of that many micro-batches; moved_s is what remains. */
static UnitSavings without_units(const Plan *plan, guint micro_batches)
{
    SimulateContext context = plan_context(plan);
    ProgramSpec spec = plan_spec(plan);
    const guint stage = plan->prediction.rank / (plan->gpus / plan->layout.size[AXIS_PP]);

    context.free_units = TRUE;
    spec.schedule.micro_batches = micro_batches;
    g_autoptr(ProgramSet) set = program_compile_unplaced(&spec);
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);
    simulate_stages(&context, &spec, set, times);
    return (UnitSavings){.bound_s = slowest(times, set->num_classes),
                         .moved_s = volume_seconds(times[stage].volume_s)};
}

UnitSavings plan_unit_savings(const Plan *plan)
{
    const guint micro_batches = plan->schedule.micro_batches;
    UnitSavings savings;
    guint steady, group;

    if (line_serves(plan, &steady, &group)) {
        const guint more = (micro_batches - steady) / group - 1;
        const UnitSavings before = without_units(plan, steady);

        savings = without_units(plan, steady + group);
        savings.bound_s = line_at(before.bound_s, savings.bound_s, more);
        savings.moved_s = line_at(before.moved_s, savings.moved_s, more);
    } else {
        savings = without_units(plan, micro_batches);
    }
    savings.moved_s =
        MAX(0, volume_seconds(plan->prediction.communication_seconds) - savings.moved_s);
    return savings;
}

/* ---- among many ---- */

/* Places the program of stage @stage; FALSE, with the reason where it is wanted, when it doesn't
 * fit. */
static gboolean place_stage(Plan *plan, Program *program, guint stage, gboolean explains)
{
    program_place_tensors(program);
    Priced priced = {.memory = rank_memory(plan, program), .stage = stage};

    memcpy(priced.arena_bytes, program->arena_bytes, sizeof priced.arena_bytes);
    if (predict_fits(plan, &priced))
        return TRUE;
    if (explains)
        price_peak(plan, program, &priced);
    return predict_fits(plan, &priced);
}

/* A stage whose peak is too large need not be compiled; without terms nothing is explained.  To
 * look costs half as much as to compile, so it is worth it where a floor, which is mostly 1 to 2%
 * below the arena, is as close to what there is. */
static gboolean peak_fits(Plan *plan, const ProgramSpec *spec, const PriceLimit *below)
{
    if (below->summariser == NULL || below->explains ||
        below->floor_bytes < plan_floor_limit(plan) / 100 * 98 ||
        !summarise_peak_pays(spec, below->stage))
        return TRUE;
    const guint64 bytes = summarise_peak(below->summariser, spec, below->stage);
    const Priced priced = {.memory.total = bytes, .stage = below->stage};

    return predict_fits(plan, &priced);
}

gboolean price_fits(Plan *plan, Program *program, guint stage, gboolean explains)
{
    grow_program(plan, program);
    return place_stage(plan, program, stage, explains);
}

/* Programs of a number of micro-batches. */
typedef struct {
    guint micro_batches;
    ProgramSet *set;
    StepTime *times; /* by stage */
    gboolean are_placed;
} Tried;

static void tried_clear(Tried *tried)
{
    program_set_free(tried->set);
    g_free(tried->times);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Tried, tried_clear)

static double tried_s(const Tried *tried)
{
    return slowest(tried->times, tried->set->num_classes);
}

/* What may well be too large is placed before it is simulated, of the first stage: then most that
 * is in vain is not done. */
static gboolean may_be_large(const Plan *plan, const PriceLimit *below)
{
    return below->explains || below->floor_bytes == 0 ||
           below->floor_bytes > plan_floor_limit(plan) / 100 * 90;
}

/* Programs that are placed already are left. */
static gboolean place_tried(Plan *plan, Tried *tried, gboolean first, const PriceLimit *below)
{
    if (tried->are_placed)
        return TRUE;
    if (first &&
        !place_stage(plan, tried->set->classes[below->stage], below->stage, below->explains))
        return FALSE;
    for (guint c = 0; c < tried->set->num_classes; c++)
        if (c != below->stage && !place_stage(plan, tried->set->classes[c], c, below->explains))
            return FALSE;
    tried->are_placed = TRUE;
    return TRUE;
}

static void simulate_tried(const Plan *plan, const ProgramSpec *spec, Tried *tried, guint grown)
{
    const SimulateContext context = plan_context(plan);

    tried->times = g_new(StepTime, tried->set->num_classes);
    for (guint c = 0; c < tried->set->num_classes; c++)
        if (c != grown)
            grow_program(plan, tried->set->classes[c]);
    simulate_stages(&context, spec, tried->set, tried->times);
}

/* Where it is not too slow, nor may be large and is, tried->set is there. */
static PriceResult try_micro_batches(Plan *plan, const PriceLimit *below, Tried *tried)
{
    const gboolean places_first = may_be_large(plan, below);
    ProgramSpec spec = plan_spec(plan);

    spec.schedule.micro_batches = tried->micro_batches;
    if (!peak_fits(plan, &spec, below))
        return PRICE_TOO_LARGE;
    g_autoptr(Program) program = program_build_unplaced(&spec, below->stage);
    grow_program(plan, program);
    if (places_first && !place_stage(plan, program, below->stage, below->explains))
        return PRICE_TOO_LARGE;
    tried->set = program_compile_around(&spec, below->stage, g_steal_pointer(&program));
    simulate_tried(plan, &spec, tried, below->stage);
    if (tried_s(tried) > below->limit_s)
        return PRICE_TOO_SLOW;
    return !places_first || place_tried(plan, tried, FALSE, below) ? PRICE_FITS : PRICE_TOO_LARGE;
}

/* Whether it takes that long: its step is then all that is known. */
static gboolean is_later(Plan *plan, double step_s, const PriceLimit *below)
{
    plan->prediction.step_seconds = step_s;
    return below->soon_s > 0 && step_s > below->soon_s;
}

static Priced price_tried(Plan *plan, const Tried *tried)
{
    store_stages(plan, tried->times, tried->set->num_classes);
    return price_largest(plan, tried->set, tried->times);
}

/* The plan from two numbers of micro-batches that fit, and @further groups. */
static PriceResult extend_tried(Plan *plan, const PriceLimit *below, Tried *few, Tried *more,
                                guint further)
{
    const double step_s = line_at(tried_s(few), tried_s(more), further);

    if (step_s > below->limit_s && !may_be_large(plan, below))
        return PRICE_TOO_SLOW;
    if (is_later(plan, step_s, below))
        return PRICE_LATER;
    if (!place_tried(plan, few, TRUE, below) || !place_tried(plan, more, TRUE, below))
        return PRICE_TOO_LARGE;
    const Priced before = price_tried(plan, few);
    Priced priced = price_tried(plan, more);
    if (below->explains)
        price_peak(plan, more->set->classes[priced.stage], &priced);
    extend(&priced, &before, further);
    if (priced.time.step_s > below->limit_s)
        return PRICE_TOO_SLOW;
    return predict(plan, &priced) ? PRICE_FITS : PRICE_TOO_LARGE;
}

static gboolean are_on_line(const Tried *few, const Tried *more)
{
    return line_is_straight(tried_s(more) - tried_s(few),
                            longest_compute(more->times, more->set->num_classes) -
                                longest_compute(few->times, few->set->num_classes));
}

/* Drawn as a line through two numbers of micro-batches; FALSE: they are not on it. */
static gboolean try_steady(Plan *plan, const PriceLimit *below, guint steady, guint group,
                           PriceResult *result)
{
    const guint further = (plan->schedule.micro_batches - steady) / group - 1;
    g_auto(Tried) few = {.micro_batches = steady}, more = {.micro_batches = steady + group};

    *result = try_micro_batches(plan, below, &few);
    if (*result == PRICE_FITS)
        *result = try_micro_batches(plan, below, &more);
    if (*result != PRICE_FITS)
        return TRUE;
    if (!are_on_line(&few, &more))
        return FALSE;
    *result = extend_tried(plan, below, &few, &more, further);
    return TRUE;
}

static PriceResult try_all(Plan *plan, const PriceLimit *below)
{
    g_auto(Tried) all = {.micro_batches = plan->schedule.micro_batches};
    const PriceResult result = try_micro_batches(plan, below, &all);

    if (result != PRICE_FITS)
        return result;
    if (is_later(plan, tried_s(&all), below))
        return PRICE_LATER;
    if (!place_tried(plan, &all, TRUE, below))
        return PRICE_TOO_LARGE;
    Priced priced = price_tried(plan, &all);
    if (is_foreign(plan)) {
        predict(plan, &priced);
    } else {
        store_programs(plan, all.set, below->briefly);
        conclude(plan, all.set, &priced, below->briefly);
    }
    return PRICE_FITS;
}

PriceResult plan_price_below(Plan *plan, const PriceLimit *below)
{
    PriceResult result;
    guint steady, group;

    for (gboolean is = line_serves(plan, &steady, &group); is;
         is = line_pays(plan, steady, group)) {
        if (try_steady(plan, below, steady, group, &result))
            return result;
        steady *= 2;
    }
    return try_all(plan, below);
}
