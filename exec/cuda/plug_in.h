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
    /* Between on and off NCCL is asked how long operations would take, and does none; @comm's
     * groups are for that alone and closed by off.  Collective, on the communication thread. */
    void (*comm_rehearse)(Comm *comm, gboolean on);
    /* What it said of the last one; NAN: nothing (as of sends and receives). */
    double (*comm_rehearsed_s)(const Comm *comm);
} CudaPlugIn;

#define CUDA_PLUG_IN_SYMBOL "fsdp_cuda_plug_in"
extern const CudaPlugIn fsdp_cuda_plug_in;
