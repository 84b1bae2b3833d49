/* Time of compute ops: worked values, limits, what calibration measured. */
#include "sim/cost/compute.h"
#include "sim/program/program.h"
#include "tests/sim/compute_case.h"

static void add_gemm(Topology *topology, guint busy, guint threads, guint64 side, double rate)
{
    const MeasuredGemm row = {.dtype = DTYPE_FP32,
                              .busy = busy,
                              .threads = threads,
                              .m = side,
                              .n = side,
                              .k = side,
                              .flops_per_s = rate};

    g_array_append_val(topology->measured.gemm, row);
}

static void add_op(Topology *topology, const char *op, guint64 size, guint64 width, double rate)
{
    const MeasuredOp row = {.op = (char *)op,
                            .dtype = DTYPE_FP32,
                            .busy = 1,
                            .threads = 1,
                            .size = size,
                            .width = width,
                            .per_s = rate};

    g_array_append_val(topology->measured.ops, row);
}

static Op linear(OpKind kind, DType dtype, guint64 rows, guint64 in, guint64 out)
{
    return (Op){.kind = kind,
                .dtype = dtype,
                .dtype_out = dtype,
                .sizes = {.rows = rows, .in = in, .out = out}};
}

/* ---- GPUs ---- */

/* 12 x 9 tiles of 256 x 128 are one full wave of 108 multiprocessors: u = 1.  Peak 312 TFLOP/s,
 * times 271.2 / 312, times clock 0.90 = 244.08; K 1024 of 1024 + 128 leaves 216.96. */
START_TEST(a_product_that_fills_one_wave_runs_at_the_best_rate)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"A100-SXM-80");
    const Op op = linear(OP_LINEAR, DTYPE_BF16, 3072, 1024, 1152);

    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone),
                            2.0 * 3072 * 1152 * 1024 / 216.96e12 + LAUNCH_S, 1e-12);
}
END_TEST

/* 12 x 11 tiles of 256 x 128 are one wave of 132.  fp8's peak of 1979 TFLOP/s, times 1463.7 / 1979,
 * times clock 0.85; a row of A fills the pipeline after 460 bytes, in fp8 460 elements. */
START_TEST(an_fp8_product_runs_at_its_own_rate_and_fills_later)
{
    g_auto(Topology) h100 = test_topology(DEVICE_CUDA, (char *)"h100-sxm-80gb");
    const Op fp8 = linear(OP_LINEAR, DTYPE_FP8, 3072, 4096, 1408);

    h100.gpu.memory_bytes_per_s = 3e12;
    ck_assert_double_eq_tol(
        compute_op_seconds(&fp8, &h100, &alone),
        2.0 * 3072 * 1408 * 4096 / (1463.7e12 * 0.85 * 4096 / (4096 + 460)) + LAUNCH_S, 1e-12);
}
END_TEST

/* 64 columns of a 8192 x 8192 weight: (8192 * 8192 + 8192 * 64) bytes in, 2 * 8192 * 64 out. */
START_TEST(fp8_factors_are_half_as_long_to_read_and_results_are_not)
{
    g_auto(Topology) h100 = test_topology(DEVICE_CUDA, (char *)"h100");
    const Op fp8 = linear(OP_LINEAR, DTYPE_FP8, 64, 8192, 8192);

    ck_assert_double_eq_tol(compute_op_seconds(&fp8, &h100, &alone),
                            (67633152.0 + 1048576.0) / 0.9e12 + LAUNCH_S, 1e-12);
}
END_TEST

/* 13 x 9 tiles of 256 x 128 are two waves, the second almost empty (u 0.54).  Best are 26 x 18
 * tiles of 128 x 64 in 5 waves: 0.80 * 3328 * 1152 / (128 * 64 * 540) = 0.69333. */
START_TEST(an_almost_empty_second_wave_makes_smaller_tiles_better)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100-sxm");
    const Op op = linear(OP_LINEAR, DTYPE_BF16, 3328, 1024, 1152);
    const double used = 0.80 * 3328 * 1152 / (128.0 * 64 * 540);

    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone),
                            2.0 * 3328 * 1152 * 1024 / (216.96e12 * used) + LAUNCH_S, 1e-12);
}
END_TEST

