#include "sim/program/emit.h"

guint emit_activation(Builder *builder, const char *name, guint space, guint64 columns)
{
    return program_add_tensor(builder->program, name, TENSOR_ACTIVATION, builder->dtype, space,
                              builder->rows * columns);
}

guint emit_local_activation(Builder *builder, const char *name, guint space)
{
    return program_add_tensor(builder->program, name, TENSOR_ACTIVATION, builder->dtype, space,
                              builder->local_rows * builder->local.hidden);
}

guint emit_activation_fp32(Builder *builder, const char *name, guint space, guint64 elements)
{
    return program_add_tensor(builder->program, name, TENSOR_ACTIVATION, DTYPE_FP32, space,
                              elements);
}

Op *emit_op(const Emit *to, OpKind kind)
{
    Op *op =
        segment_add_op(to->builder->program, to->segment, kind, COMPUTE_STREAM, to->builder->dtype);
    const Model *model = &to->builder->local;

    op->sizes.rows = to->builder->rows;
    op->sizes.batch = to->builder->spec->schedule.micro_batch;
    op->sizes.seq = to->builder->spec->workload->seq_len;
    op->sizes.heads = model->heads;
    op->sizes.kv_heads = model->kv_heads;
    op->sizes.head_dim = model->head_dim;
    op->sizes.in = op->sizes.out = model->hidden;
    op->sizes.eps = model->norm_eps;
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
    Builder *builder = to->builder;
    const guint64 bytes = op_workspace_bytes(op, builder->spec->device, builder->spec->threads);

    builder->scratch_bytes = MAX(builder->scratch_bytes, bytes);
    emit_writes(op, builder->scratch);
}

void emit_rmsnorm(const Emit *to, guint x, ParamRole param, guint y, guint rstd)
{
    Op *op = emit_op(to, OP_RMSNORM);

    op->sizes.rows = to->builder->local_rows;
    emit_reads(op, x);
    emit_reads_weight(to, op, param);
    emit_writes(op, y);
    emit_writes(op, rstd);
}

void emit_rmsnorm_again(const Emit *to, guint x, ParamRole param, guint rstd, guint y)
{
    Op *op = emit_op(to, OP_RMSNORM_APPLY);

    op->sizes.rows = to->builder->local_rows;
    emit_reads(op, x);
    emit_reads_weight(to, op, param);
    emit_reads(op, rstd);
    emit_writes(op, y);
}

void emit_rmsnorm_backward(const Emit *to, const NormBackward *norm, ParamRole param)
{
    Op *op = emit_op(to, OP_RMSNORM_BACKWARD);

    op->sizes.rows = to->builder->local_rows;
    emit_reads(op, norm->dy);
    emit_reads(op, norm->x);
    emit_reads_weight(to, op, param);
    emit_reads(op, norm->rstd);
    op_add_operand(op, norm->dx, norm->dx_access, 0, WHOLE_TENSOR);
    emit_accumulates_gradient(to, op, param);
    emit_uses_scratch(to, op);
}

Op *emit_linear(const Emit *to, const Linear *weight, guint x, guint y, Access access)
{
    Op *op = emit_op(to, OP_LINEAR);

    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    emit_reads(op, x);
    emit_reads_weight(to, op, weight->param);
    op_add_operand(op, y, access, 0, WHOLE_TENSOR);
    emit_uses_scratch(to, op);
    return op;
}

void emit_linear_backward_input(const Emit *to, const Linear *weight, guint dy, guint dx,
                                Access access)
{
    Op *op = emit_op(to, OP_LINEAR_BACKWARD_INPUT);

    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    emit_reads(op, dy);
    emit_reads_weight(to, op, weight->param);
    op_add_operand(op, dx, access, 0, WHOLE_TENSOR);
    emit_uses_scratch(to, op);
}

void emit_linear_backward_weight(const Emit *to, const Linear *weight, guint dy, guint x)
{
    Op *op = emit_op(to, OP_LINEAR_BACKWARD_WEIGHT);

    op->sizes.in = weight->in;
    op->sizes.out = weight->out;
    emit_reads(op, dy);
    emit_reads(op, x);
    emit_accumulates_gradient(to, op, weight->param);
    emit_uses_scratch(to, op);
}

void emit_rope(const Emit *to, OpKind kind, guint q, guint k)
{
    Op *op = emit_op(to, kind);

    emit_updates(op, q);
    emit_updates(op, k);
    emit_reads(op, to->builder->rope_table);
}

void emit_copy(const Emit *to, guint x, guint y, gint y_shift)
{
    Op *op = emit_op(to, OP_CAST);

    op->sizes.elements = to->builder->local_rows * to->builder->local.hidden;
    emit_reads(op, x);
    op_add_operand(op, y, ACCESS_WRITE, y_shift, WHOLE_TENSOR);
}

Op *emit_collective(const Emit *to, OpKind kind, const char *direction)
{
    Builder *builder = to->builder;
    Op *op = segment_add_op(builder->program, to->segment, kind,
                            builder_stream(builder, "tp", direction), builder->dtype);

    op->sizes.elements = builder->rows * builder->local.hidden;
    return op;
}

void emit_gather_tokens(const Emit *to, guint local, guint whole)
{
    if (!to->builder->sequence)
        return;
    Op *op = emit_collective(to, OP_ALL_GATHER, "gather");
    emit_reads(op, local);
    emit_writes(op, whole);
}

guint emit_reduce_partial(const Emit *to, guint partial, guint local)
{
    if (to->builder->tp == 1)
        return partial;
    if (to->builder->sequence) {
        Op *op = emit_collective(to, OP_REDUCE_SCATTER, "reduce");

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
        .gradient_dtype = builder->spec->workload->recipe->gradient,
    };
    return to->segment;
}
