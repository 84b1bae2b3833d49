/* What fsdp-cuda.so gives to the program that opened it: all of CUDA, behind tables. */
#pragma once

#include "exec/comm/comm.h"
#include "exec/device/device.h"

typedef struct {
    const char *version; /* of the program it was built with: tables are as there */
    const DeviceOps *device;
    /* Why CUDA can't be used here, in one line, or how many GPUs there are. */
    gboolean (*probe)(guint *num_devices, GError **error);
    /* A communicator of NCCL on @device, which finds its peers through @host and leaves the
     * control channel to it.  On the communication thread; collective; @host is taken.  After a
     * failure that stays until the process ends, from which peers learn of it. */
    Comm *(*comm_open)(Comm *host, Device *device, GError **error);
} CudaPlugIn;

#define CUDA_PLUG_IN_SYMBOL "fsdp_cuda_plug_in"
extern const CudaPlugIn fsdp_cuda_plug_in;
