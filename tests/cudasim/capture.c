/* Stream capture: ops of a capturing stream become nodes of a graph, behind those of its stream and
 * of the events that it waits for. */
#include "tests/cudasim/capture.h"

#include "tests/cudasim/graph.h"

struct CsCapture {
    guint refs;
    gboolean ended;
    gboolean spoiled;
    enum cudaStreamCaptureMode mode;
    GThread *thread;
    CsStream *origin;
    cudaGraph_t graph;
};

static GPtrArray *captures; /* those that go on */

/* ---- nodes ---- */

static void add_node(CsStream *stream, CsNode node)
{
    guint index;

    node.after = stream->after;
    index = cs_graph_add(stream->capture->graph, node);
    stream->after = g_array_new(FALSE, FALSE, sizeof(guint));
    g_array_append_val(stream->after, index);
}

void cs_capture_op(CsStream *stream, CsOp *op)
{
    add_node(stream, (CsNode){.op = op});
}

void cs_capture_external(CsStream *stream, cudaEvent_t event, gboolean record)
{
    add_node(stream, (CsNode){.event = event, .record = record});
}

/* ---- capture ---- */

static CsCapture *capture_ref(CsCapture *capture)
{
    capture->refs++;
    return capture;
}

static void capture_unref(CsCapture *capture)
{
    if (--capture->refs == 0)
        g_free(capture);
}

gboolean cs_capture_is_active(void)
{
    for (guint i = 0; captures != NULL && i < captures->len; i++) {
        const CsCapture *capture = captures->pdata[i];
        if (capture->mode == cudaStreamCaptureModeGlobal ||
            (capture->mode == cudaStreamCaptureModeThreadLocal &&
             capture->thread == g_thread_self()))
            return TRUE;
    }
    return FALSE;
}

void cs_capture_spoil(void)
{
    for (guint i = 0; captures != NULL && i < captures->len; i++)
        ((CsCapture *)captures->pdata[i])->spoiled = TRUE;
}

void cs_capture_record(const CsStream *stream, CsCapturePoint *point)
{
    point->capture = capture_ref(stream->capture);
    point->after = g_array_copy(stream->after);
}

void cs_capture_point_clear(CsCapturePoint *point)
{
    if (point->capture == NULL)
        return;
    capture_unref(point->capture);
    g_array_unref(point->after);
    *point = (CsCapturePoint){0};
}

gboolean cs_capture_wait(CsStream *stream, const CsCapturePoint *point)
{
    if (point->capture->ended || (stream->capture != NULL && stream->capture != point->capture)) {
        cs_capture_spoil();
        return FALSE;
    }
    if (stream->capture == NULL) {
        stream->capture = point->capture;
        stream->after = g_array_copy(point->after);
        return TRUE;
    }
    g_array_append_vals(stream->after, point->after->data, point->after->len);
    return TRUE;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    CsStream *stream;

    cs_enter();
    stream = cs_stream(handle);
    if (stream == &cs_streams[0])
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    if (stream->capture != NULL)
        return cs_leave(cudaErrorIllegalState);
    if (captures == NULL)
        captures = g_ptr_array_new();
    stream->capture = g_new0(CsCapture, 1);
    stream->capture->refs = 1;
    stream->capture->mode = mode;
    stream->capture->thread = g_thread_self();
    stream->capture->origin = stream;
    stream->capture->graph = cs_graph_new();
    stream->after = g_array_new(FALSE, FALSE, sizeof(guint));
    g_ptr_array_add(captures, stream->capture);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    const CsCapture *capture;

    cs_enter();
    capture = cs_stream(handle)->capture;
    *status = capture == NULL    ? cudaStreamCaptureStatusNone
              : capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cs_leave(cudaSuccess);
}

/* Whether the origin comes after every node. */
static gboolean is_joined(const CsCapture *capture)
{
    guint count = cs_graph_num_nodes(capture->graph);
    const GArray *last = capture->origin->after;
    g_autofree gboolean *joined = g_new0(gboolean, count + 1);

    for (guint i = 0; i < last->len; i++)
        joined[g_array_index(last, guint, i)] = TRUE;
    for (guint i = count; i-- > 0;) {
        const GArray *after = cs_graph_after(capture->graph, i);
        if (!joined[i])
            return FALSE;
        for (guint j = 0; j < after->len; j++)
            joined[g_array_index(after, guint, j)] = TRUE;
    }
    return TRUE;
}

static void end_capture(CsCapture *capture)
{
    for (int i = 0; i < CS_STREAMS; i++) {
        if (cs_streams[i].capture != capture)
            continue;
        cs_streams[i].capture = NULL;
        g_clear_pointer(&cs_streams[i].after, g_array_unref);
    }
    capture->ended = TRUE;
    g_ptr_array_remove(captures, capture);
    capture_unref(capture);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    CsCapture *capture;
    cudaError_t error = cudaSuccess;

    cs_enter();
    *graph = NULL;
    capture = cs_stream(handle)->capture;
    if (capture == NULL || capture->origin != cs_stream(handle))
        return cs_leave(capture == NULL ? cudaErrorIllegalState : cudaErrorStreamCaptureUnmatched);
    if (capture->spoiled)
        error = cudaErrorStreamCaptureInvalidated;
    else if (!is_joined(capture))
        error = cudaErrorStreamCaptureUnjoined;
    if (error == cudaSuccess)
        *graph = capture->graph;
    else
        cs_graph_free(capture->graph);
    end_capture(capture);
    return cs_leave(error);
}
