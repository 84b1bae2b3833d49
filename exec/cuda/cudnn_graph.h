/* Graphs of cuDNN's operations on tensors of four dimensions, and plans that run them. */
#pragma once

#include "exec/cuda/cudnn_library.h"

typedef struct CudnnGraph CudnnGraph;
typedef struct CudnnPlan CudnnPlan;

enum { CUDNN_DIMS = 4 };

typedef struct {
    gint64 dim[CUDNN_DIMS], stride[CUDNN_DIMS]; /* in elements */
} CudnnShape;

typedef struct {
    gint64 uid; /* the name of an argument of the plan; 0: the graph's own, never in memory */
    DnnDataType type;
    CudnnShape shape;
    gboolean by_value; /* the argument is one number in host memory, read when the plan is run */
} CudnnTensor;

/* The first error of what follows is kept: then all of it does nothing, and cudnn_plan_new() fails.
 * @cudnn is borrowed. */
CudnnGraph *cudnn_graph_new(const Cudnn *cudnn);
void cudnn_graph_free(CudnnGraph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CudnnGraph, cudnn_graph_free)

DnnDescriptor cudnn_graph_tensor(CudnnGraph *graph, const CudnnTensor *tensor);

/* Operations read tensors of the graph and write @y.  Sums and functions are in fp32. */
void cudnn_graph_pointwise(CudnnGraph *graph, DnnPointwise mode, DnnDescriptor x, DnnDescriptor b,
                           DnnDescriptor y); /* b NULL: of one operand */
void cudnn_graph_index(CudnnGraph *graph, gint64 axis, DnnDescriptor x, DnnDescriptor y);
/* y = where ? x : b */
void cudnn_graph_select(CudnnGraph *graph, DnnDescriptor where, DnnDescriptor x, DnnDescriptor b,
                        DnnDescriptor y);
/* c = a b, of the last two dimensions; a group of heads of @a may share one of @b. */
void cudnn_graph_matmul(CudnnGraph *graph, DnnDescriptor a, DnnDescriptor b, DnnDescriptor c);
/* Over the dimensions in which y is shorter. */
void cudnn_graph_reduce(CudnnGraph *graph, DnnReduce reduce, DnnDescriptor x, DnnDescriptor y);
/* The same elements in the same order, seen as y's shape. */
void cudnn_graph_reshape(CudnnGraph *graph, DnnDescriptor x, DnnDescriptor y);

/* What a plan is for: the GPU of @handle, or one that need not be there, by its properties. */
typedef struct {
    DnnHandle handle;
    const char *properties; /* JSON, or NULL */
} CudnnTarget;

/* The plan that cuDNN ranks first among those that need at most @limit_bytes of workspace.  Takes
 * the graph.  ERROR_RUNTIME with what cuDNN says. */
CudnnPlan *cudnn_plan_new(CudnnGraph *graph, const CudnnTarget *target, guint64 limit_bytes,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void cudnn_plan_free(CudnnPlan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(CudnnPlan, cudnn_plan_free)
guint64 cudnn_plan_workspace_bytes(const CudnnPlan *plan);

typedef struct {
    guint count;
    const gint64 *uids;
    void *const *data; /* device memory, aligned to 16 bytes; by value: host memory */
    void *workspace;
} CudnnArguments;

/* Enqueues it on the stream of @handle. */
gboolean cudnn_plan_run(const CudnnPlan *plan, DnnHandle handle, const CudnnArguments *arguments,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
