/* GPUs from their data sheets: tiles and waves for products, fractions of peak for attention,
 * bandwidth for the rest. */
#include "sim/cost/device_cost.h"

#include <string.h>

/* Whose attention kernels differ. */
typedef enum { BEFORE_HOPPER, HOPPER, BLACKWELL, BLACKWELL_ULTRA, NUM_GENERATIONS } Generation;

/* What the name of a GPU tells beside its topology file; each a property of the generation, none
 * fitted to a row of training runs. */
typedef struct {
    const char *names[3]; /* parts of the GPU's name, any case; none: any GPU */
    Generation generation;
    guint multiprocessors;     /* NVIDIA and AMD data sheets */
    double gemm_fraction;      /* best shape's measured rate / dense peak, bf16 */
    double fp8_fraction;       /* the same, fp8; 0 = no figure: as bf16 */
    double sustained_clock;    /* a training step's clock / that of a short benchmark (power) */
    double k_fill_bytes;       /* of a row of A: pipeline fill and epilogue of a tile */
    double memory_fraction;    /* of nominal, of element-wise kernels */
    double attention_forward;  /* of dense peak, causal FLOPs, long sequences */
    double attention_backward; /* the same */
} GpuFamily;

/* gemm_fraction: best of a shape search, ml-engineering (stas00), "MAMF" tables: A100 SXM 271.2 of
 *   312, A100 PCIe 252.9 of 312, H100 SXM 794.5 of 989, B200 1745 of 2250, GB200 1822 of 2500, B300
 *   1769 of 2250, MI300X 668.4 of 1307 TFLOP/s.
 * fp8_fraction: the same tables, e4m3: H100 SXM 1402.6, H200 1453.4, GH200 1535 of 1979 (one row
 * here: their mean), B200 3432.5 of 4500, GB200 3615.6 of 5000, B300 3353.3 of 4500 TFLOP/s.
 * sustained_clock: one factor a GPU over published training runs (Megatron, NeMo, torchtitan).
 * memory_fraction: cuDNN's RMS norms of 4096 to 16384 values, 4 bytes forward and 6 backward a
 *   value: GB200 and GB300 5.5, H200 3.65 TB/s together (NVIDIA/cudnn-frontend,
 *   benchmark/norms/results, February 2026); MI300X as copies reach (AMD-AGI/Primus, node-smoke.md:
 *   70 to 80%); 0.85 elsewhere, as copies reach.
 * k_fill_bytes: A100 128, H100 230 elements of bf16, twice that of fp8, so bytes; the second from
 * products with K 512 ... 7168 in DeepGEMM's README. attention: FlashAttention-2 (Dao, arXiv
 * 2307.08691, sec. 4) on A100, the same kernel on H100 (Shah et al., arXiv 2407.08608, fig. 5);
 * later GPUs are taken to reach H100's fractions. First match counts, so the longer name stands
 * first; the last row is for every other GPU. */
