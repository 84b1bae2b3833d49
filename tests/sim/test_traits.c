#include "sim/program/cpu_blocks.h"
#include "sim/program/op.h"
#include "tests/suite.h"

/* An op whose operands have the given accesses: "r", "w", "u" or "a" each. */
static Op op_with(OpKind kind, DType dtype, OpSizes sizes, const char *accesses)
{
    Op op = {.kind = kind, .dtype = dtype, .dtype_out = dtype, .sizes = sizes};

    for (; *accesses != '\0'; accesses++) {
        const Access access = *accesses == 'r'   ? ACCESS_READ
                              : *accesses == 'w' ? ACCESS_WRITE
                              : *accesses == 'u' ? ACCESS_UPDATE
                                                 : ACCESS_ACCUMULATE;

        op.operands[op.num_operands++] = (Operand){.access = access, .param = WHOLE_TENSOR};
    }
    return op;
}

/* 16 rows, in 3, out 5; 2 sequences of 8 tokens, 4 query and 2 kv heads of 6. */
static const OpSizes sizes = {.rows = 16,
                              .in = 3,
                              .out = 5,
                              .batch = 2,
                              .seq = 8,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 6,
                              .chunk = 10,
                              .elements = 100};

START_TEST(every_kind_has_a_name_of_its_own)
{
    for (guint i = 0; i < NUM_OPS; i++) {
        ck_assert_ptr_nonnull(op_kind_name((OpKind)i));
        for (guint j = 0; j < i; j++)
            ck_assert_str_ne(op_kind_name((OpKind)i), op_kind_name((OpKind)j));
    }
    ck_assert_str_eq(op_kind_name(OP_LINEAR_BACKWARD_WEIGHT), "linear_backward_weight");
}
END_TEST

START_TEST(five_kinds_communicate)
{
    guint count = 0;

    for (guint i = 0; i < NUM_OPS; i++)
        count += op_kind_is_communication((OpKind)i) ? 1 : 0;
    ck_assert_uint_eq(count, 5);
    ck_assert(op_kind_is_communication(OP_EXCHANGE));
    ck_assert(op_kind_is_communication(OP_ALL_TO_ALL));
    ck_assert(!op_kind_is_communication(OP_SGD));
}
END_TEST

START_TEST(accumulation_writes_first_and_updates_then)
{
    const Operand accumulated = {.access = ACCESS_ACCUMULATE}, read = {.access = ACCESS_READ};

    ck_assert_int_eq(operand_access(&accumulated, TRUE), ACCESS_WRITE);
    ck_assert_int_eq(operand_access(&accumulated, FALSE), ACCESS_UPDATE);
    ck_assert_int_eq(operand_access(&read, TRUE), ACCESS_READ);
    ck_assert_int_eq(operand_access(&read, FALSE), ACCESS_READ);
}
END_TEST

/* By hand: 2 * 16 * 3 * 5 = 480; 2 * 2 * 16 * 8 * 24 / 2 = 6144. */
static const struct {
    OpKind kind;
    double flops;
} flops[] = {
    {OP_LINEAR, 480},
    {OP_LINEAR_BACKWARD_INPUT, 480},
    {OP_LINEAR_BACKWARD_WEIGHT, 480},
    {OP_HEAD_LOSS, 3 * 480},
    {OP_ATTENTION, 6144},
    {OP_ATTENTION_BACKWARD, 2.5 * 6144},
    {OP_GROUPED_LINEAR, 480},
    {OP_GROUPED_LINEAR_BACKWARD_INPUT, 480},
    {OP_GROUPED_LINEAR_BACKWARD_WEIGHT, 480},
    {OP_RMSNORM, 0},
    {OP_ADAMW, 0},
    {OP_ALL_GATHER, 0},
};

