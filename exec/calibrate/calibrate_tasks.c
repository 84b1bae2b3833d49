#include "exec/calibrate/calibrate_tasks.h"

#include "sim/base/samples.h"
#include "sim/program/program.h"

/* ---- what to measure ---- */

typedef struct {
    guint64 in, out;
} Weight;

/* Lists end with 0.  Of one type of elements. */
typedef struct {
    Weight weights[24];
    guint64 most_product; /* m n k */
    guint64 tokens[5];
    guint64 sequences[7], head_dims[4], attention_tokens, attention_heads;
    guint64 shapes[5][2]; /* rows and columns of memory-bound ops */
    guint64 head_dim;     /* of theirs */
    guint64 head_vocabs[3], head_rows, head_hidden;
} Sizes;

/* Small models: hidden 128 to 512, ffn 3 x hidden, grouped keys, a head of bytes; the rate grows no
 * more beyond the largest product.  Memory-bound ops within a core's cache, within a shared one,
 * and beyond; heads whose products are small beside their softmax. */
static const Sizes cpu_sizes = {
    .weights = {{64, 64},   {64, 256},   {256, 64},   {128, 64},   {64, 128},  {128, 128},
                {128, 384}, {384, 128},  {256, 256},  {256, 768},  {768, 256}, {256, 128},
                {128, 256}, {384, 384},  {384, 1024}, {1024, 384}, {512, 512}, {512, 256},
                {256, 512}, {512, 1536}, {1536, 512}, {256, 1024}, {1024, 256}},
    .most_product = 450000000,
    .tokens = {64, 256, 1024, 2048},
    .sequences = {32, 64, 128, 256, 512, 1024},
    .head_dims = {32, 64, 128},
    .attention_tokens = 1024,
    .attention_heads = 4,
    .shapes = {{128, 128}, {512, 256}, {1024, 384}, {2048, 1024}},
    .head_dim = 32,
    .head_vocabs = {256, 4096},
    .head_rows = 1024,
    .head_hidden = 32,
};
static const Sizes quick_cpu_sizes = {
    .weights = {{128, 64},
                {128, 128},
                {128, 384},
                {384, 128},
                {256, 256},
                {256, 768},
                {768, 256},
                {384, 384},
                {384, 1024},
                {1024, 384}},
    .most_product = 450000000,
    .tokens = {256, 1024},
    .sequences = {64, 256, 1024},
    .head_dims = {32, 64},
    .attention_tokens = 1024,
    .attention_heads = 4,
    .shapes = {{128, 128}, {1024, 256}, {2048, 768}},
    .head_dim = 32,
    .head_vocabs = {256, 4096},
    .head_rows = 1024,
    .head_hidden = 32,
};

/* Models of 1B to 70B parameters, whole or split; memory-bound ops in the last cache and beyond. */
static const Sizes gpu_sizes = {
    .weights = {{1024, 1024},
                {2048, 512},
                {2048, 2048},
                {2048, 8192},
                {8192, 2048},
                {4096, 1024},
                {4096, 4096},
                {4096, 14336},
                {14336, 4096},
                {8192, 1024},
                {8192, 8192},
                {8192, 28672},
                {28672, 8192}},
    .most_product = 4000000000000,
    .tokens = {1024, 4096, 16384},
    .sequences = {1024, 2048, 4096, 8192, 16384},
    .head_dims = {64, 128},
    .attention_tokens = 16384,
    .attention_heads = 16,
    .shapes = {{1024, 1024}, {4096, 4096}, {16384, 4096}, {16384, 8192}},
    .head_dim = 128,
    .head_vocabs = {32000, 128256},
    .head_rows = 1024,
    .head_hidden = 64,
};
static const Sizes quick_gpu_sizes = {
    .weights = {{1024, 1024}, {4096, 4096}, {4096, 14336}, {14336, 4096}, {8192, 8192}},
    .most_product = 1000000000000,
    .tokens = {2048, 8192},
    .sequences = {2048, 8192},
    .head_dims = {64, 128},
    .attention_tokens = 8192,
    .attention_heads = 16,
    .shapes = {{1024, 1024}, {8192, 4096}},
    .head_dim = 128,
    .head_vocabs = {32000, 128256},
    .head_rows = 1024,
    .head_hidden = 64,
};

