/* Graphs.  A launch hands each path through the graph to a hidden stream of its own, and each edge
 * between paths to an event: so nodes run in every order that the edges allow, and the race
 * detector needs to know nothing of graphs. */
#include "tests/cudasim/graph.h"

#include "tests/cudasim/capture.h"

struct CUgraph_st {
    GPtrArray *nodes; /* CsNode, each behind those it comes after */
};

struct CUgraphExec_st {
    GPtrArray *nodes;
    guint *path;         /* of each node */
    gboolean *has_token; /* another path, or the end, waits for the node */
    guint num_paths;
    CsToken *last_launch;
};

/* ---- nodes ---- */

static void node_free(gpointer data)
{
    CsNode *node = data;

    if (node->op != NULL)
        cs_op_free(node->op);
    g_array_unref(node->after);
    g_free(node);
}

static gpointer node_copy(gconstpointer data, gpointer unused)
{
    const CsNode *node = data;
    CsNode *copy = g_memdup2(node, sizeof *node);

    (void)unused;
    copy->op = node->op == NULL ? NULL : cs_op_copy(node->op);
    copy->after = g_array_copy(node->after);
    return copy;
}

cudaGraph_t cs_graph_new(void)
{
    cudaGraph_t graph = g_new0(struct CUgraph_st, 1);

    graph->nodes = g_ptr_array_new_with_free_func(node_free);
    return graph;
}

void cs_graph_free(cudaGraph_t graph)
{
    g_ptr_array_unref(graph->nodes);
    g_free(graph);
}

guint cs_graph_add(cudaGraph_t graph, CsNode node)
{
    g_ptr_array_add(graph->nodes, g_memdup2(&node, sizeof node));
    return graph->nodes->len - 1;
}

guint cs_graph_num_nodes(const struct CUgraph_st *graph)
{
    return graph->nodes->len;
}

const GArray *cs_graph_after(const struct CUgraph_st *graph, guint index)
{
    return ((const CsNode *)graph->nodes->pdata[index])->after;
}

/* ---- graphs ---- */

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cs_enter();
    cs_graph_free(graph);
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
    const GArray *after = ((const CsNode *)exec->nodes->pdata[index])->after;

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
        const GArray *after = ((const CsNode *)exec->nodes->pdata[i])->after;
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
    const CsNode *node = exec->nodes->pdata[index];
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
        const GArray *after = ((const CsNode *)exec->nodes->pdata[i])->after;
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
