/* The head and its loss, both directions at once.  x (N, C), W (V, C), logits (R, V) of R rows.
 *
 *     z = x W^T       loss = sum over labels y != -1 of (log sum_j e^z_j) - z_y
 *     dz = (softmax(z) - onehot(y)) / max(valid, 1), 0 where y = -1
 *     dx = dz W       dW = dz^T x
 *
 * Logits are fp32, the loss is summed in fp64 in the order of rows.  bf16 weights are widened
 * CPU_HEAD_VOCAB rows at a time, dW is summed in fp32 over all rows and rounded once. */
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"
#include "exec/device/cpu_math.h"

#include <math.h>

typedef struct {
    guint threads;
    const Launch *launch;
    const gint32 *labels;
    float scale; /* 1 / max(valid, 1) */
    float *logits, *x_buffer, *dx_buffer, *weight_buffer, *dw;
    double *losses;       /* of a chunk's rows */
    guint64 vocab;        /* rows of W at a time */
    gboolean dw_adds;     /* to what the gradient held before this op */
    gboolean dw_direct;   /* dw is the operand itself */
    guint64 first, count; /* words of this rank */
    const float *stats;   /* of all parts (parts, N, 3); NULL: this rank has all words */
    guint64 parts;
} Head;

/* Rows [row, row + rows) with their x in fp32. */
typedef struct {
    guint64 row, rows;
    const float *x;
} Chunk;

/* z becomes e^(z - max); returns the sum. */
static double row_exp(float *z, guint64 vocab, float max)
{
    double sum = 0;

    for (guint64 start = 0; start < vocab; start += CPU_BLOCK) {
        const guint64 end = MIN(start + CPU_BLOCK, vocab);
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (guint64 j = start; j < end; j++) {
            z[j] = cpu_exp(z[j] - max);
            part += z[j];
        }
        sum += (double)part;
    }
    return sum;
}

/* z of one row becomes dz; returns the row's loss. */
static double softmax_gradient(float *z, guint64 vocab, gint32 label, float scale)
{
    if (label == -1) {
        memset(z, 0, vocab * sizeof *z);
        return 0;
    }
    g_assert(label >= 0 && (guint64)label < vocab);
    const float of_label = z[label], max = cpu_max(z, vocab);
    const double sum = row_exp(z, vocab, max);
    const float factor = (float)((double)scale / sum);
#pragma omp simd
    for (guint64 j = 0; j < vocab; j++)
        z[j] *= factor;
    z[label] -= scale;
    return log(sum) + (double)max - (double)of_label;
}

/* The same where other ranks have the other words: their statistics give the maximum, the sum and
 * the label's logit over all of them.  Padding behind the last word gets no gradient. */
static double parallel_gradient(const Head *head, float *z, guint64 row, gint32 label)
{
    const guint64 rows = head->launch->op->sizes.rows, vocab = head->launch->op->sizes.out;
    float max = -INFINITY, of_label = 0;
    double sum = 0;

    if (label == -1) {
        memset(z, 0, vocab * sizeof *z);
        return 0;
    }
    for (guint64 p = 0; p < head->parts; p++) {
        const float *stats = head->stats + (p * rows + row) * NUM_STATS;

        max = MAX(max, stats[STATS_MAX]);
        of_label += stats[STATS_LABEL];
    }
    for (guint64 p = 0; p < head->parts; p++) {
        const float *stats = head->stats + (p * rows + row) * NUM_STATS;

        if (stats[STATS_SUM] > 0 || isnan(stats[STATS_SUM])) /* a part without words has none */
            sum += (double)stats[STATS_SUM] * exp((double)stats[STATS_MAX] - (double)max);
    }
    row_exp(z, head->count, max);
    const float factor = (float)((double)head->scale / sum);
#pragma omp simd
    for (guint64 j = 0; j < head->count; j++)
        z[j] *= factor;
    memset(z + head->count, 0, (vocab - head->count) * sizeof *z);
    if ((guint64)label - head->first < head->count)
        z[(guint64)label - head->first] -= head->scale;
    return log(sum) + (double)max - (double)of_label;
}

