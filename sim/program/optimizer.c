/* The end of the step: loss and gradient norm over all ranks, clipping, and the update of what this
 * rank holds. */
#include "sim/program/builder.h"

static gboolean class_is_sharded(const UnitClass *unit)
{
    return unit->strategy != STRATEGY_NO_SHARD;
}

static guint scalar(Builder *builder, const char *name)
{
    return program_add_tensor(builder->program, name, TENSOR_SCALAR, DTYPE_FP64, NO_SPACE, 1);
}

static gint state_tensor(Builder *builder, guint index, const char *what, TensorKind kind)
{
    Program *program = builder->program;
    const UnitClass *unit = program_unit(program, index);
    const guint64 elements = unit->map->shard_elements;
    const guint block = optimizer_moment_block(builder->spec->workload->optimizer);
    const gboolean coded = kind == TENSOR_MOMENT && block != 0;
    g_autofree char *name = g_strdup_printf("%s.%s", unit->name, what);
    const guint tensor =
        program_add_tensor(program, name, kind, coded ? DTYPE_UINT8 : DTYPE_FP32, unit->layer_space,
                           coded ? moment_bytes(elements, block) : elements);

    program_tensor(program, tensor)->unit = (gint)index;
    program_tensor(program, tensor)->part = PART_SHARD;
    return (gint)tensor;
}

static void add_state(Builder *builder, guint index)
{
    static const char *const moment_names[] = {"moment1", "moment2"};
    const Workload *workload = builder->spec->workload;

    if (workload->recipe->master) {
        const gint master = state_tensor(builder, index, "master", TENSOR_MASTER);
        program_unit(builder->program, index)->master = master;
    }
    for (guint i = 0; i < optimizer_moments(workload->optimizer); i++) {
        const gint moment = state_tensor(builder, index, moment_names[i], TENSOR_MOMENT);
        program_unit(builder->program, index)->moment[i] = moment;
    }
}

static Op *unit_op(Builder *builder, guint segment, OpKind kind, guint index)
{
    const Recipe *recipe = builder->spec->workload->recipe;
    Op *op = segment_add_op(builder->program, segment, kind, COMPUTE_STREAM, recipe->stored);

    op->dtype_out = recipe->gradient;
    op->unit = (gint)index;
    op->sizes.elements = program_unit(builder->program, index)->map->shard_elements;
    return op;
}

static void operand(Op *op, gint tensor, Access access)
{
    op_add_operand(op, (guint)tensor, access, 0, WHOLE_TENSOR);
}

static void build_norm(Builder *builder, guint index)
{
    const UnitClass unit = *program_unit(builder->program, index);
    g_autofree char *name = g_strdup_printf("%s.norm", unit.name);
    const guint segment = program_add_segment(builder->program, name);
    Op *op = unit_op(builder, segment, OP_SQUARED_NORM, index);

    operand(op, unit.gradient, ACCESS_READ);
    operand(op, (gint)(class_is_sharded(&unit) ? builder->sum_sharded : builder->sum_whole),
            ACCESS_ACCUMULATE);
    builder->classes[index].norm = (gint)segment;
}

/* Skipped, read on the device, when the loss or the norm is not finite. */
static void build_update(Builder *builder, guint index)
{
    const UnitClass unit = *program_unit(builder->program, index);
    const Optimizer optimizer = builder->spec->workload->optimizer;
    g_autofree char *name = g_strdup_printf("%s.update", unit.name);
    const guint segment = program_add_segment(builder->program, name);
    Op *op = unit_op(builder, segment, optimizer == OPTIMIZER_SGD ? OP_SGD : OP_ADAMW, index);

    op->sizes.chunk = optimizer_moment_block(optimizer);
    operand(op, unit.parameter, ACCESS_UPDATE);
    operand(op, unit.gradient, ACCESS_READ);
    for (guint i = 0; i < optimizer_moments(optimizer); i++)
        operand(op, unit.moment[i], ACCESS_UPDATE);
    operand(op, (gint)builder->hyper, ACCESS_READ);
    operand(op, (gint)builder->coefficient, ACCESS_READ);
    if (unit.master != NO_TENSOR)
        operand(op, unit.master, ACCESS_UPDATE);
    op->predicate = (gint)builder->finite;
    builder->classes[index].update = (gint)segment;
}

static void append_call(Builder *builder, gint segment, guint unit, gboolean first)
{
    const Draft draft = {
        .kind = DRAFT_OTHER, .segment = (guint)segment, .unit = unit, .first = first, .last = TRUE};

    g_array_append_val(builder->drafts, draft);
}

/* Squared norms of all units: those of sharded units are this rank's part of a sum over the shard
 * group; those of unsharded units are whole on every rank and are counted once. */
