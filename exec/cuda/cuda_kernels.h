/* The kernels of the CUDA device: one launcher a kernel, in plain C, without knowledge of Device.
 *
 * Letters and operands are those of sim/program/op.h.  Pointers are device memory unless it says
 * "host"; they need no alignment beyond their element's where nothing else is said, but 16-byte
 * aligned ones with columns that are multiples of 8 are read and written 16 bytes at a time.
 * Storage is bf16 or fp32, sums are fp32 or better.  Every result has the same bits each time: its
 * terms are added in an order that depends on sizes alone, and no float is added by atomics.
 * Launchers only enqueue on @stream and allocate nothing; errors of a launch stay with CUDA
 * (cudaGetLastError()). */
#pragma once

#include "sim/base/dtype.h"
#include "sim/program/cuda_blocks.h"

#include <glib.h>

G_BEGIN_DECLS

/* What CUDA calls cudaStream_t. */
typedef struct CUstream_st *CudaStream;

/* ---- norms (norm.cu) ---- */

typedef struct {
    DType dtype;
    guint64 rows, columns;
    float eps;
    const void *x;      /* (N, C) */
    const void *added;  /* (N, C) or NULL: then sum = x + added, rounded, is what is normed */
    void *sum;          /* (N, C) */
    const void *weight; /* (C) */
    const void *bias;   /* (C): layer norm only */
    void *y;            /* (N, C) */
    float *stats;       /* RMS norm: rstd (N).  Layer norm: mean, rstd (N, 2).  Written; read by
                           the apply forms */
} CudaNorm;

void cuda_rmsnorm(const CudaNorm *norm, CudaStream stream);
void cuda_rmsnorm_apply(const CudaNorm *norm, CudaStream stream);
void cuda_layernorm(const CudaNorm *norm, CudaStream stream);
void cuda_layernorm_apply(const CudaNorm *norm, CudaStream stream);

typedef struct {
    DType dtype, dtype_out; /* dtype_out: of dweight, dbias */
    guint64 rows, columns;
    const void *dy, *x, *weight;
    const float *stats;
    void *dx;
    void *dweight, *dbias;     /* dbias: layer norm only */
    gboolean adds_dx;          /* to what dx holds: the gradient of the residual */
    gboolean adds_dw, adds_db; /* to dweight, dbias */
    float *scratch;            /* CUDA_NORM_PARTIALS * C, layer norm twice that */
} CudaNormBackward;

void cuda_rmsnorm_backward(const CudaNormBackward *norm, CudaStream stream);
void cuda_layernorm_backward(const CudaNormBackward *norm, CudaStream stream);

/* ---- ops without neighbours (elementwise.cu) ---- */

void cuda_swiglu(DType dtype, guint64 elements, const void *gate, const void *up, void *h,
                 CudaStream stream);
/* In place: gate becomes dgate, up becomes dup. */
void cuda_swiglu_backward(DType dtype, guint64 elements, const void *dh, void *gate, void *up,
                          CudaStream stream);
void cuda_gelu(DType dtype, guint64 elements, const void *x, void *h, CudaStream stream);
/* In place: x becomes dx. */
void cuda_gelu_backward(DType dtype, guint64 elements, const void *dh, void *x, CudaStream stream);
/* y (N, C) += bias (C) */
void cuda_add_bias(DType dtype, guint64 rows, guint64 columns, const void *bias, void *y,
                   CudaStream stream);
/* dst = base + src, of which src has @from; base may be dst */
void cuda_accumulate(DType from, DType to, guint64 elements, const void *src, const void *base,
                     void *dst, CudaStream stream);
void cuda_cast(DType from, DType to, guint64 elements, const void *src, void *dst,
               CudaStream stream);

typedef struct {
    DType dtype; /* of src */
    guint64 elements;
    const void *src;
    const float *scale; /* one value: dst = e4m3(src * scale), saturated at +-448 */
    void *dst;          /* a byte an element */
    float *amax;        /* NULL, or updated: max(amax, max |src|); NaN wins */
} CudaCastFp8;

