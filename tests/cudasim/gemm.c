#include "tests/cudasim/gemm.h"

#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"
#include <math.h>

/* Bits of cublasLtEpilogue_t. */
enum {
    RELU = 2,
    BIAS = 4,
    BGRAD = 16,
    GELU = 32,
    DGELU = 64,
    AUX = 128,
    BGRAD_A = 256,
    BGRAD_B = 512
};

typedef struct {
    CsOp base;
    CsGemm gemm;
} GemmOp;

/* One product of a batch, with op(A) and op(B) as floats in rows. */
typedef struct {
    const CsGemm *gemm;
    gint32 batch;
    gsize m, n, k;
    float *a; /* (m, k) */
    float *b; /* (k, n) */
    float *d; /* (m, n) */
} Product;

gboolean cs_gemm_type(cudaDataType_t type, CsNumber *number)
{
    static const struct {
        cudaDataType_t type;
        CsNumber number;
    } types[] = {{CUDA_R_32F, CS_FP32},
                 {CUDA_R_16BF, CS_BF16},
                 {CUDA_R_16F, CS_FP16},
                 {CUDA_R_8F_E4M3, CS_E4M3},
                 {CUDA_R_8F_E5M2, CS_E5M2}};

    for (gsize i = 0; i < G_N_ELEMENTS(types); i++)
        if (types[i].type == type) {
            *number = types[i].number;
            return TRUE;
        }
    return FALSE;
}

/* ---- checks ---- */

static gsize rows_of(const CsMatrix *matrix, gboolean transpose)
{
    return transpose ? matrix->columns : matrix->rows;
}

static gsize columns_of(const CsMatrix *matrix, gboolean transpose)
{
    return transpose ? matrix->rows : matrix->columns;
}

static gboolean is_fp8(CsNumber type)
{
    return type == CS_E4M3 || type == CS_E5M2;
}

static gboolean leading_fits(const CsMatrix *matrix)
{
    return matrix->leading >= (gint64)MAX(1, matrix->row_major ? matrix->columns : matrix->rows);
}

static gboolean epilogue_is_known(cublasLtEpilogue_t epilogue)
{
    static const cublasLtEpilogue_t known[] = {
        CUBLASLT_EPILOGUE_DEFAULT,     CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_RELU,
        CUBLASLT_EPILOGUE_RELU_BIAS,   CUBLASLT_EPILOGUE_GELU,          CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX,    CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
        CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,        CUBLASLT_EPILOGUE_BGRADB};

    for (gsize i = 0; i < G_N_ELEMENTS(known); i++)
        if (known[i] == epilogue)
            return TRUE;
    return FALSE;
}

/* fp8 tensor cores want A transposed, B not, both by columns, and whole 16-byte rows. */
static gboolean fp8_is_legal(const CsGemm *gemm)
{
    const CsMatrix *a = &gemm->a, *b = &gemm->b;

    if (!is_fp8(a->type) && !is_fp8(b->type))
        return TRUE;
    return is_fp8(a->type) && is_fp8(b->type) && gemm->transpose_a && !gemm->transpose_b &&
           !a->row_major && !b->row_major && a->rows % 16 == 0 && a->columns % 16 == 0 &&
           b->columns % 16 == 0;
}

