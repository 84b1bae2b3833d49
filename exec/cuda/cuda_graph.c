/* A step as a CUDA graph.  Capture is relaxed: NCCL's calls come from the communication thread, and
 * may do what is unsafe while a stream captures in the stricter modes. */
#include "exec/cuda/cuda_device.h"

#include "sim/base/error.h"

gboolean cuda_capture_begin(Device *base, GError **error)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    return cuda_ok(
        cudaStreamBeginCapture(device->streams[COMPUTE_STREAM], cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture", error);
}

/* A DeviceGraph is a cudaGraphExec_t. */
DeviceGraph *cuda_capture_end(Device *base, GError **error)
{
    CudaDevice *device = (CudaDevice *)base;
    const cudaStream_t stream = device->streams[COMPUTE_STREAM];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;

    cuda_enter(device);
    if (!cuda_ok(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture", error))
        return NULL;
    const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
    cuda_keep(device, cudaGraphDestroy(graph), "cudaGraphDestroy");
    if (!cuda_ok(status, "cudaGraphInstantiate", error))
        return NULL;
    cuda_keep(device, cudaGraphUpload(ready, stream), "cudaGraphUpload");
    return (DeviceGraph *)ready;
}

void cuda_graph_run(Device *base, DeviceGraph *graph)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    cuda_keep(device, cudaGraphLaunch((cudaGraphExec_t)graph, device->streams[COMPUTE_STREAM]),
              "cudaGraphLaunch");
}

void cuda_graph_free(Device *base, DeviceGraph *graph)
{
    CudaDevice *device = (CudaDevice *)base;

    cuda_enter(device);
    cuda_keep(device, cudaGraphExecDestroy((cudaGraphExec_t)graph), "cudaGraphExecDestroy");
}
