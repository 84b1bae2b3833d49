/* Products of matrices by cuBLASLt, sums in fp32 (no TF32: fp32 is meant where a plan says so).
 * The library's choice of an algorithm depends on the problem alone, so it is asked once for each;
 * its workspace is the op's, bounded as the program says. */
#include "exec/cuda/cuda_device.h"

#include "sim/base/error.h"

#include <string.h>

enum { MOST_ALIGNMENT = 256 };

/* What an algorithm may depend on; compared byte by byte, so it has no padding. */
typedef struct {
    guint64 m, n, k;
    guint8 transpose_a, transpose_b, adds, has_bias;
    guint8 dtype, dtype_d, unused[2];
    guint32 alignment[4]; /* of a, b, d, bias */
} GemmProblem;

G_STATIC_ASSERT(sizeof(GemmProblem) == 3 * 8 + 8 + 4 * 4);

typedef struct {
    cublasLtMatmulDescOpaque_t description;
    cublasLtMatrixLayoutOpaque_t a, b, d;
} GemmLayouts;

typedef struct {
    cublasLtMatmulAlgo_t algorithm;
    gsize workspace_bytes;
} GemmChoice;

static guint problem_hash(gconstpointer key)
{
    const guint8 *bytes = key;
    guint hash = 2166136261u;

    for (gsize i = 0; i < sizeof(GemmProblem); i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static gboolean problem_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(a, b, sizeof(GemmProblem)) == 0;
}

static guint32 alignment_of(const void *p)
{
    const guintptr address = (guintptr)p;

    return p == NULL ? MOST_ALIGNMENT : (guint32)MIN(address & (~address + 1), MOST_ALIGNMENT);
}

static GemmProblem problem_of(const CudaGemm *g)
{
    return (GemmProblem){.m = g->m,
                         .n = g->n,
                         .k = g->k,
                         .transpose_a = g->transpose_a != FALSE,
                         .transpose_b = g->transpose_b != FALSE,
                         .adds = g->adds != FALSE,
                         .has_bias = g->bias != NULL,
                         .dtype = (guint8)g->dtype,
                         .dtype_d = (guint8)g->dtype_d,
                         .alignment = {alignment_of(g->a), alignment_of(g->b), alignment_of(g->d),
                                       alignment_of(g->bias)}};
}

static cudaDataType_t data_type(DType dtype)
{
    g_assert(dtype == DTYPE_BF16 || dtype == DTYPE_FP32);
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasStatus_t lay_out(const CudaGemm *g, GemmLayouts *to)
{
    const cublasOperation_t ops[] = {g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                     g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N};
    const guint64 a_rows = g->transpose_a ? g->k : g->m, b_rows = g->transpose_b ? g->n : g->k;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t bias_type = data_type(g->dtype);
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        gsize bytes;
    } sets[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &ops[0], sizeof ops[0]},
        {CUBLASLT_MATMUL_DESC_TRANSB, &ops[1], sizeof ops[1]},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type},
    };
    const guint num_sets = g->bias == NULL ? 2 : G_N_ELEMENTS(sets);
    cublasStatus_t status =
        cublasLtMatmulDescInit(&to->description, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    for (guint i = 0; i < num_sets && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulDescSetAttribute(&to->description, sets[i].attribute, sets[i].value,
                                                sets[i].bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&to->a, data_type(g->dtype), a_rows,
                                          g->transpose_a ? g->m : g->k, (int64_t)a_rows);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&to->b, data_type(g->dtype), b_rows,
                                          g->transpose_b ? g->k : g->n, (int64_t)b_rows);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&to->d, data_type(g->dtype_d), g->m, g->n, (int64_t)g->m);
    return status;
}

/* The most that the library may use, and the least it may take for granted. */
static cublasStatus_t set_preference(cublasLtMatmulPreferenceOpaque_t *preference,
                                     const GemmProblem *problem)
{
    const guint64 bytes = CUDA_GEMM_WORKSPACE_BYTES;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const guint32 *value;
    } sets[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &problem->alignment[0]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &problem->alignment[1]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &problem->alignment[2]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &problem->alignment[2]},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceInit(preference);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    for (guint i = 0; i < G_N_ELEMENTS(sets) && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, sets[i].attribute, sets[i].value,
                                                      sizeof *sets[i].value);
    return status;
}

static cublasStatus_t ask(CudaDevice *device, const GemmProblem *problem, GemmLayouts *layouts,
                          GemmChoice *choice)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t status = set_preference(&preference, problem);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(device->blas, &layouts->description, &layouts->a,
                                                &layouts->b, &layouts->d, &layouts->d, &preference,
                                                1, &result, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found == 0)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        *choice = (GemmChoice){result.algo, result.workspaceSize};
    return status;
}

/* For a problem, from the table or from the library; NULL with the error kept. */
static const GemmChoice *choice_for(CudaDevice *device, const GemmProblem *problem,
                                    GemmLayouts *layouts)
{
    GemmChoice *choice = g_hash_table_lookup(device->choices, problem);

    if (choice != NULL)
        return choice;
    choice = g_new0(GemmChoice, 1);
    const cublasStatus_t status = ask(device, problem, layouts, choice);
    if (status != CUBLAS_STATUS_SUCCESS) {
        g_free(choice);
        cuda_keep_blas(device, status, "cublasLtMatmulAlgoGetHeuristic");
        return NULL;
    }
    g_hash_table_insert(device->choices, g_memdup2(problem, sizeof *problem), choice);
    return choice;
}

GHashTable *cuda_gemm_choices(void)
{
    return g_hash_table_new_full(problem_hash, problem_equal, g_free, g_free);
}

void cuda_gemm(CudaDevice *device, const CudaGemm *g)
{
    const GemmProblem problem = problem_of(g);
    const float alpha = 1, beta = g->adds ? 1 : 0;
    GemmLayouts layouts;

    g_assert(g->stream == COMPUTE_STREAM); /* whose thread owns the table */
    const cublasStatus_t laid_out = lay_out(g, &layouts);
    if (laid_out != CUBLAS_STATUS_SUCCESS) {
        cuda_keep_blas(device, laid_out, "cublasLtMatmulDescSetAttribute");
        return;
    }
    const GemmChoice *choice = choice_for(device, &problem, &layouts);
    if (choice == NULL)
        return;
    cuda_keep_blas(device,
                   cublasLtMatmul(device->blas, &layouts.description, &alpha, g->a, &layouts.a,
                                  g->b, &layouts.b, &beta, g->d, &layouts.d, g->d, &layouts.d,
                                  &choice->algorithm, g->workspace, choice->workspace_bytes,
                                  device->streams[g->stream]),
                   "cublasLtMatmul");
}