/* Without positions chunk says nothing; with them each of its blocks counts. */
START_TEST(attention_by_positions_takes_half_of_all_pairs_a_block)
{
    OpSizes three = sizes;
    three.chunk = 3;
    const Op causal = op_with(OP_ATTENTION, DTYPE_FP32, three, "rrrwww");
    const Op forward = op_with(OP_ATTENTION, DTYPE_FP32, three, "rrrwwwrr");
    const Op backward = op_with(OP_ATTENTION_BACKWARD, DTYPE_FP32, three, "rrrrrrwwwwrr");

    ck_assert_uint_eq(op_key_blocks(&causal), 1);
    ck_assert_uint_eq(op_key_blocks(&forward), 3);
    ck_assert_uint_eq(op_key_blocks(&backward), 3);
    ck_assert_double_eq(op_flops(&causal), 6144);
    ck_assert_double_eq(op_flops(&forward), 3 * 6144);
    ck_assert_double_eq(op_flops(&backward), 3 * 2.5 * 6144);
}
END_TEST

/* Heads of 6 for keys and of 2 for values: 2 * 8 * 8 * 4 pairs. */
START_TEST(values_may_be_narrower_than_keys)
{
    OpSizes narrow = sizes;
    narrow.value_dim = 2;
    const Op forward = op_with(OP_ATTENTION, DTYPE_FP32, narrow, "rrrwww");
    const Op backward = op_with(OP_ATTENTION_BACKWARD, DTYPE_FP32, narrow, "rrrrrrwwww");

    ck_assert_double_eq(op_flops(&forward), 512 * (6 + 2));
    ck_assert_double_eq(op_flops(&backward), 512 * (3 * 6 + 2 * 2));
    ck_assert_double_eq(op_memory_bytes(&forward, 0),
                        4 * (16 * 4 * 6 + 16 * 2 * 6 + 16 * 2 * 2 + 16 * 4 * 2 + 16 * 4));
}
END_TEST

START_TEST(flops_are_the_worked_values)
{
    const Op op = op_with(flops[_i].kind, DTYPE_BF16, sizes, "");

    ck_assert_double_eq(op_flops(&op), flops[_i].flops);
}
END_TEST

