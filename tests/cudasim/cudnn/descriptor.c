#include "tests/cudasim/cudnn/descriptor.h"

#include <string.h>

enum { ENGINE = -1, MANY = 64 };

/* ---- errors ---- */

static char last_error[256];

int fake_fail(int status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

void cudnnGetLastErrorString(char *message, size_t bytes);
void cudnnGetLastErrorString(char *message, size_t bytes)
{
    g_strlcpy(message, last_error, bytes);
}

/* ---- what may be set ---- */

typedef struct {
    DnnDescriptorType of;
    DnnAttribute name;
    DnnAttributeType type;
    gint64 fewest, most;
    gboolean required;
} Rule;

static const Rule rules[] = {
    {DNN_POINTWISE, DNN_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, 1, TRUE},
    {DNN_POINTWISE, DNN_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, 1, TRUE},
    {DNN_POINTWISE, DNN_POINTWISE_AXIS, DNN_TYPE_INT64, 1, 1, FALSE},
    {DNN_ENGINEHEUR, DNN_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, 1, TRUE},
    {DNN_ENGINEHEUR, DNN_ENGINEHEUR_OPERATION_GRAPH, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_ENGINEHEUR, DNN_ENGINEHEUR_DEVICEPROP, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, FALSE},
    {DNN_EXECUTION_PLAN, DNN_EXECUTION_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, 1, FALSE},
    {DNN_EXECUTION_PLAN, DNN_EXECUTION_PLAN_ENGINE_CONFIG, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_EXECUTION_PLAN, DNN_EXECUTION_PLAN_DEVICEPROP, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, FALSE},
    {DNN_OPERATION_POINTWISE, DNN_OPERATION_POINTWISE_PW_DESCRIPTOR, DNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, TRUE},
    {DNN_OPERATION_POINTWISE, DNN_OPERATION_POINTWISE_XDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     TRUE},
    {DNN_OPERATION_POINTWISE, DNN_OPERATION_POINTWISE_BDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     FALSE},
    {DNN_OPERATION_POINTWISE, DNN_OPERATION_POINTWISE_TDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     FALSE},
    {DNN_OPERATION_POINTWISE, DNN_OPERATION_POINTWISE_YDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     TRUE},
    {DNN_OPERATIONGRAPH, DNN_OPERATIONGRAPH_HANDLE, DNN_TYPE_HANDLE, 1, 1, FALSE},
    {DNN_OPERATIONGRAPH, DNN_OPERATIONGRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, 1, MANY, TRUE},
    {DNN_TENSOR, DNN_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, 1, TRUE},
    {DNN_TENSOR, DNN_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, 1, TRUE},
    {DNN_TENSOR, DNN_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, 4, TRUE},
    {DNN_TENSOR, DNN_TENSOR_STRIDES, DNN_TYPE_INT64, 4, 4, TRUE},
    {DNN_TENSOR, DNN_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, 1, TRUE},
    {DNN_TENSOR, DNN_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, 1, FALSE},
    {DNN_TENSOR, DNN_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, 1, FALSE},
    {DNN_VARIANT_PACK, DNN_VARIANT_PACK_UNIQUE_IDS, DNN_TYPE_INT64, 1, MANY, TRUE},
    {DNN_VARIANT_PACK, DNN_VARIANT_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR, 1, MANY, TRUE},
    {DNN_VARIANT_PACK, DNN_VARIANT_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, 1, TRUE},
    {DNN_MATMUL, DNN_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, 1, TRUE},
    {DNN_OPERATION_MATMUL, DNN_OPERATION_MATMUL_ADESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_OPERATION_MATMUL, DNN_OPERATION_MATMUL_BDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_OPERATION_MATMUL, DNN_OPERATION_MATMUL_CDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_OPERATION_MATMUL, DNN_OPERATION_MATMUL_DESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_REDUCTION, DNN_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION_OPERATOR, 1, 1, TRUE},
    {DNN_REDUCTION, DNN_REDUCTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, 1, TRUE},
    {DNN_OPERATION_REDUCTION, DNN_OPERATION_REDUCTION_XDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     TRUE},
    {DNN_OPERATION_REDUCTION, DNN_OPERATION_REDUCTION_YDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     TRUE},
    {DNN_OPERATION_REDUCTION, DNN_OPERATION_REDUCTION_DESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     TRUE},
    {DNN_OPERATION_RESHAPE, DNN_OPERATION_RESHAPE_XDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_OPERATION_RESHAPE, DNN_OPERATION_RESHAPE_YDESC, DNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, TRUE},
    {DNN_DEVICEPROP, DNN_DEVICEPROP_JSON_REPRESENTATION, DNN_TYPE_CHAR, 1, G_MAXINT64, TRUE},
};

static const Rule *rule_of(DnnDescriptorType type, DnnAttribute name)
{
    for (guint i = 0; i < G_N_ELEMENTS(rules); i++)
        if (rules[i].of == type && rules[i].name == name)
            return &rules[i];
    return NULL;
}

static gsize bytes_of(DnnAttributeType type)
{
    switch (type) {
    case DNN_TYPE_BOOLEAN:
    case DNN_TYPE_CHAR:
        return 1;
    case DNN_TYPE_HANDLE:
    case DNN_TYPE_INT64:
    case DNN_TYPE_VOID_PTR:
    case DNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

/* ---- descriptors ---- */

int cudnnBackendCreateDescriptor(DnnDescriptorType type, DnnDescriptor *descriptor);
int cudnnBackendCreateDescriptor(DnnDescriptorType type, DnnDescriptor *descriptor)
{
    FakeDescriptor *made = g_new0(FakeDescriptor, 1);

    made->type = type;
    made->attributes = g_array_new(FALSE, FALSE, sizeof(FakeAttribute));
    *descriptor = made;
    return FAKE_SUCCESS;
}

int cudnnBackendDestroyDescriptor(DnnDescriptor descriptor);
int cudnnBackendDestroyDescriptor(DnnDescriptor descriptor)
{
    FakeDescriptor *old = descriptor;

    for (guint i = 0; i < old->attributes->len; i++)
        g_free(g_array_index(old->attributes, FakeAttribute, i).values);
    g_array_unref(old->attributes);
    g_free(old);
    return FAKE_SUCCESS;
}

static void keep(FakeDescriptor *of, DnnAttribute name, DnnAttributeType type, gint64 count,
                 const void *values)
{
    const FakeAttribute attribute = {name, type, count,
                                     g_memdup2(values, (gsize)count * bytes_of(type))};

    g_array_append_val(of->attributes, attribute);
}

int cudnnBackendSetAttribute(DnnDescriptor descriptor, DnnAttribute name, DnnAttributeType type,
                             gint64 count, const void *values);
int cudnnBackendSetAttribute(DnnDescriptor descriptor, DnnAttribute name, DnnAttributeType type,
                             gint64 count, const void *values)
{
    FakeDescriptor *of = descriptor;
    const Rule *rule = rule_of(of->type, name);

    if (of->finalized)
        return fake_fail(FAKE_BAD_PARAM, "descriptor of type %d is final", (int)of->type);
    if (rule == NULL || rule->type != type || count < rule->fewest || count > rule->most)
        return fake_fail(FAKE_BAD_PARAM,
                         "descriptor of type %d, attribute %d: %" G_GINT64_FORMAT " of type %d",
                         (int)of->type, (int)name, count, (int)type);
    for (gint64 i = 0; type == DNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        const FakeDescriptor *value = ((FakeDescriptor *const *)values)[i];

        if (value == NULL || !value->finalized)
            return fake_fail(FAKE_BAD_PARAM, "attribute %d: a descriptor is not final", (int)name);
    }
    keep(of, name, type, count, values);
    return FAKE_SUCCESS;
}

int cudnnBackendFinalize(DnnDescriptor descriptor);
int cudnnBackendFinalize(DnnDescriptor descriptor)
{
    FakeDescriptor *of = descriptor;
    gint64 count;

    for (guint i = 0; i < G_N_ELEMENTS(rules); i++)
        if (rules[i].of == of->type && rules[i].required &&
            fake_get(of, rules[i].name, &count) == NULL)
            return fake_fail(FAKE_BAD_PARAM, "descriptor of type %d lacks attribute %d",
                             (int)of->type, (int)rules[i].name);
    if (of->type == DNN_EXECUTION_PLAN &&
        (fake_get(of, DNN_EXECUTION_PLAN_HANDLE, &count) == NULL) ==
            (fake_get(of, DNN_EXECUTION_PLAN_DEVICEPROP, &count) == NULL))
        return fake_fail(FAKE_BAD_PARAM, "a plan is for a handle or for a device's properties");
    of->finalized = TRUE;
    return FAKE_SUCCESS;
}

/* ---- what is known of them ---- */

const void *fake_get(const FakeDescriptor *of, DnnAttribute name, gint64 *count)
{
    for (guint i = 0; i < of->attributes->len; i++) {
        const FakeAttribute *at = &g_array_index(of->attributes, FakeAttribute, i);

        *count = at->count;
        if (at->name == name)
            return at->values;
    }
    return NULL;
}

gint64 fake_int(const FakeDescriptor *of, DnnAttribute name)
{
    gint64 count, value;

    memcpy(&value, fake_get(of, name, &count), sizeof value);
    return value;
}

int fake_enum(const FakeDescriptor *of, DnnAttribute name, int otherwise)
{
    gint64 count;
    const void *values = fake_get(of, name, &count);

    return values == NULL ? otherwise : *(const int *)values;
}

gboolean fake_flag(const FakeDescriptor *of, DnnAttribute name)
{
    gint64 count;
    const guint8 *values = fake_get(of, name, &count);

    return values != NULL && values[0] != 0;
}

FakeDescriptor *fake_descriptor(const FakeDescriptor *of, DnnAttribute name)
{
    gint64 count;
    FakeDescriptor *const *values = fake_get(of, name, &count);

    return values == NULL ? NULL : values[0];
}

FakeDescriptor *const *fake_ops(const FakeDescriptor *graph, gint64 *count)
{
    return fake_get(graph, DNN_OPERATIONGRAPH_OPS, count);
}

gint64 fake_engine(const FakeDescriptor *configuration)
{
    return fake_int(configuration, (DnnAttribute)ENGINE);
}

/* Of the tensor, its sequence (the third dimension) a multiple of 8. */
static gint64 padded_elements(const FakeDescriptor *tensor)
{
    gint64 count;
    const gint64 *dim = fake_get(tensor, DNN_TENSOR_DIMENSIONS, &count);

    return dim[0] * dim[1] * ((dim[2] + 7) / 8 * 8) * dim[3];
}

static gint64 op_bytes(const FakeDescriptor *op)
{
    const FakeDescriptor *product = fake_descriptor(op, DNN_OPERATION_MATMUL_CDESC);
    const FakeDescriptor *summed = fake_descriptor(op, DNN_OPERATION_REDUCTION_XDESC);
    const gint64 fp32 = 4, bf16 = 2;

    if (product != NULL && !fake_flag(product, DNN_TENSOR_IS_VIRTUAL) &&
        fake_enum(product, DNN_TENSOR_DATA_TYPE, DNN_FLOAT) == DNN_FLOAT)
        return fp32 * padded_elements(product);
    if (summed != NULL && fake_enum(summed, DNN_TENSOR_DATA_TYPE, DNN_FLOAT) == DNN_BFLOAT16)
        return bf16 * padded_elements(summed);
    return 0;
}

/* As much as plans of the real one for sm_80: counters, products that are summed in memory (dq)
 * once more, and what is summed over heads that share keys (dk and dv). */
gint64 fake_workspace_bytes(const FakeDescriptor *graph, gint64 engine)
{
    gint64 count, bytes = 128;
    FakeDescriptor *const *ops = fake_ops(graph, &count);

    for (gint64 i = 0; engine == 0 && i < count; i++)
        bytes += op_bytes(ops[i]);
    return bytes;
}

/* ---- what is read ---- */

/* Configurations that @values has room for become those of the engines. */
static int results(const FakeDescriptor *heuristics, gint64 room, gint64 *count, void *values)
{
    const FakeDescriptor *graph = fake_descriptor(heuristics, DNN_ENGINEHEUR_OPERATION_GRAPH);
    const gboolean fallback =
        fake_enum(heuristics, DNN_ENGINEHEUR_MODE, DNN_HEUR_A) == DNN_HEUR_FALLBACK;

    *count = fallback ? 0 : MIN(room, FAKE_ENGINES);
    for (gint64 i = 0; i < *count; i++) {
        FakeDescriptor *configuration = ((FakeDescriptor **)values)[i];

        keep(configuration, (DnnAttribute)ENGINE, DNN_TYPE_INT64, 1, &i);
        keep(configuration, DNN_ENGINEHEUR_OPERATION_GRAPH, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
        configuration->finalized = TRUE;
    }
    return FAKE_SUCCESS;
}

int cudnnBackendGetAttribute(DnnDescriptor descriptor, DnnAttribute name, DnnAttributeType type,
                             gint64 room, gint64 *count, void *values);
int cudnnBackendGetAttribute(DnnDescriptor descriptor, DnnAttribute name, DnnAttributeType type,
                             gint64 room, gint64 *count, void *values)
{
    const FakeDescriptor *of = descriptor;

    if (!of->finalized)
        return fake_fail(FAKE_BAD_PARAM, "descriptor of type %d is not final", (int)of->type);
    if (of->type == DNN_ENGINEHEUR && name == DNN_ENGINEHEUR_RESULTS &&
        type == DNN_TYPE_BACKEND_DESCRIPTOR)
        return results(of, room, count, values);
    if (of->type != DNN_EXECUTION_PLAN || name != DNN_EXECUTION_PLAN_WORKSPACE_SIZE ||
        type != DNN_TYPE_INT64 || room != 1)
        return fake_fail(FAKE_NOT_SUPPORTED, "attribute %d is not simulated", (int)name);
    const FakeDescriptor *configuration = fake_descriptor(of, DNN_EXECUTION_PLAN_ENGINE_CONFIG);
    *count = 1;
    *(gint64 *)values = fake_workspace_bytes(
        fake_descriptor(configuration, DNN_ENGINEHEUR_OPERATION_GRAPH), fake_engine(configuration));
    return FAKE_SUCCESS;
}
