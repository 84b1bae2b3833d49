/* Values of either type as blocks of fp32: kernels compute on blocks, whatever the storage. */
#pragma once

#include "sim/base/dtype.h"

#include <glib.h>
#include <string.h>

/* A block is small enough for several of them to stay in the first-level cache. */
enum { CPU_BLOCK = 1024 };

static inline guint64 cpu_num_blocks(guint64 elements)
{
    return (elements + CPU_BLOCK - 1) / CPU_BLOCK;
}

static inline guint32 float_bits(float value)
{
    guint32 bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_from_bits(guint32 bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_to_float(guint16 value)
{
    return float_from_bits((guint32)value << 16);
}

/* To nearest, ties to even; a NaN stays one (rounding its payload could make it infinite). */
static inline guint16 bf16_from_float(float value)
{
    const guint32 bits = float_bits(value);
    const guint32 rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const guint32 quiet = bits | 0x400000;

    return (guint16)(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* Up with the probability that makes the mean exact: @random is added below the last bit that
 * stays.  What is not finite stays so. */
static inline guint16 bf16_by_chance(float value, guint16 random)
{
    const guint32 bits = float_bits(value);

    if ((bits & 0x7f800000) == 0x7f800000)
        return bf16_from_float(value);
    return (guint16)((bits + random) >> 16);
}

/* @n values from element @offset of @data: where they lie if fp32, else widened into @buffer. */
static inline const float *block_read(DType dtype, const void *data, guint64 offset, guint64 n,
                                      float *buffer)
{
    if (dtype == DTYPE_FP32)
        return (const float *)data + offset;

    const guint16 *from = (const guint16 *)data + offset;
#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        buffer[i] = bf16_to_float(from[i]);
    return buffer;
}

/* Where to compute a result: at its place if fp32, else in @buffer, for block_write() to round. */
static inline float *block_target(DType dtype, void *data, guint64 offset, float *buffer)
{
    return dtype == DTYPE_FP32 ? (float *)data + offset : buffer;
}

static inline void block_write(DType dtype, void *data, guint64 offset, guint64 n,
                               const float *values)
{
    if (dtype == DTYPE_FP32) {
        if (values != (float *)data + offset)
            memcpy((float *)data + offset, values, n * sizeof(float));
        return;
    }
    guint16 *to = (guint16 *)data + offset;
#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        to[i] = bf16_from_float(values[i]);
}

/* sum = base + values, of @n values, taken in fp32; sum may be base. */
static inline void block_add(DType dtype, const void *base, const float *values, void *sum,
                             guint64 offset, guint64 n)
{
    float block[CPU_BLOCK];
    const float *from = block_read(dtype, base, offset, n, block);
    float *to = block_target(dtype, sum, offset, block);

#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        to[i] = from[i] + values[i];
    block_write(dtype, sum, offset, n, to);
}

/* data = values, or, when @add, data += values; the sum is taken in fp32. */
static inline void block_put(DType dtype, void *data, guint64 offset, guint64 n,
                             const float *values, gboolean add)
{
    float buffer[CPU_BLOCK];

    if (!add) {
        block_write(dtype, data, offset, n, values);
        return;
    }
    g_assert(n <= CPU_BLOCK);
    const float *old = block_read(dtype, data, offset, n, buffer);
    float *sum = block_target(dtype, data, offset, buffer);
#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        sum[i] = old[i] + values[i];
    block_write(dtype, data, offset, n, sum);
}