static const GpuFamily families[] = {
    {.names = {"a100-pcie"},
     .multiprocessors = 108,
     .gemm_fraction = 252.9 / 312,
     .sustained_clock = 0.90,
     .k_fill_bytes = 256,
     .memory_fraction = 0.85,
     .attention_forward = 0.55,
     .attention_backward = 0.45},
    {.names = {"a100", "a800"},
     .multiprocessors = 108,
     .gemm_fraction = 271.2 / 312,
     .sustained_clock = 0.90,
     .k_fill_bytes = 256,
     .memory_fraction = 0.85,
     .attention_forward = 0.55,
     .attention_backward = 0.45},
    {.names = {"h100-pcie"},
     .generation = HOPPER,
     .multiprocessors = 114,
     .gemm_fraction = 800.0 / 989,
     .fp8_fraction = 1402.6 / 1979,
     .sustained_clock = 0.85,
     .k_fill_bytes = 460,
     .memory_fraction = 0.85,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"h100-sxm-96gb"}, /* 500 of 700 W */
     .generation = HOPPER,
     .multiprocessors = 132,
     .gemm_fraction = 800.0 / 989,
     .fp8_fraction = 1463.7 / 1979,
     .sustained_clock = 0.64,
     .k_fill_bytes = 460,
     .memory_fraction = 0.85,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"h200"}, /* GH200 too */
     .generation = HOPPER,
     .multiprocessors = 132,
     .gemm_fraction = 800.0 / 989,
     .fp8_fraction = 1463.7 / 1979,
     .sustained_clock = 0.85,
     .k_fill_bytes = 460,
     .memory_fraction = 0.76,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"h100", "h800"},
     .generation = HOPPER,
     .multiprocessors = 132,
     .gemm_fraction = 800.0 / 989,
     .fp8_fraction = 1463.7 / 1979,
     .sustained_clock = 0.85,
     .k_fill_bytes = 460,
     .memory_fraction = 0.85,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"gb200"},
     .generation = BLACKWELL,
     .multiprocessors = 148,
     .gemm_fraction = 1822.0 / 2500,
     .fp8_fraction = 3615.6 / 5000,
     .sustained_clock = 0.73,
     .k_fill_bytes = 460,
     .memory_fraction = 0.70,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"b200"},
     .generation = BLACKWELL,
     .multiprocessors = 148,
     .gemm_fraction = 1745.0 / 2250,
     .fp8_fraction = 3432.5 / 4500,
     .sustained_clock = 0.75,
     .k_fill_bytes = 460,
     .memory_fraction = 0.70,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"b300"}, /* GB300 too */
     .generation = BLACKWELL_ULTRA,
     .multiprocessors = 160,
     .gemm_fraction = 1769.0 / 2250,
     .fp8_fraction = 3353.3 / 4500,
     .sustained_clock = 0.85,
     .k_fill_bytes = 460,
     .memory_fraction = 0.70,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"v100"},
     .multiprocessors = 80,
     .gemm_fraction = 0.88, /* no figure: between A100 and its own 0.92 of large products */
     .sustained_clock = 0.95,
     .k_fill_bytes = 256, /* no figure: as A100 */
     .memory_fraction = 0.85,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
    {.names = {"mi300x"},
     .multiprocessors = 304,
     .gemm_fraction = 668.4 / 1307,
     .sustained_clock = 1.0, /* no figure */
     .k_fill_bytes = 256,    /* no figure: as A100 */
     .memory_fraction = 0.75,
     .attention_forward = 0.30,
     .attention_backward = 0.25},
    {.names = {NULL},
     .multiprocessors = 108,
     .gemm_fraction = 0.80,
     .sustained_clock = 0.85,
     .k_fill_bytes = 256,
     .memory_fraction = 0.85,
     .attention_forward = 0.40,
     .attention_backward = 0.33},
};

/* The same for all GPUs. */
static const struct {
    double gemm_bandwidth;       /* of nominal, while a product streams its matrices */
    double causal_waste_tokens;  /* sequence at which half of causal attention's rate is lost to
                                    diagonal tiles and short loops */
    double launch_s;             /* start of a kernel to the start of the next when both are empty;
                                    2-4 us are usual */
    guint64 aligned, misaligned; /* elements of a dimension: full rate, and worst */
    double unaligned_rate;       /* not a multiple of `aligned` (BLOOM's shapes) */
    double misaligned_rate;      /* not a multiple of `misaligned` */
} gpu_common = {
    .gemm_bandwidth = 0.90,
    .causal_waste_tokens = 1024,
    .launch_s = 3e-6,
    .aligned = 64,
    .misaligned = 8,
    .unaligned_rate = 0.88,
    .misaligned_rate = 0.60,
};

/* Output tiles of the library's kernels; smaller ones read more and reach less (CUTLASS,
 * media/docs/efficient_gemm.md says why; the factors follow cuBLAS's choice of tiles). */
static const struct {
    guint64 rows, cols;
    double rate;
} tiles[] = {{256, 128, 1.0}, {128, 128, 0.93}, {128, 64, 0.80}, {64, 64, 0.60}};

