/* Causal attention as graphs of cuDNN's, in bf16 with sums in fp32: the equations and layouts of
 * OP_ATTENTION and OP_ATTENTION_BACKWARD without positions, whose letters are used here. */
#pragma once

#include "exec/cuda/cudnn_graph.h"

typedef struct {
    gint64 batch, seq, heads, kv_heads, head_dim;
} CudnnAttentionShape;

typedef struct CudnnAttention CudnnAttention; /* both passes, of one shape */

/* @limit_bytes: of the scratch that a pass is given.  ERROR_RUNTIME: why it can't be run. */
CudnnAttention *cudnn_attention_new(const Cudnn *cudnn, const CudnnTarget *target,
                                    const CudnnAttentionShape *shape, guint64 limit_bytes,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
void cudnn_attention_free(CudnnAttention *attention);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CudnnAttention, cudnn_attention_free)
const CudnnAttentionShape *cudnn_attention_shape(const CudnnAttention *attention);
guint64 cudnn_attention_scratch_bytes(const CudnnAttention *attention);

typedef struct {
    void *q, *k, *v, *o, *lse;
    void *dout, *dq, *dk, *dv; /* of the backward pass */
    void *scratch;             /* cudnn_attention_scratch_bytes(), aligned to 256 bytes */
} CudnnAttentionData;

/* Enqueue on the stream of @handle, and write all results anew. */
gboolean cudnn_attention_forward(const CudnnAttention *attention, DnnHandle handle,
                                 const CudnnAttentionData *data,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean cudnn_attention_backward(const CudnnAttention *attention, DnnHandle handle,
                                  const CudnnAttentionData *data,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;
