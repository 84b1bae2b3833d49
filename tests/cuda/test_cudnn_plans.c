/* NVIDIA's cuDNN, where it is installed, makes plans of our graphs for GPUs that are not here: each
 * is recognised as attention, compiled, and says what workspace it needs.  Nothing is run. */
#include "exec/cuda/cudnn_attention.h"
#include "sim/base/error.h"
#include "sim/input/model.h"
#include "sim/program/op.h"
#include "tests/suite.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ---- our numbers are NVIDIA's ---- */

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define SAME(ours, theirs)    G_STATIC_ASSERT((int)(ours) == (int)(theirs))
#define SAME_DESCRIPTOR(name) SAME(DNN_##name, CUDNN_BACKEND_##name##_DESCRIPTOR)
#define SAME_ATTRIBUTE(name)  SAME(DNN_##name, CUDNN_ATTR_##name)
#define SAME_TYPE(name)       SAME(DNN_TYPE_##name, CUDNN_TYPE_##name)
SAME_DESCRIPTOR(POINTWISE);
SAME_DESCRIPTOR(ENGINECFG);
SAME_DESCRIPTOR(ENGINEHEUR);
SAME_DESCRIPTOR(EXECUTION_PLAN);
SAME_DESCRIPTOR(OPERATION_POINTWISE);
SAME_DESCRIPTOR(OPERATIONGRAPH);
SAME_DESCRIPTOR(VARIANT_PACK);
SAME_DESCRIPTOR(TENSOR);
SAME_DESCRIPTOR(MATMUL);
SAME_DESCRIPTOR(OPERATION_MATMUL);
SAME_DESCRIPTOR(REDUCTION);
SAME_DESCRIPTOR(OPERATION_REDUCTION);
SAME_DESCRIPTOR(OPERATION_RESHAPE);
SAME_DESCRIPTOR(DEVICEPROP);
SAME_ATTRIBUTE(POINTWISE_MODE);
SAME_ATTRIBUTE(POINTWISE_MATH_PREC);
SAME_ATTRIBUTE(POINTWISE_AXIS);
SAME_ATTRIBUTE(ENGINEHEUR_MODE);
SAME_ATTRIBUTE(ENGINEHEUR_OPERATION_GRAPH);
SAME_ATTRIBUTE(ENGINEHEUR_RESULTS);
SAME_ATTRIBUTE(ENGINEHEUR_DEVICEPROP);
SAME_ATTRIBUTE(EXECUTION_PLAN_HANDLE);
SAME_ATTRIBUTE(EXECUTION_PLAN_ENGINE_CONFIG);
SAME_ATTRIBUTE(EXECUTION_PLAN_WORKSPACE_SIZE);
SAME_ATTRIBUTE(EXECUTION_PLAN_DEVICEPROP);
SAME_ATTRIBUTE(OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME_ATTRIBUTE(OPERATION_POINTWISE_XDESC);
SAME_ATTRIBUTE(OPERATION_POINTWISE_BDESC);
SAME_ATTRIBUTE(OPERATION_POINTWISE_YDESC);
SAME_ATTRIBUTE(OPERATION_POINTWISE_TDESC);
SAME_ATTRIBUTE(OPERATIONGRAPH_HANDLE);
SAME_ATTRIBUTE(OPERATIONGRAPH_OPS);
SAME_ATTRIBUTE(TENSOR_BYTE_ALIGNMENT);
SAME_ATTRIBUTE(TENSOR_DATA_TYPE);
SAME_ATTRIBUTE(TENSOR_DIMENSIONS);
SAME_ATTRIBUTE(TENSOR_STRIDES);
SAME_ATTRIBUTE(TENSOR_UNIQUE_ID);
SAME_ATTRIBUTE(TENSOR_IS_VIRTUAL);
SAME_ATTRIBUTE(TENSOR_IS_BY_VALUE);
SAME_ATTRIBUTE(VARIANT_PACK_UNIQUE_IDS);
SAME_ATTRIBUTE(VARIANT_PACK_DATA_POINTERS);
SAME_ATTRIBUTE(VARIANT_PACK_WORKSPACE);
SAME_ATTRIBUTE(MATMUL_COMP_TYPE);
SAME_ATTRIBUTE(OPERATION_MATMUL_ADESC);
SAME_ATTRIBUTE(OPERATION_MATMUL_BDESC);
SAME_ATTRIBUTE(OPERATION_MATMUL_CDESC);
SAME_ATTRIBUTE(OPERATION_MATMUL_DESC);
SAME_ATTRIBUTE(REDUCTION_OPERATOR);
SAME_ATTRIBUTE(REDUCTION_COMP_TYPE);
SAME_ATTRIBUTE(OPERATION_REDUCTION_XDESC);
SAME_ATTRIBUTE(OPERATION_REDUCTION_YDESC);
SAME_ATTRIBUTE(OPERATION_REDUCTION_DESC);
SAME_ATTRIBUTE(OPERATION_RESHAPE_XDESC);
SAME_ATTRIBUTE(OPERATION_RESHAPE_YDESC);
SAME_ATTRIBUTE(DEVICEPROP_JSON_REPRESENTATION);
SAME_TYPE(HANDLE);
SAME_TYPE(DATA_TYPE);
SAME_TYPE(BOOLEAN);
SAME_TYPE(INT64);
SAME_TYPE(VOID_PTR);
SAME_TYPE(HEUR_MODE);
SAME_TYPE(POINTWISE_MODE);
SAME_TYPE(BACKEND_DESCRIPTOR);
SAME_TYPE(CHAR);
SAME(DNN_TYPE_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(DNN_FLOAT, CUDNN_DATA_FLOAT);
SAME(DNN_INT32, CUDNN_DATA_INT32);
SAME(DNN_BFLOAT16, CUDNN_DATA_BFLOAT16);
SAME(DNN_BOOLEAN, CUDNN_DATA_BOOLEAN);
SAME(DNN_ADD, CUDNN_POINTWISE_ADD);
SAME(DNN_MUL, CUDNN_POINTWISE_MUL);
SAME(DNN_DIV, CUDNN_POINTWISE_DIV);
SAME(DNN_SUB, CUDNN_POINTWISE_SUB);
SAME(DNN_EXP, CUDNN_POINTWISE_EXP);
SAME(DNN_LOG, CUDNN_POINTWISE_LOG);
SAME(DNN_IDENTITY, CUDNN_POINTWISE_IDENTITY);
SAME(DNN_CMP_GE, CUDNN_POINTWISE_CMP_GE);
SAME(DNN_GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX);
SAME(DNN_BINARY_SELECT, CUDNN_POINTWISE_BINARY_SELECT);
SAME(DNN_REDUCE_ADD, CUDNN_REDUCE_TENSOR_ADD);
SAME(DNN_REDUCE_MAX, CUDNN_REDUCE_TENSOR_MAX);
SAME(DNN_HEUR_A, CUDNN_HEUR_MODE_A);
SAME(DNN_HEUR_FALLBACK, CUDNN_HEUR_MODE_FALLBACK);
#endif

/* ---- GPUs that are not here ---- */

/* What a GPU says of itself, under the names that cuDNN gives it. */
static const char properties_format[] =
    "{\"cudaDeviceId\": 0, \"deviceVer\": %d, \"driverVer\": 13000, \"deviceName\": \"%s\","
    " \"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64],"
    " \"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"smCountOrigin\": 0,"
    " \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152,"
    " \"maxSharedMemoryPerBlockOptin\": %d, \"oversizedSharedMemoryPerBlock\": 0,"
    " \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536,"
    " \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048,"
    " \"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1,"
    " \"totalGlobalMem\": 85899345920, \"smClockRateKHz\": 1980000,"
    " \"memClockRateKHz\": 2619000, \"memoryBusWidth\": 5120, \"l2CacheSize\": 52428800}";

static const struct {
    const char *name;
    int version, multiprocessors, shared_bytes;
} gpus[] = {{"NVIDIA A100-SXM4-80GB", 800, 108, 166912},
            {"NVIDIA H100 80GB HBM3", 900, 132, 232448},
            {"NVIDIA B200", 1000, 148, 232448}};

/* Short sequences, for which the last GPU has other engines. */
static const CudnnAttentionShape odd_shapes[] = {{1, 33, 2, 1, 16}, {16, 64, 12, 12, 64}};

static const struct {
    const char *model;
    gint64 batch, seq, tp;
} trainings[] = {{"llama-3.1-8b", 1, 8192, 1},
                 {"llama-3.1-405b", 1, 8192, 8},
                 {"gpt2-xl", 4, 1024, 1},
                 {"phi-3-mini", 1, 4096, 1},
                 {"small-10m", 8, 250, 1}};

static Cudnn *cudnn;

static char *properties_of(guint gpu)
{
    return g_strdup_printf(properties_format, gpus[gpu].version, gpus[gpu].name,
                           gpus[gpu].multiprocessors, gpus[gpu].shared_bytes);
}

static CudnnAttentionShape shape_of(guint training)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Model) model = model_load(trainings[training].model, "models", &error);
    const gint64 tp = trainings[training].tp;

    ck_assert_msg(model != NULL, "%s", error == NULL ? "" : error->message);
    return (CudnnAttentionShape){trainings[training].batch, trainings[training].seq,
                                 model->heads / tp, model->kv_heads / tp, model->head_dim};
}

