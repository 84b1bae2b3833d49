/* The ops around products of matrices.  Ours are row after row, the library's column after column,
 * so that it sees each of ours transposed: y (N, O) = x (N, I) W (O, I)^T is its
 * y' (O, N) = W' ^T (O, I) x' (I, N).
 *
 *     y  = x W^T + b                 y'  = (W')^T x'        the bias is the product's epilogue
 *     dx = dy W                      dx' = W' dy'
 *     dW = dy^T x, db = sum_n dy     dW' = x' (dy')^T       db by a kernel of its own
 *
 * Epilogues of the library that are left out, with the passes over (N, F) or (N, O) that each would
 * save.  Of GPT-3's MLP with 2048 tokens and F = 49152 that is 0.2 GB in bf16: 60 us at the
 * bandwidth of an H100, beside 3.5 ms of a product at 700 TFLOP/s.
 *
 *     BGRADB           one read of dy.  It writes db and never adds, so only the first micro-batch
 *                      of an accumulation could have it, and the order of its sum, like whether an
 *                      algorithm has it with gradients in fp32, is known on a GPU only; where one
 *                      has not, the run would not be the plan.
 *     GELU_AUX_BIAS    one read of what GELU reads, which is saved for backward either way (no more
 *                      bytes).  It applies GELU before rounding to bf16; backward computes GELU's
 *                      result again, from what was rounded, and would multiply another h than
 *                      forward did.  Keeping h costs 2 N F bytes a block.
 *     DGELU            a write and a read of dh, rounded once less.  As above for its algorithms,
 *                      and its rows of F must be a multiple of 8, which parts of F need not be.
 *     DGELU_BGRAD      the same, and db of F, with the limits of BGRADB. */
#include "exec/cuda/cuda_device.h"

/* The scratch of a head: the library's, then losses of a chunk's rows (fp64), its logits (fp32),
 * and where weights are bf16 the gradients of logits. */
typedef struct {
    const Launch *launch;
    guint8 *workspace;
    double *losses;
    float *logits;
    void *dlogits; /* the logits where fp32 */
} Head;

static Head head_open(const Launch *launch, guint scratch)
{
    const OpSizes *s = &launch->op->sizes;
    const guint64 rows = MIN(s->rows, s->chunk);
    Head head = {.launch = launch, .workspace = launch->operand[scratch]};

    head.losses = (double *)(gpointer)(head.workspace + CUDA_GEMM_WORKSPACE_BYTES);
    head.logits = (float *)(head.losses + rows);
    head.dlogits =
        launch->op->dtype == DTYPE_FP32 ? head.logits : (void *)(head.logits + rows * s->out);
    return head;
}

/* ---- linear ---- */

void cuda_run_linear(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    cuda_gemm(device, &(CudaGemm){.transpose_a = TRUE,
                                  .adds = launch_adds(launch, 2),
                                  .m = s->out,
                                  .n = s->rows,
                                  .k = s->in,
                                  .dtype = launch->op->dtype,
                                  .dtype_d = launch->op->dtype,
                                  .a = launch->operand[1],
                                  .b = launch->operand[0],
                                  .d = launch->operand[2],
                                  .bias = launch_optional(launch, 4),
                                  .workspace = launch->operand[3],
                                  .stream = launch->stream});
}

void cuda_run_linear_backward_input(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    cuda_gemm(device, &(CudaGemm){.adds = launch_adds(launch, 2),
                                  .m = s->in,
                                  .n = s->rows,
                                  .k = s->out,
                                  .dtype = launch->op->dtype,
                                  .dtype_d = launch->op->dtype,
                                  .a = launch->operand[1],
                                  .b = launch->operand[0],
                                  .d = launch->operand[2],
                                  .workspace = launch->operand[3],
                                  .stream = launch->stream});
}

void cuda_run_linear_backward_weight(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;

    cuda_gemm(device, &(CudaGemm){.transpose_b = TRUE,
                                  .adds = launch_adds(launch, 2),
                                  .m = s->in,
                                  .n = s->out,
                                  .k = s->rows,
                                  .dtype = launch->op->dtype,
                                  .dtype_d = launch->op->dtype_out,
                                  .a = launch->operand[1],
                                  .b = launch->operand[0],
                                  .d = launch->operand[2],
                                  .workspace = launch->operand[3],
                                  .stream = launch->stream});
    if (launch_optional(launch, 4) == NULL)
        return;
    const CudaBiasBackward bias = {.dtype = launch->op->dtype,
                                   .dtype_out = launch->op->dtype_out,
                                   .rows = s->rows,
                                   .columns = s->out,
                                   .dy = launch->operand[0],
                                   .db = launch->operand[4],
                                   .adds = launch_adds(launch, 4),
                                   .scratch = launch->operand[3]};
    cuda_bias_backward(&bias, device->streams[launch->stream]);
}

