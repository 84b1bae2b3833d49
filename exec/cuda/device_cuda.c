/* A GPU as a device: kernels and cuBLASLt, on streams without the default one's habits.  Nothing
 * here waits for the GPU but sync(). */
#include "exec/cuda/cuda_library_attention.h"

#include "sim/base/error.h"

#include <cublas_v2.h>

enum { BOUNCE_BYTES = 4 << 20 };

/* ---- errors ---- */

gboolean cuda_ok(cudaError_t status, const char *what, GError **error)
{
    return status == cudaSuccess ||
           fail(error, ERROR_RUNTIME, "%s: %s", what, cudaGetErrorString(status));
}

void cuda_keep_failure(CudaDevice *device, const char *what, const char *why)
{
    g_mutex_lock(&device->lock);
    if (device->error == NULL)
        fail(&device->error, ERROR_RUNTIME, "device \"cuda\": %s: %s", what, why);
    g_mutex_unlock(&device->lock);
}

void cuda_keep(CudaDevice *device, cudaError_t status, const char *what)
{
    if (status != cudaSuccess)
        cuda_keep_failure(device, what, cudaGetErrorString(status));
}

void cuda_keep_blas(CudaDevice *device, cublasStatus_t status, const char *what)
{
    char number[32];

    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    g_snprintf(number, sizeof number, "status %d of cuBLAS", (int)status);
    cuda_keep_failure(device, what, number);
}

/* FALSE and a copy of the first error, if there is one. */
static gboolean is_well(CudaDevice *device, GError **error)
{
    g_mutex_lock(&device->lock);
    GError *copy = device->error == NULL ? NULL : g_error_copy(device->error);
    g_mutex_unlock(&device->lock);
    if (copy == NULL)
        return TRUE;
    g_propagate_error(error, copy);
    return FALSE;
}

/* ---- opening ---- */

gboolean cuda_probe(guint *num_devices, GError **error)
{
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);

    if (status != cudaSuccess || count < 1)
        return fail(error, ERROR_RUNTIME, "device \"cuda\": no GPU can be used here: %s",
                    status == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(status));
    *num_devices = (guint)count;
    return TRUE;
}

void cuda_enter(const CudaDevice *device)
{
    cudaSetDevice(device->ordinal); /* it was valid when the device was opened */
}

static void device_free_all(Device *base)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    for (guint s = 0; s < device->num_streams; s++) {
        cudaStreamSynchronize(device->streams[s]);
        cudaStreamDestroy(device->streams[s]);
        cudaFree(device->norm_partials[s]);
    }
    cuda_library_attention_free(device);
    if (base->bounce != NULL)
        cudaFreeHost(base->bounce);
    if (device->blas != NULL)
        cublasLtDestroy(device->blas);
    g_hash_table_unref(device->choices);
    g_mutex_clear(&device->lock);
    g_clear_error(&device->error);
    g_free(device->library);
    g_free(device);
}