static const float *weight_block(const Head *head, guint64 first, guint64 rows)
{
    const guint64 columns = head->launch->op->sizes.in;

    return cpu_widen(head->threads, head->launch->op->dtype, head->launch->operand[1],
                     first * columns, rows * columns, head->weight_buffer);
}

static void logits(const Head *head, const Chunk *chunk)
{
    const OpSizes *s = &head->launch->op->sizes;

    for (guint64 first = 0; first < s->out; first += head->vocab) {
        const guint64 rows = MIN(head->vocab, s->out - first);

        cpu_gemm(head->threads, &(Gemm){.transpose_b = TRUE,
                                        .m = chunk->rows,
                                        .n = rows,
                                        .k = s->in,
                                        .a = chunk->x,
                                        .b = weight_block(head, first, rows),
                                        .c = head->logits + first,
                                        .lda = s->in,
                                        .ldb = s->in,
                                        .ldc = s->out,
                                        .alpha = 1});
    }
}

typedef struct {
    const Head *head;
    const Chunk *chunk;
} ChunkLosses;

static void loss_of_row(gconstpointer context, guint64 i)
{
    const ChunkLosses *of = context;
    const Head *head = of->head;
    const guint64 vocab = head->launch->op->sizes.out, row = of->chunk->row + i;
    float *z = head->logits + i * vocab;

    head->losses[i] = head->stats == NULL
                          ? softmax_gradient(z, vocab, head->labels[row], head->scale)
                          : parallel_gradient(head, z, row, head->labels[row]);
}

/* Returns the chunk's loss; logits become their gradients. */
static double losses(const Head *head, const Chunk *chunk)
{
    double loss = 0;

    cpu_loop(head->threads, chunk->rows, loss_of_row, &(ChunkLosses){head, chunk});
    for (guint64 i = 0; i < chunk->rows; i++)
        loss += head->losses[i];
    return loss;
}

static void input_gradient(const Head *head, const Chunk *chunk)
{
    const OpSizes *s = &head->launch->op->sizes;
    const Destination to = {.dtype = head->launch->op->dtype,
                            .data = head->launch->operand[5],
                            .offset = chunk->row * s->in,
                            .elements = chunk->rows * s->in};
    float *dx = head->dx_buffer != NULL ? head->dx_buffer : (float *)to.data + to.offset;

    for (guint64 first = 0; first < s->out; first += head->vocab) {
        const guint64 rows = MIN(head->vocab, s->out - first);

        cpu_gemm(head->threads, &(Gemm){.m = chunk->rows,
                                        .n = s->in,
                                        .k = rows,
                                        .a = head->logits + first,
                                        .b = weight_block(head, first, rows),
                                        .c = dx,
                                        .lda = s->out,
                                        .ldb = s->in,
                                        .ldc = s->in,
                                        .alpha = 1,
                                        .beta = first > 0 ? 1 : 0});
    }
    cpu_put(head->threads, &to, dx);
}

static void weight_gradient(const Head *head, const Chunk *chunk)
{
    const OpSizes *s = &head->launch->op->sizes;
    const gboolean adds = chunk->row > 0 || (head->dw_direct && head->dw_adds);

    cpu_gemm(head->threads, &(Gemm){.transpose_a = TRUE,
                                    .m = s->out,
                                    .n = s->in,
                                    .k = chunk->rows,
                                    .a = head->logits,
                                    .b = chunk->x,
                                    .c = head->dw,
                                    .lda = s->out,
                                    .ldb = s->in,
                                    .ldc = s->in,
                                    .alpha = 1,
                                    .beta = adds ? 1 : 0});
}

static void set_range(Head *head, const double *range)
{
    head->first = (guint64)range[RANGE_FIRST];
    head->count = (guint64)range[RANGE_COUNT];
}

