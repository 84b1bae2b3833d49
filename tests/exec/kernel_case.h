/* One op with its operands in memory: filled, run on the CPU device, read back as fp64.  Operands
 * are allocated to the byte, so that a sanitizer sees every access outside of them. */
#pragma once

#include "exec/device/cpu_block.h"
#include "exec/device/device.h"
#include "tests/noise.h"
#include "tests/suite.h"

#include <math.h>

typedef struct {
    Op op;
    const UnitMap *map;
    guint map_rank, unit;
    const RoundingNumbers *rounding;
    UnitPart part[MAX_OPERANDS];
    void *data[MAX_OPERANDS];
    DType type[MAX_OPERANDS];
    guint64 count[MAX_OPERANDS];
    guint64 state; /* of the noise */
} KernelCase;

static inline KernelCase kernel_case(OpKind kind, DType dtype, OpSizes sizes)
{
    KernelCase c = {.op = {.kind = kind,
                           .dtype = dtype,
                           .dtype_out = dtype,
                           .sizes = sizes,
                           .unit = NO_UNIT,
                           .predicate = NO_TENSOR},
                    .state = 1};

    return c;
}

static inline void kernel_case_clear(KernelCase *c)
{
    for (guint i = 0; i < MAX_OPERANDS; i++)
        g_free(c->data[i]);
}

static inline double case_get(const KernelCase *c, guint operand, guint64 i)
{
    const void *data = c->data[operand];

    switch (c->type[operand]) {
    case DTYPE_FP32:
        return (double)((const float *)data)[i];
    case DTYPE_BF16:
        return (double)bf16_to_float(((const guint16 *)data)[i]);
    case DTYPE_FP64:
        return ((const double *)data)[i];
    case DTYPE_FP8:
        return (double)((const guint8 *)data)[i];
    default:
        return ((const gint32 *)data)[i];
    }
}

static inline void case_set(const KernelCase *c, guint operand, guint64 i, double value)
{
    void *data = c->data[operand];

    switch (c->type[operand]) {
    case DTYPE_FP32:
        ((float *)data)[i] = (float)value;
        break;
    case DTYPE_BF16:
        ((guint16 *)data)[i] = bf16_from_float((float)value);
        break;
    case DTYPE_FP64:
        ((double *)data)[i] = value;
        break;
    case DTYPE_FP8: /* its code */
        ((guint8 *)data)[i] = (guint8)value;
        break;
    default:
        ((gint32 *)data)[i] = (gint32)value;
    }
}

static inline void case_fill(const KernelCase *c, guint operand, double value)
{
    for (guint64 i = 0; i < c->count[operand]; i++)
        case_set(c, operand, i, value);
}

/* Adds an operand: noise where it is read or updated, NaN where it is only written (an integer type
 * has none: it stays 0).  Returns its number. */
static inline guint case_add(KernelCase *c, Access access, DType type, guint64 count)
{
    const guint operand = c->op.num_operands++;

    c->op.operands[operand] = (Operand){operand, access, 0, WHOLE_TENSOR};
    c->type[operand] = type;
    c->count[operand] = count;
    c->data[operand] = g_malloc0(count * dtype_bytes(type));
    if (type == DTYPE_INT32 || type == DTYPE_FP8)
        return operand;
    for (guint64 i = 0; i < count; i++)
        case_set(c, operand, i, access == ACCESS_WRITE ? (double)NAN : noise(&c->state));
    return operand;
}

/* The scratch operand; every run gives it exactly the bytes that it may use. */
static inline void case_add_scratch(KernelCase *c)
{
    const guint operand = c->op.num_operands++;

    c->op.operands[operand] = (Operand){operand, ACCESS_WRITE, 0, WHOLE_TENSOR};
}