static gboolean family_matches(const GpuFamily *family, const char *lower)
{
    for (guint i = 0; i < G_N_ELEMENTS(family->names) && family->names[i] != NULL; i++)
        if (strstr(lower, family->names[i]) != NULL)
            return TRUE;
    return family->names[0] == NULL;
}

static const GpuFamily *find_family(const char *name)
{
    g_autofree char *lower = g_ascii_strdown(name, -1);
    const GpuFamily *family = families;

    while (!family_matches(family, lower))
        family++;
    return family;
}

/* Asked for with every op, mostly for the GPU of the one before: that is kept by thread. */
static const GpuFamily *gpu_family(const char *name)
{
    static _Thread_local char last_name[64];
    static _Thread_local const GpuFamily *last;

    if (last == NULL || strcmp(name, last_name) != 0) {
        const gboolean is_whole = g_strlcpy(last_name, name, sizeof last_name) < sizeof last_name;

        last = find_family(name);
        if (!is_whole)
            last_name[0] = '\0'; /* too long to be known again */
    }
    return last;
}

static guint64 ceil_divide(guint64 a, guint64 b)
{
    return (a + b - 1) / b;
}

/**
 * quantisation: share of the best rate that the best tile reaches on an (m, n) result.
 *
 *     u = g m n / (tm tn SMs waves),  waves = ceil(g ceil(m/tm) ceil(n/tn) / SMs)
 *
 *     g  groups: one kernel for all
 *
 * Each multiprocessor computes one tile at a time; edge tiles and the last wave are partly idle.
 * Source: NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantisation).
 * Left out: split-K and stream-K, which soften the last wave.
 */
static double quantisation(const GemmShape *shape, guint multiprocessors)
{
    const guint64 groups = MAX(shape->groups, 1);
    double best = 0;

    for (guint i = 0; i < G_N_ELEMENTS(tiles); i++) {
        const guint64 count =
            groups * ceil_divide(shape->m, tiles[i].rows) * ceil_divide(shape->n, tiles[i].cols);
        const guint64 waves = ceil_divide(count, multiprocessors);
        const double places =
            (double)(tiles[i].rows * tiles[i].cols * multiprocessors) * (double)waves;
        best = MAX(best,
                   tiles[i].rate * (double)groups * (double)shape->m * (double)shape->n / places);
    }
    return best;
}

static double alignment(const GemmShape *shape)
{
    const guint64 dims[] = {shape->m, shape->n, shape->k};
    double rate = 1;

    for (guint i = 0; i < G_N_ELEMENTS(dims); i++) {
        if (dims[i] % gpu_common.misaligned != 0)
            rate = MIN(rate, gpu_common.misaligned_rate);
        else if (dims[i] % gpu_common.aligned != 0)
            rate = MIN(rate, gpu_common.unaligned_rate);
    }
    return rate;
}

static double best_fraction(const GpuFamily *family, DType dtype)
{
    return dtype == DTYPE_FP8 && family->fp8_fraction > 0 ? family->fp8_fraction
                                                          : family->gemm_fraction;
}

/**
 * cuda_gemm: seconds of C(m,n) = A(m,k) B(k,n).
 *
 *     t = max(2 m n k / (R u k / (k + k0)), bytes / (0.9 HBM))
 *
 *     R   sustained rate of the best shape, FLOP/s: peak * fraction * sustained_clock
 *     u   tile and wave quantisation, alignment     k0  k_fill_bytes in elements
 *
 * Derived here from published products (see the table).  Left out: C read again where it is
 * accumulated into.  Limit: 2 m n k / R for large multiples of the tiles.
 */