/* By hand, for a unit of 1000 elements. */
static const struct {
    OpKind kind;
    const char *accesses;
    double fp32, bf16;
} moved[] = {
    {OP_EMBED, "rrw", 4 * (16 + 80 + 80), 64 + 2 * 160},
    {OP_RMSNORM, "rrww", 4 * (48 + 3 + 48 + 16), 2 * (48 + 3 + 48) + 64},
    {OP_RMSNORM, "rrwwrw", 4 * (48 + 3 + 48 + 16 + 96), 2 * (48 + 3 + 48 + 96) + 64},
    {OP_RMSNORM_BACKWARD, "rrrruaw", 4 * (48 + 48 + 3 + 16 + 96 + 3),
     2 * (48 + 48 + 3 + 96 + 3) + 64},
    /* beside the sums of all columns, one a row; those of this rank's */
    {OP_RMSNORM_BACKWARD, "rrrruawr", 4 * (48 + 48 + 3 + 16 + 96 + 3 + 16),
     2 * (48 + 48 + 3 + 96 + 3) + 2 * 64},
    {OP_ROW_SUMS, "rw", 4 * (48 + 16), 2 * 48 + 64},
    {OP_ROW_SUMS, "rwrr", 4 * (48 + 16 + 48 + 3), 2 * (48 + 48 + 3) + 64},
    {OP_LINEAR, "rrww", 4 * (48 + 15 + 80), 2 * (48 + 15 + 80)},
    {OP_LAYERNORM, "rrrww", 4 * (48 + 3 + 3 + 48 + 32), 2 * (48 + 3 + 3 + 48) + 128},
    {OP_LAYERNORM, "rrrwwrw", 4 * (48 + 3 + 3 + 48 + 32 + 96), 2 * (48 + 3 + 3 + 48 + 96) + 128},
    {OP_LAYERNORM_APPLY, "rrrrw", 4 * (48 + 3 + 3 + 48 + 32), 2 * (48 + 3 + 3 + 48) + 128},
    {OP_LAYERNORM_BACKWARD, "rrrruaaw", 4 * (48 + 48 + 3 + 32 + 96 + 3 + 3),
     2 * (48 + 48 + 3 + 96 + 3 + 3) + 128},
    {OP_EMBED, "rru", 4 * (16 + 80 + 160), 64 + 2 * 240},
    /* 16 tokens, 16 rows of 5 to add, each read and written; before it all of 3 x 5 is zeroed */
    {OP_EMBED_BACKWARD, "rra", 4 * (16 + 80 + 160 + 15), 64 + 2 * (80 + 160 + 15)},
    {OP_EMBED_BACKWARD, "rru", 4 * (16 + 80 + 160), 64 + 2 * (80 + 160)},
    {OP_LINEAR, "rrwwr", 4 * (48 + 15 + 80 + 5), 2 * (48 + 15 + 80 + 5)},
    {OP_LINEAR_BACKWARD_WEIGHT, "rrawa", 4 * (80 + 48 + 15 + 5), 2 * (80 + 48 + 15 + 5)},
    {OP_ADD_BIAS, "ur", 4 * (96 + 3), 2 * (96 + 3)},
    {OP_LINEAR, "rruw", 4 * (48 + 15 + 160), 2 * (48 + 15 + 160)},
    {OP_ROPE, "uur", 4 * (2 * 384 + 2 * 192 + 48), 2 * (2 * 384 + 2 * 192) + 4 * 48},
    {OP_ATTENTION, "rrrwww", 4 * (384 + 192 + 192 + 384 + 64), 2 * (384 + 192 + 192 + 384) + 256},
    {OP_ATTENTION, "rrrwwwrr", 4 * (384 + 1920 + 1920 + 384 + 64 + 8 + 80),
     2 * (384 + 1920 + 1920 + 384) + 4 * (64 + 8 + 80)}, /* 10 blocks of keys */
    {OP_ATTENTION, "rrruuwrr", 4 * (384 + 1920 + 1920 + 768 + 128 + 8 + 80),
     2 * (384 + 1920 + 1920 + 768) + 4 * (128 + 8 + 80)},
    {OP_ATTENTION_BACKWARD, "rrrrrrwuuwrr", 4 * (3 * 384 + 2 * 1920 + 64 + 384 + 4 * 1920 + 8 + 80),
     2 * (3 * 384 + 2 * 1920 + 384 + 4 * 1920) + 4 * (64 + 8 + 80)},
    {OP_SWIGLU, "rrw", 4 * 3 * 48, 2 * 3 * 48},
    {OP_GELU, "rw", 4 * 2 * 48, 2 * 2 * 48},
    {OP_GELU_BACKWARD, "ru", 4 * 3 * 48, 2 * 3 * 48},
    {OP_ACCUMULATE, "ru", 1200, 600},
    {OP_ACCUMULATE, "rwr", 1200, 600},
    {OP_CAST, "rw", 800, 400},
    {OP_SQUARED_NORM, "ra", 4008, 2008},
    /* 100 scales of 10 elements each */
    {OP_ADAMW, "uruurr", 4 * (2000 + 1000) + 4 * 1400 + 64, 2 * (2000 + 1000) + 4 * 1400 + 64},
    {OP_ADAMW, "uruurru", 4 * (2000 + 1000 + 2000) + 4 * 1400 + 64,
     2 * (2000 + 1000) + 4 * 1400 + 4 * 2000 + 64},
    {OP_SGD, "urrr", 12064, 6064},
    {OP_REDUCE_SCATTER, "rw", 0, 0},
};

