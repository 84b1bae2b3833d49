/* y = x W^T and its two backward products.  x (N, I), W (O, I), y (N, O).
 *
 *     dx = dy W        dW = dy^T x
 *
 * fp32 goes to the BLAS where it lies.  bf16: the weight is widened once, activations in blocks of
 * CPU_LINEAR_ROWS rows; sums are fp32 and rounded once, dW's over all rows. */
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_kernels.h"

/* from (N, inner) times the weight, into operand 2 (N, outer). */
typedef struct {
    guint64 inner, outer;
    gboolean transpose; /* of the weight */
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
                         .beta = wide && adds ? 1 : 0});
        cpu_put(threads, &to, result);
    }
}

void cpu_linear(guint threads, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    multiply_rows(threads, launch, &(RowProduct){s->in, s->out, .transpose = TRUE});
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
}
