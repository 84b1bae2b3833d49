/* Sharding: gathers before use, frees after, reductions after backward, per unit by its strategy.
 *
 *   no_shard         parameters and gradients whole; gradients all-reduced over all data ranks
 *
 *   shard_optimizer  whole too; gradients reduce-scattered in place, own chunk updated, gathered
 *
 *   shard_grad_op    shards; gathered once a step, gradients reduce-scattered
 *
 *   full_shard       shards; gathered for forward and for backward of every micro-batch (once if
 *                    kept)
 *
 *   hybrid_shard     full_shard within dp_shard, then the shard's gradient is all-reduced
 */
#include "sim/program/shard_parts.h"

#include <string.h>

/* "purpose.direction" */
static gboolean is_stream_of(const Stream *stream, const char *purpose, const char *direction)
{
    const gsize length = strlen(purpose);

    return strncmp(stream->name, purpose, length) == 0 && stream->name[length] == '.' &&
           strcmp(stream->name + length + 1, direction) == 0;
}

guint builder_stream(Builder *builder, const char *purpose, const char *direction)
{
    Program *program = builder->program;
    guint group = program->groups->len;

    for (guint i = 0; i < program->streams->len; i++)
        if (is_stream_of(program_stream(program, i), purpose, direction))
            return i;
    for (guint i = 0; i < program->groups->len; i++)
        if (strcmp(g_array_index(program->groups, GroupRef, i).purpose, purpose) == 0)
            group = i;
    if (group == program->groups->len)
        program_add_group(program, purpose, purpose_size(builder->spec, purpose));
    g_autofree char *name = g_strdup_printf("%s.%s", purpose, direction);
    return program_add_stream(program, name, STREAM_COMMUNICATION, group);
}

