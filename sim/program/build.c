/* The plain program of one stage: one stream, whole parameters, whole gradients; units and shared
 * tensors. */
#include "sim/layout/tensor_parallel.h"
#include "sim/program/emit.h"

/* A stage has the root's parameters that its chunks use; of the others it has no rows.  A tied
 * embedding is on the first and on the last stage. */
static gboolean has_root_param(const Builder *builder, ParamRole role)
{
    switch (role) {
    case PARAM_EMBEDDING:
        return builder->has_embedding || (builder->has_head && builder->local.tied);
    case PARAM_POSITIONS:
    case PARAM_EMBED_NORM:
    case PARAM_EMBED_NORM_BIAS:
    case PARAM_PROJECT_IN:
        return builder->has_embedding;
    default: /* the final norm, the head and what comes before it */
        return builder->has_head;
    }
}

/* Stored per parameter, both copies of an embedding that is tied over stages have the same shards,
 * whatever else their units hold. */
static Form unit_form(const Builder *builder, UnitKind kind)
{
    if (kind == UNIT_ROOT && builder->pp > 1 && builder->local.tied)
        return FORM_PER_PARAMETER;
    return builder->spec->sharding->form;
}

/* Sharding divides experts among the ranks of the tp group too. */
static guint expert_copies(const Builder *builder, Strategy strategy)
{
    return strategy == STRATEGY_NO_SHARD ? builder->tp : 1;
}

static GArray *unit_params(const Builder *builder, UnitSort sort)
{
    return sort.kind == UNIT_ROOT ? builder->root_params
                                  : builder->kinds[sort.of_kind].params[sort.kind];
}

UnitMap *builder_unit_map(const Builder *builder, UnitSort sort, guint ranks)
{
    const Model *whole = &builder->kinds[sort.of_kind].whole;
    UnitMap *map = unit_map_new(unit_params(builder, sort), ranks, unit_form(builder, sort.kind));

    for (guint i = 0; i < map->num_params; i++)
        map->params[i].copies = sort.kind == UNIT_EXPERTS
                                    ? expert_copies(builder, sort.strategy)
                                    : tensor_copies(whole, map->params[i].role, builder->tp);
    if (sort.kind == UNIT_ROOT && builder->pp > 1 && builder->local.tied)
        map->params[builder->param[PARAM_EMBEDDING]].copies *= 2;
    return map;
}

static guint add_unit_class(Builder *builder, UnitSort sort, const char *name)
{
    Program *program = builder->program;
    const guint index = program->units->len;
    const GArray *params = unit_params(builder, sort);
    const char *prefix = sort.kind == UNIT_ROOT ? "" : model_block_prefix(builder->spec->model);
    UnitClass unit = {
        .name = program_name(program, name),
        .prefix = program_name(program, prefix),
        .kind = sort.kind,
        .of_kind = sort.of_kind,
        .strategy = sort.strategy,
        .count = 0,
        .map = builder_unit_map(builder, sort, 1),
        .param_names = g_new0(const char *, params->len + 1),
        .parameter = NO_TENSOR,
        .gathered = NO_TENSOR,
        .unit_gradient = NO_TENSOR,
        .gradient = NO_TENSOR,
        .master = NO_TENSOR,
        .moment = {NO_TENSOR, NO_TENSOR},
    };

    for (guint i = 0; i < params->len; i++)
        unit.param_names[i] = program_name(program, g_array_index(params, ParamShape, i).name);
    g_array_append_val(program->units, unit);
    return index;
}

static const char *unit_name(const Builder *builder, UnitSort sort)
{
    const char *kind = builder->kinds[sort.of_kind].name;

    return sort.kind == UNIT_EXPERTS ? "experts" : *kind == '\0' ? "block" : kind;
}

