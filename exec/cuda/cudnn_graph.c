#include "exec/cuda/cudnn_graph.h"

#include "sim/base/error.h"

#include <stdbool.h>
#include <string.h>

enum { MOST_OPS = 32, MOST_CONFIGURATIONS = 16, ALIGNMENT_BYTES = 16, FIRST_VIRTUAL_UID = 1000 };

struct CudnnGraph {
    const Cudnn *cudnn;
    GPtrArray *descriptors; /* all that were made, which a plan may still refer to */
    DnnDescriptor ops[MOST_OPS];
    gint64 num_ops;
    gint64 next_uid;
    GError *error;
};

struct CudnnPlan {
    CudnnGraph *graph;
    DnnDescriptor descriptor; /* the graph's */
    guint64 workspace_bytes;
};

CudnnGraph *cudnn_graph_new(const Cudnn *cudnn)
{
    CudnnGraph *graph = g_new0(CudnnGraph, 1);

    graph->cudnn = cudnn;
    graph->descriptors = g_ptr_array_new();
    graph->next_uid = FIRST_VIRTUAL_UID;
    return graph;
}

/* Users before what they use. */
void cudnn_graph_free(CudnnGraph *graph)
{
    if (graph == NULL)
        return;
    for (guint i = graph->descriptors->len; i > 0; i--)
        graph->cudnn->destroy(graph->descriptors->pdata[i - 1]);
    g_ptr_array_unref(graph->descriptors);
    g_clear_error(&graph->error);
    g_free(graph);
}

/* ---- descriptors ---- */

static DnnDescriptor make(CudnnGraph *graph, DnnDescriptorType type)
{
    DnnDescriptor descriptor = NULL;

    if (graph->error != NULL || !cudnn_ok(graph->cudnn, graph->cudnn->create(type, &descriptor),
                                          "cudnnBackendCreateDescriptor", &graph->error))
        return NULL;
    g_ptr_array_add(graph->descriptors, descriptor);
    return descriptor;
}

static void set(CudnnGraph *graph, DnnDescriptor of, DnnAttribute name, DnnAttributeType type,
                gint64 count, const void *values)
{
    char what[64];

    if (graph->error != NULL)
        return;
    g_snprintf(what, sizeof what, "attribute %d", (int)name);
    (void)cudnn_ok(graph->cudnn, graph->cudnn->set(of, name, type, count, values), what,
                   &graph->error);
}

