/* Which operations make up attention, and in which order, is what cuDNN's engines recognise: that
 * of NVIDIA's cudnn-frontend 1.x (include/cudnn_frontend/node/scaled_dot_product_flash_attention.h,
 * softmax.h, diagonal_band_mask.h).  Scores never reach memory. */
#include "exec/cuda/cudnn_attention.h"

#include "sim/base/error.h"
#include "sim/program/op.h"

#include <math.h>

enum { Q = 1, K, V, O, LSE, SCALE, HIDDEN, DOUT, DQ, DK, DV, ONE, DQ_SUMS, DOTS, NUM_UIDS };

struct CudnnAttention {
    CudnnAttentionShape shape;
    CudnnPlan *forward, *backward;
    guint64 dq_sums_bytes, dots_bytes; /* of the backward pass' scratch, before the workspace */
};

/* ---- shapes ---- */

/* (N, heads * D) as (batch, heads, T, D). */
static CudnnShape rows_of(const CudnnAttentionShape *s, gint64 heads)
{
    const gint64 row = heads * s->head_dim;

    return (CudnnShape){{s->batch, heads, s->seq, s->head_dim},
                        {s->seq * row, s->head_dim, row, 1}};
}

static CudnnShape transposed(CudnnShape of)
{
    return (CudnnShape){{of.dim[0], of.dim[1], of.dim[3], of.dim[2]},
                        {of.stride[0], of.stride[1], of.stride[3], of.stride[2]}};
}

/* (batch, H, T, columns), packed: T columns are scores, one is lse. */
static CudnnShape packed(const CudnnAttentionShape *s, gint64 columns)
{
    const gint64 head = s->seq * columns;

    return (CudnnShape){{s->batch, s->heads, s->seq, columns}, {s->heads * head, head, columns, 1}};
}

/* ---- graphs ---- */

typedef struct {
    CudnnGraph *graph;
    const CudnnAttentionShape *shape;
    DnnDescriptor q, k_transposed, scale, lse;
} Builder;

static DnnDescriptor argument(const Builder *to, gint64 uid, DnnDataType type, CudnnShape shape)
{
    return cudnn_graph_tensor(to->graph, &(CudnnTensor){uid, type, shape, FALSE});
}

static DnnDescriptor number(const Builder *to, gint64 uid)
{
    const CudnnShape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};

    return cudnn_graph_tensor(to->graph, &(CudnnTensor){uid, DNN_FLOAT, one, TRUE});
}

static DnnDescriptor scores(const Builder *to, DnnDataType type)
{
    return argument(to, 0, type, packed(to->shape, to->shape->seq));
}

static DnnDescriptor column(const Builder *to)
{
    return argument(to, 0, DNN_FLOAT, packed(to->shape, 1));
}

static DnnDescriptor function(const Builder *to, DnnPointwise mode, DnnDescriptor x,
                              DnnDescriptor b)
{
    DnnDescriptor y = scores(to, DNN_FLOAT);

    cudnn_graph_pointwise(to->graph, mode, x, b, y);
    return y;
}

/* Key j of query i is hidden unless i >= j. */
static DnnDescriptor causal(const Builder *to, DnnDescriptor x)
{
    enum { QUERY_AXIS = 2, KEY_AXIS = 3 };
    DnnDescriptor query = scores(to, DNN_INT32), key = scores(to, DNN_INT32);
    DnnDescriptor seen = scores(to, DNN_BOOLEAN), y = scores(to, DNN_FLOAT);

    cudnn_graph_index(to->graph, QUERY_AXIS, x, query);
    cudnn_graph_index(to->graph, KEY_AXIS, x, key);
    cudnn_graph_pointwise(to->graph, DNN_CMP_GE, query, key, seen);
    cudnn_graph_select(to->graph, seen, x, number(to, HIDDEN), y);
    return y;
}

static Builder builder(const Cudnn *cudnn, const CudnnAttentionShape *s)
{
    Builder to = {.graph = cudnn_graph_new(cudnn), .shape = s};

    to.q = argument(&to, Q, DNN_BFLOAT16, rows_of(s, s->heads));
    to.k_transposed = argument(&to, K, DNN_BFLOAT16, transposed(rows_of(s, s->kv_heads)));
    to.lse = argument(&to, LSE, DNN_FLOAT, packed(s, 1));
    to.scale = number(&to, SCALE);
    return to;
}

static DnnDescriptor scaled_scores(const Builder *to)
{
    DnnDescriptor products = scores(to, DNN_FLOAT);

    cudnn_graph_matmul(to->graph, to->q, to->k_transposed, products);
    return function(to, DNN_MUL, products, to->scale);
}

