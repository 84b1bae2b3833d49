#include "sim/summary/probe.h"

#include "sim/cost/framework_memory.h"

#include <string.h>

StagePlace stage_place(guint stage, guint pp)
{
    if (pp == 1)
        return STAGE_ONLY;
    return stage == 0 ? STAGE_FIRST : stage + 1 == pp ? STAGE_LAST : STAGE_MIDDLE;
}

/* A program of at most one block a stage, and the seconds of its ops. */
typedef struct {
    Model *model;
    Sketch *sketch;
    const Program *program;
    double **durations;
    const Framework *framework;
} Probe;

/* Over a block, or of the root: all other segments move units or update them. */
static gboolean is_pass(const Segment *segment)
{
    static const char *const passes[] = {".forward", ".recompute", ".backward", ".weights", "head"};

    for (guint i = 0; i < G_N_ELEMENTS(passes); i++)
        if (g_str_has_suffix(segment->name, passes[i]))
            return TRUE;
    return FALSE;
}

static gboolean is_of_block(const Segment *segment)
{
    static const char *const units[] = {"block.", "sparse.", "experts."};

    for (guint i = 0; i < G_N_ELEMENTS(units); i++)
        if (g_str_has_prefix(segment->name, units[i]))
            return TRUE;
    return FALSE;
}

/* What is of interest: passes over a block; those of the root, which need no blocks; what moves or
 * updates units. */
typedef enum { OF_BLOCKS, OF_ROOT, OF_UNITS } ProbeScope;

static gboolean is_of_interest(const Segment *segment, ProbeScope scope)
{
    return scope == OF_BLOCKS ? is_of_block(segment) && is_pass(segment)
           : scope == OF_ROOT ? !is_of_block(segment)
                              : !is_pass(segment);
}

/* NULL: of a segment that is of no interest. */
static double **some_durations(const Program *program, const SimulateContext *context,
                               const guint *spans, ProbeScope scope)
{
    double **durations = g_new0(double *, program->segments->len);

    for (guint s = 0; s < program->segments->len; s++) {
        const Segment *segment = program_segment(program, s);

        if (is_of_interest(segment, scope))
            durations[s] = durations_of_segment(program, s, context, spans);
    }
    return durations;
}

/* What all units share of a broadcast's fixed cost is each one's part of it by their number, which
 * the probe does not have: it is left out. */
static double **probe_durations(const Program *program, const ProgramSpec *spec,
                                const SimulateContext *context, ProbeScope scope)
{
    g_autofree guint *spans = program_spans(program, spec);
    Framework framework = *framework_or_default(context->framework);
    SimulateContext least = *context;

    if (framework.broadcast_s > 0)
        least.framework = &framework;
    framework.broadcast_s = 0;
    return some_durations(program, &least, spans, scope);
}

/* What a probe is about. */
typedef struct {
    StagePlace place;
    guint kind; /* of blocks */
    ProbeScope scope;
} ProbeOf;

/* As few stages as have such a place. */
static Probe probe_new(ProgramSpec *spec, const SimulateContext *context, ProbeOf of)
{
    static const guint num_stages[] = {1, 2, 2, 3}, at[] = {0, 0, 1, 1}; /* by place */
    const guint pp = num_stages[of.place];
    /* Blocks with experts grow as those without that a program has: a probe of one kind leaves them
     * as they are, which is less.  Logits may shrink. */
    const gboolean grows = model_num_sparse(spec->model) == 0 && of.scope != OF_ROOT;
    const Model model = model_of_kind(spec->model, of.kind);
    Probe probe = {.model = g_memdup2(&model, sizeof model)};

    probe.model->layers = of.scope == OF_ROOT ? 0 : pp;
    spec->model = probe.model;
    spec->layout.size[AXIS_PP] = pp;
    spec->schedule.chunk_layers = spec->schedule.recompute_layers = NULL;
    spec->schedule.virtual_stages = 1;
    if (spec->schedule.kind != SCHEDULE_ZB_H1)
        spec->schedule.kind = SCHEDULE_1F1B;
    probe.sketch = program_sketch(spec, at[of.place]);
    probe.program = probe.sketch->program;
    probe.durations = probe_durations(probe.program, spec, context, of.scope);
    probe.framework = framework_or_default(context->framework);
    if (framework_is_foreign(probe.framework) && grows)
        framework_grow(probe.framework, probe.sketch->program);
    else if (framework_is_foreign(probe.framework))
        framework_grow_logits(probe.framework, probe.sketch->program);
    return probe;
}

static void probe_clear(Probe *probe)
{
    durations_free(probe->durations, probe->program);
    sketch_free(probe->sketch);
    g_free(probe->model);
}

enum { NO_SEGMENT = G_MAXUINT };