static guint block_class(Builder *builder, UnitSort sort)
{
    Program *program = builder->program;
    gboolean first = TRUE;

    for (guint i = 1; i < program->units->len; i++) {
        const UnitClass *unit = program_unit(program, i);

        if (unit->kind != sort.kind || unit->of_kind != sort.of_kind)
            continue;
        if (unit->strategy == sort.strategy)
            return i;
        first = FALSE;
    }
    const char *of_first = unit_name(builder, sort);
    g_autofree char *name = first
                                ? g_strdup(of_first)
                                : g_strdup_printf("%s.%s", of_first, strategy_name(sort.strategy));
    return add_unit_class(builder, sort, name);
}

guint builder_first_alike(const Builder *builder, guint index)
{
    const UnitClass *unit = program_unit(builder->program, index);
    guint first = 0;

    while (program_unit(builder->program, first)->kind != unit->kind ||
           program_unit(builder->program, first)->strategy != unit->strategy)
        first++;
    return first;
}

/* Whole parameters and whole gradients, one copy a unit. */
static void add_unit_tensors(Builder *builder, guint index)
{
    Program *program = builder->program;
    UnitClass *unit = program_unit(program, index);
    const Recipe *recipe = builder->spec->workload->recipe;
    g_autofree char *parameter = g_strdup_printf("%s.parameters", unit->name);
    g_autofree char *gradient = g_strdup_printf("%s.gradients", unit->name);

    unit->layer_space = program_add_space_beside(
        program, unit->name, unit->count,
        program_unit(program, builder_first_alike(builder, index))->layer_space);
    unit->parameter =
        (gint)program_add_tensor(program, parameter, TENSOR_PARAMETER, recipe->compute,
                                 unit->layer_space, unit->map->full_elements);
    unit->gradient = (gint)program_add_tensor(program, gradient, TENSOR_GRADIENT,
                                              program_gradient_dtype(builder->spec),
                                              unit->layer_space, unit->map->full_elements);
    program_tensor(program, (guint)unit->parameter)->unit = (gint)index;
    program_tensor(program, (guint)unit->parameter)->part = PART_WHOLE;
    program_tensor(program, (guint)unit->gradient)->unit = (gint)index;
    program_tensor(program, (guint)unit->gradient)->part = PART_WHOLE;
}

/* Whether a block is in one of this stage's chunks. */
static gboolean is_on_stage(const Builder *builder, guint block)
{
    const ProgramSpec *spec = builder->spec;
    const guint chunks = schedule_chunks(&spec->schedule, builder->pp);

    for (guint c = builder->stage; c < chunks; c += builder->pp) {
        const LayerRange range =
            schedule_chunk(&spec->schedule, spec->model->layers, builder->pp, c);

        if (block >= range.first && block < range.first + range.count)
            return TRUE;
    }
    return FALSE;
}

static void add_block_ref(Builder *builder, guint block, UnitKind kind)
{
    Program *program = builder->program;
    UnitRef ref = {NO_UNIT_CLASS, 0};

    if (is_on_stage(builder, block) &&
        (kind != UNIT_EXPERTS || model_is_sparse(builder->spec->model, block))) {
        const guint unit = (kind == UNIT_EXPERTS ? EXPERTS_UNITS : ROOT_UNIT) + block + 1;
        const UnitSort sort = {kind, model_block_kind(builder->spec->model, block),
                               sharding_unit_strategy(builder->spec->sharding, unit)};

        ref.unit_class = block_class(builder, sort);
        ref.index = program_unit(program, ref.unit_class)->count++;
    }
    g_array_append_val(program->unit_refs, ref);
}

static void add_unit_refs(Builder *builder)
{
    Program *program = builder->program;
    const Model *model = builder->spec->model;
    const Sharding *sharding = builder->spec->sharding;
    const UnitSort root = {UNIT_ROOT, 0, sharding_unit_strategy(sharding, ROOT_UNIT)};
    UnitRef ref = {add_unit_class(builder, root, "root"), program_unit(program, 0)->count++};

    if (program_unit(program, 0)->map->elements == 0)
        ref.unit_class = NO_UNIT_CLASS;
    g_array_append_val(program->unit_refs, ref);
    for (guint i = 0; i < model->layers; i++)
        add_block_ref(builder, i, model_is_sparse(model, i) ? UNIT_SPARSE : UNIT_BLOCK);
    for (guint i = 0; i < model->layers && model->experts.count > 0; i++)
        add_block_ref(builder, i, UNIT_EXPERTS);
}