/* s = causal(scale q k^T);  m = max s;  lse = m + log sum e^(s - m);  o = e^(s - m) / sum v */
static CudnnGraph *forward_graph(const Cudnn *cudnn, const CudnnAttentionShape *shape)
{
    const Builder to = builder(cudnn, shape);
    CudnnGraph *graph = to.graph;
    DnnDescriptor v = argument(&to, V, DNN_BFLOAT16, rows_of(shape, shape->kv_heads));
    DnnDescriptor o = argument(&to, O, DNN_BFLOAT16, rows_of(shape, shape->heads));
    DnnDescriptor largest = column(&to), sum = column(&to), logarithm = column(&to);
    DnnDescriptor p = scores(&to, DNN_BFLOAT16);

    DnnDescriptor s = causal(&to, scaled_scores(&to));
    cudnn_graph_reduce(graph, DNN_REDUCE_MAX, s, largest);
    DnnDescriptor e = function(&to, DNN_EXP, function(&to, DNN_SUB, s, largest), NULL);
    cudnn_graph_reduce(graph, DNN_REDUCE_ADD, e, sum);
    cudnn_graph_pointwise(graph, DNN_LOG, sum, NULL, logarithm);
    cudnn_graph_pointwise(graph, DNN_ADD, largest, logarithm, to.lse);
    cudnn_graph_pointwise(graph, DNN_DIV, e, sum, p);
    cudnn_graph_matmul(graph, p, v, o);
    return graph;
}

/* dots = rowsum(do * o), a column in memory.  The product by 1 is where dropout would scale. */
static DnnDescriptor row_dots(const Builder *to, DnnDescriptor dout)
{
    const CudnnAttentionShape *s = to->shape;
    CudnnShape shape = packed(s, s->head_dim);
    DnnDescriptor o = argument(to, O, DNN_BFLOAT16, rows_of(s, s->heads));
    DnnDescriptor products = argument(to, 0, DNN_FLOAT, shape), sum = column(to);
    DnnDescriptor dots = argument(to, DOTS, DNN_FLOAT, packed(s, 1));

    cudnn_graph_pointwise(to->graph, DNN_MUL, dout, o, products);
    cudnn_graph_reduce(to->graph, DNN_REDUCE_ADD, products, sum);
    cudnn_graph_pointwise(to->graph, DNN_MUL, sum, number(to, ONE), dots);
    return dots;
}

/* Gradient @uid of k or v = @x^T @rows, summed over the query heads that share one. */
static void key_gradient(const Builder *to, gint64 uid, DnnDescriptor x, DnnDescriptor rows)
{
    const CudnnAttentionShape *s = to->shape;
    DnnDescriptor flipped = argument(to, 0, DNN_BFLOAT16, transposed(packed(s, s->seq)));
    DnnDescriptor gradient = argument(to, uid, DNN_BFLOAT16, rows_of(s, s->kv_heads));

    cudnn_graph_reshape(to->graph, x, flipped);
    if (s->heads == s->kv_heads) {
        cudnn_graph_matmul(to->graph, flipped, rows, gradient);
        return;
    }
    DnnDescriptor each = argument(to, 0, DNN_BFLOAT16, packed(s, s->head_dim));
    cudnn_graph_matmul(to->graph, flipped, rows, each);
    cudnn_graph_reduce(to->graph, DNN_REDUCE_ADD, each, gradient);
}

/* dq = ds k, summed in memory in fp32 from blocks of keys. */
static void query_gradient(const Builder *to, DnnDescriptor ds)
{
    const CudnnAttentionShape *s = to->shape;
    DnnDescriptor k = argument(to, 0, DNN_BFLOAT16, rows_of(s, s->kv_heads));
    DnnDescriptor sums = argument(to, DQ_SUMS, DNN_FLOAT, packed(s, s->head_dim));
    DnnDescriptor dq = argument(to, DQ, DNN_BFLOAT16, rows_of(s, s->heads));

    cudnn_graph_reshape(to->graph, to->k_transposed, k);
    cudnn_graph_matmul(to->graph, ds, k, sums);
    cudnn_graph_pointwise(to->graph, DNN_IDENTITY, sums, NULL, dq);
}

/* p = e^(s - lse);  dv = p^T do;  ds = scale p (do v^T - dots);  dk = ds^T q;  dq = ds k */
static CudnnGraph *backward_graph(const Cudnn *cudnn, const CudnnAttentionShape *shape)
{
    const Builder to = builder(cudnn, shape);
    CudnnGraph *graph = to.graph;
    DnnDescriptor v_transposed =
        argument(&to, V, DNN_BFLOAT16, transposed(rows_of(shape, shape->kv_heads)));
    DnnDescriptor dout = argument(&to, DOUT, DNN_BFLOAT16, rows_of(shape, shape->heads));
    DnnDescriptor dp = scores(&to, DNN_FLOAT), ds = scores(&to, DNN_BFLOAT16);

    DnnDescriptor dots = row_dots(&to, dout);
    DnnDescriptor s = function(&to, DNN_SUB, scaled_scores(&to), to.lse);
    DnnDescriptor p = function(&to, DNN_EXP, causal(&to, s), NULL);
    key_gradient(&to, DV, p, dout);
    cudnn_graph_matmul(graph, dout, v_transposed, dp);
    DnnDescriptor change = function(&to, DNN_MUL, function(&to, DNN_SUB, dp, dots), p);
    cudnn_graph_pointwise(graph, DNN_MUL, change, to.scale, ds);
    key_gradient(&to, DK, ds, to.q);
    query_gradient(&to, ds);
    return graph;
}