static double cuda_gemm(const GemmShape *shape, DType dtype, const Topology *topology,
                        const ComputeContext *context)
{
    const GpuFamily *family = gpu_family(topology->gpu.name);
    const double best = gpu_peak_flops(&topology->gpu, dtype) * best_fraction(family, dtype) *
                        family->sustained_clock;
    const double k = (double)shape->k, k0 = family->k_fill_bytes / dtype_bytes(dtype);
    const double flops =
        2.0 * (double)MAX(shape->groups, 1) * (double)shape->m * (double)shape->n * k;
    const double bandwidth = gpu_common.gemm_bandwidth * topology->gpu.memory_bytes_per_s;
    const double transfer = device_cost_gemm_bytes(shape, dtype) / bandwidth;

    (void)context;
    if (flops == 0)
        return transfer;
    const double used = quantisation(shape, family->multiprocessors) * alignment(shape);
    return MAX(flops / (best * used * k / (k + k0)), transfer);
}

static double cuda_memory(const MemoryWork *work, const Topology *topology,
                          const ComputeContext *context)
{
    (void)context;
    return work->bytes /
           (gpu_family(topology->gpu.name)->memory_fraction * topology->gpu.memory_bytes_per_s);
}

/* Of attention. */
typedef struct {
    double forward, backward;
} KernelRate;

/* Beside FlashAttention-2 of the same GPU: before Hopper, from Hopper on.  FlashAttention 1: half
 * (Dao 2023, arXiv 2307.08691, abstract: 25 to 40% of peak where version 2 reaches 50 to 73%).
 * Triton's: its figs. 4 to 7. */
static const KernelRate kernel_rates[NUM_ATTENTION_KERNELS][2] = {
    [ATTENTION_FLASH_2] = {{1, 1}, {1, 1}},
    [ATTENTION_FLASH_1] = {{0.5, 0.5}, {0.5, 0.5}},
    [ATTENTION_FLASH_TRITON] = {{0.8, 0.6}, {0.52, 0.5}},
    [ATTENTION_CUDNN] = {{1, 1}},
    [ATTENTION_CUDNN_2026] = {{1, 1}},
    [ATTENTION_CUDNN_FP8] = {{1, 1}},
};

enum { NOT_CUDNN, CUDNN_BEFORE, CUDNN_2026, CUDNN_FP8, NUM_CUDNN };

/* Of dense bf16 peak at a short benchmark's clock; heads of 128, causal, 4k to 16k tokens
 * (NVIDIA/cudnn-frontend, benchmark).  Before 2026: 9.1 of May 2024 on H200 (sdpa_benchmark), 9.10
 * on B200 and 9.13 on GB300 through PyTorch (sdpa_benchmark_training/artifacts).  In bf16 and in
 * fp8 9.19 on H200, GB200 and GB300 (results/..._919_only_cudnn, February 2026).  Hopper's backward
 * pass in fp8 is slower than in bf16, which is taken.  Blackwell Ultra has twice the exponentials a
 * clock. */
static const KernelRate cudnn_rates[NUM_GENERATIONS][NUM_CUDNN] = {
    [HOPPER] =
        {[CUDNN_BEFORE] = {0.72, 0.53}, [CUDNN_2026] = {0.73, 0.61}, [CUDNN_FP8] = {0.73, 0.61}},
    [BLACKWELL] =
        {[CUDNN_BEFORE] = {0.60, 0.48}, [CUDNN_2026] = {0.70, 0.585}, [CUDNN_FP8] = {0.88, 0.66}},
    [BLACKWELL_ULTRA] =
        {[CUDNN_BEFORE] = {0.70, 0.52}, [CUDNN_2026] = {0.84, 0.615}, [CUDNN_FP8] = {1.22, 0.70}},
};

/* A score takes as long as with heads of so many values, be they smaller: its exponential and the
 * tiles, not its products, bound it then.  From heads of 64 beside those of 128 in the same
 * results: windows of 1,024 tokens reach 358 and 299 (H200), 632 and 660 (GB200), 748 and 689
 * TFLOP/s (GB300).  In fp8: those of cuDNN 9.22 (results/gpt_oss, April 2026); forward twice as
 * many heads of half the width take twice as long. */