/* 64 columns of a 8192 x 8192 weight: (8192 * 8192 + 2 * 8192 * 64) * 2 bytes at 0.9 TB/s. */
START_TEST(a_thin_product_is_bound_by_memory)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Op op = linear(OP_LINEAR, DTYPE_BF16, 64, 8192, 8192);

    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone), 136314880.0 / 0.9e12 + LAUNCH_S,
                            1e-12);
}
END_TEST

START_TEST(unaligned_dimensions_are_slower)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Op aligned = linear(OP_LINEAR, DTYPE_BF16, 4096, 4096, 4096);
    const Op by_eight = linear(OP_LINEAR, DTYPE_BF16, 4096, 4088, 4096);
    const Op odd = linear(OP_LINEAR, DTYPE_BF16, 4096, 4095, 4096);
    const double whole = compute_op_seconds(&aligned, &a100, &alone);

    ck_assert_double_gt(compute_op_seconds(&by_eight, &a100, &alone), 1.1 * whole);
    ck_assert_double_gt(compute_op_seconds(&odd, &a100, &alone), 1.6 * whole);
}
END_TEST

/* m n k of the three products are the same; only the shape of the result differs. */
START_TEST(gradients_of_a_square_linear_cost_what_it_costs)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Op forward = linear(OP_LINEAR, DTYPE_BF16, 2048, 2048, 2048);
    const Op input = linear(OP_LINEAR_BACKWARD_INPUT, DTYPE_BF16, 2048, 2048, 2048);
    const Op weight = linear(OP_LINEAR_BACKWARD_WEIGHT, DTYPE_BF16, 2048, 2048, 2048);
    const double seconds = compute_op_seconds(&forward, &a100, &alone);

    ck_assert_double_eq(compute_op_seconds(&input, &a100, &alone), seconds);
    ck_assert_double_eq(compute_op_seconds(&weight, &a100, &alone), seconds);
}
END_TEST

/* x(64, 8192) W(1024, 8192): forward has the small result 64 x 1024 with K 8192, the gradient of
 * the weight 1024 x 8192 with K 64, which pays the pipeline fill k0 = 128: K / (K + k0) = 1/3. */
START_TEST(a_weight_gradient_over_few_rows_pays_the_pipeline_fill)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    a100.gpu.memory_bytes_per_s = 1e15; /* not the bound here */
    const Op weight = linear(OP_LINEAR_BACKWARD_WEIGHT, DTYPE_BF16, 64, 9216, 768);

    /* 768 x 9216 is 3 x 72 tiles of 256 x 128: two full waves */
    ck_assert_double_eq_tol(compute_op_seconds(&weight, &a100, &alone),
                            2.0 * 768 * 9216 * 64 / (244.08e12 / 3) + LAUNCH_S, 1e-12);
}
END_TEST

/* 2 * 2 * 3072^2 * 32 * 128 FLOPs at 312e12 * 0.55 * 3072 / (3072 + 1024); backward 5/2 of the
 * FLOPs at 0.45. */
START_TEST(attention_runs_at_its_fraction_of_peak)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Op forward = attention(OP_ATTENTION, 3072);
    const Op backward = attention(OP_ATTENTION_BACKWARD, 3072);
    const double flops = 4.0 * 3072 * 3072 * 32 * 128;

    ck_assert_double_eq_tol(compute_op_seconds(&forward, &a100, &alone),
                            flops / (312e12 * 0.55 * 0.75) + LAUNCH_S, 1e-12);
    ck_assert_double_eq_tol(compute_op_seconds(&backward, &a100, &alone),
                            2.5 * flops / (312e12 * 0.45 * 0.75) + LAUNCH_S, 1e-12);
}
END_TEST

/* Two blocks of keys by positions: twice the FLOPs, at the rate of keys twice as many. */
START_TEST(attention_by_positions_runs_at_the_rate_of_all_its_keys)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    Op op = attention(OP_ATTENTION, 1536);

    op.sizes.chunk = 2;
    for (guint i = 0; i < 8; i++)
        op_add_operand(&op, i, ACCESS_READ, 0, WHOLE_TENSOR);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone),
                            2 * 4.0 * 1536 * 1536 * 32 * 128 / (312e12 * 0.55 * 0.75) + LAUNCH_S,
                            1e-12);
}
END_TEST

