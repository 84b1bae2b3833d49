/* Whether cuDNN's attention is that of the own kernels, found out where it is to run: the graph
 * says what is meant, and a library's engine for it has been wrong before. */
#include "exec/cuda/cuda_library_attention.h"
#include "exec/device/cpu_block.h"
#include "sim/base/error.h"

#include <math.h>
#include <string.h>

enum {
    /* Queries of Llama 3.1 8B at its 8192 tokens: a second, and 1.4 GB before the arena is there.
     */
    MOST_ELEMENTS = 8192 * 32 * 128,
    LEAST_SEQ = 192, /* of longer ones, however many heads */
    BATCH = 2,       /* where there are two and both fit: the second begins at a stride */
    BLOCK_ROWS = 64, /* are compared together */
};
/* What all memory holds before: what an engine takes for 0 or leaves out becomes NaN. */
enum { NAN_BYTE = 0xff };

/* Of the mean square of a block of rows.  bf16 rounds results, and probabilities and their
 * gradients on the way, by at most 2^-9: 1.3e-6 of the mean square each time, however long the
 * sequence, as noise neither cancels nor adds up; other functions, orders and partial sums in bf16
 * are a few tens of that.  One head of 128 that is wrong there is 2 / 128. */
static const double BOUND = 1e-3;

enum { Q, K, V, DOUT, NUM_INPUTS, O = NUM_INPUTS, LSE, DQ, DK, DV, NUM_ARRAYS };

static const char *const array_names[NUM_ARRAYS] = {"q",   "k",  "v",  "do", "o",
                                                    "lse", "dq", "dk", "dv"};

typedef struct {
    CudnnAttentionShape shape;
    guint64 elements[NUM_ARRAYS];
    CudnnAttention *library;
    guint8 *memory; /* inputs, results of the one, of the other, scratch */
    void *own[NUM_ARRAYS], *theirs[NUM_ARRAYS], *scratch;
} Check;

static guint64 bytes_of(const Check *check, guint array)
{
    return check->elements[array] * (array == LSE ? sizeof(float) : sizeof(guint16));
}

static guint64 padded(guint64 bytes)
{
    return (bytes + 255) / 256 * 256;
}

static void check_clear(Check *check)
{
    cudnn_attention_free(check->library);
    if (check->memory != NULL)
        cudaFree(check->memory);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Check, check_clear)

static Check check_of(const CudnnAttentionShape *of)
{
    Check check = {.shape = *of};
    CudnnAttentionShape *s = &check.shape;

    const gint64 most_rows = MOST_ELEMENTS / (s->heads * s->head_dim);
    s->seq = MIN(s->seq, MAX(most_rows, LEAST_SEQ));
    s->batch = CLAMP(most_rows / s->seq, 1, MIN(s->batch, BATCH));
    const guint64 rows = (guint64)(s->batch * s->seq);
    const guint64 queries = rows * (guint64)(s->heads * s->head_dim);
    for (guint a = 0; a < NUM_ARRAYS; a++)
        check.elements[a] = queries;
    for (guint a = 0; a < 4; a++)
        check.elements[(const guint[]){K, V, DK, DV}[a]] =
            rows * (guint64)(s->kv_heads * s->head_dim);
    check.elements[LSE] = rows * (guint64)s->heads;
    return check;
}

static gboolean allocate(Check *check, GError **error)
{
    const guint64 own_scratch = 8 * check->elements[LSE];
    guint64 bytes = MAX(own_scratch, cudnn_attention_scratch_bytes(check->library));

    for (guint a = 0; a < NUM_ARRAYS; a++)
        bytes += padded(bytes_of(check, a)) * (a < NUM_INPUTS ? 1 : 2);
    if (!cuda_ok(cudaMalloc((void **)&check->memory, bytes), "cudaMalloc", error) ||
        !cuda_ok(cudaMemset(check->memory, NAN_BYTE, bytes), "cudaMemset", error))
        return FALSE;
    guint8 *at = check->memory;
    for (guint a = 0; a < NUM_ARRAYS; a++) {
        check->own[a] = check->theirs[a] = at;
        at += padded(bytes_of(check, a));
        if (a < NUM_INPUTS)
            continue;
        check->theirs[a] = at;
        at += padded(bytes_of(check, a));
    }
    check->scratch = at;
    return TRUE;
}

/* Noise in [-1, 1): the upper half of splitmix64, which takes a nanosecond. */
static float noise(guint64 *state)
{
    guint64 x = *state += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (float)(gint32)(x >> 32) * 0x1p-31f;
}

/* Queries are four times that, so that softmax is not flat. */
static gboolean fill(const Check *check, GError **error)
{
    guint64 state = 1;

    for (guint a = 0; a < NUM_INPUTS; a++) {
        const float most = a == Q ? 4 : 1;
        g_autofree guint16 *host = g_new(guint16, check->elements[a]);

        for (guint64 i = 0; i < check->elements[a]; i++)
            host[i] = bf16_from_float(most * noise(&state));
        if (!cuda_ok(cudaMemcpy(check->own[a], host, bytes_of(check, a), cudaMemcpyHostToDevice),
                     "cudaMemcpy", error))
            return FALSE;
    }
    /* Other streams wait for nothing that the default one does. */
    return cuda_ok(cudaDeviceSynchronize(), "cudaDeviceSynchronize", error);
}