static const KernelRate least_head_dim[NUM_GENERATIONS][2] = {
    [HOPPER] = {{86, 86}, {86, 86}},
    [BLACKWELL] = {{119, 95}, {128, 106}},
    [BLACKWELL_ULTRA] = {{120, 95}, {128, 95}},
};

static guint cudnn_version(const GpuFamily *family, AttentionKernel kernel)
{
    static const guint versions[NUM_ATTENTION_KERNELS] = {
        [ATTENTION_CUDNN] = CUDNN_BEFORE,
        [ATTENTION_CUDNN_2026] = CUDNN_2026,
        [ATTENTION_CUDNN_FP8] = CUDNN_FP8,
    };

    return family->generation == BEFORE_HOPPER ? NOT_CUDNN : versions[kernel];
}

/* Of dense peak, on long sequences. */
static KernelRate attention_rate(const GpuFamily *family, AttentionKernel kernel)
{
    const guint version = cudnn_version(family, kernel);
    const double clock = family->sustained_clock;

    if (version != NOT_CUDNN) {
        const KernelRate *rate = &cudnn_rates[family->generation][version];

        return (KernelRate){clock * rate->forward, clock * rate->backward};
    }
    const KernelRate *beside = &kernel_rates[kernel][family->generation != BEFORE_HOPPER];
    return (KernelRate){family->attention_forward * beside->forward,
                        family->attention_backward * beside->backward};
}

/* Bytes that softmax and dropout move of a score: with scale, mask and softmax in one kernel (read,
 * write; dropout read, write, mask), and each by itself. */
typedef struct {
    double forward, backward;
} ScoreBytes;

static const ScoreBytes score_bytes[2] = {{10, 16}, {32, 32}};

static double of_pass(const KernelRate *rate, const Op *op)
{
    return op->kind == OP_ATTENTION ? rate->forward : rate->backward;
}

/* Of the products' time, what scores take with heads as small as the op's. */
static double small_heads(const Op *op, const GpuFamily *family, AttentionKernel kernel)
{
    const double dim = (double)(op->sizes.head_dim + op_value_dim(op)) / 2;
    const guint version = cudnn_version(family, kernel);

    if (version == NOT_CUDNN)
        return 1;
    return MAX(1, of_pass(&least_head_dim[family->generation][version == CUDNN_FP8], op) / dim);
}

/* Of bf16, that a multiprocessor does a clock: peak / multiprocessors / boost clock. */
static const double flops_per_clock[NUM_GENERATIONS] = {2048, 4096, 8192, 8192};

/**
 * dropout_seconds: random numbers for the scores of flash attention, in its forward pass and again
 * in the backward one.
 *
 *     t = S c F / (peak * clock)
 *
 *     S  scores      c  0.2 clocks a score      F  flops_per_clock      clock  sustained_clock
 *
 * Philox-4x32 of 10 rounds gives four numbers with 20 xors and 20 sums of keys; with comparison,
 * selection and scale 13 integer operations a score, of which a multiprocessor does 64 a clock
 * (CUDA C++ Programming Guide, "Arithmetic Instructions").  Nothing of the kernel hides them: both
 * are bound by what issues instructions (Ma et al., arXiv 2410.07531).
 */
static double dropout_seconds(const Op *op, const GpuFamily *family, const Topology *topology)
{
    const double dim = (double)op->sizes.head_dim, value_dim = (double)op_value_dim(op);
    const double products = op->kind == OP_ATTENTION ? dim + value_dim : 3 * dim + 2 * value_dim;
    const double scores = op_flops(op) / (2 * products);
    const double clocks = 13.0 / 64;

    return scores * clocks * flops_per_clock[family->generation] /
           (gpu_peak_flops(&topology->gpu, DTYPE_BF16) * family->sustained_clock);
}

