/* The NCCL transport: a communicator a group, split from one of all ranks; operations are enqueued
 * on the stream of their group. */
#pragma once

#include "exec/comm/comm.h"
#include "exec/device/device.h"

/* See CudaPlugIn. */
Comm *comm_nccl_open(Comm *host, Device *device, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void comm_nccl_rehearse(Comm *base, gboolean on);
double comm_nccl_rehearsed_s(const Comm *base);
