/* Ops without neighbours: rotary embedding, SwiGLU, GELU, sums, casts. */
#include "exec/device/cpu_kernels.h"
#include "exec/device/cpu_loop.h"
#include "exec/device/cpu_math.h"

#include <string.h>

/* ---- rotary embedding (Su et al., RoFormer, arXiv 2104.09864, sec. 3.4.2; pairs i, i + D/2) ----
 *
 *     a' = a cos - b sin      b' = b cos + a sin      backward: sin negated
 */

/* One head of one row: @cos and @sin of D/2 angles; @sign -1 turns back. */
static void rotate(DType dtype, void *data, guint64 offset, const float *table, guint64 dim,
                   float sign)
{
    const guint64 half = dim / 2;
    float a_block[CPU_BLOCK], b_block[CPU_BLOCK], a_out[CPU_BLOCK], b_out[CPU_BLOCK];

    for (guint64 start = 0; start < half; start += CPU_BLOCK) {
        const guint64 n = MIN(CPU_BLOCK, half - start), first = offset + start;
        const float *cos = table + start, *sin = table + half + start;
        const float *a = block_read(dtype, data, first, n, a_block);
        const float *b = block_read(dtype, data, first + half, n, b_block);
        float *to_a = block_target(dtype, data, first, a_out);
        float *to_b = block_target(dtype, data, first + half, b_out);
#pragma omp simd
        for (guint64 i = 0; i < n; i++) {
            const float old_a = a[i], old_b = b[i], s = sign * sin[i];

            to_a[i] = old_a * cos[i] - old_b * s;
            to_b[i] = old_b * cos[i] + old_a * s;
        }
        block_write(dtype, data, first, n, to_a);
        block_write(dtype, data, first + half, n, to_b);
    }
}

typedef struct {
    const Launch *launch;
    float sign;
} Rotation;

static void rotate_row(gconstpointer context, guint64 row)
{
    const Rotation *rotation = context;
    const Launch *launch = rotation->launch;
    const OpSizes *s = &launch->op->sizes;
    const float *table = (const float *)launch->operand[2] + row % s->seq * s->head_dim;

    for (guint64 h = 0; h < s->heads; h++)
        rotate(launch->op->dtype, launch->operand[0], (row * s->heads + h) * s->head_dim, table,
               s->head_dim, rotation->sign);
    for (guint64 h = 0; h < s->kv_heads; h++)
        rotate(launch->op->dtype, launch->operand[1], (row * s->kv_heads + h) * s->head_dim, table,
               s->head_dim, rotation->sign);
}

static void rotate_all(guint threads, const Launch *launch, float sign)
{
    const OpSizes *s = &launch->op->sizes;

    cpu_loop(threads, s->batch * s->seq, rotate_row, &(Rotation){launch, sign});
}

void cpu_rope(guint threads, const Launch *launch)
{
    rotate_all(threads, launch, 1);
}

void cpu_rope_backward(guint threads, const Launch *launch)
{
    rotate_all(threads, launch, -1);
}

/* ---- SwiGLU: h = g s(g) u, s the sigmoid (Shazeer, arXiv 2002.05202) ----
 *
 *     du = dh g s      dg = dh u s (1 + g (1 - s))
 */

static void swiglu_block(const Launch *launch, guint64 offset, guint64 n)
{
    const DType dtype = launch->op->dtype;
    float gate_block[CPU_BLOCK], up_block[CPU_BLOCK], h_block[CPU_BLOCK];
    const float *gate = block_read(dtype, launch->operand[0], offset, n, gate_block);
    const float *up = block_read(dtype, launch->operand[1], offset, n, up_block);
    float *h = block_target(dtype, launch->operand[2], offset, h_block);

#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        h[i] = gate[i] / (1 + cpu_exp(-gate[i])) * up[i];
    block_write(dtype, launch->operand[2], offset, n, h);
}

static void swiglu_backward_block(const Launch *launch, guint64 offset, guint64 n)
{
    const DType dtype = launch->op->dtype;
    float dh_block[CPU_BLOCK], gate_block[CPU_BLOCK], up_block[CPU_BLOCK];
    const float *dh = block_read(dtype, launch->operand[0], offset, n, dh_block);
    const float *gate = block_read(dtype, launch->operand[1], offset, n, gate_block);
    const float *up = block_read(dtype, launch->operand[2], offset, n, up_block);
    float *dgate = block_target(dtype, launch->operand[1], offset, gate_block);
    float *dup = block_target(dtype, launch->operand[2], offset, up_block);

#pragma omp simd
    for (guint64 i = 0; i < n; i++) {
        const float g = gate[i], u = up[i];
        const float sigmoid = 1 / (1 + cpu_exp(-g)), slope = dh[i] * sigmoid;

        dgate[i] = slope * u * (1 + g * (1 - sigmoid));
        dup[i] = slope * g;
    }
    block_write(dtype, launch->operand[1], offset, n, dgate);
    block_write(dtype, launch->operand[2], offset, n, dup);
}

