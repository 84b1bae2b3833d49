/* Ops between micro-batches and steps: norm, clipping, optimisers, over pieces of a unit.
 *
 * All pieces of a unit go in one launch: a block finds the piece of its chunk by counting. */
#include "exec/cuda/cuda_common.cuh"

#include "sim/program/op.h"

enum {
    STEP_THREADS = 256,
    STEP_CHUNK = 1 << 14, /* elements of a block */
    STEP_PIECES = 24,     /* of a launch: parameters of a kernel may take 4 KB */
};

struct Pieces {
    unsigned count;
    CudaPiece piece[STEP_PIECES];
};

/* Elements [start, end) of a piece. */
struct Chunk {
    unsigned piece;
    guint64 start, end;
};

static __host__ __device__ inline guint64 chunks_of(const CudaPiece &piece)
{
    return (piece.elements + STEP_CHUNK - 1) / STEP_CHUNK;
}

static __device__ __forceinline__ Chunk find_chunk(const Pieces &pieces, guint64 number)
{
    unsigned p = 0;

    while (number >= chunks_of(pieces.piece[p]))
        number -= chunks_of(pieces.piece[p++]);
    const guint64 start = number * STEP_CHUNK, elements = pieces.piece[p].elements;

    return Chunk{p, start, min(start + STEP_CHUNK, elements)};
}

/* The next pieces from @next on; returns their number of chunks. */
static guint64 take_pieces(const CudaPiece *all, guint num, guint *next, Pieces *pieces)
{
    guint64 chunks = 0;

    for (pieces->count = 0; pieces->count < STEP_PIECES && *next < num; (*next)++) {
        if (all[*next].elements == 0)
            continue;
        pieces->piece[pieces->count++] = all[*next];
        chunks += chunks_of(all[*next]);
    }
    return chunks;
}

/* ---- squared norm ---- */

template <typename T, int VEC>
static __device__ __forceinline__ double squares(const T *from, guint64 start, guint64 end)
{
    float values[VEC];
    double sum = 0;

    for (guint64 i = start + threadIdx.x * VEC; i + VEC <= end; i += blockDim.x * VEC) {
        load(values, from + i);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            sum += (double)values[j] * (double)values[j];
    }
    return sum;
}

template <typename T>
static __device__ __forceinline__ double chunk_squares(const T *from, const Chunk &chunk)
{
    const guint64 whole = chunk.start + (chunk.end - chunk.start) / WIDE * WIDE;

    if (reinterpret_cast<gsize>(from) % 16 != 0)
        return squares<T, 1>(from, chunk.start, chunk.end);
    return squares<T, WIDE>(from, chunk.start, whole) + squares<T, 1>(from, whole, chunk.end);
}

