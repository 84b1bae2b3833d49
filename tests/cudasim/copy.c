/* Copies, fills and functions of the host, as ops. */
#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"
#include <string.h>

typedef struct {
    CsOp base;
    void *to;
    const void *from;
    gsize row_bytes;
    gsize rows;
    gsize to_pitch;
    gsize from_pitch;
} CopyOp;

typedef struct {
    CsOp base;
    void *to;
    gsize bytes;
    int value;
} FillOp;

typedef struct {
    CsOp base;
    cudaHostFn_t function;
    void *argument;
} HostOp;

static void run_copy(CsOp *op)
{
    const CopyOp *self = (CopyOp *)op;

    for (gsize row = 0; row < self->rows; row++) {
        char *to = (char *)self->to + row * self->to_pitch;
        const char *from = (const char *)self->from + row * self->from_pitch;
        cs_race_access(CS_READ, from, self->row_bytes);
        cs_race_access(CS_WRITE, to, self->row_bytes);
        memcpy(to, from, self->row_bytes);
    }
}

static void run_fill(CsOp *op)
{
    const FillOp *self = (FillOp *)op;

    cs_race_access(CS_WRITE, self->to, self->bytes);
    memset(self->to, self->value, self->bytes);
}

static void run_host(CsOp *op)
{
    const HostOp *self = (HostOp *)op;

    self->function(self->argument);
}

static const CsOpKind copy_kind = {
    .name = "cudaMemcpyAsync", .bytes = sizeof(CopyOp), .run = run_copy};
static const CsOpKind fill_kind = {
    .name = "cudaMemsetAsync", .bytes = sizeof(FillOp), .run = run_fill};
static const CsOpKind host_kind = {
    .name = "cudaLaunchHostFunc", .bytes = sizeof(HostOp), .run = run_host};

/* ---- copies ---- */

static gboolean fits_kind(const CopyOp *op, enum cudaMemcpyKind kind)
{
    gboolean to_device = cs_memory_is_device(op->to), from_device = cs_memory_is_device(op->from);

    switch (kind) {
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    default:
        return TRUE;
    }
}

static gboolean is_valid(const CopyOp *op, enum cudaMemcpyKind kind)
{
    gsize last = op->rows == 0 ? 0 : op->rows - 1;

    if (!fits_kind(op, kind)) {
        cs_report(CS_MISUSE, "cudaMemcpy: the pointers do not fit the kind %d", (int)kind);
        return FALSE;
    }
    if (!cs_memory_is_inside(op->to, last * op->to_pitch + op->row_bytes) ||
        !cs_memory_is_inside(op->from, last * op->from_pitch + op->row_bytes)) {
        cs_report(CS_BOUNDS, "cudaMemcpy of %zu rows of %zu bytes leaves an allocation", op->rows,
                  op->row_bytes);
        return FALSE;
    }
    return TRUE;
}

static gboolean is_pageable(const void *p)
{
    return !cs_memory_is_device(p) && !cs_memory_is_pinned(p);
}

static cudaError_t copy(CopyOp values, enum cudaMemcpyKind kind, cudaStream_t handle,
                        gboolean synchronous)
{
    CopyOp *op;
    CsStream *stream;

    cs_enter();
    if (synchronous && !cs_may_synchronise())
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    if (values.rows == 0 || values.row_bytes == 0)
        return cs_leave(cudaSuccess);
    if (!is_valid(&values, kind))
        return cs_leave(cudaErrorInvalidValue);
    if (!synchronous && (is_pageable(values.to) || is_pageable(values.from)))
        cs_report(CS_MISUSE, "cudaMemcpyAsync of host memory that is not pinned");
    op = (CopyOp *)cs_op_new(&copy_kind);
    values.base = op->base;
    *op = values;
    stream = cs_stream(handle);
    cs_push(stream, &op->base);
    if (synchronous)
        cs_wait_stream(stream);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return copy((CopyOp){.to = to, .from = from, .row_bytes = bytes, .rows = 1}, kind, stream,
                FALSE);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy((CopyOp){.to = to, .from = from, .row_bytes = bytes, .rows = 1}, kind, NULL, TRUE);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    CopyOp values = {.to = to,
                     .from = from,
                     .row_bytes = width,
                     .rows = height,
                     .to_pitch = to_pitch,
                     .from_pitch = from_pitch};

    if (width > to_pitch || width > from_pitch)
        return cudaErrorInvalidPitchValue;
    return copy(values, kind, stream, FALSE);
}

/* ---- fills ---- */

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    FillOp *op;

    cs_enter();
    if (bytes == 0)
        return cs_leave(cudaSuccess);
    if (!cs_memory_is_inside(to, bytes) || is_pageable(to)) {
        cs_report(CS_BOUNDS, "cudaMemset of %zu bytes leaves an allocation", bytes);
        return cs_leave(cudaErrorInvalidValue);
    }
    op = (FillOp *)cs_op_new(&fill_kind);
    op->to = to;
    op->bytes = bytes;
    op->value = value;
    cs_push(cs_stream(stream), &op->base);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- functions ---- */

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    HostOp *op;

    cs_enter();
    op = (HostOp *)cs_op_new(&host_kind);
    op->function = function;
    op->argument = argument;
    cs_push(cs_stream(stream), &op->base);
    return cs_leave(cudaSuccess);
}