/* ---- GELU: h = x/2 (1 + tanh u), u = a (x + c x^3) (Hendrycks, Gimpel, arXiv 1606.08415, sec. 2)
 * ----
 *
 *     h = x s(2u), s the sigmoid, since 1 + tanh u = 2 s(2u)
 *     dx = dh (s + x s (1 - s) 2u'),  2u' = 2a (1 + 3 c x^2)
 */

static const float GELU_2A = 1.5957691216057308f; /* 2 sqrt(2 / pi) */
static const float GELU_C = 0.044715f;

static inline float gelu_sigmoid(float x)
{
    return 1 / (1 + cpu_exp(-GELU_2A * x * (1 + GELU_C * x * x)));
}

static void gelu_block(const Launch *launch, guint64 offset, guint64 n)
{
    const DType dtype = launch->op->dtype;
    float x_block[CPU_BLOCK], h_block[CPU_BLOCK];
    const float *x = block_read(dtype, launch->operand[0], offset, n, x_block);
    float *h = block_target(dtype, launch->operand[1], offset, h_block);

#pragma omp simd
    for (guint64 i = 0; i < n; i++)
        h[i] = x[i] * gelu_sigmoid(x[i]);
    block_write(dtype, launch->operand[1], offset, n, h);
}

static void gelu_backward_block(const Launch *launch, guint64 offset, guint64 n)
{
    const DType dtype = launch->op->dtype;
    float dh_block[CPU_BLOCK], x_block[CPU_BLOCK];
    const float *dh = block_read(dtype, launch->operand[0], offset, n, dh_block);
    const float *x = block_read(dtype, launch->operand[1], offset, n, x_block);
    float *dx = block_target(dtype, launch->operand[1], offset, x_block);

#pragma omp simd
    for (guint64 i = 0; i < n; i++) {
        const float sigmoid = gelu_sigmoid(x[i]);
        const float slope = GELU_2A * (1 + 3 * GELU_C * x[i] * x[i]);

        dx[i] = dh[i] * (sigmoid + sigmoid * (1 - sigmoid) * x[i] * slope);
    }
    block_write(dtype, launch->operand[1], offset, n, dx);
}

/* ---- sums and casts ---- */

static void accumulate_block(const Launch *launch, guint64 offset, guint64 n)
{
    const void *base = launch_optional(launch, 2);
    float block[CPU_BLOCK];
    const float *values = block_read(launch->op->dtype, launch->operand[0], offset, n, block);

    block_add(launch->op->dtype_out, base != NULL ? base : launch->operand[1], values,
              launch->operand[1], offset, n);
}

static void cast_block(const Launch *launch, guint64 offset, guint64 n)
{
    float block[CPU_BLOCK];
    const float *values = block_read(launch->op->dtype, launch->operand[0], offset, n, block);

    block_write(launch->op->dtype_out, launch->operand[1], offset, n, values);
}

typedef struct {
    const Launch *launch;
    guint64 elements;
    void (*kernel)(const Launch *launch, guint64 offset, guint64 n);
} Blocks;

static void one_block(gconstpointer context, guint64 block)
{
    const Blocks *blocks = context;
    const guint64 offset = block * CPU_BLOCK;

    blocks->kernel(blocks->launch, offset, MIN(CPU_BLOCK, blocks->elements - offset));
}

static void each_block(guint threads, const Launch *launch, guint64 elements,
                       void (*kernel)(const Launch *launch, guint64 offset, guint64 n))
{
    cpu_loop(threads, cpu_num_blocks(elements), one_block, &(Blocks){launch, elements, kernel});
}

void cpu_swiglu(guint threads, const Launch *launch)
{
    each_block(threads, launch, launch->op->sizes.rows * launch->op->sizes.in, swiglu_block);
}

void cpu_swiglu_backward(guint threads, const Launch *launch)
{
    each_block(threads, launch, launch->op->sizes.rows * launch->op->sizes.in,
               swiglu_backward_block);
}

void cpu_gelu(guint threads, const Launch *launch)
{
    each_block(threads, launch, launch->op->sizes.rows * launch->op->sizes.in, gelu_block);
}

void cpu_gelu_backward(guint threads, const Launch *launch)
{
    each_block(threads, launch, launch->op->sizes.rows * launch->op->sizes.in, gelu_backward_block);
}

void cpu_accumulate(guint threads, const Launch *launch)
{
    each_block(threads, launch, launch->op->sizes.elements, accumulate_block);
}

void cpu_cast(guint threads, const Launch *launch)
{
    each_block(threads, launch, launch->op->sizes.elements, cast_block);
}

/* On one thread: the others compute meanwhile. */
void cpu_copy(guint threads, const Launch *launch)
{
    (void)threads;
    memcpy(launch->operand[1], launch->operand[0],
           launch->op->sizes.elements * dtype_bytes(launch->op->dtype));
}