/* ---- plans ---- */

CudnnAttention *cudnn_attention_new(const Cudnn *cudnn, const CudnnTarget *target,
                                    const CudnnAttentionShape *shape, guint64 limit_bytes,
                                    GError **error)
{
    g_autoptr(CudnnAttention) attention = g_new0(CudnnAttention, 1);
    const guint64 rows = (guint64)(shape->batch * shape->seq * shape->heads);

    attention->shape = *shape;
    attention->dq_sums_bytes = op_library_aligned(4 * rows * (guint64)shape->head_dim);
    attention->dots_bytes = op_library_aligned(4 * rows);
    const guint64 own_bytes = attention->dq_sums_bytes + attention->dots_bytes;
    if (limit_bytes < own_bytes) {
        fail(error, ERROR_RUNTIME,
             "backward: its sums take %" G_GUINT64_FORMAT
             " bytes of scratch, and the plan has %" G_GUINT64_FORMAT,
             own_bytes, limit_bytes);
        return NULL;
    }
    attention->forward =
        cudnn_plan_new(forward_graph(cudnn, &attention->shape), target, limit_bytes, error);
    if (attention->forward == NULL) {
        g_prefix_error(error, "forward: ");
        return NULL;
    }
    attention->backward = cudnn_plan_new(backward_graph(cudnn, &attention->shape), target,
                                         limit_bytes - own_bytes, error);
    if (attention->backward == NULL) {
        g_prefix_error(error, "backward: ");
        return NULL;
    }
    return g_steal_pointer(&attention);
}

void cudnn_attention_free(CudnnAttention *attention)
{
    if (attention == NULL)
        return;
    cudnn_plan_free(attention->forward);
    cudnn_plan_free(attention->backward);
    g_free(attention);
}

const CudnnAttentionShape *cudnn_attention_shape(const CudnnAttention *attention)
{
    return &attention->shape;
}

guint64 cudnn_attention_scratch_bytes(const CudnnAttention *attention)
{
    return MAX(cudnn_plan_workspace_bytes(attention->forward),
               attention->dq_sums_bytes + attention->dots_bytes +
                   cudnn_plan_workspace_bytes(attention->backward));
}

/* ---- running ---- */

gboolean cudnn_attention_forward(const CudnnAttention *attention, DnnHandle handle,
                                 const CudnnAttentionData *data, GError **error)
{
    static const gint64 uids[] = {Q, K, V, O, LSE, SCALE, HIDDEN};
    float scale = 1 / sqrtf((float)attention->shape.head_dim), hidden = -INFINITY;
    void *const all[] = {data->q, data->k, data->v, data->o, data->lse, &scale, &hidden};
    const CudnnArguments arguments = {G_N_ELEMENTS(uids), uids, all, data->scratch};

    G_STATIC_ASSERT(G_N_ELEMENTS(uids) == G_N_ELEMENTS(all));
    return cudnn_plan_run(attention->forward, handle, &arguments, error);
}

gboolean cudnn_attention_backward(const CudnnAttention *attention, DnnHandle handle,
                                  const CudnnAttentionData *data, GError **error)
{
    static const gint64 uids[] = {Q,    K,  V,  O,  LSE, SCALE,   HIDDEN,
                                  DOUT, DQ, DK, DV, ONE, DQ_SUMS, DOTS};
    float scale = 1 / sqrtf((float)attention->shape.head_dim), hidden = -INFINITY, one = 1;
    guint8 *const sums = data->scratch, *const dots = sums + attention->dq_sums_bytes;
    void *const all[] = {data->q,    data->k,  data->v,  data->o,  data->lse, &scale, &hidden,
                         data->dout, data->dq, data->dk, data->dv, &one,      sums,   dots};
    const CudnnArguments arguments = {G_N_ELEMENTS(uids), uids, all, dots + attention->dots_bytes};

    G_STATIC_ASSERT(G_N_ELEMENTS(uids) == NUM_UIDS - 1 && G_N_ELEMENTS(all) == NUM_UIDS - 1);
    return cudnn_plan_run(attention->backward, handle, &arguments, error);
}
