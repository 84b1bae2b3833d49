/* The plain program: one stream, whole parameters, whole gradients; units, shared tensors, and the
 * order of a step. */
#include "sim/layout/tensor_parallel.h"
#include "sim/program/emit.h"

UnitMap *builder_unit_map(const Builder *builder, UnitKind kind, guint ranks)
{
    g_autoptr(GArray) params = model_unit_params(&builder->local, kind);
    UnitMap *map = unit_map_new(params, ranks, builder->spec->sharding->form);

    for (guint i = 0; i < map->num_params; i++)
        map->params[i].copies = tensor_split(builder->spec->model, kind, i, builder->tp).copies;
    return map;
}

static guint add_unit_class(Builder *builder, UnitKind kind, Strategy strategy, const char *name)
{
    Program *program = builder->program;
    const guint index = program->units->len;
    g_autoptr(GArray) params = model_unit_params(builder->spec->model, kind);
    UnitClass unit = {
        .name = g_strdup(name),
        .prefix = g_strdup(kind == UNIT_ROOT ? "" : model_block_prefix(builder->spec->model)),
        .kind = kind,
        .strategy = strategy,
        .count = 0,
        .map = builder_unit_map(builder, kind, 1),
        .param_names = g_new0(char *, params->len + 1),
        .parameter = NO_TENSOR,
        .gathered = NO_TENSOR,
        .unit_gradient = NO_TENSOR,
        .gradient = NO_TENSOR,
        .master = NO_TENSOR,
        .moment = {NO_TENSOR, NO_TENSOR},
    };

    for (guint i = 0; i < params->len; i++)
        unit.param_names[i] = g_strdup(g_array_index(params, ParamShape, i).name);
    g_array_append_val(program->units, unit);
    return index;
}

static guint block_class(Builder *builder, Strategy strategy)
{
    Program *program = builder->program;

    for (guint i = 1; i < program->units->len; i++)
        if (program_unit(program, i)->strategy == strategy)
            return i;
    g_autofree char *name = program->units->len == 1
                                ? g_strdup("block")
                                : g_strdup_printf("block.%s", strategy_name(strategy));
    return add_unit_class(builder, UNIT_BLOCK, strategy, name);
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
    unit->gradient = (gint)program_add_tensor(program, gradient, TENSOR_GRADIENT, recipe->gradient,
                                              unit->layer_space, unit->map->full_elements);
    program_tensor(program, (guint)unit->parameter)->unit = (gint)index;
    program_tensor(program, (guint)unit->parameter)->part = PART_WHOLE;
    program_tensor(program, (guint)unit->gradient)->unit = (gint)index;
    program_tensor(program, (guint)unit->gradient)->part = PART_WHOLE;
}

static void add_units(Builder *builder)
{
    Program *program = builder->program;
    const Sharding *sharding = builder->spec->sharding;
    UnitRef ref = {
        add_unit_class(builder, UNIT_ROOT, sharding_unit_strategy(sharding, ROOT_UNIT), "root"),
        program_unit(program, 0)->count++};

    g_array_append_val(program->unit_refs, ref);
    for (guint i = 0; i < builder->spec->model->layers; i++) {
        ref.unit_class = block_class(builder, sharding_unit_strategy(sharding, i + 1));
        ref.index = program_unit(program, ref.unit_class)->count++;
        g_array_append_val(program->unit_refs, ref);
    }
    for (guint i = 0; i < program->units->len; i++)
        add_unit_tensors(builder, i);
    builder->classes = g_new(ClassSegments, program->units->len);
    for (guint i = 0; i < program->units->len; i++)
        builder->classes[i] = (ClassSegments){.forward = -1,
                                              .backward = -1,
                                              .recompute = -1,
                                              .gather = -1,
                                              .reduce_first = -1,
                                              .reduce_add = -1,
                                              .reduce_last = -1,
                                              .update_gather = -1,
                                              .norm = -1,
                                              .update = -1};
}