static gboolean open_streams(Device *base, guint count, GError **error)
{
    CudaDevice *device = (CudaDevice *)base;

    g_assert(count <= MAX_STREAMS);
    cuda_enter(device);
    for (; device->num_streams < count; device->num_streams++) {
        const guint s = device->num_streams;
        const gsize bytes = CUDA_SQUARED_NORM_PARTIALS * sizeof(double);

        if (!cuda_ok(cudaMalloc((void **)&device->norm_partials[s], bytes), "cudaMalloc", error) ||
            !cuda_ok(cudaStreamCreateWithFlags(&device->streams[s], cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags", error))
            return FALSE;
    }
    return TRUE;
}

static gboolean prepare(CudaDevice *device, GError **error)
{
    struct cudaDeviceProp properties;

    if (!cuda_ok(cudaSetDevice(device->ordinal), "cudaSetDevice", error) ||
        !cuda_ok(cudaGetDeviceProperties(&properties, device->ordinal), "cudaGetDeviceProperties",
                 error) ||
        !cuda_ok(cudaHostAlloc((void **)&device->base.bounce, BOUNCE_BYTES, cudaHostAllocDefault),
                 "cudaHostAlloc", error) ||
        !open_streams(&device->base, COMPUTE_STREAM + 1, error))
        return FALSE;
    device->base.bounce_bytes = BOUNCE_BYTES;
    device->library =
        g_strdup_printf("%s, cuBLASLt %d.%d", properties.name, CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR);
    return cublasLtCreate(&device->blas) == CUBLAS_STATUS_SUCCESS ||
           fail(error, ERROR_RUNTIME, "device \"cuda\": cublasLtCreate failed");
}

static Device *cuda_open(const DeviceOptions *options, GError **error)
{
    guint num_devices = 0;

    if (!cuda_probe(&num_devices, error))
        return NULL;
    CudaDevice *device = g_new0(CudaDevice, 1);
    device->base = (Device){.ops = &device_cuda, .threads = options->threads};
    device->ordinal = (int)(options->local_rank % num_devices);
    device->choices = cuda_gemm_choices();
    g_mutex_init(&device->lock);
    if (prepare(device, error))
        return &device->base;
    device_free_all(&device->base);
    return NULL;
}

static const char *cuda_library(const Device *device)
{
    return ((const CudaDevice *)device)->library;
}

/* ---- running ---- */

static void cuda_run(Device *base, const Launch *launch)
{
    CudaDevice *device = (CudaDevice *)base;
    CudaOp *const run = cuda_op(launch->op->kind);

    g_assert(run != NULL && launch->stream < device->num_streams);
    g_assert(launch->predicate == NULL || op_class(launch->op->kind) == OP_CLASS_OPTIMIZER);
    cuda_enter(device);
    run(device, launch);
    cuda_keep(device, cudaGetLastError(), op_kind_name(launch->op->kind));
}

static gboolean sync_stream(Device *base, guint stream, GError **error)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    cuda_keep(device, cudaStreamSynchronize(device->streams[stream]), "cudaStreamSynchronize");
    return is_well(device, error);
}

static gboolean busy_stream(Device *base, guint stream)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    return cudaStreamQuery(device->streams[stream]) == cudaErrorNotReady;
}

static gboolean cuda_sync(Device *base, GError **error)
{
    return sync_stream(base, COMPUTE_STREAM, error);
}

/* ---- memory ---- */

static void *cuda_alloc(Device *base, gsize bytes, GError **error)
{
    void *memory = NULL;

    cuda_enter((CudaDevice *)base);
    const cudaError_t status = cudaMalloc(&memory, MAX(bytes, 1));
    if (status != cudaSuccess) {
        fail(error, ERROR_RUNTIME, "device \"cuda\": cudaMalloc of %" G_GSIZE_FORMAT " bytes: %s",
             bytes, cudaGetErrorString(status));
        return NULL;
    }
    return memory;
}

static void cuda_release(Device *base, void *memory)
{
    cuda_enter((CudaDevice *)base);
    cuda_keep((CudaDevice *)base, cudaFree(memory), "cudaFree");
}

static gboolean cuda_pin(Device *base, void *host, gsize bytes, GError **error)
{
    cuda_enter((CudaDevice *)base);
    return cuda_ok(cudaHostRegister(host, bytes, cudaHostRegisterDefault), "cudaHostRegister",
                   error);
}

static void cuda_unpin(Device *base, void *host)
{
    cuda_enter((CudaDevice *)base);
    cuda_keep((CudaDevice *)base, cudaHostUnregister(host), "cudaHostUnregister");
}

static void cuda_copy(Device *base, guint stream, void *to, const void *from, gsize bytes)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    cuda_keep(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->streams[stream]),
              "cudaMemcpyAsync");
}