/* What a program reserves for the pass. */
static guint64 reserved(const CudnnAttentionShape *s, OpKind kind)
{
    const Op op = {.kind = kind,
                   .dtype = DTYPE_BF16,
                   .dtype_out = DTYPE_BF16,
                   .num_operands = kind == OP_ATTENTION ? 6 : 10,
                   .sizes = {.rows = (guint64)(s->batch * s->seq),
                             .batch = (guint64)s->batch,
                             .seq = (guint64)s->seq,
                             .heads = (guint64)s->heads,
                             .kv_heads = (guint64)s->kv_heads,
                             .head_dim = (guint64)s->head_dim}};

    return op_workspace_bytes(&op, DEVICE_CUDA, 1);
}

static void has_plans(guint gpu, const CudnnAttentionShape *shape)
{
    g_autofree char *properties = properties_of(gpu);
    const CudnnTarget target = {.properties = properties};
    const guint64 limit =
        MAX(reserved(shape, OP_ATTENTION), reserved(shape, OP_ATTENTION_BACKWARD));
    g_autoptr(GError) error = NULL;
    g_autoptr(CudnnAttention) first =
        cudnn_attention_new(cudnn, &target, shape, G_MAXINT64, &error);

    ck_assert_msg(first != NULL, "%s: %s", gpus[gpu].name, error == NULL ? "" : error->message);
    /* The plan of cuDNN's choice, not a slower one that takes less. */
    ck_assert_uint_le(cudnn_attention_scratch_bytes(first), limit);
}

