/* y = x W^T + b and its two backward products.  x (N, I), W (O, I), b (O), y (N, O).
 *
 *     dx = dy W        dW = dy^T x        db = sum_n dy
 *
 * A bias is there before the product, which adds to it.  fp32 goes to the BLAS where it lies. bf16:
 * the weight is widened once, activations in blocks of CPU_LINEAR_ROWS rows; sums are fp32 and
 * rounded once, dW's over all rows. */
#include "exec/device/cpu_block.h"
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"

/* ---- bias ---- */

/* Rows of @y become @bias, or, when @add, grow by it. */
typedef struct {
    DType dtype, bias_dtype;
    void *y;
    const void *bias;
    guint64 columns;
    gboolean add;
} BiasRows;

static void bias_row(gconstpointer context, guint64 row)
{
    const BiasRows *to = context;
    float block[CPU_BLOCK];

    for (guint64 c = 0; c < to->columns; c += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, to->columns - c);
        const float *bias = block_read(to->bias_dtype, to->bias, c, n, block);

        block_put(to->dtype, to->y, row * to->columns + c, n, bias, to->add);
    }
}

void cpu_add_bias(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const BiasRows rows = {.dtype = launch->op->dtype,
                           .bias_dtype = launch->op->dtype,
                           .y = launch->operand[0],
                           .bias = launch->operand[1],
                           .columns = s->in,
                           .add = TRUE};

    cpu_loop(threads, s->rows, bias_row, &rows);
}

/* Columns that one thread sums: two lines of the cache in bf16. */
enum { BIAS_COLUMNS = 64 };

/* A column is one thread's, row after row in fp64: the same bits for any number of threads. */
static void bias_gradient_columns(gconstpointer context, guint64 part)
{
    const Launch *launch = context;
    const guint64 columns = launch->op->sizes.out, first = part * BIAS_COLUMNS;
    const guint64 n = MIN(BIAS_COLUMNS, columns - first);
    double sum[BIAS_COLUMNS] = {0};
    float block[BIAS_COLUMNS];

    for (guint64 row = 0; row < launch->op->sizes.rows; row++) {
        const float *dy =
            block_read(launch->op->dtype, launch->operand[0], row * columns + first, n, block);
#pragma omp simd
        for (guint64 i = 0; i < n; i++)
            sum[i] += (double)dy[i];
    }
    for (guint64 i = 0; i < n; i++)
        block[i] = (float)sum[i];
    block_put(launch->op->dtype_out, launch->operand[4], first, n, block, launch_adds(launch, 4));
}

/* ---- products ---- */

/* from (N, inner) times the weight, into operand 2 (N, outer). */
typedef struct {
    guint64 inner, outer;
    gboolean transpose; /* of the weight */
    const void *bias;   /* or NULL */
} RowProduct;

static void multiply_rows(guint threads, const Launch *launch, const RowProduct *product)
{
    const OpSizes *s = &launch->op->sizes;
    const DType dtype = launch->op->dtype;
    const gboolean wide = dtype == DTYPE_FP32, adds = launch_adds(launch, 2);
    const guint64 block = wide ? s->rows : MIN(s->rows, CPU_LINEAR_ROWS);
    Scratch scratch = scratch_open(threads, launch, 3);
    float *weight_buffer = wide ? NULL : scratch_floats(&scratch, s->out * s->in);
    float *in_buffer = wide ? NULL : scratch_floats(&scratch, block * product->inner);
    float *out_buffer = wide ? NULL : scratch_floats(&scratch, block * product->outer);
    const float *weight =
        cpu_widen(threads, dtype, launch->operand[1], 0, s->out * s->in, weight_buffer);

    for (guint64 row = 0; row < s->rows; row += block) {
        const guint64 rows = MIN(block, s->rows - row);
        const Destination to = {.dtype = dtype,
                                .data = launch->operand[2],
                                .offset = row * product->outer,
                                .elements = rows * product->outer,
                                .add = adds};
        float *result = wide ? (float *)to.data + to.offset : out_buffer;

        if (product->bias != NULL)
            cpu_loop(threads, rows, bias_row,
                     &(BiasRows){.dtype = DTYPE_FP32,
                                 .bias_dtype = dtype,
                                 .y = result,
                                 .bias = product->bias,
                                 .columns = product->outer,
                                 .add = wide && adds});
        cpu_gemm(threads,
                 &(Gemm){.transpose_b = product->transpose,
                         .m = rows,
                         .n = product->outer,
                         .k = product->inner,
                         .a = cpu_widen(threads, dtype, launch->operand[0], row * product->inner,
                                        rows * product->inner, in_buffer),
                         .b = weight,
                         .c = result,
                         .lda = product->inner,
                         .ldb = s->in,
                         .ldc = product->outer,
                         .alpha = 1,
                         .beta = (wide && adds) || product->bias != NULL ? 1 : 0});
        cpu_put(threads, &to, result);
    }
}

void cpu_linear(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    multiply_rows(
        threads, launch,
        &(RowProduct){s->in, s->out, .transpose = TRUE, .bias = launch_optional(launch, 4)});
}

void cpu_linear_backward_input(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    multiply_rows(threads, launch, &(RowProduct){s->out, s->in, .transpose = FALSE});
}

void cpu_linear_backward_weight(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const DType dtype = launch->op->dtype;
    const gboolean wide = dtype == DTYPE_FP32;
    const gboolean in_place = launch->op->dtype_out == DTYPE_FP32;
    const guint64 block = wide ? s->rows : MIN(s->rows, CPU_LINEAR_ROWS);
    const Destination to = {.dtype = launch->op->dtype_out,
                            .data = launch->operand[2],
                            .elements = s->out * s->in,
                            .add = launch_adds(launch, 2)};
    Scratch scratch = scratch_open(threads, launch, 3);
    float *sum = in_place ? to.data : scratch_floats(&scratch, to.elements);
    float *dy_buffer = wide ? NULL : scratch_floats(&scratch, block * s->out);
    float *x_buffer = wide ? NULL : scratch_floats(&scratch, block * s->in);

    for (guint64 row = 0; row < s->rows; row += block) {
        const guint64 rows = MIN(block, s->rows - row);

        cpu_gemm(threads, &(Gemm){.transpose_a = TRUE,
                                  .m = s->out,
                                  .n = s->in,
                                  .k = rows,
                                  .a = cpu_widen(threads, dtype, launch->operand[0], row * s->out,
                                                 rows * s->out, dy_buffer),
                                  .b = cpu_widen(threads, dtype, launch->operand[1], row * s->in,
                                                 rows * s->in, x_buffer),
                                  .c = sum,
                                  .lda = s->out,
                                  .ldb = s->in,
                                  .ldc = s->in,
                                  .alpha = 1,
                                  .beta = row > 0 || (in_place && to.add) ? 1 : 0});
    }
    cpu_put(threads, &to, sum);
    if (launch_optional(launch, 4) != NULL)
        cpu_loop(threads, (s->out + BIAS_COLUMNS - 1) / BIAS_COLUMNS, bias_gradient_columns,
                 launch);
}