static void add_shared_tensors(Builder *builder)
{
    Program *program = builder->program;
    const ProgramSpec *spec = builder->spec;
    const Model *model = &builder->local;
    const guint64 seq = spec->workload->seq_len;

    builder->micro_batch_space =
        program_add_space(program, "micro_batch", spec->schedule.micro_batches);
    builder->residual_space = program_add_space(program, "residual", model->layers + 1);
    builder->saved_space = program_add_space(program, "saved", model->layers);
    builder->tokens = program_add_tensor(program, "tokens", TENSOR_INPUT, DTYPE_INT32,
                                         builder->micro_batch_space, builder->rows);
    builder->labels = program_add_tensor(program, "labels", TENSOR_INPUT, DTYPE_INT32,
                                         builder->micro_batch_space, builder->rows);
    if ((model->features & FEATURE_ROPE) != 0)
        builder->rope_table = program_add_tensor(program, "rope_table", TENSOR_INPUT, DTYPE_FP32,
                                                 NO_SPACE, seq * model->head_dim);
    if ((model->features & FEATURE_POSITIONS) != 0)
        builder->positions = program_add_tensor(program, "positions", TENSOR_INPUT, DTYPE_INT32,
                                                NO_SPACE, builder->local_rows);
    builder->hyper =
        program_add_tensor(program, "hyper", TENSOR_INPUT, DTYPE_FP64, NO_SPACE, NUM_HYPER);
    builder->valid = program_add_tensor(program, "valid", TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
    builder->loss = program_add_tensor(program, "loss", TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
    builder->residual = emit_local_activation(builder, "residual", builder->residual_space);
    builder->residual_gradient = emit_local_activation(builder, "dresidual", NO_SPACE);
    if (builder->tp > 1)
        builder->vocab_range = program_add_tensor(program, "vocab_range", TENSOR_INPUT, DTYPE_FP64,
                                                  NO_SPACE, NUM_RANGE);
    builder->scratch =
        program_add_tensor(program, "scratch", TENSOR_WORKSPACE, DTYPE_FP32, NO_SPACE, 0);
}

static void find_params(Builder *builder)
{
    static const UnitKind kinds[] = {UNIT_ROOT, UNIT_BLOCK};

    for (guint r = 0; r < NUM_PARAM_ROLES; r++)
        builder->param[r] = -1;
    for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
        g_autoptr(GArray) params = model_unit_params(&builder->local, kinds[k]);

        for (guint i = 0; i < params->len; i++)
            builder->param[g_array_index(params, ParamShape, i).role] = (gint)i;
    }
}

/* ---- the plain step ---- */

static Draft *draft(Builder *builder, gint segment, guint unit, guint micro_batch)
{
    const Draft new_draft = {
        .kind = DRAFT_COMPUTE,
        .segment = (guint)segment,
        .unit = unit,
        .micro_batch = micro_batch,
        .first = micro_batch == 0,
        .last = micro_batch + 1 == builder->spec->schedule.micro_batches,
    };

    g_array_append_val(builder->drafts, new_draft);
    return builder_draft(builder, builder->drafts->len - 1);
}

static void draft_micro_batch(Builder *builder, guint micro_batch)
{
    const guint layers = builder->spec->model->layers;

    draft(builder, builder->embed, ROOT_UNIT, micro_batch)->uses_weights = TRUE;
    for (guint i = 0; i < layers; i++) {
        const guint unit_class = program_unit_ref(builder->program, i + 1)->unit_class;
        Draft *forward = draft(builder, builder->classes[unit_class].forward, i + 1, micro_batch);

        forward->uses_weights = TRUE;
        forward->residual = forward->saved = i;
    }
    Draft *head = draft(builder, builder->head, ROOT_UNIT, micro_batch);
    head->uses_weights = head->opens_gradient = TRUE;
    head->residual = layers;
    for (guint i = layers; i-- > 0;) {
        const guint unit_class = program_unit_ref(builder->program, i + 1)->unit_class;
        Draft *backward = draft(builder, builder->classes[unit_class].backward, i + 1, micro_batch);

        backward->uses_weights = backward->opens_gradient = TRUE;
        backward->residual = backward->saved = i;
    }
    draft(builder, builder->embed_backward, ROOT_UNIT, micro_batch);
}

void build_plain(Builder *builder)
{
    const Schedule *schedule = &builder->spec->schedule;

    builder->tp = builder->spec->layout.size[AXIS_TP];
    builder->sequence = builder->tp > 1 && builder->spec->sequence_parallel;
    builder->local = tensor_parallel_model(builder->spec->model, builder->tp);
    find_params(builder);
    builder->rows = (guint64)schedule->micro_batch * builder->spec->workload->seq_len;
    builder->local_rows = builder->sequence ? builder->rows / builder->tp : builder->rows;
    builder->dtype = builder->spec->workload->recipe->compute;
    add_units(builder);
    add_shared_tensors(builder);
    build_count_valid(builder);
    build_embedding(builder);
    build_blocks(builder);
    build_head(builder);
    program_tensor(builder->program, builder->scratch)->elements = (builder->scratch_bytes + 3) / 4;
    for (guint m = 0; m < schedule->micro_batches; m++)
        draft(builder, builder->count_valid, ROOT_UNIT, m)->kind = DRAFT_OTHER;
    for (guint m = 0; m < schedule->micro_batches; m++)
        draft_micro_batch(builder, m);
}
