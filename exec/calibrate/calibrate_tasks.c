#include "exec/calibrate/calibrate_tasks.h"

#include "exec/calibrate/calibrate_samples.h"
#include "sim/program/program.h"

/* ---- what to measure ---- */

/* Products of small models: hidden 128 to 512, ffn 3 x hidden, grouped keys, a head of bytes. */
typedef struct {
    guint64 in, out;
} Weight;

static const Weight weights[] = {
    {64, 64},   {64, 256},   {256, 64},   {128, 64},   {64, 128},   {128, 128},
    {128, 384}, {384, 128},  {256, 256},  {256, 768},  {768, 256},  {256, 128},
    {128, 256}, {384, 384},  {384, 1024}, {1024, 384}, {512, 512},  {512, 256},
    {256, 512}, {512, 1536}, {1536, 512}, {256, 1024}, {1024, 256},
};
static const Weight quick_weights[] = {
    {128, 64},  {128, 128}, {128, 384}, {384, 128},  {256, 256},
    {256, 768}, {768, 256}, {384, 384}, {384, 1024}, {1024, 384},
};
static const guint64 MOST_PRODUCT = 450000000; /* m n k: the rate grows no more beyond */
static const guint64 tokens[] = {64, 256, 1024, 2048};
static const guint64 quick_tokens[] = {256, 1024};
static const guint64 sequences[] = {32, 64, 128, 256, 512, 1024};
static const guint64 quick_sequences[] = {64, 256, 1024};
static const guint64 head_dims[] = {32, 64, 128};
static const guint64 quick_head_dims[] = {32, 64};

/* Rows and columns of memory-bound ops: within a core's cache, within a shared one, beyond. */
static const guint64 shapes[][2] = {{128, 128}, {512, 256}, {1024, 384}, {2048, 1024}};
static const guint64 quick_shapes[][2] = {{128, 128}, {1024, 256}, {2048, 768}};

/* Heads whose products are small beside their softmax. */
static const guint64 head_vocabs[] = {256, 4096};
static const guint64 HEAD_ROWS = 1024, HEAD_HIDDEN = 32;

static const OpKind memory_bound[] = {OP_EMBED,
                                      OP_RMSNORM,
                                      OP_RMSNORM_APPLY,
                                      OP_LAYERNORM,
                                      OP_LAYERNORM_APPLY,
                                      OP_ADD_BIAS,
                                      OP_ROPE,
                                      OP_SWIGLU,
                                      OP_GELU,
                                      OP_EMBED_BACKWARD,
                                      OP_RMSNORM_BACKWARD,
                                      OP_LAYERNORM_BACKWARD,
                                      OP_ROPE_BACKWARD,
                                      OP_SWIGLU_BACKWARD,
                                      OP_GELU_BACKWARD,
                                      OP_COUNT_VALID,
                                      OP_ACCUMULATE,
                                      OP_CAST,
                                      OP_AMAX,
                                      OP_QUANTISE,
                                      OP_DEQUANTISE,
                                      OP_SQUARED_NORM,
                                      OP_ADAMW,
                                      OP_SGD};

/* Letters: calibrate_tasks.h.  A swiglu runs twice a block, after the products that made its
 * operands and again, long after, in the backward pass: one of each. */
