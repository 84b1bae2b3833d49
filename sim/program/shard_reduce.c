/* Sharding, its second half: reductions of gradients. */
#include "sim/layout/tensor_parallel.h"
#include "sim/program/shard_parts.h"

void shard_gradients(Builder *builder, guint index)
{
    Program *program = builder->program;
    const UnitClass *unit = program_unit(program, index);
    g_autofree char *name = g_strdup_printf("%s.unit_gradients", unit->name);

    builder->classes[index].gradient_space = program_add_space_beside(
        program, name, MIN(unit->count, 2), /* one written, one in reduction */
        builder->classes[builder_first_alike(builder, index)].gradient_space);
    const guint whole = (guint)unit->gradient;
    Tensor *tensor = program_tensor(program, whole);
    tensor->name = program_name(program, name);
    tensor->kind = TENSOR_UNIT_GRADIENT;
    tensor->persistence = PERSIST_STEP;
    tensor->space = builder->classes[index].gradient_space;
    const guint gradient =
        shard_unit_tensor(builder, index, "gradients", TENSOR_GRADIENT,
                          builder->spec->workload->recipe->gradient, unit->layer_space);
    program_unit(program, index)->unit_gradient = (gint)whole;
    program_unit(program, index)->gradient = (gint)gradient;
}

static gboolean has_replicas(const Builder *builder)
{
    return builder->spec->layout.size[AXIS_DP_REPLICATE] > 1;
}