/**
 * flash_seconds: causal flash attention, forward or backward.
 *
 *     t = F / (peak * fraction * s / (s + s0)) * max(1, d0 / d)
 *
 *     F   FLOPs as issued (causal half)     s0  causal_waste_tokens
 *     s   keys of a sequence, of those in windows as many as a causal one with these pairs has
 *     d   head dimension                    d0  least_head_dim
 *
 * With windows of 128 in 4,096 tokens and heads of 64 cuDNN 9.22 takes 0.210 and 0.465 ms on GB200
 * (results/gpt_oss), this 0.18 and 0.44.  Its backward pass in fp8 takes no less for windows (the
 * time grows with the square of the sequence there).  Left out: grouped queries; smaller heads in
 * other kernels, for which the fractions of 128 are taken.
 */
static double flash_seconds(const Op *op, const Topology *topology, AttentionKernel kernel)
{
    const GpuFamily *family = gpu_family(topology->gpu.name);
    const KernelRate rate = attention_rate(family, kernel);
    Op seen = *op;

    if (kernel == ATTENTION_CUDNN_FP8 && op->kind == OP_ATTENTION_BACKWARD)
        seen.sizes.seen = 0;
    const double seq = (double)(op_key_blocks(&seen) * seen.sizes.seq) * op_seen_pairs(&seen);
    const double at_128 =
        op_flops(&seen) / (gpu_peak_flops(&topology->gpu, op->dtype) * of_pass(&rate, op) * seq /
                           (seq + gpu_common.causal_waste_tokens));
    return at_128 * small_heads(op, family, kernel);
}

/* Of what products of scores take, beside that of other misaligned ones: loads are as wide as a
 * head's row allows, 16 bytes or less, so their rate falls with the largest power of two that
 * divides it (Anthony et al. 2024, arXiv 2401.14489, products of attention). */
static double narrow_loads(guint64 head_dim, DType dtype)
{
    const guint64 bytes = head_dim * (guint64)dtype_bytes(dtype);
    const guint64 width = bytes & -bytes;

    return width >= 16 ? 1 : gpu_common.misaligned_rate * 16 / (double)width;
}

/**
 * unfused_seconds: attention whose scores are in memory.
 *
 *     t = n T(M, T, D) + b B H T Tk / (0.85 HBM)      M = B H T rows of scores, Tk keys
 *
 *     n  products of the size of Q K^T: 2 forward, 4 backward; narrow_loads() times as long
 *     b  bytes_per_score
 *
 * The full square: kernels of products know no mask.
 */
static double unfused_seconds(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const ScoreBytes *bytes = &score_bytes[context->framework->attention == ATTENTION_UNFUSED];
    const gboolean forward = op->kind == OP_ATTENTION;
    const GemmShape product = {.m = op->sizes.batch * op->sizes.heads * op->sizes.seq,
                               .n = op_key_blocks(op) * op->sizes.seq,
                               .k = op->sizes.head_dim};
    const MemoryWork scores = {
        .op = op_kind_name(op->kind),
        .dtype = op->dtype,
        .bytes =
            (forward ? bytes->forward : bytes->backward) * (double)product.m * (double)product.n,
    };

    const double narrow = narrow_loads(product.k, op->dtype);

    return (forward ? 2 : 4) * narrow * cuda_gemm(&product, op->dtype, topology, context) +
           cuda_memory(&scores, topology, context);
}

/* Of the mean of a cp group, the work of its last rank, (2 n - 1) / n, where parts are not dealt
 * out in zigzag: its queries see all keys before them. */
static double slowest_share(const ComputeContext *context)
{
    const double ranks = MAX(context->context_ranks, 1);

    return framework_or_default(context->framework)->context_plain ? (2 * ranks - 1) / ranks : 1;
}

/* Attention to chosen keys, of dense bf16 peak: FlashMLA's forward kernel, 640 TFLOP/s on H800 and
 * 1450 on B200 (deepseek-ai/FlashMLA, README, September 2025); cuDNN's backward
 * one with 64 heads and 2,048 keys, 659 and 642 on B200 (NVIDIA/cudnn-frontend, benchmark/dsa), and
 * Hopper, of which there is no figure, is taken to reach that fraction. */