/* Three quarters of the pairs in windows: the FLOPs, and the rate, of that many keys. */
START_TEST(attention_in_windows_runs_at_the_rate_of_the_keys_it_sees)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    Op op = attention(OP_ATTENTION, 4096);

    op.sizes.seen = 0.75;
    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone),
                            0.75 * 4.0 * 4096 * 4096 * 32 * 128 / (312e12 * 0.55 * 0.75) + LAUNCH_S,
                            1e-12);
}
END_TEST

/* 3072 x 1152 of bf16 at 0.85 of 1 TB/s, on top of the product; of experts the same. */
START_TEST(the_gradient_of_a_bias_reads_the_columns_it_sums)
{
    const OpKind gradient = _i == 0 ? OP_LINEAR_BACKWARD_WEIGHT : OP_GROUPED_LINEAR_BACKWARD_WEIGHT;
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    Op op = linear(gradient, DTYPE_BF16, 3072, 1024, 1152);

    for (guint i = 0; i < 4; i++)
        op_add_operand(&op, i, ACCESS_READ, 0, WHOLE_TENSOR);
    const double without = compute_op_seconds(&op, &a100, &alone);
    op_add_operand(&op, 4, ACCESS_ACCUMULATE, 0, WHOLE_TENSOR);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone) - without,
                            3072.0 * 1152 * 2 / 0.85e12, 1e-15);

    op.kind = _i == 0 ? OP_LINEAR : OP_GROUPED_LINEAR; /* its bias costs nothing */
    const double with = compute_op_seconds(&op, &a100, &alone);
    op.num_operands = 4;
    ck_assert_double_eq(compute_op_seconds(&op, &a100, &alone), with);
}
END_TEST

/* 1152 x 1024 of 16 bits read, of fp32 read and written, at 0.85 of 1 TB/s. */
START_TEST(a_framework_may_add_gradients_beside_their_products)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    Framework adds = *framework_default();
    ComputeContext context = alone;

    context.framework = &adds;
    adds.gradient_more = 10;
    for (OpKind kind = 0; kind < NUM_OPS; kind++) {
        const Op op = linear(kind, DTYPE_BF16, 3072, 1024, 1152);
        const gboolean gradient =
            kind == OP_LINEAR_BACKWARD_WEIGHT || kind == OP_GROUPED_LINEAR_BACKWARD_WEIGHT;

        if (op_class(kind) == OP_CLASS_GEMM && kind != OP_HEAD_LOSS && kind != OP_HEAD_STATS)
            ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &context) -
                                        compute_op_seconds(&op, &a100, &alone),
                                    gradient ? 10.0 * 1152 * 1024 / 0.85e12 : 0, 1e-15);
    }
}
END_TEST

START_TEST(a_memory_bound_op_moves_its_bytes)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Op op = accumulate(1000000);

    ck_assert_double_eq_tol(compute_op_seconds(&op, &a100, &alone), 12e6 / 0.85e12 + LAUNCH_S,
                            1e-15);
}
END_TEST

START_TEST(an_op_without_elements_takes_the_launch_alone)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Op nothing = accumulate(0), no_rows = linear(OP_LINEAR, DTYPE_BF16, 0, 64, 0);

    ck_assert_double_eq(compute_op_seconds(&nothing, &a100, &alone), LAUNCH_S);
    ck_assert_double_eq(compute_op_seconds(&no_rows, &a100, &alone), LAUNCH_S);
}
END_TEST

START_TEST(unknown_gpus_share_the_generic_row)
{
    g_auto(Topology) one = test_topology(DEVICE_CUDA, (char *)"accelerator");
    g_auto(Topology) other = test_topology(DEVICE_CUDA, (char *)"frobnicator 9");
    g_auto(Topology) h100 = test_topology(DEVICE_CUDA, (char *)"NVIDIA H100-SXM");
    const Op op = linear(OP_LINEAR, DTYPE_BF16, 4096, 4096, 4096);
    const double seconds = compute_op_seconds(&op, &one, &alone);

    ck_assert_double_eq(compute_op_seconds(&op, &other, &alone), seconds);
    ck_assert_double_ne(compute_op_seconds(&op, &h100, &alone), seconds);
}
END_TEST

