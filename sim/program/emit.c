#include "sim/program/emit.h"

#include <string.h>

guint emit_tensor(Builder *builder, const char *name, DType dtype, guint space, guint64 elements)
{
    const char *kind = builder->kinds[builder->kind].name;

    if (*kind == '\0' && builder->lot == LOT_FIRST)
        return program_add_tensor(builder->program, name, TENSOR_ACTIVATION, dtype, space,
                                  elements);
    g_autofree char *full = g_strconcat(builder->lot == LOT_REST ? "rest." : "", kind,
                                        *kind == '\0' ? "" : ".", name, NULL);

    return program_add_tensor(builder->program, full, TENSOR_ACTIVATION, dtype, space, elements);
}

guint emit_activation(Builder *builder, const char *name, guint space, guint64 columns)
{
    return emit_tensor(builder, name, builder->dtype, space, builder->rows * columns);
}

guint emit_local_activation(Builder *builder, const char *name, guint space)
{
    return emit_local_columns(builder, name, space, builder->local.hidden);
}

guint emit_local_columns(Builder *builder, const char *name, guint space, guint64 columns)
{
    return emit_tensor(builder, name, builder->dtype, space, builder->local_rows * columns);
}

guint emit_activation_fp32(Builder *builder, const char *name, guint space, guint64 elements)
{
    return emit_tensor(builder, name, DTYPE_FP32, space, elements);
}

/* A norm goes over each token's values, but of queries and keys over each head's. */
static guint64 norm_columns(const Builder *builder, ParamRole param)
{
    const gboolean of_heads = param == PARAM_Q_NORM || param == PARAM_K_NORM;

    if (of_heads && model_norms_heads_apart(&builder->local))
        return builder->local.head_dim;
    return builder->param[param] >= 0 ? builder->rows_of[param] : builder->local.hidden;
}

static guint64 norm_rows(const Builder *builder, ParamRole param)
{
    const Model *model = &builder->local;
    const guint64 heads = param == PARAM_Q_NORM   ? model->heads
                          : param == PARAM_K_NORM ? model->kv_heads
                                                  : 0;

    if (heads == 0)
        return builder->local_rows;
    return builder->rows * heads * model->head_dim / norm_columns(builder, param);
}

guint emit_norm_stats(Builder *builder, const char *name, guint space, ParamRole param)
{
    const gboolean layer_norm = (builder->local.features & FEATURE_LAYER_NORM) != 0;

    return emit_activation_fp32(builder, name, space,
                                norm_rows(builder, param) * (layer_norm ? NUM_LAYERNORM : 1));
}

gboolean emit_has_norm(const Builder *builder, ParamRole param)
{
    return builder->param[param] >= 0 || (builder->local.features & FEATURE_BARE_NORM) != 0;
}

/* Layers with and without a window are counted as their mean, as they are one class of units. */
static double seen_pairs(const Builder *builder)
{
    const double seen = model_seen_pairs(builder->spec->model, builder->spec->workload->seq_len);

    return seen < 1 ? seen : 0;
}

Op *emit_op(const Emit *to, OpKind kind)
{
    Op *op =
        segment_add_op(to->builder->program, to->segment, kind, COMPUTE_STREAM, to->builder->dtype);
    const Model *model = &to->builder->local;

    op->sizes.rows = to->builder->rows;
    op->sizes.batch = to->builder->spec->schedule.micro_batch;
    op->sizes.seq = to->builder->seq;
    op->sizes.heads = model->heads;
    op->sizes.kv_heads = model->kv_heads;
    op->sizes.head_dim = model->head_dim;
    op->sizes.value_dim = model->latent.value_dim;
    op->sizes.in = op->sizes.out = model->hidden;
    op->sizes.eps = model->norm_eps;
    if (op_class(kind) == OP_CLASS_ATTENTION)
        op->sizes.seen = seen_pairs(to->builder);
    return op;
}

void emit_reads(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_READ, 0, WHOLE_TENSOR);
}

void emit_writes(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_WRITE, 0, WHOLE_TENSOR);
}

void emit_updates(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_UPDATE, 0, WHOLE_TENSOR);
}

void emit_accumulates(Op *op, guint tensor)
{
    op_add_operand(op, tensor, ACCESS_ACCUMULATE, 0, WHOLE_TENSOR);
}

