#include "sim/base/dtype.h"

static const struct {
    const char *name;
    guint bytes;
} dtypes[NUM_DTYPES] = {
    [DTYPE_FP32] = {.name = "fp32", .bytes = 4},   [DTYPE_BF16] = {.name = "bf16", .bytes = 2},
    [DTYPE_FP64] = {.name = "fp64", .bytes = 8},   [DTYPE_INT32] = {.name = "int32", .bytes = 4},
    [DTYPE_FP16] = {.name = "fp16", .bytes = 2},   [DTYPE_FP8] = {.name = "fp8", .bytes = 1},
    [DTYPE_UINT8] = {.name = "uint8", .bytes = 1},
};

guint dtype_bytes(DType dtype)
{
    g_assert(dtype < NUM_DTYPES);
    return dtypes[dtype].bytes;
}

const char *dtype_name(DType dtype)
{
    g_assert(dtype < NUM_DTYPES);
    return dtypes[dtype].name;
}

gboolean dtype_from_name(const char *name, DType *dtype)
{
    for (guint i = 0; i < NUM_DTYPES; i++) {
        if (g_str_equal(name, dtypes[i].name)) {
            *dtype = (DType)i;
            return TRUE;
        }
    }
    return FALSE;
}