START_TEST(what_a_program_reserves_is_enough_for_shipped_models)
{
    const CudnnAttentionShape shape = shape_of((guint)_i / G_N_ELEMENTS(gpus));

    has_plans((guint)_i % G_N_ELEMENTS(gpus), &shape);
}
END_TEST

START_TEST(what_a_program_reserves_is_enough_for_odd_shapes)
{
    has_plans(G_N_ELEMENTS(gpus) - 1, &odd_shapes[_i]);
}
END_TEST

/* All of it is used by a GPU: the bound is no larger than it must be. */
START_TEST(no_more_is_reserved_than_one_of_the_gpus_takes)
{
    const CudnnAttentionShape shape = {1, 4096, 32, 8, 128};
    g_autofree char *properties = properties_of(0);
    const CudnnTarget target = {.properties = properties};
    g_autoptr(GError) error = NULL;
    g_autoptr(CudnnAttention) attention =
        cudnn_attention_new(cudnn, &target, &shape, G_MAXINT64, &error);

    ck_assert_msg(attention != NULL, "%s", error == NULL ? "" : error->message);
    ck_assert_uint_le(reserved(&shape, OP_ATTENTION_BACKWARD),
                      cudnn_attention_scratch_bytes(attention) + 256);
}
END_TEST

START_TEST(too_little_scratch_is_refused_with_the_bytes)
{
    g_autofree char *properties = properties_of(1);
    const CudnnTarget target = {.properties = properties};
    const CudnnAttentionShape shape = {1, 4096, 32, 8, 128};
    const guint64 sums_bytes = 4096 * 32 * (4 * 128 + 4);
    g_autoptr(GError) error = NULL, other = NULL;

    ck_assert(cudnn_attention_new(cudnn, &target, &shape, sums_bytes - 1, &error) == NULL);
    ck_assert_msg(strstr(error->message, "its sums take 67633152 bytes") != NULL, "%s",
                  error->message);
    ck_assert(cudnn_attention_new(cudnn, &target, &shape, sums_bytes + 1000, &other) == NULL);
    ck_assert_msg(strstr(other->message, "bytes of workspace, and 1000 are free") != NULL, "%s",
                  other->message);
}
END_TEST

/* Our libcuda.so.1 becomes what cuDNN finds under that name. */
static gboolean open_driver(void)
{
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = g_path_get_dirname(program);
    g_autofree char *driver =
        g_build_filename(folder, "..", "cudasim", "driver", "libcuda.so.1", NULL);

    if (dlopen(driver, RTLD_NOW | RTLD_GLOBAL) != NULL)
        return TRUE;
    printf("%s\n", dlerror());
    return FALSE;
}

int main(void)
{
    g_autoptr(GError) error = NULL;

    if (!open_driver())
        return EXIT_FAILURE;
    cudnn = cudnn_open(&error);
    if (cudnn == NULL) {
        printf("SKIP: %s\n", error->message);
        return EXIT_SUCCESS;
    }
    g_autofree char *version = cudnn_version_text(cudnn->version);
    g_autofree char *name = g_strdup_printf("plans of cuDNN %s", version);
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create("plans");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, what_a_program_reserves_is_enough_for_shipped_models, 0,
                        G_N_ELEMENTS(gpus) * G_N_ELEMENTS(trainings));
    tcase_add_loop_test(tcase, what_a_program_reserves_is_enough_for_odd_shapes, 0,
                        G_N_ELEMENTS(odd_shapes));
    tcase_add_test(tcase, no_more_is_reserved_than_one_of_the_gpus_takes);
    tcase_add_test(tcase, too_little_scratch_is_refused_with_the_bytes);
    suite_add_tcase(suite, tcase);
    const int status = suite_run(suite);
    cudnn_free(cudnn);
    return status;
}