void emit_reads_weight(const Emit *to, Op *op, ParamRole param)
{
    op_add_operand(op, to->weights, ACCESS_READ, 0, to->builder->param[param]);
}

void emit_accumulates_gradient(const Emit *to, Op *op, ParamRole param)
{
    op->dtype_out = to->gradient_dtype;
    op_add_operand(op, to->gradient, ACCESS_ACCUMULATE, 0, to->builder->param[param]);
}

void emit_uses_scratch(const Emit *to, Op *op)
{
    emit_writes(op, to->builder->scratch);
}

static gboolean is_layer_norm(const Emit *to)
{
    return (to->builder->local.features & FEATURE_LAYER_NORM) != 0;
}

static Op *norm_op(const Emit *to, OpKind rms, OpKind layer, ParamRole param)
{
    Op *op = emit_op(to, is_layer_norm(to) ? layer : rms);

    op->sizes.rows = norm_rows(to->builder, param);
    op->sizes.in = op->sizes.out = norm_columns(to->builder, param);
    return op;
}

static void reads_norm_weight(const Emit *to, Op *op, ParamRole param)
{
    if (to->builder->param[param] >= 0)
        emit_reads_weight(to, op, param);
    else
        emit_reads(op, to->builder->norm_ones);
}

static gboolean has_norm_bias(const Emit *to)
{
    return (to->builder->local.features & FEATURE_NORM_BIAS) != 0;
}

static void reads_norm_params(const Emit *to, Op *op, ParamRole param)
{
    reads_norm_weight(to, op, param);
    if (is_layer_norm(to) && has_norm_bias(to))
        emit_reads_weight(to, op, param + 1);
    else if (is_layer_norm(to))
        emit_reads(op, to->builder->norm_zeros);
}

static void accumulates_norm_gradients(const Emit *to, Op *op, ParamRole param)
{
    op->dtype_out = to->gradient_dtype;
    if (to->builder->param[param] >= 0)
        emit_accumulates_gradient(to, op, param);
    else
        emit_writes(op, to->builder->no_gradient[0]);
    if (is_layer_norm(to) && has_norm_bias(to))
        emit_accumulates_gradient(to, op, param + 1);
    else if (is_layer_norm(to))
        emit_writes(op, to->builder->no_gradient[1]);
}

static Op *norm_forward(const Emit *to, guint x, ParamRole param, guint y, guint stats)
{
    Op *op = norm_op(to, OP_RMSNORM, OP_LAYERNORM, param);

    emit_reads(op, x);
    reads_norm_params(to, op, param);
    emit_writes(op, y);
    emit_writes(op, stats);
    return op;
}

gboolean emit_is_spread(const Builder *builder, ParamRole param)
{
    return builder->tp > 1 && (builder->local.features & FEATURE_QK_NORM_OF_ALL) != 0 &&
           (param == PARAM_Q_NORM || param == PARAM_K_NORM);
}

/* Over the columns of all ranks: of x squared, or of x, @dy and the weight. */
static void sum_rows(const Emit *to, ParamRole param, guint x, gint dy, guint sums)
{
    Op *op = norm_op(to, OP_ROW_SUMS, OP_ROW_SUMS, param);

    emit_reads(op, x);
    emit_writes(op, sums);
    if (dy != NO_TENSOR) {
        emit_reads(op, (guint)dy);
        reads_norm_weight(to, op, param);
    }
    emit_sum_fp32(to, sums);
}

/* As in vLLM's MiniMaxText01RMSNormTP. */
void emit_norm(const Emit *to, guint x, ParamRole param, guint y, guint stats)
{
    if (emit_is_spread(to->builder, param)) {
        sum_rows(to, param, x, NO_TENSOR, stats);
        emit_norm_again(to, x, param, stats, y);
        return;
    }
    norm_forward(to, x, param, y, stats);
}

void emit_added_norm(const Emit *to, const AddedNorm *norm, ParamRole param)
{
    Op *op = norm_forward(to, norm->x, param, norm->y, norm->stats);

    emit_reads(op, norm->added);
    emit_writes(op, norm->sum);
}

