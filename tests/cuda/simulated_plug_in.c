/* In fsdp-run, in place of the plug-in that it would open: the same CUDA parts, on the simulated
 * device. */
#include "exec/run/plug_in.h"

const CudaPlugIn *plug_in_open(guint *num_devices, GError **error)
{
    return fsdp_cuda_plug_in.probe(num_devices, error) ? &fsdp_cuda_plug_in : NULL;
}
