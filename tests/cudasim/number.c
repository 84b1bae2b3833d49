#include "tests/cudasim/number.h"

#include <math.h>

/* Floating point types below fp32: bits of exponent and mantissa, and whether the largest exponent
 * is that of infinity and NaN (IEEE), or of numbers but for one NaN (E4M3). */
typedef struct {
    int exponent;
    int mantissa;
    gboolean ieee;
    gboolean saturates;
} Format;

static const Format formats[] = {
    [CS_BF16] = {8, 7, TRUE, FALSE},
    [CS_FP16] = {5, 10, TRUE, FALSE},
    [CS_E4M3] = {4, 3, FALSE, TRUE},
    [CS_E5M2] = {5, 2, TRUE, TRUE},
};

gsize cs_number_bytes(CsNumber type)
{
    static const guint8 bytes[] = {
        [CS_FP32] = 4,  [CS_FP64] = 8,   [CS_BF16] = 2,  [CS_FP16] = 2,
        [CS_E4M3] = 1,  [CS_E5M2] = 1,   [CS_INT8] = 1,  [CS_UINT8] = 1,
        [CS_INT32] = 4, [CS_UINT32] = 4, [CS_INT64] = 8, [CS_UINT64] = 8};

    return bytes[type];
}

gboolean cs_number_is_float(CsNumber type)
{
    return type <= CS_E5M2;
}

static double decode(const Format *format, guint bits)
{
    guint mantissa_mask = (1u << format->mantissa) - 1,
          exponent_mask = (1u << format->exponent) - 1;
    int exponent = (int)(bits >> format->mantissa & exponent_mask);
    guint mantissa = bits & mantissa_mask;
    int bias = (1 << (format->exponent - 1)) - 1;
    double sign = (bits >> (format->exponent + format->mantissa) & 1) != 0 ? -1.0 : 1.0;

    if (exponent == (int)exponent_mask && format->ieee)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == (int)exponent_mask && mantissa == mantissa_mask)
        return (double)NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - format->mantissa);
    return sign * ldexp(mantissa + (1u << format->mantissa), exponent - bias - format->mantissa);
}

static guint encode(const Format *format, double value)
{
    guint sign = signbit(value) ? 1u << (format->exponent + format->mantissa) : 0;
    guint top = ((1u << format->exponent) - 1) << format->mantissa;
    guint not_a_number =
        format->ieee ? top | 1u << (format->mantissa - 1) : top | ((1u << format->mantissa) - 1);
    guint beyond = format->saturates ? (format->ieee ? top - 1 : not_a_number - 1) : top;
    int bias = (1 << (format->exponent - 1)) - 1, exponent;

    if (value == 0.0)
        return sign;
    if (isnan(value))
        return sign | not_a_number;
    if (isinf(value))
        return sign | beyond;
    frexp(value, &exponent);
    exponent = MAX(exponent - 1, 1 - bias); /* value = 1.m * 2^exponent, or 0.m */
    double units = nearbyint(ldexp(fabs(value), format->mantissa - exponent));
    /* Rounding up may carry into the exponent, which is just what the sum does. */
    double bits = units + ldexp(exponent + bias - 1, format->mantissa);
    return sign | (bits > (double)beyond ? beyond : (guint)bits);
}

double cs_number_get(CsNumber type, const void *array, gsize index)
{
    switch (type) {
    case CS_FP32:
        return (double)((const float *)array)[index];
    case CS_FP64:
        return ((const double *)array)[index];
    case CS_BF16:
    case CS_FP16:
        return decode(&formats[type], ((const guint16 *)array)[index]);
    case CS_E4M3:
    case CS_E5M2:
        return decode(&formats[type], ((const guint8 *)array)[index]);
    case CS_INT8:
        return ((const gint8 *)array)[index];
    case CS_UINT8:
        return ((const guint8 *)array)[index];
    case CS_INT32:
        return ((const gint32 *)array)[index];
    case CS_UINT32:
        return ((const guint32 *)array)[index];
    case CS_INT64:
        return (double)((const gint64 *)array)[index];
    case CS_UINT64:
        return (double)((const guint64 *)array)[index];
    }
    g_assert_not_reached();
}

void cs_number_set(CsNumber type, void *array, gsize index, double value)
{
    switch (type) {
    case CS_FP32:
        ((float *)array)[index] = (float)value;
        return;
    case CS_FP64:
        ((double *)array)[index] = value;
        return;
    case CS_BF16:
    case CS_FP16:
        ((guint16 *)array)[index] = (guint16)encode(&formats[type], value);
        return;
    case CS_E4M3:
    case CS_E5M2:
        ((guint8 *)array)[index] = (guint8)encode(&formats[type], value);
        return;
    case CS_INT8:
        ((gint8 *)array)[index] = (gint8)value;
        return;
    case CS_UINT8:
        ((guint8 *)array)[index] = (guint8)value;
        return;
    case CS_INT32:
        ((gint32 *)array)[index] = (gint32)value;
        return;
    case CS_UINT32:
        ((guint32 *)array)[index] = (guint32)value;
        return;
    case CS_INT64:
        ((gint64 *)array)[index] = (gint64)value;
        return;
    case CS_UINT64:
        ((guint64 *)array)[index] = (guint64)value;
        return;
    }
    g_assert_not_reached();
}