static guint find_segment(const Probe *probe, const char *unit, const char *what)
{
    const gsize length = strlen(unit);

    for (guint s = 0; s < probe->program->segments->len; s++) {
        const char *name = program_segment(probe->program, s)->name;

        if (strncmp(name, unit, length) == 0 && strcmp(name + length, what) == 0)
            return s;
    }
    return NO_SEGMENT;
}

static SegmentRun run_new(const Probe *probe)
{
    return (SegmentRun){
        .program = probe->program, .durations = probe->durations, .watched = NO_UNIT};
}

/* One segment more, if there is one of that name. */
static void run_add(const Probe *probe, SegmentRun *run, const char *unit, const char *what)
{
    const guint segment = find_segment(probe, unit, what);

    g_assert(run->num < MAX_RUN || segment == NO_SEGMENT);
    if (segment != NO_SEGMENT)
        run->segments[run->num++] = segment;
}

static SegmentSums sums_of(const Probe *probe, const char *unit, const char *what)
{
    SegmentRun run = run_new(probe);

    run_add(probe, &run, unit, what);
    return segment_sums(&run);
}

/* ---- blocks ---- */

static guint find_space(const Program *program, const char *name)
{
    for (guint s = 1; s < program->spaces->len; s++)
        if (strcmp(g_array_index(program->spaces, Space, s).name, name) == 0)
            return s;
    return NO_SPACE;
}

static guint64 space_bytes(const Program *program, const char *name)
{
    const guint space = find_space(program, name);
    guint64 bytes = 0;

    for (guint t = 0; space != NO_SPACE && t < program->tensors->len; t++)
        if (program_tensor(program, t)->space == space)
            bytes += tensor_copy_bytes(program_tensor(program, t));
    return bytes;
}

/* Which spaces' tensors are counted with what lives in a call: always what is computed again, and
 * @alone the activations of the only copy. */
static gboolean *counted_spaces(const Program *program, gboolean alone)
{
    static const char *const of_a_block[] = {
        "saved",        "kept",        "again_kept",        "weights",
        "sparse_saved", "sparse_kept", "sparse_again_kept", "sparse_weights"};
    gboolean *counted = g_new0(gboolean, program->spaces->len);

    counted[find_space(program, "again")] = TRUE;
    for (guint i = 0; alone && i < G_N_ELEMENTS(of_a_block); i++)
        counted[find_space(program, of_a_block[i])] = TRUE;
    return counted;
}

/* What ops share as they run: NULL where none needs any. */
static Tensor *find_scratch(const Program *program)
{
    for (guint t = 0; t < program->tensors->len; t++)
        if (strcmp(program_tensor(program, t)->name, "scratch") == 0)
            return program_tensor(program, t);
    return NULL;
}

static guint64 scratch_bytes(const Program *program)
{
    const Tensor *scratch = find_scratch(program);

    return scratch == NULL ? 0 : tensor_copy_bytes(scratch);
}

static PassCost pass_cost(const Probe *probe, const SegmentRun *run)
{
    if (run->num == 0)
        return (PassCost){0};
    g_autofree gboolean *counted = counted_spaces(probe->program, FALSE);
    g_autofree gboolean *alone = counted_spaces(probe->program, TRUE);
    return (PassCost){
        .sums = segment_sums(run),
        .path = segment_path(run),
        .peak = segment_peak(run, counted),
        .alone_peak = segment_peak(run, alone),
    };
}

static PassCost block_pass(const Probe *probe, const char *what)
{
    SegmentRun run = run_new(probe);

    run_add(probe, &run, "block", what);
    return pass_cost(probe, &run);
}

static BlockCost dense_cost(const Probe *probe)
{
    SegmentRun backward = run_new(probe);

    run_add(probe, &backward, "block", ".recompute");
    run_add(probe, &backward, "block", ".backward");
    return (BlockCost){
        .forward = block_pass(probe, ".forward"),
        .backward = pass_cost(probe, &backward),
        .weights = block_pass(probe, ".weights"),
        .saved = space_bytes(probe->program, "saved"),
        .kept = space_bytes(probe->program, "kept"),
        .again_kept = space_bytes(probe->program, "again_kept"),
        .left = space_bytes(probe->program, "weights"),
        .scratch = scratch_bytes(probe->program),
    };
}

