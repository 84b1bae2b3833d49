#include "tests/cudasim/gemm.h"
#include "tests/cudasim/report.h"
#include <string.h>

#define WANTED_WORKSPACE ((gsize)4096) /* of the first algorithm; the second does without */
#define UNSET            (-1)

struct cublasLtContext {
    int unused;
};

/* What lies in the opaque structs. */
typedef struct {
    guint32 type;
    gint32 order;
    guint64 rows;
    guint64 columns;
    gint64 leading;
    gint64 batch_stride;
    gint32 batch;
} Layout;

typedef struct {
    gint32 compute;
    gint32 scale_type;
    gint32 pointer_mode;
    gint32 op_a;
    gint32 op_b;
    guint32 epilogue;
    gint32 bias_type;
    gint32 aux_type;
    void *bias;
    gint64 bias_stride;
    void *aux;
    gint64 aux_leading;
    gint64 aux_stride;
    const float *a_scale;
    const float *b_scale;
    const float *d_scale;
    float *d_amax;
    gint32 scale_mode; /* of any */
    gint32 multiprocessors;
    gint8 fast_accumulation;
} Description;

/* What pointers are multiples of, of A, B, C and D. */
typedef struct {
    guint64 max_workspace_bytes;
    guint32 alignment[4];
} Preference;

/* In cublasLtMatmulAlgo_t: which problem it was found for, and what it takes for granted. */
typedef struct {
    guint64 workspace_bytes;
    guint64 problem;
    guint32 alignment[4];
} Algorithm;

G_STATIC_ASSERT(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
G_STATIC_ASSERT(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t));
G_STATIC_ASSERT(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
G_STATIC_ASSERT(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

/* ---- attributes ---- */

typedef struct {
    int attribute;
    gsize offset;
    gsize bytes;
} Field;

#define FIELD(attribute, type, member)                                                             \
    {                                                                                              \
        attribute, G_STRUCT_OFFSET(type, member), sizeof(((type *)0)->member)                      \
    }

static const Field layout_fields[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, columns),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, leading),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batch),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, batch_stride),
};

static const Field description_fields[] = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, Description, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, Description, scale_type),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, Description, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, Description, op_a),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, Description, op_b),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, Description, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Description, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, Description, bias_stride),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, Description, bias_type),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, Description, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, Description, aux_leading),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, Description, aux_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, Description, aux_type),
    FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Description, a_scale),
    FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, Description, b_scale),
    FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Description, d_scale),
    FIELD(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, Description, d_amax),
    FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, Description, scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, Description, scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_MODE, Description, scale_mode),
    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, Description, multiprocessors),
    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, Description, fast_accumulation),
};

static const Field preference_fields[] = {
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, max_workspace_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, alignment[0]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, alignment[1]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, alignment[2]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, alignment[3]),
};

