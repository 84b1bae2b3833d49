#include "exec/base/random.h"

#include <math.h>

#define GAMMA G_GUINT64_CONSTANT(0x9E3779B97F4A7C15) /* 2^64 / golden ratio, odd */

/* The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; constants of Stafford's mix 13). */
static guint64 mix(guint64 x)
{
    x ^= x >> 30;
    x *= G_GUINT64_CONSTANT(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= G_GUINT64_CONSTANT(0x94D049BB133111EB);
    x ^= x >> 31;
    return x;
}

/* FNV-1a, 64 bits. */
static guint64 hash_name(const char *name)
{
    guint64 hash = G_GUINT64_CONSTANT(0xCBF29CE484222325);

    for (const char *c = name; *c != '\0'; c++) {
        hash ^= (guchar)*c;
        hash *= G_GUINT64_CONSTANT(0x100000001B3);
    }
    return hash;
}

/* Box and Muller, the cosine branch only, so that an element needs no neighbour.  u1 lies in (0, 1]
 * and u2 in [0, 1), both with 53 bits. */
static double normal(guint64 a, guint64 b)
{
    const double u1 = (double)((a >> 11) + 1) * 0x1p-53;
    const double u2 = (double)(b >> 11) * 0x1p-53;

    return sqrt(-2.0 * log(u1)) * cos(2.0 * G_PI * u2);
}

guint64 random_numbers(guint64 seed, const char *name)
{
    return mix(seed + GAMMA) ^ hash_name(name);
}

/* exec/cuda/step.cu draws the same. */
void random_bits_fill(guint16 *out, guint64 step, guint64 number, guint64 n)
{
    const guint64 of_step = mix(step * GAMMA);

    for (guint64 i = 0; i < n; i++)
        out[i] = (guint16)(mix(of_step + (number + i) * GAMMA) >> 48);
}

void random_normal_fill(float *out, guint64 seed, const char *name, guint64 first_element,
                        guint64 n, double std)
{
    enum { WORTH_A_TEAM = 1 << 13 };
    const guint64 stream = random_numbers(seed, name);

#pragma omp parallel for schedule(static) if (n >= WORTH_A_TEAM)
    for (guint64 i = 0; i < n; i++) {
        const guint64 counter = 2 * (first_element + i);
        const guint64 a = mix(stream + counter * GAMMA);
        const guint64 b = mix(stream + (counter + 1) * GAMMA);

        out[i] = (float)(std * normal(a, b));
    }
}

guint64 random_sample_start(guint64 seed, guint64 step, guint64 sample, guint64 length)
{
    g_assert(length > 0);

    return mix(mix(mix(seed + GAMMA) + step * GAMMA) + sample * GAMMA) % length;
}