static void append_norms(Builder *builder, gboolean sharded)
{
    const Program *program = builder->program;
    gboolean first = TRUE;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        const guint index = program_unit_ref(program, u)->unit_class;

        if (!builder_has_unit(builder, u) ||
            class_is_sharded(program_unit(program, index)) != sharded)
            continue;
        append_call(builder, builder->classes[index].norm, u, first);
        first = FALSE;
    }
}

static gint build_clip(Builder *builder, gboolean any_sharded, gboolean any_whole)
{
    const guint segment = program_add_segment(builder->program, "clip");
    Op *op = segment_add_op(builder->program, segment, OP_CLIP, COMPUTE_STREAM, DTYPE_FP64);

    operand(op, (gint)builder->hyper, ACCESS_READ);
    operand(op, (gint)builder->valid, ACCESS_READ);
    operand(op, (gint)builder->loss, ACCESS_UPDATE);
    operand(op, (gint)builder->norm, ACCESS_WRITE);
    operand(op, (gint)builder->coefficient, ACCESS_WRITE);
    operand(op, (gint)builder->finite, ACCESS_WRITE);
    if (any_sharded)
        operand(op, (gint)builder->sum_sharded, ACCESS_READ);
    if (any_whole)
        operand(op, (gint)builder->sum_whole, ACCESS_READ);
    return (gint)segment;
}

static void append_updates(Builder *builder)
{
    const Program *program = builder->program;

    for (guint u = 0; u < program->unit_refs->len; u++) {
        if (!builder_has_unit(builder, u))
            continue;
        const ClassSegments *segments = &builder->classes[program_unit_ref(program, u)->unit_class];

        append_call(builder, segments->update, u, TRUE);
        if (segments->update_gather >= 0)
            append_call(builder, segments->update_gather, u, TRUE);
    }
}

/* The two copies of an embedding that is tied over stages have the same shards: a rank's shard is
 * summed with its counterpart's, once all other sums are done. */
static void append_tied_reduce(Builder *builder)
{
    Program *program = builder->program;
    const guint stream = builder_stream(builder, "embedding", "reduce");
    const guint segment = program_add_segment(program, "root.tied_reduce");
    Op *op = segment_add_op(program, segment, OP_ALL_REDUCE, stream,
                            builder->spec->workload->recipe->gradient);

    op->unit = (gint)program_unit_ref(program, ROOT_UNIT)->unit_class;
    op_add_operand(op, (guint)program_unit(program, (guint)op->unit)->gradient, ACCESS_UPDATE, 0,
                   builder->param[PARAM_EMBEDDING]);
    append_call(builder, (gint)segment, ROOT_UNIT, TRUE);
}

/* Whether any unit of the model, on whatever stage, is sharded, or is not. */
static gboolean any_unit(const Builder *builder, gboolean sharded)
{
    const ProgramSpec *spec = builder->spec;
    const guint layers = spec->model->layers;

    for (guint u = 0; u < builder->program->unit_refs->len; u++) {
        const guint unit = builder_sharding_unit(builder, u);
        const gboolean is_whole = sharding_unit_strategy(spec->sharding, unit) == STRATEGY_NO_SHARD;

        if (is_whole != sharded && (u <= layers || model_is_sparse(spec->model, u - layers - 1)))
            return TRUE;
    }
    return FALSE;
}

static void add_norms(Builder *builder, gboolean any_sharded, gboolean any_whole)
{
    const gboolean alone = builder->tp == 1 && builder->pp == 1;

    if (any_whole) {
        append_norms(builder, FALSE);
        if (!alone)
            builder_all_reduce(builder, "norm.reduce.whole", builder->sum_whole, "model");
    }
    if (any_sharded) {
        append_norms(builder, TRUE);
        builder_all_reduce(builder, "norm.reduce", builder->sum_sharded, alone ? "shard" : "norm");
    }
}

void pass_optimizer(Builder *builder)
{
    Program *program = builder->program;
    const gboolean any_sharded = any_unit(builder, TRUE), any_whole = any_unit(builder, FALSE);

    builder->norm = scalar(builder, "norm");
    builder->coefficient = scalar(builder, "coefficient");
    builder->finite = scalar(builder, "finite");
    if (any_sharded)
        builder->sum_sharded = scalar(builder, "sum_sharded");
    if (any_whole)
        builder->sum_whole = scalar(builder, "sum_whole");
    for (guint i = 0; i < program->units->len; i++) {
        if (program_unit(program, i)->map->elements == 0)
            continue;
        add_state(builder, i);
        build_norm(builder, i);
        build_update(builder, i);
    }
    builder_all_reduce(builder, "loss.reduce", builder->loss, builder->pp == 1 ? "data" : "loss");
    if (builder->pp > 1 && builder->local.tied && builder_has_unit(builder, ROOT_UNIT))
        append_tied_reduce(builder);
    add_norms(builder, any_sharded, any_whole);
    append_call(builder, build_clip(builder, any_sharded, any_whole), ROOT_UNIT, TRUE);
    append_updates(builder);
}