/* In the order of pass_recompute().  Of the two units the experts are what is large. */
static BlockCost sparse_cost(const Probe *probe)
{
    const gboolean again = find_segment(probe, "experts", ".recompute") != NO_SEGMENT;
    SegmentRun forward = run_new(probe), backward = run_new(probe), weights = run_new(probe);

    for (guint u = 0; u < probe->program->units->len; u++)
        if (program_unit(probe->program, u)->kind == UNIT_EXPERTS)
            forward.watched = backward.watched = weights.watched = (gint)u;
    run_add(probe, &forward, "sparse", ".forward");
    run_add(probe, &forward, "experts", ".forward");
    if (again)
        run_add(probe, &backward, "sparse", ".recompute");
    run_add(probe, &backward, "experts", ".recompute");
    run_add(probe, &backward, "experts", ".backward");
    if (!again)
        run_add(probe, &backward, "sparse", ".recompute");
    run_add(probe, &backward, "sparse", ".backward");
    run_add(probe, &weights, "experts", ".weights");
    run_add(probe, &weights, "sparse", ".weights");
    return (BlockCost){
        .forward = pass_cost(probe, &forward),
        .backward = pass_cost(probe, &backward),
        .weights = pass_cost(probe, &weights),
        .saved = space_bytes(probe->program, "sparse_saved"),
        .kept = space_bytes(probe->program, "sparse_kept"),
        .again_kept = space_bytes(probe->program, "sparse_again_kept"),
        .left = space_bytes(probe->program, "sparse_weights"),
        .scratch = scratch_bytes(probe->program),
    };
}

/* ---- roots ---- */

static void sum_inputs(const Program *program, RootCost *root)
{
    const guint micro_batches = find_space(program, "micro_batch");

    for (guint t = 0; t < program->tensors->len; t++) {
        const Tensor *tensor = program_tensor(program, t);

        if (tensor->persistence != PERSIST_STATE || tensor->unit != NO_UNIT)
            continue;
        if (tensor->space == micro_batches)
            root->micro_batch_bytes += tensor_copy_bytes(tensor);
        else
            root->input_bytes += tensor_bytes(program, tensor);
    }
}

static PassCost call_cost(const Probe *probe, const char *segment)
{
    SegmentRun run = run_new(probe);

    run_add(probe, &run, segment, "");
    return pass_cost(probe, &run);
}

static RootCost root_cost(const Probe *probe)
{
    const Program *program = probe->program;
    RootCost root = {
        .embed = call_cost(probe, "embed.forward"),
        .head = call_cost(probe, "head"),
        .embed_backward = call_cost(probe, "embed.backward"),
        .input = call_cost(probe, "input"),
        .ring = {.residual = space_bytes(program, "residual"),
                 .gradient = space_bytes(program, "gradient"),
                 .inbox = space_bytes(program, "inbox")},
        .count_valid = sums_of(probe, "count_valid", ""),
    };

    sum_inputs(program, &root);
    return root;
}

/* A program of one micro-batch, whose units are whole. */
static Probe probe_passes(const ProgramSpec *spec, const SimulateContext *context, ProbeOf of)
{
    const DType gradient = program_gradient_dtype(spec);
    const Sharding whole = {
        .strategy = STRATEGY_NO_SHARD, .live_units = 1, .gather_fp8 = spec->sharding->gather_fp8};
    Workload workload = *spec->workload;
    ProgramSpec least = *spec;

    workload.recipe = recipe_with_gradients(workload.recipe, gradient, gradient);
    least.workload = &workload;
    least.layout.size[AXIS_DP_REPLICATE] = 1;
    least.layout.size[AXIS_DP_SHARD] = layout_ep(&spec->layout); /* some must share experts */
    least.sharding = &whole;
    least.schedule.micro_batches = 1;
    return probe_new(&least, context, of);
}

BlockCost probe_block(const ProgramSpec *spec, const SimulateContext *context, StagePlace place,
                      guint kind)
{
    const gboolean sparse = model_kind_is_sparse(spec->model, kind);
    Probe probe = probe_passes(spec, context, (ProbeOf){place, kind, OF_BLOCKS});
    const BlockCost cost = sparse ? sparse_cost(&probe) : dense_cost(&probe);

    probe_clear(&probe);
    return cost;
}

RootCost probe_root(const ProgramSpec *spec, const SimulateContext *context, StagePlace place,
                    guint64 scratch)
{
    Probe probe = probe_passes(spec, context, (ProbeOf){place, 0, OF_ROOT});
    Tensor *own = find_scratch(probe.program);

    if (own != NULL)
        own->elements = MAX(own->elements, scratch / dtype_bytes(own->dtype));
    const RootCost cost = root_cost(&probe);

    probe_clear(&probe);
    return cost;
}

/* ---- shards ---- */

/* On the device. */
static guint64 copy_bytes(const Program *program, gint tensor)
{
    if (tensor == NO_TENSOR || program_tensor(program, (guint)tensor)->tier != TIER_DEVICE)
        return 0;
    return tensor_copy_bytes(program_tensor(program, (guint)tensor));
}