START_TEST(bytes_moved_are_the_worked_values)
{
    const Op fp32 = op_with(moved[_i].kind, DTYPE_FP32, sizes, moved[_i].accesses);
    const Op bf16 = op_with(moved[_i].kind, DTYPE_BF16, sizes, moved[_i].accesses);

    ck_assert_double_eq(op_memory_bytes(&fp32, 1000), moved[_i].fp32);
    ck_assert_double_eq(op_memory_bytes(&bf16, 1000), moved[_i].bf16);
}
END_TEST

START_TEST(moments_without_scales_are_fp32)
{
    OpSizes plain = sizes;

    plain.chunk = 0;
    const Op alone = op_with(OP_ADAMW, DTYPE_FP32, plain, "uruurr");
    const Op master = op_with(OP_ADAMW, DTYPE_BF16, plain, "uruurru");
    ck_assert_double_eq(op_memory_bytes(&alone, 1000), 4 * (2000 + 1000 + 4000) + 64);
    ck_assert_double_eq(op_memory_bytes(&master, 1000), 2 * (2000 + 1000) + 4 * 6000 + 64);
}
END_TEST

/* x (16, 3) and W (5, 3) in fp8, y (16, 5) in bf16. */
START_TEST(fp8_products_write_what_their_recipe_computes_with)
{
    Op op = op_with(OP_LINEAR, DTYPE_FP8, sizes, "rrww");

    op.dtype_out = DTYPE_BF16;
    ck_assert_double_eq(op_memory_bytes(&op, 0), 48 + 15 + 2 * 80);
}
END_TEST

/* A ring of bf16 sums in fp32: 2 * (do, q, k, v, o) + 4 * (lse, dq, dk, dv, positions). */
START_TEST(what_attention_writes_has_a_type_of_its_own)
{
    OpSizes one = sizes;
    one.chunk = 1;
    Op forward = op_with(OP_ATTENTION, DTYPE_BF16, one, "rrruuwrr");
    Op backward = op_with(OP_ATTENTION_BACKWARD, DTYPE_BF16, one, "rrrrrruuuwrr");

    forward.dtype_out = backward.dtype_out = DTYPE_FP32;
    ck_assert_double_eq(op_memory_bytes(&forward, 0), 2 * 768 + 4 * (2 * 384 + 128 + 16));
    ck_assert_double_eq(op_memory_bytes(&backward, 0),
                        2 * (3 * 384 + 2 * 192) + 4 * (64 + 2 * 384 + 4 * 192 + 16));
}
END_TEST

/* Zero where fp32 goes to the BLAS as it is; by hand otherwise, buffers rounded up to 64 bytes. */
static const struct {
    OpKind kind;
    DType dtype, dtype_out;
    guint64 bytes;
} scratch[] = {
    {OP_LINEAR, DTYPE_FP32, DTYPE_FP32, 0},
    {OP_LINEAR, DTYPE_BF16, DTYPE_BF16, 64 + 192 + 320},
    {OP_LINEAR_BACKWARD_WEIGHT, DTYPE_FP32, DTYPE_FP32, 0},
    {OP_LINEAR_BACKWARD_WEIGHT, DTYPE_BF16, DTYPE_FP32, 192 + 320},
    {OP_LINEAR_BACKWARD_WEIGHT, DTYPE_BF16, DTYPE_BF16, 64 + 192 + 320},
    {OP_HEAD_LOSS, DTYPE_FP32, DTYPE_FP32, 256 + 128}, /* 10 rows of 5 logits, 10 losses */
    {OP_HEAD_LOSS, DTYPE_BF16, DTYPE_FP32, 256 + 128 + 2 * 128 + 64},
    {OP_HEAD_LOSS, DTYPE_BF16, DTYPE_BF16, 256 + 128 + 2 * 128 + 64 + 64},
    {OP_RMSNORM_BACKWARD, DTYPE_FP32, DTYPE_FP32, CPU_NORM_PARTIALS * 12},
    {OP_LAYERNORM_BACKWARD, DTYPE_BF16, DTYPE_FP32, 2 * CPU_NORM_PARTIALS * 12},
    {OP_SWIGLU, DTYPE_BF16, DTYPE_BF16, 0},
    {OP_GELU_BACKWARD, DTYPE_BF16, DTYPE_BF16, 0},
};

