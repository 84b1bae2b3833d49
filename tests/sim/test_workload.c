#include "sim/input/workload.h"
#include "tests/suite.h"

/* Bytes a parameter of what is kept with nothing sharded (DESIGN 4). */
static guint state_bytes(const Recipe *recipe, Optimizer optimizer)
{
    return dtype_bytes(recipe->stored) + dtype_bytes(recipe->gradient) + (recipe->master ? 4 : 0) +
           4 * optimizer_moments(optimizer);
}

START_TEST(recipes_keep_16_bytes_a_parameter_with_adamw)
{
    ck_assert_uint_eq(state_bytes(&recipe_zero, OPTIMIZER_ADAMW), 2 + 2 + 4 + 4 + 4);
    ck_assert_uint_eq(state_bytes(&recipe_fsdp2, OPTIMIZER_ADAMW), 4 + 4 + 8);
    ck_assert_uint_eq(state_bytes(&recipe_fp32, OPTIMIZER_ADAMW), 4 + 4 + 4 + 4);
    ck_assert_uint_eq(state_bytes(&recipe_fp32, OPTIMIZER_SGD), 8);
}
END_TEST

START_TEST(only_fsdp2_stores_another_type_than_it_computes_with)
{
    ck_assert_int_eq(recipe_zero.stored, recipe_zero.compute);
    ck_assert_int_eq(recipe_fp32.stored, recipe_fp32.compute);
    ck_assert_int_eq(recipe_fsdp2.compute, DTYPE_BF16);
    ck_assert_int_eq(recipe_fsdp2.stored, DTYPE_FP32);
    ck_assert(!recipe_fsdp2.master); /* the fp32 shard is the master */
}
END_TEST

START_TEST(names_are_read_back)
{
    static const Recipe *const recipes[] = {&recipe_zero, &recipe_fsdp2, &recipe_fp32};
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

    tcase_add_test(tcase, recipes_keep_16_bytes_a_parameter_with_adamw);
    tcase_add_test(tcase, only_fsdp2_stores_another_type_than_it_computes_with);
    tcase_add_test(tcase, names_are_read_back);
    tcase_add_test(tcase, unknown_names_are_refused);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