static const char *const operand_roles[NUM_OPS] = {
    [OP_EMBED] = "ico",
    [OP_RMSNORM] = "wcoo",
    [OP_RMSNORM_APPLY] = "ccco",
    [OP_LAYERNORM] = "wccoo",
    [OP_LAYERNORM_APPLY] = "cccco",
    [OP_LINEAR] = "wcox",
    [OP_ADD_BIAS] = "uc",
    [OP_ROPE] = "uuc",
    [OP_ATTENTION] = "wwwoox",
    [OP_SWIGLU] = "cwo",
    [OP_GELU] = "wo",
    [OP_HEAD_LOSS] = "wcisSoax",
    [OP_EMBED_BACKWARD] = "iwa",
    [OP_RMSNORM_BACKWARD] = "wcccUax",
    [OP_LAYERNORM_BACKWARD] = "wcccUaax",
    [OP_LINEAR_BACKWARD_INPUT] = "wcox",
    [OP_LINEAR_BACKWARD_WEIGHT] = "wcax",
    [OP_ROPE_BACKWARD] = "uuc",
    [OP_ATTENTION_BACKWARD] = "wcccccooox",
    [OP_SWIGLU_BACKWARD] = "wuU",
    [OP_GELU_BACKWARD] = "wU",
    [OP_COUNT_VALID] = "iS",
    [OP_ACCUMULATE] = "wU",
    [OP_CAST] = "co",
    [OP_AMAX] = "cS",
    [OP_QUANTISE] = "cco",
    [OP_DEQUANTISE] = "cco",
    [OP_SQUARED_NORM] = "cS",
    [OP_CLIP] = "hsSSSSs",
    [OP_ADAMW] = "UcUUhs",
    [OP_SGD] = "Uchs",
};

/* What bf16 parameters have behind: their fp32 master. */
static const char *const MASTER_ROLE = "U";

static gboolean is_optimizer(OpKind kind)
{
    return kind == OP_ADAMW || kind == OP_SGD;
}

static gboolean is_unit_op(OpKind kind)
{
    return is_optimizer(kind) || kind == OP_SQUARED_NORM ||
           (kind >= OP_AMAX && kind <= OP_DEQUANTISE);
}

char *op_task_roles(const Op *op)
{
    const gboolean master = op->dtype == DTYPE_BF16 && is_optimizer(op->kind);

    return g_strconcat(operand_roles[op->kind], master ? MASTER_ROLE : "", NULL);
}

static Access role_access(char role)
{
    switch (role) {
    case 'u':
    case 'U':
        return ACCESS_UPDATE;
    case 'o':
    case 'S':
    case 'x':
        return ACCESS_WRITE;
    case 'a':
        return ACCESS_ACCUMULATE;
    default:
        return ACCESS_READ;
    }
}

void op_tasks_add(GArray *tasks, OpKind kind, DType dtype, const OpSizes *sizes,
                  guint64 unit_elements)
{
    OpTask task = {
        .op = {.kind = kind,
               .dtype = dtype,
               .dtype_out = dtype,
               .sizes = *sizes,
               .unit = is_unit_op(kind) ? 0 : NO_UNIT,
               .predicate = NO_TENSOR},
        .unit_elements = unit_elements,
    };
    g_autofree char *roles = op_task_roles(&task.op);

    for (guint i = 0; roles[i] != '\0'; i++)
        op_add_operand(&task.op, i, role_access(roles[i]), 0, WHOLE_TENSOR);
    g_array_append_val(tasks, task);
}

/* Forward and both gradients. */
static void add_linear(GArray *tasks, DType dtype, guint64 rows, Weight weight)
{
    const OpSizes sizes = {.rows = rows, .in = weight.in, .out = weight.out};

    op_tasks_add(tasks, OP_LINEAR, dtype, &sizes, 0);
    op_tasks_add(tasks, OP_LINEAR_BACKWARD_INPUT, dtype, &sizes, 0);
    op_tasks_add(tasks, OP_LINEAR_BACKWARD_WEIGHT, dtype, &sizes, 0);
}

static void add_gemms(GArray *tasks, DType dtype, gboolean quick)
{
    const Weight *list = quick ? quick_weights : weights;
    const guint64 *rows = quick ? quick_tokens : tokens;
    const guint num_weights = quick ? G_N_ELEMENTS(quick_weights) : G_N_ELEMENTS(weights);
    const guint num_rows = quick ? G_N_ELEMENTS(quick_tokens) : G_N_ELEMENTS(tokens);

    for (guint w = 0; w < num_weights; w++)
        for (guint r = 0; r < num_rows; r++)
            if (rows[r] * list[w].in * list[w].out <= MOST_PRODUCT)
                add_linear(tasks, dtype, rows[r], list[w]);
}

