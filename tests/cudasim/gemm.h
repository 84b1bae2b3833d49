/* Matrix products, as ops: D = epilogue(alpha * op(A) op(B) + beta * C), summed in fp32. */
#pragma once

#include "tests/cudasim/number.h"
#include <cublas_v2.h>
#include <cublasLt.h>

typedef struct {
    CsNumber type;
    guint64 rows; /* as stored, before op() */
    guint64 columns;
    gint64 leading;
    gboolean row_major;
    gint32 batch;
    gint64 batch_stride; /* elements */
} CsMatrix;

typedef struct {
    CsMatrix a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    gboolean transpose_a, transpose_b;

    float alpha, beta; /* unless these are set: in device memory */
    const float *alpha_data, *beta_data;

    cublasLtEpilogue_t epilogue;
    void *bias; /* read, or with BGRAD written */
    CsNumber bias_type;
    gint64 bias_stride;
    void *aux; /* what goes into the GELU */
    CsNumber aux_type;
    gint64 aux_leading;
    gint64 aux_stride;

    const float *a_scale, *b_scale, *d_scale; /* of fp8; NULL is 1 */
    float *d_amax;

    void *workspace; /* of the algorithm: overwritten */
    gsize workspace_bytes;
} CsGemm;

/* FALSE: of a type that isn't simulated. */
gboolean cs_gemm_type(cudaDataType_t type, CsNumber *number);

/* Whether shapes, leading dimensions, types and epilogue fit together as the libraries demand. */
cublasStatus_t cs_gemm_check(const CsGemm *gemm);

void cs_gemm_push(const CsGemm *gemm, cudaStream_t stream);