static void add_units(Builder *builder)
{
    Program *program = builder->program;

    add_unit_refs(builder);
    for (guint i = 0; i < program->units->len; i++)
        add_unit_tensors(builder, i);
    builder->classes = g_new(ClassSegments, program->units->len);
    for (guint i = 0; i < program->units->len; i++)
        builder->classes[i] = (ClassSegments){.passes = {{-1, -1, -1}, {-1, -1, -1}},
                                              .recompute = -1,
                                              .gather = -1,
                                              .reduce_first = -1,
                                              .reduce_add = -1,
                                              .reduce_last = -1,
                                              .update_gather = -1,
                                              .norm = -1,
                                              .amax = -1,
                                              .update = -1,
                                              .fetch = -1,
                                              .store = -1};
}

guint builder_saved_space(const Builder *builder, Until until, gboolean again)
{
    const gboolean kept = builder->splits_backward && until == UNTIL_WEIGHTS;

    g_assert(!again || builder->lot == LOT_FIRST);
    return builder_ring_space(builder, again && kept ? RING_AGAIN_KEPT
                                       : again       ? RING_AGAIN
                                       : kept        ? RING_KEPT
                                                     : RING_SAVED);
}

/* What of the rings of a kind and lot ops use. */
static gboolean is_used(const Builder *builder, guint kind, Lot lot, Ring ring)
{
    const gboolean any = builder->kinds[kind].most_of[lot] > 0;
    const gboolean again = lot == LOT_FIRST && builder->recompute != RECOMPUTE_NONE;
    const gboolean saves = lot == LOT_REST || builder->recompute != RECOMPUTE_FULL;
    const gboolean splits = builder->splits_backward;

    switch (ring) {
    case RING_SAVED:
        return any && saves;
    case RING_KEPT:
        return any && saves && splits;
    case RING_AGAIN_KEPT:
        return any && again && splits;
    case RING_WEIGHTS:
        return any && splits;
    case RING_AGAIN:
        return again;
    case RING_INBOX:
        return builder->pp > 1;
    default:
        return TRUE;
    }
}

/* Of all kinds and lots together. */
static gboolean is_common(Ring ring)
{
    return ring == RING_RESIDUAL || ring == RING_AGAIN || ring == RING_GRADIENT ||
           ring == RING_INBOX;
}

static char *ring_name(const Builder *builder, guint kind, Lot lot, Ring ring)
{
    static const char *const names[NUM_RINGS] = {
        [RING_RESIDUAL] = "residual", [RING_SAVED] = "saved",           [RING_KEPT] = "kept",
        [RING_AGAIN] = "again",       [RING_AGAIN_KEPT] = "again_kept", [RING_WEIGHTS] = "weights",
        [RING_GRADIENT] = "gradient", [RING_INBOX] = "inbox",
    };
    const char *of_kind = builder->kinds[kind].name;

    return g_strconcat(lot == LOT_REST ? "rest_" : "", of_kind, *of_kind == '\0' ? "" : "_",
                       names[ring], NULL);
}

/* A call is of one block, so the rings of all kinds and lots have one slot. */
static guint add_ring(Builder *builder, guint kind, Lot lot, Ring ring)
{
    const guint *first = builder->kinds[0].ring_space[LOT_FIRST];
    guint beside = NO_SPACE;

    if (is_common(ring) && (kind > 0 || lot != LOT_FIRST))
        return first[ring];
    if (!is_used(builder, kind, lot, ring))
        return NO_SPACE;
    for (guint l = 0; l <= (guint)lot && beside == NO_SPACE; l++)
        for (guint k = 0; k < builder->num_kinds && beside == NO_SPACE; k++)
            beside = builder->kinds[k].ring_space[l][ring];
    g_autofree char *name = ring_name(builder, kind, lot, ring);
    return program_add_space_beside(builder->program, name, 1, beside);
}