/* The head is its three products (a launch is counted once) and 12 bytes a logit of softmax, for
 * every chunk; the last one may be short. */
START_TEST(head_loss_is_three_products_and_a_softmax_for_each_chunk)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const guint64 chunks[] = {1024, 1024, 512};
    Op head = linear(OP_HEAD_LOSS, DTYPE_BF16, 2560, 2048, 32000);
    double expected = LAUNCH_S;

    head.sizes.chunk = 1024;
    for (guint i = 0; i < G_N_ELEMENTS(chunks); i++) {
        const OpKind kinds[] = {OP_LINEAR, OP_LINEAR_BACKWARD_INPUT, OP_LINEAR_BACKWARD_WEIGHT};
        for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
            const Op product = linear(kinds[k], DTYPE_BF16, chunks[i], 2048, 32000);
            expected += compute_op_seconds(&product, &a100, &alone) - LAUNCH_S;
        }
        expected += 12.0 * (double)chunks[i] * 32000 / 0.85e12;
    }
    ck_assert_double_eq_tol(compute_op_seconds(&head, &a100, &alone), expected, 1e-12);
}
END_TEST

/* ---- CPUs without calibration ---- */

/* 0.65 of 20 TFLOP/s a thread, and 1 us an op. */
START_TEST(nominal_cores_scale_with_threads_and_are_shared_beyond_their_number)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    const Op op = linear(OP_LINEAR, DTYPE_FP32, 1000, 1000, 1000);
    const ComputeContext two_threads = {.busy = 1, .threads = 2, .cores = 2};
    const ComputeContext two_ranks = {.busy = 2, .threads = 1, .cores = 2};
    const ComputeContext four_ranks = {.busy = 4, .threads = 1, .cores = 2};
    const double work = 2e9 / 13e12;

    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &alone), work + 1e-6, 1e-12);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &two_threads), work / 2 + 1e-6, 1e-12);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &two_ranks), work + 1e-6, 1e-12);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &four_ranks), 2 * (work + 1e-6), 1e-12);
}
END_TEST

/* 12 MB at 1 TB/s; ranks at once divide it, so do more ranks than cores. */
START_TEST(nominal_memory_bandwidth_is_divided_among_busy_ranks)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    const Op op = accumulate(1000000);
    const ComputeContext two = {.busy = 2, .threads = 1, .cores = 2};
    const ComputeContext four = {.busy = 4, .threads = 1, .cores = 2};

    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &alone), 12e-6 + 1e-6, 1e-15);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &two), 24e-6 + 1e-6, 1e-15);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &four), 48e-6 + 2e-6, 1e-15);
}
END_TEST

/* ---- calibrated CPUs ---- */

static double product_rate(const Topology *cpu, guint64 side, const ComputeContext *context)
{
    const Op op = linear(OP_LINEAR, DTYPE_FP32, side, side, side);

    return op_flops(&op) / compute_op_seconds(&op, cpu, context);
}

START_TEST(a_measured_product_has_exactly_its_measured_rate)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 10e9);
    add_gemm(&cpu, 1, 1, 256, 40e9);
    add_gemm(&cpu, 1, 1, 1024, 60e9);

    ck_assert_double_eq_tol(product_rate(&cpu, 64, &alone), 10e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 256, &alone), 40e9, 1);
}
END_TEST

/* 128 is as far from 64 as from 256: sqrt(10 * 40) = 20. */
START_TEST(between_two_measured_products_the_rate_is_between_theirs)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 10e9);
    add_gemm(&cpu, 1, 1, 256, 40e9);

    ck_assert_double_eq_tol(product_rate(&cpu, 128, &alone), 20e9, 1e3);
}
END_TEST

START_TEST(beyond_the_measured_products_the_rate_is_that_of_the_edge)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 10e9);
    add_gemm(&cpu, 1, 1, 256, 40e9);

    ck_assert_double_eq_tol(product_rate(&cpu, 8, &alone), 10e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 100000, &alone), 40e9, 1);
}
END_TEST