/* 4 heads over 1024 tokens. */
static void add_attention(GArray *tasks, DType dtype, gboolean quick)
{
    const guint64 *seqs = quick ? quick_sequences : sequences;
    const guint64 *dims = quick ? quick_head_dims : head_dims;
    const guint num_seqs = quick ? G_N_ELEMENTS(quick_sequences) : G_N_ELEMENTS(sequences);
    const guint num_dims = quick ? G_N_ELEMENTS(quick_head_dims) : G_N_ELEMENTS(head_dims);

    for (guint s = 0; s < num_seqs; s++)
        for (guint d = 0; d < num_dims; d++) {
            const guint64 batch = 1024 / seqs[s];
            const OpSizes sizes = {.rows = batch * seqs[s],
                                   .batch = batch,
                                   .seq = seqs[s],
                                   .heads = 4,
                                   .kv_heads = 4,
                                   .head_dim = dims[d]};
            op_tasks_add(tasks, OP_ATTENTION, dtype, &sizes, 0);
            op_tasks_add(tasks, OP_ATTENTION_BACKWARD, dtype, &sizes, 0);
        }
}

static void add_memory_bound(GArray *tasks, DType dtype, guint64 rows, guint64 columns)
{
    const guint64 head_dim = 32;

    for (guint i = 0; i < G_N_ELEMENTS(memory_bound); i++) {
        const OpKind kind = memory_bound[i];
        const gboolean table = kind == OP_EMBED || kind == OP_EMBED_BACKWARD;
        const OpSizes sizes = {.rows = rows,
                               .in = table ? CALIBRATE_IDS : columns,
                               .out = columns,
                               .batch = 1,
                               .seq = rows,
                               .heads = columns / head_dim,
                               .kv_heads = columns / head_dim,
                               .head_dim = head_dim,
                               .elements = rows * columns,
                               .eps = 1e-5};
        op_tasks_add(tasks, kind, dtype, &sizes, is_unit_op(kind) ? rows * columns : 0);
    }
}

/* The head and, apart, its products: what is left is the softmax. */
static void add_heads(GArray *tasks, DType dtype)
{
    for (guint i = 0; i < G_N_ELEMENTS(head_vocabs); i++) {
        const Weight weight = {HEAD_HIDDEN, head_vocabs[i]};
        const OpSizes sizes = {
            .rows = HEAD_ROWS, .in = weight.in, .out = weight.out, .chunk = HEAD_ROWS};
        add_linear(tasks, dtype, HEAD_ROWS, weight);
        op_tasks_add(tasks, OP_HEAD_LOSS, dtype, &sizes, 0);
    }
}

GArray *op_tasks_new(gboolean quick)
{
    const guint num_shapes = quick ? G_N_ELEMENTS(quick_shapes) : G_N_ELEMENTS(shapes);
    const guint64(*list)[2] = quick ? quick_shapes : shapes;
    const OpSizes none = {.rows = 0};
    GArray *tasks = g_array_new(FALSE, TRUE, sizeof(OpTask));

    add_gemms(tasks, DTYPE_FP32, quick);
    add_attention(tasks, DTYPE_FP32, quick);
    for (guint i = 0; i < num_shapes; i++)
        add_memory_bound(tasks, DTYPE_FP32, list[i][0], list[i][1]);
    add_heads(tasks, DTYPE_FP32);
    op_tasks_add(tasks, OP_CLIP, DTYPE_FP32, &none, 0);
    if (quick)
        return tasks;

    add_gemms(tasks, DTYPE_BF16, TRUE);
    add_attention(tasks, DTYPE_BF16, TRUE);
    for (guint i = 0; i < G_N_ELEMENTS(quick_shapes); i++)
        add_memory_bound(tasks, DTYPE_BF16, quick_shapes[i][0], quick_shapes[i][1]);
    add_heads(tasks, DTYPE_BF16);
    return tasks;
}

/* ---- rows ---- */

typedef struct {
    guint busy, threads;
    Measured *measured;
} Rows;

static gboolean is_linear(OpKind kind)
{
    return kind == OP_LINEAR || kind == OP_LINEAR_BACKWARD_INPUT ||
           kind == OP_LINEAR_BACKWARD_WEIGHT;
}

