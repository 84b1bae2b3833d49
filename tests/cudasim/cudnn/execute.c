/* Runs a graph operation by operation, each tensor in storage of its type. */
#include "tests/cudasim/cudnn/descriptor.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/number.h"
#include "tests/cudasim/stream.h"

#include <math.h>
#include <string.h>

enum { DIMS = 4, MOST_ARGUMENTS = 32 };

struct cudnnContext {
    cudaStream_t stream;
};

typedef struct {
    CsOp base;
    const FakeDescriptor *graph;
    gint64 num_arguments;
    gint64 uids[MOST_ARGUMENTS];
    void *data[MOST_ARGUMENTS];
    gsize bytes[MOST_ARGUMENTS]; /* in device memory */
    float by_value[MOST_ARGUMENTS];
    void *workspace;
    gint64 workspace_bytes;
} GraphOp;

/* ---- tensors ---- */

typedef struct {
    CsNumber type;
    gint64 dim[DIMS], stride[DIMS], span; /* elements from the first to behind the last */
    gint64 uid;
    void *data;
    gboolean owned, global;
} Storage;

typedef struct {
    const GraphOp *op;
    GHashTable *storage; /* of tensors that were met: uid -> Storage */
} Run;

static CsNumber number_type(int type)
{
    switch (type) {
    case DNN_BFLOAT16:
        return CS_BF16;
    case DNN_INT32:
        return CS_INT32;
    case DNN_BOOLEAN:
        return CS_UINT8;
    default:
        return CS_FP32;
    }
}

static void storage_free(gpointer data)
{
    Storage *storage = data;

    if (storage->owned)
        g_free(storage->data);
    g_free(storage);
}

static gint64 argument_of(const GraphOp *op, gint64 uid)
{
    for (gint64 i = 0; i < op->num_arguments; i++)
        if (op->uids[i] == uid)
            return i;
    return -1;
}

static Storage *storage_new(const FakeDescriptor *tensor)
{
    Storage *s = g_new0(Storage, 1);
    gint64 count;

    s->uid = fake_int(tensor, DNN_TENSOR_UNIQUE_ID);
    s->type = number_type(fake_enum(tensor, DNN_TENSOR_DATA_TYPE, DNN_FLOAT));
    memcpy(s->dim, fake_get(tensor, DNN_TENSOR_DIMENSIONS, &count), sizeof s->dim);
    memcpy(s->stride, fake_get(tensor, DNN_TENSOR_STRIDES, &count), sizeof s->stride);
    s->span = 1;
    for (guint d = 0; d < DIMS; d++)
        s->span += (s->dim[d] - 1) * s->stride[d];
    return s;
}

static Storage *storage_of(Run *run, const FakeDescriptor *tensor)
{
    const gint64 uid = fake_int(tensor, DNN_TENSOR_UNIQUE_ID);
    Storage *known = g_hash_table_lookup(run->storage, &uid);

    if (known != NULL)
        return known;
    Storage *s = storage_new(tensor);
    const gint64 argument = argument_of(run->op, uid);
    s->owned = fake_flag(tensor, DNN_TENSOR_IS_VIRTUAL);
    s->global = !s->owned && !fake_flag(tensor, DNN_TENSOR_IS_BY_VALUE);
    if (s->owned)
        s->data = g_malloc0((gsize)s->span * cs_number_bytes(s->type));
    else
        s->data = s->global ? run->op->data[argument] : (void *)&run->op->by_value[argument];
    g_hash_table_insert(run->storage, &s->uid, s);
    return s;
}

static Storage *storage_at(Run *run, const FakeDescriptor *op, DnnAttribute name, CsAccess access)
{
    const FakeDescriptor *tensor = fake_descriptor(op, name);

    if (tensor == NULL)
        return NULL;
    Storage *s = storage_of(run, tensor);
    if (s->global)
        cs_race_access(access, s->data, (gsize)s->span * cs_number_bytes(s->type));
    return s;
}

/* A dimension of length 1 is every index; a shorter one is shared by groups. */
static gsize offset_of(const Storage *s, const Storage *like, const gint64 at[DIMS])
{
    gint64 offset = 0;

    for (guint d = 0; d < DIMS; d++)
        offset += at[d] * s->dim[d] / like->dim[d] * s->stride[d];
    return (gsize)offset;
}

static double value_at(const Storage *s, const Storage *like, const gint64 at[DIMS])
{
    return s == NULL ? 0 : cs_number_get(s->type, s->data, offset_of(s, like, at));
}