START_TEST(four_ranks_on_two_cores_have_half_the_rate_of_two)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    add_gemm(&cpu, 2, 1, 64, 50e9);
    const ComputeContext two = {.busy = 2, .threads = 1, .cores = 2};
    const ComputeContext four = {.busy = 4, .threads = 1, .cores = 2};

    ck_assert_double_eq_tol(product_rate(&cpu, 64, &alone), 60e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 64, &two), 50e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 64, &four), 25e9, 1);
}
END_TEST

/* 1 and 5 busy of 8 cores were measured: 3 take the mean of the times, 7 those of 5. */
START_TEST(busy_ranks_between_measured_counts_take_times_between)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    add_gemm(&cpu, 5, 1, 64, 20e9);
    const ComputeContext three = {.busy = 3, .threads = 1, .cores = 8};
    const ComputeContext seven = {.busy = 7, .threads = 1, .cores = 8};

    ck_assert_double_eq_tol(product_rate(&cpu, 64, &three), 30e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 64, &seven), 20e9, 1);
}
END_TEST

START_TEST(measured_threads_are_used_and_others_scaled_from_the_nearest)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    add_gemm(&cpu, 1, 8, 64, 400e9);
    const ComputeContext eight = {.busy = 1, .threads = 8, .cores = 8};
    const ComputeContext four = {.busy = 1, .threads = 4, .cores = 8};
    const ComputeContext two_of_eight = {.busy = 2, .threads = 8, .cores = 8};

    ck_assert_double_eq_tol(product_rate(&cpu, 64, &eight), 400e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 64, &four), 200e9, 1);
    ck_assert_double_eq_tol(product_rate(&cpu, 64, &two_of_eight), 200e9, 1);
}
END_TEST

/* bf16 without rows of its own: fp32's 2e9 / 40e9 s, and 3e6 elements of 2 + 4 bytes at 6 GB/s. */
START_TEST(unmeasured_bf16_is_fp32_and_its_casts)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 1000, 40e9);
    add_op(&cpu, "cast", 1000, 0, 6e9);
    const Op op = linear(OP_LINEAR, DTYPE_BF16, 1000, 1000, 1000);

    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &alone), 0.05 + 0.003, 1e-12);
}
END_TEST

/* 1.2 kB and 120 kB were measured; 12 kB lies midway in logarithms: sqrt(16 * 4) = 8 GB/s. */
START_TEST(a_measured_memory_bound_op_interpolates_over_its_bytes)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    add_op(&cpu, "accumulate", 1200, 0, 16e9);
    add_op(&cpu, "accumulate", 120000, 0, 4e9);
    add_op(&cpu, "swiglu", 12000, 0, 1e9);
    const Op small = accumulate(100), middle = accumulate(1000), huge = accumulate(1000000);

    ck_assert_double_eq_tol(compute_op_seconds(&small, &cpu, &alone), 1.2e3 / 16e9, 1e-15);
    ck_assert_double_eq_tol(compute_op_seconds(&middle, &cpu, &alone), 12e3 / 8e9, 1e-15);
    ck_assert_double_eq_tol(compute_op_seconds(&huge, &cpu, &alone), 12e6 / 4e9, 1e-12);
}
END_TEST

/* AdamW in fp32 reads and writes parameter, m and v and reads the gradient: 28 bytes an element of
 * this rank's, and its few scalars. */
START_TEST(an_optimizer_moves_what_this_rank_holds_of_the_unit)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    add_op(&cpu, "adamw", 1000, 0, 2e9);
    Op op = {.kind = OP_ADAMW, .dtype = DTYPE_FP32, .dtype_out = DTYPE_FP32};
    const Access access[] = {ACCESS_UPDATE, ACCESS_READ, ACCESS_UPDATE,
                             ACCESS_UPDATE, ACCESS_READ, ACCESS_READ};
    const ComputeContext shard = {.busy = 1, .threads = 1, .cores = 2, .unit_elements = 1000000};

    for (guint i = 0; i < G_N_ELEMENTS(access); i++)
        op_add_operand(&op, i, access[i], 0, WHOLE_TENSOR);
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &shard), 28e6 / 2e9, 1e-6);
}
END_TEST

