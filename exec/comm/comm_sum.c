#include "exec/comm/comm_sum.h"

#include <math.h>
#include <string.h>

/* Partial sums of one block stay in the first-level cache.  The count is a constant for all blocks
 * but the last, so that compilers vectorise the loops. */
enum { BLOCK = 2048 };

static inline float bf16_load(guint16 value)
{
    guint32 bits = (guint32)value << 16;
    float wide;

    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* To the nearest, ties to even; a NaN stays one. */
static inline guint16 bf16_round(float value)
{
    guint32 bits;

    memcpy(&bits, &value, sizeof bits);
    guint32 rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    guint32 quiet = (bits >> 16) | 0x40U;

    return (guint16)((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

G_ALWAYS_INLINE static inline void add_fp32(float *restrict sum, const float *restrict from,
                                            gboolean first, gsize count)
{
    if (first)
        memcpy(sum, from, count * sizeof *sum);
    else
        for (gsize i = 0; i < count; i++)
            sum[i] += from[i];
}

G_ALWAYS_INLINE static inline void add_bf16(float *restrict sum, const guint16 *restrict from,
                                            gboolean first, gsize count)
{
    if (first)
        for (gsize i = 0; i < count; i++)
            sum[i] = bf16_load(from[i]);
    else
        for (gsize i = 0; i < count; i++)
            sum[i] += bf16_load(from[i]);
}

G_ALWAYS_INLINE static inline void store_bf16(guint16 *restrict to, const float *restrict sum,
                                              gsize count)
{
    for (gsize i = 0; i < count; i++)
        to[i] = bf16_round(sum[i]);
}

G_ALWAYS_INLINE static inline void add_fp64(double *restrict sum, const double *restrict from,
                                            gboolean first, gsize count)
{
    if (first)
        memcpy(sum, from, count * sizeof *sum);
    else
        for (gsize i = 0; i < count; i++)
            sum[i] += from[i];
}

static void sum_fp32(float *to, const char *const *from, guint num, gsize elements)
{
    float sum[BLOCK];

    for (gsize at = 0; at < elements; at += BLOCK) {
        gsize count = MIN(elements - at, BLOCK);

        for (guint i = 0; i < num; i++) {
            const float *values = (const float *)(const void *)from[i] + at;

            if (count == BLOCK)
                add_fp32(sum, values, i == 0, BLOCK);
            else
                add_fp32(sum, values, i == 0, count);
        }
        memcpy(to + at, sum, count * sizeof *sum);
    }
}

static void sum_bf16(guint16 *to, const char *const *from, guint num, gsize elements)
{
    float sum[BLOCK];

    for (gsize at = 0; at < elements; at += BLOCK) {
        gsize count = MIN(elements - at, BLOCK);

        for (guint i = 0; i < num; i++) {
            const guint16 *values = (const guint16 *)(const void *)from[i] + at;

            if (count == BLOCK)
                add_bf16(sum, values, i == 0, BLOCK);
            else
                add_bf16(sum, values, i == 0, count);
        }
        if (count == BLOCK)
            store_bf16(to + at, sum, BLOCK);
        else
            store_bf16(to + at, sum, count);
    }
}

static void sum_fp64(double *to, const char *const *from, guint num, gsize elements)
{
    double sum[BLOCK];

    for (gsize at = 0; at < elements; at += BLOCK) {
        gsize count = MIN(elements - at, BLOCK);

        for (guint i = 0; i < num; i++) {
            const double *values = (const double *)(const void *)from[i] + at;

            if (count == BLOCK)
                add_fp64(sum, values, i == 0, BLOCK);
            else
                add_fp64(sum, values, i == 0, count);
        }
        memcpy(to + at, sum, count * sizeof *sum);
    }
}

void comm_sum(void *to, const char *const *from, guint num, gsize elements, DType dtype)
{
    switch (dtype) {
    case DTYPE_FP32:
        sum_fp32(to, from, num, elements);
        break;
    case DTYPE_BF16:
        sum_bf16(to, from, num, elements);
        break;
    case DTYPE_FP64:
        sum_fp64(to, from, num, elements);
        break;
    case DTYPE_INT32:
    case DTYPE_FP16:
    case DTYPE_FP8:
    case DTYPE_UINT8:
    case NUM_DTYPES:
        g_assert_not_reached();
    }
}

static void max_fp32(float *to, const char *const *from, guint num, gsize elements)
{
    for (gsize i = 0; i < elements; i++) {
        float most = 0;

        for (guint r = 0; r < num; r++)
            most = fmaxf(most, ((const float *)(const void *)from[r])[i]);
        to[i] = most;
    }
}

void comm_reduce(void *to, const char *const *from, guint num, gsize elements, DType dtype,
                 Reduction reduction)
{
    if (reduction == REDUCE_SUM) {
        comm_sum(to, from, num, elements, dtype);
        return;
    }
    g_assert(dtype == DTYPE_FP32);
    max_fp32(to, from, num, elements);
}
