/* From ops to launchers: operands as sim/program/op.h numbers them, sizes as it names them. */
#include "exec/cuda/cuda_library_attention.h"

#include <string.h>

static CudaStream stream_of(const CudaDevice *device, const Launch *launch)
{
    return device->streams[launch->stream];
}

/* ---- embedding ---- */

static void run_embed(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const CudaEmbed embed = {.dtype = launch->op->dtype,
                             .rows = s->rows,
                             .vocab = s->in,
                             .columns = s->out,
                             .tokens = launch->operand[0],
                             .weight = launch->operand[1],
                             .x = launch->operand[2],
                             .range = launch_optional(launch, 3),
                             .adds = launch_adds(launch, 2)};

    cuda_embed(&embed, stream_of(device, launch));
}

static void run_embed_backward(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const CudaEmbedBackward embed = {.dtype = launch->op->dtype,
                                     .dtype_out = launch->op->dtype_out,
                                     .rows = s->rows,
                                     .vocab = s->in,
                                     .columns = s->out,
                                     .tokens = launch->operand[0],
                                     .dx = launch->operand[1],
                                     .dweight = launch->operand[2],
                                     .range = launch_optional(launch, 3),
                                     .adds = launch_adds(launch, 2)};

    cuda_embed_backward(&embed, stream_of(device, launch));
}

/* ---- norms ---- */

static CudaNorm norm_of(const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    return (CudaNorm){.dtype = launch->op->dtype,
                      .rows = s->rows,
                      .columns = s->in,
                      .eps = (float)s->eps,
                      .x = launch->operand[0],
                      .weight = launch->operand[1]};
}

static void take_added(CudaNorm *norm, const Launch *launch, guint required)
{
    norm->added = launch_optional(launch, required);
    norm->sum = launch_optional(launch, required + 1);
}

static void run_rmsnorm(CudaDevice *device, const Launch *launch)
{
    CudaNorm norm = norm_of(launch);

    norm.y = launch->operand[2];
    norm.stats = launch->operand[3];
    take_added(&norm, launch, 4);
    cuda_rmsnorm(&norm, stream_of(device, launch));
}

static void run_rmsnorm_apply(CudaDevice *device, const Launch *launch)
{
    CudaNorm norm = norm_of(launch);

    norm.stats = launch->operand[2];
    norm.y = launch->operand[3];
    cuda_rmsnorm_apply(&norm, stream_of(device, launch));
}

static void run_layernorm(CudaDevice *device, const Launch *launch)
{
    CudaNorm norm = norm_of(launch);

    norm.bias = launch->operand[2];
    norm.y = launch->operand[3];
    norm.stats = launch->operand[4];
    take_added(&norm, launch, 5);
    cuda_layernorm(&norm, stream_of(device, launch));
}

static void run_layernorm_apply(CudaDevice *device, const Launch *launch)
{
    CudaNorm norm = norm_of(launch);

    norm.bias = launch->operand[2];
    norm.stats = launch->operand[3];
    norm.y = launch->operand[4];
    cuda_layernorm_apply(&norm, stream_of(device, launch));
}

static CudaNormBackward norm_backward_of(const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    return (CudaNormBackward){.dtype = launch->op->dtype,
                              .dtype_out = launch->op->dtype_out,
                              .rows = s->rows,
                              .columns = s->in,
                              .dy = launch->operand[0],
                              .x = launch->operand[1],
                              .weight = launch->operand[2],
                              .stats = launch->operand[3],
                              .dx = launch->operand[4],
                              .dweight = launch->operand[5],
                              .adds_dx = launch_adds(launch, 4),
                              .adds_dw = launch_adds(launch, 5)};
}

static void run_rmsnorm_backward(CudaDevice *device, const Launch *launch)
{
    CudaNormBackward norm = norm_backward_of(launch);

    norm.scratch = launch->operand[6];
    cuda_rmsnorm_backward(&norm, stream_of(device, launch));
}

static void run_layernorm_backward(CudaDevice *device, const Launch *launch)
{
    CudaNormBackward norm = norm_backward_of(launch);

    norm.dbias = launch->operand[6];
    norm.adds_db = launch_adds(launch, 6);
    norm.scratch = launch->operand[7];
    cuda_layernorm_backward(&norm, stream_of(device, launch));
}

/* ---- attention ---- */