START_TEST(measured_attention_is_looked_up_by_sequence_and_head_size)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    add_op(&cpu, "attention", 128, 128, 10e9);
    add_op(&cpu, "attention", 512, 128, 30e9);
    add_op(&cpu, "attention_backward", 512, 128, 5e9);
    Op op = attention(OP_ATTENTION, 512);

    op.dtype = op.dtype_out = DTYPE_FP32;
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &alone), op_flops(&op) / 30e9, 1e-9);
    op.kind = OP_ATTENTION_BACKWARD;
    ck_assert_double_eq_tol(compute_op_seconds(&op, &cpu, &alone), op_flops(&op) / 5e9, 1e-9);
}
END_TEST

START_TEST(every_measured_op_pays_the_measured_overhead)
{
    g_auto(Topology) cpu = test_topology(DEVICE_CPU, (char *)"core");
    add_gemm(&cpu, 1, 1, 64, 60e9);
    cpu.measured.op_overhead_s = 5e-7;
    const Op nothing = accumulate(0);
    const ComputeContext four = {.busy = 4, .threads = 1, .cores = 2};

    ck_assert_double_eq(compute_op_seconds(&nothing, &cpu, &alone), 5e-7);
    ck_assert_double_eq(compute_op_seconds(&nothing, &cpu, &four), 10e-7);
}
END_TEST

/* ---- measured on a GPU ---- */

/* Rows of fp32: bf16 has none and keeps its nominal figures.  The products of another framework are
 * the same library's; its attention is another kernel. */
START_TEST(a_measured_gpu_has_its_own_rates)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    const Framework *megatron = framework_from_name("megatron");
    const ComputeContext foreign = {.busy = 1, .threads = 1, .cores = 2, .framework = megatron};
    const Op product = linear(OP_LINEAR, DTYPE_FP32, 1024, 1024, 1024);
    const Op narrow = linear(OP_LINEAR, DTYPE_BF16, 1024, 1024, 1024);
    Op scores = attention(OP_ATTENTION, 512);
    scores.dtype = scores.dtype_out = DTYPE_FP32;
    const double nominal_narrow = compute_op_seconds(&narrow, &a100, &alone);
    const double nominal_foreign = compute_op_seconds(&scores, &a100, &foreign);

    add_gemm(&a100, 1, 1, 1024, 15e12);
    add_op(&a100, "attention", 512, 128, 9e12);
    add_op(&a100, "accumulate", 12000000, 0, 0.5e12);
    ck_assert_double_eq_tol(compute_op_seconds(&product, &a100, &alone),
                            2.0 * 1024 * 1024 * 1024 / 15e12 + LAUNCH_S, 1e-12);
    ck_assert_double_eq_tol(compute_op_seconds(&product, &a100, &foreign),
                            2.0 * 1024 * 1024 * 1024 / 15e12 + LAUNCH_S, 1e-12);
    ck_assert_double_eq(compute_op_seconds(&narrow, &a100, &alone), nominal_narrow);
    ck_assert_double_eq_tol(compute_op_seconds(&scores, &a100, &alone),
                            op_flops(&scores) / 9e12 + LAUNCH_S, 1e-12);
    ck_assert_double_eq(compute_op_seconds(&scores, &a100, &foreign), nominal_foreign);

    const Op sum = accumulate(1000000);
    ck_assert_double_eq_tol(compute_op_seconds(&sum, &a100, &alone), 12e6 / 0.5e12 + LAUNCH_S,
                            1e-12);
    a100.measured.op_overhead_s = 4e-6;
    ck_assert_double_eq_tol(compute_op_seconds(&sum, &a100, &alone), 12e6 / 0.5e12 + 4e-6, 1e-12);
}
END_TEST

static void add_bf16_op(Topology *topology, const char *op, double rate)
{
    add_op(topology, op, 512, 128, rate);
    g_array_index(topology->measured.ops, MeasuredOp, topology->measured.ops->len - 1).dtype =
        DTYPE_BF16;
}