/* On the device, of what that segment of a unit's holds of its own. */
static guint64 buffer_bytes(const Probe *probe, const char *unit, const char *what)
{
    const Program *program = probe->program;
    const guint s = find_segment(probe, unit, what);
    guint64 bytes = 0;

    for (guint i = 0; s != NO_SEGMENT && i < program_segment(program, s)->num_ops; i++) {
        const Op *op = &program_segment(program, s)->ops[i];

        for (guint o = 0; o < op->num_operands; o++)
            if (op->operands[o].access == ACCESS_WRITE &&
                program_tensor(program, op->operands[o].tensor)->kind == TENSOR_COMMUNICATION)
                bytes += copy_bytes(program, (gint)op->operands[o].tensor);
    }
    return bytes;
}

static UnitCost unit_cost(const Probe *probe, guint index)
{
    const Program *program = probe->program;
    const UnitClass *unit = program_unit(program, index);
    const guint gather = find_segment(probe, unit->name, ".gather");
    UnitCost cost = {
        .state_bytes = copy_bytes(program, unit->parameter) + copy_bytes(program, unit->gradient) +
                       copy_bytes(program, unit->master) + copy_bytes(program, unit->moment[0]) +
                       copy_bytes(program, unit->moment[1]),
        .beside_bytes = framework_is_foreign(probe->framework)
                            ? (guint64)framework_unit_bytes(probe->framework, program, unit->map)
                            : 0,
        .gathered_bytes = copy_bytes(program, unit->gathered),
        .gradient_bytes = copy_bytes(program, unit->unit_gradient),
        .cast_bytes = buffer_bytes(probe, unit->name, ".gather"),
        .reduced_bytes = buffer_bytes(probe, unit->name, ".reduce.add"),
        .fetched_bytes = buffer_bytes(probe, unit->name, ".fetch"),
        .gather = sums_of(probe, unit->name, ".gather"),
        .update_gather = sums_of(probe, unit->name, ".update_gather"),
        .norm = sums_of(probe, unit->name, ".norm"),
        .update = sums_of(probe, unit->name, ".update"),
        .fetch = sums_of(probe, unit->name, ".fetch"),
        .store = sums_of(probe, unit->name, ".store"),
        .amax = sums_of(probe, unit->name, ".amax"),
        .reduce_first = sums_of(probe, unit->name, ".reduce"),
        .reduce_add = sums_of(probe, unit->name, ".reduce.add"),
        .reduce_last = sums_of(probe, unit->name, ".reduce.add.last"),
    };

    if (find_segment(probe, unit->name, ".reduce.add.last") == NO_SEGMENT)
        cost.reduce_last = sums_of(probe, unit->name,
                                   unit->unit_gradient == NO_TENSOR ? ".reduce" : ".reduce.last");
    if (gather != NO_SEGMENT)
        cost.gathers = (guint)probe->sketch->calls[gather];
    return cost;
}

static UnitCost block_unit_cost(const Probe *probe, guint index, guint micro_batches)
{
    UnitCost cost = unit_cost(probe, index);

    cost.gathers /= micro_batches;
    g_assert(cost.gathers <= 2);
    return cost;
}

ShardCost *shard_cost_new(const Model *model)
{
    return g_malloc0(sizeof(ShardCost) + (model_num_kinds(model) + 1) * sizeof(UnitCost));
}

ShardCost *probe_shard(const ProgramSpec *spec, const SimulateContext *context, StagePlace place,
                       Strategy strategy)
{
    enum { SEVERAL = 3 }; /* a first, one between, a last */
    const guint num_kinds = model_num_kinds(spec->model);
    Sharding sharding = *spec->sharding;
    ShardCost *cost = shard_cost_new(spec->model);

    sharding.strategy = strategy;
    sharding.keep_root = sharding.keep_last = FALSE;
    sharding.num_overrides = 0;
    for (guint kind = 0; kind < num_kinds; kind++) {
        ProgramSpec least = *spec;

        if (!model_has_kind(spec->model, kind))
            continue;
        least.sharding = &sharding;
        least.layout.size[AXIS_DP_SHARD] = layout_shard_ranks(&spec->layout);
        least.layout.size[AXIS_CP] = 1;
        least.schedule.micro_batch = 1;
        least.schedule.micro_batches = MIN(spec->schedule.micro_batches, SEVERAL);
        least.schedule.recompute = RECOMPUTE_NONE;
        least.schedule.kind = SCHEDULE_1F1B; /* backward for weights reads none */
        Probe probe = probe_new(&least, context, (ProbeOf){place, kind, OF_UNITS});
        cost->tied_reduce = sums_of(&probe, "root.tied_reduce", "");
        cost->clip = sums_of(&probe, "clip", "");
        if (place != STAGE_MIDDLE)
            cost->root = unit_cost(&probe, 0);
        cost->units[kind] = block_unit_cost(&probe, 1, least.schedule.micro_batches);
        if (model_kind_is_sparse(spec->model, kind))
            cost->units[num_kinds] = block_unit_cost(&probe, 2, least.schedule.micro_batches);
        probe_clear(&probe);
    }
    return cost;
}