template <typename T>
static __global__ void __launch_bounds__(STEP_THREADS)
    squared_norm(const __grid_constant__ Pieces pieces, const T *gradient, guint64 chunks,
                 double *partials)
{
    SHARED(double, shared, [WARP]);
    double sum = 0;

    for (guint64 number = blockIdx.x; number < chunks; number += gridDim.x) {
        const Chunk chunk = find_chunk(pieces, number);
        const CudaPiece &piece = pieces.piece[chunk.piece];

        sum += piece.weight * chunk_squares(gradient + piece.gradient, chunk);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(CUDA_SQUARED_NORM_PARTIALS)
    sum_squares(const double *partials, guint64 parts, double *sum, bool adds)
{
    __shared__ double shared[WARP];
    const double all = block_sum(threadIdx.x < parts ? partials[threadIdx.x] : 0, shared);

    if (threadIdx.x == 0)
        *sum = (adds ? *sum : 0) + all;
}

void cuda_squared_norm(const CudaSquaredNorm *norm, CudaStream stream)
{
    bool adds = norm->adds != 0;
    guint next = 0;

    do {
        Pieces pieces;
        const guint64 chunks = take_pieces(norm->pieces, norm->num_pieces, &next, &pieces);
        const unsigned blocks = (unsigned)least(chunks, CUDA_SQUARED_NORM_PARTIALS);

        if (blocks > 0 && norm->dtype == DTYPE_BF16)
            LAUNCH((squared_norm<bf16>), blocks, STEP_THREADS, 0, stream, pieces,
                   (const bf16 *)norm->gradient, chunks, norm->partials);
        else if (blocks > 0)
            LAUNCH((squared_norm<float>), blocks, STEP_THREADS, 0, stream, pieces,
                   (const float *)norm->gradient, chunks, norm->partials);
        LAUNCH(sum_squares, 1, CUDA_SQUARED_NORM_PARTIALS, 0, stream, norm->partials, blocks,
               norm->sum, adds);
        adds = true;
    } while (next < norm->num_pieces);
}

/* coef = min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. */
static __global__ void clip_gradient(const __grid_constant__ CudaClip c)
{
    const double max_norm = c.hyper[HYPER_MAX_NORM];
    double sum = 0;

    for (unsigned i = 0; i < c.num_sums; i++)
        sum += *c.sums[i];
    const double norm = sqrt(sum), coef = max_norm / (norm + 1e-6);

    *c.loss /= *c.valid > 1 ? *c.valid : 1;
    *c.norm = norm;
    *c.coef = max_norm == 0 || coef >= 1 ? 1 : coef;
    *c.finite = isfinite(*c.loss) && isfinite(norm) ? 1 : 0;
}

void cuda_clip(const CudaClip *clip, CudaStream stream)
{
    g_assert(clip->num_sums <= CUDA_CLIP_SUMS);
    LAUNCH(clip_gradient, 1, 1, 0, stream, *clip);
}

/* ---- optimisers ---- */

/* Scalars of this step; b, 1 - b of both moments, and the corrections 1 / (1 - b^t). */
struct Step {
    float learning_rate, decay, coef, eps;
    float keep[2], take[2], correction[2];
    guint64 random; /* of this step */
};

static __device__ __forceinline__ guint64 mix(guint64 x)
{
    /* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; constants of Stafford's mix 13) */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static const guint64 GAMMA = 0x9E3779B97F4A7C15ull; /* 2^64 / golden ratio, odd */

static __device__ void read_step(Step *step, const double *hyper, double coef)
{
    step->learning_rate = (float)hyper[HYPER_LR];
    step->decay = (float)hyper[HYPER_WEIGHT_DECAY];
    step->coef = (float)coef;
    step->eps = (float)hyper[HYPER_EPS];
    for (int i = 0; i < 2; i++) {
        const double beta = hyper[HYPER_BETA1 + i];

        step->keep[i] = (float)beta;
        step->take[i] = (float)(1 - beta);
        step->correction[i] = (float)(1 / (1 - pow(beta, hyper[HYPER_STEP])));
    }
    step->random = mix((guint64)hyper[HYPER_STEP] * GAMMA);
}

/* Of element @i of the piece; exec/base/random.c draws the same. */
static __device__ __forceinline__ guint64 random_of(const Step &step, const CudaPiece &piece,
                                                    guint64 i)
{
    const guint64 at = piece.start + i;
    const guint64 number =
        piece.columns == 0 ? at : at / piece.columns * piece.stride + at % piece.columns;

    return mix(step.random + (piece.first + number) * GAMMA);
}

/* Up with the probability that makes the mean exact: 16 random bits are added below the last bit
 * that stays. */
static __device__ __forceinline__ float round_by_chance(float value, guint64 random)
{
    const unsigned bits = __float_as_uint(value);

    if ((bits & 0x7f800000u) == 0x7f800000u)
        return value;
    return __uint_as_float((bits + (unsigned)(random >> 48)) & 0xffff0000u);
}

/* g = grad coef;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 * p -= lr ((m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay p)
 *
 * Loshchilov, Hutter, arXiv 1711.05101, alg. 2, with PyTorch's decay lr * wd. */
struct Adamw {
    float *m, *v;

    __device__ __forceinline__ bool is_wide(const CudaPiece &piece) const
    {
        return (reinterpret_cast<gsize>(m + piece.moment) |
                reinterpret_cast<gsize>(v + piece.moment)) %
                   16 ==
               0;
    }

    template <int N>
    __device__ __forceinline__ void at(const Step &s, const CudaPiece &piece, guint64 i,
                                       float (&p)[N], const float (&gradient)[N]) const
    {
        const float decay = s.decay * piece.decay;
        float m_new[N], v_new[N];

        load(m_new, m + piece.moment + i);
        load(v_new, v + piece.moment + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float g = gradient[j] * s.coef;

            m_new[j] = s.keep[0] * m_new[j] + s.take[0] * g;
            v_new[j] = s.keep[1] * v_new[j] + s.take[1] * g * g;
            const float step =
                m_new[j] * s.correction[0] / (sqrtf(v_new[j] * s.correction[1]) + s.eps);
            p[j] -= s.learning_rate * (step + decay * p[j]);
        }
        store(m + piece.moment + i, m_new);
        store(v + piece.moment + i, v_new);
    }
};

struct Sgd {
    __device__ __forceinline__ bool is_wide(const CudaPiece &) const
    {
        return true;
    }

    template <int N>
    __device__ __forceinline__ void at(const Step &s, const CudaPiece &, guint64, float (&p)[N],
                                       const float (&gradient)[N]) const
    {
#pragma unroll
        for (int j = 0; j < N; j++)
            p[j] -= s.learning_rate * (gradient[j] * s.coef);
    }
};

template <typename T, typename G> struct Update {
    T *parameter;
    const G *gradient;
    float *master; /* or NULL: T is float and is what is updated */
    const double *hyper, *coef, *predicate;
};

/* N elements from @i on. */
template <typename Rule, typename T, typename G, bool CHANCE, int N>
static __device__ __forceinline__ void update_at(const Rule &rule, const Update<T, G> &u,
                                                 const Step &step, const CudaPiece &piece,
                                                 guint64 i)
{
    float p[N], gradient[N];

    if (u.master != nullptr)
        load(p, u.master + piece.master + i);
    else
        load(p, u.parameter + piece.parameter + i);
    load(gradient, u.gradient + piece.gradient + i);
    rule.template at<N>(step, piece, i, p, gradient);
    if (u.master != nullptr)
        store(u.master + piece.master + i, p);
    if (CHANCE)
#pragma unroll
        for (int j = 0; j < N; j++)
            p[j] = round_by_chance(p[j], random_of(step, piece, i + j));
    store(u.parameter + piece.parameter + i, p);
}

template <typename Rule, typename T, typename G, bool CHANCE>
static __global__ void __launch_bounds__(STEP_THREADS)
    update(const __grid_constant__ Pieces pieces, Rule rule, Update<T, G> u)
{
    SHARED(Step, step, [1]);
    const Chunk chunk = find_chunk(pieces, blockIdx.x);
    const CudaPiece piece =
        pieces.piece[chunk.piece]; /* a copy: nothing that is stored changes it */
    const gsize places =
        reinterpret_cast<gsize>(u.parameter + piece.parameter) |
        reinterpret_cast<gsize>(u.gradient + piece.gradient) |
        (u.master != nullptr ? reinterpret_cast<gsize>(u.master + piece.master) : 0);
    guint64 whole = chunk.start;

    if (u.predicate != nullptr && *u.predicate == 0)
        return; /* all blocks */
    if (threadIdx.x == 0)
        read_step(step, u.hyper, *u.coef);
    __syncthreads();
    if (places % 16 == 0 && rule.is_wide(piece))
        whole += (chunk.end - chunk.start) / WIDE * WIDE;
    for (guint64 i = chunk.start + threadIdx.x * WIDE; i < whole; i += STEP_THREADS * WIDE)
        update_at<Rule, T, G, CHANCE, WIDE>(rule, u, *step, piece, i);
    for (guint64 i = whole + threadIdx.x; i < chunk.end; i += STEP_THREADS)
        update_at<Rule, T, G, CHANCE, 1>(rule, u, *step, piece, i);
}

template <typename Rule, typename T, typename G, bool CHANCE>
static void launch_update(const Rule &rule, const CudaUpdate *update_, CudaStream stream)
{
    const Update<T, G> u = {(T *)update_->parameter, (const G *)update_->gradient,
                            update_->master,         update_->hyper,
                            update_->coef,           update_->predicate};
    guint next = 0;

    while (next < update_->num_pieces) {
        Pieces pieces;
        const guint64 chunks = take_pieces(update_->pieces, update_->num_pieces, &next, &pieces);

        if (chunks > 0)
            LAUNCH((update<Rule, T, G, CHANCE>), (unsigned)chunks, STEP_THREADS, 0, stream, pieces,
                   rule, u);
    }
}

template <typename Rule, typename G>
static void update_of(const Rule &rule, const CudaUpdate *u, CudaStream stream)
{
    g_assert(u->master != nullptr || u->dtype == DTYPE_FP32);
    if (u->dtype == DTYPE_FP32)
        launch_update<Rule, float, G, false>(rule, u, stream);
    else if (u->stochastic)
        launch_update<Rule, bf16, G, true>(rule, u, stream);
    else
        launch_update<Rule, bf16, G, false>(rule, u, stream);
}

template <typename Rule>
static void update_any(const Rule &rule, const CudaUpdate *update_, CudaStream stream)
{
    if (update_->dtype_out == DTYPE_BF16)
        update_of<Rule, bf16>(rule, update_, stream);
    else
        update_of<Rule, float>(rule, update_, stream);
}

void cuda_adamw(const CudaUpdate *update_, CudaStream stream)
{
    update_any(Adamw{update_->m, update_->v}, update_, stream);
}

void cuda_sgd(const CudaUpdate *update_, CudaStream stream)
{
    update_any(Sgd{}, update_, stream);
}