/* @positions: the operand of the queries' positions, where the op has them. */
static CudaAttentionSizes attention_sizes(const Launch *launch, guint positions)
{
    const OpSizes *s = &launch->op->sizes;
    CudaAttentionSizes sizes = {.dtype = launch->op->dtype,
                                .dtype_out = launch->op->dtype_out,
                                .batch = s->batch,
                                .seq = s->seq,
                                .heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim,
                                .blocks = op_key_blocks(launch->op),
                                .scratch = launch->operand[positions - 1]};

    if (launch->op->num_operands > positions) {
        sizes.q_positions = launch->operand[positions];
        sizes.k_positions = launch->operand[positions + 1];
    }
    return sizes;
}

static void run_attention(CudaDevice *device, const Launch *launch)
{
    const CudaAttention attention = {.sizes = attention_sizes(launch, 6),
                                     .q = launch->operand[0],
                                     .k = launch->operand[1],
                                     .v = launch->operand[2],
                                     .o = launch->operand[3],
                                     .lse = launch->operand[4],
                                     .adds = launch_adds(launch, 3)};

    if (!cuda_run_library_attention(device, launch))
        cuda_attention(&attention, stream_of(device, launch));
}

static void run_attention_backward(CudaDevice *device, const Launch *launch)
{
    const CudaAttentionBackward attention = {.sizes = attention_sizes(launch, 10),
                                             .dout = launch->operand[0],
                                             .q = launch->operand[1],
                                             .k = launch->operand[2],
                                             .v = launch->operand[3],
                                             .o = launch->operand[4],
                                             .lse = launch->operand[5],
                                             .dq = launch->operand[6],
                                             .dk = launch->operand[7],
                                             .dv = launch->operand[8],
                                             .adds_dq = launch_adds(launch, 6),
                                             .adds_dk = launch_adds(launch, 7),
                                             .adds_dv = launch_adds(launch, 8)};

    if (!cuda_run_library_attention(device, launch))
        cuda_attention_backward(&attention, stream_of(device, launch));
}

static CudaRope rope_of(const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    return (CudaRope){.dtype = launch->op->dtype,
                      .batch = s->batch,
                      .seq = s->seq,
                      .heads = s->heads,
                      .kv_heads = s->kv_heads,
                      .head_dim = s->head_dim,
                      .q = launch->operand[0],
                      .k = launch->operand[1],
                      .table = launch->operand[2]};
}

static void run_rope(CudaDevice *device, const Launch *launch)
{
    const CudaRope rope = rope_of(launch);

    cuda_rope(&rope, stream_of(device, launch));
}

static void run_rope_backward(CudaDevice *device, const Launch *launch)
{
    const CudaRope rope = rope_of(launch);

    cuda_rope_backward(&rope, stream_of(device, launch));
}

/* ---- ops without neighbours ---- */

static guint64 elements_of(const Launch *launch)
{
    return launch->op->sizes.rows * launch->op->sizes.in;
}

static void run_swiglu(CudaDevice *device, const Launch *launch)
{
    cuda_swiglu(launch->op->dtype, elements_of(launch), launch->operand[0], launch->operand[1],
                launch->operand[2], stream_of(device, launch));
}

static void run_swiglu_backward(CudaDevice *device, const Launch *launch)
{
    cuda_swiglu_backward(launch->op->dtype, elements_of(launch), launch->operand[0],
                         launch->operand[1], launch->operand[2], stream_of(device, launch));
}

static void run_gelu(CudaDevice *device, const Launch *launch)
{
    cuda_gelu(launch->op->dtype, elements_of(launch), launch->operand[0], launch->operand[1],
              stream_of(device, launch));
}

static void run_gelu_backward(CudaDevice *device, const Launch *launch)
{
    cuda_gelu_backward(launch->op->dtype, elements_of(launch), launch->operand[0],
                       launch->operand[1], stream_of(device, launch));
}

static void run_add_bias(CudaDevice *device, const Launch *launch)
{
    cuda_add_bias(launch->op->dtype, launch->op->sizes.rows, launch->op->sizes.in,
                  launch->operand[1], launch->operand[0], stream_of(device, launch));
}

static void run_count_valid(CudaDevice *device, const Launch *launch)
{
    cuda_count_valid(launch->op->sizes.rows, launch->operand[0], launch->operand[1],
                     launch_adds(launch, 1), stream_of(device, launch));
}

static void run_accumulate(CudaDevice *device, const Launch *launch)
{
    const void *base = launch_optional(launch, 2);

    cuda_accumulate(launch->op->dtype, launch->op->dtype_out, launch->op->sizes.elements,
                    launch->operand[0], base != NULL ? base : launch->operand[1],
                    launch->operand[1], stream_of(device, launch));
}

static void run_cast(CudaDevice *device, const Launch *launch)
{
    cuda_cast(launch->op->dtype, launch->op->dtype_out, launch->op->sizes.elements,
              launch->operand[0], launch->operand[1], stream_of(device, launch));
}