/* ---- head ---- */

/* Rows of a chunk: @row of all on. */
typedef struct {
    guint64 row, rows;
} Chunk;

static const guint8 *rows_of(const Head *head, guint operand, guint64 row)
{
    const guint64 row_bytes = head->launch->op->sizes.in * dtype_bytes(head->launch->op->dtype);

    return (const guint8 *)head->launch->operand[operand] + row * row_bytes;
}

static void logits(CudaDevice *device, const Head *head, Chunk chunk)
{
    const Launch *launch = head->launch;

    cuda_gemm(device, &(CudaGemm){.transpose_a = TRUE,
                                  .m = launch->op->sizes.out,
                                  .n = chunk.rows,
                                  .k = launch->op->sizes.in,
                                  .dtype = launch->op->dtype,
                                  .dtype_d = DTYPE_FP32,
                                  .a = launch->operand[1],
                                  .b = rows_of(head, 0, chunk.row),
                                  .d = head->logits,
                                  .workspace = head->workspace,
                                  .stream = launch->stream});
}

static void losses(CudaDevice *device, const Head *head, Chunk chunk)
{
    const Launch *launch = head->launch;
    const OpSizes *s = &launch->op->sizes;
    CudaCrossEntropy loss = {.dtype = launch->op->dtype,
                             .rows = chunk.rows,
                             .vocab = s->out,
                             .logits = head->logits,
                             .labels = (const gint32 *)launch->operand[2] + chunk.row,
                             .valid = launch->operand[3],
                             .dlogits = head->dlogits,
                             .losses = head->losses,
                             .loss = launch->operand[4],
                             .adds = chunk.row > 0 || launch_adds(launch, 4)};

    if (launch->op->num_operands == 10) {
        loss.range = launch->operand[8];
        loss.stats = (const float *)launch->operand[9] + chunk.row * NUM_STATS;
        loss.parts = s->elements / (s->rows * NUM_STATS);
        loss.part_rows = s->rows;
    }
    cuda_cross_entropy(&loss, device->streams[launch->stream]);
}

static void gradients(CudaDevice *device, const Head *head, Chunk chunk)
{
    const Launch *launch = head->launch;
    const OpSizes *s = &launch->op->sizes;

    cuda_gemm(device, &(CudaGemm){.m = s->in,
                                  .n = chunk.rows,
                                  .k = s->out,
                                  .dtype = launch->op->dtype,
                                  .dtype_d = launch->op->dtype,
                                  .a = launch->operand[1],
                                  .b = head->dlogits,
                                  .d = (guint8 *)rows_of(head, 5, chunk.row),
                                  .workspace = head->workspace,
                                  .stream = launch->stream});
    cuda_gemm(device, &(CudaGemm){.transpose_b = TRUE,
                                  .adds = chunk.row > 0 || launch_adds(launch, 6),
                                  .m = s->in,
                                  .n = s->out,
                                  .k = chunk.rows,
                                  .dtype = launch->op->dtype,
                                  .dtype_d = launch->op->dtype_out,
                                  .a = rows_of(head, 0, chunk.row),
                                  .b = head->dlogits,
                                  .d = launch->operand[6],
                                  .workspace = head->workspace,
                                  .stream = launch->stream});
}

void cuda_run_head_loss(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const Head head = head_open(launch, 7);

    for (guint64 row = 0; row < s->rows; row += s->chunk) {
        const Chunk chunk = {row, MIN(s->chunk, s->rows - row)};

        logits(device, &head, chunk);
        losses(device, &head, chunk);
        gradients(device, &head, chunk);
    }
}

void cuda_run_head_stats(CudaDevice *device, const Launch *launch)
{
    const OpSizes *s = &launch->op->sizes;
    const Head head = head_open(launch, 5);

    for (guint64 row = 0; row < s->rows; row += s->chunk) {
        const Chunk chunk = {row, MIN(s->chunk, s->rows - row)};
        const CudaHeadStats stats = {.rows = chunk.rows,
                                     .vocab = s->out,
                                     .logits = head.logits,
                                     .labels = (const gint32 *)launch->operand[2] + row,
                                     .range = launch->operand[3],
                                     .stats = (float *)launch->operand[4] + row * NUM_STATS};

        logits(device, &head, chunk);
        cuda_head_stats(&stats, device->streams[launch->stream]);
    }
}