START_TEST(scratch_on_a_cpu_is_the_worked_value)
{
    Op op = op_with(scratch[_i].kind, scratch[_i].dtype, sizes, "");

    op.dtype_out = scratch[_i].dtype_out;
    ck_assert_uint_eq(op_workspace_bytes(&op, DEVICE_CPU, 1), scratch[_i].bytes);
    ck_assert_uint_eq(op_workspace_bytes(&op, DEVICE_CPU, 4), scratch[_i].bytes);
}
END_TEST

START_TEST(scratch_of_attention_grows_with_threads_and_only_backward_with_the_sequence)
{
    OpSizes longer = sizes;
    longer.seq = 8 * sizes.seq;
    const OpKind kinds[] = {OP_ATTENTION, OP_ATTENTION_BACKWARD};

    for (guint i = 0; i < 2; i++) {
        const Op op = op_with(kinds[i], DTYPE_BF16, sizes, "");
        const Op more = op_with(kinds[i], DTYPE_BF16, longer, "");
        const guint64 one = op_workspace_bytes(&op, DEVICE_CPU, 1);

        ck_assert_uint_gt(one, 0);
        ck_assert_uint_eq(op_workspace_bytes(&op, DEVICE_CPU, 3), 3 * one);
        /* k, v, dk, dv of 56 more tokens of 6 */
        ck_assert_uint_eq(op_workspace_bytes(&more, DEVICE_CPU, 1), one + i * 4 * 56 * 6 * 4);
    }
}
END_TEST

START_TEST(scratch_of_attentions_backward_grows_with_blocks_of_keys)
{
    const Op one = op_with(OP_ATTENTION_BACKWARD, DTYPE_FP32, sizes, "rrrrrrwwww");
    const Op ten = op_with(OP_ATTENTION_BACKWARD, DTYPE_FP32, sizes, "rrrrrrwwwwrr");

    /* k, v, dk, dv of 9 more blocks of 8 tokens of 6 */
    ck_assert_uint_eq(op_workspace_bytes(&ten, DEVICE_CPU, 1),
                      op_workspace_bytes(&one, DEVICE_CPU, 1) + 4 * 9 * 8 * 6 * 4);
}
END_TEST

START_TEST(a_linears_scratch_stops_growing_with_its_rows)
{
    OpSizes many = sizes;
    many.rows = 1000;
    const Op op = op_with(OP_LINEAR, DTYPE_BF16, many, "");
    many.rows = 100000;
    const Op more = op_with(OP_LINEAR, DTYPE_BF16, many, "");

    ck_assert_uint_eq(op_workspace_bytes(&op, DEVICE_CPU, 1),
                      op_workspace_bytes(&more, DEVICE_CPU, 1));
}
END_TEST