/* ---- unit ops ---- */

/* What this rank owns of each parameter; @operand: where each array of a piece lies, by what the
 * CudaPiece calls it, or -1. */
static guint pieces_of(const Launch *launch, const gint operand[4],
                       CudaPiece pieces[LAUNCH_MOST_PARAMS])
{
    const UnitMap *map = launch->map;

    g_assert(map->num_params <= LAUNCH_MOST_PARAMS);
    for (guint p = 0; p < map->num_params; p++) {
        const ShardSpan span = unit_map_span(map, p, launch->map_rank);
        guint64 offset[4] = {0};

        for (guint i = 0; i < G_N_ELEMENTS(offset); i++)
            if (operand[i] >= 0)
                offset[i] = launch_offset(launch, (guint)operand[i], &span);
        pieces[p] = (CudaPiece){.elements = span.elements,
                                .parameter = offset[0],
                                .gradient = offset[1],
                                .moment = offset[2],
                                .master = offset[3],
                                .start = span.start,
                                .decay = map->params[p].dims >= 2 ? 1 : 0,
                                .weight = 1.0 / map->params[p].copies};
        if (launch->rounding != NULL) {
            pieces[p].first = launch->rounding[p].first;
            pieces[p].columns = launch->rounding[p].columns;
            pieces[p].stride = launch->rounding[p].stride;
        }
    }
    return map->num_params;
}

static float *amax_of(const Launch *launch, guint param)
{
    return (float *)launch->operand[1] + (gsize)launch->unit * NUM_PARAM_ROLES +
           launch->map->params[param].role;
}

static void *element(const Launch *launch, guint operand, DType dtype, guint64 at)
{
    return (guint8 *)launch->operand[operand] + at * dtype_bytes(dtype);
}

static void run_amax(CudaDevice *device, const Launch *launch)
{
    const Op *op = launch->op;

    if (!launch_adds(launch, 1))
        cuda_zero(launch->operand[1], op->sizes.chunk * NUM_PARAM_ROLES * sizeof(float),
                  stream_of(device, launch));
    for (guint p = 0; p < launch->map->num_params; p++) {
        const ShardSpan span = unit_map_span(launch->map, p, launch->map_rank);

        if (launch->map->params[p].dims >= 2)
            cuda_amax(op->dtype, span.elements, element(launch, 0, op->dtype, span.shard_offset),
                      amax_of(launch, p), stream_of(device, launch));
    }
}

static void run_quantise(CudaDevice *device, const Launch *launch)
{
    const Op *op = launch->op;

    for (guint p = 0; p < launch->map->num_params; p++) {
        const ShardSpan span = unit_map_span(launch->map, p, launch->map_rank);
        const void *from = element(launch, 0, op->dtype, span.shard_offset);

        if (launch->map->params[p].dims >= 2)
            cuda_quantise(op->dtype, span.elements, from, amax_of(launch, p),
                          element(launch, 2, DTYPE_FP8, span.shard_offset),
                          stream_of(device, launch));
        else if (launch_optional(launch, 3) != NULL && span.elements > 0)
            cuda_cast(op->dtype, op->dtype_out, span.elements, from,
                      element(launch, 3, op->dtype_out, span.shard_offset),
                      stream_of(device, launch));
    }
}

static void run_dequantise(CudaDevice *device, const Launch *launch)
{
    const Op *op = launch->op;

    for (guint p = 0; p < launch->map->num_params; p++) {
        const UnitParam *param = &launch->map->params[p];

        if (param->dims >= 2)
            cuda_dequantise(op->dtype_out, param->rows * param->cols,
                            element(launch, 0, DTYPE_FP8, param->full_offset), amax_of(launch, p),
                            element(launch, 2, op->dtype_out, param->full_offset),
                            stream_of(device, launch));
    }
}

static void run_squared_norm(CudaDevice *device, const Launch *launch)
{
    CudaPiece pieces[LAUNCH_MOST_PARAMS];
    const CudaSquaredNorm norm = {.dtype = launch->op->dtype_out,
                                  .gradient = launch->operand[0],
                                  .pieces = pieces,
                                  .num_pieces =
                                      pieces_of(launch, (const gint[]){-1, 0, -1, -1}, pieces),
                                  .sum = launch->operand[1],
                                  .adds = launch_adds(launch, 1),
                                  .partials = device->norm_partials[launch->stream]};

    cuda_squared_norm(&norm, stream_of(device, launch));
}