void emit_norm_again(const Emit *to, guint x, ParamRole param, guint stats, guint y)
{
    Op *op = norm_op(to, OP_RMSNORM_APPLY, OP_LAYERNORM_APPLY, param);

    emit_reads(op, x);
    reads_norm_params(to, op, param);
    emit_reads(op, stats);
    emit_writes(op, y);
}

static Op *norm_backward(const Emit *to, const NormBackward *norm, ParamRole param)
{
    Op *op = norm_op(to, OP_RMSNORM_BACKWARD, OP_LAYERNORM_BACKWARD, param);

    emit_reads(op, norm->dy);
    emit_reads(op, norm->x);
    reads_norm_weight(to, op, param);
    emit_reads(op, norm->stats);
    op_add_operand(op, norm->dx, norm->dx_access, 0, WHOLE_TENSOR);
    accumulates_norm_gradients(to, op, param);
    emit_uses_scratch(to, op);
    return op;
}

void emit_norm_backward(const Emit *to, const NormBackward *norm, ParamRole param)
{
    norm_backward(to, norm, param);
}

void emit_spread_norm_backward(const Emit *to, const NormBackward *norm, ParamRole param,
                               guint sums)
{
    const gboolean spread = emit_is_spread(to->builder, param);

    if (spread)
        sum_rows(to, param, norm->x, (gint)norm->dy, sums);
    Op *op = norm_backward(to, norm, param);
    if (spread)
        emit_reads(op, sums);
}

/* In all of them the bias has the next role. */
static gboolean has_bias(const Emit *to, const Linear *weight)
{
    return to->builder->param[weight->param + 1] >= 0;
}

/* Whether what the weight gives is a partial sum: its columns are split over ranks. */
static gboolean is_partial(const Emit *to, const Linear *weight)
{
    return to->builder->tp > 1 && (weight->param == PARAM_O || weight->param == PARAM_DOWN ||
                                   weight->param == PARAM_SHARED_DOWN);
}

/* ---- products ---- */

/* What a product reads: a tensor, or one parameter of a unit. */
typedef struct {
    guint tensor;
    gint param;
} Factor;

static gboolean rounds_factors(const Emit *to)
{
    return to->builder->spec->workload->recipe->precision == DTYPE_FP8;
}

/* The tensor of that name, made when first asked for: one for all segments. */
static guint rounded_tensor(Builder *builder, const char *name, guint64 elements)
{
    Program *program = builder->program;

    for (guint t = program->tensors->len; t-- > 0;)
        if (strcmp(program_tensor(program, t)->name, name) == 0)
            return t;
    return program_add_tensor(program, name, TENSOR_WORKSPACE, DTYPE_FP8, NO_SPACE, elements);
}

/* Whether this segment has rounded @source before, and not written it since. */
static gboolean is_rounded(const Emit *to, const Factor *source, guint rounded)
{
    const Segment *segment = program_segment(to->builder->program, to->segment);

    for (guint i = segment->num_ops; i-- > 0;) {
        const Op *op = &segment->ops[i];

        if (op->kind == OP_CAST && op->operands[1].tensor == rounded)
            return TRUE;
        for (guint o = 0; o < op->num_operands; o++)
            if (op->operands[o].tensor == source->tensor && op->operands[o].access != ACCESS_READ)
                return FALSE;
    }
    return FALSE;
}

/* @source in fp8, by a pass of its own over @elements.  Left out: finding its scale (delayed
 * scaling does that in the same pass), casts that a kernel before does along, and weights that are
 * kept in fp8 from one micro-batch to the next. */
static Factor round_factor(const Emit *to, Factor source, const char *name, guint64 elements)
{
    const Factor rounded = {rounded_tensor(to->builder, name, elements), WHOLE_TENSOR};

    if (!is_rounded(to, &source, rounded.tensor)) {
        Op *op = emit_op(to, OP_CAST);

        op->dtype_out = DTYPE_FP8;
        op->sizes.elements = elements;
        op_add_operand(op, source.tensor, ACCESS_READ, 0, source.param);
        emit_writes(op, rounded.tensor);
    }
    return rounded;
}

