/* A simulated CUDA device, for tests only: fakes of the CUDA runtime, cuBLAS, cuBLASLt and NCCL
 * that a test links instead of the real libraries.  Kernels are the .cu files of the product,
 * compiled by a C++ compiler (device.cuh).  Work is queued and runs only when the host must wait,
 * or by chance, in an order that nothing but streams, events and the host's waiting constrains: a
 * wait that is missing gives a wrong result under some schedule, and a report in every checked
 * build.  cuDNN's fake is a library of its own (cudnn/), opened like the real one.
 *
 * What it does not show: speed, memory ordering, what nvcc makes of the code, a network.
 *
 * Tests that also run on a GPU use the CUDA API alone and never include this.  Their schedule comes
 * from the environment:
 *   CUDASIM_POLICY=fifo|lifo|random|pct   which of the ready streams goes on (default random)
 *   CUDASIM_SEED=N                        of every random choice (default 1)
 *   CUDASIM_ORDER=asc|desc|random         of a grid's blocks and a block's threads (default asc)
 *   CUDASIM_DEVICES=N                     that cudaGetDeviceCount finds (default 1)
 *   CUDASIM_MEM=BYTES                     of device memory (default 256 MiB)
 *   CUDASIM_FAIL_ALLOC=K                  the K-th allocation fails, counted from 0
 *   CUDASIM_TIMEOUT=SECONDS               that a collective waits for its peers (default 20)
 * A process with reports exits with status 99, whatever it returned. */
#pragma once

#include <cuda_runtime_api.h>
#include <glib.h>

typedef enum { CS_FIFO, CS_LIFO, CS_RANDOM, CS_PCT } CsPolicy;
typedef enum { CS_ASCENDING, CS_DESCENDING, CS_SHUFFLED } CsOrder;

typedef enum {
    CS_STREAM_RACE,   /* accesses of two ops that nothing orders */
    CS_KERNEL_RACE,   /* accesses of two threads of one kernel that nothing orders */
    CS_UNINITIALISED, /* read of memory that nobody wrote */
    CS_BOUNDS,        /* outside every allocation, freed memory, host memory in a kernel */
    CS_BARRIER,       /* not all threads reach a barrier or a warp collective */
    CS_DEADLOCK,      /* nothing can go on */
    CS_MISUSE,        /* of the API */
    CS_NCCL,          /* ranks that disagree, or wait for ever */
    CS_REPORT_KINDS
} CsReportKind;

/* Starts over with this schedule: waits for all work and forgets the reports. */
void cudasim_reset(CsPolicy policy, CsOrder order, guint64 seed);

/* For tests that plant a bug: reports are counted, but neither printed nor do they change the exit
 * status. */
void cudasim_expect_reports(void);

/* Reports of a kind, and of every kind. */
guint cudasim_reports(CsReportKind kind);
guint cudasim_all_reports(void);

/* How often the host has waited for work to be done: by synchronising, or copying at once. */
guint cudasim_host_waits(void);

/* An arena of the test's own hands out or takes back a piece: undefined from here on in stream
 * order, and whoever still uses the piece races with that. */
void cudasim_mark_undefined(void *p, gsize bytes, cudaStream_t stream);
