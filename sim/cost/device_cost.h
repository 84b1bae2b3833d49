/* How one kind of device spends time; sim/cost/compute.c maps ops to these. */
#pragma once

#include "sim/cost/compute.h"

/* C(m,n) = A(m,k) B(k,n), @groups times at once; 0 is 1. */
typedef struct {
    guint64 m, n, k, groups;
} GemmShape;

/* What memory-bound work it is: the op, the element type, the bytes that it moves. */
typedef struct {
    const char *op; /* op_kind_name() */
    DType dtype;
    double bytes;
} MemoryWork;

/* All slots are required; all give seconds. */
typedef struct {
    double (*gemm)(const GemmShape *shape, DType dtype, const Topology *topology,
                   const ComputeContext *context);
    double (*attention)(const Op *op, const Topology *topology, const ComputeContext *context);
    double (*memory)(const MemoryWork *work, const Topology *topology,
                     const ComputeContext *context);
    double (*overhead)(const Topology *topology, const ComputeContext *context); /* of one op */
} DeviceCost;

extern const DeviceCost device_cost_cuda;          /* nominal figures and tiles */
extern const DeviceCost device_cost_cuda_measured; /* rows of calibration, else these */
extern const DeviceCost device_cost_cpu_nominal;   /* nominal figures of a core */
extern const DeviceCost device_cost_cpu_measured;  /* rows of `fsdp-run calibrate` */

/* Bytes that A, B and C take; of fp8 factors C has 2 bytes an element. */
double device_cost_gemm_bytes(const GemmShape *shape, DType dtype);
