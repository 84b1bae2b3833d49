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

/* What an embedding's norm works with: its input, made again for the backward pass, which costs
 * less than to keep it for each micro-batch in flight. */
typedef struct {
    guint given, stats, normed, dgiven;
} EmbedNorm;

static gboolean has_embed_norm(const Builder *builder)
{
    return (builder->local.features & FEATURE_EMBED_NORM) != 0;
}

static EmbedNorm add_embed_norm(Builder *builder)
{
    if (!has_embed_norm(builder))
        return (EmbedNorm){.given = builder->residual, .dgiven = builder->residual_gradient};
    return (EmbedNorm){
        .given = emit_local_activation(builder, "embed.given", NO_SPACE),
        .stats = emit_norm_stats(builder, "embed.rstd", NO_SPACE, PARAM_EMBED_NORM),
        .normed = emit_local_activation(builder, "embed.normed", NO_SPACE),
        .dgiven = emit_local_activation(builder, "embed.dgiven", NO_SPACE),
    };
}

/* With tp > 1 each rank looks up the words that it has; the sum over ranks is the embedding.
 * @x: of all tokens. */
static void look_up(const Emit *to, guint x, guint given)
{
    Builder *builder = to->builder;
    Op *op = emit_op(to, OP_EMBED);

    op->sizes.in = builder->local.vocab;
    emit_reads(op, builder->tokens);
    emit_reads_weight(to, op, PARAM_EMBEDDING);
    emit_writes(op, x);
    if (builder->tp > 1)
        emit_reads(op, builder->vocab_range);
    emit_reduce_partial(to, x, given);
}

static void embedding_forward(const Emit *to, const EmbedNorm *norm, guint x)
{
    look_up(to, x, norm->given);
    add_positions(to);
    if (has_embed_norm(to->builder))
        emit_norm(to, norm->given, PARAM_EMBED_NORM, to->builder->residual, norm->stats);
}

/* dgiven from the stream's gradient. */
static void embed_norm_backward(const Emit *to, const EmbedNorm *norm, guint x)
{
    const NormBackward backward = {to->builder->residual_gradient, norm->given, norm->stats,
                                   norm->dgiven, ACCESS_WRITE};

    if (!has_embed_norm(to->builder))
        return;
    look_up(to, x, norm->given);
    emit_norm(to, norm->given, PARAM_EMBED_NORM, norm->normed, norm->stats);
    emit_norm_backward(to, &backward, PARAM_EMBED_NORM);
}

static void embedding_backward(const Emit *to, const EmbedNorm *norm, guint x)
{
    Builder *builder = to->builder;
    const guint dx = builder->sequence
                         ? emit_activation(builder, "dembedded", NO_SPACE, builder->local.hidden)
                         : norm->dgiven;

    positions_backward(to);
    embed_norm_backward(to, norm, x);
    emit_gather_tokens(to, norm->dgiven, dx);
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
    const EmbedNorm norm = add_embed_norm(builder);
    builder->embed = (gint)emit_begin_root(builder, "embed.forward", &to);
    const guint x = builder->sequence
                        ? emit_activation(builder, "embedded", NO_SPACE, builder->local.hidden)
                        : norm.given;
    embedding_forward(&to, &norm, x);
    builder->embed_backward = (gint)emit_begin_root(builder, "embed.backward", &to);
    embedding_backward(&to, &norm, x);
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

static gboolean has_head_bias(const Builder *builder)
{
    return builder->param[PARAM_HEAD_BIAS] >= 0;
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
    if (has_head_bias(builder))
        emit_reads_weight(to, op, PARAM_HEAD_BIAS);
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
    if (has_head_bias(builder)) {
        emit_reads_weight(to, op, PARAM_HEAD_BIAS);
        emit_accumulates_gradient(to, op, PARAM_HEAD_BIAS);
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
    const guint stats = emit_norm_stats(builder, "head.rstd", NO_SPACE, PARAM_FINAL_NORM);
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