/* Copies are counted once the step is laid out. */
static void add_rings(Builder *builder)
{
    for (guint lot = 0; lot < NUM_LOTS; lot++)
        for (guint k = 0; k < builder->num_kinds; k++)
            for (guint r = 0; r < NUM_RINGS; r++)
                builder->kinds[k].ring_space[lot][r] = add_ring(builder, k, (Lot)lot, (Ring)r);
}

/* Where the queries' tokens lie in their sequences, and those of the keys: one block after the
 * other as a ring brings them, or all at once. */
static void add_positions(Builder *builder)
{
    Program *program = builder->program;
    const gboolean ring = builder->spec->context == CONTEXT_RING;

    if (builder->cp == 1)
        return;
    builder->query_positions = program_add_tensor(program, "query_positions", TENSOR_INPUT,
                                                  DTYPE_INT32, NO_SPACE, builder->seq);
    builder->key_positions =
        program_add_tensor(program, "key_positions", TENSOR_INPUT, DTYPE_INT32,
                           ring ? program_add_space(program, "context", builder->cp) : NO_SPACE,
                           ring ? builder->seq : builder->seq * builder->cp);
}

/* Norms without a bias, or without any parameters, are computed with zeros and ones; their
 * gradients go to nobody. */
static void add_norm_constants(Builder *builder)
{
    Program *program = builder->program;
    const guint32 features = builder->local.features;
    const guint64 hidden = builder->local.hidden;
    const DType gradient = program_gradient_dtype(builder->spec);

    if ((features & FEATURE_LAYER_NORM) == 0 || (features & FEATURE_NORM_BIAS) != 0)
        return;
    builder->norm_zeros =
        program_add_tensor(program, "norm_zeros", TENSOR_INPUT, builder->dtype, NO_SPACE, hidden);
    builder->no_gradient[1] = program_add_tensor(program, "no_gradient.bias", TENSOR_ACTIVATION,
                                                 gradient, NO_SPACE, hidden);
    if ((features & FEATURE_BARE_NORM) == 0)
        return;
    builder->norm_ones =
        program_add_tensor(program, "norm_ones", TENSOR_INPUT, builder->dtype, NO_SPACE, hidden);
    builder->no_gradient[0] =
        program_add_tensor(program, "no_gradient", TENSOR_ACTIVATION, gradient, NO_SPACE, hidden);
}

static void add_inputs(Builder *builder)
{
    Program *program = builder->program;
    builder->micro_batch_space =
        program_add_space(program, "micro_batch", builder->spec->schedule.micro_batches);
    if (builder->has_embedding)
        builder->tokens = program_add_tensor(program, "tokens", TENSOR_INPUT, DTYPE_INT32,
                                             builder->micro_batch_space, builder->rows);
    builder->labels = program_add_tensor(program, "labels", TENSOR_INPUT, DTYPE_INT32,
                                         builder->micro_batch_space, builder->rows);
    if ((builder->local.features & FEATURE_ROPE) != 0)
        builder->rope_table =
            program_add_tensor(program, "rope_table", TENSOR_INPUT, DTYPE_FP32, NO_SPACE,
                               builder->seq * builder->local.rotary_dim);
    if ((builder->local.features & FEATURE_POSITIONS) != 0 && builder->has_embedding)
        builder->positions = program_add_tensor(program, "positions", TENSOR_INPUT, DTYPE_INT32,
                                                NO_SPACE, builder->local_rows);
    add_positions(builder);
    add_norm_constants(builder);
    builder->hyper =
        program_add_tensor(program, "hyper", TENSOR_INPUT, DTYPE_FP64, NO_SPACE, NUM_HYPER);
    if (builder->tp > 1)
        builder->vocab_range = program_add_tensor(program, "vocab_range", TENSOR_INPUT, DTYPE_FP64,
                                                  NO_SPACE, NUM_RANGE);
}