/* The replicas' sum of @summed, which @segment's last op has written. */
static void add_replica_all_reduce(Builder *builder, guint segment, guint index, guint summed)
{
    if (!has_replicas(builder))
        return;
    const guint stream = builder_stream(builder, "replicate", "reduce");
    Op *op = shard_unit_op(builder, segment, OP_ALL_REDUCE, stream, index);
    op_add_operand(op, summed, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    op->num_waits = 1;
    op->waits[0] = program_segment(builder->program, segment)->num_ops - 2;
}

/* Accumulators of another type than what is reduced. */
static gboolean casts_gradients(const Builder *builder)
{
    const Recipe *recipe = builder->spec->workload->recipe;

    return recipe->gradient != recipe->reduce;
}

/* All of a tensor in another type. */
static void add_cast(Builder *builder, guint segment, guint stream, guint from, guint to)
{
    const Tensor *source = program_tensor(builder->program, from);
    Op *op = segment_add_op(builder->program, segment, OP_CAST, stream, source->dtype);

    op->dtype_out = program_tensor(builder->program, to)->dtype;
    op->sizes.elements = source->elements;
    op_add_operand(op, from, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, to, ACCESS_WRITE, 0, WHOLE_TENSOR);
}

/* Back to what is accumulated, right behind the last op. */
static void add_cast_back(Builder *builder, guint segment, guint from, guint to)
{
    const Segment *so_far = program_segment(builder->program, segment);

    add_cast(builder, segment, so_far->ops[so_far->num_ops - 1].stream, from, to);
}

/* Gradients of what several ranks of the tp group hold alike, each from its own part of the work:
 * norms when tokens are split, keys and values when there are fewer kv heads than ranks. */
static void add_copies_all_reduce(Builder *builder, guint segment, guint index, guint gradient)
{
    Program *program = builder->program;
    const UnitMap *map = program_unit(program, index)->map;

    for (guint p = 0; p < map->num_params; p++) {
        const PartialSum sum =
            tensor_gradient_sum(builder->spec->model, map->params[p].role, builder->sequence);

        if (map->params[p].rows == 0 || map->params[p].copies == 1 || sum == SUM_NONE)
            continue;
        const guint stream = builder_stream(builder, sum == SUM_OVER_TP ? "tp" : "kv", "reduce");
        Op *op = segment_add_op(program, segment, OP_ALL_REDUCE, stream,
                                program_gradient_dtype(builder->spec));
        op->sizes.elements = map->params[p].rows * map->params[p].cols;
        op_add_operand(op, gradient, ACCESS_UPDATE, 0, (gint)p);
    }
}

/* Reduces one micro-batch's whole gradients: into the accumulating shard (the first), or beside it
 * and then added.  Beside it, too, where the shard has another type: then replicas sum what was
 * reduced, or the accumulated shard in that type. */
static guint build_reduce(Builder *builder, guint index, gboolean add, gboolean last)
{
    Program *program = builder->program;
    const UnitClass unit = *program_unit(program, index);
    const guint stream = shard_stream(builder, &unit, "reduce");
    g_autofree char *name = g_strdup_printf("reduce%s%s", add ? ".add" : "", last ? ".last" : "");
    const guint segment = shard_new_segment(builder, &unit, name);
    const Recipe *recipe = builder->spec->workload->recipe;
    const gboolean casts = casts_gradients(builder);
    const gboolean again = casts && add && last && has_replicas(builder);
    guint target = (guint)unit.gradient;

    if (add || casts)
        target = shard_unit_tensor(builder, index,
                                   last  ? "reduced.last"
                                   : add ? "reduced"
                                         : "reduced.first",
                                   TENSOR_COMMUNICATION, recipe->reduce, NO_SPACE);
    add_copies_all_reduce(builder, segment, index, (guint)unit.unit_gradient);
    Op *op = shard_unit_op(builder, segment, OP_REDUCE_SCATTER, stream, index);
    op_add_operand(op, (guint)unit.unit_gradient, ACCESS_READ, 0, WHOLE_TENSOR);
    op_add_operand(op, target, ACCESS_WRITE, 0, WHOLE_TENSOR);
    if (add) {
        op = segment_add_op(program, segment, OP_ACCUMULATE, stream, recipe->reduce);
        op->dtype_out = recipe->gradient;
        op->sizes.elements = unit.map->shard_elements;
        op_add_operand(op, target, ACCESS_READ, 0, WHOLE_TENSOR);
        op_add_operand(op, (guint)unit.gradient, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    }
    if (again)
        add_cast(builder, segment, stream, (guint)unit.gradient, target);
    if (last)
        add_replica_all_reduce(builder, segment, index, casts ? target : (guint)unit.gradient);
    if (again || (casts && !add))
        add_cast_back(builder, segment, target, (guint)unit.gradient);
    return segment;
}

/* Whole accumulators: reduced once, in place, or in a copy of the type that is reduced. */
static guint build_reduce_in_place(Builder *builder, guint index)
{
    Program *program = builder->program;
    const UnitClass unit = *program_unit(program, index);
    const guint segment = shard_new_segment(builder, &unit, "reduce");
    const gboolean sharded = unit.strategy != STRATEGY_NO_SHARD;
    const char *data = unit.kind == UNIT_EXPERTS ? "expert_data" : "data";
    const guint stream =
        sharded ? shard_stream(builder, &unit, "reduce") : builder_stream(builder, data, "reduce");
    guint whole = (guint)unit.gradient;

    add_copies_all_reduce(builder, segment, index, whole);
    if (casts_gradients(builder)) {
        whole = shard_call_buffer(builder, index, "summed", builder->spec->workload->recipe->reduce,
                                  PART_WHOLE);
        add_cast(builder, segment, stream, (guint)unit.gradient, whole);
    }
    Op *op =
        shard_unit_op(builder, segment, sharded ? OP_REDUCE_SCATTER : OP_ALL_REDUCE, stream, index);

    op_add_operand(op, whole, ACCESS_UPDATE, 0, WHOLE_TENSOR);
    if (sharded)
        add_replica_all_reduce(builder, segment, index, whole);
    if (casts_gradients(builder))
        add_cast_back(builder, segment, whole, (guint)unit.gradient);
    return segment;
}

void shard_build_reductions(Builder *builder, guint index)
{
    ClassSegments *segments = &builder->classes[index];
    const gboolean several = builder->spec->schedule.micro_batches > 1;

    if (program_unit(builder->program, index)->unit_gradient == NO_TENSOR) {
        segments->reduce_last = (gint)build_reduce_in_place(builder, index);
        return;
    }
    if (several) {
        segments->reduce_first = (gint)build_reduce(builder, index, FALSE, FALSE);
        segments->reduce_last = (gint)build_reduce(builder, index, TRUE, TRUE);
    } else {
        segments->reduce_last = (gint)build_reduce(builder, index, FALSE, TRUE);
    }
    if (builder->spec->schedule.micro_batches > 2)
        segments->reduce_add = (gint)build_reduce(builder, index, TRUE, FALSE);
}