/* Which a run takes: cuDNN has none with positions, and none where it was not measured. */
START_TEST(attention_has_the_rate_of_the_kernel_that_a_run_takes)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    Op causal = attention(OP_ATTENTION, 512), ring = causal;

    causal.dtype = causal.dtype_out = ring.dtype = ring.dtype_out = DTYPE_BF16;
    causal.num_operands = 6;
    ring.num_operands = 8;
    ring.sizes.chunk = 1;
    add_gemm(&a100, 1, 1, 1024, 15e12);
    add_bf16_op(&a100, "attention", 9e12);
    ck_assert_double_eq_tol(compute_op_seconds(&causal, &a100, &alone),
                            op_flops(&causal) / 9e12 + LAUNCH_S, 1e-12);
    add_bf16_op(&a100, "attention_cudnn", 20e12);
    ck_assert_double_eq_tol(compute_op_seconds(&causal, &a100, &alone),
                            op_flops(&causal) / 20e12 + LAUNCH_S, 1e-12);
    ck_assert_double_eq_tol(compute_op_seconds(&ring, &a100, &alone),
                            op_flops(&ring) / 9e12 + LAUNCH_S, 1e-12);
}
END_TEST

/* ---- all ---- */

START_TEST(more_rows_never_take_less_time)
{
    g_auto(Topology) a100 = test_topology(DEVICE_CUDA, (char *)"a100");
    g_auto(Topology) nominal = test_topology(DEVICE_CPU, (char *)"core");
    const Topology *topologies[] = {&a100, &nominal};
    const OpKind kinds[] = {OP_LINEAR, OP_LINEAR_BACKWARD_INPUT, OP_LINEAR_BACKWARD_WEIGHT};

    for (guint t = 0; t < G_N_ELEMENTS(topologies); t++)
        for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
            double before = 0;
            for (guint64 rows = 64; rows <= 65536; rows *= 2) {
                const Op op = linear(kinds[k], DTYPE_BF16, rows, 2048, 2048);
                const double seconds = compute_op_seconds(&op, topologies[t], &alone);
                ck_assert_double_ge(seconds, before);
                before = seconds;
            }
        }
}
END_TEST

/* One group is a plain product; 27 of them at once, of 2 x 2 tiles each, fill A100's 108
 * multiprocessors, of which one alone leaves most idle. */
START_TEST(experts_fill_a_gpu_together)
{
    g_auto(Topology) gpu = test_topology(DEVICE_CUDA, (char *)"A100");
    Op plain = {.kind = OP_LINEAR, .dtype = DTYPE_BF16, .dtype_out = DTYPE_BF16};
    Op grouped = plain;

    gpu.gpu.memory_bytes_per_s = 1e13; /* nothing waits for memory */
    plain.sizes = (OpSizes){.rows = 512, .in = 4096, .out = 256};
    grouped.kind = OP_GROUPED_LINEAR;
    grouped.sizes = plain.sizes;
    grouped.sizes.groups = 1;
    const double one = compute_op_seconds(&plain, &gpu, &alone) - LAUNCH_S;
    ck_assert_double_eq(compute_op_seconds(&grouped, &gpu, &alone) - LAUNCH_S, one);
    grouped.sizes.groups = 27;
    grouped.sizes.rows = 27 * 512;
    const double flops = 2.0 * 27 * 512 * 4096 * 256, k = 4096.0 / (4096 + 128);
    ck_assert_double_eq_tol(compute_op_seconds(&grouped, &gpu, &alone) - LAUNCH_S,
                            flops / (271.2e12 * 0.9 * k), 1e-9);
    ck_assert_double_lt(compute_op_seconds(&grouped, &gpu, &alone) - LAUNCH_S, 14 * one);
}
END_TEST

START_TEST(every_op_has_a_name_and_a_class)
{
    guint count[NUM_OP_CLASSES] = {0};

    for (OpKind kind = 0; kind < NUM_OPS; kind++) {
        ck_assert_ptr_nonnull(op_kind_name(kind));
        count[op_class(kind)]++;
    }
    ck_assert_uint_eq(count[OP_CLASS_COMMUNICATION], 5);
    ck_assert_uint_eq(count[OP_CLASS_GEMM], 8);
    ck_assert_uint_eq(count[OP_CLASS_ATTENTION], 7);
    ck_assert_uint_eq(count[OP_CLASS_OPTIMIZER], 5);
    ck_assert_str_eq(op_class_name(op_class(OP_ADAMW)), "optimizer");
    ck_assert_str_eq(op_class_name(op_class(OP_SWIGLU)), "memory_bound");
    ck_assert_str_eq(op_class_name(op_class(OP_HEAD_LOSS)), "gemm");
    ck_assert_str_eq(op_class_name(op_class(OP_HEAD_STATS)), "gemm");
    ck_assert_str_eq(op_class_name(op_class(OP_EXCHANGE)), "communication");
    ck_assert_str_eq(op_class_name(op_class(OP_ATTENTION_BACKWARD)), "attention");
}
END_TEST

