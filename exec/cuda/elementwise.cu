/* Ops without neighbours: SwiGLU, GELU, bias, sums, casts.
 *
 * An op is a struct with its pointers and at<N>(offset), which does N elements; each() runs it over
 * all of them, WIDE at a time where the pointers are aligned. */
#include "exec/cuda/cuda_common.cuh"

enum { EACH_THREADS = 256, EACH_BLOCKS = 1 << 16 };

template <typename F, int VEC>
static __global__ void __launch_bounds__(EACH_THREADS) each(F op, guint64 elements)
{
    const guint64 first = (guint64)blockIdx.x * blockDim.x + threadIdx.x;
    const guint64 step = (guint64)gridDim.x * blockDim.x, whole = elements / VEC;

    for (guint64 i = first; i < whole; i += step)
        op.template at<VEC>(i * VEC);
    if (VEC > 1 && first < elements % VEC)
        op.template at<1>(whole * VEC + first);
}

template <typename F> static void launch_each(F op, guint64 elements, bool wide, CudaStream stream)
{
    const guint64 items = ceil_div(elements, wide ? WIDE : 1);
    const unsigned blocks = (unsigned)least(ceil_div(items, EACH_THREADS), EACH_BLOCKS);

    if (wide)
        LAUNCH((each<F, WIDE>), blocks, EACH_THREADS, 0, stream, op, elements);
    else
        LAUNCH((each<F, 1>), blocks, EACH_THREADS, 0, stream, op, elements);
}

/* ---- SwiGLU: h = g s(g) u, s the sigmoid (Shazeer, arXiv 2002.05202) ----
 *
 *     du = dh g s      dg = dh u s (1 + g (1 - s))
 */

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

template <typename T> struct Swiglu {
    const T *gate, *up;
    T *h;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float g[N], u[N];

        load(g, gate + offset);
        load(u, up + offset);
#pragma unroll
        for (int i = 0; i < N; i++)
            g[i] *= sigmoid(g[i]) * u[i];
        store(h + offset, g);
    }
};

template <typename T> struct SwigluBackward {
    const T *dh;
    T *gate, *up;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float d[N], g[N], u[N];

        load(d, dh + offset);
        load(g, gate + offset);
        load(u, up + offset);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float s = sigmoid(g[i]), slope = d[i] * s;

            d[i] = slope * u[i] * (1 + g[i] * (1 - s));
            u[i] = slope * g[i];
        }
        store(gate + offset, d);
        store(up + offset, u);
    }
};

/* ---- GELU by tanh: h = x (1 + tanh z) / 2, z = k (x + c x^3), k = sqrt(2 / pi), c = 0.044715
 * (Hendrycks, Gimpel, arXiv 1606.08415) ----
 *
 *     dx = dh ((1 + t) / 2 + x (1 - t^2) z' / 2),  t = tanh z, z' = k (1 + 3 c x^2)
 */

#define GELU_K 0.7978845608028654f
#define GELU_C 0.044715f

template <typename T> struct Gelu {
    const T *x;
    T *h;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float v[N];

        load(v, x + offset);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = 0.5f * v[i] * (1 + tanhf(GELU_K * (v[i] + GELU_C * v[i] * v[i] * v[i])));
        store(h + offset, v);
    }
};

template <typename T> struct GeluBackward {
    const T *dh;
    T *x;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float d[N], v[N];

        load(d, dh + offset);
        load(v, x + offset);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float square = v[i] * v[i];
            const float t = tanhf(GELU_K * (v[i] + GELU_C * square * v[i]));
            const float slope = GELU_K * (1 + 3 * GELU_C * square);

            v[i] = d[i] * (0.5f * (1 + t) + 0.5f * v[i] * (1 - t * t) * slope);
        }
        store(x + offset, v);
    }
};

/* ---- bias, sums, casts ---- */

template <typename T> struct AddBias {
    const T *bias;
    T *y;
    guint64 columns;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float b[N];

        load(b, bias + offset % columns);
        put(y + offset, b, true);
    }
};

template <typename From, typename To> struct Accumulate {
    const From *src;
    const To *base;
    To *dst;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float values[N], sum[N];

        load(values, src + offset);
        load(sum, base + offset);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += values[i];
        store(dst + offset, sum);
    }
};

template <typename From, typename To> struct Cast {
    const From *src;
    To *dst;

    template <int N> __device__ __forceinline__ void at(guint64 offset) const
    {
        float values[N];

        load(values, src + offset);
        store(dst + offset, values);
    }
};