static Factor activation_factor(const Emit *to, guint x)
{
    const Tensor *tensor = program_tensor(to->builder->program, x);
    const Factor source = {x, WHOLE_TENSOR};

    if (!rounds_factors(to))
        return source;
    g_autofree char *name = g_strconcat(tensor->name, ".fp8", NULL);
    return round_factor(to, source, name, tensor->elements);
}

/* A matrix's, as large in all blocks that it is said of: those of one kind; what blocks with
 * experts have beside the others' matrices is numbered by its role. */
static char *weight_name(const Emit *to, ParamRole role)
{
    const Builder *builder = to->builder;
    const char *kind = builder->kinds[builder->kind].name;

    if (role < PARAM_INPUT_NORM)
        return g_strdup_printf("weight.root.%d.fp8", role);
    if (role >= PARAM_ROUTER)
        return g_strdup_printf("weight.sparse.%d.fp8", role);
    if (*kind == '\0' || model_kind_is_sparse(builder->spec->model, builder->kind))
        return g_strdup_printf("weight.%d.fp8", builder->param[role]);
    return g_strdup_printf("weight.%s.%d.fp8", kind, builder->param[role]);
}

/* Gathered in fp8, it is read as it is. */
static Factor weight_factor(const Emit *to, const Linear *weight)
{
    const guint64 elements = MAX(weight->groups, 1) * weight->in * weight->out;
    const Factor source = {to->weights, to->builder->param[weight->param]};

    if (!rounds_factors(to) || to->builder->spec->sharding->gather_fp8)
        return source;
    g_autofree char *name = weight_name(to, weight->param);
    return round_factor(to, source, name, elements);
}

/* The same product of experts. */
static OpKind grouped_kind(OpKind kind)
{
    switch (kind) {
    case OP_LINEAR:
        return OP_GROUPED_LINEAR;
    case OP_LINEAR_BACKWARD_INPUT:
        return OP_GROUPED_LINEAR_BACKWARD_INPUT;
    default:
        return OP_GROUPED_LINEAR_BACKWARD_WEIGHT;
    }
}

static Op *emit_product(const Emit *to, OpKind kind, const Linear *weight, const Factor factors[2])
{
    Op *op = emit_op(to, weight->groups > 0 ? grouped_kind(kind) : kind);

    if (rounds_factors(to))
        op->dtype = DTYPE_FP8;
    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    op->sizes.groups = weight->groups;
    if (weight->rows > 0)
        op->sizes.rows = weight->rows;
    for (guint i = 0; i < 2; i++)
        op_add_operand(op, factors[i].tensor, ACCESS_READ, 0, factors[i].param);
    return op;
}

Op *emit_linear(const Emit *to, const Linear *weight, guint x, guint y, Access access)
{
    const Factor factors[2] = {activation_factor(to, x), weight_factor(to, weight)};
    Op *op = emit_product(to, OP_LINEAR, weight, factors);

    op_add_operand(op, y, access, 0, WHOLE_TENSOR);
    emit_uses_scratch(to, op);
    if (has_bias(to, weight) && !is_partial(to, weight))
        emit_reads_weight(to, op, weight->param + 1);
    return op;
}

void emit_sum_bias(const Emit *to, const Linear *weight, guint y)
{
    if (!has_bias(to, weight))
        return;
    Op *op = emit_op(to, OP_ADD_BIAS);

    op->sizes.rows = to->builder->local_rows;
    emit_updates(op, y);
    emit_reads_weight(to, op, weight->param + 1);
}

Op *emit_linear_backward_input(const Emit *to, const Linear *weight, guint dy, guint dx,
                               Access access)
{
    const Factor factors[2] = {activation_factor(to, dy), weight_factor(to, weight)};
    Op *op = emit_product(to, OP_LINEAR_BACKWARD_INPUT, weight, factors);

    op_add_operand(op, dx, access, 0, WHOLE_TENSOR);
    emit_uses_scratch(to, op);
    return op;
}

Op *emit_linear_backward_weight(const Emit *to, const Linear *weight, guint dy, guint x)
{
    const Factor factors[2] = {activation_factor(to, dy), activation_factor(to, x)};
    Op *op = emit_product(to, OP_LINEAR_BACKWARD_WEIGHT, weight, factors);

    emit_accumulates_gradient(to, op, weight->param);
    emit_uses_scratch(to, op);
    if (has_bias(to, weight))
        emit_accumulates_gradient(to, op, weight->param + 1);
    return op;
}

