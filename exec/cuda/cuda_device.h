/* The CUDA device's own: what its files share. */
#pragma once

#include "exec/cuda/cuda_kernels.h"
#include "exec/device/device.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

typedef struct CudaLibraryAttention CudaLibraryAttention;

typedef struct {
    Device base;
    int ordinal; /* of the GPU in this process */
    char *library;
    cudaStream_t streams[MAX_STREAMS];
    guint num_streams;
    double *norm_partials[MAX_STREAMS]; /* CUDA_SQUARED_NORM_PARTIALS each */
    cublasLtHandle_t blas;
    GHashTable *choices; /* of algorithms, by cuda_gemm(); of the compute stream's thread */
    CudaLibraryAttention *attention; /* NULL: the own kernels run attention */

    GMutex lock;
    GError *error; /* the first; under the lock */
} CudaDevice;

extern const DeviceOps device_cuda;

/* Why CUDA can't be used here, in one line, or that it can. */
gboolean cuda_probe(guint *num_devices, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The calling thread's CUDA calls are to this device. */
void cuda_enter(const CudaDevice *device);

gboolean cuda_ok(cudaError_t status, const char *what, GError **error);

/* Keeps the device's first error: of a call named @what, of the last launch, of a library. */
void cuda_keep_failure(CudaDevice *device, const char *what, const char *why);
void cuda_keep(CudaDevice *device, cudaError_t status, const char *what);
void cuda_keep_blas(CudaDevice *device, cublasStatus_t status, const char *what);

/* ---- cuda_graph.c: slots of DeviceQueueOps ---- */

gboolean cuda_capture_begin(Device *device, GError **error);
DeviceGraph *cuda_capture_end(Device *device, GError **error);
void cuda_graph_run(Device *device, DeviceGraph *graph);
void cuda_graph_free(Device *device, DeviceGraph *graph);

/* ---- cuda_gemm.c ---- */

/* d = op(a) op(b) (+ d) (+ bias), as cuBLASLt has matrices: column after column, op transposes.
 * op(a) is (m, k), op(b) (k, n), d (m, n). */
typedef struct {
    gboolean transpose_a, transpose_b, adds;
    guint64 m, n, k;
    DType dtype, dtype_d; /* of a, b and the bias; of d */
    const void *a, *b;
    void *d;
    const void *bias; /* (m) or NULL: added to each column */
    void *workspace;  /* CUDA_GEMM_WORKSPACE_BYTES, of which the library asks for what it needs */
    guint stream;
} CudaGemm;

GHashTable *cuda_gemm_choices(void);
void cuda_gemm(CudaDevice *device, const CudaGemm *gemm);

/* ---- cuda_ops.c, cuda_products.c: one function an op ---- */

typedef void CudaOp(CudaDevice *device, const Launch *launch);

CudaOp cuda_run_linear, cuda_run_linear_backward_input, cuda_run_linear_backward_weight;
CudaOp cuda_run_head_loss, cuda_run_head_stats;

/* NULL for kinds that no device runs. */
CudaOp *cuda_op(OpKind kind);
