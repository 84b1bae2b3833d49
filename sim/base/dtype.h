/* Element types: names, sizes. */
#pragma once

#include <glib.h>

typedef enum { DTYPE_FP32, DTYPE_BF16, DTYPE_FP64, DTYPE_INT32, NUM_DTYPES } DType;

/* Bytes of one element. */
guint dtype_bytes(DType dtype);

/* "fp32", "bf16", "fp64", "int32". */
const char *dtype_name(DType dtype);

/* FALSE when @name is none of dtype_name()'s; then *dtype is untouched. */
gboolean dtype_from_name(const char *name, DType *dtype);
