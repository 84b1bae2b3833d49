#include "tests/cudasim/stream.h"

#include "tests/cudasim/capture.h"
#include "tests/cudasim/memory.h"
#include <string.h>

CsStream cs_streams[CS_STREAMS];
static CsClock host_clock;
static guint host_op; /* 0: none since the host last did something that others can see */
static GMutex mutex;
static __thread gboolean inside; /* this thread holds it */
static guint64 num_calls;
static gboolean started;
static cudaError_t last_error;

/* ---- calls ---- */

static void start(void)
{
    started = TRUE;
    cs_settings_read();
    cs_reports_start();
    cs_memory_start();
    cs_streams[0].used = cs_streams[0].blocking = TRUE;
    host_clock.at[0] = 1;
}

void cs_enter(void)
{
    if (inside)
        g_error("cudasim: a function that cudaLaunchHostFunc calls must not call CUDA");
    g_mutex_lock(&mutex);
    inside = TRUE;
    num_calls++;
    if (!started)
        start();
}

guint64 cs_num_calls(void)
{
    return num_calls;
}

gboolean cs_enter_if_outside(void)
{
    if (inside)
        return FALSE;
    cs_enter();
    return TRUE;
}

cudaError_t cs_leave(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    inside = FALSE;
    g_mutex_unlock(&mutex);
    return error;
}

void cs_breathe(double seconds)
{
    g_mutex_unlock(&mutex);
    g_usleep((gulong)(seconds * 1e6));
    g_mutex_lock(&mutex);
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error;

    cs_enter();
    error = last_error;
    last_error = cudaSuccess;
    cs_leave(cudaSuccess);
    return error;
}

gboolean cs_may_synchronise(void)
{
    if (!cs_capture_is_active())
        return TRUE;
    cs_capture_spoil();
    return FALSE;
}

void cudasim_reset(CsPolicy policy, CsOrder order, guint64 seed)
{
    cs_enter();
    cs_wait_all();
    cs_settings_reseed(policy, order, seed);
    for (int i = 0; i < CS_STREAMS; i++)
        cs_streams[i].priority = (int)(cs_random() % 1000);
    cs_memory_reuse();
    cs_reports_forget();
    cs_leave(cudaSuccess);
}

/* ---- clocks ---- */

void cs_clock_join(CsClock *into, const CsClock *clock)
{
    for (int i = 0; i < CS_CLOCKS; i++)
        into->at[i] = MAX(into->at[i], clock->at[i]);
}

void cs_host_advance(void)
{
    host_clock.at[0]++;
    host_op = 0;
}

void cs_host_joins(const CsClock *clock)
{
    cs_clock_join(&host_clock, clock);
}

const CsClock *cs_host_clock(void)
{
    return &host_clock;
}

guint cs_host_op(void)
{
    if (host_op == 0)
        host_op = cs_race_op(&host_clock, 0, "the host");
    return host_op;
}

/* ---- ops ---- */

CsOp *cs_op_new(const CsOpKind *kind)
{
    CsOp *op = g_malloc0(kind->bytes);

    op->kind = kind;
    op->name = kind->name;
    return op;
}

CsOp *cs_op_copy(const CsOp *op)
{
    CsOp *copy = g_memdup2(op, op->kind->bytes);

    if (op->kind->copied != NULL)
        op->kind->copied(copy);
    return copy;
}

void cs_op_free(CsOp *op)
{
    if (op->kind->dropped != NULL)
        op->kind->dropped(op);
    g_free(op);
}

static void append(CsStream *stream, CsOp *op)
{
    static guint sequence;

    op->stream = (guint)(stream - cs_streams);
    op->sequence = ++sequence;
    op->queued_at = host_clock;
    if (op->kind->queued != NULL)
        op->kind->queued(op);
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
}

/* ---- tokens ---- */

typedef struct {
    CsOp base;
    CsToken *token;
} TokenOp;

CsToken *cs_token_ref(CsToken *token)
{
    token->refs++;
    return token;
}

void cs_token_unref(CsToken *token)
{
    if (token != NULL && --token->refs == 0)
        g_free(token);
}

static void drop_token(CsOp *op)
{
    cs_token_unref(((TokenOp *)op)->token);
}

double cs_time_us;

static void run_record(CsOp *op)
{
    CsToken *token = ((TokenOp *)op)->token;

    token->clock = cs_streams[op->stream].clock;
    token->time_us = cs_time_us;
    token->done = TRUE;
}

static void run_wait(CsOp *op)
{
    cs_clock_join(&cs_streams[op->stream].clock, &((TokenOp *)op)->token->clock);
}

