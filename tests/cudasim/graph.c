/* Stream capture and graphs.  A launch hands each path through the graph to a hidden stream of its
 * own, and each edge between paths to an event: so nodes run in every order that the edges allow,
 * and the race detector needs to know nothing of graphs. */
#include "tests/cudasim/graph.h"

#define UNSET G_MAXUINT

typedef struct {
    CsOp *op; /* or an external event: */
    cudaEvent_t event;
    gboolean record;
    GArray *after; /* guint: earlier nodes */
} Node;

struct CUgraph_st {
    GPtrArray *nodes; /* Node, each behind those it comes after */
};

struct CsCapture {
    guint refs;
    gboolean ended;
    gboolean spoiled;
    enum cudaStreamCaptureMode mode;
    GThread *thread;
    CsStream *origin;
    cudaGraph_t graph;
};

struct CUgraphExec_st {
    GPtrArray *nodes;
    guint *path;         /* of each node */
    gboolean *has_token; /* another path, or the end, waits for the node */
    guint num_paths;
    CsToken *last_launch;
};

static GPtrArray *captures; /* those that go on */

static GArray *copy_of(const GArray *array)
{
    GArray *copy = g_array_new(FALSE, FALSE, sizeof(guint));

    return g_array_append_vals(copy, array->data, array->len);
}

/* ---- nodes ---- */

static void node_free(gpointer data)
{
    Node *node = data;

    if (node->op != NULL)
        cs_op_free(node->op);
    g_array_unref(node->after);
    g_free(node);
}

static gpointer node_copy(gconstpointer data, gpointer unused)
{
    const Node *node = data;
    Node *copy = g_memdup2(node, sizeof *node);

    (void)unused;
    copy->op = node->op == NULL ? NULL : cs_op_copy(node->op);
    copy->after = copy_of(node->after);
    return copy;
}

static void add_node(CsStream *stream, Node values)
{
    GPtrArray *nodes = stream->capture->graph->nodes;
    guint index = nodes->len;

    values.after = stream->after;
    g_ptr_array_add(nodes, g_memdup2(&values, sizeof values));
    stream->after = g_array_new(FALSE, FALSE, sizeof(guint));
    g_array_append_val(stream->after, index);
}

void cs_capture_op(CsStream *stream, CsOp *op)
{
    add_node(stream, (Node){.op = op});
}

