/* What softmax is made of, as compilers vectorise it: the largest of a row, and an exponential that
 * does not give up NaN and infinity. */
#pragma once

#include "exec/device/cpu_block.h"

#include <math.h>

/* e^x within 2 ulp; NaN gives NaN, overflow infinity, underflow 0.
 *
 *     x = n ln 2 + r, |r| <= ln 2 / 2;  e^x = 2^n (1 + r + r^2 P(r))
 *
 * P: Moshier's Cephes, expf.c.  2^n is two factors, so that neither leaves the range of fp32.
 * n is read from the low bits of x log2(e) + 1.5 * 2^23, which also rounds it. */
static inline float cpu_exp(float x)
{
    const float shift = 12582912.0f;

    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;

    const float shifted = x * 1.44269504088896341f + shift;
    const float n = shifted - shift;
    const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;

    const gint32 exponent = (gint32)(float_bits(shifted) - float_bits(shift));
    const gint32 half = exponent >> 1;
    const float low = float_from_bits((guint32)(half + 127) << 23);
    const float high = float_from_bits((guint32)(exponent - half + 127) << 23);

    return p * low * high;
}

static inline float cpu_max(const float *values, guint64 n)
{
    float max = -INFINITY;

#pragma omp simd reduction(max : max)
    for (guint64 j = 0; j < n; j++)
        max = values[j] > max ? values[j] : max;
    return max;
}
