/* What the simulated device says of itself. */
#include "tests/cudasim/stream.h"
#include <stdio.h>
#include <string.h>

#define MULTIPROCESSORS 4 /* few, so that loops over a grid go round several times */

cudaError_t cudaGetDeviceCount(int *count)
{
    const char *devices = g_getenv("CUDASIM_DEVICES");

    *count = devices == NULL ? 1 : (int)g_ascii_strtoll(devices, NULL, 10);
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

static gboolean exists(int device)
{
    int count;

    return cudaGetDeviceCount(&count) == cudaSuccess && device >= 0 && device < count;
}

/* A process uses one device; all of them are the same. */
static int current_device;

cudaError_t cudaSetDevice(int device)
{
    cs_enter();
    if (!exists(device))
        return cs_leave(cudaErrorInvalidDevice);
    current_device = device;
    return cs_leave(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cs_enter();
    if (!exists(device))
        return cs_leave(cudaErrorInvalidDevice);
    *properties = (struct cudaDeviceProp){.name = "simulated",
                                          .major = 9,
                                          .totalGlobalMem = cs_settings.device_bytes,
                                          .multiProcessorCount = MULTIPROCESSORS,
                                          .warpSize = 32,
                                          .maxThreadsPerBlock = 1024,
                                          .maxThreadsPerMultiProcessor = 2048,
                                          .sharedMemPerBlock = 48 << 10,
                                          .sharedMemPerBlockOptin = 227 << 10,
                                          .sharedMemPerMultiprocessor = 228 << 10};
    return cs_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    static const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } known[] = {
        {cudaDevAttrMultiProcessorCount, MULTIPROCESSORS},
        {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrClockRate, 1000000},
        {cudaDevAttrMemoryClockRate, 1000000},
        {cudaDevAttrGlobalMemoryBusWidth, 4096},
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrComputeCapabilityMinor, 0},
    };

    cs_enter();
    if (!exists(device))
        return cs_leave(cudaErrorInvalidDevice);
    for (gsize i = 0; i < G_N_ELEMENTS(known); i++)
        if (known[i].attribute == attribute) {
            *value = known[i].value;
            return cs_leave(cudaSuccess);
        }
    cs_report(CS_MISUSE, "cudaDeviceGetAttribute %d is not simulated", (int)attribute);
    return cs_leave(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    snprintf(id, (size_t)length, "0000:%02x:00.0", device);
    return exists(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

static const struct {
    cudaError_t error;
    const char *name;
    const char *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
};

const char *cudaGetErrorString(cudaError_t error)
{
    for (gsize i = 0; i < G_N_ELEMENTS(errors); i++)
        if (errors[i].error == error)
            return errors[i].text;
    return "an error that is not simulated";
}

const char *cudaGetErrorName(cudaError_t error)
{
    for (gsize i = 0; i < G_N_ELEMENTS(errors); i++)
        if (errors[i].error == error)
            return errors[i].name;
    return "cudaErrorOther";
}
