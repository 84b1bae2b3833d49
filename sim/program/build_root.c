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

/* What is looked up and what stands between that and the stream, a norm or a projection from
 * another width E: its input, made again for the backward pass, which costs less than to keep it
 * for each micro-batch in flight.  Without either that is the stream itself. */
typedef struct {
    guint given, stats, normed, dgiven; /* (N / tp, E) */
} Embedded;

static gboolean has_embed_norm(const Builder *builder)
{
    return (builder->local.features & FEATURE_EMBED_NORM) != 0;
}

static gboolean is_projected(const Builder *builder)
{
    return (builder->local.features & FEATURE_EMBED_PROJECTED) != 0;
}

static Linear projection(const Builder *builder, ParamRole role)
{
    const guint64 width = builder->local.embedding, hidden = builder->local.hidden;

    return role == PARAM_PROJECT_IN ? (Linear){role, width, hidden, builder->local_rows, 0}
                                    : (Linear){role, hidden, width, builder->local_rows, 0};
}

static Embedded add_embedded(Builder *builder)
{
    const guint64 width = builder->local.embedding;

    if (!has_embed_norm(builder) && !is_projected(builder))
        return (Embedded){.given = builder->residual, .dgiven = builder->residual_gradient};
    g_assert(!has_embed_norm(builder) || !is_projected(builder)); /* no family has both */
    Embedded embedded = {.given = emit_local_columns(builder, "embed.given", NO_SPACE, width)};
    if (has_embed_norm(builder)) {
        embedded.stats = emit_norm_stats(builder, "embed.rstd", NO_SPACE, PARAM_EMBED_NORM);
        embedded.normed = emit_local_activation(builder, "embed.normed", NO_SPACE);
    }
    embedded.dgiven = emit_local_columns(builder, "embed.dgiven", NO_SPACE, width);
    return embedded;
}

/* With tp > 1 each rank looks up the words that it has; the sum over ranks is the embedding.
 * @x: of all tokens. */
static void look_up(const Emit *to, guint x, guint given)
{
    Builder *builder = to->builder;
    Op *op = emit_op(to, OP_EMBED);

    op->sizes.in = builder->local.vocab;
    op->sizes.out = builder->local.embedding;
    emit_reads(op, builder->tokens);
    emit_reads_weight(to, op, PARAM_EMBEDDING);
    emit_writes(op, x);
    if (builder->tp > 1)
        emit_reads(op, builder->vocab_range);
    emit_reduce_columns(to, x, given, builder->local.embedding);
}

static void embedding_forward(const Emit *to, const Embedded *embedded, guint x)
{
    const Linear in = projection(to->builder, PARAM_PROJECT_IN);
    const guint stream = to->builder->residual;

    look_up(to, x, embedded->given);
    if (is_projected(to->builder))
        emit_linear(to, &in, embedded->given, stream, ACCESS_WRITE);
    add_positions(to);
    if (has_embed_norm(to->builder))
        emit_norm(to, embedded->given, PARAM_EMBED_NORM, stream, embedded->stats);
}

/* dgiven from the stream's gradient. */
static void given_backward(const Emit *to, const Embedded *embedded, guint x)
{
    const guint dstream = to->builder->residual_gradient;
    const Linear in = projection(to->builder, PARAM_PROJECT_IN);
    const NormBackward norm = {dstream, embedded->given, embedded->stats, embedded->dgiven,
                               ACCESS_WRITE};

    if (embedded->dgiven == dstream)
        return;
    look_up(to, x, embedded->given);
    if (is_projected(to->builder)) {
        emit_linear_backward_weight(to, &in, dstream, embedded->given);
        emit_linear_backward_input(to, &in, dstream, embedded->dgiven, ACCESS_WRITE);
        return;
    }
    emit_norm(to, embedded->given, PARAM_EMBED_NORM, embedded->normed, embedded->stats);
    emit_norm_backward(to, &norm, PARAM_EMBED_NORM);
}