void cuda_cast_fp8(const CudaCastFp8 *cast, CudaStream stream);

/* amax = max(amax, max |src|), NaN above all. */
void cuda_amax(DType dtype, guint64 elements, const void *src, float *amax, CudaStream stream);
void cuda_zero(void *to, gsize bytes, CudaStream stream);
/* codes = e4m3(src * 448 / a), dst = codes * a / 448, a = max(amax, AMAX_LEAST); @dtype of src, of
 * dst.  Saturated, and NaN stays one. */
void cuda_quantise(DType dtype, guint64 elements, const void *src, const float *amax, void *codes,
                   CudaStream stream);
void cuda_dequantise(DType dtype, guint64 elements, const void *codes, const float *amax, void *dst,
                     CudaStream stream);

/* ---- sums of columns (columns.cu) ---- */

typedef struct {
    DType dtype, dtype_out;
    guint64 rows, columns;
    const void *dy; /* (N, O) */
    void *db;       /* (O) */
    gboolean adds;  /* to db */
    float *scratch; /* CUDA_BIAS_PARTIALS * O */
} CudaBiasBackward;

/* db (+)= sums of the columns of dy. */
void cuda_bias_backward(const CudaBiasBackward *bias, CudaStream stream);

/* ---- rotary embedding (rope.cu) ---- */

typedef struct {
    DType dtype;
    guint64 batch, seq, heads, kv_heads, head_dim;
    void *q, *k;        /* (N, H * D), (N, K * D) */
    const float *table; /* (T, D) */
} CudaRope;

void cuda_rope(const CudaRope *rope, CudaStream stream);
void cuda_rope_backward(const CudaRope *rope, CudaStream stream);

/* ---- embedding (embed.cu) ---- */

typedef struct {
    DType dtype;
    guint64 rows, vocab, columns;
    const gint32 *tokens;
    const void *weight;
    void *x;
    const double *range; /* or NULL */
    gboolean adds;       /* to x */
} CudaEmbed;

/* Without a range a token outside of the vocabulary gives a row of NaN. */
void cuda_embed(const CudaEmbed *embed, CudaStream stream);

typedef struct {
    DType dtype, dtype_out; /* dtype_out: of dweight */
    guint64 rows, vocab, columns;
    const gint32 *tokens;
    const void *dx;
    void *dweight;
    const double *range; /* or NULL */
    gboolean adds;       /* else dweight is zeroed first */
} CudaEmbedBackward;

/* A row of dweight is summed in fp32 in the order of its tokens and rounded once. */
void cuda_embed_backward(const CudaEmbedBackward *embed, CudaStream stream);

/* ---- loss on logits (loss.cu); the products around it are a library's ---- */

/* A chunk of rows of OP_HEAD_STATS. */
typedef struct {
    guint64 rows, vocab;
    const float *logits; /* (rows, vocab) */
    const gint32 *labels;
    const double *range;
    float *stats; /* (rows, NUM_STATS): of this chunk's rows */
} CudaHeadStats;

void cuda_head_stats(const CudaHeadStats *head, CudaStream stream);

/* A chunk of rows of OP_HEAD_LOSS. */
typedef struct {
    DType dtype; /* of dlogits */
    guint64 rows, vocab;
    const float *logits; /* (rows, vocab) */
    const gint32 *labels;
    const double *valid;
    void *dlogits;  /* (rows, vocab): d(loss / max(valid, 1)); may be the logits where fp32 */
    double *losses; /* scratch (rows) */
    double *loss;   /* += the chunk's sum, in the order of rows */
    gboolean adds;  /* to loss: FALSE writes it */
    /* vocabulary split over ranks: all three, or NULL, NULL, 0 */
    const double *range;
    const float *stats; /* this chunk's first row in part 0 of (parts, part_rows, NUM_STATS) */
    guint64 parts, part_rows;
} CudaCrossEntropy;