static void add_shared_tensors(Builder *builder)
{
    Program *program = builder->program;

    add_rings(builder);
    add_inputs(builder);
    builder->valid = program_add_tensor(program, "valid", TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
    builder->loss = program_add_tensor(program, "loss", TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
    builder->residual =
        emit_local_activation(builder, "residual", builder_ring_space(builder, RING_RESIDUAL));
    builder->residual_gradient =
        emit_local_activation(builder, "dresidual", builder_ring_space(builder, RING_GRADIENT));
    if (builder->pp > 1 &&
        !(builder->has_embedding && schedule_virtual_stages(&builder->spec->schedule) == 1))
        builder->inbox =
            emit_local_activation(builder, "inbox", builder_ring_space(builder, RING_INBOX));
    builder->scratch =
        program_add_tensor(program, "scratch", TENSOR_WORKSPACE, DTYPE_FP32, NO_SPACE, 0);
}

static void find_root_params(Builder *builder)
{
    builder->root_params = model_unit_params(&builder->local, UNIT_ROOT);
    for (guint r = 0; r < NUM_PARAM_ROLES; r++)
        builder->param[r] = -1;
    for (guint i = 0; i < builder->root_params->len; i++) {
        ParamShape *shape = &g_array_index(builder->root_params, ParamShape, i);

        builder->param[shape->role] = (gint)i;
        builder->rows_of[shape->role] = shape->rows;
        if (!has_root_param(builder, shape->role))
            shape->rows = 0;
    }
}

static const char *kind_name(const Builder *builder, guint kind)
{
    if (kind == 0 || model_kind_is_sparse(builder->spec->model, kind))
        return kind == 0 ? "" : "sparse";
    g_autofree char *name = g_strdup_printf("block%u", kind + 1);

    return program_name(builder->program, name);
}

static void find_block_params(Builder *builder, guint kind)
{
    BuilderKind *of = &builder->kinds[kind];
    const gboolean sparse = model_kind_is_sparse(builder->spec->model, kind);

    of->name = kind_name(builder, kind);
    of->whole = model_of_kind(builder->spec->model, kind);
    of->local = tensor_parallel_model(&of->whole, builder->tp);
    of->local.experts.held = builder->local.experts.held;
    if (of->most_of[LOT_FIRST] + of->most_of[LOT_REST] == 0) /* the stage has none */
        return;
    for (guint k = sparse ? UNIT_SPARSE : UNIT_BLOCK; k <= (sparse ? UNIT_EXPERTS : UNIT_BLOCK);
         k++)
        of->params[k] = model_unit_params(&of->local, (UnitKind)k);
}

/* Those of the root stay. */
static void turn_params(Builder *builder)
{
    const BuilderKind *of = &builder->kinds[builder->kind];

    for (guint r = PARAM_INPUT_NORM; r < NUM_PARAM_ROLES; r++)
        builder->param[r] = -1;
    for (guint k = UNIT_BLOCK; k < NUM_UNIT_KINDS; k++)
        for (guint i = 0; of->params[k] != NULL && i < of->params[k]->len; i++) {
            const ParamShape *shape = &g_array_index(of->params[k], ParamShape, i);

            builder->param[shape->role] = (gint)i;
            builder->rows_of[shape->role] = shape->rows;
        }
}

void builder_turn_to(Builder *builder, guint kind, Lot lot)
{
    builder->lot = lot;
    if (kind == builder->kind)
        return;
    builder->kind = kind;
    builder->local = builder->kinds[kind].local;
    turn_params(builder);
}

static void find_params(Builder *builder)
{
    find_root_params(builder);
    for (guint k = 0; k < builder->num_kinds; k++)
        find_block_params(builder, k);
    builder->local = builder->kinds[0].local;
    turn_params(builder);
}

/* What is computed again of this stage's blocks, and whether there is a rest. */
static gboolean find_recompute(Builder *builder, guint chunks)
{
    const Schedule *schedule = &builder->spec->schedule;
    gboolean some = FALSE, all = TRUE;

    for (guint c = builder->stage; c < chunks; c += builder->pp)
        for (guint i = 0; i < builder_layers(builder, c).count; i++) {
            const gboolean again = schedule_recomputes(schedule, builder->pp, c, i);

            some |= again;
            all &= again;
        }
    builder->recompute = some ? schedule->recompute : RECOMPUTE_NONE;
    return some && !all;
}

static void count_layers(Builder *builder, guint chunk, gboolean has_rest)
{
    const LayerRange range = builder_layers(builder, chunk);
    guint all[NUM_LOTS] = {0}, of[MAX_BLOCK_KINDS][NUM_LOTS] = {{0}};

    for (guint i = 0; i < range.count; i++) {
        const gboolean first =
            !has_rest || schedule_recomputes(&builder->spec->schedule, builder->pp, chunk, i);
        const Lot lot = first ? LOT_FIRST : LOT_REST;

        all[lot]++;
        of[model_block_kind(builder->spec->model, range.first + i)][lot]++;
    }
    builder->most_layers = MAX(builder->most_layers, range.count);
    for (guint lot = 0; lot < NUM_LOTS; lot++) {
        builder->most_of[lot] = MAX(builder->most_of[lot], all[lot]);
        for (guint k = 0; k < builder->num_kinds; k++)
            builder->kinds[k].most_of[lot] = MAX(builder->kinds[k].most_of[lot], of[k][lot]);
    }
}

static void builder_set_sizes(Builder *builder)
{
    const ProgramSpec *spec = builder->spec;
    const guint pp = spec->layout.size[AXIS_PP], chunks = schedule_chunks(&spec->schedule, pp);

    builder->pp = pp;
    builder->tp = spec->layout.size[AXIS_TP];
    builder->cp = spec->layout.size[AXIS_CP];
    builder->seq = spec->workload->seq_len / builder->cp;
    builder->sequence = builder->tp > 1 && spec->sequence_parallel;
    builder->ep = layout_ep(&spec->layout);
    builder->local = tensor_parallel_model(spec->model, builder->tp);
    builder->local.experts.held = spec->model->experts.count / builder->ep;
    builder->rows = spec->schedule.micro_batch * builder->seq;
    builder->local_rows = builder->sequence ? builder->rows / builder->tp : builder->rows;
    builder->dtype = spec->workload->recipe->compute;
    builder->splits_backward = spec->schedule.kind == SCHEDULE_ZB_H1;
    builder->has_embedding = builder->stage == 0;
    builder->has_head = builder->stage == (chunks - 1) % builder->pp;
    builder->num_kinds = model_num_kinds(spec->model);
    builder->kinds = g_new0(BuilderKind, builder->num_kinds);
    const gboolean has_rest = find_recompute(builder, chunks);
    for (guint c = builder->stage; c < chunks; c += builder->pp)
        count_layers(builder, c, has_rest);
}

static gboolean uses_scratch(const Builder *builder, const Op *op)
{
    for (guint i = 0; i < op->num_operands; i++)
        if (op->operands[i].tensor == builder->scratch)
            return TRUE;
    return FALSE;
}

/* Once all ops are complete: a bound may depend on any of their operands. */
static void size_scratch(Builder *builder)
{
    const ProgramSpec *spec = builder->spec;
    guint64 bytes = 0;

    for (guint s = 0; s < builder->program->segments->len; s++) {
        const Segment *segment = program_segment(builder->program, s);

        for (guint i = 0; i < segment->num_ops; i++) {
            const Op *op = &segment->ops[i];

            if (!uses_scratch(builder, op))
                continue;
            const guint64 needed = op_workspace_bytes(op, spec->device, spec->threads);
            bytes = MAX(bytes, needed);
        }
    }
    program_tensor(builder->program, builder->scratch)->elements = (bytes + 3) / 4;
}

void build_plain(Builder *builder)
{
    builder_set_sizes(builder);
    find_params(builder);
    add_units(builder);
    add_shared_tensors(builder);
    build_count_valid(builder);
    build_embedding(builder);
    build_blocks(builder);
    build_head(builder);
    size_scratch(builder);
    build_step(builder);
}