static void embedding_backward(const Emit *to, const Embedded *embedded, guint x)
{
    Builder *builder = to->builder;
    const guint64 width = builder->local.embedding;
    const guint dx = builder->sequence ? emit_activation(builder, "dembedded", NO_SPACE, width)
                                       : embedded->dgiven;

    positions_backward(to);
    given_backward(to, embedded, x);
    emit_gather_columns(to, embedded->dgiven, dx, width);
    Op *op = emit_op(to, OP_EMBED_BACKWARD);
    op->sizes.in = builder->local.vocab;
    op->sizes.out = width;
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
    const Embedded embedded = add_embedded(builder);
    builder->embed = (gint)emit_begin_root(builder, "embed.forward", &to);
    const guint x = builder->sequence
                        ? emit_activation(builder, "embedded", NO_SPACE, builder->local.embedding)
                        : embedded.given;
    embedding_forward(&to, &embedded, x);
    builder->embed_backward = (gint)emit_begin_root(builder, "embed.backward", &to);
    embedding_backward(&to, &embedded, x);
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

    op->sizes.in = builder->local.embedding;
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

/* From the stream to what the head reads, and back: by a norm, a projection to the embedding's
 * width E, both, or neither.  Of this rank's tokens but what is of all. */
typedef struct {
    guint final, dfinal, stats; /* (N / tp, C): what the norm left; without one the stream */
    guint read, dread;          /* (N / tp, E): what is gathered, and its gradient's sum */
    guint whole, dwhole;        /* (N, E), of all tokens */
} HeadTensors;

/* Where two are the same tokens of the same width they are one tensor. */
static HeadTensors add_head_tensors(Builder *builder)
{
    const guint64 width = builder->local.embedding;
    const gboolean normed = emit_has_norm(builder, PARAM_FINAL_NORM);
    const gboolean projected = is_projected(builder), sequence = builder->sequence;
    HeadTensors t = {.final = builder->residual, .dfinal = builder->residual_gradient};

    if (normed || projected || sequence) {
        t.whole = emit_activation(builder, "head.normed", NO_SPACE, width);
        t.dwhole = emit_activation(builder, "head.dnormed", NO_SPACE, width);
    } else {
        t.whole = t.final;
        t.dwhole = t.dfinal;
    }
    t.read = t.whole;
    t.dread = t.dwhole;
    if (sequence && (normed || projected))
        t.read = t.dread = emit_local_columns(builder, "head.local", NO_SPACE, width);
    else if (sequence) {
        t.read = t.final;
        t.dread = t.dfinal;
    }
    if (!normed)
        return t;
    t.stats = emit_norm_stats(builder, "head.rstd", NO_SPACE, PARAM_FINAL_NORM);
    t.final = projected ? emit_local_activation(builder, "head.final", NO_SPACE) : t.read;
    t.dfinal = projected ? emit_local_activation(builder, "head.dfinal", NO_SPACE) : t.dread;
    return t;
}

static void head_forward(const Emit *to, const HeadTensors *t)
{
    const Linear out = projection(to->builder, PARAM_PROJECT_OUT);

    if (emit_has_norm(to->builder, PARAM_FINAL_NORM))
        emit_norm(to, to->builder->residual, PARAM_FINAL_NORM, t->final, t->stats);
    if (is_projected(to->builder))
        emit_linear(to, &out, t->final, t->read, ACCESS_WRITE);
    emit_gather_columns(to, t->read, t->whole, to->builder->local.embedding);
}

/* From dwhole, partial sums of this rank's words. */
static void head_backward(const Emit *to, const HeadTensors *t)
{
    const Builder *builder = to->builder;
    const Linear out = projection(builder, PARAM_PROJECT_OUT);
    const guint dread = emit_reduce_columns(to, t->dwhole, t->dread, builder->local.embedding);
    guint dfinal = dread;

    if (is_projected(builder)) {
        dfinal = t->dfinal;
        emit_linear_backward_weight(to, &out, dread, t->final);
        emit_linear_backward_input(to, &out, dread, dfinal, ACCESS_WRITE);
    }
    if (!emit_has_norm(builder, PARAM_FINAL_NORM))
        return;
    const NormBackward norm = {dfinal, builder->residual, t->stats, builder->residual_gradient,
                               ACCESS_WRITE};
    emit_norm_backward(to, &norm, PARAM_FINAL_NORM);
}

static void add_head(Builder *builder)
{
    const HeadTensors tensors = add_head_tensors(builder);
    Emit to;

    builder->head = (gint)emit_begin_root(builder, "head", &to);
    builder->logits =
        program_add_tensor(builder->program, "logits", TENSOR_LOGITS, DTYPE_FP32, NO_SPACE, 0);
    head_forward(&to, &tensors);
    head_loss(&to, tensors.whole, tensors.dwhole,
              builder->local.tied ? PARAM_EMBEDDING : PARAM_HEAD);
    head_backward(&to, &tensors);
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