static cublasStatus_t set(void *object, const Field *fields, gsize count, int attribute,
                          const void *value, gsize bytes)
{
    for (gsize i = 0; i < count; i++) {
        if (fields[i].attribute != attribute)
            continue;
        if (value == NULL || bytes != fields[i].bytes)
            return CUBLAS_STATUS_INVALID_VALUE;
        memcpy((char *)object + fields[i].offset, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    cs_report(CS_MISUSE, "cublasLt: attribute %d is not simulated", attribute);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- objects ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = g_new0(struct cublasLtContext, 1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    g_free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t leading)
{
    if (bytes < sizeof *layout)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *(Layout *)layout = (Layout){.type = (guint32)type,
                                 .order = CUBLASLT_ORDER_COL,
                                 .rows = rows,
                                 .columns = columns,
                                 .leading = leading,
                                 .batch = 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading)
{
    *layout = g_new0(cublasLtMatrixLayoutOpaque_t, 1);
    return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns,
                                             leading);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    g_free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    return set(layout, layout_fields, G_N_ELEMENTS(layout_fields), (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    if (bytes < sizeof *description)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *(Description *)description = (Description){.compute = (gint32)compute,
                                                .scale_type = (gint32)scale,
                                                .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                                .bias_type = UNSET,
                                                .aux_type = UNSET};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description,
                                        cublasComputeType_t compute, cudaDataType_t scale)
{
    *description = g_new0(cublasLtMatmulDescOpaque_t, 1);
    return cublasLtMatmulDescInit_internal(*description, sizeof **description, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description)
{
    g_free(description);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    return set(description, description_fields, G_N_ELEMENTS(description_fields), (int)attribute,
               value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t bytes)
{
    if (bytes < sizeof *preference)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *(Preference *)preference = (Preference){.alignment = {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = g_new0(cublasLtMatmulPreferenceOpaque_t, 1);
    return cublasLtMatmulPreferenceInit_internal(*preference, sizeof **preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    g_free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    return set(preference, preference_fields, G_N_ELEMENTS(preference_fields), (int)attribute,
               value, bytes);
}

/* ---- products ---- */

static gboolean to_matrix(cublasLtMatrixLayout_t opaque, CsMatrix *matrix)
{
    const Layout *layout = (const Layout *)opaque;

    *matrix = (CsMatrix){.rows = layout->rows,
                         .columns = layout->columns,
                         .leading = layout->leading,
                         .row_major = layout->order == CUBLASLT_ORDER_ROW,
                         .batch = layout->batch,
                         .batch_stride = layout->batch_stride};
    return cs_gemm_type((cudaDataType_t)layout->type, &matrix->type) &&
           (layout->order == CUBLASLT_ORDER_ROW || layout->order == CUBLASLT_ORDER_COL);
}

/* The type of a bias or an auxiliary matrix; by default that of D. */
static gboolean side_type(gint32 type, const CsMatrix *d, CsNumber *number)
{
    *number = d->type;
    return type == UNSET || cs_gemm_type((cudaDataType_t)type, number);
}

static cublasStatus_t to_gemm(cublasLtMatmulDesc_t opaque, const cublasLtMatrixLayout_t layouts[4],
                              CsGemm *gemm)
{
    const Description *description = (const Description *)opaque;

    *gemm = (CsGemm){.transpose_a = description->op_a != CUBLAS_OP_N,
                     .transpose_b = description->op_b != CUBLAS_OP_N,
                     .epilogue = (cublasLtEpilogue_t)description->epilogue,
                     .bias = description->bias,
                     .bias_stride = description->bias_stride,
                     .aux = description->aux,
                     .aux_leading = description->aux_leading,
                     .aux_stride = description->aux_stride,
                     .a_scale = description->a_scale,
                     .b_scale = description->b_scale,
                     .d_scale = description->d_scale,
                     .d_amax = description->d_amax};
    if ((description->compute != CUBLAS_COMPUTE_32F &&
         description->compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
        description->scale_type != CUDA_R_32F ||
        description->scale_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ||
        description->pointer_mode > CUBLASLT_POINTER_MODE_DEVICE ||
        !to_matrix(layouts[0], &gemm->a) || !to_matrix(layouts[1], &gemm->b) ||
        !to_matrix(layouts[2], &gemm->c) || !to_matrix(layouts[3], &gemm->d) ||
        !side_type(description->bias_type, &gemm->d, &gemm->bias_type) ||
        !side_type(description->aux_type, &gemm->d, &gemm->aux_type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return cs_gemm_check(gemm);
}

/* What an algorithm may depend on: everything but addresses and scalars. */
static guint64 problem_of(const CsGemm *gemm)
{
    const CsMatrix *all[] = {&gemm->a, &gemm->b, &gemm->c, &gemm->d};
    guint64 hash =
        (guint64)gemm->epilogue * 4 + (gemm->transpose_a ? 2 : 0) + (gemm->transpose_b ? 1 : 0);

    for (gsize i = 0; i < G_N_ELEMENTS(all); i++) {
        const guint64 values[] = {(guint64)all[i]->type,
                                  all[i]->rows,
                                  all[i]->columns,
                                  (guint64)all[i]->leading,
                                  (guint64)all[i]->row_major,
                                  (guint64)all[i]->batch};
        for (gsize j = 0; j < G_N_ELEMENTS(values); j++)
            hash = (hash ^ values[j]) * 0x100000001b3u; /* FNV-1a */
    }
    return hash;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const gsize workspaces[] = {WANTED_WORKSPACE, 0};
    CsGemm gemm;
    cublasStatus_t status = to_gemm(description, (cublasLtMatrixLayout_t[]){a, b, c, d}, &gemm);

    (void)handle;
    *found = 0;
    if (wanted <= 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (gsize i = 0; i < G_N_ELEMENTS(workspaces) && *found < wanted; i++) {
        if (workspaces[i] > ((const Preference *)preference)->max_workspace_bytes)
            continue;
        Algorithm algorithm = {workspaces[i], problem_of(&gemm), {0}};
        memcpy(algorithm.alignment, ((const Preference *)preference)->alignment,
               sizeof algorithm.alignment);
        results[*found] = (cublasLtMatmulHeuristicResult_t){
            .workspaceSize = workspaces[i], .state = CUBLAS_STATUS_SUCCESS, .wavesCount = 1.0f};
        memcpy(&results[*found].algo, &algorithm, sizeof algorithm);
        (*found)++;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static void set_scalars(CsGemm *gemm, gint32 pointer_mode, const void *alpha, const void *beta)
{
    if (pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        gemm->alpha_data = alpha;
        gemm->beta_data = beta;
    } else {
        gemm->alpha = *(const float *)alpha;
        gemm->beta = *(const float *)beta;
    }
}

static gboolean is_aligned(const Algorithm *algorithm, const void *const data[4])
{
    for (gsize i = 0; i < G_N_ELEMENTS(algorithm->alignment); i++)
        if ((guintptr)data[i] % algorithm->alignment[i] != 0)
            return FALSE;
    return TRUE;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *opaque,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const cublasLtMatrixLayout_t layouts[] = {a_layout, b_layout, c_layout, d_layout};
    Algorithm algorithm = {0};
    CsGemm gemm;
    cublasStatus_t status = to_gemm(description, layouts, &gemm);

    (void)handle;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (opaque != NULL) {
        memcpy(&algorithm, opaque, sizeof algorithm);
        if (algorithm.problem != problem_of(&gemm))
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (algorithm.workspace_bytes > workspace_bytes)
            return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (opaque != NULL && !is_aligned(&algorithm, (const void *[]){a, b, c, d})) {
        cs_report(CS_MISUSE, "cublasLtMatmul: a matrix is less aligned than the algorithm needs");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    gemm.a_data = a;
    gemm.b_data = b;
    gemm.c_data = c;
    gemm.d_data = d;
    /* All of it, not just what the algorithm wants: sharing any of it is a bug. */
    gemm.workspace = workspace;
    gemm.workspace_bytes = workspace == NULL ? 0 : workspace_bytes;
    set_scalars(&gemm, ((const Description *)description)->pointer_mode, alpha, beta);
    if (gemm.d.rows > 0 && gemm.d.columns > 0)
        cs_gemm_push(&gemm, stream);
    return CUBLAS_STATUS_SUCCESS;
}
