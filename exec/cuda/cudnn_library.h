/* cuDNN's backend interface, opened at run time: what of it is called, and the numbers that name
 * its things.  Building needs none of its files.  Names and numbers are those of cudnn_graph.h of
 * cuDNN 9, where a number keeps its meaning (tests/cuda/test_cudnn_plans.c compares them with the
 * header where there is one); DNN_ stands for its CUDNN_. */
#pragma once

#include <glib.h>

typedef void *DnnDescriptor;
typedef struct cudnnContext *DnnHandle;
struct CUstream_st;

/* cudnnBackendDescriptorType_t */
typedef enum {
    DNN_POINTWISE = 0,
    DNN_ENGINECFG = 3,
    DNN_ENGINEHEUR = 4,
    DNN_EXECUTION_PLAN = 5,
    DNN_OPERATION_POINTWISE = 13,
    DNN_OPERATIONGRAPH = 15,
    DNN_VARIANT_PACK = 16,
    DNN_TENSOR = 17,
    DNN_MATMUL = 18,
    DNN_OPERATION_MATMUL = 19,
    DNN_REDUCTION = 21,
    DNN_OPERATION_REDUCTION = 22,
    DNN_OPERATION_RESHAPE = 31,
    DNN_DEVICEPROP = 38,
} DnnDescriptorType;

/* cudnnBackendAttributeName_t, after the descriptor that has it */
typedef enum {
    DNN_POINTWISE_MODE = 0,
    DNN_POINTWISE_MATH_PREC = 1,
    DNN_POINTWISE_AXIS = 9,
    DNN_ENGINEHEUR_MODE = 200,
    DNN_ENGINEHEUR_OPERATION_GRAPH = 201,
    DNN_ENGINEHEUR_RESULTS = 202,
    DNN_ENGINEHEUR_DEVICEPROP = 204,
    DNN_EXECUTION_PLAN_HANDLE = 400,
    DNN_EXECUTION_PLAN_ENGINE_CONFIG = 401,
    DNN_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
    DNN_EXECUTION_PLAN_DEVICEPROP = 407,
    DNN_OPERATION_POINTWISE_PW_DESCRIPTOR = 750,
    DNN_OPERATION_POINTWISE_XDESC = 751,
    DNN_OPERATION_POINTWISE_BDESC = 752,
    DNN_OPERATION_POINTWISE_YDESC = 753,
    DNN_OPERATION_POINTWISE_TDESC = 758,
    DNN_OPERATIONGRAPH_HANDLE = 800,
    DNN_OPERATIONGRAPH_OPS = 801,
    DNN_TENSOR_BYTE_ALIGNMENT = 900,
    DNN_TENSOR_DATA_TYPE = 901,
    DNN_TENSOR_DIMENSIONS = 902,
    DNN_TENSOR_STRIDES = 903,
    DNN_TENSOR_UNIQUE_ID = 906,
    DNN_TENSOR_IS_VIRTUAL = 907,
    DNN_TENSOR_IS_BY_VALUE = 908,
    DNN_VARIANT_PACK_UNIQUE_IDS = 1000,
    DNN_VARIANT_PACK_DATA_POINTERS = 1001,
    DNN_VARIANT_PACK_WORKSPACE = 1003,
    DNN_MATMUL_COMP_TYPE = 1500,
    DNN_OPERATION_MATMUL_ADESC = 1520,
    DNN_OPERATION_MATMUL_BDESC = 1521,
    DNN_OPERATION_MATMUL_CDESC = 1522,
    DNN_OPERATION_MATMUL_DESC = 1523,
    DNN_REDUCTION_OPERATOR = 1600,
    DNN_REDUCTION_COMP_TYPE = 1601,
    DNN_OPERATION_REDUCTION_XDESC = 1610,
    DNN_OPERATION_REDUCTION_YDESC = 1611,
    DNN_OPERATION_REDUCTION_DESC = 1612,
    DNN_OPERATION_RESHAPE_XDESC = 2200,
    DNN_OPERATION_RESHAPE_YDESC = 2201,
    DNN_DEVICEPROP_JSON_REPRESENTATION = 2702,
} DnnAttribute;

/* cudnnBackendAttributeType_t */
typedef enum {
    DNN_TYPE_HANDLE = 0,
    DNN_TYPE_DATA_TYPE = 1,
    DNN_TYPE_BOOLEAN = 2,
    DNN_TYPE_INT64 = 3,
    DNN_TYPE_VOID_PTR = 6,
    DNN_TYPE_HEUR_MODE = 8,
    DNN_TYPE_POINTWISE_MODE = 14,
    DNN_TYPE_BACKEND_DESCRIPTOR = 15,
    DNN_TYPE_REDUCTION_OPERATOR = 18,
    DNN_TYPE_CHAR = 24,
} DnnAttributeType;

/* cudnnDataType_t */
typedef enum { DNN_FLOAT = 0, DNN_INT32 = 4, DNN_BFLOAT16 = 9, DNN_BOOLEAN = 11 } DnnDataType;

/* cudnnPointwiseMode_t */
typedef enum {
    DNN_ADD = 0,
    DNN_MUL = 1,
    DNN_DIV = 6,
    DNN_SUB = 9,
    DNN_EXP = 13,
    DNN_LOG = 15,
    DNN_IDENTITY = 21,
    DNN_CMP_GE = 303,
    DNN_GEN_INDEX = 501,
    DNN_BINARY_SELECT = 601,
} DnnPointwise;

typedef enum { DNN_REDUCE_ADD = 0, DNN_REDUCE_MAX = 3 } DnnReduce; /* cudnnReduceTensorOp_t */
typedef enum {
    DNN_HEUR_FALLBACK = 2,
    DNN_HEUR_A = 3
} DnnHeuristicsMode; /* cudnnBackendHeurMode_t */

/* Functions return a cudnnStatus_t, 0 for success. */
typedef struct {
    void *library;
    guint version; /* 91002 is 9.10.2 */
    void (*last_error)(char *message, gsize bytes);
    int (*open)(DnnHandle *handle);
    int (*close)(DnnHandle handle);
    int (*set_stream)(DnnHandle handle, struct CUstream_st *stream);
    int (*create)(DnnDescriptorType type, DnnDescriptor *descriptor);
    int (*destroy)(DnnDescriptor descriptor);
    int (*finalize)(DnnDescriptor descriptor);
    int (*set)(DnnDescriptor descriptor, DnnAttribute name, DnnAttributeType type, gint64 count,
               const void *values);
    int (*get)(DnnDescriptor descriptor, DnnAttribute name, DnnAttributeType type, gint64 room,
               gint64 *count, void *values);
    int (*execute)(DnnHandle handle, DnnDescriptor plan, DnnDescriptor variant_pack);
} Cudnn;

/* The library that the system's search for "libcudnn.so.9" finds.  ERROR_RUNTIME: none, or older
 * than CUDNN_OLDEST. */
enum { CUDNN_OLDEST = 91000 };
Cudnn *cudnn_open(GError **error) G_GNUC_WARN_UNUSED_RESULT;
void cudnn_free(Cudnn *cudnn);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Cudnn, cudnn_free)

char *cudnn_version_text(guint version); /* "9.10.2" */

/* FALSE, and an error with what cuDNN says, unless @status is success. */
gboolean cudnn_ok(const Cudnn *cudnn, int status, const char *what, GError **error);
