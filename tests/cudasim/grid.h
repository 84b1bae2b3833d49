/* Runs the blocks of a grid, one after another, with the threads of a block as fibers. */
#pragma once

#include "tests/cudasim/thread.h"

#define CS_MAX_THREADS 1024 /* of a block */

enum { CS_NEW, CS_RUNNING, CS_READY, CS_AT_BARRIER, CS_AT_COLLECTIVE, CS_RETURNED };

/* Runs every thread of the launch to its end, or to a deadlock, which it reports. */
void cs_grid_run(const CsLaunch *launch);

/* Whether the calling thread of the process runs a simulated thread: another of its threads may. */
bool cs_grid_is_here(void);

/* Name of the kernel that runs, or NULL. */
const char *cs_grid_kernel(void);

/* Whether an address belongs to what a kernel may touch unseen: stacks and arguments. */
bool cs_grid_owns(uintptr_t address);

/* For warp.c: leaves the thread that waits, and lets another go on. */
void cs_grid_yield(void);
void cs_grid_make_ready(CsThread *thread);

/* ---- warps (warp.c) ---- */

/* Before a block: nobody waits, nobody has returned.  Threads are @threads[0 .. count - 1]. */
void cs_warps_reset(CsThread *threads, unsigned count);
void cs_warp_thread_returned(const CsThread *thread);
const char *cs_collective_name(int collective);

/* ---- shared memory (shared.c) ---- */

/* Poisons all of it for a new block, of which @dynamic_bytes are the launch's. */
void cs_shared_new_block(size_t dynamic_bytes);
