/* Arrays in device memory with what they were filled with in fp64, to compare kernels with plain
 * loops.  Uses the CUDA API alone, so that the same tests run on a GPU. */
#pragma once

#include "exec/cuda/cuda_kernels.h"
#include "exec/device/cpu_block.h"
#include "tests/noise.h"
#include "tests/suite.h"

#include <cuda_runtime_api.h>
#include <math.h>

typedef struct {
    DType type;
    guint64 count;
    void *start, *p; /* allocation, and the first element: one later where unaligned */
    double *was;     /* values that it was filled with */
} Array;

typedef struct {
    cudaStream_t stream;
    GPtrArray *arrays, *values; /* freed with the case */
    gboolean unaligned;         /* arrays from here on start behind a multiple of 16 bytes */
    guint64 state;              /* of the noise */
} CudaCase;

static inline void array_free(gpointer data)
{
    Array *array = data;

    ck_assert(cudaFree(array->start) == cudaSuccess);
    g_free(array->was);
    g_free(array);
}

static inline CudaCase cuda_case(void)
{
    CudaCase c = {.arrays = g_ptr_array_new_with_free_func(array_free),
                  .values = g_ptr_array_new_with_free_func(g_free),
                  .state = 1};

    ck_assert(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking) == cudaSuccess);
    return c;
}

static inline void case_sync(void)
{
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
}

static inline void cuda_case_clear(CudaCase *c)
{
    case_sync();
    g_ptr_array_unref(c->arrays);
    g_ptr_array_unref(c->values);
    ck_assert(cudaStreamDestroy(c->stream) == cudaSuccess);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(CudaCase, cuda_case_clear)

/* What @value becomes in storage of that type. */
static inline double stored(DType type, double value)
{
    switch (type) {
    case DTYPE_BF16:
        return (double)bf16_to_float(bf16_from_float((float)value));
    case DTYPE_FP32:
        return (double)(float)value;
    default:
        return value;
    }
}

static inline void host_set(void *data, DType type, guint64 i, double value)
{
    switch (type) {
    case DTYPE_BF16:
        ((guint16 *)data)[i] = bf16_from_float((float)value);
        break;
    case DTYPE_FP32:
        ((float *)data)[i] = (float)value;
        break;
    case DTYPE_FP64:
        ((double *)data)[i] = value;
        break;
    default:
        ((gint32 *)data)[i] = (gint32)value;
    }
}

static inline double host_get(const void *data, DType type, guint64 i)
{
    switch (type) {
    case DTYPE_BF16:
        return (double)bf16_to_float(((const guint16 *)data)[i]);
    case DTYPE_FP32:
        return (double)((const float *)data)[i];
    case DTYPE_FP64:
        return ((const double *)data)[i];
    default:
        return ((const gint32 *)data)[i];
    }
}

/* Copies array->was, which may have been changed, to the device. */
static inline void array_fill(Array *array)
{
    const guint64 bytes = array->count * dtype_bytes(array->type);
    g_autofree void *host = g_malloc(bytes);

    for (guint64 i = 0; i < array->count; i++) {
        host_set(host, array->type, i, array->was[i]);
        array->was[i] = host_get(host, array->type, i);
    }
    case_sync();
    ck_assert(cudaMemcpy(array->p, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    case_sync();
}

static inline Array *case_array(CudaCase *c, DType type, guint64 count)
{
    const guint64 shift = c->unaligned ? dtype_bytes(type) : 0;
    Array *array = g_new0(Array, 1);

    array->type = type;
    array->count = count;
    array->was = g_new0(double, count);
    ck_assert(cudaMalloc(&array->start, count * dtype_bytes(type) + shift) == cudaSuccess);
    array->p = (char *)array->start + shift;
    g_ptr_array_add(c->arrays, array);
    return array;
}

/* Filled with noise; integers with 0. */
static inline Array *case_noise(CudaCase *c, DType type, guint64 count)
{
    Array *array = case_array(c, type, count);

    for (guint64 i = 0; i < count && type != DTYPE_INT32; i++)
        array->was[i] = noise(&c->state);
    array_fill(array);
    return array;
}

/* To be written: NaN. */
static inline Array *case_output(CudaCase *c, DType type, guint64 count)
{
    Array *array = case_array(c, type, count);

    for (guint64 i = 0; i < count; i++)
        array->was[i] = (double)NAN;
    array_fill(array);
    return array;
}

static inline Array *case_scalar(CudaCase *c, double value)
{
    Array *array = case_array(c, DTYPE_FP64, 1);

    array->was[0] = value;
    array_fill(array);
    return array;
}

static inline void *case_scratch(CudaCase *c, guint64 bytes)
{
    const gboolean unaligned = c->unaligned;

    c->unaligned = FALSE;
    Array *array = case_array(c, DTYPE_INT32, bytes / 4 + 1);
    c->unaligned = unaligned;
    return array->p;
}

/* @count fp64 values that live as long as the case. */
static inline double *case_values(CudaCase *c, guint64 count)
{
    double *values = g_new0(double, count + 1);

    g_ptr_array_add(c->values, values);
    return values;
}

/* What the array holds now. */
static inline double *array_now(CudaCase *c, const Array *array)
{
    const guint64 bytes = array->count * dtype_bytes(array->type);
    g_autofree void *host = g_malloc(bytes);
    double *values = case_values(c, array->count);

    case_sync();
    ck_assert(cudaMemcpy(host, array->p, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (guint64 i = 0; i < array->count; i++)
        values[i] = host_get(host, array->type, i);
    return values;
}

/* What one rounding to bf16 can do to an NMSE: half a unit in the last place of 8 bits, squared. */
#define BF16_ROUNDED 0x1p-16

/* Mean squared error over the mean square of what is wanted. */
static inline double nmse(const double *got, const double *want, guint64 count)
{
    double error = 0, square = 0;

    for (guint64 i = 0; i < count; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        square += want[i] * want[i];
    }
    return error == 0 ? 0 : error / square;
}

static inline void array_check_(CudaCase *c, const Array *array, const double *want,
                                const double bounds[2], const char *what)
{
    const double error = nmse(array_now(c, array), want, array->count);
    const double bound = bounds[array->type == DTYPE_BF16];

    if (!(error <= bound))
        ck_abort_msg("%s: NMSE %g, allowed %g (%s, %" G_GUINT64_FORMAT " elements)", what, error,
                     bound, dtype_name(array->type), array->count);
}

/* Fails when the NMSE is over @fp32 or @bf16, by the array's type. */
#define array_check(c, array, want, fp32, bf16)                                                    \
    array_check_(c, array, want, (const double[2]){fp32, bf16}, G_STRLOC)

/* Loop tests take the type from the lowest bit of their index, alignment from the next. */
static inline DType loop_dtype(int i)
{
    return i % 2 == 0 ? DTYPE_FP32 : DTYPE_BF16;
}
