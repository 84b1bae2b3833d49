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

UnitMap *builder_unit_map(const Builder *builder, UnitKind kind, Strategy strategy, guint ranks)
{
    UnitMap *map = unit_map_new(builder->params[kind], ranks, unit_form(builder, kind));

    for (guint i = 0; i < map->num_params; i++)
        map->params[i].copies =
            kind == UNIT_EXPERTS
                ? expert_copies(builder, strategy)
                : tensor_copies(builder->spec->model, map->params[i].role, builder->tp);
    if (kind == UNIT_ROOT && builder->pp > 1 && builder->local.tied)
        map->params[builder->param[PARAM_EMBEDDING]].copies *= 2;
    return map;
}

static guint add_unit_class(Builder *builder, UnitKind kind, Strategy strategy, const char *name)
{
    Program *program = builder->program;
    const guint index = program->units->len;
    const GArray *params = builder->params[kind];
    UnitClass unit = {
        .name = program_name(program, name),
        .prefix = program_name(program,
                               kind == UNIT_ROOT ? "" : model_block_prefix(builder->spec->model)),
        .kind = kind,
        .strategy = strategy,
        .count = 0,
        .map = builder_unit_map(builder, kind, strategy, 1),
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

static guint block_class(Builder *builder, UnitKind kind, Strategy strategy)
{
    static const char *const names[NUM_UNIT_KINDS] = {
        [UNIT_BLOCK] = "block", [UNIT_SPARSE] = "sparse", [UNIT_EXPERTS] = "experts"};
    Program *program = builder->program;
    gboolean first = TRUE;

    for (guint i = 1; i < program->units->len; i++) {
        const UnitClass *unit = program_unit(program, i);

        if (unit->kind == kind && unit->strategy == strategy)
            return i;
        first &= unit->kind != kind;
    }
    g_autofree char *name = first ? g_strdup(names[kind])
                                  : g_strdup_printf("%s.%s", names[kind], strategy_name(strategy));
    return add_unit_class(builder, kind, strategy, name);
}

/* Whole parameters and whole gradients, one copy a unit. */
static void add_unit_tensors(Builder *builder, guint index)
{
    Program *program = builder->program;
    UnitClass *unit = program_unit(program, index);
    const Recipe *recipe = builder->spec->workload->recipe;
    g_autofree char *parameter = g_strdup_printf("%s.parameters", unit->name);
    g_autofree char *gradient = g_strdup_printf("%s.gradients", unit->name);

    unit->layer_space = program_add_space(program, unit->name, unit->count);
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
        (kind == UNIT_BLOCK || model_is_sparse(builder->spec->model, block))) {
        const guint unit = (kind == UNIT_EXPERTS ? EXPERTS_UNITS : ROOT_UNIT) + block + 1;

        ref.unit_class =
            block_class(builder, kind, sharding_unit_strategy(builder->spec->sharding, unit));
        ref.index = program_unit(program, ref.unit_class)->count++;
    }
    g_array_append_val(program->unit_refs, ref);
}

static void add_unit_refs(Builder *builder)
{
    Program *program = builder->program;
    const Model *model = builder->spec->model;
    const Sharding *sharding = builder->spec->sharding;
    UnitRef ref = {
        add_unit_class(builder, UNIT_ROOT, sharding_unit_strategy(sharding, ROOT_UNIT), "root"),
        program_unit(program, 0)->count++};

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
    static const struct {
        Ring saved, kept, again_kept;
    } rings[NUM_LOTS][2] = {
        [LOT_FIRST] = {{RING_SAVED, RING_KEPT, RING_AGAIN_KEPT},
                       {RING_SPARSE, RING_SPARSE_KEPT, RING_SPARSE_AGAIN_KEPT}},
        [LOT_REST] = {{RING_REST_SAVED, RING_REST_KEPT, NUM_RINGS},
                      {RING_REST_SPARSE, RING_REST_SPARSE_KEPT, NUM_RINGS}},
    };
    const gboolean kept = builder->splits_backward && until == UNTIL_WEIGHTS;
    const guint kind = builder->is_sparse ? 1 : 0;

    g_assert(!again || builder->lot == LOT_FIRST);
    if (again && !kept)
        return builder->ring_space[RING_AGAIN];
    return builder->ring_space[again  ? rings[builder->lot][kind].again_kept
                               : kept ? rings[builder->lot][kind].kept
                                      : rings[builder->lot][kind].saved];
}

/* Copies are counted once the step is laid out. */
static void add_rings(Builder *builder)
{
    static const char *const names[NUM_RINGS] = {
        [RING_RESIDUAL] = "residual",
        [RING_SAVED] = "saved",
        [RING_KEPT] = "kept",
        [RING_AGAIN] = "again",
        [RING_AGAIN_KEPT] = "again_kept",
        [RING_WEIGHTS] = "weights",
        [RING_GRADIENT] = "gradient",
        [RING_INBOX] = "inbox",
        [RING_SPARSE] = "sparse_saved",
        [RING_SPARSE_KEPT] = "sparse_kept",
        [RING_SPARSE_AGAIN_KEPT] = "sparse_again_kept",
        [RING_SPARSE_WEIGHTS] = "sparse_weights",
        [RING_REST_SAVED] = "rest_saved",
        [RING_REST_KEPT] = "rest_kept",
        [RING_REST_WEIGHTS] = "rest_weights",
        [RING_REST_SPARSE] = "rest_sparse_saved",
        [RING_REST_SPARSE_KEPT] = "rest_sparse_kept",
        [RING_REST_SPARSE_WEIGHTS] = "rest_sparse_weights",
    };
    const gboolean saves = builder->recompute != RECOMPUTE_FULL;
    const gboolean again = builder->recompute != RECOMPUTE_NONE;
    const gboolean splits = builder->splits_backward;
    const guint *dense = builder->most_dense, *sparse = builder->most_sparse;
    const gboolean used[NUM_RINGS] = {
        [RING_RESIDUAL] = TRUE,
        [RING_SAVED] = saves && dense[LOT_FIRST] > 0,
        [RING_KEPT] = splits && saves && dense[LOT_FIRST] > 0,
        [RING_AGAIN] = again,
        [RING_AGAIN_KEPT] = splits && again && dense[LOT_FIRST] > 0,
        [RING_WEIGHTS] = splits && dense[LOT_FIRST] > 0,
        [RING_GRADIENT] = TRUE,
        [RING_INBOX] = builder->pp > 1,
        [RING_SPARSE] = saves && sparse[LOT_FIRST] > 0,
        [RING_SPARSE_KEPT] = splits && saves && sparse[LOT_FIRST] > 0,
        [RING_SPARSE_AGAIN_KEPT] = splits && again && sparse[LOT_FIRST] > 0,
        [RING_SPARSE_WEIGHTS] = splits && sparse[LOT_FIRST] > 0,
        [RING_REST_SAVED] = dense[LOT_REST] > 0,
        [RING_REST_KEPT] = splits && dense[LOT_REST] > 0,
        [RING_REST_WEIGHTS] = splits && dense[LOT_REST] > 0,
        [RING_REST_SPARSE] = sparse[LOT_REST] > 0,
        [RING_REST_SPARSE_KEPT] = splits && sparse[LOT_REST] > 0,
        [RING_REST_SPARSE_WEIGHTS] = splits && sparse[LOT_REST] > 0,
    };

    for (guint r = 0; r < NUM_RINGS; r++)
        builder->ring_space[r] =
            used[r] ? program_add_space(builder->program, names[r], 1) : NO_SPACE;
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
        emit_local_activation(builder, "residual", builder->ring_space[RING_RESIDUAL]);
    builder->residual_gradient =
        emit_local_activation(builder, "dresidual", builder->ring_space[RING_GRADIENT]);
    if (builder->pp > 1 &&
        !(builder->has_embedding && schedule_virtual_stages(&builder->spec->schedule) == 1))
        builder->inbox = emit_local_activation(builder, "inbox", builder->ring_space[RING_INBOX]);
    builder->scratch =
        program_add_tensor(program, "scratch", TENSOR_WORKSPACE, DTYPE_FP32, NO_SPACE, 0);
}

/* What both kinds of block have stands in the same places: storage order begins with it. */
static void find_params(Builder *builder)
{
    for (guint r = 0; r < NUM_PARAM_ROLES; r++)
        builder->param[r] = -1;
    for (guint k = 0; k < (builder->local.experts.count > 0 ? NUM_UNIT_KINDS : UNIT_SPARSE); k++) {
        GArray *params = builder->params[k] = model_unit_params(&builder->local, (UnitKind)k);

        for (guint i = 0; i < params->len; i++) {
            ParamShape *shape = &g_array_index(params, ParamShape, i);

            builder->param[shape->role] = (gint)i;
            builder->rows_of[shape->role] = shape->rows;
            if (k == UNIT_ROOT && !has_root_param(builder, shape->role))
                shape->rows = 0;
        }
    }
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
    guint all[NUM_LOTS] = {0}, sparse[NUM_LOTS] = {0};

    for (guint i = 0; i < range.count; i++) {
        const gboolean first =
            !has_rest || schedule_recomputes(&builder->spec->schedule, builder->pp, chunk, i);
        const Lot lot = first ? LOT_FIRST : LOT_REST;

        all[lot]++;
        sparse[lot] += model_is_sparse(builder->spec->model, range.first + i) ? 1 : 0;
    }
    builder->most_layers = MAX(builder->most_layers, range.count);
    for (guint lot = 0; lot < NUM_LOTS; lot++) {
        builder->most_of[lot] = MAX(builder->most_of[lot], all[lot]);
        builder->most_sparse[lot] = MAX(builder->most_sparse[lot], sparse[lot]);
        builder->most_dense[lot] = MAX(builder->most_dense[lot], all[lot] - sparse[lot]);
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
