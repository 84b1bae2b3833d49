/* Counts what any thread of this process allocates: through the sanitizer's hooks where there is
 * one, else in front of the C library's functions.  For one file of a program. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

static atomic_bool allocations_counted;
static atomic_uint allocations;

static void allocations_note(void)
{
    if (atomic_load(&allocations_counted))
        atomic_fetch_add(&allocations, 1);
}

#ifdef __SANITIZE_ADDRESS__

/* <sanitizer/allocator_interface.h>, which not every compiler brings. */
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
                                              void (*free_hook)(const volatile void *));

static void allocations_hook(const volatile void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    allocations_note();
}

static void allocations_free_hook(const volatile void *memory)
{
    (void)memory;
}

static void allocations_install(void)
{
    __sanitizer_install_malloc_and_free_hooks(allocations_hook, allocations_free_hook);
}

#else

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t num, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    allocations_note();
    return __libc_malloc(bytes);
}

void *calloc(size_t num, size_t bytes)
{
    allocations_note();
    return __libc_calloc(num, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    allocations_note();
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    allocations_note();
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    *memory = memalign(alignment, bytes);
    return *memory == NULL ? ENOMEM : 0;
}

static void allocations_install(void)
{
}

#endif

static void allocations_begin(void)
{
    atomic_store(&allocations, 0);
    atomic_store(&allocations_counted, 1);
}

static unsigned allocations_end(void)
{
    atomic_store(&allocations_counted, 0);
    return atomic_load(&allocations);
}
