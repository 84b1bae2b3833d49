/* Opens fsdp-cuda.so, so that one build serves machines with and without CUDA. */
#pragma once

#include "exec/cuda/plug_in.h"

/* The plug-in beside this program, or in ../lib/fsdp, on a machine with a GPU; stays open.  NULL
 * with ERROR_RUNTIME: what is missing. */
const CudaPlugIn *plug_in_open(guint *num_devices, GError **error) G_GNUC_WARN_UNUSED_RESULT;