cublasStatus_t cs_gemm_check(const CsGemm *g)
{
    gsize m = rows_of(&g->a, g->transpose_a), k = columns_of(&g->a, g->transpose_a);
    gsize n = columns_of(&g->b, g->transpose_b);
    gboolean needs_bias = (g->epilogue & (BIAS | BGRAD | BGRAD_A | BGRAD_B)) != 0;

    if (rows_of(&g->b, g->transpose_b) != k || g->d.rows != m || g->d.columns != n ||
        g->c.rows != m || g->c.columns != n || g->a.batch != g->d.batch ||
        g->b.batch != g->d.batch || g->c.batch != g->d.batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!leading_fits(&g->a) || !leading_fits(&g->b) || !leading_fits(&g->c) ||
        !leading_fits(&g->d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((g->epilogue & AUX) != 0 &&
        (g->aux == NULL || g->aux_leading < (gint64)m || g->aux_leading % 8 != 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (needs_bias && g->bias == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!epilogue_is_known(g->epilogue) || !fp8_is_legal(g) ||
        (g->a.type != g->b.type && !is_fp8(g->a.type)) ||
        (!is_fp8(g->a.type) && g->d.type != g->a.type && g->d.type != CS_FP32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- memory ---- */

static gsize element(const CsMatrix *matrix, gsize row, gsize column)
{
    gsize leading = (gsize)matrix->leading;

    return matrix->row_major ? row * leading + column : column * leading + row;
}

static char *batch_of(const CsMatrix *matrix, const void *data, gint32 batch)
{
    return (char *)(gsize)data +
           (gint64)batch * matrix->batch_stride * (gint64)cs_number_bytes(matrix->type);
}

static void access_matrix(CsAccess access, const CsMatrix *matrix, const void *data, gint32 batch)
{
    gsize lines = matrix->row_major ? matrix->rows : matrix->columns;
    gsize length = matrix->row_major ? matrix->columns : matrix->rows;
    gsize bytes = cs_number_bytes(matrix->type);

    for (gsize i = 0; i < lines; i++)
        cs_race_access(access, batch_of(matrix, data, batch) + i * (gsize)matrix->leading * bytes,
                       length * bytes);
}

static float *unpack(const CsMatrix *matrix, const void *data, gint32 batch, gboolean transpose)
{
    gsize rows = rows_of(matrix, transpose), columns = columns_of(matrix, transpose);
    float *out = g_new(float, rows *columns + 1);
    const char *from = batch_of(matrix, data, batch);

    access_matrix(CS_READ, matrix, data, batch);
    for (gsize i = 0; i < rows; i++)
        for (gsize j = 0; j < columns; j++)
            out[i * columns + j] = (float)cs_number_get(
                matrix->type, from, transpose ? element(matrix, j, i) : element(matrix, i, j));
    return out;
}

static float read_scalar(const float *data, float otherwise)
{
    if (data == NULL)
        return otherwise;
    cs_race_access(CS_READ, data, sizeof *data);
    return *data;
}

/* ---- epilogues ---- */

/* GELU by tanh, as cuBLASLt has it, and its derivative. */
static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));

    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

static char *bias_of(const CsGemm *gemm, gint32 batch)
{
    return (char *)gemm->bias +
           batch * gemm->bias_stride * (gint64)cs_number_bytes(gemm->bias_type);
}

/* The vector that BGRAD writes: sums over @count elements that are @step apart, for each of
 * @length that are @stride apart. */
static void write_sums(const Product *p, const float *from, gsize length, gsize stride, gsize count,
                       gsize step)
{
    char *to = bias_of(p->gemm, p->batch);

    cs_race_access(CS_WRITE, to, length * cs_number_bytes(p->gemm->bias_type));
    for (gsize i = 0; i < length; i++) {
        float sum = 0.0f;
        for (gsize j = 0; j < count; j++)
            sum += from[i * stride + j * step];
        cs_number_set(p->gemm->bias_type, to, i, (double)sum);
    }
}

static void add_bias(const Product *p)
{
    const char *bias = bias_of(p->gemm, p->batch);

    cs_race_access(CS_READ, bias, p->m * cs_number_bytes(p->gemm->bias_type));
    for (gsize i = 0; i < p->m; i++)
        for (gsize j = 0; j < p->n; j++)
            p->d[i * p->n + j] += (float)cs_number_get(p->gemm->bias_type, bias, i);
}

/* The auxiliary matrix: written by the forward pass, read by the backward pass. */
static void exchange_aux(const Product *p, gboolean backward)
{
    const CsGemm *g = p->gemm;
    CsMatrix aux = {.type = g->aux_type,
                    .rows = p->m,
                    .columns = p->n,
                    .leading = g->aux_leading,
                    .batch_stride = g->aux_stride};
    char *data = batch_of(&aux, g->aux, p->batch);

    access_matrix(backward ? CS_READ : CS_WRITE, &aux, g->aux, p->batch);
    for (gsize i = 0; i < p->m; i++)
        for (gsize j = 0; j < p->n; j++) {
            float *d = &p->d[i * p->n + j];
            if (backward)
                *d *= gelu_slope((float)cs_number_get(aux.type, data, element(&aux, i, j)));
            else
                cs_number_set(aux.type, data, element(&aux, i, j), (double)*d);
        }
}

static void apply_epilogue(const Product *p)
{
    unsigned epilogue = (unsigned)p->gemm->epilogue;

    if ((epilogue & BIAS) != 0)
        add_bias(p);
    if ((epilogue & AUX) != 0)
        exchange_aux(p, (epilogue & DGELU) != 0);
    for (gsize i = 0; i < p->m * p->n; i++) {
        if ((epilogue & RELU) != 0)
            p->d[i] = MAX(p->d[i], 0.0f);
        if ((epilogue & GELU) != 0)
            p->d[i] = gelu(p->d[i]);
    }
    if ((epilogue & BGRAD) != 0)
        write_sums(p, p->d, p->m, p->n, p->n, 1);
    if ((epilogue & BGRAD_A) != 0)
        write_sums(p, p->a, p->m, p->k, p->k, 1);
    if ((epilogue & BGRAD_B) != 0)
        write_sums(p, p->b, p->n, 1, p->k, p->n);
}

/* ---- product ---- */

static void multiply(const Product *p, float alpha)
{
    for (gsize i = 0; i < p->m; i++) {
        float *d = p->d + i * p->n;
        for (gsize l = 0; l < p->k; l++)
            for (gsize j = 0; j < p->n; j++)
                d[j] += p->a[i * p->k + l] * p->b[l * p->n + j];
        for (gsize j = 0; j < p->n; j++)
            d[j] *= alpha;
    }
}

/* With beta 0, C is not read: it may hold NaN. */
static void add_c(const Product *p, float beta)
{
    const CsGemm *g = p->gemm;
    g_autofree float *c = beta == 0.0f ? NULL : unpack(&g->c, g->c_data, p->batch, FALSE);

    for (gsize i = 0; c != NULL && i < p->m * p->n; i++)
        p->d[i] += beta * c[i];
}

static void write_d(const Product *p)
{
    const CsGemm *g = p->gemm;
    char *to = batch_of(&g->d, g->d_data, p->batch);
    float scale = read_scalar(g->d_scale, 1.0f), largest = 0.0f;

    access_matrix(CS_WRITE, &g->d, g->d_data, p->batch);
    for (gsize i = 0; i < p->m; i++)
        for (gsize j = 0; j < p->n; j++) {
            float value = p->d[i * p->n + j];
            largest = MAX(largest, fabsf(value));
            cs_number_set(g->d.type, to, element(&g->d, i, j), (double)(value * scale));
        }
    if (g->d_amax != NULL) {
        cs_race_access(CS_WRITE, g->d_amax, sizeof *g->d_amax);
        *g->d_amax = largest;
    }
}

static void run_batch(const CsGemm *g, gint32 batch)
{
    gsize m = g->d.rows, n = g->d.columns;
    g_autofree float *a = unpack(&g->a, g->a_data, batch, g->transpose_a);
    g_autofree float *b = unpack(&g->b, g->b_data, batch, g->transpose_b);
    g_autofree float *d = g_new0(float, m *n + 1);
    Product p = {g, batch, m, n, columns_of(&g->a, g->transpose_a), a, b, d};

    multiply(&p, read_scalar(g->alpha_data, g->alpha) * read_scalar(g->a_scale, 1.0f) *
                     read_scalar(g->b_scale, 1.0f));
    add_c(&p, read_scalar(g->beta_data, g->beta));
    apply_epilogue(&p);
    write_d(&p);
}

static void run(CsOp *op)
{
    const CsGemm *g = &((GemmOp *)op)->gemm;

    if (g->workspace_bytes > 0) {
        cs_race_access(CS_WRITE, g->workspace, g->workspace_bytes);
        cs_memory_poison(g->workspace, g->workspace_bytes);
    }
    for (gint32 batch = 0; batch < g->d.batch; batch++)
        run_batch(g, batch);
}

static const CsOpKind gemm_kind = {.name = "a matrix product", .bytes = sizeof(GemmOp), .run = run};

void cs_gemm_push(const CsGemm *gemm, cudaStream_t stream)
{
    GemmOp *op = (GemmOp *)cs_op_new(&gemm_kind);

    op->gemm = *gemm;
    cs_op_push(stream, &op->base);
}