/* ---- launchers ---- */

template <typename T>
static void launch_swiglu(guint64 n, const void *gate, const void *up, void *h, CudaStream stream)
{
    const Swiglu<T> op = {(const T *)gate, (const T *)up, (T *)h};

    launch_each(op, n, is_wide(0, gate, up, h), stream);
}

void cuda_swiglu(DType dtype, guint64 elements, const void *gate, const void *up, void *h,
                 CudaStream stream)
{
    if (dtype == DTYPE_BF16)
        launch_swiglu<bf16>(elements, gate, up, h, stream);
    else
        launch_swiglu<float>(elements, gate, up, h, stream);
}

template <typename T>
static void launch_swiglu_backward(guint64 n, const void *dh, void *gate, void *up,
                                   CudaStream stream)
{
    const SwigluBackward<T> op = {(const T *)dh, (T *)gate, (T *)up};

    launch_each(op, n, is_wide(0, dh, gate, up), stream);
}

void cuda_swiglu_backward(DType dtype, guint64 elements, const void *dh, void *gate, void *up,
                          CudaStream stream)
{
    if (dtype == DTYPE_BF16)
        launch_swiglu_backward<bf16>(elements, dh, gate, up, stream);
    else
        launch_swiglu_backward<float>(elements, dh, gate, up, stream);
}

/* Of an op with one pointer that is read and one that is written or updated. */
template <template <typename> class F>
static void launch_pair(DType dtype, guint64 n, const void *from, void *to, CudaStream stream)
{
    const bool wide = is_wide(0, from, to);

    if (dtype == DTYPE_BF16)
        launch_each(F<bf16>{(const bf16 *)from, (bf16 *)to}, n, wide, stream);
    else
        launch_each(F<float>{(const float *)from, (float *)to}, n, wide, stream);
}

void cuda_gelu(DType dtype, guint64 elements, const void *x, void *h, CudaStream stream)
{
    launch_pair<Gelu>(dtype, elements, x, h, stream);
}

void cuda_gelu_backward(DType dtype, guint64 elements, const void *dh, void *x, CudaStream stream)
{
    launch_pair<GeluBackward>(dtype, elements, dh, x, stream);
}

void cuda_add_bias(DType dtype, guint64 rows, guint64 columns, const void *bias, void *y,
                   CudaStream stream)
{
    const bool wide = is_wide(columns, bias, y);

    if (dtype == DTYPE_BF16)
        launch_each(AddBias<bf16>{(const bf16 *)bias, (bf16 *)y, columns}, rows * columns, wide,
                    stream);
    else
        launch_each(AddBias<float>{(const float *)bias, (float *)y, columns}, rows * columns, wide,
                    stream);
}

template <typename From>
static void launch_accumulate(DType to, guint64 n, const void *src, const void *base, void *dst,
                              CudaStream stream)
{
    const bool wide = is_wide(0, src, base, dst);

    if (to == DTYPE_BF16)
        launch_each(Accumulate<From, bf16>{(const From *)src, (const bf16 *)base, (bf16 *)dst}, n,
                    wide, stream);
    else
        launch_each(Accumulate<From, float>{(const From *)src, (const float *)base, (float *)dst},
                    n, wide, stream);
}

void cuda_accumulate(DType from, DType to, guint64 elements, const void *src, const void *base,
                     void *dst, CudaStream stream)
{
    if (from == DTYPE_BF16)
        launch_accumulate<bf16>(to, elements, src, base, dst, stream);
    else
        launch_accumulate<float>(to, elements, src, base, dst, stream);
}

template <typename From>
static void launch_cast(DType to, guint64 n, const void *src, void *dst, CudaStream stream)
{
    const bool wide = is_wide(0, src, dst);

    if (to == DTYPE_BF16)
        launch_each(Cast<From, bf16>{(const From *)src, (bf16 *)dst}, n, wide, stream);
    else
        launch_each(Cast<From, float>{(const From *)src, (float *)dst}, n, wide, stream);
}

void cuda_cast(DType from, DType to, guint64 elements, const void *src, void *dst,
               CudaStream stream)
{
    if (from == DTYPE_BF16)
        launch_cast<bf16>(to, elements, src, dst, stream);
    else
        launch_cast<float>(to, elements, src, dst, stream);
}