START_TEST(scratch_on_a_gpu_is_the_librarys_and_the_logits)
{
    const guint64 library = 32 << 20;
    const Op linear = op_with(OP_LINEAR, DTYPE_BF16, sizes, "");
    const Op head = op_with(OP_HEAD_LOSS, DTYPE_BF16, sizes, "");
    const Op attention = op_with(OP_ATTENTION, DTYPE_BF16, sizes, "");
    const Op backward = op_with(OP_ATTENTION_BACKWARD, DTYPE_BF16, sizes, "");
    const Op norm = op_with(OP_LAYERNORM_BACKWARD, DTYPE_BF16, sizes, "");

    ck_assert_uint_eq(op_workspace_bytes(&linear, DEVICE_CUDA, 1), library);
    ck_assert_uint_eq(op_workspace_bytes(&head, DEVICE_CUDA, 1), library + 10 * (5 * 6 + 8));
    const Op of_fp32 = op_with(OP_ATTENTION, DTYPE_FP32, sizes, "");
    const Op backward_of_fp32 = op_with(OP_ATTENTION_BACKWARD, DTYPE_FP32, sizes, "");
    const Op positions = op_with(OP_ATTENTION_BACKWARD, DTYPE_BF16, sizes, "rrrrrrwwwwrr");

    ck_assert_uint_eq(op_workspace_bytes(&of_fp32, DEVICE_CUDA, 1), 0);
    ck_assert_uint_eq(op_workspace_bytes(&backward_of_fp32, DEVICE_CUDA, 1), 8 * 16 * 4);
    /* cuDNN's, which has none with positions: 16 tokens of 4 heads of 6 that share keys. */
    ck_assert_uint_eq(op_workspace_bytes(&attention, DEVICE_CUDA, 1), 256);
    ck_assert_uint_eq(op_workspace_bytes(&backward, DEVICE_CUDA, 1),
                      1536 + 256 + 1536 + 2 * (2 * 16 * 4 * 6) + 256);
    ck_assert_uint_eq(op_workspace_bytes(&positions, DEVICE_CUDA, 1), 8 * 16 * 4 + 8 * 11);
    ck_assert_uint_eq(op_workspace_bytes(&norm, DEVICE_CUDA, 1), 256 * 2 * 4 * 3);
}
END_TEST

/* 40 tokens: two tiles of queries and two for each of three blocks of keys. */
START_TEST(scratch_on_a_gpu_grows_with_wide_biases_and_positions)
{
    OpSizes wide = sizes, ring = sizes;
    wide.out = 1 << 20;
    ring.seq = 40;
    ring.chunk = 3;
    const Op weight = op_with(OP_LINEAR_BACKWARD_WEIGHT, DTYPE_BF16, wide, "");
    Op attention = op_with(OP_ATTENTION, DTYPE_BF16, ring, "");

    attention.num_operands = 8;
    ck_assert_uint_eq(op_workspace_bytes(&weight, DEVICE_CUDA, 1), 4 * 64 * 1048576);
    ck_assert_uint_eq(op_workspace_bytes(&attention, DEVICE_CUDA, 1), 8 * (2 + 3 * 2));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("traits");
    TCase *tcase = tcase_create("ops");

    tcase_add_test(tcase, every_kind_has_a_name_of_its_own);
    tcase_add_test(tcase, five_kinds_communicate);
    tcase_add_test(tcase, accumulation_writes_first_and_updates_then);
    tcase_add_test(tcase, values_may_be_narrower_than_keys);
    tcase_add_test(tcase, attention_by_positions_takes_half_of_all_pairs_a_block);
    tcase_add_test(tcase, moments_without_scales_are_fp32);
    tcase_add_test(tcase, fp8_products_write_what_their_recipe_computes_with);
    tcase_add_test(tcase, what_attention_writes_has_a_type_of_its_own);
    tcase_add_loop_test(tcase, flops_are_the_worked_values, 0, G_N_ELEMENTS(flops));
    tcase_add_loop_test(tcase, bytes_moved_are_the_worked_values, 0, G_N_ELEMENTS(moved));
    tcase_add_loop_test(tcase, scratch_on_a_cpu_is_the_worked_value, 0, G_N_ELEMENTS(scratch));
    tcase_add_test(tcase,
                   scratch_of_attention_grows_with_threads_and_only_backward_with_the_sequence);
    tcase_add_test(tcase, scratch_of_attentions_backward_grows_with_blocks_of_keys);
    tcase_add_test(tcase, a_linears_scratch_stops_growing_with_its_rows);
    tcase_add_test(tcase, scratch_on_a_gpu_is_the_librarys_and_the_logits);
    tcase_add_test(tcase, scratch_on_a_gpu_grows_with_wide_biases_and_positions);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
