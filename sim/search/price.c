#include "sim/search/price.h"

#include "sim/base/text.h"
#include "sim/cost/device_cost.h"
#include "sim/cost/framework_memory.h"
#include "sim/search/price_parts.h"

#include <string.h>

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

    if (is_foreign(plan))
        framework_add_memory(plan->framework, program, &use);
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

static double line(double a, double b, guint more)
{
    return b + (b - a) * more;
}

static guint64 line_bytes(guint64 a, guint64 b, guint more)
{
    return b + (b - a) * more; /* unsigned arithmetic wraps back where b < a */
}

/* @to becomes what @more further micro-batches of the same kind make of it. */
static void extend(Priced *to, const Priced *before, guint more)
{
    to->time.step_s = line(before->time.step_s, to->time.step_s, more);
    to->time.exposed_s = line(before->time.exposed_s, to->time.exposed_s, more);
    for (guint c = 0; c < NUM_OP_CLASSES; c++)
        to->time.busy_s[c] = line(before->time.busy_s[c], to->time.busy_s[c], more);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        to->time.volume_s[v] = line(before->time.volume_s[v], to->time.volume_s[v], more);
    const guint64 each = to->memory.total - MIN(before->memory.total, to->memory.total);
    const Tensor input = {.kind = TENSOR_INPUT};
    to->memory.term[tensor_term(&input)] += each * more; /* all that grows with them */
    to->memory.total += each * more;
    to->first_bytes = line_bytes(before->first_bytes, to->first_bytes, more);
    for (guint v = 0; v < NUM_VOLUMES; v++)
        to->volume[v] = line_bytes(before->volume[v], to->volume[v], more);
}

/* Micro-batches from which on each further group is the same again, and the group: all pass the
 * stages one by one, or (interleaved) in groups of pp, of which the first four may wait for their
 * units at other moments. */
static guint steady_from(const Plan *plan, guint *group)
{
    enum { ALONE = 3 }; /* the first and the last differ from those between */
    const guint pp = plan->layout.size[AXIS_PP];
    const gboolean in_groups = plan->schedule.kind == SCHEDULE_INTERLEAVED;

    *group = in_groups ? pp : 1;
    if (pp == 1)
        return ALONE;
    return in_groups ? 4 * pp : 2 * pp;
}

/* Whether the plan has more micro-batches than @steady, and @group more: all that differ. */
static gboolean has_alike(const Plan *plan, guint *steady, guint *group)
{
    const guint micro_batches = plan->schedule.micro_batches;

    *steady = steady_from(plan, group);
    return micro_batches > *steady + *group && (micro_batches - *steady) % *group == 0 &&
           plan->schedule.kind != SCHEDULE_GPIPE; /* whose memory grows with them */
}

/* Whether to look at those two numbers is less than to look at all. */
static gboolean line_pays(const Plan *plan, guint steady, guint group)
{
    return plan->schedule.micro_batches > 2 * steady + group;
}

/* And both. */
static gboolean is_steady(const Plan *plan, guint *steady, guint *group)
{
    return has_alike(plan, steady, group) && line_pays(plan, *steady, *group);
}

/* No further group takes less than a stage computes for it: where it seems so, something that is
 * there once a step, as state that a disk keeps, takes longer than few micro-batches and hides
 * them.  Then the line starts at twice as many. */
static gboolean is_on_line(const Priced *before, const Priced *after)
{
    static const double rounding = 1e-6;

    return after->time.step_s - before->time.step_s >=
           (after->compute_s - before->compute_s) * (1 - rounding);
}