static const CsOpKind record_kind = {
    .name = "cudaEventRecord", .bytes = sizeof(TokenOp), .run = run_record, .dropped = drop_token};
static const CsOpKind wait_kind = {.name = "cudaStreamWaitEvent",
                                   .bytes = sizeof(TokenOp),
                                   .run = run_wait,
                                   .dropped = drop_token};

gboolean cs_op_must_wait(const CsOp *op)
{
    return op->kind == &wait_kind && !((const TokenOp *)op)->token->done;
}

static void append_token(CsStream *stream, const CsOpKind *kind, CsToken *token)
{
    TokenOp *op = (TokenOp *)cs_op_new(kind);

    op->token = cs_token_ref(token);
    append(stream, &op->base);
}

CsToken *cs_stream_record(CsStream *stream)
{
    CsToken *token = g_new0(CsToken, 1);

    append_token(stream, &record_kind, cs_token_ref(token));
    return token;
}

void cs_stream_wait(CsStream *stream, CsToken *token)
{
    append_token(stream, &wait_kind, token);
}

/* ---- queueing ---- */

static void follow(CsStream *later, CsStream *earlier)
{
    CsToken *token = cs_stream_record(earlier);

    cs_stream_wait(later, token);
    cs_token_unref(token);
}

/* The legacy default stream comes after, and before, all that the blocking streams do. */
static void append_to_default(CsOp *op)
{
    for (int i = 1; i < CS_STREAMS; i++)
        if (cs_streams[i].used && cs_streams[i].blocking && !cs_streams[i].dying)
            follow(&cs_streams[0], &cs_streams[i]);
    append(&cs_streams[0], op);
    for (int i = 1; i < CS_STREAMS; i++)
        if (cs_streams[i].used && cs_streams[i].blocking && !cs_streams[i].dying)
            follow(&cs_streams[i], &cs_streams[0]);
}

void cs_push(CsStream *stream, CsOp *op)
{
    if (stream->capture != NULL) {
        cs_capture_op(stream, op);
        return;
    }
    cs_host_advance();
    if (stream != &cs_streams[0]) {
        append(stream, op);
    } else if (cs_may_synchronise()) {
        append_to_default(op);
    } else {
        cs_report(CS_MISUSE, "%s in the default stream while another one captures", op->name);
        cs_op_free(op);
    }
    cs_host_advance();
    cs_schedule_some();
}

void cs_op_push(cudaStream_t stream, CsOp *op)
{
    cs_enter();
    cs_push(cs_stream(stream), op);
    cs_leave(cudaSuccess);
}

/* ---- streams ---- */

CsStream *cs_stream(cudaStream_t handle)
{
    CsStream *stream =
        handle == NULL || handle == cudaStreamLegacy ? &cs_streams[0] : (CsStream *)(void *)handle;

    if (stream < cs_streams || stream >= cs_streams + CS_STREAMS || !stream->used || stream->dying)
        g_error("cudasim: %p is no stream, or was destroyed", (void *)handle);
    return stream;
}

CsStream *cs_stream_acquire(void)
{
    for (int i = 1; i < CS_STREAMS; i++) {
        CsStream *stream = &cs_streams[i];
        if (stream->used)
            continue;
        CsClock clock = stream->clock; /* goes on when a place is used again */
        *stream = (CsStream){.used = TRUE, .priority = (int)(cs_random() % 1000), .clock = clock};
        return stream;
    }
    return NULL;
}

void cs_stream_release(CsStream *stream)
{
    stream->dying = TRUE;
    if (stream->first == NULL)
        stream->used = FALSE;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority)
{
    CsStream *stream;

    (void)priority;
    cs_enter();
    stream = cs_stream_acquire();
    if (stream == NULL)
        return cs_leave(cudaErrorMemoryAllocation);
    stream->blocking = (flags & cudaStreamNonBlocking) == 0;
    *handle = (cudaStream_t)(void *)stream;
    return cs_leave(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags)
{
    return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *handle)
{
    return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    cs_enter();
    cs_stream_release(cs_stream(handle));
    return cs_leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    cs_enter();
    if (cs_stream(handle)->capture != NULL) {
        cs_capture_spoil();
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    }
    cs_wait_stream(cs_stream(handle));
    return cs_leave(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cs_enter();
    if (!cs_may_synchronise())
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    cs_wait_all();
    return cs_leave(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    CsStream *stream;

    cs_enter();
    stream = cs_stream(handle);
    if (stream->capture != NULL) {
        cs_capture_spoil();
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    }
    cs_schedule_one();
    if (stream->first != NULL)
        return cs_leave(cudaErrorNotReady);
    cs_host_advance();
    cs_host_joins(&stream->clock);
    return cs_leave(cudaSuccess);
}