static guint64 cuda_used_bytes(Device *base)
{
    size_t left = 0, total = 0;

    cuda_enter((CudaDevice *)base);
    cuda_keep((CudaDevice *)base, cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    return total - left;
}

/* 0 where the driver doesn't tell. */
static double attribute(const CudaDevice *device, enum cudaDeviceAttr attribute)
{
    int value = 0;

    return cudaDeviceGetAttribute(&value, attribute, device->ordinal) == cudaSuccess ? value : 0;
}

/* fp32 units of a multiprocessor: CUDA C++ Programming Guide, "Arithmetic Instructions". */
static double fp32_units(const struct cudaDeviceProp *properties)
{
    const gboolean few =
        properties->major < 8 || (properties->major == 8 && properties->minor == 0);

    return few ? 64 : 128;
}

/* Clocks are in kHz; memory moves twice in a cycle, a multiply-add is two. */
static void cuda_describe(Device *base, DeviceFacts *facts)
{
    const CudaDevice *device = (const CudaDevice *)base;
    struct cudaDeviceProp properties;

    *facts = (DeviceFacts){.memory_bytes = 0};
    cuda_enter(device);
    if (cudaGetDeviceProperties(&properties, device->ordinal) != cudaSuccess)
        return;
    g_strlcpy(facts->name, properties.name, sizeof facts->name);
    facts->memory_bytes = properties.totalGlobalMem;
    facts->memory_bytes_per_s = 2e3 * attribute(device, cudaDevAttrMemoryClockRate) *
                                attribute(device, cudaDevAttrGlobalMemoryBusWidth) / 8;
    facts->fp32_flops = 2e3 * attribute(device, cudaDevAttrClockRate) *
                        properties.multiProcessorCount * fp32_units(&properties);
    cudaGetLastError(); /* an attribute that isn't told is no failure of what comes next */
}

/* ---- events ---- */

/* A DeviceEvent is a cudaEvent_t. */
static DeviceEvent *cuda_event_new(Device *base, gboolean timed, GError **error)
{
    const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    cudaEvent_t event = NULL;

    cuda_enter((CudaDevice *)base);
    if (!cuda_ok(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags", error))
        return NULL;
    return (DeviceEvent *)event;
}

static void cuda_event_free(Device *base, DeviceEvent *event)
{
    cuda_enter((CudaDevice *)base);
    cuda_keep((CudaDevice *)base, cudaEventDestroy((cudaEvent_t)event), "cudaEventDestroy");
}

static void cuda_record(Device *base, guint stream, DeviceEvent *event)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    cuda_keep(device, cudaEventRecord((cudaEvent_t)event, device->streams[stream]),
              "cudaEventRecord");
}

static void cuda_wait(Device *base, guint stream, DeviceEvent *event)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    cuda_keep(device, cudaStreamWaitEvent(device->streams[stream], (cudaEvent_t)event, 0),
              "cudaStreamWaitEvent");
}

static gboolean cuda_happened(Device *base, DeviceEvent *event)
{
    cuda_enter((CudaDevice *)base);
    return cudaEventQuery((cudaEvent_t)event) != cudaErrorNotReady;
}

static double cuda_seconds(Device *base, DeviceEvent *from, DeviceEvent *to)
{
    CudaDevice *device = (CudaDevice *)base;
    float milliseconds = 0;

    cuda_enter(device);
    cuda_keep(device, cudaEventElapsedTime(&milliseconds, (cudaEvent_t)from, (cudaEvent_t)to),
              "cudaEventElapsedTime");
    return (double)milliseconds * 1e-3;
}

static const DeviceQueueOps cuda_queues = {
    .open_streams = open_streams,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .sync = sync_stream,
    .busy = busy_stream,
    .copy = cuda_copy,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .record = cuda_record,
    .wait = cuda_wait,
    .happened = cuda_happened,
    .seconds = cuda_seconds,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_run = cuda_graph_run,
    .graph_free = cuda_graph_free,
    .used_bytes = cuda_used_bytes,
    .describe = cuda_describe,
    .library_attention = cuda_library_attention,
};

const DeviceOps device_cuda = {
    .name = "cuda",
    .kind = DEVICE_CUDA,
    .open = cuda_open,
    .library = cuda_library,
    .run = cuda_run,
    .sync = cuda_sync,
    .free = device_free_all,
    .queues = &cuda_queues,
};
