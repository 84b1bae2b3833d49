#include "sim/input/workload.h"
#include "tests/suite.h"

START_TEST(recipes_keep_16_bytes_a_parameter_with_adamw_and_megatron_18)
{
    ck_assert_double_eq(recipe_bytes_per_parameter(&recipe_zero, OPTIMIZER_ADAMW),
                        2 + 2 + 4 + 4 + 4);
    ck_assert_double_eq(recipe_bytes_per_parameter(&recipe_fsdp2, OPTIMIZER_ADAMW), 4 + 4 + 8);
    ck_assert_double_eq(recipe_bytes_per_parameter(&recipe_fp32, OPTIMIZER_ADAMW), 4 + 4 + 4 + 4);
    ck_assert_double_eq(recipe_bytes_per_parameter(&recipe_megatron, OPTIMIZER_ADAMW),
                        2 + 4 + 4 + 4 + 4);
    ck_assert_double_eq(recipe_bytes_per_parameter(&recipe_fp32, OPTIMIZER_SGD), 8);
}
END_TEST

/* A byte each and 4 bytes for 256 of them. */
START_TEST(eight_bit_moments_have_a_scale_a_block)
{
    ck_assert_uint_eq(optimizer_moment_block(OPTIMIZER_ADAM8BIT), 256);
    ck_assert_uint_eq(moment_bytes(0, 256), 0);
    ck_assert_uint_eq(moment_bytes(1, 256), 1 + 4);
    ck_assert_uint_eq(moment_bytes(256, 256), 256 + 4);
    ck_assert_uint_eq(moment_bytes(257, 256), 257 + 8);
    ck_assert_uint_eq(moment_bytes(257, optimizer_moment_block(OPTIMIZER_ADAMW)), 4 * 257);
    ck_assert_double_eq(recipe_bytes_per_parameter(&recipe_zero, OPTIMIZER_ADAM8BIT),
                        8 + 2 * (1 + 4 / 256.0));
}
END_TEST

/* fp16 takes bf16's place; fp8 has its name and its products alone. */
START_TEST(other_precisions_keep_what_their_recipe_keeps)
{
    static const Recipe *const names[] = {&recipe_zero, &recipe_fsdp2, &recipe_megatron};

    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        const Recipe *half = recipe_with_precision(names[i], DTYPE_FP16);
        const Recipe *fp8 = recipe_with_precision(names[i], DTYPE_FP8);

        ck_assert_ptr_eq(recipe_with_precision(half, DTYPE_BF16), names[i]);
        ck_assert_double_eq(recipe_bytes_per_parameter(half, OPTIMIZER_ADAMW),
                            recipe_bytes_per_parameter(names[i], OPTIMIZER_ADAMW));
        ck_assert_int_eq(half->compute, DTYPE_FP16);
        ck_assert_int_eq(fp8->precision, DTYPE_FP8);
        ck_assert_int_eq(fp8->compute, DTYPE_BF16);
        ck_assert_int_eq(fp8->stored, names[i]->stored);
        ck_assert_int_eq(fp8->gradient, names[i]->gradient);
        ck_assert_int_eq(fp8->master, names[i]->master);
        ck_assert_ptr_null(recipe_with_precision(names[i], DTYPE_FP32));
    }
    ck_assert_ptr_null(recipe_with_precision(&recipe_fp32, DTYPE_FP8));
}
END_TEST

START_TEST(only_fsdp2_stores_another_type_than_it_computes_with)
{
    ck_assert_int_eq(recipe_zero.stored, recipe_zero.compute);
    ck_assert_int_eq(recipe_megatron.stored, recipe_megatron.compute);
    ck_assert_int_eq(recipe_fp32.stored, recipe_fp32.compute);
    ck_assert_int_eq(recipe_fsdp2.compute, DTYPE_BF16);
    ck_assert_int_eq(recipe_fsdp2.stored, DTYPE_FP32);
    ck_assert(!recipe_fsdp2.master); /* the fp32 shard is the master */
}
END_TEST

START_TEST(names_are_read_back)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_megatron,
                                            &recipe_fp32};
    Optimizer optimizer;
    DType dtype;

    for (guint i = 0; i < G_N_ELEMENTS(recipes); i++)
        ck_assert_ptr_eq(recipe_from_name(recipes[i]->name), recipes[i]);
    for (guint i = 0; i < NUM_OPTIMIZERS; i++) {
        ck_assert(optimizer_from_name(optimizer_name((Optimizer)i), &optimizer));
        ck_assert_uint_eq(optimizer, i);
    }
    for (guint i = 0; i < NUM_DTYPES; i++) {
        ck_assert(dtype_from_name(dtype_name((DType)i), &dtype));
        ck_assert_uint_eq(dtype, i);
    }
}
END_TEST

START_TEST(unknown_names_are_refused)
{
    Optimizer optimizer = OPTIMIZER_SGD;
    DType dtype = DTYPE_FP64;

    ck_assert(!precision_from_name("fp64", &dtype)); /* an element type, but none to train in */
    ck_assert(!precision_from_name("int32", &dtype));
    ck_assert(precision_from_name("fp8", &dtype));
    ck_assert_int_eq(dtype, DTYPE_FP8);
    dtype = DTYPE_FP64;
    ck_assert_ptr_null(recipe_from_name("megatrom"));
    ck_assert(!optimizer_from_name("adam", &optimizer));
    ck_assert_int_eq(optimizer, OPTIMIZER_SGD);
    ck_assert(!dtype_from_name("fp64 ", &dtype));
    ck_assert_int_eq(dtype, DTYPE_FP64);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("workload");
    TCase *tcase = tcase_create("workload");

    tcase_add_test(tcase, recipes_keep_16_bytes_a_parameter_with_adamw_and_megatron_18);
    tcase_add_test(tcase, eight_bit_moments_have_a_scale_a_block);
    tcase_add_test(tcase, other_precisions_keep_what_their_recipe_keeps);
    tcase_add_test(tcase, only_fsdp2_stores_another_type_than_it_computes_with);
    tcase_add_test(tcase, names_are_read_back);
    tcase_add_test(tcase, unknown_names_are_refused);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
