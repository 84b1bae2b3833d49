/* The root: embedding, learned positions, final norm, head and loss. */
#include "sim/program/emit.h"

static gboolean has_positions(const Builder *builder)
{
    return (builder->local.features & FEATURE_POSITIONS) != 0;
}

/* Of this rank's tokens of the residual stream only: the table is whole on every rank. */
static void add_positions(const Emit *to)
{
    Builder *builder = to->builder;

    if (!has_positions(builder))
        return;
    Op *op = emit_op(to, OP_EMBED);
    op->sizes.rows = builder->local_rows;
    op->sizes.in = builder->local.position_rows;
    emit_reads(op, builder->positions);
    emit_reads_weight(to, op, PARAM_POSITIONS);
    emit_updates(op, builder->residual);
}

static void positions_backward(const Emit *to)
{
    Builder *builder = to->builder;

    if (!has_positions(builder))
        return;
    Op *op = emit_op(to, OP_EMBED_BACKWARD);
    op->sizes.rows = builder->local_rows;
    op->sizes.in = builder->local.position_rows;
    emit_reads(op, builder->positions);
    emit_reads(op, builder->residual_gradient);
    emit_accumulates_gradient(to, op, PARAM_POSITIONS);
}

/* With tp > 1 each rank looks up the words that it has; the sum over ranks is the embedding. */
static void embedding_forward(const Emit *to)
{
    Builder *builder = to->builder;
    const gboolean sequence = builder->sequence;
    const guint x = sequence ? emit_activation(builder, "embedded", NO_SPACE, builder->local.hidden)
                             : builder->residual;
    Op *op = emit_op(to, OP_EMBED);

    op->sizes.in = builder->local.vocab;
    emit_reads(op, builder->tokens);
    emit_reads_weight(to, op, PARAM_EMBEDDING);
    emit_writes(op, x);
    if (builder->tp > 1)
        emit_reads(op, builder->vocab_range);
    emit_reduce_partial(to, x, builder->residual);
    add_positions(to);
}

static void embedding_backward(const Emit *to)
{
    Builder *builder = to->builder;
    const guint dx = builder->sequence
                         ? emit_activation(builder, "dembedded", NO_SPACE, builder->local.hidden)
                         : builder->residual_gradient;

    positions_backward(to);
    emit_gather_tokens(to, builder->residual_gradient, dx);
    Op *op = emit_op(to, OP_EMBED_BACKWARD);
    op->sizes.in = builder->local.vocab;
    emit_reads(op, builder->tokens);
    emit_reads(op, dx);
    emit_accumulates_gradient(to, op, PARAM_EMBEDDING);
    if (builder->local.tied && builder->has_head) /* which wrote that gradient before */
        op->operands[op->num_operands - 1].access = ACCESS_UPDATE;
    if (builder->tp > 1)
        emit_reads(op, builder->vocab_range);
}

/* A chunk's input, from where it was received to where its first block reads it. */
static void build_input(Builder *builder)
{
    Emit to;

    builder->input = -1;
    if (builder->inbox == 0)
        return;
    builder->input = (gint)emit_begin_root(builder, "input", &to);
    emit_copy(&to, builder->inbox, builder->residual, 0);
}

void build_embedding(Builder *builder)
{
    Emit to;

    build_input(builder);
    builder->embed = builder->embed_backward = -1;
    if (!builder->has_embedding)
        return;
    builder->embed = (gint)emit_begin_root(builder, "embed.forward", &to);
    embedding_forward(&to);
    builder->embed_backward = (gint)emit_begin_root(builder, "embed.backward", &to);
    embedding_backward(&to);
}

/* Rows of logits at a time: about 512 MiB of fp32 logits on a GPU, 16 MiB (two caches' worth) on a
 * CPU, and never fewer rows than keep a product efficient. */
static guint64 head_chunk(const Builder *builder)
{
    const guint64 logits = builder->spec->device == DEVICE_CUDA ? 1u << 27 : 1u << 22;
    const guint64 least = builder->spec->device == DEVICE_CUDA ? 1024 : 128;
    const guint64 rows = logits / builder->local.vocab;

    return MIN(builder->rows, MAX(least, rows / least * least));
}

