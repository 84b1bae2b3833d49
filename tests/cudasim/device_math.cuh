/* Mathematics that CUDA has and libm has not: part of device.cuh. */
#pragma once

/* Macros, as glibc declares functions of these names. */
#define __expf(x)          expf(x)
#define __logf(x)          logf(x)
#define __log2f(x)         log2f(x)
#define __powf(x, y)       powf(x, y)
#define __sinf(x)          sinf(x)
#define __cosf(x)          cosf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
#define __frcp_rn(x)       (1.0f / (x))
#define __fsqrt_rn(x)      sqrtf(x)
#define __fmaf_rn(x, y, z) fmaf(x, y, z)

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; /* 0 of NaN */
}

template <class To, class From> CS_FUNCTION To cs_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return cs_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return cs_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return cs_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return cs_bits<float>(x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x != 0 ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

#define CS_MIN_MAX(T, A, B)                                                                        \
    static inline T min(A a, B b)                                                                  \
    {                                                                                              \
        return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);      \
    }                                                                                              \
    static inline T max(A a, B b)                                                                  \
    {                                                                                              \
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);      \
    }
CS_MIN_MAX(int, int, int)
CS_MIN_MAX(unsigned, unsigned, unsigned)
CS_MIN_MAX(unsigned, int, unsigned)
CS_MIN_MAX(unsigned, unsigned, int)
CS_MIN_MAX(long, long, long)
CS_MIN_MAX(unsigned long, unsigned long, unsigned long)
CS_MIN_MAX(long long, long long, long long)
CS_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)

static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
