/* What a framework holds in memory beside the program. */
#pragma once

#include "sim/cost/framework.h"
#include "sim/program/program.h"

/* Makes the tensors of a program as large as what the framework keeps in their place: what a block
 * leaves for its backward pass, whole logits.  Before program_place(); a program that has grown is
 * priced, never run or hashed. */
void framework_grow(const Framework *framework, Program *program);

/* Of that the logits alone, which may become smaller. */
void framework_grow_logits(const Framework *framework, Program *program);

/* Bytes of a unit's state that no tensor of the program stands for. */
double framework_unit_bytes(const Framework *framework, const Program *program, const UnitMap *map);

/* State and buffers that no tensor of the program stands for, of a placed one's memory. */
void framework_add_memory(const Framework *framework, const Program *program, MemoryUse *use);

/* And what is given back when memory runs out, as far as there is room within @limit_bytes: what
 * collectives have read that the device has not passed yet, what an allocator has in its cache
 * (PyTorch's CUDACachingAllocator.cpp, release_cached_blocks: it awaits the device, and frees). */
void framework_add_held(const Framework *framework, const Program *program, guint64 limit_bytes,
                        MemoryUse *use);
