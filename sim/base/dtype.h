/* Element types: names, sizes. */
#pragma once

#include <glib.h>

typedef enum {
    DTYPE_FP32,
    DTYPE_BF16,
    DTYPE_FP64,
    DTYPE_INT32,
    DTYPE_FP16,
    DTYPE_FP8, /* e4m3 or e5m2: the same size, the same rate */
    DTYPE_UINT8,
    NUM_DTYPES
} DType;

/* Bytes of one element. */
guint dtype_bytes(DType dtype);

/* "fp32", "bf16", "fp64", "int32", "fp16", "fp8", "uint8". */
const char *dtype_name(DType dtype);

/* FALSE when @name is none of dtype_name()'s; then *dtype is untouched. */
gboolean dtype_from_name(const char *name, DType *dtype);