static const KernelRate indexed_rate = {640.0 / 989, 650.0 / 2250};

/* Of the work of a query's heads that of those which a kernel takes at a time: FlashMLA's 64 on
 * Hopper and 128 on Blackwell, up to which its callers pad (sgl-project/sglang, dsa_backend.py); 64
 * in others, with which cuDNN's was measured.  The indexer's own kernels take theirs. */
static double padded_heads(const Op *op, const GpuFamily *family)
{
    const gboolean wide = op->kind == OP_INDEXED_ATTENTION && family->generation >= BLACKWELL;
    const guint64 heads = op->sizes.heads, at_once = wide ? 128 : 64;

    if (op->kind == OP_INDEX || op->kind == OP_INDEX_BACKWARD)
        return 1;
    return (double)(ceil_divide(heads, at_once) * at_once) / (double)heads;
}

/**
 * indexed_seconds: attention to chosen keys and what chooses them.
 *
 *     t = F p / (peak * fraction * clock)
 *
 *     F  FLOPs of op_flops()   fraction  of indexed_rate; before Hopper, of FlashAttention-2
 *     p  padded_heads()
 *
 * The largest of a query's scores are found in what the device writes and reads again, 4 bytes a
 * pair twice.  Left out: rows with fewer keys than are chosen, where tiles are partly idle; for the
 * indexer's own products there are no published rates: they are taken to reach attention's.
 */
static double indexed_seconds(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const GpuFamily *family = gpu_family(topology->gpu.name);
    const gboolean backward =
        op->kind == OP_INDEXED_ATTENTION_BACKWARD || op->kind == OP_INDEX_BACKWARD;
    const KernelRate flash = {family->attention_forward, family->attention_backward};
    const KernelRate *rate = family->generation == BEFORE_HOPPER ? &flash : &indexed_rate;
    const double fraction = (backward ? rate->backward : rate->forward) * family->sustained_clock;
    const double scores =
        (double)(op->sizes.batch * op->sizes.seq) * (double)(op_key_blocks(op) * op->sizes.seq) / 2;
    const MemoryWork sorted = {
        .op = op_kind_name(op->kind), .dtype = DTYPE_FP32, .bytes = 2 * 4 * scores};

    return op_flops(op) * padded_heads(op, family) /
               (gpu_peak_flops(&topology->gpu, op->dtype) * fraction) +
           (op->kind == OP_INDEX ? cuda_memory(&sorted, topology, context) : 0);
}

static double cuda_attention(const Op *op, const Topology *topology, const ComputeContext *context)
{
    const Framework *framework = framework_or_default(context->framework);
    const AttentionKernel kernel = framework->attention;

    if (op_is_indexed(op))
        return indexed_seconds(op, topology, context);
    if (kernel == ATTENTION_FUSED_MASK || kernel == ATTENTION_UNFUSED)
        return unfused_seconds(op, topology, context);
    const double random_s =
        framework->drops_scores ? dropout_seconds(op, gpu_family(topology->gpu.name), topology) : 0;
    return (flash_seconds(op, topology, kernel) + random_s) * slowest_share(context);
}

static double cuda_overhead(const Topology *topology, const ComputeContext *context)
{
    (void)topology;
    (void)context;
    return gpu_common.launch_s;
}

/* A GPU is one rank's alone. */
static MeasuredLoad cuda_load(const ComputeContext *context)
{
    (void)context;
    return (MeasuredLoad){.busy = 1, .threads = 1, .cores = 1};
}

static guint64 cuda_attention_keys(const Op *op)
{
    return (guint64)((double)(op_key_blocks(op) * op->sizes.seq) * op_seen_pairs(op));
}

const DeviceCost device_cost_cuda = {
    .gemm = cuda_gemm,
    .attention = cuda_attention,
    .memory = cuda_memory,
    .overhead = cuda_overhead,
    .load = cuda_load,
    .attention_keys = cuda_attention_keys,
};