static void set_descriptor(CudnnGraph *graph, DnnDescriptor of, DnnAttribute name,
                           DnnDescriptor value)
{
    set(graph, of, name, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(CudnnGraph *graph, DnnDescriptor of, DnnAttribute name, DnnDataType type)
{
    set(graph, of, name, DNN_TYPE_DATA_TYPE, 1, &type);
}

static void finish(CudnnGraph *graph, DnnDescriptor descriptor, const char *what)
{
    if (graph->error == NULL)
        (void)cudnn_ok(graph->cudnn, graph->cudnn->finalize(descriptor), what, &graph->error);
}

static void finish_op(CudnnGraph *graph, DnnDescriptor op, const char *what)
{
    g_assert(graph->num_ops < MOST_OPS);
    finish(graph, op, what);
    graph->ops[graph->num_ops++] = op;
}

DnnDescriptor cudnn_graph_tensor(CudnnGraph *graph, const CudnnTensor *tensor)
{
    const gint64 uid = tensor->uid == 0 ? graph->next_uid++ : tensor->uid;
    const gint64 alignment = ALIGNMENT_BYTES;
    const bool is_virtual = tensor->uid == 0, by_value = tensor->by_value != FALSE;
    DnnDescriptor of = make(graph, DNN_TENSOR);

    set(graph, of, DNN_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &uid);
    set_type(graph, of, DNN_TENSOR_DATA_TYPE, tensor->type);
    set(graph, of, DNN_TENSOR_DIMENSIONS, DNN_TYPE_INT64, CUDNN_DIMS, tensor->shape.dim);
    set(graph, of, DNN_TENSOR_STRIDES, DNN_TYPE_INT64, CUDNN_DIMS, tensor->shape.stride);
    set(graph, of, DNN_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &alignment);
    set(graph, of, DNN_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(graph, of, DNN_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, &by_value);
    finish(graph, of, "a tensor");
    return of;
}

/* ---- operations ---- */

/* @axis -1: none. */
static DnnDescriptor pointwise(CudnnGraph *graph, DnnPointwise mode, gint64 axis, DnnDescriptor x,
                               DnnDescriptor y)
{
    DnnDescriptor how = make(graph, DNN_POINTWISE);

    set(graph, how, DNN_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_type(graph, how, DNN_POINTWISE_MATH_PREC, mode == DNN_CMP_GE ? DNN_BOOLEAN : DNN_FLOAT);
    if (axis >= 0)
        set(graph, how, DNN_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &axis);
    finish(graph, how, "a pointwise function");
    DnnDescriptor op = make(graph, DNN_OPERATION_POINTWISE);
    set_descriptor(graph, op, DNN_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(graph, op, DNN_OPERATION_POINTWISE_XDESC, x);
    set_descriptor(graph, op, DNN_OPERATION_POINTWISE_YDESC, y);
    return op;
}

void cudnn_graph_pointwise(CudnnGraph *graph, DnnPointwise mode, DnnDescriptor x, DnnDescriptor b,
                           DnnDescriptor y)
{
    DnnDescriptor op = pointwise(graph, mode, -1, x, y);

    if (b != NULL)
        set_descriptor(graph, op, DNN_OPERATION_POINTWISE_BDESC, b);
    finish_op(graph, op, "a pointwise operation");
}

void cudnn_graph_index(CudnnGraph *graph, gint64 axis, DnnDescriptor x, DnnDescriptor y)
{
    finish_op(graph, pointwise(graph, DNN_GEN_INDEX, axis, x, y), "an index");
}

void cudnn_graph_select(CudnnGraph *graph, DnnDescriptor where, DnnDescriptor x, DnnDescriptor b,
                        DnnDescriptor y)
{
    DnnDescriptor op = pointwise(graph, DNN_BINARY_SELECT, -1, x, y);

    set_descriptor(graph, op, DNN_OPERATION_POINTWISE_BDESC, b);
    set_descriptor(graph, op, DNN_OPERATION_POINTWISE_TDESC, where);
    finish_op(graph, op, "a selection");
}

void cudnn_graph_matmul(CudnnGraph *graph, DnnDescriptor a, DnnDescriptor b, DnnDescriptor c)
{
    DnnDescriptor how = make(graph, DNN_MATMUL);

    set_type(graph, how, DNN_MATMUL_COMP_TYPE, DNN_FLOAT);
    finish(graph, how, "a product's type");
    DnnDescriptor op = make(graph, DNN_OPERATION_MATMUL);
    set_descriptor(graph, op, DNN_OPERATION_MATMUL_ADESC, a);
    set_descriptor(graph, op, DNN_OPERATION_MATMUL_BDESC, b);
    set_descriptor(graph, op, DNN_OPERATION_MATMUL_CDESC, c);
    set_descriptor(graph, op, DNN_OPERATION_MATMUL_DESC, how);
    finish_op(graph, op, "a product");
}

void cudnn_graph_reduce(CudnnGraph *graph, DnnReduce reduce, DnnDescriptor x, DnnDescriptor y)
{
    DnnDescriptor how = make(graph, DNN_REDUCTION);

    set(graph, how, DNN_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR, 1, &reduce);
    set_type(graph, how, DNN_REDUCTION_COMP_TYPE, DNN_FLOAT);
    finish(graph, how, "a reduction's type");
    DnnDescriptor op = make(graph, DNN_OPERATION_REDUCTION);
    set_descriptor(graph, op, DNN_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(graph, op, DNN_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(graph, op, DNN_OPERATION_REDUCTION_DESC, how);
    finish_op(graph, op, "a reduction");
}

void cudnn_graph_reshape(CudnnGraph *graph, DnnDescriptor x, DnnDescriptor y)
{
    DnnDescriptor op = make(graph, DNN_OPERATION_RESHAPE);

    set_descriptor(graph, op, DNN_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(graph, op, DNN_OPERATION_RESHAPE_YDESC, y);
    finish_op(graph, op, "a reshape");
}

/* ---- plans ---- */

typedef struct {
    DnnHandle handle;
    DnnDescriptor properties;
    guint64 limit_bytes;
    GError *why; /* of the first configuration that won't do */
} Search;

/* A kernel that can't be had for one configuration may be had for the next. */
static CudnnPlan *try_configuration(CudnnGraph *graph, Search *search, DnnDescriptor configuration)
{
    gint64 bytes = 0, count = 0;
    DnnDescriptor plan = make(graph, DNN_EXECUTION_PLAN);

    if (search->handle != NULL)
        set(graph, plan, DNN_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &search->handle);
    set_descriptor(graph, plan, DNN_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    if (search->properties != NULL)
        set_descriptor(graph, plan, DNN_EXECUTION_PLAN_DEVICEPROP, search->properties);
    finish(graph, plan, "a plan");
    if (graph->error == NULL &&
        cudnn_ok(graph->cudnn,
                 graph->cudnn->get(plan, DNN_EXECUTION_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1,
                                   &count, &bytes),
                 "a plan's workspace", &graph->error) &&
        (guint64)bytes > search->limit_bytes)
        fail(&graph->error, ERROR_RUNTIME,
             "it needs %" G_GINT64_FORMAT " bytes of workspace, and %" G_GUINT64_FORMAT " are free",
             bytes, search->limit_bytes);
    if (graph->error == NULL) {
        CudnnPlan *found = g_new0(CudnnPlan, 1);

        *found = (CudnnPlan){graph, plan, (guint64)bytes};
        return found;
    }
    if (search->why == NULL)
        search->why = g_steal_pointer(&graph->error);
    g_clear_error(&graph->error);
    return NULL;
}

static gint64 configurations(CudnnGraph *graph, const Search *search, DnnHeuristicsMode mode,
                             DnnDescriptor of, DnnDescriptor found[MOST_CONFIGURATIONS])
{
    gint64 count = 0;
    DnnDescriptor heuristics = make(graph, DNN_ENGINEHEUR);

    set_descriptor(graph, heuristics, DNN_ENGINEHEUR_OPERATION_GRAPH, of);
    set(graph, heuristics, DNN_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode);
    if (search->properties != NULL)
        set_descriptor(graph, heuristics, DNN_ENGINEHEUR_DEVICEPROP, search->properties);
    finish(graph, heuristics, "heuristics");
    for (guint i = 0; i < MOST_CONFIGURATIONS; i++)
        found[i] = make(graph, DNN_ENGINECFG);
    if (graph->error == NULL)
        (void)cudnn_ok(graph->cudnn,
                       graph->cudnn->get(heuristics, DNN_ENGINEHEUR_RESULTS,
                                         DNN_TYPE_BACKEND_DESCRIPTOR, MOST_CONFIGURATIONS, &count,
                                         found),
                       "heuristics", &graph->error);
    return graph->error == NULL ? MIN(count, MOST_CONFIGURATIONS) : 0;
}

static DnnDescriptor finish_graph(CudnnGraph *graph, const CudnnTarget *target, Search *search)
{
    DnnDescriptor of = make(graph, DNN_OPERATIONGRAPH);

    if (target->handle != NULL)
        set(graph, of, DNN_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &target->handle);
    set(graph, of, DNN_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, graph->num_ops, graph->ops);
    finish(graph, of, "the graph");
    if (target->properties == NULL)
        return of;
    search->properties = make(graph, DNN_DEVICEPROP);
    set(graph, search->properties, DNN_DEVICEPROP_JSON_REPRESENTATION, DNN_TYPE_CHAR,
        (gint64)strlen(target->properties) + 1, target->properties);
    finish(graph, search->properties, "the GPU's properties");
    return of;
}

CudnnPlan *cudnn_plan_new(CudnnGraph *taken, const CudnnTarget *target, guint64 limit_bytes,
                          GError **error)
{
    static const DnnHeuristicsMode modes[] = {DNN_HEUR_A, DNN_HEUR_FALLBACK};
    g_autoptr(CudnnGraph) graph = taken;
    Search search = {.handle = target->handle, .limit_bytes = limit_bytes};
    DnnDescriptor of = finish_graph(graph, target, &search), found[MOST_CONFIGURATIONS];
    const gboolean graph_was_well = graph->error == NULL;
    CudnnPlan *plan = NULL;

    for (guint m = 0; m < G_N_ELEMENTS(modes) && plan == NULL; m++) {
        const gint64 count = configurations(graph, &search, modes[m], of, found);

        for (gint64 i = 0; i < count && plan == NULL; i++)
            plan = try_configuration(graph, &search, found[i]);
        if (m == 0 && graph_was_well && graph->error != NULL) { /* the next mode may do better */
            g_clear_error(&search.why);
            search.why = g_steal_pointer(&graph->error);
        }
    }
    if (plan != NULL) {
        g_clear_error(&search.why);
        g_steal_pointer(&graph);
        return plan;
    }
    /* The search begins with no error, so one that the graph has is the reason. */
    if (graph->error != NULL) {
        g_clear_error(&search.why);
        search.why = g_steal_pointer(&graph->error);
    }
    if (search.why == NULL)
        fail(&search.why, ERROR_RUNTIME, "cuDNN has no engine for it");
    g_propagate_error(error, search.why);
    return NULL;
}

void cudnn_plan_free(CudnnPlan *plan)
{
    if (plan == NULL)
        return;
    cudnn_graph_free(plan->graph);
    g_free(plan);
}

guint64 cudnn_plan_workspace_bytes(const CudnnPlan *plan)
{
    return plan->workspace_bytes;
}

gboolean cudnn_plan_run(const CudnnPlan *plan, DnnHandle handle, const CudnnArguments *arguments,
                        GError **error)
{
    const Cudnn *cudnn = plan->graph->cudnn;
    CudnnGraph *pack = cudnn_graph_new(cudnn);
    const gint64 count = arguments->count;
    DnnDescriptor of = make(pack, DNN_VARIANT_PACK);

    set(pack, of, DNN_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, count, arguments->uids);
    set(pack, of, DNN_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR, count, arguments->data);
    set(pack, of, DNN_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, &arguments->workspace);
    finish(pack, of, "arguments");
    if (pack->error == NULL)
        (void)cudnn_ok(cudnn, cudnn->execute(handle, plan->descriptor, of), "cudnnBackendExecute",
                       &pack->error);
    const gboolean ok = pack->error == NULL;
    if (!ok)
        g_propagate_error(error, g_steal_pointer(&pack->error));
    cudnn_graph_free(pack);
    return ok;
}