void cuda_cross_entropy(const CudaCrossEntropy *loss, CudaStream stream);

/* valid (+)= number of labels that are not -1 */
void cuda_count_valid(guint64 rows, const gint32 *labels, double *valid, gboolean adds,
                      CudaStream stream);

/* ---- between micro-batches and steps (step.cu) ---- */

/* The real elements of one parameter that this rank owns; offsets in elements, from the pointers
 * beside it.  An array of pieces is host memory, read before the launcher returns. */
typedef struct {
    guint64 elements;
    guint64 parameter, gradient, moment, master;
    /* RoundingNumbers of its parameter, whose element @start of this rank's part is its first */
    guint64 first, columns, stride, start;
    float decay;   /* weight decay applies: 1, or 0 */
    double weight; /* squared norm: 1 / copies */
} CudaPiece;

typedef struct {
    DType dtype; /* of the gradient */
    const void *gradient;
    const CudaPiece *pieces; /* host */
    guint num_pieces;
    double *sum;
    gboolean adds;    /* to sum */
    double *partials; /* scratch: CUDA_SQUARED_NORM_PARTIALS */
} CudaSquaredNorm;

void cuda_squared_norm(const CudaSquaredNorm *norm, CudaStream stream);

enum { CUDA_CLIP_SUMS = 5 };

typedef struct {
    const double *hyper, *valid;
    double *loss, *norm, *coef, *finite;
    const double *sums[CUDA_CLIP_SUMS]; /* a host array of scalars */
    guint num_sums;
} CudaClip;

void cuda_clip(const CudaClip *clip, CudaStream stream);

typedef struct {
    DType dtype, dtype_out; /* of the parameter, of its gradient */
    void *parameter;
    const void *gradient;
    float *m, *v;  /* adamw only */
    float *master; /* or NULL: the (fp32) parameter is what is updated */
    const double *hyper, *coef;
    const double *predicate; /* NULL, or: nothing is done while it is 0 */
    const CudaPiece *pieces; /* host */
    guint num_pieces;
    gboolean stochastic; /* a bf16 parameter is its master rounded up or down by chance, so that the
                            mean is the master; the chance depends on step and number only */
} CudaUpdate;

void cuda_adamw(const CudaUpdate *update, CudaStream stream);
void cuda_sgd(const CudaUpdate *update, CudaStream stream);

/* ---- attention (attention*.cu) ---- */

/* Rows of q are (batch, T), rows of k and v (blocks, batch, T).  Without positions one block, and
 * key j is seen by queries i >= j.  With them key j of block b is seen by query i where
 * k_positions[b * T + j] <= q_positions[i].  head_dim is even, at most CUDA_ATTENTION_MOST_DIM;
 * bf16 ones of 40 and more that are a multiple of 8 have tensor cores.  All pointers but positions
 * are aligned to 16 bytes. */
typedef struct {
    DType dtype, dtype_out; /* dtype_out: of o; of dq, dk, dv */
    guint64 batch, seq, heads, kv_heads, head_dim, blocks;
    const gint32 *q_positions, *k_positions; /* (T), (blocks, T); or both NULL */
    void *scratch;                           /* op_workspace_bytes() */
} CudaAttentionSizes;

typedef struct {
    CudaAttentionSizes sizes;
    const void *q, *k, *v;
    void *o;
    float *lse;
    gboolean adds; /* merges with o and lse of other keys */
} CudaAttention;

void cuda_attention(const CudaAttention *attention, CudaStream stream);

typedef struct {
    CudaAttentionSizes sizes;
    const void *dout, *q, *k, *v, *o; /* o has sizes.dtype */
    const float *lse;
    void *dq, *dk, *dv;
    gboolean adds_dq, adds_dk, adds_dv;
} CudaAttentionBackward;

void cuda_attention_backward(const CudaAttentionBackward *attention, CudaStream stream);

G_END_DECLS
