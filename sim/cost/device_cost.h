/* How one kind of device spends time; sim/cost/compute.c maps ops to these. */
#pragma once

#include "sim/cost/compute.h"
#include "sim/cost/measured.h"

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

/* All slots are required; all but the last two give seconds. */
typedef struct {
    double (*gemm)(const GemmShape *shape, DType dtype, const Topology *topology,
                   const ComputeContext *context);
    double (*attention)(const Op *op, const Topology *topology, const ComputeContext *context);
    double (*memory)(const MemoryWork *work, const Topology *topology,
                     const ComputeContext *context);
    double (*overhead)(const Topology *topology, const ComputeContext *context); /* of one op */
    /* Where its rows of calibration are: the load, and the sequence length of attention. */
    MeasuredLoad (*load)(const ComputeContext *context);
    guint64 (*attention_keys)(const Op *op);
} DeviceCost;

extern const DeviceCost device_cost_cuda;          /* nominal figures and tiles */
extern const DeviceCost device_cost_cuda_measured; /* rows of calibration, else these */
extern const DeviceCost device_cost_cpu_nominal;   /* nominal figures of a core */
extern const DeviceCost device_cost_cpu_measured;  /* rows of `fsdp-run calibrate` */

/* The table for a topology: with its rows of calibration where there are any. */
const DeviceCost *device_cost(const Topology *topology);

/* A part of an op's work, @times over. */
typedef struct {
    enum { WORK_GEMM, WORK_ATTENTION, WORK_MEMORY } kind;
    double times;
    GemmShape gemm;
    MemoryWork memory;
} Work;

enum { MAX_WORKS = 8 }; /* a head: three products and a softmax, of whole chunks and of the rest */

typedef struct {
    Work list[MAX_WORKS];
    guint num;
} Works;

/* What @op consists of, and what one of its works takes, once. */
Works compute_op_works(const Op *op, const Topology *topology, const ComputeContext *context);
double compute_work_seconds(const Work *work, const Op *op, const Topology *topology,
                            const ComputeContext *context);

/* GPUs: whether a row of calibration says what that work takes, and not a data sheet. */
gboolean device_cost_cuda_has_row(const Work *work, const Op *op, const Topology *topology,
                                  const ComputeContext *context);

/* Bytes that A, B and C take; of fp8 factors C has 2 bytes an element. */
double device_cost_gemm_bytes(const GemmShape *shape, DType dtype);
