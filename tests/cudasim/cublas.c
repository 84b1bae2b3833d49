#include "tests/cudasim/gemm.h"
#include "tests/cudasim/stream.h"

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t pointer_mode;
    void *workspace;
    gsize workspace_bytes;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    *handle = g_new0(struct cublasContext, 1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    g_free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

/* Takes the workspace away, as the library does. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = NULL;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    (void)handle, (void)mode;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "a status that is not simulated";
    }
}

static void set_scalars(cublasHandle_t handle, CsGemm *gemm, const void *alpha, const void *beta)
{
    if (handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE) {
        gemm->alpha_data = alpha;
        gemm->beta_data = beta;
    } else {
        gemm->alpha = *(const float *)alpha;
        gemm->beta = *(const float *)beta;
    }
}

static CsMatrix matrix(CsNumber type, int rows, int columns, int leading, long long stride,
                       int batch)
{
    return (CsMatrix){.type = type,
                      .rows = (guint64)rows,
                      .columns = (guint64)columns,
                      .leading = leading,
                      .batch = batch,
                      .batch_stride = stride};
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int a_leading, long long a_stride, const void *b,
                                          cudaDataType b_type, int b_leading, long long b_stride,
                                          const void *beta, void *c, cudaDataType c_type,
                                          int c_leading, long long c_stride, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    CsGemm gemm = {.a_data = a,
                   .b_data = b,
                   .c_data = c,
                   .d_data = c,
                   .transpose_a = op_a != CUBLAS_OP_N,
                   .transpose_b = op_b != CUBLAS_OP_N,
                   .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                   .workspace = handle->workspace,
                   .workspace_bytes = handle->workspace_bytes};
    CsNumber types[3];
    cublasStatus_t status;

    (void)algorithm;
    if (m < 0 || n < 0 || k < 0 || batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!cs_gemm_type(a_type, &types[0]) || !cs_gemm_type(b_type, &types[1]) ||
        !cs_gemm_type(c_type, &types[2]) ||
        (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_16BF &&
         compute != CUBLAS_COMPUTE_32F_FAST_TF32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    gemm.a = gemm.transpose_a ? matrix(types[0], k, m, a_leading, a_stride, batch)
                              : matrix(types[0], m, k, a_leading, a_stride, batch);
    gemm.b = gemm.transpose_b ? matrix(types[1], n, k, b_leading, b_stride, batch)
                              : matrix(types[1], k, n, b_leading, b_stride, batch);
    gemm.c = gemm.d = matrix(types[2], m, n, c_leading, c_stride, batch);
    set_scalars(handle, &gemm, alpha, beta);
    status = cs_gemm_check(&gemm);
    if (status == CUBLAS_STATUS_SUCCESS && m > 0 && n > 0 && batch > 0)
        cs_gemm_push(&gemm, handle->stream);
    return status;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int a_leading, const void *b, cudaDataType b_type,
                            int b_leading, const void *beta, void *c, cudaDataType c_type,
                            int c_leading, cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, a_type, a_leading, 0,
                                      b, b_type, b_leading, 0, beta, c, c_type, c_leading, 0, 1,
                                      compute, algorithm);
}