void cs_capture_external(CsStream *stream, cudaEvent_t event, gboolean record)
{
    add_node(stream, (Node){.event = event, .record = record});
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
    point->after = copy_of(stream->after);
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
        stream->after = copy_of(point->after);
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
    stream->capture->graph = g_new0(struct CUgraph_st, 1);
    stream->capture->graph->nodes = g_ptr_array_new_with_free_func(node_free);
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
    const GPtrArray *nodes = capture->graph->nodes;
    const GArray *last = capture->origin->after;
    g_autofree gboolean *joined = g_new0(gboolean, nodes->len + 1);

    for (guint i = 0; i < last->len; i++)
        joined[g_array_index(last, guint, i)] = TRUE;
    for (guint i = nodes->len; i-- > 0;) {
        const GArray *after = ((const Node *)nodes->pdata[i])->after;
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

static void graph_free(cudaGraph_t graph)
{
    g_ptr_array_unref(graph->nodes);
    g_free(graph);
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
        graph_free(capture->graph);
    end_capture(capture);
    return cs_leave(error);
}

/* ---- graphs ---- */

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cs_enter();
    graph_free(graph);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    cs_enter();
    if (nodes != NULL)
        return cs_leave(cudaErrorNotSupported);
    *count = graph->nodes->len;
    return cs_leave(cudaSuccess);
}

/* Goes on the path of a node that it comes after, if that is the path's last; else starts one. */
static guint choose_path(cudaGraphExec_t exec, guint index, GArray *last)
{
    const GArray *after = ((const Node *)exec->nodes->pdata[index])->after;

    for (guint i = 0; i < after->len; i++) {
        guint path = exec->path[g_array_index(after, guint, i)];
        if (g_array_index(last, guint, path) == g_array_index(after, guint, i)) {
            g_array_index(last, guint, path) = index;
            return path;
        }
    }
    g_array_append_val(last, index);
    return last->len - 1;
}

static void divide_into_paths(cudaGraphExec_t exec)
{
    g_autoptr(GArray) last = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < exec->nodes->len; i++) {
        const GArray *after = ((const Node *)exec->nodes->pdata[i])->after;
        exec->path[i] = choose_path(exec, i, last);
        for (guint j = 0; j < after->len; j++) {
            guint earlier = g_array_index(after, guint, j);
            if (exec->path[earlier] != exec->path[i])
                exec->has_token[earlier] = TRUE;
        }
    }
    for (guint path = 0; path < last->len; path++)
        exec->has_token[g_array_index(last, guint, path)] = TRUE;
    exec->num_paths = last->len;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    cs_enter();
    *exec = g_new0(struct CUgraphExec_st, 1);
    (*exec)->nodes = g_ptr_array_copy(graph->nodes, (GCopyFunc)node_copy, NULL);
    g_ptr_array_set_free_func((*exec)->nodes, node_free);
    (*exec)->path = g_new0(guint, graph->nodes->len + 1);
    (*exec)->has_token = g_new0(gboolean, graph->nodes->len + 1);
    divide_into_paths(*exec);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags)
{
    return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cs_enter();
    cs_token_unref(exec->last_launch);
    g_ptr_array_unref(exec->nodes);
    g_free(exec->path);
    g_free(exec->has_token);
    g_free(exec);
    return cs_leave(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    return cudaSuccess;
}

/* ---- launch ---- */

/* Queues a node in @stream; a token of it, if it has one, is the caller's. */
static CsToken *queue_node(cudaGraphExec_t exec, guint index, CsStream *stream)
{
    const Node *node = exec->nodes->pdata[index];
    CsToken *awaited;

    if (node->op != NULL) {
        cs_push(stream, cs_op_copy(node->op));
    } else if (node->record) {
        cs_event_set_token(node->event, cs_stream_record(stream));
    } else {
        awaited = cs_event_token(node->event);
        if (awaited == NULL)
            cs_report(CS_MISUSE, "a graph waits for an event that was never recorded");
        else
            cs_stream_wait(stream, awaited);
    }
    return exec->has_token[index] ? cs_stream_record(stream) : NULL;
}

static void queue_nodes(cudaGraphExec_t exec, CsStream **paths, CsToken **tokens)
{
    for (guint i = 0; i < exec->nodes->len; i++) {
        const GArray *after = ((const Node *)exec->nodes->pdata[i])->after;
        for (guint j = 0; j < after->len; j++) {
            guint earlier = g_array_index(after, guint, j);
            if (exec->path[earlier] != exec->path[i])
                cs_stream_wait(paths[exec->path[i]], tokens[earlier]);
        }
        tokens[i] = queue_node(exec, i, paths[exec->path[i]]);
    }
}

/* Launches of one graph follow each other, as those of a stream do. */
static CsToken *queue_begin(cudaGraphExec_t exec, CsStream *stream)
{
    cs_host_advance();
    if (exec->last_launch != NULL)
        cs_stream_wait(stream, exec->last_launch);
    return cs_stream_record(stream);
}

static void launch(cudaGraphExec_t exec, CsStream *stream)
{
    CsStream *paths[CS_STREAMS];
    g_autofree CsToken **tokens = g_new0(CsToken *, exec->nodes->len + 1);
    CsToken *begin = queue_begin(exec, stream);

    if (exec->num_paths > CS_STREAMS)
        g_error("cudasim: a graph of %u branches", exec->num_paths);
    for (guint i = 0; i < exec->num_paths; i++) {
        paths[i] = cs_stream_acquire();
        if (paths[i] == NULL)
            g_error("cudasim: too many streams and branches of graphs at once");
        cs_stream_wait(paths[i], begin);
    }
    queue_nodes(exec, paths, tokens);
    for (guint i = 0; i < exec->nodes->len; i++)
        if (tokens[i] != NULL) {
            cs_stream_wait(stream, tokens[i]);
            cs_token_unref(tokens[i]);
        }
    for (guint i = 0; i < exec->num_paths; i++)
        cs_stream_release(paths[i]);
    cs_token_unref(begin);
    cs_token_unref(exec->last_launch);
    exec->last_launch = cs_stream_record(stream);
    cs_host_advance();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
    CsStream *stream;

    cs_enter();
    stream = cs_stream(handle);
    if (stream->capture != NULL) {
        cs_capture_spoil();
        return cs_leave(cudaErrorStreamCaptureUnsupported);
    }
    if (stream == &cs_streams[0]) {
        cs_report(CS_MISUSE, "cudaGraphLaunch in the default stream is not simulated");
        return cs_leave(cudaErrorNotSupported);
    }
    launch(exec, stream);
    cs_schedule_some();
    return cs_leave(cudaSuccess);
}
