/* Attention by cuDNN on the CUDA device: slot library_attention of DeviceQueueOps, and its parts.
 */
#pragma once

#include "exec/cuda/cuda_device.h"
#include "exec/cuda/cudnn_attention.h"

const char *cuda_library_attention(Device *base, const GPtrArray *ops, guint64 scratch_bytes,
                                   GError **error);
void cuda_library_attention_free(CudaDevice *device);

/* Enqueues the op if the library runs attention; FALSE: the own kernels are to. */
gboolean cuda_run_library_attention(CudaDevice *device, const Launch *launch);

/* Both passes on noise beside the own kernels, of this shape: its heads, and one or two sequences
 * as long as they are or as a second allows.  ERROR_RUNTIME: a block of rows differs by more than
 * rounding. */
gboolean cuda_attention_check(const Cudnn *cudnn, DnnHandle handle,
                              const CudnnAttentionShape *shape,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
