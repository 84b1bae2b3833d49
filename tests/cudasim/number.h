/* Elements of the types that libraries take, as floats and doubles. */
#pragma once

#include <glib.h>

typedef enum {
    CS_FP32,
    CS_FP64,
    CS_BF16,
    CS_FP16,
    CS_E4M3,
    CS_E5M2,
    CS_INT8,
    CS_UINT8,
    CS_INT32,
    CS_UINT32,
    CS_INT64,
    CS_UINT64
} CsNumber;

gsize cs_number_bytes(CsNumber type);
gboolean cs_number_is_float(CsNumber type);

/* Element @index of @array.  Rounds to nearest, ties to even; fp8 saturates. */
double cs_number_get(CsNumber type, const void *array, gsize index);
void cs_number_set(CsNumber type, void *array, gsize index, double value);