void emit_rope(const Emit *to, OpKind kind, guint q, guint k)
{
    if ((to->builder->local.features & FEATURE_ROPE) == 0)
        return;
    Op *op = emit_op(to, kind);

    op->sizes.head_dim = to->builder->local.rotary_dim; /* what it touches */
    emit_updates(op, q);
    emit_updates(op, k);
    emit_reads(op, to->builder->rope_table);
}

void emit_part(const Emit *to, guint from, guint target, guint64 elements, Access access)
{
    Op *op = emit_op(to, OP_CAST);

    op->sizes.elements = elements;
    emit_reads(op, from);
    op_add_operand(op, target, access, 0, WHOLE_TENSOR);
}

void emit_copy(const Emit *to, guint x, guint y, gint y_shift)
{
    Op *op = emit_op(to, OP_CAST);

    op->sizes.elements = to->builder->local_rows * to->builder->local.hidden;
    emit_reads(op, x);
    op_add_operand(op, y, ACCESS_WRITE, y_shift, WHOLE_TENSOR);
}

void emit_add(const Emit *to, guint x, guint y, gint y_shift)
{
    Op *op = emit_op(to, OP_ACCUMULATE);

    op->sizes.elements = to->builder->local_rows * to->builder->local.hidden;
    emit_reads(op, x);
    op_add_operand(op, y, ACCESS_UPDATE, y_shift, WHOLE_TENSOR);
}

void emit_sum(const Emit *to, guint x, guint added, guint y, gint y_shift)
{
    Op *op = emit_op(to, OP_ACCUMULATE);

    op->sizes.elements = to->builder->local_rows * to->builder->local.hidden;
    emit_reads(op, added);
    op_add_operand(op, y, ACCESS_WRITE, y_shift, WHOLE_TENSOR);
    emit_reads(op, x);
}

Op *emit_collective(const Emit *to, OpKind kind, const char *direction)
{
    Builder *builder = to->builder;
    Op *op = segment_add_op(builder->program, to->segment, kind,
                            builder_stream(builder, "tp", direction), builder->dtype);

    op->sizes.elements = builder->rows * builder->local.hidden;
    return op;
}

void emit_sum_fp32(const Emit *to, guint tensor)
{
    if (to->builder->tp == 1)
        return;
    Op *op = emit_collective(to, OP_ALL_REDUCE, "reduce");
    op->dtype = op->dtype_out = DTYPE_FP32;
    op->sizes.elements = program_tensor(to->builder->program, tensor)->elements;
    emit_updates(op, tensor);
}

void emit_gather_tokens(const Emit *to, guint local, guint whole)
{
    emit_gather_columns(to, local, whole, to->builder->local.hidden);
}

void emit_gather_columns(const Emit *to, guint local, guint whole, guint64 columns)
{
    if (!to->builder->sequence)
        return;
    Op *op = emit_collective(to, OP_ALL_GATHER, "gather");
    op->sizes.elements = to->builder->rows * columns;
    emit_reads(op, local);
    emit_writes(op, whole);
}

guint emit_reduce_partial(const Emit *to, guint partial, guint local)
{
    return emit_reduce_columns(to, partial, local, to->builder->local.hidden);
}

guint emit_reduce_columns(const Emit *to, guint partial, guint local, guint64 columns)
{
    if (to->builder->tp == 1)
        return partial;
    if (to->builder->sequence) {
        Op *op = emit_collective(to, OP_REDUCE_SCATTER, "reduce");

        op->sizes.elements = to->builder->rows * columns;
        emit_reads(op, partial);
        emit_writes(op, local);
        return local;
    }
    emit_updates(emit_collective(to, OP_ALL_REDUCE, "reduce"), partial);
    return partial;
}

guint emit_begin_root(Builder *builder, const char *name, Emit *to)
{
    const UnitClass *root = program_unit(builder->program, 0);

    *to = (Emit){
        .builder = builder,
        .segment = program_add_segment(builder->program, name),
        .weights = (guint)root->parameter,
        .gradient = (guint)root->gradient,
        .gradient_dtype = program_gradient_dtype(builder->spec),
    };
    return to->segment;
}