static TCase *gpu_case(void)
{
    TCase *gpu = tcase_create("gpu");

    tcase_add_test(gpu, a_product_that_fills_one_wave_runs_at_the_best_rate);
    tcase_add_test(gpu, an_fp8_product_runs_at_its_own_rate_and_fills_later);
    tcase_add_test(gpu, fp8_factors_are_half_as_long_to_read_and_results_are_not);
    tcase_add_test(gpu, an_almost_empty_second_wave_makes_smaller_tiles_better);
    tcase_add_test(gpu, a_thin_product_is_bound_by_memory);
    tcase_add_test(gpu, unaligned_dimensions_are_slower);
    tcase_add_test(gpu, gradients_of_a_square_linear_cost_what_it_costs);
    tcase_add_test(gpu, a_weight_gradient_over_few_rows_pays_the_pipeline_fill);
    tcase_add_test(gpu, attention_runs_at_its_fraction_of_peak);
    tcase_add_test(gpu, attention_by_positions_runs_at_the_rate_of_all_its_keys);
    tcase_add_test(gpu, attention_in_windows_runs_at_the_rate_of_the_keys_it_sees);
    tcase_add_loop_test(gpu, the_gradient_of_a_bias_reads_the_columns_it_sums, 0, 2);
    tcase_add_test(gpu, a_framework_may_add_gradients_beside_their_products);
    tcase_add_test(gpu, a_memory_bound_op_moves_its_bytes);
    tcase_add_test(gpu, an_op_without_elements_takes_the_launch_alone);
    tcase_add_test(gpu, unknown_gpus_share_the_generic_row);
    tcase_add_test(gpu, head_loss_is_three_products_and_a_softmax_for_each_chunk);
    tcase_add_test(gpu, more_rows_never_take_less_time);
    tcase_add_test(gpu, experts_fill_a_gpu_together);
    tcase_add_test(gpu, every_op_has_a_name_and_a_class);
    return gpu;
}

static TCase *cpu_case(void)
{
    TCase *cpu = tcase_create("cpu");

    tcase_add_test(cpu, nominal_cores_scale_with_threads_and_are_shared_beyond_their_number);
    tcase_add_test(cpu, nominal_memory_bandwidth_is_divided_among_busy_ranks);
    tcase_add_test(cpu, a_measured_product_has_exactly_its_measured_rate);
    tcase_add_test(cpu, between_two_measured_products_the_rate_is_between_theirs);
    tcase_add_test(cpu, beyond_the_measured_products_the_rate_is_that_of_the_edge);
    tcase_add_test(cpu, four_ranks_on_two_cores_have_half_the_rate_of_two);
    tcase_add_test(cpu, busy_ranks_between_measured_counts_take_times_between);
    tcase_add_test(cpu, measured_threads_are_used_and_others_scaled_from_the_nearest);
    tcase_add_test(cpu, unmeasured_bf16_is_fp32_and_its_casts);
    tcase_add_test(cpu, a_measured_memory_bound_op_interpolates_over_its_bytes);
    tcase_add_test(cpu, an_optimizer_moves_what_this_rank_holds_of_the_unit);
    tcase_add_test(cpu, measured_attention_is_looked_up_by_sequence_and_head_size);
    tcase_add_test(cpu, every_measured_op_pays_the_measured_overhead);
    tcase_add_test(cpu, a_measured_gpu_has_its_own_rates);
    tcase_add_test(cpu, attention_has_the_rate_of_the_kernel_that_a_run_takes);
    return cpu;
}

int main(void)
{
    Suite *suite = suite_create("compute");

    suite_add_tcase(suite, gpu_case());
    suite_add_tcase(suite, cpu_case());
    return suite_run(suite);
}