/* The next index of @like in the order of its dimensions; FALSE behind the last. */
static gboolean next(const Storage *like, gint64 at[DIMS])
{
    for (guint d = DIMS; d > 0; d--) {
        if (++at[d - 1] < like->dim[d - 1])
            return TRUE;
        at[d - 1] = 0;
    }
    return FALSE;
}

/* ---- operations ---- */

static double function(int mode, double x, double b, double where)
{
    switch (mode) {
    case DNN_ADD:
        return x + b;
    case DNN_MUL:
        return x * b;
    case DNN_DIV:
        return x / b;
    case DNN_SUB:
        return x - b;
    case DNN_EXP:
        return exp(x);
    case DNN_LOG:
        return log(x);
    case DNN_CMP_GE:
        return x >= b;
    case DNN_BINARY_SELECT:
        return where != 0 ? x : b;
    case DNN_IDENTITY:
        return x;
    default:
        cs_report(CS_MISUSE, "cuDNN: pointwise function %d is not simulated", mode);
        return (double)NAN;
    }
}

static void run_pointwise(Run *run, const FakeDescriptor *op)
{
    const FakeDescriptor *how = fake_descriptor(op, DNN_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const int mode = fake_enum(how, DNN_POINTWISE_MODE, DNN_IDENTITY);
    const Storage *x = storage_at(run, op, DNN_OPERATION_POINTWISE_XDESC, CS_READ);
    const Storage *b = storage_at(run, op, DNN_OPERATION_POINTWISE_BDESC, CS_READ);
    const Storage *where = storage_at(run, op, DNN_OPERATION_POINTWISE_TDESC, CS_READ);
    const Storage *y = storage_at(run, op, DNN_OPERATION_POINTWISE_YDESC, CS_WRITE);
    gint64 at[DIMS] = {0};

    do {
        const double value =
            mode == DNN_GEN_INDEX
                ? (double)at[fake_int(how, DNN_POINTWISE_AXIS)]
                : function(mode, value_at(x, y, at), value_at(b, y, at), value_at(where, y, at));

        cs_number_set(y->type, y->data, offset_of(y, y, at), value);
    } while (next(y, at));
}

static void run_matmul(Run *run, const FakeDescriptor *op)
{
    const Storage *a = storage_at(run, op, DNN_OPERATION_MATMUL_ADESC, CS_READ);
    const Storage *b = storage_at(run, op, DNN_OPERATION_MATMUL_BDESC, CS_READ);
    const Storage *c = storage_at(run, op, DNN_OPERATION_MATMUL_CDESC, CS_WRITE);
    gint64 at[DIMS] = {0};

    if (a->dim[3] != b->dim[2] || a->dim[2] != c->dim[2] || b->dim[3] != c->dim[3])
        cs_report(CS_MISUSE, "cuDNN: shapes of a product don't match");
    do {
        const gint64 head = at[1] * b->dim[1] / c->dim[1];
        float sum = 0;

        for (gint64 k = 0; k < a->dim[3]; k++)
            sum += (float)(value_at(a, a, (const gint64[]){at[0], at[1], at[2], k}) *
                           value_at(b, b, (const gint64[]){at[0], head, k, at[3]}));
        cs_number_set(c->type, c->data, offset_of(c, c, at), (double)sum);
    } while (next(c, at));
}

static void run_reduction(Run *run, const FakeDescriptor *op)
{
    const FakeDescriptor *how = fake_descriptor(op, DNN_OPERATION_REDUCTION_DESC);
    const gboolean adds = fake_enum(how, DNN_REDUCTION_OPERATOR, -1) == DNN_REDUCE_ADD;
    const Storage *x = storage_at(run, op, DNN_OPERATION_REDUCTION_XDESC, CS_READ);
    const Storage *y = storage_at(run, op, DNN_OPERATION_REDUCTION_YDESC, CS_WRITE);
    g_autofree double *sums = g_new(double, (gsize)y->span);
    gint64 at[DIMS] = {0};

    for (gint64 i = 0; i < y->span; i++)
        sums[i] = adds ? 0 : -INFINITY;
    do {
        double *sum = &sums[offset_of(y, x, at)];
        const double value = value_at(x, x, at);

        *sum = adds ? *sum + value : MAX(*sum, value);
    } while (next(x, at));
    do {
        const gsize offset = offset_of(y, y, at);

        cs_number_set(y->type, y->data, offset, sums[offset]);
    } while (next(y, at));
}

static void run_reshape(Run *run, const FakeDescriptor *op)
{
    const Storage *x = storage_at(run, op, DNN_OPERATION_RESHAPE_XDESC, CS_READ);
    const Storage *y = storage_at(run, op, DNN_OPERATION_RESHAPE_YDESC, CS_WRITE);

    if (x->span != y->span)
        cs_report(CS_MISUSE, "cuDNN: a reshape changes the number of elements");
    for (gint64 i = 0; i < MIN(x->span, y->span); i++)
        cs_number_set(y->type, y->data, (gsize)i, cs_number_get(x->type, x->data, (gsize)i));
}

static void run_graph(CsOp *base)
{
    const GraphOp *op = (const GraphOp *)base;
    Run run = {op, g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, storage_free)};
    gint64 count;
    FakeDescriptor *const *ops = fake_ops(op->graph, &count);

    cs_race_access(CS_WRITE, op->workspace, (gsize)op->workspace_bytes);
    cs_memory_poison(op->workspace, (gsize)op->workspace_bytes);
    for (gint64 i = 0; i < count; i++) {
        if (ops[i]->type == DNN_OPERATION_POINTWISE)
            run_pointwise(&run, ops[i]);
        else if (ops[i]->type == DNN_OPERATION_MATMUL)
            run_matmul(&run, ops[i]);
        else if (ops[i]->type == DNN_OPERATION_REDUCTION)
            run_reduction(&run, ops[i]);
        else
            run_reshape(&run, ops[i]);
    }
    g_hash_table_unref(run.storage);
}