Op *builder_all_reduce(Builder *builder, const char *name, guint tensor, const char *purpose)
{
    Program *program = builder->program;
    const guint stream = builder_stream(builder, purpose, "reduce");
    const guint segment = program_add_segment(program, name);
    Op *op = segment_add_op(program, segment, OP_ALL_REDUCE, stream,
                            program_tensor(program, tensor)->dtype);
    const Draft draft = {.kind = DRAFT_OTHER, .segment = segment, .first = TRUE, .last = TRUE};

    op->sizes.elements = program_tensor(program, tensor)->elements;
    op_add_operand(op, tensor, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    g_array_append_val(builder->drafts, draft);
    return op;
}

guint shard_stream(Builder *builder, const UnitClass *unit, const char *direction)
{
    return builder_stream(builder, unit->kind == UNIT_EXPERTS ? "expert_shard" : "shard",
                          direction);
}

static guint shard_ranks(const Builder *builder, const UnitClass *unit)
{
    return purpose_size(builder->spec, unit->kind == UNIT_EXPERTS ? "expert_shard" : "shard");
}

guint shard_new_segment(Builder *builder, const UnitClass *unit, const char *what)
{
    g_autofree char *name = g_strdup_printf("%s.%s", unit->name, what);

    return program_add_segment(builder->program, name);
}

guint shard_unit_tensor(Builder *builder, guint index, const char *what, TensorKind kind,
                        DType dtype, guint space)
{
    Program *program = builder->program;
    const UnitClass *unit = program_unit(program, index);
    const UnitPart part =
        kind == TENSOR_GATHERED || kind == TENSOR_UNIT_GRADIENT ? PART_WHOLE : PART_SHARD;
    g_autofree char *name = g_strdup_printf("%s.%s", unit->name, what);
    const guint64 elements =
        part == PART_WHOLE ? unit->map->full_elements : unit->map->shard_elements;
    const guint tensor = program_add_tensor(program, name, kind, dtype, space, elements);

    program_tensor(program, tensor)->unit = (gint)index;
    program_tensor(program, tensor)->part = part;
    return tensor;
}

static gboolean gathers_fp8(const Builder *builder, const UnitClass *unit)
{
    return builder->spec->sharding->gather_fp8 && unit->kind != UNIT_ROOT &&
           unit->strategy > STRATEGY_SHARD_OPTIMIZER;
}

/* fp8 products read what was gathered as it is; others, once it has its scale again. */
static gboolean gathers_codes(const Builder *builder, const UnitClass *unit)
{
    return gathers_fp8(builder, unit) && program_has_scales(builder->spec);
}

static DType gather_dtype(const Builder *builder, const UnitClass *unit)
{
    return gathers_fp8(builder, unit) && !gathers_codes(builder, unit)
               ? DTYPE_FP8
               : builder->spec->workload->recipe->compute;
}

Op *shard_unit_op(Builder *builder, guint segment, OpKind kind, guint stream, guint index)
{
    const UnitClass *unit = program_unit(builder->program, index);
    const DType dtype = kind == OP_ALL_GATHER ? gather_dtype(builder, unit)
                                              : builder->spec->workload->recipe->reduce;
    Op *op = segment_add_op(builder->program, segment, kind, stream, dtype);

    op->unit = (gint)index;
    op->sizes.elements = unit->map->shard_elements;
    return op;
}

/* ---- tensors ---- */

/* Whole tensors stay, but with the padding of @ranks shards. */
static void remap(Builder *builder, guint index)
{
    Program *program = builder->program;
    UnitClass *unit = program_unit(program, index);

    unit_map_free(unit->map);
    unit->map = builder_unit_map(builder, (UnitSort){unit->kind, unit->of_kind, unit->strategy},
                                 shard_ranks(builder, unit));
    program_tensor(program, (guint)unit->parameter)->elements = unit->map->full_elements;
    program_tensor(program, (guint)unit->gradient)->elements = unit->map->full_elements;
}

/* Blocks of that class that are kept between forward and backward, while others are in use: the
 * last block too, unless its backward always follows at once. */
static guint kept_blocks(const Builder *builder, guint index)
{
    const gboolean at_once = builder->spec->schedule.kind == SCHEDULE_1F1B;
    const guint layers = builder->spec->model->layers;
    guint kept = 0;

    const gboolean experts = program_unit(builder->program, index)->kind == UNIT_EXPERTS;

    for (guint i = 1; i <= (at_once ? layers - 1 : layers); i++) {
        const guint unit = experts ? builder_experts_unit(builder, i) : i;

        kept += program_unit_ref(builder->program, unit)->unit_class == index &&
                sharding_unit_kept(builder->spec->sharding, builder_sharding_unit(builder, unit),
                                   layers);
    }
    return kept;
}

/* The weights that compute ops read become a ring of gathered copies; a shard takes their place as
 * state. */
static void shard_parameters(Builder *builder, guint index)
{
    Program *program = builder->program;
    const UnitClass *unit = program_unit(program, index);
    const Recipe *recipe = builder->spec->workload->recipe;
    g_autofree char *name = g_strdup_printf("%s.gathered", unit->name);
    guint count = unit->count;

    if (unit->strategy != STRATEGY_SHARD_GRAD_OP) {
        const guint alive = builder->spec->sharding->live_units + kept_blocks(builder, index);

        count = MIN(count, alive);
    }
    builder->classes[index].gathered_space = program_add_space_beside(
        program, name, count, builder->classes[builder_first_alike(builder, index)].gathered_space);
    const guint gathered = (guint)unit->parameter;
    Tensor *tensor = program_tensor(program, gathered);
    tensor->name = program_name(program, name);
    tensor->kind = TENSOR_GATHERED;
    tensor->dtype = gather_dtype(builder, unit);
    tensor->persistence = PERSIST_STEP;
    tensor->space = builder->classes[index].gathered_space;
    const guint parameter = shard_unit_tensor(builder, index, "parameters", TENSOR_PARAMETER,
                                              recipe->stored, unit->layer_space);
    program_unit(program, index)->gathered = (gint)gathered;
    program_unit(program, index)->parameter = (gint)parameter;
}

/* ---- segments ---- */

guint shard_call_buffer(Builder *builder, guint index, const char *what, DType dtype, UnitPart part)
{
    const guint tensor =
        shard_unit_tensor(builder, index, what, TENSOR_COMMUNICATION, dtype, NO_SPACE);
    Tensor *buffer = program_tensor(builder->program, tensor);

    buffer->part = part;
    if (part == PART_WHOLE)
        buffer->elements = program_unit(builder->program, index)->map->full_elements;
    return tensor;
}

static void operand(Op *op, guint tensor, Access access)
{
    op_add_operand(op, tensor, access, 0, WHOLE_TENSOR);
}

/* The largest magnitudes of a unit's matrices, on this rank. */
static void build_amax(Builder *builder, guint index)
{
    const guint segment = shard_new_segment(builder, program_unit(builder->program, index), "amax");
    Op *op = shard_unit_op(builder, segment, OP_AMAX, COMPUTE_STREAM, index);

    op->dtype = op->dtype_out = builder->spec->workload->recipe->stored;
    op->sizes.chunk = builder->program->unit_refs->len;
    operand(op, (guint)program_unit(builder->program, index)->parameter, ACCESS_READ);
    operand(op, builder->amax, ACCESS_ACCUMULATE);
    builder->classes[index].amax = (gint)segment;
}

/* The gather of one set of a unit's parameters. */
static void add_gather(Builder *builder, guint segment, guint index, ParamSet params, guint shard,
                       guint whole)
{
    const guint stream = shard_stream(builder, program_unit(builder->program, index), "gather");
    Op *op = shard_unit_op(builder, segment, OP_ALL_GATHER, stream, index);

    op->dtype = op->dtype_out = program_tensor(builder->program, whole)->dtype;
    op->params = params;
    operand(op, shard, ACCESS_READ);
    operand(op, whole, ACCESS_WRITE);
}

/* Matrices move as e4m3 codes under one scale each, which all ranks know; the rest, small, as it
 * is used. */
static void build_code_gather(Builder *builder, guint index)
{
    Program *program = builder->program;
    const UnitClass unit = *program_unit(program, index);
    const Recipe *recipe = builder->spec->workload->recipe;
    const guint stream = shard_stream(builder, &unit, "gather");
    const guint segment = shard_new_segment(builder, &unit, "gather");
    const gboolean has_vectors = unit_map_set_elements(unit.map, PARAMS_VECTORS) > 0;
    const guint codes = shard_call_buffer(builder, index, "codes", DTYPE_FP8, PART_SHARD);
    const guint whole = shard_call_buffer(builder, index, "codes.gathered", DTYPE_FP8, PART_WHOLE);
    guint vectors = (guint)unit.parameter;

    Op *op = shard_unit_op(builder, segment, OP_QUANTISE, stream, index);
    op->dtype = recipe->stored;
    op->dtype_out = recipe->compute;
    operand(op, (guint)unit.parameter, ACCESS_READ);
    operand(op, builder->amax, ACCESS_READ);
    operand(op, codes, ACCESS_WRITE);
    if (has_vectors && recipe->stored != recipe->compute) {
        vectors = shard_call_buffer(builder, index, "cast", recipe->compute, PART_SHARD);
        operand(&program_segment(program, segment)->ops[0], vectors, ACCESS_WRITE);
    }
    add_gather(builder, segment, index, PARAMS_MATRICES, codes, whole);
    if (has_vectors)
        add_gather(builder, segment, index, PARAMS_VECTORS, vectors, (guint)unit.gathered);
    op = shard_unit_op(builder, segment, OP_DEQUANTISE, stream, index);
    op->dtype = DTYPE_FP8;
    op->dtype_out = recipe->compute;
    op->sizes.elements = unit.map->full_elements;
    operand(op, whole, ACCESS_READ);
    operand(op, builder->amax, ACCESS_READ);
    operand(op, (guint)unit.gathered, has_vectors ? ACCESS_UPDATE : ACCESS_WRITE);
    builder->classes[index].gather = (gint)segment;
}

static void build_gather(Builder *builder, guint index)
{
    Program *program = builder->program;
    const UnitClass unit = *program_unit(program, index);
    const DType stored = builder->spec->workload->recipe->stored;
    const DType gathered = gather_dtype(builder, &unit);
    const guint stream = shard_stream(builder, &unit, "gather");
    const guint segment = shard_new_segment(builder, &unit, "gather");
    guint shard = (guint)unit.parameter;

    if (stored != gathered) { /* cast before the gather: half the bytes move */
        const guint cast =
            shard_unit_tensor(builder, index, "cast", TENSOR_COMMUNICATION, gathered, NO_SPACE);
        Op *op = segment_add_op(program, segment, OP_CAST, stream, stored);

        op->dtype_out = gathered;
        op->sizes.elements = unit.map->shard_elements;
        op_add_operand(op, shard, ACCESS_READ, 0, WHOLE_TENSOR);
        op_add_operand(op, cast, ACCESS_WRITE, 0, WHOLE_TENSOR);
        shard = cast;
    }
    Op *op = shard_unit_op(builder, segment, OP_ALL_GATHER, stream, index);
    op_add_operand(op, shard, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, (guint)unit.gathered, ACCESS_WRITE, 0, WHOLE_TENSOR);
    builder->classes[index].gather = (gint)segment;
}

static void build_update_gather(Builder *builder, guint index)
{
    const UnitClass unit = *program_unit(builder->program, index);
    const guint segment = shard_new_segment(builder, &unit, "update_gather");
    Op *op = shard_unit_op(builder, segment, OP_ALL_GATHER, shard_stream(builder, &unit, "gather"),
                           index);

    op_add_operand(op, (guint)unit.parameter, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    builder->classes[index].update_gather = (gint)segment;
}

static void shard_class(Builder *builder, guint index)
{
    const Strategy strategy = program_unit(builder->program, index)->strategy;

    if (strategy != STRATEGY_NO_SHARD)
        remap(builder, index);
    if (strategy == STRATEGY_SHARD_OPTIMIZER)
        build_update_gather(builder, index);
    if (strategy > STRATEGY_SHARD_OPTIMIZER) {
        shard_parameters(builder, index);
        if (gathers_codes(builder, program_unit(builder->program, index))) {
            build_amax(builder, index);
            build_code_gather(builder, index);
        } else {
            build_gather(builder, index);
        }
        if (builder->spec->sharding->accumulate_sharded)
            shard_gradients(builder, index);
    }
    shard_build_reductions(builder, index);
}

/* ---- calls ---- */

typedef struct {
    Builder *builder;
    const GArray *from;
    guint *next_use;    /* by draft: the next draft that reads the same unit's weights; 0 = none */
    guint *uses;        /* by unit: of its weights, in all micro-batches */
    guint8 *seen;       /* by unit x micro-batch: of those so far */
    guint *open;        /* by unit: micro-batches between their first and their last use */
    gboolean *gathered; /* by unit */
} Inserter;

static gboolean is_gathered_strategy(const Builder *builder, guint unit)
{
    const guint unit_class = program_unit_ref(builder->program, unit)->unit_class;

    return program_unit(builder->program, unit_class)->gathered != NO_TENSOR;
}

static void find_next_uses(Inserter *inserter)
{
    const guint units = inserter->builder->program->unit_refs->len;
    g_autofree guint *next = g_new0(guint, units);

    for (guint i = inserter->from->len; i-- > 0;) {
        const Draft *draft = &g_array_index(inserter->from, Draft, i);

        inserter->next_use[i] = next[draft->unit];
        if (!draft->uses_weights)
            continue;
        next[draft->unit] = i;
        inserter->uses[draft->unit]++;
    }
}

static void count_use(Inserter *inserter, const Draft *draft)
{
    const guint micro_batches = inserter->builder->spec->schedule.micro_batches;
    const guint uses = inserter->uses[draft->unit] / micro_batches; /* of each */
    guint8 *seen = &inserter->seen[(gsize)draft->unit * micro_batches + draft->micro_batch];

    ++*seen;
    if (uses > 1 && *seen == 1)
        inserter->open[draft->unit]++;
    if (uses > 1 && *seen == uses)
        inserter->open[draft->unit]--;
}

/* Whether the gathered copy outlives this use: for the recomputed block's backward, for a kept
 * unit's backward (of any micro-batch that has passed it), for the rest of the step under
 * shard_grad_op. */
static gboolean stays_gathered(const Inserter *inserter, guint i)
{
    const Builder *builder = inserter->builder;
    const Draft *draft = &g_array_index(inserter->from, Draft, i);
    const guint layers = builder->spec->model->layers;
    const guint unit = builder_sharding_unit(builder, draft->unit);
    const guint next = inserter->next_use[i];

    if (next == 0)
        return FALSE;
    if (draft->unit != ROOT_UNIT && !draft->opens_gradient &&
        draft->segment ==
            (guint)builder->classes[program_unit_ref(builder->program, draft->unit)->unit_class]
                .recompute)
        return TRUE;
    if (sharding_unit_strategy(builder->spec->sharding, unit) == STRATEGY_SHARD_GRAD_OP)
        return TRUE;
    return sharding_unit_kept(builder->spec->sharding, unit, layers) &&
           inserter->open[draft->unit] > 0;
}

static void append_gather(Inserter *inserter, const Draft *use)
{
    Builder *builder = inserter->builder;
    Draft gather = *use;

    gather.kind = DRAFT_GATHER;
    gather.segment =
        (guint)builder->classes[program_unit_ref(builder->program, use->unit)->unit_class].gather;
    gather.uses_weights = gather.releases = FALSE;
    gather.opens_gradient = gather.closes_gradient = FALSE;
    g_array_append_val(builder->drafts, gather);
    inserter->gathered[use->unit] = TRUE;
}

static void append_reduce(Inserter *inserter, const Draft *backward)
{
    Builder *builder = inserter->builder;
    const guint unit_class = program_unit_ref(builder->program, backward->unit)->unit_class;
    const ClassSegments *segments = &builder->classes[unit_class];
    const gboolean sharded = program_unit(builder->program, unit_class)->unit_gradient != NO_TENSOR;
    Draft reduce = *backward;

    if (!sharded && !backward->last) /* accumulates whole, reduced with the last */
        return;
    reduce.kind = DRAFT_REDUCE;
    reduce.uses_weights = reduce.releases = FALSE;
    reduce.opens_gradient = reduce.closes_gradient = FALSE;
    reduce.segment = (guint)(backward->last               ? segments->reduce_last
                             : backward->micro_batch == 0 ? segments->reduce_first
                                                          : segments->reduce_add);
    g_array_append_val(builder->drafts, reduce);
}

/* Sharded accumulation reduces every micro-batch's gradients, so each is written anew. */
static void append_unit_call(Inserter *inserter, guint i, Draft *draft)
{
    Builder *builder = inserter->builder;
    const guint unit_class = program_unit_ref(builder->program, draft->unit)->unit_class;

    if (draft->uses_weights)
        count_use(inserter, draft);
    if (draft->uses_weights && is_gathered_strategy(builder, draft->unit)) {
        if (!inserter->gathered[draft->unit])
            append_gather(inserter, draft);
        draft->releases = !stays_gathered(inserter, i);
        inserter->gathered[draft->unit] = !draft->releases;
    }
    if (draft->kind == DRAFT_COMPUTE &&
        program_unit(builder->program, unit_class)->unit_gradient != NO_TENSOR)
        draft->first = TRUE;
    g_array_append_val(builder->drafts, *draft);
    if (draft->closes_gradient)
        append_reduce(inserter, draft);
}

static void append_use(Inserter *inserter, guint i)
{
    Builder *builder = inserter->builder;
    Draft draft = g_array_index(inserter->from, Draft, i);

    if (builder_has_unit(builder, draft.unit))
        append_unit_call(inserter, i, &draft);
    else
        g_array_append_val(builder->drafts, draft);
    if (draft.segment == (guint)builder->count_valid && draft.last)
        builder_all_reduce(builder, "valid.reduce", builder->valid, "data");
}

/* Largest magnitudes of all matrices over all ranks that have a part of them, in one go: at the
 * start of a step, so that they are of what was loaded, initialised or updated last. */
static void append_amax(Builder *builder)
{
    Program *program = builder->program;
    const gboolean alone = builder->tp == 1 && builder->pp == 1;
    gboolean first = TRUE;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        if (!builder_has_unit(builder, u))
            continue;
        const gint segment = builder->classes[program_unit_ref(program, u)->unit_class].amax;
        const Draft draft = {.kind = DRAFT_OTHER,
                             .segment = (guint)segment,
                             .unit = u,
                             .first = first,
                             .last = TRUE};

        if (segment < 0)
            continue;
        g_array_append_val(builder->drafts, draft);
        first = FALSE;
    }
    builder_all_reduce(builder, "amax.reduce", builder->amax, alone ? "shard" : "norm")->reduction =
        REDUCE_MAX;
}

static void insert_calls(Builder *builder)
{
    g_autoptr(GArray) from = builder->drafts;
    const guint units = builder->program->unit_refs->len;
    g_autofree guint *next_use = g_new0(guint, from->len);
    g_autofree guint *uses = g_new0(guint, units);
    g_autofree guint8 *seen = g_new0(guint8, (gsize)units * builder->spec->schedule.micro_batches);
    g_autofree guint *open = g_new0(guint, units);
    g_autofree gboolean *gathered = g_new0(gboolean, units);
    Inserter inserter = {builder, from, next_use, uses, seen, open, gathered};

    find_next_uses(&inserter);
    builder->drafts = g_array_new(FALSE, FALSE, sizeof(Draft));
    if (program_has_scales(builder->spec))
        append_amax(builder);
    for (guint i = 0; i < from->len; i++)
        append_use(&inserter, i);
}

void pass_shard(Builder *builder)
{
    Program *program = builder->program;

    if (program_has_scales(builder->spec))
        builder->amax = program_add_tensor(program, "amax", TENSOR_SCALAR, DTYPE_FP32, NO_SPACE,
                                           program_scales(builder->spec));
    for (guint i = 0; i < builder->program->units->len; i++)
        if (program_unit(builder->program, i)->map->elements > 0)
            shard_class(builder, i);
    insert_calls(builder);
}