/* Enough to see that all of it works. */
static const Sizes tiny_sizes = {
    .weights = {{64, 64}},
    .most_product = 1000000,
    .tokens = {64},
    .sequences = {64},
    .head_dims = {64},
    .attention_tokens = 64,
    .attention_heads = 1,
    .shapes = {{64, 64}},
    .head_dim = 64,
    .head_vocabs = {256},
    .head_rows = 64,
    .head_hidden = 64,
};

/* A CPU computes bf16 in fp32, a GPU trains in bf16: what matters less has fewer rows, or none. */
static const struct {
    DType dtype, other;
    const Sizes *sizes, *others;
} scales[NUM_CALIBRATE_SCALES] = {
    [CALIBRATE_CPU] = {DTYPE_FP32, DTYPE_BF16, &cpu_sizes, &quick_cpu_sizes},
    [CALIBRATE_CPU_QUICK] = {DTYPE_FP32, DTYPE_BF16, &quick_cpu_sizes, NULL},
    [CALIBRATE_GPU] = {DTYPE_BF16, DTYPE_FP32, &gpu_sizes, &quick_gpu_sizes},
    [CALIBRATE_GPU_QUICK] = {DTYPE_BF16, DTYPE_FP32, &quick_gpu_sizes, NULL},
    [CALIBRATE_TINY] = {DTYPE_BF16, DTYPE_FP32, &tiny_sizes, &tiny_sizes},
};

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

static void add_gemms(GArray *tasks, DType dtype, const Sizes *sizes)
{
    for (const Weight *weight = sizes->weights; weight->in != 0; weight++)
        for (const guint64 *rows = sizes->tokens; *rows != 0; rows++)
            if (*rows * weight->in * weight->out <= sizes->most_product)
                add_linear(tasks, dtype, *rows, *weight);
}

static void add_attention(GArray *tasks, DType dtype, const Sizes *sizes)
{
    for (const guint64 *seq = sizes->sequences; *seq != 0; seq++)
        for (const guint64 *dim = sizes->head_dims; *dim != 0; dim++) {
            const guint64 batch = MAX(sizes->attention_tokens / *seq, 1);
            const OpSizes op = {.rows = batch * *seq,
                                .batch = batch,
                                .seq = *seq,
                                .heads = sizes->attention_heads,
                                .kv_heads = sizes->attention_heads,
                                .head_dim = *dim};

            op_tasks_add(tasks, OP_ATTENTION, dtype, &op, 0);
            op_tasks_add(tasks, OP_ATTENTION_BACKWARD, dtype, &op, 0);
        }
}

static void add_memory_bound(GArray *tasks, DType dtype, const guint64 shape[2], guint64 head_dim)
{
    const guint64 rows = shape[0], columns = shape[1];

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
static void add_heads(GArray *tasks, DType dtype, const Sizes *of)
{
    for (const guint64 *vocab = of->head_vocabs; *vocab != 0; vocab++) {
        const Weight weight = {of->head_hidden, *vocab};
        const OpSizes sizes = {
            .rows = of->head_rows, .in = weight.in, .out = weight.out, .chunk = of->head_rows};

        add_linear(tasks, dtype, of->head_rows, weight);
        op_tasks_add(tasks, OP_HEAD_LOSS, dtype, &sizes, 0);
    }
}

static void add_all(GArray *tasks, DType dtype, const Sizes *sizes)
{
    add_gemms(tasks, dtype, sizes);
    add_attention(tasks, dtype, sizes);
    for (guint i = 0; sizes->shapes[i][0] != 0; i++)
        add_memory_bound(tasks, dtype, sizes->shapes[i], sizes->head_dim);
    add_heads(tasks, dtype, sizes);
}

GArray *op_tasks_new(CalibrateScale scale)
{
    const OpSizes none = {.rows = 0};
    GArray *tasks = g_array_new(FALSE, TRUE, sizeof(OpTask));

    add_all(tasks, scales[scale].dtype, scales[scale].sizes);
    op_tasks_add(tasks, OP_CLIP, DTYPE_FP32, &none, 0);
    if (scales[scale].others != NULL)
        add_all(tasks, scales[scale].other, scales[scale].others);
    return tasks;
}

GArray *op_tasks_by_library(const GArray *tasks)
{
    GArray *found = g_array_new(FALSE, TRUE, sizeof(OpTask));

    for (guint i = 0; i < tasks->len; i++) {
        OpTask task = g_array_index(tasks, OpTask, i);

        task.by_library = TRUE;
        if (op_library_attention(&task.op))
            g_array_append_val(found, task);
    }
    return found;
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
    const MeasuredOp row = {.op = g_strdup(op_attention_row(task->op.kind, task->by_library)),
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