guint price_most_micro_batches(const Plan *plan)
{
    guint steady, group;

    return has_alike(plan, &steady, &group) ? steady + group : plan->schedule.micro_batches;
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

    for (gboolean is = is_steady(plan, &steady, &group); is; is = line_pays(plan, steady, group)) {
        const Priced before = price_micro_batches(plan, steady);
        Priced priced = price_micro_batches(plan, steady + group);

        if (is_on_line(&before, &priced)) {
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

    if (is_steady(plan, &steady, &group)) {
        const guint more = (micro_batches - steady) / group - 1;
        const UnitSavings before = without_units(plan, steady);

        savings = without_units(plan, steady + group);
        savings.bound_s = line(before.bound_s, savings.bound_s, more);
        savings.moved_s = line(before.moved_s, savings.moved_s, more);
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

/* What is most likely to be too large comes first, and what takes longest last.  Where it fits,
 * *set are the placed programs; the caller's. */
static PriceResult try_micro_batches(Plan *plan, guint micro_batches, const PriceLimit *below,
                                     Priced *priced, ProgramSet **fitting)
{
    const SimulateContext context = plan_context(plan);
    ProgramSpec spec = plan_spec(plan);

    spec.schedule.micro_batches = micro_batches;
    if (!peak_fits(plan, &spec, below))
        return PRICE_TOO_LARGE;
    g_autoptr(Program) program = program_build_unplaced(&spec, below->stage);
    if (!price_fits(plan, program, below->stage, below->explains))
        return PRICE_TOO_LARGE;
    g_autoptr(ProgramSet) set =
        program_compile_around(&spec, below->stage, g_steal_pointer(&program));
    g_autofree StepTime *times = g_new(StepTime, set->num_classes);
    for (guint c = 0; c < set->num_classes; c++)
        if (c != below->stage)
            grow_program(plan, set->classes[c]);
    simulate_stages(&context, &spec, set, times);
    if (slowest(times, set->num_classes) > below->limit_s)
        return PRICE_TOO_SLOW;
    for (guint c = 0; c < set->num_classes; c++)
        if (c != below->stage && !place_stage(plan, set->classes[c], c, below->explains))
            return PRICE_TOO_LARGE;
    store_stages(plan, times, set->num_classes);
    *priced = price_largest(plan, set, times);
    *fitting = g_steal_pointer(&set);
    return PRICE_FITS;
}

/* Drawn as a line through two numbers of micro-batches; FALSE: they are not on it. */
static gboolean try_steady(Plan *plan, const PriceLimit *below, guint steady, guint group,
                           PriceResult *result)
{
    g_autoptr(ProgramSet) few = NULL;
    g_autoptr(ProgramSet) more = NULL;
    Priced before, priced;

    *result = try_micro_batches(plan, steady, below, &before, &few);
    if (*result == PRICE_FITS)
        *result = try_micro_batches(plan, steady + group, below, &priced, &more);
    if (*result != PRICE_FITS)
        return TRUE;
    if (!is_on_line(&before, &priced))
        return FALSE;
    if (below->explains)
        price_peak(plan, more->classes[priced.stage], &priced);
    extend(&priced, &before, (plan->schedule.micro_batches - steady) / group - 1);
    if (priced.time.step_s > below->limit_s)
        *result = PRICE_TOO_SLOW;
    else
        *result = predict(plan, &priced) ? PRICE_FITS : PRICE_TOO_LARGE;
    return TRUE;
}

PriceResult plan_price_below(Plan *plan, const PriceLimit *below)
{
    g_autoptr(ProgramSet) set = NULL;
    PriceResult result;
    guint steady, group;
    Priced priced;

    for (gboolean is = is_steady(plan, &steady, &group); is; is = line_pays(plan, steady, group)) {
        if (try_steady(plan, below, steady, group, &result))
            return result;
        steady *= 2;
    }
    result = try_micro_batches(plan, plan->schedule.micro_batches, below, &priced, &set);
    if (result == PRICE_FITS && is_foreign(plan)) {
        predict(plan, &priced);
    } else if (result == PRICE_FITS) {
        store_programs(plan, set, below->briefly);
        conclude(plan, set, &priced, below->briefly);
    }
    return result;
}
