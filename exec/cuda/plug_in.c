#include "exec/cuda/plug_in.h"

#include "exec/cuda/comm_nccl.h"
#include "exec/cuda/cuda_device.h"

const CudaPlugIn fsdp_cuda_plug_in = {
    .version = FSDP_VERSION,
    .device = &device_cuda,
    .probe = cuda_probe,
    .comm_open = comm_nccl_open,
    .comm_rehearse = comm_nccl_rehearse,
    .comm_rehearsed_s = comm_nccl_rehearsed_s,
};
