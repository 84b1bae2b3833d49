/* The CPU as a device: kernels run when enqueued, on OpenMP threads, with OpenBLAS for products. */
#include "exec/device/cpu_gemm.h"
#include "exec/device/cpu_kernels.h"
#include "sim/base/error.h"

#include <cblas.h>
#include <math.h>

static CpuKernel *const kernels[NUM_OPS] = {
    [OP_EMBED] = cpu_embed,
    [OP_RMSNORM] = cpu_rmsnorm,
    [OP_RMSNORM_APPLY] = cpu_rmsnorm_apply,
    [OP_LAYERNORM] = cpu_layernorm,
    [OP_LAYERNORM_APPLY] = cpu_layernorm_apply,
    [OP_LINEAR] = cpu_linear,
    [OP_ADD_BIAS] = cpu_add_bias,
    [OP_ROPE] = cpu_rope,
    [OP_ATTENTION] = cpu_attention,
    [OP_SWIGLU] = cpu_swiglu,
    [OP_GELU] = cpu_gelu,
    [OP_HEAD_LOSS] = cpu_head_loss,
    [OP_HEAD_STATS] = cpu_head_stats,
    [OP_EMBED_BACKWARD] = cpu_embed_backward,
    [OP_RMSNORM_BACKWARD] = cpu_rmsnorm_backward,
    [OP_LAYERNORM_BACKWARD] = cpu_layernorm_backward,
    [OP_LINEAR_BACKWARD_INPUT] = cpu_linear_backward_input,
    [OP_LINEAR_BACKWARD_WEIGHT] = cpu_linear_backward_weight,
    [OP_ROPE_BACKWARD] = cpu_rope_backward,
    [OP_ATTENTION_BACKWARD] = cpu_attention_backward,
    [OP_SWIGLU_BACKWARD] = cpu_swiglu_backward,
    [OP_GELU_BACKWARD] = cpu_gelu_backward,
    [OP_COUNT_VALID] = cpu_count_valid,
    [OP_ACCUMULATE] = cpu_accumulate,
    [OP_CAST] = cpu_cast,
    [OP_SQUARED_NORM] = cpu_squared_norm,
    [OP_CLIP] = cpu_clip,
    [OP_ADAMW] = cpu_adamw,
    [OP_SGD] = cpu_sgd,
    [OP_COPY] = cpu_copy,
};

typedef struct {
    Device base;
    char *library;
} CpuDevice;

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." and the core it chose: "OpenBLAS 0.3.21 Zen". */
static char *library_name(void)
{
    g_auto(GStrv) words = g_strsplit(openblas_get_config(), " ", 3);
    const gboolean versioned = words[0] != NULL && words[1] != NULL;

    return g_strdup_printf("%s %s %s", versioned ? words[0] : "OpenBLAS", versioned ? words[1] : "",
                           openblas_get_corename());
}

/* Sides that are no multiple of any block of the BLAS, and large enough to reach its kernels. */
enum { CHECK_ROWS = 67, CHECK_COLUMNS = 83, CHECK_INNER = 291 };

/* The forms that kernels use: forward, gradient of the input, gradient of the weight. */
static const struct {
    gboolean transpose_a, transpose_b;
} check_forms[] = {{FALSE, TRUE}, {FALSE, FALSE}, {TRUE, FALSE}};

/* Multiples of 1/16 up to 1: their products are exact in fp64. */
static float *check_matrix(guint64 elements)
{
    float *matrix = g_new(float, elements);

    for (guint64 i = 0; i < elements; i++)
        matrix[i] = (float)((gint)(i * 7 % 31) - 15) / 16;
    return matrix;
}

/* Element (row, column) of the product by a plain loop. */
static double check_product(const Gemm *g, guint64 row, guint64 column)
{
    const guint64 a_step = g->transpose_a ? g->lda : 1, b_step = g->transpose_b ? 1 : g->ldb;
    const float *a = g->a + row * (g->transpose_a ? 1 : g->lda);
    const float *b = g->b + column * (g->transpose_b ? g->ldb : 1);
    double sum = 0;

    for (guint64 k = 0; k < g->k; k++)
        sum += (double)a[k * a_step] * (double)b[k * b_step];
    return sum;
}

/* Terms are at most 1, so that rounding is at most CHECK_INNER^2 * 2^-24 < 0.006; a wrong element
 * is off by more. */
static gboolean product_is_right(const Gemm *g, const char *library, GError **error)
{
    for (guint64 i = 0; i < g->m * g->n; i++) {
        const double want = check_product(g, i / g->n, i % g->n);

        if (!(fabs((double)g->c[i] - want) < 0.006))
            return fail(error, ERROR_RUNTIME,
                        "%s multiplies wrongly on this processor: an element of a product is %g, "
                        "not %g (OPENBLAS_CORETYPE chooses other kernels)",
                        library, (double)g->c[i], want);
    }
    return TRUE;
}

/* OpenBLAS picks its kernels by the processor; on some it has picked wrong ones. */
static gboolean self_check(guint threads, const char *library, GError **error)
{
    g_autofree float *a = check_matrix(CHECK_ROWS * CHECK_INNER);
    g_autofree float *b = check_matrix(CHECK_COLUMNS * CHECK_INNER);
    g_autofree float *c = g_new(float, CHECK_ROWS *CHECK_COLUMNS);

    for (guint form = 0; form < G_N_ELEMENTS(check_forms); form++) {
        const gboolean transpose_a = check_forms[form].transpose_a;
        const gboolean transpose_b = check_forms[form].transpose_b;
        const Gemm gemm = {.transpose_a = transpose_a,
                           .transpose_b = transpose_b,
                           .m = CHECK_ROWS,
                           .n = CHECK_COLUMNS,
                           .k = CHECK_INNER,
                           .a = a,
                           .b = b,
                           .c = c,
                           .lda = transpose_a ? CHECK_ROWS : CHECK_INNER,
                           .ldb = transpose_b ? CHECK_INNER : CHECK_COLUMNS,
                           .ldc = CHECK_COLUMNS,
                           .alpha = 1};

        cpu_gemm(threads, &gemm);
        if (!product_is_right(&gemm, library, error))
            return FALSE;
    }
    return TRUE;
}

static void cpu_free(Device *device)
{
    g_free(((CpuDevice *)device)->library);
    g_free(device);
}

static Device *cpu_open(const DeviceOptions *options, GError **error)
{
    CpuDevice *device = g_new0(CpuDevice, 1);

    device->base = (Device){.ops = &device_cpu, .threads = options->threads};
    device->library = library_name();
    openblas_set_num_threads(1); /* the threads are cpu_gemm()'s */
    if (!self_check(options->threads, device->library, error)) {
        cpu_free(&device->base);
        return NULL;
    }
    return &device->base;
}

static const char *cpu_library(const Device *device)
{
    return ((const CpuDevice *)device)->library;
}

static void cpu_run(Device *device, const Launch *launch)
{
    g_assert(kernels[launch->op->kind] != NULL);
    kernels[launch->op->kind](device->threads, launch);
}

/* Kernels are done when run() returns, and have no errors of their own. */
static gboolean cpu_sync(Device *device, GError **error)
{
    (void)device;
    (void)error;
    return TRUE;
}

const DeviceOps device_cpu = {
    .name = "cpu",
    .kind = DEVICE_CPU,
    .open = cpu_open,
    .library = cpu_library,
    .run = cpu_run,
    .sync = cpu_sync,
    .free = cpu_free,
};