static inline void case_run_first(const KernelCase *c, guint threads, gboolean first)
{
    g_autoptr(Device) device = device_open(DEVICE_CPU, threads, NULL);
    const guint64 bytes = op_workspace_bytes(&c->op, DEVICE_CPU, threads);
    g_autofree void *scratch = g_malloc(bytes);
    Launch launch = {.op = &c->op,
                     .map = c->map,
                     .map_rank = c->map_rank,
                     .unit = c->unit,
                     .rounding = c->rounding,
                     .first = first};

    ck_assert_ptr_nonnull(device);
    if (bytes > 0)
        memset(scratch, 0xff, bytes);
    for (guint i = 0; i < c->op.num_operands; i++) {
        launch.operand[i] = c->data[i] != NULL ? c->data[i] : scratch;
        launch.part[i] = c->part[i];
    }
    device_run(device, &launch);
    ck_assert(device_sync(device, NULL));
}

static inline void case_run(const KernelCase *c, guint threads)
{
    case_run_first(c, threads, TRUE);
}

/* All values of an operand; free with g_free(). */
static inline double *case_values(const KernelCase *c, guint operand)
{
    double *values = g_new(double, c->count[operand]);

    for (guint64 i = 0; i < c->count[operand]; i++)
        values[i] = case_get(c, operand, i);
    return values;
}

/* |got - want| <= absolute + @roundings of the operand's type: half a unit in the last place each,
 * at most 2^-8 |want| in bf16 and 2^-24 |want| in fp32. */
static inline void case_check(const KernelCase *c, guint operand, const double *want,
                              double absolute, double roundings)
{
    const double epsilon = (c->type[operand] == DTYPE_BF16 ? 0x1p-8 : 0x1p-24) * roundings;

    for (guint64 i = 0; i < c->count[operand]; i++) {
        const double got = case_get(c, operand, i);

        if (!(fabs(got - want[i]) <= absolute + epsilon * fabs(want[i])))
            ck_abort_msg("%s, %s: operand %u, element %" G_GUINT64_FORMAT " is %.9g, not %.9g",
                         op_kind_name(c->op.kind), dtype_name(c->op.dtype), operand, i, got,
                         want[i]);
    }
}

/* A copy with operands of its own. */
static inline KernelCase case_copy(const KernelCase *c)
{
    KernelCase copy = *c;

    for (guint i = 0; i < MAX_OPERANDS; i++)
        copy.data[i] = g_memdup2(c->data[i], c->count[i] * dtype_bytes(c->type[i]));
    return copy;
}

/* OP_ATTENTION without positions. */
static inline KernelCase case_of_attention(DType dtype, OpSizes s)
{
    const guint64 q = s.batch * s.seq * s.heads * s.head_dim, k = q / s.heads * s.kv_heads;
    KernelCase c = kernel_case(OP_ATTENTION, dtype, s);

    case_add(&c, ACCESS_READ, dtype, q);
    case_add(&c, ACCESS_READ, dtype, k);
    case_add(&c, ACCESS_READ, dtype, k);
    case_add(&c, ACCESS_WRITE, dtype, q);
    case_add(&c, ACCESS_WRITE, DTYPE_FP32, s.batch * s.heads * s.seq);
    case_add_scratch(&c);
    for (guint64 i = 0; i < q; i++) /* so that some weights are near 1 and some near 0 */
        case_set(&c, 0, i, 5 * case_get(&c, 0, i));
    return c;
}

/* Runs copies on 1, 2 and 3 threads: the same bits. */
static inline void case_check_threads(const KernelCase *c)
{
    KernelCase one = case_copy(c);

    case_run(&one, 1);
    for (guint threads = 2; threads <= 3; threads++) {
        KernelCase more = case_copy(c);

        case_run(&more, threads);
        for (guint i = 0; i < c->op.num_operands; i++)
            if (c->data[i] != NULL)
                ck_assert_mem_eq(one.data[i], more.data[i], c->count[i] * dtype_bytes(c->type[i]));
        kernel_case_clear(&more);
    }
    kernel_case_clear(&one);
}