static CudaAttentionSizes own_sizes(const Check *check)
{
    const CudnnAttentionShape *s = &check->shape;

    return (CudaAttentionSizes){.dtype = DTYPE_BF16,
                                .dtype_out = DTYPE_BF16,
                                .batch = (guint64)s->batch,
                                .seq = (guint64)s->seq,
                                .heads = (guint64)s->heads,
                                .kv_heads = (guint64)s->kv_heads,
                                .head_dim = (guint64)s->head_dim,
                                .blocks = 1,
                                .scratch = check->scratch};
}

static void run_own(const Check *check, CudaStream stream)
{
    void *const *to = check->own;
    const CudaAttention forward = {
        .sizes = own_sizes(check), .q = to[Q], .k = to[K], .v = to[V], .o = to[O], .lse = to[LSE]};
    const CudaAttentionBackward backward = {.sizes = own_sizes(check),
                                            .dout = to[DOUT],
                                            .q = to[Q],
                                            .k = to[K],
                                            .v = to[V],
                                            .o = to[O],
                                            .lse = to[LSE],
                                            .dq = to[DQ],
                                            .dk = to[DK],
                                            .dv = to[DV]};

    cuda_attention(&forward, stream);
    cuda_attention_backward(&backward, stream);
}

static gboolean run_theirs(const Check *check, DnnHandle handle, GError **error)
{
    void *const *to = check->theirs;
    const CudnnAttentionData data = {.q = to[Q],
                                     .k = to[K],
                                     .v = to[V],
                                     .o = to[O],
                                     .lse = to[LSE],
                                     .dout = to[DOUT],
                                     .dq = to[DQ],
                                     .dk = to[DK],
                                     .dv = to[DV],
                                     .scratch = check->scratch};

    return cudnn_attention_forward(check->library, handle, &data, error) &&
           cudnn_attention_backward(check->library, handle, &data, error);
}

static float value_of(guint array, const void *host, guint64 i)
{
    return array == LSE ? ((const float *)host)[i] : bf16_to_float(((const guint16 *)host)[i]);
}

/* How far the worst block of rows is off: the mean square of differences by that of values.  NaN
 * where any is. */
static double worst_block(const Check *check, guint array, const void *own, const void *theirs)
{
    const guint64 rows = (guint64)(check->shape.batch * check->shape.seq);
    const guint64 block = check->elements[array] / rows * BLOCK_ROWS;
    double worst = 0;

    for (guint64 begin = 0; begin < check->elements[array]; begin += block) {
        double difference = 0, square = 0;

        for (guint64 i = begin; i < MIN(begin + block, check->elements[array]); i++) {
            const double want = (double)value_of(array, own, i);
            const double error_of = (double)value_of(array, theirs, i) - want;

            difference += error_of * error_of;
            square += want * want;
        }
        if (!(difference <= worst * square))
            worst = difference / square;
        if (isnan(worst))
            break;
    }
    return worst;
}

static gboolean compare(const Check *check, guint array, GError **error)
{
    const guint64 bytes = bytes_of(check, array);
    g_autofree void *own = g_malloc(bytes), *theirs = g_malloc(bytes);

    if (!cuda_ok(cudaMemcpy(own, check->own[array], bytes, cudaMemcpyDeviceToHost), "cudaMemcpy",
                 error) ||
        !cuda_ok(cudaMemcpy(theirs, check->theirs[array], bytes, cudaMemcpyDeviceToHost),
                 "cudaMemcpy", error))
        return FALSE;
    const double worst = worst_block(check, array, own, theirs);
    return worst <= BOUND || fail(error, ERROR_RUNTIME,
                                  "its %s differs from the own kernels' by %.2g of it on this GPU, "
                                  "at %" G_GINT64_FORMAT " tokens",
                                  array_names[array], sqrt(worst), check->shape.seq);
}

static gboolean run_both(const Check *check, const Cudnn *cudnn, DnnHandle handle,
                         cudaStream_t stream, GError **error)
{
    if (!cudnn_ok(cudnn, cudnn->set_stream(handle, stream), "cudnnSetStream", error) ||
        !run_theirs(check, handle, error))
        return FALSE;
    run_own(check, stream);
    if (!cuda_ok(cudaGetLastError(), "attention", error) ||
        !cuda_ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize", error))
        return FALSE;
    for (guint a = NUM_INPUTS; a < NUM_ARRAYS; a++)
        if (!compare(check, a, error))
            return FALSE;
    return TRUE;
}

gboolean cuda_attention_check(const Cudnn *cudnn, DnnHandle handle,
                              const CudnnAttentionShape *shape, GError **error)
{
    g_auto(Check) check = check_of(shape);
    const CudnnTarget target = {.handle = handle};
    cudaStream_t stream = NULL;

    check.library = cudnn_attention_new(cudnn, &target, &check.shape, G_MAXINT64, error);
    if (check.library == NULL || !allocate(&check, error) || !fill(&check, error) ||
        !cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                 "cudaStreamCreateWithFlags", error))
        return FALSE;
    const gboolean ok = run_both(&check, cudnn, handle, stream, error);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return ok;
}