/* What both head ops need; @scratch keeps the rest. */
static Head head_begin(guint threads, const Launch *launch, Scratch *scratch)
{
    const OpSizes *s = &launch->op->sizes;
    const gboolean wide = launch->op->dtype == DTYPE_FP32;
    const guint64 rows = MIN(s->rows, s->chunk);
    Head head = {
        .threads = threads,
        .launch = launch,
        .labels = launch->operand[2],
        .vocab = wide ? s->out : MIN(s->out, CPU_HEAD_VOCAB),
        .count = s->out,
    };

    head.logits = scratch_floats(scratch, rows * s->out);
    head.losses = scratch_take(scratch, rows, sizeof(double));
    if (!wide) {
        head.x_buffer = scratch_floats(scratch, rows * s->in);
        head.dx_buffer = scratch_floats(scratch, rows * s->in);
        head.weight_buffer = scratch_floats(scratch, head.vocab * s->in);
    }
    return head;
}

static Head head_open(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    Scratch scratch = scratch_open(threads, launch, 7);
    Head head = head_begin(threads, launch, &scratch);

    head.scale = (float)(1 / MAX(*(const double *)launch->operand[3], 1));
    head.dw_adds = launch_adds(launch, 6);
    head.dw_direct = launch->op->dtype_out == DTYPE_FP32;
    if (launch->op->num_operands == 10) {
        set_range(&head, launch->operand[8]);
        head.stats = launch->operand[9];
        head.parts = s->elements / (s->rows * NUM_STATS);
    }
    head.dw = head.dw_direct ? launch->operand[6] : scratch_floats(&scratch, s->out * s->in);
    return head;
}

void cpu_head_loss(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const Head head = head_open(threads, launch);
    double *loss = launch->operand[4], sum = launch_adds(launch, 4) ? *loss : 0;

    for (guint64 row = 0; row < s->rows; row += s->chunk) {
        Chunk chunk = {.row = row, .rows = MIN(s->chunk, s->rows - row)};

        chunk.x = cpu_widen(threads, launch->op->dtype, launch->operand[0], row * s->in,
                            chunk.rows * s->in, head.x_buffer);
        logits(&head, &chunk);
        sum += losses(&head, &chunk);
        input_gradient(&head, &chunk);
        weight_gradient(&head, &chunk);
    }
    *loss = sum;
    cpu_put(threads,
            &(Destination){.dtype = launch->op->dtype_out,
                           .data = launch->operand[6],
                           .elements = s->out * s->in,
                           .add = head.dw_adds},
            head.dw);
}

typedef struct {
    const Head *head;
    const Chunk *chunk;
    float *stats; /* of all rows */
} ChunkStats;

/* One row's maximum, sum and label over this rank's words; a rank without words has -inf, 0, 0. */
static void stats_of_row(gconstpointer context, guint64 i)
{
    const ChunkStats *of = context;
    const Head *head = of->head;
    float *z = head->logits + i * head->launch->op->sizes.out;
    float *stats = of->stats + (of->chunk->row + i) * NUM_STATS;
    const gint32 label = head->labels[of->chunk->row + i];
    const guint64 index = (guint64)label - head->first;

    stats[STATS_LABEL] = label >= 0 && index < head->count ? z[index] : 0;
    stats[STATS_MAX] = cpu_max(z, head->count);
    stats[STATS_SUM] = (float)row_exp(z, head->count, stats[STATS_MAX]);
}

void cpu_head_stats(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    Scratch scratch = scratch_open(threads, launch, 5);
    Head head = head_begin(threads, launch, &scratch);
    float *stats = launch->operand[4];

    set_range(&head, launch->operand[3]);
    for (guint64 row = 0; row < s->rows; row += s->chunk) {
        Chunk chunk = {.row = row, .rows = MIN(s->chunk, s->rows - row)};

        chunk.x = cpu_widen(threads, launch->op->dtype, launch->operand[0], row * s->in,
                            chunk.rows * s->in, head.x_buffer);
        logits(&head, &chunk);
        cpu_loop(threads, chunk.rows, stats_of_row, &(ChunkStats){&head, &chunk, stats});
    }
}