static const CsOpKind graph_kind = {
    .name = "a graph of cuDNN's", .bytes = sizeof(GraphOp), .run = run_graph};

/* ---- calls ---- */

size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    const char *version = g_getenv("CUDASIM_CUDNN_VERSION");

    return version == NULL ? 92801 : (size_t)g_ascii_strtoull(version, NULL, 10);
}

int cudnnCreate(DnnHandle *handle);
int cudnnCreate(DnnHandle *handle)
{
    *handle = g_new0(struct cudnnContext, 1);
    return FAKE_SUCCESS;
}

int cudnnDestroy(DnnHandle handle);
int cudnnDestroy(DnnHandle handle)
{
    g_free(handle);
    return FAKE_SUCCESS;
}

int cudnnSetStream(DnnHandle handle, cudaStream_t stream);
int cudnnSetStream(DnnHandle handle, cudaStream_t stream)
{
    handle->stream = stream;
    return FAKE_SUCCESS;
}

/* Keys of the graph's first product, which is that of queries and keys. */
static gint64 sequence_of(const FakeDescriptor *graph)
{
    gint64 count, dims;
    FakeDescriptor *const *ops = fake_ops(graph, &count);

    for (gint64 i = 0; i < count; i++) {
        const FakeDescriptor *scores = fake_descriptor(ops[i], DNN_OPERATION_MATMUL_CDESC);

        if (scores != NULL)
            return ((const gint64 *)fake_get(scores, DNN_TENSOR_DIMENSIONS, &dims))[3];
    }
    return 0;
}

/* CUDASIM_CUDNN_SCALE: a library that is wrong, by this factor of each number given by value;
 * CUDASIM_CUDNN_RIGHT: the longest sequence for which it is not. */
static void take_number(GraphOp *op, gint64 i)
{
    const char *scale = g_getenv("CUDASIM_CUDNN_SCALE"), *right = g_getenv("CUDASIM_CUDNN_RIGHT");

    op->by_value[i] = *(const float *)op->data[i];
    if (scale != NULL &&
        (right == NULL || sequence_of(op->graph) > g_ascii_strtoll(right, NULL, 10)))
        op->by_value[i] *= (float)g_ascii_strtod(scale, NULL);
}

static int take_tensor(GraphOp *op, const FakeDescriptor *tensor)
{
    const gint64 uid = fake_int(tensor, DNN_TENSOR_UNIQUE_ID), i = argument_of(op, uid);

    if (fake_flag(tensor, DNN_TENSOR_IS_VIRTUAL))
        return FAKE_SUCCESS;
    if (i < 0)
        return fake_fail(FAKE_BAD_PARAM, "tensor %" G_GINT64_FORMAT " is not given", uid);
    if (fake_flag(tensor, DNN_TENSOR_IS_BY_VALUE)) {
        take_number(op, i);
        return FAKE_SUCCESS;
    }
    g_autofree Storage *s = storage_new(tensor);
    op->bytes[i] = (gsize)s->span * cs_number_bytes(s->type);
    if ((guintptr)op->data[i] % (gsize)fake_int(tensor, DNN_TENSOR_BYTE_ALIGNMENT) != 0 ||
        !cs_memory_is_device(op->data[i]) || !cs_memory_is_inside(op->data[i], op->bytes[i]))
        return fake_fail(FAKE_BAD_PARAM, "tensor %" G_GINT64_FORMAT " is no such memory", uid);
    return FAKE_SUCCESS;
}

