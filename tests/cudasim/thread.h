/* One simulated CUDA thread and its block: what device.cuh (C++) and grid.c (C) share. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vector_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A line of a kernel's source, for reports. */
typedef struct {
    const char *file;
    int line;
} CsPlace;

typedef struct {
    uint3 position;
    unsigned index; /* in the block */
    unsigned lane;
    unsigned warp;
    int state;
    void *stack;    /* saved stack pointer while it waits */
    CsPlace place;  /* where it waits */
    int collective; /* what of its warp it waits in, of which lanes, with what */
    unsigned mask;
    void *data;
    uint16_t warp_epoch; /* warp collectives so far */
} CsThread;

typedef struct {
    uint3 position;
    dim3 threads;   /* of a block */
    dim3 blocks;    /* of the grid */
    uint32_t index; /* in the grid */
    uint16_t epoch; /* barriers so far */
} CsBlock;

extern CsThread *cs_thread; /* the one that runs; NULL outside kernels */
extern CsBlock cs_block;

/* ---- what kernels call ---- */

void cs_barrier(CsPlace place);
uint64_t cs_shuffle(unsigned mask, uint64_t value, int source_lane, CsPlace place);
unsigned cs_vote(unsigned mask, bool predicate, CsPlace place);
void cs_sync_warp(unsigned mask, CsPlace place);
void cs_mma(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], CsPlace place);
/* Of @tag's array, the same for all threads of the block. */
void *cs_static_shared(const void *tag, size_t bytes);
void *cs_dynamic_shared(void);
void cs_atomic_access(void *address, size_t bytes);

/* ---- launch ---- */

/* A kernel with its arguments: @call runs one thread of it. */
typedef struct {
    const char *name;
    const void *function;
    void (*call)(void *arguments);
    void *(*copy)(const void *arguments);
    void (*drop)(void *arguments);
    void *arguments;
    dim3 blocks;
    dim3 threads;
    size_t shared_bytes;
} CsLaunch;

/* Queues it; takes the arguments. */
void cs_launch(CsLaunch launch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