static Op *head_op(const Emit *to, OpKind kind, guint normed, guint head)
{
    Builder *builder = to->builder;
    Op *op = emit_op(to, kind);

    op->sizes.out = builder->local.vocab;
    op->sizes.chunk = head_chunk(builder);
    emit_reads(op, normed);
    emit_reads_weight(to, op, head);
    emit_reads(op, builder->labels);
    return op;
}

static guint64 logits_bytes(const Builder *builder, const Op *op)
{
    return op_workspace_bytes(op, builder->spec->device, builder->spec->threads);
}

/* Each rank's maximum, sum and label over its part of the vocabulary, then those of all ranks;
 * returns them.  Logits are computed twice: here, and for the gradients. */
static guint head_stats(const Emit *to, guint normed, guint head)
{
    Builder *builder = to->builder;
    const guint64 elements = builder->rows * NUM_STATS;
    const guint own = emit_activation_fp32(builder, "head.stats", NO_SPACE, elements);
    const guint all =
        emit_activation_fp32(builder, "head.all_stats", NO_SPACE, elements * builder->tp);
    Op *op = head_op(to, OP_HEAD_STATS, normed, head);

    emit_reads(op, builder->vocab_range);
    emit_writes(op, own);
    emit_writes(op, builder->logits);
    op = emit_collective(to, OP_ALL_GATHER, "gather");
    op->dtype = op->dtype_out = DTYPE_FP32;
    op->sizes.elements = elements * builder->tp;
    emit_reads(op, own);
    emit_writes(op, all);
    return all;
}

static void head_loss(const Emit *to, guint normed, guint dnormed, guint head)
{
    Builder *builder = to->builder;
    const guint stats = builder->tp == 1 ? 0 : head_stats(to, normed, head);
    Op *op = head_op(to, OP_HEAD_LOSS, normed, head);

    emit_reads(op, builder->valid);
    emit_updates(op, builder->loss); /* the host sets it to 0 before a step */
    emit_writes(op, dnormed);
    emit_accumulates_gradient(to, op, head);
    emit_writes(op, builder->logits);
    if (builder->tp > 1) {
        op->sizes.elements = builder->rows * NUM_STATS * builder->tp;
        emit_reads(op, builder->vocab_range);
        emit_reads(op, stats);
    }
    program_tensor(builder->program, builder->logits)->elements =
        (logits_bytes(builder, op) + 3) / 4;
}

static void add_head(Builder *builder)
{
    const guint64 hidden = builder->local.hidden;
    const guint normed = emit_activation(builder, "head.normed", NO_SPACE, hidden);
    const guint dnormed = emit_activation(builder, "head.dnormed", NO_SPACE, hidden);
    const guint local =
        builder->sequence ? emit_local_activation(builder, "head.local", NO_SPACE) : normed;
    const guint stats = emit_norm_stats(builder, "head.rstd", NO_SPACE);
    Emit to;

    builder->head = (gint)emit_begin_root(builder, "head", &to);
    builder->logits =
        program_add_tensor(builder->program, "logits", TENSOR_LOGITS, DTYPE_FP32, NO_SPACE, 0);
    emit_norm(&to, builder->residual, PARAM_FINAL_NORM, local, stats);
    emit_gather_tokens(&to, local, normed);
    head_loss(&to, normed, dnormed, builder->local.tied ? PARAM_EMBEDDING : PARAM_HEAD);
    const NormBackward norm = {emit_reduce_partial(&to, dnormed, local), builder->residual, stats,
                               builder->residual_gradient, ACCESS_WRITE};
    emit_norm_backward(&to, &norm, PARAM_FINAL_NORM);
}

void build_head(Builder *builder)
{
    builder->head = -1;
    if (builder->has_head)
        add_head(builder);
}

void build_count_valid(Builder *builder)
{
    Emit to;

    builder->count_valid = (gint)emit_begin_root(builder, "count_valid", &to);
    Op *op = emit_op(&to, OP_COUNT_VALID);
    emit_reads(op, builder->labels);
    emit_accumulates(op, builder->valid);
}