static int take_arguments(GraphOp *op)
{
    static const DnnAttribute tensors[] = {
        DNN_OPERATION_POINTWISE_XDESC, DNN_OPERATION_POINTWISE_BDESC, DNN_OPERATION_POINTWISE_TDESC,
        DNN_OPERATION_POINTWISE_YDESC, DNN_OPERATION_MATMUL_ADESC,    DNN_OPERATION_MATMUL_BDESC,
        DNN_OPERATION_MATMUL_CDESC,    DNN_OPERATION_REDUCTION_XDESC, DNN_OPERATION_REDUCTION_YDESC,
        DNN_OPERATION_RESHAPE_XDESC,   DNN_OPERATION_RESHAPE_YDESC};
    gint64 count;
    FakeDescriptor *const *ops = fake_ops(op->graph, &count);

    for (gint64 i = 0; i < count; i++)
        for (guint t = 0; t < G_N_ELEMENTS(tensors); t++) {
            const FakeDescriptor *tensor = fake_descriptor(ops[i], tensors[t]);
            const int status = tensor == NULL ? FAKE_SUCCESS : take_tensor(op, tensor);

            if (status != FAKE_SUCCESS)
                return status;
        }
    return FAKE_SUCCESS;
}

/* An engine may write results and workspace at any time. */
static int check_apart(const GraphOp *op)
{
    for (gint64 i = 0; i < op->num_arguments; i++) {
        const guint8 *from = op->data[i], *to = from + op->bytes[i];

        for (gint64 j = 0; j <= i; j++) {
            const gboolean own = j == i; /* against the workspace */
            const guint8 *other = own ? op->workspace : op->data[j];
            const gsize bytes = own ? (gsize)op->workspace_bytes : op->bytes[j];

            if (from < other + bytes && other < to)
                return fake_fail(FAKE_BAD_PARAM, "tensor %" G_GINT64_FORMAT " overlaps another",
                                 op->uids[i]);
        }
    }
    return FAKE_SUCCESS;
}

static int take_pack(GraphOp *op, const FakeDescriptor *pack)
{
    gint64 uids, data;
    const gint64 *all_uids = fake_get(pack, DNN_VARIANT_PACK_UNIQUE_IDS, &uids);
    void *const *all_data = fake_get(pack, DNN_VARIANT_PACK_DATA_POINTERS, &data);

    if (uids != data || uids > MOST_ARGUMENTS)
        return fake_fail(FAKE_BAD_PARAM, "as many pointers as names are wanted");
    op->num_arguments = uids;
    memcpy(op->uids, all_uids, (gsize)uids * sizeof *op->uids);
    memcpy(op->data, all_data, (gsize)uids * sizeof *op->data);
    memcpy(&op->workspace, fake_get(pack, DNN_VARIANT_PACK_WORKSPACE, &data), sizeof op->workspace);
    if (!cs_memory_is_device(op->workspace) ||
        !cs_memory_is_inside(op->workspace, (gsize)op->workspace_bytes))
        return fake_fail(FAKE_BAD_PARAM, "the workspace is no such memory");
    const int status = take_arguments(op);
    return status != FAKE_SUCCESS ? status : check_apart(op);
}

int cudnnBackendExecute(DnnHandle handle, DnnDescriptor plan, DnnDescriptor variant_pack);
int cudnnBackendExecute(DnnHandle handle, DnnDescriptor plan, DnnDescriptor variant_pack)
{
    const FakeDescriptor *of = plan, *pack = variant_pack;
    const FakeDescriptor *configuration = fake_descriptor(of, DNN_EXECUTION_PLAN_ENGINE_CONFIG);
    GraphOp *op = (GraphOp *)cs_op_new(&graph_kind);
    int status = FAKE_SUCCESS;

    op->graph = fake_descriptor(configuration, DNN_ENGINEHEUR_OPERATION_GRAPH);
    op->workspace_bytes = fake_workspace_bytes(op->graph, fake_engine(configuration));
    if (!pack->finalized || handle->stream == NULL)
        status = fake_fail(FAKE_BAD_PARAM, "arguments are not final, or there is no stream");
    if (status == FAKE_SUCCESS)
        status = take_pack(op, pack);
    if (status != FAKE_SUCCESS) {
        cs_op_free(&op->base);
        return status;
    }
    cs_op_push(handle->stream, &op->base);
    return FAKE_SUCCESS;
}