static void run_clip(CudaDevice *device, const Launch *launch)
{
    CudaClip clip = {.hyper = launch->operand[0],
                     .valid = launch->operand[1],
                     .loss = launch->operand[2],
                     .norm = launch->operand[3],
                     .coef = launch->operand[4],
                     .finite = launch->operand[5],
                     .num_sums = launch->op->num_operands - 6};

    g_assert(clip.num_sums <= CUDA_CLIP_SUMS);
    for (guint i = 0; i < clip.num_sums; i++)
        clip.sums[i] = launch->operand[6 + i];
    cuda_clip(&clip, stream_of(device, launch));
}

static CudaUpdate update_of(const Launch *launch, guint hyper, guint master, CudaPiece *pieces)
{
    const gboolean has_master = launch->op->num_operands > master;
    const gint operand[] = {0, 1, master == 6 ? 2 : -1, has_master ? (gint)master : -1};

    return (CudaUpdate){.dtype = launch->op->dtype,
                        .dtype_out = launch->op->dtype_out,
                        .parameter = launch->operand[0],
                        .gradient = launch->operand[1],
                        .master = has_master ? launch->operand[master] : NULL,
                        .hyper = launch->operand[hyper],
                        .coef = launch->operand[hyper + 1],
                        .predicate = launch->predicate,
                        .pieces = pieces,
                        .num_pieces = pieces_of(launch, operand, pieces),
                        .stochastic = launch->rounding != NULL};
}

static void run_adamw(CudaDevice *device, const Launch *launch)
{
    CudaPiece pieces[LAUNCH_MOST_PARAMS];
    CudaUpdate update = update_of(launch, 4, 6, pieces);

    g_assert(launch->part[2] == launch->part[3]);
    update.m = launch->operand[2];
    update.v = launch->operand[3];
    cuda_adamw(&update, stream_of(device, launch));
}

static void run_sgd(CudaDevice *device, const Launch *launch)
{
    CudaPiece pieces[LAUNCH_MOST_PARAMS];
    const CudaUpdate update = update_of(launch, 2, 4, pieces);

    cuda_sgd(&update, stream_of(device, launch));
}

/* Between the device and pinned memory of the host. */
static void run_copy(CudaDevice *device, const Launch *launch)
{
    device_queues(&device->base)
        ->copy(&device->base, launch->stream, launch->operand[1], launch->operand[0],
               launch->op->sizes.elements * dtype_bytes(launch->op->dtype));
}

/* ---- all of them ---- */

static CudaOp *const ops[NUM_OPS] = {
    [OP_EMBED] = run_embed,
    [OP_RMSNORM] = run_rmsnorm,
    [OP_RMSNORM_APPLY] = run_rmsnorm_apply,
    [OP_LAYERNORM] = run_layernorm,
    [OP_LAYERNORM_APPLY] = run_layernorm_apply,
    [OP_LINEAR] = cuda_run_linear,
    [OP_ADD_BIAS] = run_add_bias,
    [OP_ROPE] = run_rope,
    [OP_ATTENTION] = run_attention,
    [OP_SWIGLU] = run_swiglu,
    [OP_GELU] = run_gelu,
    [OP_HEAD_LOSS] = cuda_run_head_loss,
    [OP_HEAD_STATS] = cuda_run_head_stats,
    [OP_EMBED_BACKWARD] = run_embed_backward,
    [OP_RMSNORM_BACKWARD] = run_rmsnorm_backward,
    [OP_LAYERNORM_BACKWARD] = run_layernorm_backward,
    [OP_LINEAR_BACKWARD_INPUT] = cuda_run_linear_backward_input,
    [OP_LINEAR_BACKWARD_WEIGHT] = cuda_run_linear_backward_weight,
    [OP_ROPE_BACKWARD] = run_rope_backward,
    [OP_ATTENTION_BACKWARD] = run_attention_backward,
    [OP_SWIGLU_BACKWARD] = run_swiglu_backward,
    [OP_GELU_BACKWARD] = run_gelu_backward,
    [OP_COUNT_VALID] = run_count_valid,
    [OP_ACCUMULATE] = run_accumulate,
    [OP_CAST] = run_cast,
    [OP_AMAX] = run_amax,
    [OP_QUANTISE] = run_quantise,
    [OP_DEQUANTISE] = run_dequantise,
    [OP_SQUARED_NORM] = run_squared_norm,
    [OP_CLIP] = run_clip,
    [OP_ADAMW] = run_adamw,
    [OP_SGD] = run_sgd,
    [OP_COPY] = run_copy,
};

CudaOp *cuda_op(OpKind kind)
{
    return ops[kind];
}
