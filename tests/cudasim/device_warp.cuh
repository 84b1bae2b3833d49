/* Barriers, warp collectives, atomics and cache hints of the simulated device: part of device.cuh.
 */
#pragma once

#define __syncthreads()                  cs_barrier({__FILE__, __LINE__})
#define cs_mma_m16n8k16_bf16(d, a, b, c) cs_mma(d, a, b, c, {__FILE__, __LINE__})

template <class T> CS_FUNCTION T cs_shuffle_value(unsigned mask, T value, int source, CsPlace place)
{
    static_assert(sizeof(T) <= 8, "shuffle of more than 8 bytes");
    uint64_t bits = 0;

    memcpy(&bits, &value, sizeof value);
    bits = cs_shuffle(mask, bits, source, place);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T>
CS_FUNCTION T __shfl_sync(unsigned mask, T value, int source, int width = 32, CS_PLACE)
{
    int lane = static_cast<int>(cs_thread->lane);

    return cs_shuffle_value(mask, value, (lane & ~(width - 1)) | (source & (width - 1)),
                            {file, line});
}
template <class T>
CS_FUNCTION T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CS_PLACE)
{
    int lane = static_cast<int>(cs_thread->lane), source = lane ^ bits;
    bool later_group = (source & ~(width - 1)) > (lane & ~(width - 1));

    return cs_shuffle_value(mask, value, later_group ? lane : source, {file, line});
}
template <class T>
CS_FUNCTION T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CS_PLACE)
{
    int lane = static_cast<int>(cs_thread->lane), by = static_cast<int>(delta);

    return cs_shuffle_value(mask, value, (lane & (width - 1)) + by >= width ? lane : lane + by,
                            {file, line});
}
template <class T>
CS_FUNCTION T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CS_PLACE)
{
    int lane = static_cast<int>(cs_thread->lane), by = static_cast<int>(delta);

    return cs_shuffle_value(mask, value, (lane & (width - 1)) < by ? lane : lane - by,
                            {file, line});
}

CS_FUNCTION unsigned __ballot_sync(unsigned mask, int predicate, CS_PLACE)
{
    return cs_vote(mask, predicate != 0, {file, line});
}
CS_FUNCTION int __any_sync(unsigned mask, int predicate, CS_PLACE)
{
    return cs_vote(mask, predicate != 0, {file, line}) != 0;
}
CS_FUNCTION int __all_sync(unsigned mask, int predicate, CS_PLACE)
{
    return cs_vote(mask, predicate == 0, {file, line}) == 0;
}
CS_FUNCTION void __syncwarp(unsigned mask = ~0u, CS_PLACE)
{
    cs_sync_warp(mask, {file, line});
}

/* Simulated threads take turns, so a plain update is atomic. */
#define CS_ATOMIC(name, expression)                                                                \
    template <class T, class U> CS_FUNCTION T name(T *address, U operand)                          \
    {                                                                                              \
        cs_atomic_access(address, sizeof *address);                                                \
        T old = *address, value = static_cast<T>(operand);                                         \
        *address = (expression);                                                                   \
        (void)value;                                                                               \
        return old;                                                                                \
    }
CS_ATOMIC(atomicAdd, old + value)
CS_ATOMIC(atomicSub, old - value)
CS_ATOMIC(atomicMax, old > value ? old : value)
CS_ATOMIC(atomicMin, old < value ? old : value)
CS_ATOMIC(atomicExch, value)
CS_ATOMIC(atomicOr, (old | value))
CS_ATOMIC(atomicAnd, (old & value))
CS_ATOMIC(atomicInc, (old >= value ? 0 : old + 1))

template <class T> CS_FUNCTION T atomicCAS(T *address, T expected, T value)
{
    cs_atomic_access(address, sizeof *address);
    T old = *address;
    if (old == expected)
        *address = value;
    return old;
}

static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T value)
{
    *p = value;
}
template <class T> static inline void __stcg(T *p, T value)
{
    *p = value;
}
