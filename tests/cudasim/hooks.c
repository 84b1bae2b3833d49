/* Our own runtime for -fsanitize=thread, as the kernel of Linux has for KCSAN: the compiler puts a
 * call before each load and store, and nothing of libtsan is linked. */
#include "tests/cudasim/hooks.h"

#include "tests/cudasim/thread.h"

#ifndef CUDASIM_CHECK
void cs_atomic_access(void *address, size_t bytes)
{
    (void)address, (void)bytes;
}
#else
#define HERE __builtin_return_address(0)

void cs_atomic_access(void *address, size_t bytes)
{
    cs_hook(address, bytes, CS_HOOK_ATOMIC, HERE);
}

#define HOOKS(prefix, bytes)                                                                       \
    void __tsan_##prefix##read##bytes(void *address);                                              \
    void __tsan_##prefix##write##bytes(void *address);                                             \
    void __tsan_##prefix##read##bytes(void *address)                                               \
    {                                                                                              \
        cs_hook(address, bytes, CS_HOOK_READ, HERE);                                               \
    }                                                                                              \
    void __tsan_##prefix##write##bytes(void *address)                                              \
    {                                                                                              \
        cs_hook(address, bytes, CS_HOOK_WRITE, HERE);                                              \
    }
#define HOOKS_OF_SIZES(prefix)                                                                     \
    HOOKS(prefix, 1) HOOKS(prefix, 2) HOOKS(prefix, 4) HOOKS(prefix, 8) HOOKS(prefix, 16)

HOOKS_OF_SIZES()
HOOKS_OF_SIZES(unaligned_)
HOOKS_OF_SIZES(volatile_)

void __tsan_read_range(void *address, gsize bytes);
void __tsan_write_range(void *address, gsize bytes);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_init(void);

void __tsan_read_range(void *address, gsize bytes)
{
    cs_hook(address, bytes, CS_HOOK_READ, HERE);
}

void __tsan_write_range(void *address, gsize bytes)
{
    cs_hook(address, bytes, CS_HOOK_WRITE, HERE);
}

void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void)
{
}

void __tsan_init(void)
{
}

/* Atomics of host code are what they are elsewhere, and not looked at. */
#define ATOMICS(bits)                                                                              \
    guint##bits __tsan_atomic##bits##_load(const volatile guint##bits *a, int order);              \
    void __tsan_atomic##bits##_store(volatile guint##bits *a, guint##bits v, int order);           \
    guint##bits __tsan_atomic##bits##_exchange(volatile guint##bits *a, guint##bits v, int order); \
    guint##bits __tsan_atomic##bits##_fetch_add(volatile guint##bits *a, guint##bits v,            \
                                                int order);                                        \
    guint##bits __tsan_atomic##bits##_fetch_sub(volatile guint##bits *a, guint##bits v,            \
                                                int order);                                        \
    int __tsan_atomic##bits##_compare_exchange_strong(                                             \
        volatile guint##bits *a, guint##bits *expected, guint##bits v, int success, int failure);  \
    guint##bits __tsan_atomic##bits##_load(const volatile guint##bits *a, int order)               \
    {                                                                                              \
        (void)order;                                                                               \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile guint##bits *a, guint##bits v, int order)            \
    {                                                                                              \
        (void)order;                                                                               \
        __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    guint##bits __tsan_atomic##bits##_exchange(volatile guint##bits *a, guint##bits v, int order)  \
    {                                                                                              \
        (void)order;                                                                               \
        return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    guint##bits __tsan_atomic##bits##_fetch_add(volatile guint##bits *a, guint##bits v, int order) \
    {                                                                                              \
        (void)order;                                                                               \
        return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    guint##bits __tsan_atomic##bits##_fetch_sub(volatile guint##bits *a, guint##bits v, int order) \
    {                                                                                              \
        (void)order;                                                                               \
        return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST);                                         \
    }                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(                                             \
        volatile guint##bits *a, guint##bits *expected, guint##bits v, int success, int failure)   \
    {                                                                                              \
        (void)success, (void)failure;                                                              \
        return __atomic_compare_exchange_n(a, expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }

ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)
#endif
