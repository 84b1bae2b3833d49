/* Rotary embedding (Su et al., RoFormer, arXiv 2104.09864, sec. 3.4.2; pairs i, i + D/2).
 *
 *     a' = a cos - b sin      b' = b cos + a sin      backward: sin negated
 *
 * One block a row of tokens, all its heads of q and k. */
#include "exec/cuda/cuda_common.cuh"

enum { ROPE_THREADS = 256 };

template <typename T> struct Rope {
    guint64 seq, heads, kv_heads, half;
    T *q, *k;
    const float *table;
    float sign;
};

template <typename T, int VEC>
static __global__ void __launch_bounds__(ROPE_THREADS) rotate(Rope<T> r)
{
    const guint64 row = blockIdx.x;
    const unsigned half = (unsigned)r.half, pairs = half / VEC;
    const unsigned items = (unsigned)(r.heads + r.kv_heads) * pairs;
    const float *table = r.table + row % r.seq * 2 * half;

    for (unsigned item = threadIdx.x; item < items; item += blockDim.x) {
        const unsigned head = item / pairs, i = item % pairs * VEC;
        T *at = head < r.heads ? r.q + (row * r.heads + head) * 2 * half
                               : r.k + (row * r.kv_heads + head - r.heads) * 2 * half;
        float a[VEC], b[VEC], cosine[VEC], sine[VEC];

        load(a, at + i);
        load(b, at + half + i);
        load(cosine, table + i);
        load(sine, table + half + i);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const float old = a[j], s = r.sign * sine[j];

            a[j] = old * cosine[j] - b[j] * s;
            b[j] = b[j] * cosine[j] + old * s;
        }
        store(at + i, a);
        store(at + half + i, b);
    }
}

template <typename T> static void launch_rope(const CudaRope *rope, float sign, CudaStream stream)
{
    const Rope<T> r = {rope->seq,    rope->heads,  rope->kv_heads, rope->head_dim / 2,
                       (T *)rope->q, (T *)rope->k, rope->table,    sign};
    const bool wide = is_wide(r.half, r.q, r.k, r.table);
    const unsigned rows = (unsigned)(rope->batch * rope->seq);
    const guint64 items = (r.heads + r.kv_heads) * r.half / (wide ? WIDE : 1);

    if (wide)
        LAUNCH((rotate<T, WIDE>), rows, row_threads(items, ROPE_THREADS), 0, stream, r);
    else
        LAUNCH((rotate<T, 1>), rows, row_threads(items, ROPE_THREADS), 0, stream, r);
}

static void rope_any(const CudaRope *rope, float sign, CudaStream stream)
{
    if (rope->dtype == DTYPE_BF16)
        launch_rope<bf16>(rope, sign, stream);
    else
        launch_rope<float>(rope, sign, stream);
}

void cuda_rope(const CudaRope *rope, CudaStream stream)
{
    rope_any(rope, 1, stream);
}

void cuda_rope_backward(const CudaRope *rope, CudaStream stream)
{
    rope_any(rope, -1, stream);
}