/* The product of a linear op, as in sim/cost/compute.c. */
static MeasuredGemm task_gemm(const OpTask *task)
{
    const OpSizes *s = &task->op.sizes;
    MeasuredGemm gemm = {.dtype = task->op.dtype, .m = s->rows, .n = s->out, .k = s->in};

    if (task->op.kind == OP_LINEAR_BACKWARD_INPUT) {
        gemm.n = s->in;
        gemm.k = s->out;
    } else if (task->op.kind == OP_LINEAR_BACKWARD_WEIGHT) {
        gemm.m = s->out;
        gemm.n = s->in;
        gemm.k = s->rows;
    }
    return gemm;
}

static gboolean same_gemm(const MeasuredGemm *a, const MeasuredGemm *b)
{
    return a->dtype == b->dtype && a->m == b->m && a->n == b->n && a->k == b->k;
}

/* One row for all tasks of the same product, at the first of them: the mean of the layouts in which
 * that shape was measured. */
static void add_gemm_row(const GArray *tasks, guint at, const Rows *rows)
{
    MeasuredGemm row = task_gemm(&g_array_index(tasks, OpTask, at));
    double seconds = 0;
    guint num = 0;

    for (guint i = 0; i < tasks->len; i++) {
        const OpTask *task = &g_array_index(tasks, OpTask, i);
        const MeasuredGemm gemm = task_gemm(task);
        if (!is_linear(task->op.kind) || !same_gemm(&gemm, &row))
            continue;
        if (i < at)
            return;
        seconds += task->seconds;
        num++;
    }
    row.busy = rows->busy;
    row.threads = rows->threads;
    row.flops_per_s =
        samples_round(2.0 * (double)row.m * (double)row.n * (double)row.k * num / seconds);
    g_array_append_val(rows->measured->gemm, row);
}

static void add_op_row(const OpTask *task, guint64 size, guint64 width, double work,
                       const Rows *rows)
{
    const MeasuredOp row = {.op = g_strdup(op_kind_name(task->op.kind)),
                            .dtype = task->op.dtype,
                            .busy = rows->busy,
                            .threads = rows->threads,
                            .size = size,
                            .width = width,
                            .per_s = samples_round(work / task->seconds)};

    g_array_append_val(rows->measured->ops, row);
}

/* A head's seconds less those of its three products, which were measured apart; at least a tenth
 * of the whole, should noise leave less. */
static void add_head_row(const GArray *tasks, guint at, const Rows *rows)
{
    OpTask softmax = g_array_index(tasks, OpTask, at);
    const OpSizes *s = &softmax.op.sizes;
    double products = 0;

    for (guint i = 0; i < tasks->len; i++) {
        const OpTask *task = &g_array_index(tasks, OpTask, i);
        const OpSizes *t = &task->op.sizes;
        if (is_linear(task->op.kind) && task->op.dtype == softmax.op.dtype && t->rows == s->rows &&
            t->in == s->in && t->out == s->out)
            products += task->seconds;
    }
    softmax.seconds = MAX(softmax.seconds - products, softmax.seconds / 10);
    const double bytes = CALIBRATE_BYTES_PER_LOGIT * (double)s->chunk * (double)s->out;
    add_op_row(&softmax, (guint64)bytes, 0, bytes, rows);
}

void op_tasks_add_rows(const GArray *tasks, guint busy, guint threads, Measured *measured)
{
    const Rows rows = {.busy = busy, .threads = threads, .measured = measured};

    for (guint i = 0; i < tasks->len; i++) {
        const OpTask *task = &g_array_index(tasks, OpTask, i);
        const Op *op = &task->op;
        const double bytes = op_memory_bytes(op, task->unit_elements);

        if (is_linear(op->kind))
            add_gemm_row(tasks, i, &rows);
        else if (op->kind == OP_HEAD_LOSS)
            add_head_row(tasks, i, &rows);
        else if (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_BACKWARD)
            add_op_row(task, op->sizes.seq, op->sizes.head_dim, op_flops(op), &rows);
        else
            add_op_row(task, (guint64)bytes, 0, bytes, &rows);
    }
}
