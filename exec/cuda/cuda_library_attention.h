/* Attention by cuDNN on the CUDA device: slot library_attention of DeviceQueueOps, and its parts.
 */
#pragma once

#include "exec/cuda/cuda_device.h"
#include "exec/cuda/cudnn_attention.h"

const char *cuda_library_attention(Device *base, const Program *program, GError **error);
void cuda_library_attention_free(CudaDevice *device);

/* Enqueues the op if the library runs attention; FALSE: the own kernels are to. */
gboolean cuda_run_library_attention(CudaDevice *device, const Launch *launch);

/* Both passes on noise, of this shape with at most a few short sequences, beside the own kernels.
 * ERROR_RUNTIME: they differ by more than rounding. */
gboolean cuda_attention_check(const Cudnn *cudnn, DnnHandle handle,
                              const CudnnAttentionShape *shape,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
